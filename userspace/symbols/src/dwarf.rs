//! Lines and inlined functions from DWARF.
//!
//! The sections are read whole (the format does not allow less), so all of them together have a
//! limit; a file beyond it is reported as [`State::TooLarge`] and symbolized from its symbol table.
//! Units are parsed when an address first falls into them. Split DWARF (`.dwo`) is not followed:
//! such units give lines and no inlined functions.
//!
//! Invariant: a panic in the parsing crates stays in here and ends the use of this file's DWARF.

use crate::elf::ElfFile;
use addr2line::Context;
use gimli::{EndianSlice, LittleEndian, SectionId};
use self_cell::self_cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use strata_bytes::bounded_text;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type BoxedContext<'a> = Box<Context<Slice<'a>>>;

/// The most frames at one address; bounds debug information that nests without end.
const MAX_FRAMES: usize = 256;

/// The sections that names and lines need; location lists, the largest, are left out.
const SECTIONS: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

/// The state of a file's DWARF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// No address has needed it yet.
    #[default]
    Unused,
    /// The files have none.
    Absent,
    Used,
    /// Larger than the limit: names come from symbol tables, without lines.
    TooLarge {
        bytes: u64,
        limit: u64,
    },
    /// Damaged: names come from symbol tables, without lines.
    Broken,
}

#[derive(Default)]
struct Sections(Vec<(SectionId, Vec<u8>)>);

impl Sections {
    fn get(&self, id: SectionId) -> Slice<'_> {
        let bytes = self
            .0
            .iter()
            .find(|(held, _)| *held == id)
            .map(|(_, bytes)| bytes.as_slice())
            .unwrap_or_default();
        EndianSlice::new(bytes, LittleEndian)
    }
}

self_cell!(
    struct Loaded {
        owner: Sections,
        #[not_covariant]
        dependent: BoxedContext,
    }
);

/// One frame from DWARF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DwarfFrame {
    /// The linkage name where there is one, else the plain name.
    pub raw_name: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// The debug information of one file.
#[derive(Default)]
pub struct Dwarf {
    loaded: Option<Loaded>,
    pub state: State,
}

impl Dwarf {
    /// Loads the DWARF of the first file that has any.
    #[must_use]
    pub fn load(files: &[&ElfFile<'_>], limit: u64) -> Self {
        let Some(elf) = files.iter().find(|elf| elf.features().dwarf) else {
            return Self::ended(State::Absent);
        };
        let mut sections = Sections::default();
        let mut left = limit;
        for id in SECTIONS {
            let name = id.name();
            let old = name.replacen(".debug_", ".zdebug_", 1);
            let Some(section) = elf.section_with_data(name).or_else(|| elf.section_with_data(&old))
            else {
                continue;
            };
            match elf.read_section(section, "debug information", left) {
                Ok(bytes) => {
                    left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                    sections.0.push((id, bytes));
                }
                Err(crate::Error::TooLarge { bytes, .. }) => {
                    let bytes = bytes.saturating_add(limit.saturating_sub(left));
                    return Self::ended(State::TooLarge { bytes, limit });
                }
                Err(_) => return Self::ended(State::Broken),
            }
        }
        let context = catch_unwind(AssertUnwindSafe(|| {
            Loaded::try_new(sections, |sections| {
                let dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(sections.get(id)))?;
                Context::from_dwarf(dwarf).map(Box::new)
            })
        }));
        match context {
            Ok(Ok(loaded)) => Self { loaded: Some(loaded), state: State::Used },
            _ => Self::ended(State::Broken),
        }
    }

    fn ended(state: State) -> Self {
        Self { loaded: None, state }
    }

    /// The frames at `address`, innermost first; empty when DWARF does not cover it.
    pub fn frames(&mut self, address: u64) -> Vec<DwarfFrame> {
        // The last address has no address behind it, which addr2line 0.27 asks for.
        let (Some(loaded), true) = (&self.loaded, address < u64::MAX) else {
            return Vec::new();
        };
        let frames = catch_unwind(AssertUnwindSafe(|| {
            loaded.with_dependent(|_, context| frames_of(context, address))
        }));
        frames.unwrap_or_else(|_| {
            *self = Self::ended(State::Broken);
            Vec::new()
        })
    }
}

fn frames_of(context: &Context<Slice<'_>>, address: u64) -> Vec<DwarfFrame> {
    let mut frames = Vec::new();
    let Ok(mut found) = context.find_frames(address).skip_all_loads() else {
        return frames;
    };
    while let Ok(Some(frame)) = found.next() {
        let location = frame.location.as_ref();
        frames.push(DwarfFrame {
            raw_name: frame
                .function
                .as_ref()
                .map(|function| String::from_utf8_lossy(function.name.slice()).into_owned()),
            file: location
                .and_then(|location| location.file)
                .map(|file| bounded_text(file.as_bytes()).into_owned()),
            line: location.and_then(|location| location.line).filter(|&line| line != 0),
        });
        if frames.len() >= MAX_FRAMES {
            break;
        }
    }
    frames
}
