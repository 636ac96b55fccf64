//! The unwinder in userspace: the kernel's step over a snapshot of a stack.
//!
//! For samples taken before the kernel had a process's tables (registers and a piece of stack
//! come up, see [`strata_abi::record`]), and for tests that check every instruction.
//!
//! Invariant: frames and ends are exactly those the BPF programs give for the same tables, except
//! that a snapshot holds the code of its first frame only: callers that are trampolines
//! ([`strata_abi::epilogue`]) are not distinguished from other generated code there.

use std::sync::Arc;

use strata_abi::epilogue::{self, Code};
use strata_abi::record::{End, FRAME_ADDRESS, FRAME_BY_POINTER, FRAME_EXACT};
use strata_abi::register;
use strata_abi::rule::{Packed, Rule};
use strata_abi::step::{self, Frame, Machine};

use crate::table::UnwindTable;

/// What is known about the code at an address.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// It lies in no known mapping.
    NoMapping,
    /// Its mapping has no table: follow the frame pointer.
    FramePointer,
    /// Its table's rule, which may be "none".
    Rule(Rule),
}

/// Registers in DWARF numbering, then the pc.
pub type Registers = [u64; PC + 1];

const PC: usize = register::COUNT as usize;

/// The thread's state where it was interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a> {
    pub registers: &'a Registers,
    /// The code around its pc; zeros when it is not known.
    pub code: Code,
    /// Of a thread of a Go program on its system stack.
    pub goroutine: Option<LeftGoroutine>,
}

/// The registers with which a thread left its goroutine for the system stack (`g.sched`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftGoroutine {
    pub sp: u64,
    pub fp: u64,
}

/// Unwinds over memory that `read` reads. Frames, innermost first, are appended to `frames`
/// as a record holds them.
pub fn unwind(
    lookup: &mut dyn FnMut(u64) -> Lookup,
    read: &mut dyn FnMut(u64) -> Option<u64>,
    at: Interrupted<'_>,
    max_frames: usize,
    frames: &mut Vec<u64>,
) -> End {
    let registers = at.registers;
    let mut machine = Memory { read, at, rule: None };
    let mut frame = Frame {
        pc: registers[PC],
        sp: registers[register::SP as usize],
        fp: registers[register::FP as usize],
        extra: registers[register::EXTRA as usize],
        exact: step::EXACT,
        ..Frame::default()
    };
    for _ in 0..max_frames {
        frames.push(encode(&frame));
        let word = match lookup(step::lookup_pc(&frame)) {
            Lookup::NoMapping => return End::NoMapping,
            Lookup::FramePointer => machine
                .code(frame.pc)
                .and_then(|code| epilogue::trampoline(&code))
                .unwrap_or(Packed::FRAME_POINTER),
            Lookup::Rule(rule) if rule.packed == Packed::UNANNOUNCED => return End::NoMapping,
            Lookup::Rule(rule) => {
                machine.rule = Some(rule);
                rule.packed
            }
        };
        if let Some(end) = step::step(&mut machine, &mut frame, word) {
            return end;
        }
    }
    End::FrameLimit
}

/// A copy of stack memory.
#[derive(Clone, Copy, Debug)]
pub struct StackCopy<'a> {
    /// The address of its first byte.
    pub start: u64,
    pub bytes: &'a [u8],
}

impl StackCopy<'_> {
    /// The word at an offset from the start.
    fn word(&self, offset: u64) -> Option<u64> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self.bytes.get(start..start.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

/// As [`unwind`], over copies of the stacks that the thread's frames lie on. A stack that goes on
/// beyond its copy's end ends there ([`End::CaptureLimit`]).
pub fn unwind_snapshot(
    lookup: &mut dyn FnMut(u64) -> Lookup,
    at: Interrupted<'_>,
    stacks: &[StackCopy<'_>],
    max_frames: usize,
    frames: &mut Vec<u64>,
) -> End {
    let mut beyond = false;
    let mut read = |address: u64| {
        let mut above = false;
        for stack in stacks {
            let offset = address.wrapping_sub(stack.start);
            let word = stack.word(offset);
            if word.is_some() {
                return word;
            }
            // Above the copy, and not somewhere else altogether.
            above |= offset < MAX_STACK && !stack.bytes.is_empty();
        }
        beyond |= above;
        None
    };
    let end = unwind(lookup, &mut read, at, max_frames, frames);
    if beyond && matches!(end, End::UnreadableStack | End::BrokenChain) {
        return End::CaptureLimit;
    }
    end
}

/// Stacks are smaller than this; an address further from the copy is not in the same stack.
const MAX_STACK: u64 = 1 << 30;

fn encode(frame: &Frame) -> u64 {
    frame.pc & FRAME_ADDRESS
        | if frame.exact & step::EXACT != 0 { FRAME_EXACT } else { 0 }
        | if frame.by_pointer != 0 { FRAME_BY_POINTER } else { 0 }
}

struct Memory<'a> {
    read: &'a mut dyn FnMut(u64) -> Option<u64>,
    at: Interrupted<'a>,
    /// The rule of the current frame, for extended words.
    rule: Option<Rule>,
}

impl Machine for Memory<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        (self.read)(address)
    }

    fn extended(&mut self, _number: u16) -> Option<Rule> {
        self.rule
    }

    fn register(&mut self, number: u8) -> Option<u64> {
        self.at.registers.get(usize::from(number)).copied()
    }

    fn code(&mut self, pc: u64) -> Option<Code> {
        (pc == self.at.registers[PC]).then_some(self.at.code)
    }

    fn left_goroutine(&mut self, fp: u64) -> Option<u64> {
        self.at.goroutine.take().filter(|left| left.fp == fp).map(|left| left.sp)
    }
}

