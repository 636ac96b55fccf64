//! Lines and inlined functions from DWARF.
//!
//! The sections are read whole (the format does not allow less), so all of them together have a
//! limit; a file beyond it is reported as [`State::TooLarge`] and symbolized from its symbol table.
//! Units are parsed when an address first falls into them. Split DWARF (`.dwo`) is not followed:
//! such units give lines and no inlined functions. C++ functions without a linkage name are qualified
//! by their scopes (`scopes`).
//!
//! Invariant: a panic in the parsing crates stays in here and ends the use of this file's DWARF.

use crate::elf::ElfFile;
use crate::scopes::{Scopes, is_cpp};
use addr2line::Context;
use gimli::{EndianSlice, LittleEndian, SectionId, UnitOffset};
use self_cell::self_cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use strata_bytes::bounded_text;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type BoxedUnits<'a> = Box<Units<'a>>;

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

/// The sections of a file, and of the one of dwz that it links to.
#[derive(Default)]
struct Sections {
    own: Vec<(SectionId, Vec<u8>)>,
    alternate: Vec<(SectionId, Vec<u8>)>,
}

impl Sections {
    fn get(of: &[(SectionId, Vec<u8>)], id: SectionId) -> Slice<'_> {
        let bytes = of
            .iter()
            .find(|(held, _)| *held == id)
            .map(|(_, bytes)| bytes.as_slice())
            .unwrap_or_default();
        EndianSlice::new(bytes, LittleEndian)
    }
}

/// What is parsed of the sections, unit by unit.
struct Units<'a> {
    context: Context<Slice<'a>>,
    scopes: Scopes<'a>,
}

impl<'a> Units<'a> {
    fn new(sections: &'a Sections) -> Result<Self, gimli::Error> {
        let load = |of: &'a [(SectionId, Vec<u8>)]| {
            gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(Sections::get(of, id)))
        };
        let mut dwarf = load(&sections.own)?;
        if !sections.alternate.is_empty() {
            dwarf.set_sup(load(&sections.alternate)?);
        }
        let dwarf = Arc::new(dwarf);
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf))?;
        Ok(Self { context, scopes: Scopes::new(dwarf) })
    }
}

self_cell!(
    struct Loaded {
        owner: Sections,
        #[not_covariant]
        dependent: BoxedUnits,
    }
);

/// One frame from DWARF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DwarfFrame {
    /// The linkage name where there is one, else the plain name, in C++ with its scopes.
    pub raw_name: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// The debug information of one file.
#[derive(Default)]
pub struct Dwarf {
    loaded: Option<Loaded>,
    pub state: State,
    /// Parts of it are in a file that dwz has made for several, which is not there.
    pub lacks_alternate: bool,
}

impl Dwarf {
    /// Loads the DWARF of the first file that has any; `alternate` is the file of dwz that it links to.
    #[must_use]
    pub fn load(files: &[&ElfFile<'_>], alternate: Option<&ElfFile<'_>>, limit: u64) -> Self {
        let Some(elf) = files.iter().find(|elf| elf.features().dwarf) else {
            return Self::ended(State::Absent);
        };
        let mut left = limit;
        let mut read = |elf: &ElfFile<'_>| read_sections(elf, &mut left, limit);
        let sections = match (read(elf), alternate.map(read).transpose()) {
            (Ok(own), Ok(alternate)) => Sections { own, alternate: alternate.unwrap_or_default() },
            (Err(state), _) | (_, Err(state)) => return Self::ended(state),
        };
        let context = catch_unwind(AssertUnwindSafe(|| {
            Loaded::try_new(sections, |sections| Units::new(sections).map(Box::new))
        }));
        match context {
            Ok(Ok(loaded)) => Self {
                loaded: Some(loaded),
                state: State::Used,
                lacks_alternate: alternate.is_none()
                    && elf.section_with_data(".gnu_debugaltlink").is_some(),
            },
            _ => Self::ended(State::Broken),
        }
    }

    fn ended(state: State) -> Self {
        Self { loaded: None, state, lacks_alternate: false }
    }

    /// The frames at `address`, innermost first; empty when DWARF does not cover it. With
    /// `function_is_named` the caller has a name for the last frame, the function itself, which is
    /// then left unqualified.
    pub fn frames(&mut self, address: u64, function_is_named: bool) -> Vec<DwarfFrame> {
        // The last address has no address behind it, which addr2line 0.27 asks for.
        let (Some(loaded), true) = (&mut self.loaded, address < u64::MAX) else {
            return Vec::new();
        };
        let frames = catch_unwind(AssertUnwindSafe(|| {
            loaded.with_dependent_mut(|_, units| frames_of(units, address, function_is_named))
        }));
        frames.unwrap_or_else(|_| {
            *self = Self::ended(State::Broken);
            Vec::new()
        })
    }
}

/// The sections of one file, within what is `left` of the limit.
fn read_sections(
    elf: &ElfFile<'_>,
    left: &mut u64,
    limit: u64,
) -> Result<Vec<(SectionId, Vec<u8>)>, State> {
    let mut sections = Vec::new();
    for id in SECTIONS {
        let name = id.name();
        let old = name.replacen(".debug_", ".zdebug_", 1);
        let Some(section) = elf.section_with_data(name).or_else(|| elf.section_with_data(&old))
        else {
            continue;
        };
        match elf.read_section(section, "debug information", *left) {
            Ok(bytes) => {
                *left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                sections.push((id, bytes));
            }
            Err(crate::Error::TooLarge { bytes, .. }) => {
                let bytes = bytes.saturating_add(limit.saturating_sub(*left));
                return Err(State::TooLarge { bytes, limit });
            }
            Err(_) => return Err(State::Broken),
        }
    }
    Ok(sections)
}

fn frames_of(units: &mut Units<'_>, address: u64, function_is_named: bool) -> Vec<DwarfFrame> {
    let mut frames = Vec::new();
    let mut unqualified = Vec::new();
    let Units { context, scopes } = units;
    let Ok(mut found) = context.find_frames(address).skip_all_loads() else {
        return frames;
    };
    while let Ok(Some(frame)) = found.next() {
        if let Some(entry) = entry_to_qualify(&frame) {
            unqualified.push((frames.len(), entry));
        }
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
    let inlined = frames.len().saturating_sub(usize::from(function_is_named));
    unqualified.retain(|&(index, _)| index < inlined);
    qualify(context, scopes, address, &mut frames, &unqualified);
    frames
}

/// The entry of a C++ function without a linkage name.
fn entry_to_qualify(frame: &addr2line::Frame<'_, Slice<'_>>) -> Option<UnitOffset> {
    let function = frame.function.as_ref()?;
    let plain = !function.name.slice().starts_with(b"_Z");
    frame.dw_die_offset.filter(|_| plain && function.language.is_some_and(is_cpp))
}

/// Adds the scopes to the names of some frames, given by their indices and entries.
fn qualify<'a>(
    context: &Context<Slice<'a>>,
    scopes: &mut Scopes<'a>,
    address: u64,
    frames: &mut [DwarfFrame],
    unqualified: &[(usize, UnitOffset)],
) {
    if unqualified.is_empty() {
        return;
    }
    // The unit that `find_frames` used.
    let Some(unit) = context.find_dwarf_and_unit(address).skip_all_loads() else {
        return;
    };
    for &(index, entry) in unqualified {
        let name = scopes.qualified(unit, entry);
        if let (Some(frame), Some(name)) = (frames.get_mut(index), name) {
            frame.raw_name = Some(name);
        }
    }
}
