//! strata's BPF programs.
//!
//! - [`maps`]: the memory shared with userspace, and the settings it patches in before loading.
//! - [`unwind`]: the one unwinder, for every program: finds rules, walks frames.
//! - [`sampler`]: the CPU sampler (`perf_event`).
//! - [`go_stacks`]: the second stack of a thread of a Go program, for stacks sent raw.
//! - [`probed`]: addresses that the kernel has replaced for probes of any tool.
//! - [`off_cpu`]: the off-CPU sampler (`tp_btf`).
//! - [`clr_events`]: events that the CLR bridge reports (`uprobe`).
//! - [`threads`]: stacks of threads that do not run (`iter.s/task`).
//! - [`task`]: fields of the kernel's threads. [`arch`]: what they know of the machine.
//! - [`kernel_names`]: names of the kernel's functions, on request.
//! - [`lifecycle`]: forgets a process's mappings the moment it executes another program.
//!
//! Invariant: nothing here trusts what it reads from a process; every index is masked, every
//! loop bounded, every failure counted.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "core has no atomic exchange for the BPF target")]

mod arch;
mod clr_events;
mod context;
mod go_stacks;
mod kernel_names;
mod lifecycle;
mod maps;
mod off_cpu;
mod probed;
mod sampler;
mod task;
mod threads;
mod unwind;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

// The kernel reads this section to decide which helpers the programs may call; these need GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
