//! What the BPF programs know of the machine: where `struct pt_regs` has what. One file for each;
//! which is compiled says `bpf_target_arch`, as in `strata_abi::arch`.

#[cfg(bpf_target_arch = "aarch64")]
mod aarch64;
#[cfg(bpf_target_arch = "x86_64")]
mod x86_64;

#[cfg(bpf_target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(bpf_target_arch = "x86_64")]
pub use x86_64::*;
