//! What the unwinder knows of the machine: one directory for each.
//!
//! A program is unwound on the machine it runs on, so one directory is compiled: that of the
//! target, or for the BPF programs that of the kernel they are built for (`bpf_target_arch`, set
//! by the build). Every directory has the same items:
//!
//! | item | is |
//! |---|---|
//! | `register` | DWARF numbers: `SP`, `FP`, `EXTRA`, and `COUNT` of general registers |
//! | `step` | what a rule does to a frame |
//! | `epilogue` | the code around a pc that a step may look at: `Code`, `BYTES_BEFORE`; `trampoline`, `TRAMPOLINE_BEFORE`, `code_after_call` |
//! | `USER_ADDRESSES` | addresses of programs are below this |
//!
//! The BPF programs (`ebpf/programs/src/arch`) and the crates that read code (`strata-unwind`,
//! `strata-symbols`) have directories of the same names for what they alone need.
//!
//! Invariant: outside of directories named `arch`, the unwinder names no register and no
//! instruction.

#[cfg(not(any(
    target_arch = "aarch64",
    target_arch = "x86_64",
    bpf_target_arch = "aarch64",
    bpf_target_arch = "x86_64"
)))]
compile_error!("strata has no directory `arch` for this machine");

#[cfg(any(target_arch = "aarch64", bpf_target_arch = "aarch64"))]
mod aarch64;
#[cfg(any(target_arch = "x86_64", bpf_target_arch = "x86_64"))]
mod x86_64;

#[cfg(any(target_arch = "aarch64", bpf_target_arch = "aarch64"))]
pub use aarch64::*;
#[cfg(any(target_arch = "x86_64", bpf_target_arch = "x86_64"))]
pub use x86_64::*;
