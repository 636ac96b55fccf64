//! Handlers: where the funclets of a method begin.
//!
//! Catch, filter, finally and fault blocks are functions of their own behind the method's body,
//! called by the runtime or by the body (docs/design/coreclr/botr/clr-abi.md, "Funclets"). RBP is
//! the method's in them, so their own frame counts from RSP. How they begin
//! (`CodeGen::genFuncletProlog`, src/coreclr/jit/codegenxarch.cpp, codegencommon.cpp before):
//!
//! - up to .NET 9: `push rbp`, the saved registers, `sub rsp, N` or `push rax`, and then RBP is
//!   loaded anew through the argument in RDI. A body pushes RBP in its prologue only.
//! - from .NET 10 on: `push rax` or `sub rsp, N`; the caller has set RBP. The stack is 16-byte
//!   aligned before a call, so N is 8 more than a multiple of 16, which distinguishes it from a
//!   `stackalloc`'s.
//!
//! A funclet follows an instruction that nothing runs on from. Code of the CLR has no data in
//! it, so that decoding from the method's start meets every instruction where it begins.
//!
//! Invariant: one pass over the bytes, and a second only if the first has found a candidate.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

const PUSH_RBP: u8 = 0x55;
const PUSH_RAX: u8 = 0x50;
/// Behind the prefix and the opcode of an instruction that subtracts from RSP.
const SUB_RSP: u8 = 0xec;

/// Offsets of the funclets in a method's code (as much of it as there is), ascending.
pub(super) fn starts(code: &[u8], from: u32) -> Vec<u32> {
    let mut starts = Vec::new();
    let from = from as usize;
    if !has_candidate(code, from) {
        return starts;
    }
    let bytes = code.get(from..).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, from as u64, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut ended = false;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if ended && begins_funclet(&instruction) {
            starts.push(instruction.ip() as u32);
        }
        ended = matches!(
            instruction.mnemonic(),
            Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Int3 | Mnemonic::Ud2
        );
    }
    starts
}

fn begins_funclet(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => {
            instruction.op0_kind() == OpKind::Register
                && matches!(instruction.op0_register(), Register::RBP | Register::RAX)
        }
        Mnemonic::Sub => {
            let by_number =
                matches!(instruction.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
            by_number
                && instruction.op0_register() == Register::RSP
                && instruction.immediate(1) % 16 == 8
        }
        _ => false,
    }
}

/// Some bytes look like a funclet's first instruction behind one that nothing runs on from.
fn has_candidate(code: &[u8], from: usize) -> bool {
    let bytes = code.get(from..).unwrap_or_default();
    // The last byte of `sub rsp`, because its first is that of many instructions.
    memchr::memchr3_iter(PUSH_RBP, PUSH_RAX, SUB_RSP, bytes).any(|at| {
        let at = from + at;
        let begins = match code.get(at) {
            Some(&SUB_RSP) => at.checked_sub(2).filter(|begins| {
                *begins >= from && matches!(code.get(*begins..), Some([0x48, 0x83 | 0x81, ..]))
            }),
            _ => Some(at),
        };
        begins.and_then(|at| code.get(..at)).is_some_and(may_end_a_block)
    })
}

/// `code` may end in a return, a breakpoint or a jump. Too much is better than too little.
fn may_end_a_block(code: &[u8]) -> bool {
    matches!(
        code,
        // ret; int3; ud2; jmp rel8; jmp rel32
        [.., 0xc3 | 0xcc]
            | [.., 0x0f, 0x0b]
            | [.., 0xeb, _]
            | [.., 0xe9, _, _, _, _]
            // jmp register; jmp [register]; with one byte of displacement, without and with SIB
            | [.., 0xff, 0xe0..=0xe7 | 0x20..=0x27]
            | [.., 0xff, 0x60..=0x67 | 0x24, _]
            | [.., 0xff, 0x64, _, _]
            // jmp [rip + displacement]; jmp [register + displacement]; the same with SIB
            | [.., 0xff, 0x25 | 0xa0..=0xa7, _, _, _, _]
            | [.., 0xff, 0x24 | 0xa4, _, _, _, _, _]
    )
}