/// One executable mapping of a process.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Address in the process minus address in the file's own numbering.
    pub bias: u64,
    /// `None`: follow the frame pointer.
    pub table: Option<Arc<UnwindTable>>,
}

/// A process's executable mappings.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
}

impl AddressSpace {
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|mapping| mapping.start);
        Self { mappings }
    }

    #[must_use]
    pub fn mapping(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    #[must_use]
    pub fn lookup(&self, address: u64) -> Lookup {
        match self.mapping(address) {
            None => Lookup::NoMapping,
            Some(Mapping { table: None, .. }) => Lookup::FramePointer,
            Some(Mapping { table: Some(table), bias, .. }) => {
                Lookup::Rule(table.lookup(address.wrapping_sub(*bias)))
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use strata_abi::rule::Kind;

    use super::*;

    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x7000_0800;

    fn copy(bytes: &[u8]) -> StackCopy<'_> {
        StackCopy { start: STACK, bytes }
    }

    /// Unwinds a stack of these words, all of it in code with this rule.
    fn walk(rule: Packed, stack: &[u64]) -> (Vec<u64>, End) {
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = Registers::default();
        registers[PC] = CODE;
        registers[register::SP as usize] = STACK;
        registers[register::FP as usize] = STACK;
        let at = Interrupted { registers: &registers, code: Code::default(), goroutine: None };
        let mut lookup = |_| Lookup::Rule(Rule::simple(rule));
        let mut frames = Vec::new();
        let end = unwind_snapshot(&mut lookup, at, &[copy(&bytes)], 16, &mut frames);
        (frames, end)
    }

    #[test]
    fn a_stack_that_reads_as_zeros_has_no_complete_end() {
        let by_table = Packed::frame(Kind::Sp, 8, 0, 0).unwrap();
        let (frames, end) = walk(by_table, &[CODE + 8, 0, 0, 0]);
        assert_eq!((frames.len(), end), (2, End::NoReturnAddress));
        let (frames, end) = walk(Packed::FRAME_POINTER, &[STACK + 16, CODE + 8, 0, 0]);
        assert_eq!((frames.len(), end), (2, End::NoReturnAddress));
    }

    #[test]
    fn a_coroutine_begins_at_the_top_of_its_stack_without_a_return_address() {
        let by_table = Packed::frame(Kind::Sp, 8, 0, 0).unwrap();
        let words_to_page_end = (4096 - (STACK as usize & 4095)) / 8;
        let stack = |from_end: usize| {
            let mut words = vec![CODE + 8; words_to_page_end - from_end];
            *words.last_mut().unwrap() = 0;
            words
        };
        let ends = |from_end| {
            let words = stack(from_end);
            let mut registers = Registers::default();
            registers[PC] = CODE;
            registers[register::SP as usize] = STACK + (words.len() as u64 - 1) * 8;
            let at = Interrupted { registers: &registers, code: Code::default(), goroutine: None };
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut lookup = |_| Lookup::Rule(Rule::simple(by_table));
            unwind_snapshot(&mut lookup, at, &[copy(&bytes)], 16, &mut Vec::new())
        };
        assert_eq!([0, 1, 31].map(ends), [End::Complete; 3]);
        assert_eq!(ends(32), End::NoReturnAddress);
    }

    #[test]
    fn a_stack_that_ends_where_a_thread_starts_is_complete() {
        let (frames, end) = walk(Packed::END, &[0, 0]);
        assert_eq!((frames.len(), end), (1, End::Complete));
        // The frame pointer of 0 that the ABI asks of the outermost frame.
        let (frames, end) = walk(Packed::FRAME_POINTER, &[0, CODE + 8, 0]);
        assert_eq!((frames.len(), end), (2, End::Complete));
    }

    #[test]
    fn a_stack_goes_on_in_the_copy_of_another_stack() {
        const OTHER: u64 = 0xc0_0000_0000;
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        // The frame at the end of the first stack has its caller's frame pointer on the other one.
        let first = bytes(&[0, CODE + 8, 0]);
        let other = bytes(&[OTHER + 16, CODE + 16, OTHER + 4096, CODE + 24]);
        let mut registers = Registers::default();
        registers[PC] = CODE;
        registers[register::SP as usize] = STACK + 8;
        registers[register::FP as usize] = OTHER;
        let at = Interrupted { registers: &registers, code: Code::default(), goroutine: None };
        let unwound = |stacks: &[StackCopy<'_>]| {
            let mut lookup = |address| {
                Lookup::Rule(Rule::simple(match address {
                    CODE => Packed::frame(Kind::Sp, 8, 0, 0).unwrap(),
                    _ => Packed::STACK_SWITCH,
                }))
            };
            let mut frames = Vec::new();
            let end = unwind_snapshot(&mut lookup, at, stacks, 16, &mut frames);
            (frames.iter().map(|frame| frame & FRAME_ADDRESS).collect::<Vec<_>>(), end)
        };
        let both = [copy(&first), StackCopy { start: OTHER, bytes: &other }];
        let (frames, end) = unwound(&both);
        assert_eq!(frames, [CODE, CODE + 8, CODE + 16, CODE + 24]);
        // And beyond that copy's end it is cut, not broken.
        assert_eq!(end, End::CaptureLimit);
        assert_eq!(unwound(&both[..1]).1, End::BrokenChain);
        let empty = [copy(&first), StackCopy { start: OTHER, bytes: &[] }];
        assert_eq!(unwound(&empty), (vec![CODE, CODE + 8], End::BrokenChain));
    }

    #[test]
    fn a_stack_goes_on_where_a_goroutine_was_left_with_the_same_frame_pointer_and_once() {
        const OTHER: u64 = 0xc0_0000_0000;
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let (first, other) = (bytes(&[0, 0]), bytes(&[CODE + 16, CODE + 24]));
        let mut registers = Registers::default();
        registers[PC] = CODE;
        registers[register::SP as usize] = STACK;
        registers[register::FP as usize] = OTHER + 64;
        let unwound = |goroutine: Option<LeftGoroutine>, second: Packed| {
            let at = Interrupted { registers: &registers, code: Code::default(), goroutine };
            let mut lookup = |address| {
                Lookup::Rule(Rule::simple(match address {
                    CODE => Packed::GOROUTINE,
                    _ => second,
                }))
            };
            let mut frames = Vec::new();
            let stacks = [copy(&first), StackCopy { start: OTHER, bytes: &other }];
            let end = unwind_snapshot(&mut lookup, at, &stacks, 16, &mut frames);
            (frames.iter().map(|frame| frame & FRAME_ADDRESS).collect::<Vec<_>>(), end)
        };
        let left = LeftGoroutine { sp: OTHER, fp: OTHER + 64 };
        assert_eq!(unwound(Some(left), Packed::END), (vec![CODE, CODE + 16], End::Complete));
        let once = (vec![CODE, CODE + 16], End::UnsupportedRule);
        assert_eq!(unwound(Some(left), Packed::GOROUTINE), once);
        let alone = (vec![CODE], End::UnsupportedRule);
        let elsewhere = LeftGoroutine { fp: OTHER + 72, ..left };
        assert_eq!(unwound(Some(elsewhere), Packed::END), alone);
        assert_eq!(unwound(None, Packed::END), alone);
    }

    #[test]
    fn a_frame_pointer_of_0_in_the_innermost_frame_is_no_end() {
        let mut registers = Registers::default();
        registers[PC] = CODE;
        registers[register::SP as usize] = STACK;
        let at = Interrupted { registers: &registers, code: Code::default(), goroutine: None };
        let mut lookup = |_| Lookup::Rule(Rule::simple(Packed::FRAME_POINTER));
        let mut frames = Vec::new();
        let end = unwind_snapshot(&mut lookup, at, &[copy(&[0; 64])], 16, &mut frames);
        assert_eq!((frames.len(), end), (1, End::BrokenChain));
    }
}
