//! Machine-specific code for symbolizing PLT stubs: one file for each machine, with the same items.
//! Which one is compiled decides the target, because programs are profiled on the machine they run
//! on.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
