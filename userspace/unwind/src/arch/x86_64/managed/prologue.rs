//! Prologues of the CLR's compiler on x86-64 System V.
//!
//! In this order (`CodeGen::genFnProlog`, src/coreclr/jit/codegencommon.cpp; the frame is
//! allocated in codegenxarch.cpp, `genAllocLclFrame`):
//!
//! 1. `push rbp`, in methods that keep a frame pointer, then the registers the callee saves,
//!    R15 first. A method without a frame pointer may push RBP among those.
//! 2. The frame: `sub rsp, N` or, for 8 bytes, `push rax`. From a page on it is probed, since
//!    .NET 5 by `lea r11, [rsp - N]; call JIT_StackProbe; mov rsp, r11`; before, pages below the
//!    stack pointer were read (`test [rsp - 0x1000], rax`), from three pages on in a loop that
//!    moves the stack pointer: `lea rax, [rsp - N]`, then `lea rsp, [rsp - 0x1000]; test [rsp],
//!    rax; cmp rsp, rax; jge`, then `lea rsp, [rax + N]; sub rsp, N`.
//! 3. `lea rbp, [rsp + N]` or `mov rbp, rsp`, so that RBP points to the caller's RBP.
//!
//! `vzeroupper` and instructions that clear registers may lie between. From there on RSP stays
//! where it is up to the epilogue, except for `stackalloc`, which needs a frame pointer.
//!
//! Invariant: at most [`MOST_INSTRUCTIONS`] are decoded, whatever the bytes are.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::frame::{Base, Frame, Rows};

/// Eight pushes, and what a prologue with large frames has besides.
const MOST_INSTRUCTIONS: usize = 40;

/// What a prologue has built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prologue {
    pub frame: Frame,
    /// Bytes pushed and allocated.
    pub size: u32,
    /// Of the stores to the stack: where the highest ends, counted from RSP behind the prologue.
    pub stores_end: u32,
}

/// Follows the prologue that starts at `offset` in `code`.
pub(super) fn follow(code: &[u8], offset: u32, start: Frame, rows: &mut Rows) -> Prologue {
    rows.add(offset, start);
    let mut state = State {
        frame: start,
        start,
        allocated: false,
        probe: None,
        size: 0,
        stores_end: 0,
        rows,
        at: offset,
        next: offset,
    };
    let bytes = code.get(offset as usize..).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, u64::from(offset), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    for _ in 0..MOST_INSTRUCTIONS {
        if !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut instruction);
        state.at = instruction.ip() as u32;
        state.next = instruction.next_ip() as u32;
        if state.run(&instruction).is_none() {
            break;
        }
    }
    Prologue { frame: state.frame, size: state.size, stores_end: state.stores_end }
}

struct State<'a> {
    frame: Frame,
    start: Frame,
    /// The frame has got its size.
    allocated: bool,
    /// A register that holds RSP minus so much.
    probe: Option<(Register, u32)>,
    size: u32,
    stores_end: u32,
    rows: &'a mut Rows,
    at: u32,
    next: u32,
}

