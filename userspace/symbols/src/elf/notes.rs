//! The build id: a note of type `NT_GNU_BUILD_ID`, found by section or by segment.
//!
//! Invariant: a build id is a claim of the file about itself and is 1 to 64 bytes long.

use super::{ElfFile, SECTION_NOTE, SEGMENT_NOTE};
use crate::read_at::read_bytes;
use strata_bytes::u32_at;

const MAX_NOTES: u64 = 64 << 10;
const MAX_BUILD_ID: usize = 64;
const NT_GNU_BUILD_ID: u32 = 3;

impl ElfFile<'_> {
    /// The build id, if the file carries one.
    #[must_use]
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let sections = self
            .sections
            .iter()
            .filter(|section| section.kind == SECTION_NOTE)
            .map(|section| (section.offset, section.size));
        let segments = self
            .segments
            .iter()
            .filter(|segment| segment.kind == SEGMENT_NOTE)
            .map(|segment| (segment.offset, segment.file_size));
        sections
            .chain(segments)
            .take(64)
            .filter_map(|(offset, size)| {
                read_bytes(self.file(), "notes", offset, size, MAX_NOTES).ok()
            })
            .find_map(|notes| build_id_in(&notes))
    }
}

/// The build id among the notes in `notes`.
#[must_use]
pub fn build_id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let name_size = usize::try_from(u32_at(notes, 0)?).ok()?;
        let value_size = usize::try_from(u32_at(notes, 4)?).ok()?;
        let kind = u32_at(notes, 8)?;
        let value_at = name_size.checked_next_multiple_of(4)?.checked_add(12)?;
        let name = notes.get(12..)?.get(..name_size)?;
        let value = notes.get(value_at..)?.get(..value_size)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return (1..=MAX_BUILD_ID).contains(&value.len()).then(|| value.to_vec());
        }
        let next = value_size.checked_next_multiple_of(4)?.checked_add(value_at)?;
        notes = notes.get(next..)?;
    }
    None
}
