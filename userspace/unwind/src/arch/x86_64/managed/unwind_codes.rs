//! `UNWIND_INFO` of Windows x64, as the CLR's images have it on Linux too.
//!
//! Unwind codes list what a prologue did, last first, each with the offset behind its
//! instruction. (Windows x64 ABI, "struct UNWIND_INFO"; the CLR's own: src/coreclr/inc/
//! win64unwind.h.) The CLR adds one code, `UWOP_SET_FPREG_LARGE`, and describes methods by RSP
//! wherever it does not move, so that only `stackalloc` makes it name a frame register.
//!
//! Invariant: reads only the bytes it is given, and follows a bounded number of chained parts.

use super::frame::{Base, Frame};

const VERSIONS: std::ops::RangeInclusive<u8> = 1..=2;
const FLAG_CHAINED: u8 = 4;
/// A chain longer than that is none.
const MOST_PARTS: usize = 32;

const PUSH_NONVOL: u8 = 0;
const ALLOC_LARGE: u8 = 1;
const ALLOC_SMALL: u8 = 2;
const SET_FPREG: u8 = 3;
const SAVE_NONVOL: u8 = 4;
const SAVE_NONVOL_FAR: u8 = 5;
/// Version 2: the position of an epilogue.
const EPILOG: u8 = 6;
const SAVE_XMM128: u8 = 8;
const SAVE_XMM128_FAR: u8 = 9;
/// src/coreclr/inc/win64unwind.h: the offset as a 32-bit number of 16 bytes.
const SET_FPREG_LARGE: u8 = 11;

/// RBP as unwind codes number registers.
const RBP: u8 = 5;
/// From their numbers to DWARF's.
const DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// Bytes of unwind information with the address of the first.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub bytes: &'a [u8],
    pub address: u32,
}

impl<'a> Block<'a> {
    fn at(&self, address: u32) -> Option<&'a [u8]> {
        self.bytes.get(address.checked_sub(self.address)? as usize..)
    }
}

/// One part of a function's unwind information.
struct Part<'a> {
    codes: &'a [[u8; 2]],
    frame_register: u8,
    frame_offset: u32,
    /// Address of the unwind information that this one continues.
    chained: Option<u32>,
}

impl<'a> Part<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&[head, _, count, frame], rest) = bytes.split_first_chunk::<4>()?;
        if !VERSIONS.contains(&(head & 7)) {
            return None;
        }
        let count = usize::from(count);
        let (codes, _) = rest.get(..count * 2)?.as_chunks::<2>();
        let chained = if head >> 3 & FLAG_CHAINED == 0 {
            None
        } else {
            // A function entry follows the codes, of which there is an even number.
            let entry = rest.get((count + (count & 1)) * 2..)?.first_chunk::<12>()?;
            let [.., a, b, c, d] = *entry;
            Some(u32::from_le_bytes([a, b, c, d]))
        };
        let frame_offset = u32::from(frame >> 4) * 16;
        Some(Self { codes, frame_register: frame & 15, frame_offset, chained })
    }
}

/// One step of a prologue.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u8),
    Allocate(u32),
    SetFrame {
        register: u8,
        offset: u32,
    },
    /// Stored at RSP + offset, once the frame has its size.
    Save {
        register: u8,
        offset: u32,
    },
}

/// Decodes one function after the other.
pub(super) struct UnwindCodes {
    /// Steps of a prologue, last first.
    steps: Vec<(u32, Step)>,
    frames: Vec<(u32, Frame)>,
    /// Codes that may still be looked at.
    pub work: u64,
}

impl UnwindCodes {
    pub fn new(work: u64) -> Self {
        Self { steps: Vec::new(), frames: Vec::new(), work }
    }