impl State<'_> {
    /// Takes in one instruction; `None` when the prologue is over.
    fn run(&mut self, instruction: &Instruction) -> Option<()> {
        match instruction.mnemonic() {
            Mnemonic::Push => self.push(instruction),
            Mnemonic::Sub => self.subtract(instruction),
            Mnemonic::Lea => self.load_address(instruction),
            Mnemonic::Mov => self.move_register(instruction),
            // The probe; in other places a call is no part of a prologue.
            Mnemonic::Call => (self.probe.is_some() && !self.allocated).then_some(()),
            // Probing, and the loop of it.
            Mnemonic::Test | Mnemonic::Cmp => is_about_stack(instruction).then_some(()),
            Mnemonic::Jge => self.probe.map(|_| ()),
            Mnemonic::Xor => (instruction.op0_kind() == OpKind::Register).then_some(()),
            Mnemonic::Vzeroupper | Mnemonic::Nop => Some(()),
            _ => None,
        }
    }

    fn push(&mut self, instruction: &Instruction) -> Option<()> {
        if self.allocated || instruction.op0_kind() != OpKind::Register {
            return None;
        }
        self.grow(8)?;
        if instruction.op0_register() == Register::RBP && self.frame.fp_below == 0 {
            self.frame.fp_below = self.frame.cfa;
        }
        self.row();
        Some(())
    }

    fn subtract(&mut self, instruction: &Instruction) -> Option<()> {
        let by_number = matches!(instruction.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
        if !by_number || instruction.op0_register() != Register::RSP || self.allocated {
            return None;
        }
        self.grow(u32::try_from(instruction.immediate(1)).ok()?)?;
        self.allocated = true;
        self.row();
        Some(())
    }

    fn load_address(&mut self, instruction: &Instruction) -> Option<()> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let displacement = instruction.memory_displacement64() as i64;
        let base = instruction.memory_base();
        match instruction.op0_register() {
            Register::RBP if base == Register::RSP => self.point_at(displacement),
            Register::RSP if base == Register::RSP => {
                // The loop that probes: the register holds the old RSP.
                let (register, below) = self.probe?;
                let cfa = self.frame.cfa.checked_add(below)?;
                let frame = Frame { base: Base::Register(number(register)?), cfa, ..self.frame };
                self.rows.add(self.at, frame);
                Some(())
            }
            Register::RSP => {
                let (register, below) = self.probe?;
                let ends = base == register && displacement == i64::from(below);
                ends.then(|| self.row())
            }
            register if base == Register::RSP && !self.allocated => {
                let below = u32::try_from(-displacement).ok().filter(|below| *below != 0)?;
                self.probe = Some((register, below));
                Some(())
            }
            _ => None,
        }
    }

    fn move_register(&mut self, instruction: &Instruction) -> Option<()> {
        if instruction.op0_kind() == OpKind::Memory {
            return self.store(instruction);
        }
        if instruction.op1_kind() != OpKind::Register {
            // What a replaced method does first, see `replaced`.
            let loads = instruction.op1_kind() == OpKind::Memory
                && instruction.memory_base() == Register::RBP;
            return (self.is_replaced() && loads).then_some(());
        }
        match (instruction.op0_register(), instruction.op1_register()) {
            (Register::RBP, Register::RSP) => self.point_at(0),
            (Register::RSP, from) => {
                let (register, below) = self.probe?;
                if from != register || self.allocated {
                    return None;
                }
                self.grow(below)?;
                self.allocated = true;
                self.row();
                Some(())
            }
            _ => None,
        }
    }

    /// A replaced method saves registers by stores.
    fn store(&mut self, instruction: &Instruction) -> Option<()> {
        let saves = self.is_replaced()
            && instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && instruction.op1_kind() == OpKind::Register;
        let place = saves.then(|| instruction.memory_displacement32().checked_add(8)).flatten()?;
        self.stores_end = self.stores_end.max(place);
        Some(())
    }

    /// RBP is set to RSP + `above`. It is a frame pointer when that is where RBP was saved; else
    /// RBP is a register like others, and holds the address of a local.
    fn point_at(&mut self, above: i64) -> Option<()> {
        let saved = i64::from(self.frame.cfa) - i64::from(self.frame.fp_below);
        let frame = Frame::FRAME_POINTER;
        if !self.is_replaced() && self.frame.fp_below == frame.fp_below && above == saved {
            self.frame = frame;
            self.row();
        }
        None
    }

    fn is_replaced(&self) -> bool {
        self.start != Frame::ENTRY
    }

    fn grow(&mut self, by: u32) -> Option<()> {
        self.frame.cfa = self.frame.cfa.checked_add(by).filter(|cfa| *cfa <= i32::MAX as u32)?;
        self.size += by;
        Some(())
    }

    fn row(&mut self) {
        self.rows.add(self.next, self.frame);
    }
}

fn is_about_stack(instruction: &Instruction) -> bool {
    let by_memory = instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.mnemonic() == Mnemonic::Test;
    by_memory || instruction.op0_register() == Register::RSP
}

/// DWARF's number of a register.
fn number(register: Register) -> Option<u8> {
    const ORDER: [Register; 16] = [
        Register::RAX,
        Register::RDX,
        Register::RCX,
        Register::RBX,
        Register::RSI,
        Register::RDI,
        Register::RBP,
        Register::RSP,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    ORDER.iter().position(|known| *known == register).map(|number| number as u8)
}
