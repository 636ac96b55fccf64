//! Entries of `.eh_frame` and `.debug_frame`: which code each describes, and with what program.
//!
//! The programs themselves run later, in address order ([`crate::frame_program`]), so that rows
//! come out sorted without holding them all.
//!
//! Invariant: an entry that makes no sense is left out and counted; the ones before and after it
//! are kept. Every step forward is at least four bytes, so the section's size bounds the work.

use std::collections::HashMap;

use gimli::{EndianSlice, LittleEndian, Reader, constants as dw};

use crate::frame_program::{Program, State};

pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A common information entry holds more than this many programs only in crafted files.
const MAX_COMMON: usize = 1 << 16;

/// One frame description entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub start: u64,
    pub size: u32,
    /// Where its instructions lie in the section.
    pub program: u32,
    pub program_size: u32,
    /// Number of its [`Common`].
    pub common: u32,
}

impl Entry {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.size))
    }
}

/// A common information entry (CIE).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub code_alignment: u64,
    pub data_alignment: i64,
    pub return_register: u64,
    pub pointer_encoding: u8,
    /// The frame description entries have augmentation data.
    sized: bool,
    pub signal: bool,
    /// State after the initial instructions.
    pub initial: State,
}

/// One section of call frame information.
pub(crate) struct FrameSection<'a> {
    pub bytes: &'a [u8],
    /// Address of the section, for pointers relative to themselves.
    pub address: u64,
    /// `.debug_frame`, which numbers its entries differently.
    pub debug: bool,
    /// A length of zero ends it: its true size is not known.
    pub terminated: bool,
    pub common: Vec<Common>,
    /// Entries that made no sense.
    pub malformed: u64,
}

impl<'a> FrameSection<'a> {
    pub fn new(bytes: &'a [u8], address: u64, debug: bool, terminated: bool) -> Self {
        // Positions are held in 32 bits.
        let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
        Self { bytes, address, debug, terminated, common: Vec::new(), malformed: 0 }
    }

