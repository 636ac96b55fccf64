//! Stubs: code that the CLR writes without its compiler, and that no unwind information describes.
//!
//! They are called and then jump on, so most have no frame at all. Two kinds push something in
//! between, for calls through interfaces (src/coreclr/vm/amd64/virtualcallstubcpu.hpp,
//! `ResolveStub` and `LookupStub`; up to .NET 5 src/vm/amd64). Both are written from one template.
//!
//! Invariant: a stub's stack is followed from jump to jump; nothing else of it is trusted.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use strata_abi::rule::{Kind, Packed, Rule};

use crate::managed::Stub;

pub(crate) const STUB_REACH: usize = RESOLVE;

const RESOLVE: usize = 0x70;
const LOOKUP: usize = 24;
/// More than any stub pushes.
const DEEPEST: u32 = 64;

/// See [`crate::managed::stub_at`].
pub(crate) fn stub_at(code: &[u8], at: usize) -> Option<Stub> {
    let first = (at + 1).saturating_sub(RESOLVE);
    (first..=at).rev().find_map(|start| {
        let bytes = code.get(start..)?;
        let size = size_of_stub(bytes).filter(|size| at < start + size)?;
        let rules = frames(bytes.get(..size)?, 0)
            .into_iter()
            .map(|(offset, word)| (offset, Rule::simple(word)))
            .collect();
        Some(Stub { start, size: size as u32, rules })
    })
}

/// The size of the stub that the bytes start with.
fn size_of_stub(bytes: &[u8]) -> Option<usize> {
    match bytes {
        // push rdx; mov r10, N; mov rax, [rdi] up to .NET 5
        [0x52, 0x49, 0xba, _, _, _, _, _, _, _, _, 0x48, 0x8b, 0x07, ..]
        // mov rax, [rdi]; push rdx; mov r10, N; mov rdx, rax
        | [0x48, 0x8b, 0x07, 0x52, 0x49, 0xba, _, _, _, _, _, _, _, _, 0x48, 0x8b, 0xd0, ..] => {
            Some(RESOLVE)
        }
        // nop; mov rax, N; push rax; mov rax, N; jmp rax
        [
            0x90, 0x48, 0xb8, _, _, _, _, _, _, _, _, 0x50,
            0x48, 0xb8, _, _, _, _, _, _, _, _, 0xff, 0xe0, ..
        ] => Some(LOOKUP),
        _ => None,
    }
}

/// The frames of stubs that lie one behind the other: each starts just after a call, and ends
/// with a jump.
pub(super) fn frames(bytes: &[u8], start: u32) -> Vec<(u32, Packed)> {
    let mut decoder = Decoder::with_ip(64, bytes, start.into(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut depth = 8;
    let mut frames: Vec<(u32, Packed)> = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let rule = Packed::frame(Kind::Sp, depth, 0, 0).unwrap_or(Packed::UNSUPPORTED);
        if frames.last().is_none_or(|(_, last)| *last != rule) {
            frames.push((instruction.ip() as u32, rule));
        }
        match instruction.mnemonic() {
            Mnemonic::Push => depth = (depth + 8).min(DEEPEST),
            Mnemonic::Pop => depth = (depth - 8).max(8),
            Mnemonic::Jmp | Mnemonic::Int3 => depth = 8,
            _ => {}
        }
    }
    frames
}
