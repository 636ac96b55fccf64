//! Runs call frame programs, keeping only what rules need: the CFA, the frame pointer, the
//! extra register, the stack pointer and the return address. All other registers are skipped over.
//!
//! Invariant: one instruction is at least one byte, nothing jumps, so a program's size bounds
//! its work and the rows it makes.

use gimli::{EndianSlice, LittleEndian, Reader, constants as dw};
use strata_abi::register;

use crate::frame_section::{Bytes, Common, FrameSection};

/// `DW_CFA_remember_state` nests this deep at most.
const MAX_REMEMBERED: usize = 64;

/// A part of the section: an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Part {
    pub start: u32,
    pub size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    Register { register: u64, offset: i64 },
    Expression(Part),
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Saved {
    /// No rule: the register still holds it.
    #[default]
    Unsaid,
    Undefined,
    Same,
    /// At the CFA plus this.
    Offset(i64),
    /// It is the CFA plus this.
    ValueOffset(i64),
    Register(u64),
    Expression(Part),
    ValueExpression(Part),
}

/// One row of the table that a program describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub cfa: Cfa,
    pub fp: Saved,
    pub extra: Saved,
    /// Where the caller's stack pointer is, when it is not the CFA (`longjmp`, `setcontext`).
    pub sp: Saved,
    pub return_address: Saved,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cfa: Cfa::Register { register: u64::MAX, offset: 0 },
            fp: Saved::Unsaid,
            extra: Saved::Unsaid,
            sp: Saved::Unsaid,
            return_address: Saved::Unsaid,
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// An invalid or truncated instruction; holds from this distance into the code.
    Malformed(u64),
}

pub(crate) struct Program<'s, 'a> {
    pub section: &'s FrameSection<'a>,
    pub common: &'s Common,
    /// Address of the code.
    pub start: u64,
}

