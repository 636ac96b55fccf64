//! Go 1.19 for tests, from Debian 12's packages, which are not installed.
//!
//! Programs of Go before 1.21 leave their goroutine's stack in another way, and those that Debian 12
//! ships are of this one. The newest Debian and the Go proxy have no release as old. Invariant: the
//! tree is renamed into place when it is whole, and kept.

use std::fs;

use anyhow::{Context, Result};

use super::debian::Release;
use crate::project;

const FOLDER: &str = "go-1.19";
const COMPILER: &str = "usr/lib/go-1.19/bin/go";
/// Without the standard library as it is for the race detector and for shared objects.
const COMPILER_FILES: &[&str] = &[
    "./usr/lib/go-1.19/VERSION",
    "./usr/lib/go-1.19/bin",
    "./usr/lib/go-1.19/src",
    "./usr/lib/go-1.19/pkg/include",
    "./usr/lib/go-1.19/pkg/linux_amd64",
    "./usr/lib/go-1.19/pkg/tool",
    "./usr/share/go-1.19",
];
const SOURCES: &[&str] = &["./usr/share/go-1.19/src"];

pub fn ensure() -> Result<()> {
    let folder = project::cache().join(FOLDER);
    if folder.join(COMPILER).exists() {
        return Ok(());
    }
    eprintln!(
        "· needed: golang-1.19-go golang-1.19-src (programs of Go before 1.21 to profile; kept under \
         .cache, not installed)"
    );
    let debian = Release::open("bookworm")?;
    let unfinished = folder.with_extension("unfinished");
    _ = fs::remove_dir_all(&unfinished);
    debian.unpack("golang-1.19-go", COMPILER_FILES, &unfinished)?;
    debian.unpack("golang-1.19-src", SOURCES, &unfinished)?;
    _ = fs::remove_dir_all(&folder);
    fs::rename(&unfinished, &folder)
        .with_context(|| format!("cannot put Go 1.19 into {}", folder.display()))
}
