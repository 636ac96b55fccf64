//! Unwind tables in kernel memory.
//!
//! - [`arena`]: words in segments: allocated, freed, reused after a grace period.
//! - [`segments`]: the segments' memory, and its limit.
//! - [`rule_set`]: the global 16-bit rule numbers, shared between files, with quotas.
//! - [`extents`]: how a process's mappings lead to files' tables.
//! - `blocks`: the extents of processes, shared by those that map the same.
//! - [`store`]: processes, published to the kernel and evicted, and files' tables.
//! - [`search`]: userspace's search in the same memory, for deferred samples.
//!
//! Invariant: nothing a published process entry can reach changes until the entry was replaced
//! and the grace period has passed.

pub mod arena;
mod blocks;
pub mod extents;
pub mod rule_set;
pub mod search;
pub mod segments;
pub mod store;

use std::time::Duration;

/// How long the kernel may still use what a replaced process entry pointed to. One unwind takes
/// microseconds; a preempted virtual CPU may take much longer.
pub const GRACE: Duration = Duration::from_secs(2);
