//! What one instruction does to what is known about the frame.
//!
//! Invariant: whatever an instruction does that is not modelled here makes the thing it touches
//! unknown; nothing is guessed.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use strata_abi::register;
use strata_abi::rule::{FLAG_FP_SAVED, FLAG_RA_IN_REGISTER, Kind, Packed, Rule};

use crate::rules::{self, Rules};

/// No register: see [`State::stored_in`].
const MEMORY: u8 = 16;
/// Larger frames are rejected.
const MAX_FRAME: i32 = 1 << 24;

/// The confidence in a state; of two that differ the more certain one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Doubt {
    /// From a function's start, by branches alone.
    None,
    /// By returning from a call, which may never return.
    Returned,
    /// By a guess: the origin of jumps to it, if any, is unknown.
    Guessed,
}

/// The state of the frame before an instruction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// CFA minus RSP.
    sp: Option<i32>,
    /// CFA minus RBP, while RBP is a frame pointer.
    fp: Option<i32>,
    /// How far below the CFA the caller's RBP is saved.
    saved: Option<i32>,
    /// RBP still holds the caller's value.
    fp_is_callers: bool,
    /// Nothing called this code: it is the program's entry, or a new thread's, where RBP was cleared
    /// without having been saved behind a system call (musl's `clone`), as the ABI asks of the outermost
    /// frame.
    outermost: bool,
    /// There was a system call before.
    is_behind_syscall: bool,
    /// The return address was popped into this register (`vfork`).
    return_in: Option<u8>,
    /// Where RSP was stored last: this register, or [`MEMORY`].
    stored_in: Option<u8>,
    /// The confidence that code gets here in this state.
    doubt: Doubt,
}

impl State {
    /// At the first instruction of a function.
    pub const ENTRY: Self = Self {
        sp: Some(8),
        fp: None,
        saved: None,
        fp_is_callers: true,
        outermost: false,
        is_behind_syscall: false,
        return_in: None,
        stored_in: None,
        doubt: Doubt::None,
    };
    /// At the program's entry point, which has no caller.
    pub const START: Self = Self { outermost: true, ..Self::ENTRY };

    /// The state that a rule of the code before describes, where code runs on from it.
    pub fn from_rule(rule: &Rule) -> Option<Self> {
        let word = rule.packed;
        let saved = word.fp_below() as i32;
        let saved = (saved != 0).then_some(saved);
        let cfa = word.cfa_offset() as i32;
        let known = Self { saved, fp_is_callers: saved.is_none(), ..Self::ENTRY };
        if word.kind() == Kind::Sp as u32 {
            Some(Self { sp: Some(cfa), ..known })
        } else if word.kind() == Kind::Fp as u32 {
            Some(Self { sp: None, fp: Some(cfa), ..known })
        } else {
            None
        }
    }

    /// RSP points to the return address.
    pub fn may_return(&self) -> bool {
        self.sp == Some(8)
    }

    /// Within a function: its frame is known, and not yet (or no more) empty.
    pub fn is_inside(&self) -> bool {
        self.outermost || self.is_followed() && !self.may_return()
    }

    pub fn is_outermost(&self) -> bool {
        self.outermost
    }

    pub fn is_followed(&self) -> bool {
        self.sp.is_some() || self.fp.is_some()
    }

    /// `None` when one of them does not know where RSP is.
    pub fn has_same_frame(&self, other: &Self) -> Option<bool> {
        Some(self.sp? == other.sp?)
    }

    /// The same, but less sure.
    pub fn doubted(self, doubt: Doubt) -> Self {
        Self { doubt: self.doubt.max(doubt), ..self }
    }

    /// What is known when this address is reached with either state; `None` when `self` stays.
    pub fn join(&self, other: &Self) -> Option<Self> {
        if other.doubt < self.doubt {
            return Some(*other);
        }
        if self == other || other.doubt > self.doubt || self.doubt != Doubt::None {
            return None;
        }
        let both = |a, b| if a == b { a } else { None };
        let joined = Self {
            sp: both(self.sp, other.sp),
            fp: both(self.fp, other.fp),
            saved: both(self.saved, other.saved),
            fp_is_callers: self.fp_is_callers && other.fp_is_callers,
            outermost: self.outermost && other.outermost,
            is_behind_syscall: self.is_behind_syscall && other.is_behind_syscall,
            return_in: if self.return_in == other.return_in { self.return_in } else { None },
            stored_in: if self.stored_in == other.stored_in { self.stored_in } else { None },
            doubt: Doubt::None,
        };
        (joined != *self).then_some(joined)
    }

