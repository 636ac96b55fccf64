//! Managed code of the CLR on x86-64 System V: its unwind rules.
//!
//! - `frame`: a frame at one instruction
//! - `prologue`: what prologues build
//! - `funclets`: where handlers begin, behind the body
//! - `replaced`: methods that replace a running frame of themselves
//! - `stubs`: code that is no method's ([`stub_at`])
//! - `unwind_codes`: a function's unwind codes in the exception directory
//! - `thunks`: the stubs of a ReadyToRun image, which have no unwind information
//! - `image`: the unwind table of a PE file
//!
//! Rules describe prologues and bodies. Epilogues are recognised by their instructions when a frame
//! is unwound ([`strata_abi::rule::Packed::with_epilogue_check`]).
//!
//! # How much code is needed
//!
//! A prologue is at most about 70 bytes long; 96 bytes suffice for every method that neither has
//! handlers nor replaces a running frame. With more code than that the rules are better, never
//! different where the first bytes suffice:
//!
//! - The first bytes do not reveal whether a method has handlers, except that a method without a
//!   frame pointer has none. [`wants_all_code`] is true for methods with a frame pointer whose code
//!   was truncated: their whole code should then be read. The instructions of 12,000 methods are 3
//!   MB; about 4 % of all methods have handlers. Without the rest, the rule inside a handler is the
//!   body's: RBP is the method's own in it, so the walk goes on with the method's caller, and the
//!   frames between (the runtime's, while it handles an exception) are left out.
//! - For methods that replace a running frame, an epilogue is needed, or the first bytes of the
//!   replaced method ([`MethodCode::replaced_frame`]).
//!
//! Invariant: the code is a hostile process's. Work is bounded by the bytes given, nothing is
//! allocated by a size that they claim, and wrong rules harm that process's stacks only.

mod frame;
mod funclets;
pub(crate) mod image;
mod prologue;
mod replaced;
mod stubs;
mod thunks;
mod unwind_codes;

pub(crate) use replaced::replaceable_frame;
pub(crate) use stubs::{STUB_REACH, stub_at};

use crate::managed::{MethodCode, MethodUnwinding};
use frame::{Base, Frame, Rows};

pub(crate) fn method_unwinding(code: &MethodCode<'_>) -> MethodUnwinding {
    let bytes = usable(code);
    let is_truncated = bytes.len() < code.size as usize;
    let mut rows = Rows::default();
    if code.is_replacement {
        let starts = funclets::starts(bytes, 0);
        let body = starts.first().and_then(|start| bytes.get(..*start as usize));
        replaced::rows(body.unwrap_or(bytes), code.replaced_frame, &mut rows);
        handlers(bytes, &starts, &mut rows);
        let rules = rows.0;
        return MethodUnwinding { rules, wants_all_code: is_truncated, replaceable_frame: None };
    }
    let prologue = prologue::follow(bytes, 0, Frame::ENTRY, &mut rows);
    let keeps_frame_pointer = prologue.frame.base == Base::Fp;
    if keeps_frame_pointer {
        let body = rows.0.last().map_or(0, |(offset, _)| *offset);
        handlers(bytes, &funclets::starts(bytes, body), &mut rows);
    }
    MethodUnwinding {
        rules: rows.0,
        wants_all_code: is_truncated && keeps_frame_pointer,
        replaceable_frame: replaced::frame_of(&prologue),
    }
}

pub(crate) fn wants_all_code(code: &MethodCode<'_>) -> bool {
    let bytes = usable(code);
    if bytes.len() >= code.size as usize {
        return false;
    }
    let mut rows = Rows::default();
    code.is_replacement
        || prologue::follow(bytes, 0, Frame::ENTRY, &mut rows).frame.base == Base::Fp
}

fn usable<'a>(code: &MethodCode<'a>) -> &'a [u8] {
    code.bytes.get(..code.size as usize).unwrap_or(code.bytes)
}

fn handlers(bytes: &[u8], starts: &[u32], rows: &mut Rows) {
    for start in starts {
        prologue::follow(bytes, *start, Frame::ENTRY, rows);
    }
}
