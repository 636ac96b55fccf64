//! arm64: nothing is unwound yet. No file is one of this machine, and code that the CLR made has
//! no rules.

use strata_abi::rule::Rule;
use strata_golang::PclnTab;
use strata_golang::table::Function;

use super::{Corrected, Undescribed};
use crate::build::BuildError;
use crate::coverage::Proposal;
use crate::elf::Elf;
use crate::frame_program::State;
use crate::frame_section::Common;
use crate::limits::Limits;
use crate::managed::{MethodCode, MethodUnwinding, Stub};
use crate::rules::{self, Rules};
use crate::table::UnwindTable;
use crate::window::Window;
use strata_bytes::ReadAt;
use strata_ecma::pe::Machine;

pub(crate) const PROGRAMS: &str = "programs for x86-64, on x86-64,";

pub(crate) fn is_own_elf(_machine: u16) -> bool {
    false
}

pub(crate) fn is_own_pe(_machine: Machine) -> bool {
    false
}

pub(crate) fn rule_of(
    _state: &State,
    _common: &Common,
    _section: &[u8],
    _rules: &mut Rules,
) -> u16 {
    rules::UNSUPPORTED
}

pub(crate) fn corrected(_before: Option<&State>, state: &State, _distance: u64) -> Corrected {
    Corrected { state: *state, earlier: None }
}

pub(crate) fn linkage<R: ReadAt + ?Sized>(
    _elf: &Elf,
    _source: &R,
    _limits: &Limits,
    _rules: &mut Rules,
) -> Proposal {
    Proposal::default()
}

pub(crate) fn is_go_restorer(_table: &PclnTab<'_>, _function: &Function) -> bool {
    false
}

pub(crate) fn go_function<R: ReadAt + ?Sized>(
    _table: &PclnTab<'_>,
    _function: &Function,
    _window: &mut Window<'_, R>,
    _rules: &mut Rules,
    _rows: &mut Vec<(u64, u16)>,
) {
}

pub(crate) fn context_starts<R: ReadAt + ?Sized>(_elf: &Elf, _source: &R) -> Vec<u64> {
    Vec::new()
}

pub(crate) fn derived<R: ReadAt + ?Sized>(
    _undescribed: &Undescribed<'_, R>,
    _limits: &Limits,
    _rules: &mut Rules,
) -> Option<(Proposal, u64)> {
    None
}

pub(crate) fn managed_image<R: ReadAt + ?Sized>(
    _source: &R,
    _limits: &Limits,
) -> Result<UnwindTable, BuildError> {
    Err(BuildError::OtherMachine)
}

pub(crate) const STUB_REACH: usize = 0;

pub(crate) fn stub_at(_code: &[u8], _at: usize) -> Option<Stub> {
    None
}

pub(crate) fn method_unwinding(_code: &MethodCode<'_>) -> MethodUnwinding {
    MethodUnwinding {
        rules: vec![(0, Rule::simple(strata_abi::rule::Packed::UNSUPPORTED))],
        wants_all_code: false,
        replaceable_frame: None,
    }
}

pub(crate) fn replaceable_frame(_code: &[u8]) -> Option<u32> {
    None
}

pub(crate) fn wants_all_code(_code: &MethodCode<'_>) -> bool {
    false
}