    pub fn rule(&self, rules: &mut Rules) -> u16 {
        if self.outermost {
            return rules.packed(Packed::END);
        }
        if let (Some(0), Some(number)) = (self.sp, self.return_in) {
            return rules.extended(Rule {
                base: register::RSP,
                flags: FLAG_RA_IN_REGISTER,
                ra_register: number,
                ..Rule::default()
            });
        }
        let (kind, base, cfa) = match (self.sp, self.fp) {
            // At 0, the return address has been read already, and lies just below.
            (Some(cfa), _) if cfa >= 8 || cfa == 0 => (Kind::Sp, register::RSP, cfa),
            (_, Some(cfa)) => (Kind::Fp, register::RBP, cfa),
            _ => return rules::NONE,
        };
        let saved = self.saved.unwrap_or(0);
        let packed = u32::try_from(cfa)
            .ok()
            .zip(u32::try_from(saved).ok())
            .and_then(|(cfa, saved)| Packed::frame(kind, cfa, saved, 0));
        match packed {
            Some(word) => rules.packed(word),
            None => rules.extended(Rule {
                base,
                cfa_offset: cfa,
                flags: if saved != 0 { FLAG_FP_SAVED } else { 0 },
                fp_offset: -saved,
                ..Rule::default()
            }),
        }
    }

    /// Takes in one instruction that does not jump.
    pub fn apply(&mut self, instruction: &Instruction) {
        match instruction.mnemonic() {
            Mnemonic::Push => self.push(instruction),
            Mnemonic::Pop => self.pop(instruction),
            Mnemonic::Pushfq => self.move_sp(-8),
            Mnemonic::Popfq => self.move_sp(8),
            Mnemonic::Leave => {
                self.sp = self.fp;
                self.move_sp(8);
                self.restore_fp();
            }
            // One that only pushes its own address (see `Region::pops_at`).
            Mnemonic::Call
                if instruction.op0_kind() == OpKind::NearBranch64
                    && instruction.near_branch_target() == instruction.next_ip() =>
            {
                self.move_sp(-8);
            }
            Mnemonic::Call => {}
            Mnemonic::Syscall => self.is_behind_syscall = true,
            Mnemonic::Enter => {
                self.sp = None;
                self.fp = None;
            }
            Mnemonic::Mov if writes_memory(instruction) => self.store(instruction),
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop => {}
            Mnemonic::Xchg if instruction.op1_kind() == OpKind::Register => {
                self.set(instruction.op0_register(), instruction);
                self.set(instruction.op1_register(), instruction);
            }
            _ if instruction.op0_kind() == OpKind::Register => {
                self.set(instruction.op0_register(), instruction);
            }
            _ => {}
        }
    }

    /// RSP grows by this much.
    fn move_sp(&mut self, by: i32) {
        self.sp =
            self.sp.and_then(|sp| sp.checked_sub(by)).filter(|sp| (0..MAX_FRAME).contains(sp));
    }

    fn push(&mut self, instruction: &Instruction) {
        let narrow = instruction.code() == Code::Push_r16;
        self.move_sp(if narrow { -2 } else { -8 });
        if instruction.op0_kind() != OpKind::Register {
            return;
        }
        let pushed = instruction.op0_register();
        if pushed == Register::RBP && self.fp_is_callers && self.saved.is_none() {
            self.saved = self.sp;
        }
        if self.return_in.is_some() && self.return_in == number(pushed) && self.sp == Some(8) {
            self.return_in = None;
        }
    }

    fn pop(&mut self, instruction: &Instruction) {
        let slot = self.sp;
        if slot == Some(8) && instruction.op0_kind() == OpKind::Register {
            self.return_in = number(instruction.op0_register());
        }
        self.move_sp(8);
        if instruction.op0_kind() != OpKind::Register {
            return;
        }
        match instruction.op0_register() {
            Register::RBP if slot.is_some() && slot == self.saved => self.restore_fp(),
            Register::RBP => self.clobber_fp(),
            Register::RSP => self.sp = None,
            _ => {}
        }
    }

    /// `mov` to memory: RBP may be saved there.
    fn store(&mut self, instruction: &Instruction) {
        if is_register(instruction, Register::RSP) {
            self.stored_in = Some(MEMORY);
        }
        if instruction.op1_kind() == OpKind::Register
            && instruction.op1_register() == Register::RBP
            && self.fp_is_callers
            && self.saved.is_none()
            && let Some(slot) = self.slot(instruction)
        {
            self.saved = Some(slot);
        }
    }

    /// How far below the CFA a memory operand lies, when it is in this frame.
    fn slot(&self, instruction: &Instruction) -> Option<i32> {
        self.address(instruction).filter(|slot| *slot >= 8)
    }

