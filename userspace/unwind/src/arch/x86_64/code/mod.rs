//! Rules for code that nothing describes, from its instructions: musl's C library, hand-written
//! assembly, V8's builtins, the C runtime's start and end.
//!
//! From every place known to be a function's start (symbols, call targets, the entry point) the
//! frame is followed over all branches ([`state`]). What nothing reaches that way is guessed
//! ([`guess`]), and no guess overrules what is known.
//!
//! Invariant: every address is visited a bounded number of times, and the work is counted; what
//! the budget does not reach keeps rule "none", the frame pointer.

mod guess;
mod regions;
mod state;

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use strata_abi::rule::Packed;

use crate::arch::Undescribed;
use crate::coverage::Proposal;
use crate::limits::Limits;
use crate::rules::{self, Rules};
use regions::{Bodies, Region, Regions, STARTS, SWITCHES, known_code};
use state::{Doubt, State};
use strata_bytes::ReadAt;

/// `mov $15, %rax; syscall`: `rt_sigreturn`, which only a signal restorer calls.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `xor %rdi,%rdi; call _exit`, and `hlt` behind it: where boost.context's coroutines return to.
const EXIT: [u8; 4] = [0x48, 0x31, 0xff, 0xe8];
const BEHIND_EXIT: (usize, u8) = (8, 0xf4);
const ALIGNMENT: u64 = 16;

/// Where to begin.
struct Starts {
    entry: u64,
    /// Functions by the file's symbols and data, sorted.
    functions: Vec<u64>,
    bodies: Bodies,
    /// Places at which described code runs on into code that is not, and the rule there.
    continued: Vec<(u64, u16)>,
}

/// Derives rules for what is not covered yet; returns them and the number of bytes covered.
pub(crate) fn propose<R: ReadAt + ?Sized>(
    undescribed: &Undescribed<'_, R>,
    limits: &Limits,
    rules: &mut Rules,
) -> Option<(Proposal, u64)> {
    let Undescribed { elf, source, covered, code, entries, rule_at_end } = undescribed;
    let mut regions = Regions::read(elf, *source, covered, limits);
    if regions.list.is_empty() {
        return None;
    }
    let continued = regions
        .continued(entries)
        .into_iter()
        .filter(|entry| !code.iter().any(|section| section.start == entry.end()))
        .map(|entry| (entry.end(), rule_at_end(entry, rules)))
        .collect();
    let known = known_code(elf, *source, &regions);
    if let Some(builtins) = &known.builtins {
        regions.leave_out(builtins);
    }
    let starts =
        Starts { entry: elf.entry, continued, functions: known.functions, bodies: known.bodies };
    Some(derive(regions, &starts, limits.max_work, rules))
}

fn derive(
    mut regions: Regions,
    starts: &Starts,
    max_work: u64,
    rules: &mut Rules,
) -> (Proposal, u64) {
    let mut analysis = Analysis {
        states: vec![State::ENTRY, State::ENTRY],
        numbers: HashMap::from([(State::ENTRY, 1)]),
        last: (State::ENTRY, 1),
        pending: Vec::new(),
        work: max_work,
    };
    if starts.entry != 0 {
        analysis.start_at(&mut regions, starts.entry, State::START);
    }
    for address in &starts.functions {
        analysis.start_at(&mut regions, *address, State::ENTRY);
    }
    for address in call_targets(&regions, starts, &mut analysis.work) {
        analysis.start_at(&mut regions, address, State::ENTRY);
    }
    for (address, rule) in &starts.continued {
        if let Some(state) = rules.get(*rule).and_then(State::from_rule) {
            analysis.reach(&mut regions, *address, state.doubted(Doubt::Returned));
        }
    }
    analysis.run(&mut regions);
    let mut proposal = Proposal::default();
    let mut derived = 0;
    for number in 0..regions.list.len() {
        analysis.unreached(&mut regions, number);
        if let Some(region) = regions.list.get(number) {
            derived += analysis.rows(region, rules, &mut proposal);
        }
    }
    (proposal, derived)
}