    fn at(&self, position: usize) -> Bytes<'a> {
        EndianSlice::new(self.bytes.get(position..).unwrap_or_default(), LittleEndian)
    }

    /// All entries, in the order of the section. Returns whether `max_entries` limited them.
    pub fn entries(&mut self, max_entries: u32, entries: &mut Vec<Entry>) -> bool {
        let mut commons = HashMap::new();
        let mut last_common = (usize::MAX, None);
        let mut position = 0;
        while let Some(unit) = self.unit(position) {
            let next = unit.end;
            if unit.body == unit.end && self.terminated && unit.end - position == 4 {
                break;
            }
            position = next;
            let Some(pointer) = unit.common else { continue };
            let number = if last_common.0 == pointer {
                last_common.1
            } else {
                let number = match commons.get(&pointer) {
                    Some(number) => *number,
                    None => {
                        let number = self.add_common(pointer);
                        commons.insert(pointer, number);
                        number
                    }
                };
                last_common = (pointer, number);
                number
            };
            if entries.len() >= max_entries as usize {
                return true;
            }
            match self.entry(&unit, number) {
                Some(entry) => entries.push(entry),
                None => self.malformed += 1,
            }
        }
        false
    }

    /// The unit at a position: a common or a frame entry. `None` at the end of what is readable.
    fn unit(&self, position: usize) -> Option<Unit> {
        let mut reader = self.at(position);
        let available = reader.len();
        let mut length = u64::from(reader.read_u32().ok()?);
        let wide = length == 0xffff_ffff;
        if wide {
            length = reader.read_u64().ok()?;
        }
        let header = available - reader.len();
        if length > reader.len() as u64 {
            return None;
        }
        let id_at = position + header;
        let end = id_at + length as usize;
        if length < 4 {
            return Some(Unit { common: None, body: end, end });
        }
        let (id, id_size) = if wide && self.debug {
            (reader.read_u64().ok()?, 8)
        } else {
            (u64::from(reader.read_u32().ok()?), 4)
        };
        let body = (id_at + id_size).min(end);
        let is_common =
            if self.debug { id == if wide { u64::MAX } else { 0xffff_ffff } } else { id == 0 };
        let common = if is_common {
            None
        } else if self.debug {
            Some(usize::try_from(id).unwrap_or(usize::MAX))
        } else {
            // Out of range becomes a position no unit is found at.
            Some(id_at.checked_sub(id as usize).unwrap_or(usize::MAX))
        };
        Some(Unit { common, body, end })
    }

    fn add_common(&mut self, position: usize) -> Option<u32> {
        if self.common.len() >= MAX_COMMON {
            return None;
        }
        let common = self.parse_common(position)?;
        self.common.push(common);
        Some(self.common.len() as u32 - 1)
    }

    fn parse_common(&self, position: usize) -> Option<Common> {
        let unit = self.unit(position)?;
        if unit.common.is_some() {
            return None;
        }
        let part = self.bytes.get(unit.body..unit.end)?;
        let mut reader = EndianSlice::new(part, LittleEndian);
        let version = reader.read_u8().ok()?;
        if !matches!(version, 1 | 3 | 4) {
            return None;
        }
        let augmentation = reader.read_null_terminated_slice().ok()?;
        let augmentation = augmentation.slice();
        if version == 4 {
            let (address_size, selector_size) = (reader.read_u8().ok()?, reader.read_u8().ok()?);
            if address_size != 8 || selector_size != 0 {
                return None;
            }
        }
        if augmentation.starts_with(b"eh") {
            reader.read_u64().ok()?;
        }
        let code_alignment = reader.read_uleb128().ok()?;
        let data_alignment = reader.read_sleb128().ok()?;
        let return_register = if version == 1 {
            u64::from(reader.read_u8().ok()?)
        } else {
            reader.read_uleb128().ok()?
        };
        let mut common = Common {
            code_alignment,
            data_alignment,
            return_register,
            pointer_encoding: dw::DW_EH_PE_absptr.0,
            sized: false,
            signal: false,
            initial: State::default(),
        };
        if augmentation.first() == Some(&b'z') {
            common.sized = true;
            let size = reader.read_uleb128().ok()?;
            let mut data = reader.split(usize::try_from(size).ok()?).ok()?;
            for letter in augmentation.iter().skip(1) {
                match letter {
                    b'R' => common.pointer_encoding = data.read_u8().ok()?,
                    b'L' => {
                        data.read_u8().ok()?;
                    }
                    b'P' => {
                        let encoding = data.read_u8().ok()?;
                        self.pointer(&mut data, encoding, 0)?;
                    }
                    b'S' => common.signal = true,
                    // Later letters may have data of unknown size; the instructions follow
                    // the augmentation data whatever is in it.
                    _ => break,
                }
            }
        } else if augmentation.contains(&b'S') {
            common.signal = true;
        }
        let start = unit.end - reader.len();
        let program = Program { section: self, common: &common, start: 0 };
        let initial = program.initial_state(start, unit.end)?;
        common.initial = initial;
        Some(common)
    }

    fn entry(&self, unit: &Unit, common: Option<u32>) -> Option<Entry> {
        let number = common?;
        let common = self.common.get(number as usize)?;
        let part = self.bytes.get(unit.body..unit.end)?;
        let mut reader = EndianSlice::new(part, LittleEndian);
        let start = self.pointer(&mut reader, common.pointer_encoding, unit.end)?;
        // The size has the pointer's format, but is relative to nothing.
        let size = self.pointer(&mut reader, common.pointer_encoding & 0x0f, unit.end)?;
        if common.sized {
            let size = reader.read_uleb128().ok()?;
            reader.skip(usize::try_from(size).ok()?).ok()?;
        }
        Some(Entry {
            start,
            size: u32::try_from(size).ok()?,
            program: (unit.end - reader.len()) as u32,
            program_size: reader.len() as u32,
            common: number,
        })
    }

    /// An encoded pointer. `end` is where the reader's bytes end in the section: from it follows
    /// the pointer's own position.
    pub fn pointer(&self, reader: &mut Bytes<'a>, encoding: u8, end: usize) -> Option<u64> {
        let position = end.wrapping_sub(reader.len()) as u64;
        let value = match dw::DwEhPe(encoding & 0x0f) {
            dw::DW_EH_PE_absptr | dw::DW_EH_PE_udata8 | dw::DW_EH_PE_sdata8 => reader.read_u64(),
            dw::DW_EH_PE_udata4 => reader.read_u32().map(u64::from),
            dw::DW_EH_PE_sdata4 => reader.read_i32().map(|value| value as u64),
            dw::DW_EH_PE_udata2 => reader.read_u16().map(u64::from),
            dw::DW_EH_PE_sdata2 => reader.read_i16().map(|value| value as u64),
            dw::DW_EH_PE_uleb128 => reader.read_uleb128(),
            dw::DW_EH_PE_sleb128 => reader.read_sleb128().map(|value| value as u64),
            _ => return None,
        }
        .ok()?;
        match dw::DwEhPe(encoding & 0x70) {
            dw::DW_EH_PE_absptr => Some(value),
            dw::DW_EH_PE_pcrel => Some(value.wrapping_add(self.address).wrapping_add(position)),
            _ => None,
        }
    }
}

struct Unit {
    /// Position of the common entry a frame entry belongs to; `None`: it is a common entry.
    common: Option<usize>,
    body: usize,
    end: usize,
}