impl<'a> Program<'_, 'a> {
    /// Runs a common entry's instructions.
    pub fn initial_state(&self, from: usize, to: usize) -> Option<State> {
        let mut state = State::default();
        match self.run(from, to, u64::MAX, &mut Vec::new(), &mut state, |_, _| {}) {
            Outcome::Done => Some(state),
            Outcome::Malformed(_) => None,
        }
    }

    /// Runs the instructions at `from..to` of the section. `row` is called with the offset in the
    /// code at which a state starts to hold; the last state is left in `state`, after a call for
    /// its offset too.
    pub fn run(
        &self,
        from: usize,
        to: usize,
        code_size: u64,
        remembered: &mut Vec<State>,
        state: &mut State,
        mut row: impl FnMut(u64, &State),
    ) -> Outcome {
        remembered.clear();
        let bytes = self.section.bytes.get(from..to).unwrap_or_default();
        let mut reader = EndianSlice::new(bytes, LittleEndian);
        let mut location = 0_u64;
        while !reader.is_empty() {
            let advance = match self.instruction(&mut reader, to, remembered, state) {
                Some(Effect::None) => continue,
                Some(Effect::Advance(count)) => count.wrapping_mul(self.common.code_alignment),
                Some(Effect::MoveTo(address)) => {
                    address.wrapping_sub(self.start).wrapping_sub(location)
                }
                None => return Outcome::Malformed(location),
            };
            if advance == 0 {
                continue;
            }
            row(location, state);
            location = match location.checked_add(advance) {
                Some(location) if location < code_size => location,
                _ => return Outcome::Done,
            };
        }
        row(location, state);
        Outcome::Done
    }

    #[inline(always)]
    fn instruction(
        &self,
        reader: &mut Bytes<'a>,
        end: usize,
        remembered: &mut Vec<State>,
        state: &mut State,
    ) -> Option<Effect> {
        let byte = reader.read_u8().ok()?;
        let low = u64::from(byte & 0x3f);
        match byte >> 6 {
            1 => return Some(Effect::Advance(low)),
            2 => {
                let offset = self.factored(reader.read_uleb128().ok()?);
                self.save(state, low, Saved::Offset(offset));
                return Some(Effect::None);
            }
            3 => {
                self.restore(state, low);
                return Some(Effect::None);
            }
            _ => {}
        }
        match dw::DwCfa(byte) {
            dw::DW_CFA_nop => {}
            dw::DW_CFA_advance_loc1 => {
                return Some(Effect::Advance(u64::from(reader.read_u8().ok()?)));
            }
            dw::DW_CFA_advance_loc2 => {
                return Some(Effect::Advance(u64::from(reader.read_u16().ok()?)));
            }
            dw::DW_CFA_advance_loc4 => {
                return Some(Effect::Advance(u64::from(reader.read_u32().ok()?)));
            }
            dw::DW_CFA_set_loc => {
                let encoding = self.common.pointer_encoding;
                return Some(Effect::MoveTo(self.section.pointer(reader, encoding, end)?));
            }
            dw::DW_CFA_def_cfa => {
                state.cfa = Cfa::Register {
                    register: reader.read_uleb128().ok()?,
                    offset: reader.read_uleb128().ok()? as i64,
                };
            }
            dw::DW_CFA_def_cfa_sf => {
                state.cfa = Cfa::Register {
                    register: reader.read_uleb128().ok()?,
                    offset: self.factored_signed(reader.read_sleb128().ok()?),
                };
            }
            dw::DW_CFA_def_cfa_register => {
                let new = reader.read_uleb128().ok()?;
                match &mut state.cfa {
                    Cfa::Register { register, .. } => *register = new,
                    Cfa::Expression(_) => return None,
                }
            }
            dw::DW_CFA_def_cfa_offset => {
                let new = reader.read_uleb128().ok()? as i64;
                self.set_cfa_offset(state, new)?;
            }
            dw::DW_CFA_def_cfa_offset_sf => {
                let new = self.factored_signed(reader.read_sleb128().ok()?);
                self.set_cfa_offset(state, new)?;
            }
            dw::DW_CFA_def_cfa_expression => {
                state.cfa = Cfa::Expression(self.part(reader, end)?);
            }
            dw::DW_CFA_remember_state => {
                if remembered.len() >= MAX_REMEMBERED {
                    return None;
                }
                remembered.push(*state);
            }
            dw::DW_CFA_restore_state => *state = remembered.pop()?,
            dw::DW_CFA_GNU_args_size => {
                reader.read_uleb128().ok()?;
            }
            _ => self.register_instruction(byte, reader, end, state)?,
        }
        Some(Effect::None)
    }

    /// Instructions that say where one register is.
    fn register_instruction(
        &self,
        byte: u8,
        reader: &mut Bytes<'a>,
        end: usize,
        state: &mut State,
    ) -> Option<()> {
        let instruction = dw::DwCfa(byte);
        if !matches!(byte, 0x05..=0x09 | 0x10 | 0x11 | 0x14..=0x16 | 0x2f) {
            return None;
        }
        let register = reader.read_uleb128().ok()?;
        let saved = match instruction {
            dw::DW_CFA_offset_extended => Saved::Offset(self.factored(reader.read_uleb128().ok()?)),
            dw::DW_CFA_offset_extended_sf => {
                Saved::Offset(self.factored_signed(reader.read_sleb128().ok()?))
            }
            dw::DW_CFA_val_offset => Saved::ValueOffset(self.factored(reader.read_uleb128().ok()?)),
            dw::DW_CFA_val_offset_sf => {
                Saved::ValueOffset(self.factored_signed(reader.read_sleb128().ok()?))
            }
            dw::DW_CFA_undefined => Saved::Undefined,
            dw::DW_CFA_same_value => Saved::Same,
            dw::DW_CFA_register => Saved::Register(reader.read_uleb128().ok()?),
            dw::DW_CFA_expression => Saved::Expression(self.part(reader, end)?),
            dw::DW_CFA_val_expression => Saved::ValueExpression(self.part(reader, end)?),
            dw::DW_CFA_restore_extended => {
                self.restore(state, register);
                return Some(());
            }
            // DW_CFA_GNU_negative_offset_extended
            _ => Saved::Offset(self.factored(reader.read_uleb128().ok()?).wrapping_neg()),
        };
        self.save(state, register, saved);
        Some(())
    }

    fn factored(&self, value: u64) -> i64 {
        self.factored_signed(value as i64)
    }

    fn factored_signed(&self, value: i64) -> i64 {
        value.wrapping_mul(self.common.data_alignment)
    }

    fn set_cfa_offset(&self, state: &mut State, new: i64) -> Option<()> {
        match &mut state.cfa {
            Cfa::Register { offset, .. } => *offset = new,
            // As libgcc and gdb: the expression stays in force.
            Cfa::Expression(_) => {}
        }
        Some(())
    }

    #[inline(always)]
    fn save(&self, state: &mut State, number: u64, saved: Saved) {
        if number == u64::from(register::FP) {
            state.fp = saved;
        } else if number == u64::from(register::EXTRA) {
            state.extra = saved;
        } else if number == self.common.return_register {
            state.return_address = saved;
        } else if number == u64::from(register::SP) {
            state.sp = saved;
        }
    }

    fn restore(&self, state: &mut State, number: u64) {
        let initial = &self.common.initial;
        if number == u64::from(register::FP) {
            state.fp = initial.fp;
        } else if number == u64::from(register::EXTRA) {
            state.extra = initial.extra;
        } else if number == self.common.return_register {
            state.return_address = initial.return_address;
        } else if number == u64::from(register::SP) {
            state.sp = initial.sp;
        }
    }

    /// An expression: a size and that many bytes.
    fn part(&self, reader: &mut Bytes<'a>, end: usize) -> Option<Part> {
        let size = reader.read_uleb128().ok()?;
        let start = end.checked_sub(reader.len())?;
        reader.skip(usize::try_from(size).ok()?).ok()?;
        Some(Part { start: u32::try_from(start).ok()?, size: u32::try_from(size).ok()? })
    }
}

enum Effect {
    None,
    Advance(u64),
    MoveTo(u64),
}
