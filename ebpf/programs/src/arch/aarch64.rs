//! arm64's `struct user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h): `regs[31]`, `sp`, `pc`,
//! `pstate`.

/// Offsets of what every sample needs.
pub const SAVED_PC: usize = 256;
pub const SAVED_SP: usize = 248;
pub const SAVED_FP: usize = 232;
/// The extra register: the link register.
pub const SAVED_EXTRA: usize = 240;
/// What [`is_user`] and [`is_native`] look at: PSTATE.
pub const SAVED_MODE: usize = 264;

/// The first argument of a function: X0.
pub const SAVED_ARGUMENT: usize = 0;

/// The system call's number, or something negative outside of one (32 bits): `syscallno`.
pub const SAVED_SYSCALL: usize = 280;

/// Of a system call: its result, and its first two arguments (the first one as it was: `orig_x0`).
pub const SAVED_RESULT: usize = 0;
pub const SAVED_FIRST: usize = 272;
pub const SAVED_SECOND: usize = 8;

/// The system calls that make threads (include/uapi/asm-generic/unistd.h).
pub const CLONE: u32 = 220;
pub const CLONE3: u32 = 435;

/// The exception level's bits of PSTATE; 0 is user mode.
const MODE_MASK: u64 = 0xf;
/// A 32-bit program.
const MODE_32_BIT: u64 = 0x10;

/// The registers are those of user mode.
#[inline(always)]
pub fn is_user(mode: u64) -> bool {
    mode & MODE_MASK == 0
}

/// And of a program for this machine, not of a 32-bit one.
#[inline(always)]
pub fn is_native(mode: u64) -> bool {
    mode & (MODE_MASK | MODE_32_BIT) == 0
}

/// Offset of a register by its DWARF number.
#[inline(always)]
pub fn saved_register(number: u8) -> u64 {
    (number as u64 & 31) * 8
}
