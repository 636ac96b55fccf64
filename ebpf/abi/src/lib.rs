//! Everything that crosses the kernel boundary, defined once.
//!
//! - [`rule`]: how the caller of one instruction is found, packed for the kernel.
//! - [`step`]: the unwinder's step, over a [`step::Machine`]: the BPF programs and
//!   userspace (post-hoc unwinding, tests that single-step a program) run the same code.
//! - [`arch`]: what both know of the machine.
//! - [`context`]: the thread contexts that a process publishes, as the sampler reads them.
//! - [`tables`]: segments, extents and process entries, the memory the kernel searches.
//! - [`record`]: what the kernel sends up, and the loss counters.
//! - [`memory`]: the programs' working memory, with the counters that userspace reads.
//! - [`wait_pace`]: which of a thread's switches the off-CPU sampler chooses, and what it may spend on them.
//! - [`wait_slots`]: where it keeps what it knows of a thread.
//!
//! Invariant: every type here is `repr(C)`, free of padding and checked for its size at
//! compile time. `no_std`, no dependency: it is compiled for BPF as well.
#![no_std]

pub mod arch;
pub mod context;
pub mod memory;
pub mod record;
pub mod rule;
pub mod step;
pub mod tables;
pub mod wait_pace;
pub mod wait_slots;

pub use arch::{epilogue, register};
