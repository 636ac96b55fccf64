//! The running processes, and their mappings.
//!
//! - [`table`]: processes and their images, kept up to date by perf events.
//! - `space`: the executable mappings of one process.
//! - [`mapped`]: the files behind mappings, as the kernel names them.
//! - `mapping_events`: the limit on mapping events of a process that maps without end.
//! - [`scan`]: the state at the start, from `/proc`.
//! - [`vdso`]: the kernel's own code page in user mode.
//! - [`credentials`]: which user a process runs as.
//! - [`container`]: container ids from control groups.
//!
//! Invariant: everything here is bounded per process; a process that maps without end loses only
//! its own mappings.

use strata_sandbox::process_text::status_field;

use crate::proc_file;

pub mod container;
pub mod credentials;
pub mod mapped;
mod mapping_events;
pub mod scan;
mod space;
pub mod table;
pub mod vdso;

/// A process's number in its own pid namespace.
pub fn innermost_pid(pid: u32) -> Option<u32> {
    let status = proc_file::text(pid, "status").ok()?;
    status_field(&status, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}
