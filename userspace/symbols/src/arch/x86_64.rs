//! x86-64.

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
