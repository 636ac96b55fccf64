//! The header of precompiled code (`src/coreclr/inc/readytorun.h`,
//! `docs/design/coreclr/botr/readytorun-format.md`).

use strata_bytes::{Cursor, index, u32_at};

use crate::pe::Directory;

/// `READYTORUN_FLAG_COMPONENT`: the code lies in another image, together with that of others.
const COMPONENT: u32 = 0x20;
const MAX_SECTIONS: u32 = 256;

/// Bytes of an entry of the list of sections.
pub const SECTION_BYTES: usize = 12;

/// `ReadyToRunSectionType`.
pub mod section {
    pub const RUNTIME_FUNCTIONS: u32 = 102;
    pub const METHOD_DEF_ENTRY_POINTS: u32 = 103;
    pub const DEBUG_INFO: u32 = 105;
    pub const DELAY_LOAD_THUNKS: u32 = 106;
    pub const INSTANCE_ENTRY_POINTS: u32 = 109;
    pub const MANIFEST_METADATA: u32 = 112;
    pub const COMPONENT_ASSEMBLIES: u32 = 115;
    pub const OWNER_COMPOSITE_EXECUTABLE: u32 = 116;
    pub const HOT_COLD_MAP: u32 = 120;
}

/// The list of sections follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub major_version: u16,
    pub minor_version: u16,
    pub flags: u32,
    section_count: u32,
}

impl Header {
    pub const BYTES: usize = 16;

    /// `None` for a native image of an older kind.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        (cursor.array()? == *b"RTR\0").then_some(())?;
        Some(Self {
            major_version: cursor.u16()?,
            minor_version: cursor.u16()?,
            flags: cursor.u32()?,
            section_count: cursor.u32()?.min(MAX_SECTIONS),
        })
    }

    #[must_use]
    pub fn is_component(&self) -> bool {
        self.flags & COMPONENT != 0
    }

    /// How long the list of sections is.
    #[must_use]
    pub fn list_bytes(&self) -> usize {
        index(self.section_count) * SECTION_BYTES
    }

    /// The kinds and places of the sections, from the bytes behind the header.
    pub fn sections<'a>(&self, list: &'a [u8]) -> impl Iterator<Item = (u32, Directory)> + use<'a> {
        let (entries, _) = list.as_chunks::<SECTION_BYTES>();
        let entries = entries.iter().take(index(self.section_count));
        entries.filter_map(|entry| Some((u32_at(entry, 0)?, Directory::read(entry, 4)?)))
    }
}