    /// CFA minus the address of a memory operand.
    fn address(&self, instruction: &Instruction) -> Option<i32> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let base = match instruction.memory_base() {
            Register::RSP => self.sp?,
            Register::RBP => self.fp?,
            _ => return None,
        };
        let displacement = i32::try_from(instruction.memory_displacement64() as i64).ok()?;
        base.checked_sub(displacement).filter(|below| (0..MAX_FRAME).contains(below))
    }

    /// A register is set.
    fn set(&mut self, target: Register, instruction: &Instruction) {
        if self.return_in.is_some() && self.return_in == number(target) {
            self.return_in = None;
        }
        if instruction.mnemonic() == Mnemonic::Mov && is_register(instruction, Register::RSP) {
            self.stored_in = number(target);
        }
        match target {
            Register::RSP => self.set_sp(instruction),
            Register::RBP => self.set_fp(instruction),
            Register::ESP | Register::SP | Register::SPL => self.sp = None,
            // xor %ebp,%ebp clears all of it.
            Register::EBP if instruction.mnemonic() == Mnemonic::Xor => self.set_fp(instruction),
            Register::EBP | Register::BP | Register::BPL => self.clobber_fp(),
            _ => {}
        }
    }

    fn set_sp(&mut self, instruction: &Instruction) {
        let immediate = immediate(instruction);
        match (instruction.mnemonic(), immediate) {
            (Mnemonic::Add, Some(value)) => self.move_sp(value),
            (Mnemonic::Sub, Some(value)) => self.move_sp(value.saturating_neg()),
            (Mnemonic::Lea, _) => self.sp = self.address(instruction),
            (Mnemonic::Mov, _) if is_register(instruction, Register::RBP) => self.sp = self.fp,
            (Mnemonic::Mov, _) if self.switches_stacks(instruction) => {}
            _ => self.sp = None,
        }
    }

    /// Whether RSP is set to what this function did to another stack when it left that: a coroutine's
    /// switch stores RSP, and takes the next one from an argument, or from where that points.
    fn switches_stacks(&self, instruction: &Instruction) -> bool {
        let is_argument = |register| {
            matches!(register, Register::RDI | Register::RSI | Register::RDX | Register::RCX)
        };
        match instruction.op1_kind() {
            OpKind::Register => {
                let from = instruction.op1_register();
                is_argument(from) && self.stored_in.is_some_and(|at| Some(at) != number(from))
            }
            OpKind::Memory => {
                self.stored_in == Some(MEMORY) && is_argument(instruction.memory_base())
            }
            _ => false,
        }
    }

    fn set_fp(&mut self, instruction: &Instruction) {
        match instruction.mnemonic() {
            Mnemonic::Mov if is_register(instruction, Register::RSP) => {
                self.fp_is_callers = false;
                self.fp = self.sp;
            }
            Mnemonic::Lea if instruction.memory_base() == Register::RSP => {
                self.fp_is_callers = false;
                self.fp = self.address(instruction);
            }
            Mnemonic::Mov
                if instruction.op1_kind() == OpKind::Memory
                    && self.saved.is_some()
                    && self.slot(instruction) == self.saved =>
            {
                self.restore_fp();
            }
            Mnemonic::Xor if is_register(instruction, instruction.op0_register()) => {
                self.outermost |=
                    self.is_behind_syscall && self.saved.is_none() && self.fp_is_callers;
                self.clobber_fp();
            }
            _ => self.clobber_fp(),
        }
    }

    fn restore_fp(&mut self) {
        self.fp = None;
        self.saved = None;
        self.fp_is_callers = true;
    }

    fn clobber_fp(&mut self) {
        self.fp = None;
        self.fp_is_callers = false;
    }
}

fn writes_memory(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
}

fn is_register(instruction: &Instruction, register: Register) -> bool {
    instruction.op1_kind() == OpKind::Register && instruction.op1_register() == register
}

fn immediate(instruction: &Instruction) -> Option<i32> {
    match instruction.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            i32::try_from(instruction.immediate(1) as i64).ok()
        }
        _ => None,
    }
}

/// The DWARF number of a general register, whole or its lower half.
fn number(register: Register) -> Option<u8> {
    Some(match register {
        Register::RAX | Register::EAX => 0,
        Register::RDX | Register::EDX => 1,
        Register::RCX | Register::ECX => 2,
        Register::RBX | Register::EBX => 3,
        Register::RSI | Register::ESI => 4,
        Register::RDI | Register::EDI => 5,
        Register::R8 | Register::R8D => 8,
        Register::R9 | Register::R9D => 9,
        Register::R10 | Register::R10D => 10,
        Register::R11 | Register::R11D => 11,
        Register::R12 | Register::R12D => 12,
        Register::R13 | Register::R13D => 13,
        Register::R14 | Register::R14D => 14,
        Register::R15 | Register::R15D => 15,
        _ => return None,
    })
}
