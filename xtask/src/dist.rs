//! `cargo xtask dist`: the release archive. One stripped binary with the BPF object inside, the
//! licences, the README with what it links to, shell completions and manual pages; a user of it needs no
//! toolchain.
//!
//! Invariant: the only library needed on the user's machine is glibc; any other library is an error
//! here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Profile};
use crate::{bpf_object, project, run};

const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "LICENSE",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "ebpf/LICENSE",
    "userspace/config/strata.example.toml",
];
/// What the README links to.
const FOLDERS: &[&str] = &["docs", "deploy"];

pub fn run() -> Result<()> {
    setup::ensure(Profile::Record)?;
    bpf_object::ensure()?;
    let mut cargo = project::cargo();
    cargo.args(["build", "--profile", "dist", "--package", "strata"]);
    run::aloud(&mut cargo).context("strata does not build")?;
    let binary = project::target().join("dist/strata");
    refuse_other_libraries(&binary)?;

    let name = format!("strata-{}-x86_64-linux", version()?);
    let directory = project::target().join("dist").join(&name);
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    fs::copy(&binary, directory.join("strata"))?;
    for document in DOCUMENTS {
        let (from, to) = (project::root().join(document), directory.join(document));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(&from, &to).with_context(|| format!("cannot copy {document}"))?;
    }
    for folder in FOLDERS {
        let mut copy = Command::new("cp");
        copy.arg("--recursive").arg(project::root().join(folder)).arg(&directory);
        run::output_of(&mut copy)?;
    }

    let mut documents = Command::new(directory.join("strata"));
    documents.arg("internal-documents").arg(&directory);
    run::output_of(&mut documents).context("strata does not write its manual pages")?;

    let archive = project::target().join("dist").join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(project::target().join("dist"));
    // The same content gives the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--use-compress-program=gzip -9n", "-cf"]).arg(&archive).arg(&name);
    run::output_of(&mut tar)?;

    let size = |file: &Path| -> Result<String> {
        Ok(format!("{:.1} MB", fs::metadata(file)?.len() as f64 / 1e6))
    };
    println!("{}", archive.display());
    println!("  archive {}, binary {}", size(&archive)?, size(&binary)?);
    println!("  needs Linux on x86-64 with glibc {} or later", newest_glibc_symbol(&binary)?);
    println!("  sha256 {}", run::sha256_of(&archive)?);
    Ok(())
}

fn refuse_other_libraries(binary: &Path) -> Result<()> {
    const EXPECTED: &[&str] = &["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];
    let dynamic =
        run::output_of(Command::new("readelf").args(["--dynamic", "--wide"]).arg(binary))?;
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let library = line.split(['[', ']']).nth(1).unwrap_or(line);
        if !EXPECTED.contains(&library) {
            bail!("the release binary needs {library}, which not every machine has");
        }
    }
    Ok(())
}

fn newest_glibc_symbol(binary: &Path) -> Result<String> {
    let versions =
        run::output_of(Command::new("readelf").args(["--version-info", "--wide"]).arg(binary))?;
    let newest = versions
        .split(|c: char| c.is_whitespace())
        .filter_map(|word| word.strip_prefix("GLIBC_"))
        .filter_map(|version| {
            version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
        })
        .max()
        .context("the binary names no glibc version")?;
    Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

fn version() -> Result<String> {
    let identity = run::output_of(project::cargo().args(["pkgid", "--package", "strata"]))?;
    let version = identity.trim_end().rsplit(['#', '@']).next();
    Ok(version.context("cargo names no version of strata")?.to_owned())
}
