//! `.gnu_debuglink`: the name of the file that holds the debug information, and its checksum.

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

impl ElfFile<'_> {
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