struct Analysis {
    /// Distinct states; number 0 is not used.
    states: Vec<State>,
    numbers: HashMap<State, u16>,
    /// The state numbered last.
    last: (State, u16),
    pending: Vec<(u64, State)>,
    work: u64,
}

impl Analysis {
    fn number(&mut self, state: State) -> Option<u16> {
        // Most instructions leave the frame as it is.
        if self.last.0 == state {
            return Some(self.last.1);
        }
        let number = self.number_of(state)?;
        self.last = (state, number);
        Some(number)
    }

    fn number_of(&mut self, state: State) -> Option<u16> {
        if let Some(number) = self.numbers.get(&state) {
            return Some(*number);
        }
        let number = u16::try_from(self.states.len()).ok()?;
        self.states.push(state);
        self.numbers.insert(state, number);
        Some(number)
    }

    fn state(&self, number: u16) -> Option<State> {
        self.states.get(usize::from(number)).copied()
    }

    /// A function starts here, whatever reaches it otherwise.
    fn start_at(&mut self, regions: &mut Regions, address: u64, state: State) {
        let Some((region, offset)) = regions.at(address) else { return };
        if region.flag(offset, STARTS) {
            return;
        }
        region.set_flag(offset, STARTS);
        if let Some(number) = self.number(state) {
            region.set_state(offset, number);
            self.pending.push((address, state));
        }
    }

    fn reach(&mut self, regions: &mut Regions, address: u64, state: State) {
        if let Some((region, offset)) = regions.at(address)
            && region.state(offset) == 0
        {
            self.pending.push((address, state));
        }
    }

    fn run(&mut self, regions: &mut Regions) {
        while let Some((address, state)) = self.pending.pop() {
            self.follow(regions, address, state);
        }
    }

    /// Follows code in a straight line, noting where it branches to.
    fn follow(&mut self, regions: &mut Regions, from: u64, mut state: State) {
        let mut address = from;
        while self.work > 0
            && let Some((region, offset)) = regions.at(address)
        {
            self.work -= 1;
            let known = region.state(offset);
            if region.flag(offset, STARTS) {
                // It keeps its state, and is followed from there once.
                if address != from || self.state(known) != Some(state) {
                    return;
                }
            } else if let Some(before) = self.state(known).filter(|_| known != 0) {
                match before.join(&state) {
                    Some(joined) => state = joined,
                    None => return,
                }
            }
            let Some(number) = self.number(state) else { return };
            let Some(instruction) = region.decode(offset) else { return };
            region.set_state(offset, number);
            region.set_length(offset, instruction.len());
            let target = (instruction.op0_kind() == OpKind::NearBranch64)
                .then(|| instruction.near_branch_target());
            match instruction.mnemonic() {
                Mnemonic::Jmp => match target {
                    // A start has its own state; anything else gets this one.
                    Some(target) => address = target,
                    None => {
                        region.set_flag(offset, SWITCHES);
                        return;
                    }
                },
                mnemonic if ends(mnemonic) => return,
                Mnemonic::Call | Mnemonic::Hlt | Mnemonic::Int3 => {
                    let next = offset + instruction.len();
                    if instruction.mnemonic() == Mnemonic::Call && region.pops_at(next) {
                        state.apply(&instruction);
                    }
                    // The call may be a function's last instruction: see `unreached`.
                    if region.only_padding_follows(next) {
                        return;
                    }
                    state = state.doubted(Doubt::Returned);
                    address = instruction.next_ip();
                }
                _ => {
                    if let Some(target) = target {
                        self.pending.push((target, state));
                    }
                    state.apply(&instruction);
                    address = instruction.next_ip();
                }
            }
        }
    }

