//! The `stat` family for glibc before 2.33, where these functions were not exported: the system
//! calls themselves. See `build/stand_ins.rs` for the reason.
//!
//! The symbols are hidden, so they replace no other library's `fstat`.

use std::arch::global_asm;

// Each takes two arguments that are already where the system call wants them (x86-64 ABI, A.2.1),
// and the kernel's `struct stat` is the C library's. Errors come back as small negative numbers.
global_asm!(
    ".macro strata_system_call name, number",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    "mov eax, \\number",
    "syscall",
    "test rax, rax",
    "js strata_system_call_failed",
    "ret",
    ".endm",
    ".pushsection .text.strata_old_glibc, \"ax\", @progbits",
    "strata_system_call stat64, 4",
    "strata_system_call fstat, 5",
    "strata_system_call fstat64, 5",
    "strata_system_call lstat64, 6",
    "strata_system_call_failed:",
    "neg eax",
    "push rax",
    "call __errno_location@PLT",
    "pop rcx",
    "mov [rax], ecx",
    "mov eax, -1",
    "ret",
    ".popsection",
);