    /// The frames of a function by offset, ascending, from 0 on; `None` for what cannot be
    /// expressed, or when the work is used up.
    pub fn frames(&mut self, block: Block<'_>, address: u32) -> Option<&[(u32, Frame)]> {
        self.steps.clear();
        let mut next = Some(address);
        for number in 0..MOST_PARTS {
            let Some(address) = next else { break };
            let part = Part::parse(block.at(address)?)?;
            let cost = part.codes.len() as u64 + 1;
            if cost > self.work {
                self.work = 0;
                return None;
            }
            self.work -= cost;
            // What has happened before the function's start according to its chained part.
            part_steps(&part, number == 0, &mut self.steps)?;
            next = part.chained;
        }
        if next.is_some() {
            return None;
        }
        run(&self.steps, &mut self.frames)?;
        Some(&self.frames)
    }
}

/// Appends a part's steps, last first.
fn part_steps(part: &Part<'_>, own: bool, steps: &mut Vec<(u32, Step)>) -> Option<()> {
    let mut codes = part.codes;
    while let [[offset, operation], rest @ ..] = codes {
        let information = operation >> 4;
        let (step, slots) = match operation & 15 {
            PUSH_NONVOL => (Some(Step::Push(information)), 0),
            ALLOC_LARGE if information == 0 => {
                (Some(Step::Allocate(short(rest)?.checked_mul(8)?)), 1)
            }
            ALLOC_LARGE => (Some(Step::Allocate(long(rest)?)), 2),
            ALLOC_SMALL => (Some(Step::Allocate(u32::from(information) * 8 + 8)), 0),
            SET_FPREG => (Some(part.set_frame(part.frame_offset)), 0),
            SET_FPREG_LARGE => (Some(part.set_frame(long(rest)?.checked_mul(16)?)), 2),
            SAVE_NONVOL => {
                let offset = short(rest)?.checked_mul(8)?;
                (Some(Step::Save { register: information, offset }), 1)
            }
            SAVE_NONVOL_FAR => (Some(Step::Save { register: information, offset: long(rest)? }), 2),
            SAVE_XMM128 | EPILOG => (None, 1),
            SAVE_XMM128_FAR => (None, 2),
            _ => return None,
        };
        if let Some(step) = step {
            steps.push((if own { u32::from(*offset) } else { 0 }, step));
        }
        codes = rest.get(slots..)?;
    }
    Some(())
}

impl Part<'_> {
    fn set_frame(&self, offset: u32) -> Step {
        Step::SetFrame { register: self.frame_register, offset }
    }
}

fn short(rest: &[[u8; 2]]) -> Option<u32> {
    rest.first().map(|slot| u32::from(u16::from_le_bytes(*slot)))
}

fn long(rest: &[[u8; 2]]) -> Option<u32> {
    let [[a, b], [c, d], ..] = *rest else { return None };
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// Runs a prologue's steps, which come last first.
fn run(steps: &[(u32, Step)], frames: &mut Vec<(u32, Frame)>) -> Option<()> {
    let mut whole = 8_u32;
    for (_, step) in steps {
        let by = match step {
            Step::Push(_) => 8,
            Step::Allocate(by) => *by,
            _ => 0,
        };
        whole = whole.checked_add(by).filter(|size| *size <= i32::MAX as u32)?;
    }
    let mut depth = 8;
    let mut frame = Frame::ENTRY;
    frames.clear();
    frames.push((0, frame));
    for (offset, step) in steps.iter().rev() {
        match *step {
            Step::Push(register) => {
                depth += 8;
                if register == RBP {
                    frame.fp_below = depth;
                }
            }
            Step::Allocate(by) => depth += by,
            Step::SetFrame { register, offset } => {
                frame.cfa = depth.checked_sub(offset)?;
                frame.base = match register {
                    RBP => Base::Fp,
                    // 0 is no register here.
                    0 => return None,
                    _ => Base::Register(*DWARF.get(usize::from(register))?),
                };
            }
            Step::Save { register: RBP, offset } => frame.fp_below = whole.checked_sub(offset)?,
            Step::Save { .. } => {}
        }
        if frame.base == Base::Sp {
            frame.cfa = depth;
        }
        match frames.last_mut() {
            Some((last, known)) if *last >= *offset => *known = frame,
            _ => frames.push((*offset, frame)),
        }
    }
    Some(())
}