    /// The rows of a region; returns the number of bytes that have a rule.
    fn rows(&self, region: &Region, rules: &mut Rules, proposal: &mut Proposal) -> u64 {
        let first = proposal.rows.len();
        let mut derived = 0;
        let mut last = rules::NONE;
        proposal.rows.push((region.start, last));
        let mut offset = 0;
        while offset < region.bytes.len() {
            let address = region.start + offset as u64;
            let rest = region.bytes.get(offset..).unwrap_or_default();
            let (rule, length) = if let Some((rule, length)) = returned_to(rest) {
                // Where nothing calls, the return address is the first byte, and callers are looked
                // up by the byte before.
                last = rules.packed(rule);
                if let Some(before) = address.checked_sub(1).filter(|pc| *pc >= region.start) {
                    proposal.rows.push((before, last));
                } else {
                    proposal.rows.push((address, last));
                }
                (last, length)
            } else {
                match self.state(region.state(offset)) {
                    Some(state) if region.state(offset) != 0 => {
                        (state.rule(rules), region.length(offset).max(1))
                    }
                    _ => match region.decode(offset) {
                        Some(instruction) if is_padding(&instruction) => (last, instruction.len()),
                        other => (rules::NONE, other.map_or(1, |instruction| instruction.len())),
                    },
                }
            };
            if rule != last {
                proposal.rows.push((address, rule));
                last = rule;
            }
            if rule != rules::NONE {
                derived += length as u64;
            }
            offset += length;
        }
        proposal.close(region.start, region.start + region.bytes.len() as u64, first);
        derived
    }
}

/// The rule of code that is returned to although it calls nothing, and its length.
fn returned_to(code: &[u8]) -> Option<(Packed, usize)> {
    if code.starts_with(&RESTORER) {
        return Some((Packed::SIGNAL, RESTORER.len()));
    }
    let (length, halt) = BEHIND_EXIT;
    (code.starts_with(&EXIT) && code.get(length) == Some(&halt)).then_some((Packed::END, length))
}

/// Functions that are called or have their address taken, by decoding everything once in order.
fn call_targets(regions: &Regions, starts: &Starts, work: &mut u64) -> Vec<u64> {
    let Starts { functions, bodies, .. } = starts;
    let mut targets = Vec::new();
    let mut instruction = Instruction::default();
    for region in &regions.list {
        let end = region.start + region.bytes.len() as u64;
        let mut from = region.start;
        while from < end && *work > 0 {
            // Decoding falls into step again at every known start.
            let after = functions.partition_point(|function| *function <= from);
            let to = functions.get(after).copied().unwrap_or(end).min(end);
            let range = (from - region.start) as usize..(to - region.start) as usize;
            let bytes = region.bytes.get(range).unwrap_or_default();
            let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
            while decoder.can_decode() && *work > 0 {
                *work -= 1;
                decoder.decode_out(&mut instruction);
                let next = (instruction.next_ip() - region.start) as usize;
                if instruction.mnemonic() != Mnemonic::Call || !region.pops_at(next) {
                    targets.extend(function_named_by(&instruction, bodies));
                }
            }
            from = to;
        }
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// The function that an instruction calls, or takes the address of.
fn function_named_by(instruction: &Instruction, bodies: &Bodies) -> Option<u64> {
    // Labels within a function have their address taken too, but are rarely aligned.
    let is_function = |at: &u64| at.is_multiple_of(ALIGNMENT) && !bodies.hold(*at);
    match instruction.mnemonic() {
        Mnemonic::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
            Some(instruction.near_branch_target())
        }
        Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
            Some(instruction.ip_rel_memory_address()).filter(is_function)
        }
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Immediate32 => {
            Some(u64::from(instruction.immediate32())).filter(is_function)
        }
        _ => None,
    }
}

/// Nothing runs on behind these.
fn ends(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Iretq | Mnemonic::Ud2 | Mnemonic::INVALID
    )
}

fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
        // xchg %ax,%ax, and the zeros that linkers put between sections
        || instruction.code() == iced_x86::Code::Xchg_r16_AX
        || instruction.code() == iced_x86::Code::Add_rm8_r8
            && instruction.memory_base() == iced_x86::Register::RAX
            && instruction.op1_register() == iced_x86::Register::AL
            && instruction.len() == 2
}
