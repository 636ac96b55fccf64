//! Divides memory among processes: that of their records, that of their code's tables in the kernel, and
//! that of names after their end.
//!
//! Invariant: half of the memory is divided into equal shares, which no other process can take.

use std::time::Duration;

use super::target::Target;
use super::{Managed, names, runtime};

/// Of processes that have ended, in a daemon: the names kept of one, and of all together.
const MOST_KEPT: usize = 4 << 20;
const MOST_KEPT_IN_ALL: usize = 32 << 20;
/// The same in a recording, for one.
const MOST_KEPT_ONCE: usize = 256 << 20;

/// What naming the samples of a process that has ended may take, with `kept` bytes kept of others.
pub(super) fn limits_of_kept(kept: usize, is_bounded: bool) -> names::Limits {
    match is_bounded {
        true => names::Limits {
            bytes: MOST_KEPT_IN_ALL.saturating_sub(kept).min(MOST_KEPT),
            time: Duration::from_millis(50),
            longest: usize::MAX,
        },
        false => names::Limits {
            bytes: MOST_KEPT_ONCE,
            time: Duration::from_secs(5),
            longest: usize::MAX,
        },
    }
}

impl Managed {
    /// What is known of all runtimes may take so many bytes together.
    pub fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Divides the budget: one half in equal shares, so that a process with many records leaves
    /// room for others; the other half goes to the first that need it.
    pub(super) fn divide_budget(&mut self) {
        let half = self.budget / 2;
        let share = half / self.targets.len().max(1);
        let beyond = |target: &Target| target.runtime.bytes().saturating_sub(share);
        let used: usize = self.targets.values().map(beyond).sum();
        let left = (self.budget - half).saturating_sub(used);
        for target in self.targets.values_mut() {
            let own = target.runtime.bytes().max(share);
            target.most_bytes = own.saturating_add(left).min(runtime::MAX_BYTES);
        }
    }

    /// Divides kernel memory likewise: half of it is for generated code at most, so that no runtime
    /// can take the room of files' tables and of other runtimes.
    pub(super) fn divide_table_memory(&mut self, all: u64) {
        let half = all / 4;
        let share = half / self.targets.len().max(1) as u64;
        let beyond = |target: &Target| target.units.bytes().saturating_sub(share);
        let used: u64 = self.targets.values().map(beyond).sum();
        let left = (all / 2 - half).saturating_sub(used);
        for target in self.targets.values_mut() {
            target.most_table_bytes = target.units.bytes().max(share).saturating_add(left);
        }
    }
}
