//! Links to other files: `.gnu_debuglink` to the one that holds the debug information, and
//! `.gnu_debugaltlink` from that to the one in which dwz has put what several have in common.

use super::ElfFile;
use strata_bytes::{u32_at, until_nul};

/// The contents of `.gnu_debuglink`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugLink {
    /// A file name without a directory.
    pub name: Vec<u8>,
    /// The CRC-32 of that whole file.
    pub crc: u32,
}

/// The contents of `.gnu_debugaltlink`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlternateLink {
    /// A path, absolute or from the directory of the file that has the link.
    pub path: Vec<u8>,
    /// The build id of the file there.
    pub build_id: Vec<u8>,
}

/// No build id is longer.
const MAX_BUILD_ID: usize = 64;
/// `PATH_MAX`.
const MAX_PATH: usize = 4096;

impl ElfFile<'_> {
    /// The link to the file of dwz.
    #[must_use]
    pub fn alternate_link(&self) -> Option<AlternateLink> {
        let section = *self.section_with_data(".gnu_debugaltlink")?;
        let bytes = self.read_section(&section, "link to the file of dwz", 8192).ok()?;
        let path = until_nul(&bytes);
        let build_id = bytes.get(path.len().checked_add(1)?..)?;
        let is_usable = !path.is_empty()
            && path.len() < MAX_PATH
            && !build_id.is_empty()
            && build_id.len() <= MAX_BUILD_ID;
        is_usable.then(|| AlternateLink { path: path.to_vec(), build_id: build_id.to_vec() })
    }

    /// The debug link; names that are paths are refused.
    #[must_use]
    pub fn debug_link(&self) -> Option<DebugLink> {
        let section = *self.section_with_data(".gnu_debuglink")?;
        let bytes = self.read_section(&section, "debug link", 8192).ok()?;
        let name = until_nul(&bytes);
        let crc = u32_at(&bytes, name.len().checked_add(1)?.checked_next_multiple_of(4)?)?;
        let plain = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
        (plain && name.len() <= 255).then(|| DebugLink { name: name.to_vec(), crc })
    }
}
