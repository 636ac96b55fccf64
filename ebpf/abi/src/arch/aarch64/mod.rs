//! arm64: not unwound yet. Registers have their numbers, and every rule is one that cannot be
//! expressed, so that a stack ends at its leaf and is counted.

use crate::record::End;
use crate::rule::Packed;
use crate::step::{Frame, Machine};

/// Registers by their DWARF numbers (DWARF for the Arm 64-bit Architecture, "DWARF register
/// names").
pub mod register {
    pub const SP: u8 = 31;
    pub const FP: u8 = 29;
    /// The link register.
    pub const EXTRA: u8 = 30;
    /// General registers, numbered from 0 on.
    pub const COUNT: u8 = 32;
}

pub mod epilogue {
    pub const BYTES_BEFORE: u64 = 8;
    pub type Code = [u64; 4];

    pub const TRAMPOLINE_BEFORE: u64 = 3;

    #[inline(always)]
    #[must_use]
    pub const fn code_after_call(_bytes: u64) -> Code {
        [0; 4]
    }

    #[inline(always)]
    #[must_use]
    pub fn trampoline(_code: &Code) -> Option<crate::rule::Packed> {
        None
    }
}

/// Addresses of programs are below this (48 bits).
pub const USER_ADDRESSES: u64 = 1 << 48;

/// Where `struct task_struct` holds the thread pointer of the thread's program: of no use yet.
pub const THREAD_POINTER: Option<&str> = None;

#[inline(always)]
pub fn step<M: Machine>(_machine: &mut M, _frame: &mut Frame, _word: Packed) -> Option<End> {
    Some(End::UnsupportedRule)
}
