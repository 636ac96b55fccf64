//! x86-64.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use strata_bytes::array;

/// `EM_X86_64`.
pub const ELF_MACHINE: u16 = 62;
/// Relocations that fill slots (`R_X86_64_*`; System V ABI, AMD64 supplement).
pub const GLOBAL_DATA: u32 = 6;
pub const JUMP_SLOT: u32 = 7;
pub const IRELATIVE: u32 = 37;

/// The slot that the indirect jump (`ff 25`, relative to the next instruction) of a stub goes through.
pub fn slot_of_stub(code: &[u8], address: u64) -> Option<u64> {
    let at = code.windows(2).position(|pair| pair == [0xff, 0x25])?;
    let distance = i32::from_le_bytes(array(code, at.checked_add(2)?)?);
    address
        .checked_add(u64::try_from(at).ok()?)?
        .checked_add(6)?
        .checked_add_signed(i64::from(distance))
}

/// Where the function ends whose code begins with these bytes, at this address: behind the first
/// instruction that does not go on and that no branch before it leads past. `None` where its own
/// instructions do not tell, or it is longer than these bytes.
pub fn end_of_function(code: &[u8], start: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let last = start.checked_add(code.len() as u64)?;
    let mut furthest = start;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let goes_to = instruction.near_branch_target();
        let is_near = instruction.op0_kind() == OpKind::NearBranch64;
        let is_jump = instruction.mnemonic() == Mnemonic::Jmp;
        // To other parts of the function, by a table.
        if is_jump && !is_near {
            return None;
        }
        // Forward within the function, or another function's beginning.
        let near = decoder.ip()..decoder.ip().saturating_add(NEAR);
        let is_branch = is_near && !is_jump && instruction.mnemonic() != Mnemonic::Call;
        if is_branch || is_jump && near.contains(&goes_to) {
            furthest = furthest.max(goes_to);
        }
        let does_not_return =
            [Mnemonic::Ret, Mnemonic::Retf, Mnemonic::Ud2, Mnemonic::Hlt, Mnemonic::Int3];
        let ends = is_jump || does_not_return.contains(&instruction.mnemonic());
        if instruction.is_invalid() || furthest >= last {
            return None;
        }
        if ends && furthest < decoder.ip() {
            return Some(decoder.ip());
        }
    }
    None
}

/// A jump forward that is no longer may stay in its function: an end that is found too late costs less
/// than one that is found too early.
const NEAR: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::end_of_function;

    #[test]
    fn a_function_ends_where_it_does_not_go_on() {
        let end = |code: &[u8]| end_of_function(code, 0x1000);
        // ret; nop
        assert_eq!(end(&[0xc3, 0x90]), Some(0x1001));
        // endbr64; jmp backward; what lies behind
        assert_eq!(end(&[0xf3, 0x0f, 0x1e, 0xfa, 0xeb, 0x80, 0x55, 0xc3]), Some(0x1006));
        // je +1; ret; ret; push rbp
        assert_eq!(end(&[0x74, 0x01, 0xc3, 0xc3, 0x55]), Some(0x1004));
        // jmp +1 over data; ret
        assert_eq!(end(&[0xeb, 0x01, 0xcc, 0xc3, 0x55]), Some(0x1004));
        // jmp rax
        assert_eq!(end(&[0xff, 0xe0, 0xc3]), None);
        // je beyond what is there; ret
        assert_eq!(end(&[0x74, 0x40, 0xc3]), None);
        assert_eq!(end(&[0x90, 0x90]), None);
    }
}
