//! The initial file system of a guest: a cpio archive in the "newc" form the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Written here so that no cpio program is needed. Invariant: a directory comes before what
//! is in it, and no name comes twice.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const TRAILER: &str = "TRAILER!!!";

pub struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    pub fn new() -> Self {
        Archive { bytes: Vec::new(), names: BTreeSet::new() }
    }

    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.parents(name)?;
        self.entry(name, REGULAR | mode, content)
    }

    pub fn copy(&mut self, name: &str, from: &Path) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(name, 0o755, &content)
    }

    /// A program with every library its loader would look for, each at the place it has here.
    pub fn copy_with_libraries(&mut self, name: &str, program: &Path) -> Result<()> {
        self.copy(name, program)?;
        for library in libraries_of(program)? {
            let name = library.to_string_lossy().trim_start_matches('/').to_owned();
            if !self.names.contains(&name) {
                self.copy(&name, &library)?;
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.header(TRAILER, 0, 0);
        self.bytes
    }

    fn parents(&mut self, name: &str) -> Result<()> {
        for (at, _) in name.match_indices('/') {
            let parent = &name[..at];
            if !self.names.contains(parent) {
                self.entry(parent, DIRECTORY | 0o755, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is too large"))?;
        self.header(name, mode, size);
        self.bytes.extend_from_slice(content);
        self.pad();
        self.names.insert(name.to_owned());
        Ok(())
    }

    fn header(&mut self, name: &str, mode: u32, size: u32) {
        let number = self.names.len() as u32 + 1;
        let name_size = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device ×2, special device ×2, name, check
        let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let Ok(listing) = run::output_of(Command::new("ldd").arg(program)) else {
        // ldd fails for static programs: they need nothing.
        return Ok(Vec::new());
    };
    let paths = listing.lines().filter_map(|line| {
        let line = line.trim();
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = path.split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    Ok(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::{Archive, libraries_of};
    use std::path::Path;

    #[test]
    fn a_file_brings_its_directories_once() {
        let mut archive = Archive::new();
        archive.file("a/b/one", 0o644, b"1").unwrap();
        archive.file("a/b/two", 0o644, b"22").unwrap();
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 5, "a, a/b, one, two and the trailer");
        assert!(text.find("a/b/one").unwrap() > text.find("a/b\0").unwrap());
    }

    #[test]
    fn the_libraries_of_a_dynamic_program_include_libc_and_its_loader() {
        let libraries = libraries_of(Path::new("/bin/sh")).unwrap();
        let named = |part: &str| libraries.iter().any(|path| path.to_string_lossy().contains(part));
        assert!(named("libc.so") && named("ld-linux"), "{libraries:?}");
    }
}
