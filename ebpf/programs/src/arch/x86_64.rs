//! x86-64's `struct pt_regs` (arch/x86/include/asm/ptrace.h; the order is ABI).

use strata_abi::register;

/// Offsets of what every sample needs.
pub const SAVED_PC: usize = 128;
pub const SAVED_SP: usize = 152;
pub const SAVED_FP: usize = 32;
/// The extra register: RBX.
pub const SAVED_EXTRA: usize = 40;
/// What [`is_user`] and [`is_native`] look at: CS.
pub const SAVED_MODE: usize = 136;

/// The first argument of a function (System V ABI): RDI.
pub const SAVED_ARGUMENT: usize = 112;

/// The system call's number, or something negative outside of one (32 bits): ORIG_RAX.
pub const SAVED_SYSCALL: usize = 120;

/// Of a system call: its result (-ENOSYS until it has one), and its first two arguments.
pub const SAVED_RESULT: usize = 80;
pub const SAVED_FIRST: usize = 112;
pub const SAVED_SECOND: usize = 104;

/// The system calls that make threads (arch/x86/entry/syscalls/syscall_64.tbl).
pub const CLONE: u32 = 56;
pub const CLONE3: u32 = 435;

/// Code segment of 64-bit user mode (arch/x86/include/asm/segment.h).
const USER64_CS: u64 = 0x33;

/// The registers are those of user mode.
#[inline(always)]
pub fn is_user(mode: u64) -> bool {
    mode & 3 != 0
}

/// And of a program for this machine, not of a 32-bit one.
#[inline(always)]
pub fn is_native(mode: u64) -> bool {
    mode & 0xffff == USER64_CS
}

/// Offset of a register by its DWARF number.
#[inline(always)]
pub fn saved_register(number: u8) -> u64 {
    match number {
        0 => 80,             // rax
        1 => 96,             // rdx
        2 => 88,             // rcx
        register::RBX => 40, // rbx
        4 => 104,            // rsi
        5 => 112,            // rdi
        register::RBP => 32, // rbp
        register::RSP => 152,
        8..=11 => (17 - number as u64) * 8,
        _ => (15 - (number as u64 & 15)) * 8, // r12..r15
    }
}
