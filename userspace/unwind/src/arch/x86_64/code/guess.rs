//! Guesses for code that nothing is known to reach: what a `switch` or a pointer leads to, and
//! what follows a call that may not return.
//!
//! A guess is the frame of the code before, of the jump through a register before, or a new
//! function's; the first that brings RSP back to the return address is taken. Invariant: looking
//! ahead is bounded and counted as work.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::regions::{Regions, STARTS, SWITCHES};
use super::state::{Doubt, State};
use super::{Analysis, ends, is_padding};

/// Instructions looked ahead to judge whether a guess can be right.
const MAX_PROBE: usize = 256;

impl Analysis {
    /// Code nothing has reached: what a `switch` or a pointer leads to, and what follows a call
    /// that may not return.
    pub(super) fn unreached(&mut self, regions: &mut Regions, number: usize) {
        let mut offset = 0;
        let mut switch: Option<State> = None;
        let mut before: Option<State> = None;
        while self.work > 0
            && let Some(region) = regions.list.get_mut(number)
            && offset < region.bytes.len()
        {
            self.work -= 1;
            if region.state(offset) == 0 {
                let Some(instruction) = region.decode(offset) else {
                    offset += 1;
                    continue;
                };
                if is_padding(&instruction) {
                    // The entry function is short; code apart from it is another function.
                    before = before.filter(|state| !state.is_outermost());
                    offset += instruction.len();
                    continue;
                }
                let address = region.start + offset as u64;
                let state = self.likeliest(regions, address, switch, before);
                self.pending.push((address, state.doubted(Doubt::Guessed)));
                self.run(regions);
                // In every case, continue behind it.
                let Some(region) = regions.list.get(number) else { return };
                if region.state(offset) == 0 {
                    offset += instruction.len();
                    continue;
                }
            }
            let Some(region) = regions.list.get(number) else { return };
            before = self.state(region.state(offset));
            if region.flag(offset, STARTS) {
                switch = None;
            }
            if region.flag(offset, SWITCHES) {
                switch = before;
            }
            offset += region.length(offset).max(1);
        }
    }

    /// The state to take for unreached code: the first that leads to a proper return.
    fn likeliest(
        &mut self,
        regions: &mut Regions,
        address: u64,
        switch: Option<State>,
        before: Option<State>,
    ) -> State {
        let inside = [switch, before].into_iter().flatten().filter(State::is_inside);
        let candidates: Vec<State> = inside.chain([State::ENTRY]).collect();
        let answers: Vec<Option<bool>> = candidates
            .iter()
            .map(|state| self.returns_properly(regions, address, *state))
            .collect();
        let first = |wanted| answers.iter().position(|answer| *answer == wanted);
        let chosen = first(Some(true)).or_else(|| {
            let starts = regions.at(address).is_some_and(|(region, offset)| {
                region.decode(offset).is_some_and(|instruction| is_prologue(&instruction))
            });
            first(None).filter(|_| !starts)
        });
        chosen.and_then(|chosen| candidates.get(chosen)).copied().unwrap_or(State::ENTRY)
    }

    /// Whether code that starts in a state returns with RSP at the return address, or meets known
    /// code in that code's state. `None` when that is unknown.
    fn returns_properly(
        &mut self,
        regions: &mut Regions,
        from: u64,
        mut state: State,
    ) -> Option<bool> {
        if state.is_outermost() {
            return None;
        }
        let mut address = from;
        for _ in 0..MAX_PROBE {
            self.work = self.work.checked_sub(1)?;
            let (region, offset) = regions.at(address)?;
            if let Some(known) =
                self.state(region.state(offset)).filter(|_| region.state(offset) != 0)
            {
                return known.has_same_frame(&state);
            }
            let instruction = region.decode(offset)?;
            match instruction.mnemonic() {
                Mnemonic::Ret => return Some(state.may_return()),
                Mnemonic::Jmp if instruction.op0_kind() == OpKind::NearBranch64 => {
                    address = instruction.near_branch_target();
                    continue;
                }
                Mnemonic::Jmp => return None,
                mnemonic if ends(mnemonic) => return None,
                // It may not return: what follows then is another function.
                Mnemonic::Call if region.only_padding_follows(offset + instruction.len()) => {
                    return None;
                }
                Mnemonic::Call => {}
                _ => state.apply(&instruction),
            }
            if !state.is_followed() {
                return Some(false);
            }
            address = instruction.next_ip();
        }
        None
    }
}

/// Functions begin like this, and their middle rarely looks so.
fn is_prologue(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => instruction.op0_kind() == OpKind::Register,
        Mnemonic::Sub => instruction.op0_register() == iced_x86::Register::RSP,
        Mnemonic::Endbr64 => true,
        _ => false,
    }
}
