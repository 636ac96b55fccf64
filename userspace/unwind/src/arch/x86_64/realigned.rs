//! Corrects GCC's call frame information of functions that realign their stack: up to the
//! function's very end it states that registers are saved relative to RBP, even when RBP has been
//! popped already (`pop %rbp; lea -8(%r10), %rsp; ret`).

use strata_abi::register;

use crate::arch::Corrected;
use crate::frame_program::{Cfa, Saved, State};

/// `lea -8(%r10), %rsp`: how GCC leaves a realigned frame, after it has popped RBP.
const LEA_SIZE: u64 = 4;
const R10: u64 = 10;

/// The state as it is, given the row before.
pub(crate) fn corrected(before: Option<&State>, state: &State, distance: u64) -> Corrected {
    if !is_return(state) {
        return Corrected { state: *state, earlier: None };
    }
    let earlier = before
        .filter(|before| is_end(before))
        .and_then(|before| Some((distance.checked_sub(LEA_SIZE)?, without_saves(*before))));
    Corrected { state: without_saves(*state), earlier }
}

/// At the return: RSP points to the return address, and so every register is the caller's.
fn is_return(state: &State) -> bool {
    state.cfa == Cfa::Register { register: u64::from(register::SP), offset: 8 }
        && matches!(state.fp, Saved::Expression(_))
}

/// Just before it: the CFA is R10.
fn is_end(state: &State) -> bool {
    matches!(state.cfa, Cfa::Register { register: R10, offset: 0 })
        && matches!(state.fp, Saved::Expression(_))
}

fn without_saves(state: State) -> State {
    State { fp: Saved::Same, extra: Saved::Same, ..state }
}
