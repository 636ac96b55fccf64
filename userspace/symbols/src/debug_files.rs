//! Where the debug file of a binary may lie, and whether a file found there is the right one.
//!
//! The order is that of gdb, then the two habits of putting it beside the binary. Paths are inside
//! the root of the process that runs the binary; the host's own root may be asked with the same
//! paths.
//!
//! Invariant: paths are made of the binary's path and hexadecimal digits or a plain file name, so
//! none leaves the directories named here. A file is accepted by its own content only.

use crate::elf::{AlternateLink, DebugLink};
use crate::read_at::read_some;
use crate::{ElfFile, ReadAt};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const DEBUG_ROOT: &str = "/usr/lib/debug";
/// Larger files are not read through for a checksum.
const MAX_CHECKED: u64 = 4 << 30;

/// The places to look, best first. `binary` is an absolute path inside its root.
#[must_use]
pub fn candidates(
    binary: &Path,
    build_id: Option<&[u8]>,
    link: Option<&DebugLink>,
) -> Vec<PathBuf> {
    let mut places = Vec::new();
    places.extend(build_id.and_then(by_build_id));
    let climbs = binary.components().any(|part| matches!(part, std::path::Component::ParentDir));
    let (Some(directory), false) = (binary.parent().filter(|_| binary.is_absolute()), climbs)
    else {
        return places;
    };
    let below_root =
        |path: &Path| Path::new(DEBUG_ROOT).join(path.strip_prefix("/").unwrap_or(Path::new("")));
    if let Some(link) = link {
        let name = OsStr::from_bytes(&link.name);
        places.push(directory.join(name));
        places.push(directory.join(".debug").join(name));
        places.push(below_root(directory).join(name));
    }
    places.push(with_suffix(&below_root(binary), ".debug"));
    places.push(with_suffix(binary, ".debug"));
    places.push(with_suffix(binary, ".dbg"));
    let mut seen = Vec::new();
    places.retain(|place| {
        let new = place != binary && !seen.contains(place);
        seen.push(place.clone());
        new
    });
    places
}

fn by_build_id(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let mut digits = String::new();
    for byte in rest {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    let name = || PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{digits}.debug"));
    (!digits.is_empty()).then(name)
}

/// The places of the file of dwz that the debug information in `file` links to, best first.
#[must_use]
pub fn alternates(file: &Path, link: &AlternateLink) -> Vec<PathBuf> {
    let path = Path::new(OsStr::from_bytes(&link.path));
    // An absolute path replaces the directory.
    let linked = file.parent().filter(|_| file.is_absolute()).map(|folder| folder.join(path));
    let name = path.file_name().map(|name| Path::new(DEBUG_ROOT).join(".dwz").join(name));
    linked.into_iter().chain(by_build_id(&link.build_id)).chain(name).collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    PathBuf::from(text)
}

/// Whether `candidate` is the debug file of the binary with this build id, or, if the binary has
/// none, with this checksum in its debug link. A binary with neither has no debug file that could
/// be verified.
#[must_use]
pub fn accept(candidate: &dyn ReadAt, build_id: Option<&[u8]>, link_crc: Option<u32>) -> bool {
    let Ok(elf) = ElfFile::open(candidate) else {
        return false;
    };
    let features = elf.features();
    if !features.symtab && !features.dwarf {
        return false;
    }
    match (build_id, link_crc) {
        (Some(wanted), _) => elf.build_id().as_deref() == Some(wanted),
        (None, Some(wanted)) => checksum(candidate) == Some(wanted),
        (None, None) => false,
    }
}

/// The CRC-32 of a whole file, as in `.gnu_debuglink`.
#[must_use]
pub fn checksum(file: &dyn ReadAt) -> Option<u32> {
    if file.len() > MAX_CHECKED {
        return None;
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut offset = 0_u64;
    loop {
        let count = read_some(file, "debug file", offset, &mut buffer).ok()?;
        hasher.update(buffer.get(..count)?);
        offset = offset.checked_add(u64::try_from(count).ok()?)?;
        // A file that grows while it is read must not prolong this.
        if count < buffer.len() || offset > MAX_CHECKED {
            return Some(hasher.finalize());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(places: &[PathBuf]) -> Vec<&str> {
        places.iter().filter_map(|place| place.to_str()).collect()
    }

    #[test]
    fn candidates_come_in_the_order_of_gdb() {
        let link = DebugLink { name: b"tool.debug".to_vec(), crc: 1 };
        let places = candidates(Path::new("/opt/x/tool"), Some(&[0xab, 0xcd, 0x01]), Some(&link));
        assert_eq!(
            texts(&places),
            [
                "/usr/lib/debug/.build-id/ab/cd01.debug",
                "/opt/x/tool.debug",
                "/opt/x/.debug/tool.debug",
                "/usr/lib/debug/opt/x/tool.debug",
                "/opt/x/tool.dbg",
            ]
        );
    }

    #[test]
    fn a_path_that_climbs_gives_only_the_build_id() {
        let places = candidates(Path::new("/opt/../../etc/x"), Some(&[1, 2]), None);
        assert_eq!(texts(&places), ["/usr/lib/debug/.build-id/01/02.debug"]);
        assert!(candidates(Path::new("relative"), None, None).is_empty());
        assert!(candidates(Path::new("/"), Some(&[1]), None).is_empty());
    }
}
