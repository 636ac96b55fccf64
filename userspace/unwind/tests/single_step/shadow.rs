//! What the stack must be, from the calls and returns a thread was seen to make.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

use strata_unwind::unwinder::Registers;

const RDI: usize = 5;
const RSP: usize = 7;

/// A switch of stacks takes fewer instructions.
const MOVE: u32 = 8;

/// What an instruction does to the stack of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    None,
    Call {
        returns_to: u64,
    },
    Return,
    /// Takes a word from the stack: right after a call, the call itself.
    Take,
    /// May leave several frames at once (`longjmp`, a scheduler).
    Jump,
    SystemCall,
}

/// One instruction, decoded.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub effect: Effect,
    /// Sets RSP from something else: the stack may be another one afterwards.
    pub moves_stack: bool,
}

pub fn decode(pc: u64, bytes: &[u8]) -> Step {
    let instruction = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode();
    let effect = match instruction.mnemonic() {
        Mnemonic::Syscall => Effect::SystemCall,
        Mnemonic::Call => Effect::Call { returns_to: instruction.next_ip() },
        Mnemonic::Ret => Effect::Return,
        Mnemonic::Pop => Effect::Take,
        Mnemonic::Iretq => Effect::Jump,
        Mnemonic::Jmp if instruction.op0_kind() != OpKind::NearBranch64 => Effect::Jump,
        _ => Effect::None,
    };
    let moves_stack = instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP
        && instruction.op_count() == 2
        && matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory)
        && instruction.memory_base() != Register::RSP
        && instruction.memory_base() != Register::RBP
        && instruction.op1_register() != Register::RBP;
    let moves_stack = moves_stack || instruction.mnemonic() == Mnemonic::Iretq;
    Step { effect, moves_stack }
}

/// The callers of one thread's current instruction, outermost first.
#[derive(Default)]
pub struct Shadow {
    pub callers: Vec<u64>,
    /// The last instruction and, had it been a system call, its number.
    pub last: Option<(u64, Step, u64)>,
    /// What the instruction about to run does.
    pub next: Option<Effect>,
    /// A signal is being delivered: its number, and the stack pointer before.
    pub signal: Option<(u64, u64)>,
    /// Instructions checked.
    pub age: u64,
    /// The last instruction was a call.
    has_called: bool,
    /// Instructions since the stack pointer was set to something else.
    since_move: u32,
    /// This instruction may be anywhere up the stack.
    may_unwind: bool,
}

impl Shadow {
    /// The thread runs the instruction at `pc` next.
    pub fn about_to(&mut self, pc: u64, step: Step, number: u64) {
        self.age += 1;
        self.last = Some((pc, step, number));
        self.since_move = if step.moves_stack { 0 } else { self.since_move.saturating_add(1) };
    }

    /// The stack pointer was just set to something else, and a jump comes next.
    pub fn is_about_to_jump_elsewhere(&self) -> bool {
        self.since_move == 0 && self.next == Some(Effect::Jump)
    }

    /// A scheduler may just have switched stacks.
    pub fn may_be_elsewhere(&self) -> bool {
        self.since_move < MOVE || self.last.is_none_or(|(_, step, _)| step.effect == Effect::Jump)
    }

    /// Takes in what the last instruction did; `top` is what RSP points to now.
    pub fn advance(&mut self, registers: &Registers, top: u64) {
        let [.., pc] = *registers;
        self.may_unwind = false;
        let Some((last_pc, step, number)) = self.last else { return };
        if let Some((signal, sp)) = self.signal.take() {
            // A handler starts with its number in RDI, below the red zone or on another stack;
            // a signal that is ignored lets the instruction run.
            if registers[RDI] == signal && sp.wrapping_sub(registers[RSP]) > 128 {
                self.callers.push(last_pc);
                self.callers.push(top);
                return;
            }
        }
        let has_called =
            std::mem::replace(&mut self.has_called, matches!(step.effect, Effect::Call { .. }));
        match step.effect {
            // A runtime's stub identifies itself by a call (PrecodeFixupThunk).
            Effect::Take => self.may_unwind = has_called,
            Effect::None => {}
            Effect::Call { returns_to } => self.callers.push(returns_to),
            Effect::Return => self.may_unwind = self.callers.pop() != Some(pc),
            Effect::Jump => self.may_unwind = self.since_move < MOVE,
            Effect::SystemCall if number == libc::SYS_rt_sigreturn as u64 => {
                self.callers.pop();
            }
            Effect::SystemCall => {}
        }
    }

    /// Compares with unwound frames (innermost first, without their flags). After a jump that
    /// may leave frames, any of the frames known before is a right place to be.
    pub fn agrees(&mut self, frames: &[u64]) -> bool {
        let callers = frames.get(1..).unwrap_or_default();
        let same = |known: &[u64]| known.iter().rev().eq(callers.iter());
        if same(&self.callers) {
            return true;
        }
        if self.may_unwind && callers.len() < self.callers.len() {
            let fewer = self.callers.get(..callers.len()).unwrap_or_default();
            if same(fewer) {
                self.callers.truncate(callers.len());
                return true;
            }
        }
        false
    }

    /// The unwound stack is right as far as it goes.
    pub fn is_cut(&self, frames: &[u64]) -> bool {
        let callers = frames.get(1..).unwrap_or_default();
        callers.len() < self.callers.len()
            && self.callers.iter().rev().zip(callers).all(|(known, unwound)| known == unwound)
    }

    /// Takes unwound frames for true.
    pub fn adopt(&mut self, frames: &[u64]) {
        self.callers = frames.iter().skip(1).rev().copied().collect();
    }
}
