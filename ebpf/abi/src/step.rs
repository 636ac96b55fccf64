//! The unwinder's step: from one frame to its caller.
//!
//! One function for every program: the CPU sampler, sleepable programs, and userspace (raw
//! stacks, tests that single-step a program). What differs is the [`Machine`]: where memory is
//! read from and how a rule is found. What a rule does to a frame is the instruction set's:
//! [`crate::arch`].
//!
//! Invariant: a step either moves the stack pointer up (towards older frames), switches stacks
//! by a rule that says so, or ends. Nothing here can loop, panic or divide.

use crate::epilogue::Code;
use crate::record::End;
use crate::rule::{Packed, Rule};

/// Registers of a frame, as far as rules need them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    /// The extra register itself, when `extra_at` is 0.
    pub extra: u64,
    /// Where it is saved; read only when a rule asks for it.
    pub extra_at: u64,
    /// Address of the ucontext's registers when this frame, or its callee, was interrupted by a signal.
    pub context: u64,
    /// [`EXACT`], [`CALLED`] or 0.
    pub exact: u64,
    /// 1 when this frame was reached by following a frame pointer.
    pub by_pointer: u64,
}

/// `pc` is the instruction itself, and all registers are known.
pub const EXACT: u64 = 1;
/// The caller of such a frame: its rules may name any register, because only assembly has a frame that
/// depends on one which calls need not keep, and calls nothing there that changes it.
pub const CALLED: u64 = 2;

/// What the step needs of the world it runs in.
pub trait Machine {
    fn read(&mut self, address: u64) -> Option<u64>;
    /// The whole rule behind an extended word.
    fn extended(&mut self, number: u16) -> Option<Rule>;
    /// A register of the interrupted thread, by its DWARF number; asked for in the first two
    /// frames only.
    fn register(&mut self, number: u8) -> Option<u64>;
    /// The code around a pc; asked for in exact frames, and where only a frame pointer is known.
    fn code(&mut self, pc: u64) -> Option<Code>;
    /// The stack pointer with which the thread left its goroutine for the system stack, if that was
    /// with this frame pointer. Answered once in a stack: a thread leaves one goroutine in one place.
    fn left_goroutine(&mut self, fp: u64) -> Option<u64>;
}

/// The address to look a frame's rule up by: the call, not the instruction after it.
#[inline(always)]
#[must_use]
pub fn lookup_pc(frame: &Frame) -> u64 {
    frame.pc.wrapping_sub(1 - (frame.exact & EXACT))
}

/// Moves `frame` to its caller by `word`; `Some` when the stack ends at this frame.
#[inline(always)]
pub fn step<M: Machine>(machine: &mut M, frame: &mut Frame, word: Packed) -> Option<End> {
    crate::arch::step(machine, frame, word)
}
