//! Managed code of the CLR: its unwind rules.
//!
//! For code compiled at run time they come from the code itself ([`method_rules`]), because the
//! CLR keeps its unwind information to itself there. Code compiled ahead of time (ReadyToRun) is in
//! PE files that have an exception directory, which [`crate::build`] reads. How both describe a
//! frame is the machine's: `arch`.
//!
//! - `pe`: headers and sections of a PE file
//!
//! Invariant: the code is a hostile process's. Work is bounded by the bytes given, nothing is
//! allocated by a size that they claim, and wrong rules harm that process's stacks only.

pub(crate) mod pe;

use strata_abi::rule::Rule;

use crate::arch;

/// One range of a method's native code.
#[derive(Clone, Copy, Debug, Default)]
pub struct MethodCode<'a> {
    /// Bytes of the range.
    pub size: u32,
    /// The first of them, or all.
    pub bytes: &'a [u8],
    /// It replaces a running frame of the method (tier "OSR").
    pub is_replacement: bool,
    /// For a replacement: the frame of the method's unoptimised code, when known
    /// ([`replaceable_frame`]).
    pub replaced_frame: Option<u32>,
}

/// A stub that has a frame for some of its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Where it starts in the code it was found in.
    pub start: usize,
    pub size: u32,
    /// Rules by offset, ascending from 0; the last one holds to its end.
    pub rules: Vec<(u32, Rule)>,
}

/// How much code before and from an address is needed to recognise a stub there.
pub const STUB_REACH: usize = arch::STUB_REACH;

/// The stub that covers `code[at]`; `None` when that is no stub with a frame. Code that belongs
/// to no method and is no such stub is a leaf without a frame.
#[must_use]
pub fn stub_at(code: &[u8], at: usize) -> Option<Stub> {
    arch::stub_at(code, at)
}

/// The rules of a method, by offset, ascending and from 0 on; the last one holds to the end of
/// the range. Words of extended rules carry the number 0, which the loader replaces.
#[must_use]
pub fn method_rules(code: &MethodCode<'_>) -> Vec<(u32, Rule)> {
    method_unwinding(code).rules
}

/// What a method's first bytes show, in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodUnwinding {
    /// As [`method_rules`].
    pub rules: Vec<(u32, Rule)>,
    /// As [`wants_all_code`].
    pub wants_all_code: bool,
    /// As [`replaceable_frame`]; `None` for a method that is a replacement itself.
    pub replaceable_frame: Option<u32>,
}

/// The unwinding of a method, by its code.
#[must_use]
pub fn method_unwinding(code: &MethodCode<'_>) -> MethodUnwinding {
    arch::method_unwinding(code)
}

/// The frame of unoptimised code that a replacement may take the place of while it runs, by its
/// first bytes; `None` when it has none. The number means something to [`method_rules`] only.
#[must_use]
pub fn replaceable_frame(code: &[u8]) -> Option<u32> {
    arch::replaceable_frame(code)
}

/// Whether the rest of a method's code, which is not in `bytes`, may change its rules.
#[must_use]
pub fn wants_all_code(code: &MethodCode<'_>) -> bool {
    arch::wants_all_code(code)
}

/// For fuzzing: any bytes as a method's code, as code around a stub, and as both of a replacement.
pub fn fuzz_code(data: &[u8]) {
    let [choice, size, bytes @ ..] = data else { return };
    let code = MethodCode {
        size: bytes.len() as u32 + u32::from(*size),
        bytes,
        is_replacement: choice & 1 != 0,
        replaced_frame: if choice & 2 != 0 { replaceable_frame(bytes) } else { None },
    };
    let rules = method_rules(&code);
    assert!(rules.first().is_some_and(|(offset, _)| *offset == 0));
    assert!(rules.is_sorted_by(|a, b| a.0 < b.0));
    assert!(rules.last().is_some_and(|(offset, _)| *offset as usize <= bytes.len()));
    let unwinding = method_unwinding(&code);
    assert_eq!(unwinding.wants_all_code, wants_all_code(&code));
    if !code.is_replacement && bytes.len() <= code.size as usize {
        assert_eq!(unwinding.replaceable_frame, replaceable_frame(bytes));
    }
    if let Some(stub) = stub_at(bytes, usize::from(*size)) {
        assert!((stub.start..stub.start + stub.size as usize).contains(&usize::from(*size)));
    }
}
