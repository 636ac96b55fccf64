//! arm64: stubs are not decoded yet, and so have no names.

/// `EM_AARCH64`.
pub const ELF_MACHINE: u16 = 183;
/// Relocations that fill slots (`R_AARCH64_*`; ELF for the Arm 64-bit Architecture).
pub const GLOBAL_DATA: u32 = 1025;
pub const JUMP_SLOT: u32 = 1026;
pub const IRELATIVE: u32 = 1032;

pub fn slot_of_stub(_code: &[u8], _address: u64) -> Option<u64> {
    None
}

/// Instructions of this machine are not read for it.
pub fn end_of_function(_code: &[u8], _start: u64) -> Option<u64> {
    None
}
