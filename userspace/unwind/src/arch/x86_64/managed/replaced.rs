//! Methods that replace a running, unoptimised frame of themselves (on-stack replacement, since
//! .NET 7).
//!
//! The replacement is entered by a jump, with RBP the replaced frame's and RSP 8 bytes below it, as
//! if called. The replaced frame stays where it is until the replacement returns, and its return
//! address is the one of both. The compiled prologue does not contain its size
//! (docs/design/features/OSRX64EpilogRedesign.md, "Example"):
//!
//! ```text
//! mov rax, [rbp]; push rax       in methods with a frame pointer: the caller's RBP once more
//! sub rsp, 0x30
//! mov [rsp + 0x98], r15; …       saved below what the replaced frame has saved
//! lea rbp, [rsp + 0x30]
//! …
//! add rsp, 0x78; pop rbx; pop r12; pop r13; pop r14; pop r15; pop rbp; ret
//! ```
//!
//! The epilogue gives up both frames at once: with its pops it is the distance to the return
//! address. A method that never returns has none; then the size comes from the replaced method's
//! own prologue, and failing that from the saved registers' offset: the replaced frame has saved at
//! least RBP, just above them.
//!
//! Invariant: RBP is saved at CFA - 16, by the prologue of the replaced frame.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use strata_abi::rule::{Packed, Rule};

use super::frame::{Base, Frame, Rows};
use super::prologue::{self, Prologue};

/// RBP below the CFA.
const FP_BELOW: u32 = 16;
/// A replaced frame has at least a return address, RBP, and the 8 bytes of the call that is
/// not one.
const LEAST: u32 = 24;

/// Rows of a replacement's body. `body` is its code without its funclets.
pub(super) fn rows(body: &[u8], replaced_frame: Option<u32>, rows: &mut Rows) {
    let relative = Frame { base: Base::Sp, cfa: LEAST, fp_below: FP_BELOW };
    let prologue = prologue::follow(body, 0, relative, &mut Rows::default());
    let entry = by_epilogue(body, &prologue).or(replaced_frame).or_else(|| by_stores(&prologue));
    match entry.filter(|cfa| *cfa >= LEAST && cfa % 8 == 0) {
        Some(cfa) => {
            prologue::follow(body, 0, Frame { cfa, ..relative }, rows);
        }
        None => rows.add_rule(0, Rule::simple(Packed::UNSUPPORTED)),
    }
}

/// The distance from RSP to the CFA at the replacement's entry, from its first epilogue.
fn by_epilogue(body: &[u8], prologue: &Prologue) -> Option<u32> {
    let mut decoder = Decoder::with_ip(64, body, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    // Since RSP was set, and whether RBP was the last register popped.
    let mut given_up: Option<u32> = None;
    let mut fp_last = false;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match (instruction.mnemonic(), given_up) {
            (Mnemonic::Add, _) if instruction.op0_register() == Register::RSP => {
                let by_number =
                    matches!(instruction.code(), Code::Add_rm64_imm8 | Code::Add_rm64_imm32);
                given_up = by_number.then(|| u32::try_from(instruction.immediate(1)).ok())?;
                fp_last = false;
            }
            (Mnemonic::Pop, Some(size)) => {
                given_up = size.checked_add(8);
                fp_last = instruction.op0_register() == Register::RBP;
            }
            (_, Some(size)) => {
                let leaves = matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::Jmp);
                if leaves && fp_last {
                    return size.checked_add(8)?.checked_sub(prologue.size);
                }
                given_up = None;
            }
            (_, None) => {}
        }
    }
    None
}

/// The distance from RSP to the CFA at the entry of a replacement of this code.
pub(crate) fn replaceable_frame(replaced: &[u8]) -> Option<u32> {
    if replaced.is_empty() {
        return None;
    }
    let mut rows = Rows::default();
    frame_of(&prologue::follow(replaced, 0, Frame::ENTRY, &mut rows))
}

/// The same of a method that has this prologue.
pub(super) fn frame_of(prologue: &Prologue) -> Option<u32> {
    // What it has pushed and allocated, the return address, and the 8 bytes of the call that is
    // not one.
    (prologue.frame.base == Base::Fp).then(|| prologue.size.checked_add(16))?
}

fn by_stores(prologue: &Prologue) -> Option<u32> {
    let end = Some(prologue.stores_end).filter(|end| *end != 0)?;
    end.checked_add(16)?.checked_sub(prologue.size)
}
