//! All access to the kernel's BPF and perf interfaces.
//!
//! - [`loader`]: the only module that knows aya: loads the programs, owns the maps.
//! - [`broker`]: the process that keeps CAP_SYS_ADMIN; [`perf_event`]: opens perf events.
//! - [`introspect`]: what programs and maps use; [`type_info`]: the kernel's own types.
//! - [`names`]: names of the kernel's functions; [`functions`]: where one lies.
//! - `libelf`: what a static libelf lacks, where it does.
//! - [`memory`]: segments and other mmapable maps as plain memory.
//! - [`probes`]: a program at an address of one process.
//! - [`sideband`]: perf events about processes (MMAP2, COMM, FORK, EXIT), and [`perf_record`],
//!   the parser of their records.
//! - [`thread_reader`]: the process that reads the iterator over threads.

pub mod broker;
pub mod functions;
pub mod introspect;
#[cfg(libelf_without_search_tree)]
mod libelf;
pub mod loader;
pub mod memory;
pub mod names;
pub mod perf_event;
pub mod perf_record;
pub mod probes;
pub mod sideband;
pub mod thread_reader;
pub mod type_info;
