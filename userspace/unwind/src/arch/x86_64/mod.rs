//! x86-64, System V ABI.
//!
//! - `expression`, `realigned`: call frame information
//! - `plt`: procedure linkage tables
//! - `context_start`: where `makecontext` lets functions return to
//! - `go_frames`: Go's functions
//! - `code`: code that nothing describes
//! - `managed`: code of the CLR

mod code;
mod context_start;
mod expression;
mod go_frames;
mod managed;
mod plt;
mod realigned;

use object::elf;
use strata_ecma::pe::Machine;

pub(crate) use code::propose as derived;
pub(crate) use context_start::context_starts;
pub(crate) use expression::rule_of;
pub(crate) use go_frames::{go_function, is_go_restorer};
pub(crate) use managed::image::build as managed_image;
pub(crate) use managed::{
    STUB_REACH, method_unwinding, replaceable_frame, stub_at, wants_all_code,
};
pub(crate) use plt::propose as linkage;
pub(crate) use realigned::corrected;

pub(crate) const PROGRAMS: &str = "64-bit x86-64 programs";

pub(crate) fn is_own_elf(machine: u16) -> bool {
    machine == elf::EM_X86_64
}

pub(crate) fn is_own_pe(machine: Machine) -> bool {
    machine == Machine::Amd64
}
