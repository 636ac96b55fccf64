//! Machine-specific code for building unwind tables: one directory for each machine, with the same
//! items. Which one is compiled decides the target, as in [`strata_abi::arch`].
//!
//! | item | is |
//! |---|---|
//! | `PROGRAMS` | what can be unwound, in words |
//! | `is_own_elf`, `is_own_pe` | whether a file's machine is this one |
//! | `rule_of` | a row of call frame information → a rule |
//! | `corrected` | what compilers write wrong into call frame information |
//! | `linkage` | rules of procedure linkage tables |
//! | `go_function`, `is_go_restorer` | rules of a function in Go's line table |
//! | `context_starts` | functions of a C library that are returned to and never called |
//! | `derived` | rules of code that nothing describes, from its instructions |
//! | `managed_image` | rules of a PE file, from its exception directory |
//! | `method_unwinding`, `wants_all_code`, `stub_at`, `STUB_REACH` | rules of code that the CLR made at run time |

use std::ops::Range;

use crate::coverage::Coverage;
use crate::elf::Elf;
use crate::frame_program::State;
use crate::frame_section::Entry;
use crate::rules::Rules;
use strata_bytes::ReadAt;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// A corrected row of call frame information.
pub(crate) struct Corrected {
    pub state: State,
    /// A row that should have come before, and the distance into the code from which it holds.
    pub earlier: Option<(u64, State)>,
}

/// A file, and the facts about its code before its instructions are decoded.
pub(crate) struct Undescribed<'a, R: ReadAt + ?Sized> {
    pub elf: &'a Elf,
    pub source: &'a R,
    pub covered: &'a Coverage,
    /// Executable ranges.
    pub code: &'a [Range<u64>],
    /// Entries of call frame information.
    pub entries: &'a [Entry],
    /// The rule behind the last instruction of an entry.
    pub rule_at_end: &'a dyn Fn(&Entry, &mut Rules) -> u16,
}
