//! Drops files without references, and tables that no process needs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use strata_sandbox::FileIdentity;

use super::{Loading, NO_ROOM_FOR, State, TableKey, TableState};
use crate::processes::mapped::FileId;
use crate::tables::store::Store;

/// Whether the reasons why files have no table survive the dropping of tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reasons {
    Stay,
    Go,
}

impl Loading {
    /// Drops files without references, and their tables.
    pub fn retain(&mut self, store: &mut Store, is_kept: impl Fn(FileId) -> bool) {
        self.entries.retain(|file, _| is_kept(*file));
        let wanted: HashSet<FileIdentity> = self
            .entries
            .values()
            .filter_map(|entry| match &entry.state {
                State::Opened(opened) => Some(opened.identity()),
                _ => None,
            })
            .collect();
        let is_wanted =
            |key: &TableKey| wanted.contains(&key.identity) && key.only_for.is_none_or(&is_kept);
        self.bundles.retain(is_wanted);
        self.table_tries.retain(|key, _| is_wanted(key));
        self.drop_tables(store, |key| !is_wanted(key), Reasons::Go);
    }

    /// Drops tables that only this module still refers to.
    pub fn release_unused(&mut self, store: &mut Store) {
        store.evicted += self.drop_tables(store, |_| true, Reasons::Stay);
    }

    /// Whether tables refused for lack of room may be tried again.
    pub fn take_second_chances(&mut self) -> bool {
        let before = self.tables.len();
        self.tables.retain(|_, state| {
            !matches!(state, TableState::NoRoom(since) if since.elapsed() >= NO_ROOM_FOR)
                && !matches!(
                    state,
                    TableState::Later(until) | TableState::NoAnswer { again: until, .. }
                        if *until <= Instant::now()
                )
        });
        self.tables.len() < before
    }

    /// Drops tables that no process is published with; returns how many were loaded.
    fn drop_tables(
        &mut self,
        store: &mut Store,
        is_dropped: impl Fn(&TableKey) -> bool,
        reasons: Reasons,
    ) -> u64 {
        let mut unloaded = 0;
        self.tables.retain(|key, state| {
            if !is_dropped(key) {
                return true;
            }
            match state {
                TableState::Building => true,
                TableState::None(_)
                | TableState::NoAnswer { .. }
                | TableState::NoRoom(_)
                | TableState::Later(_) => reasons == Reasons::Stay,
                TableState::Loaded(table) if Arc::strong_count(table) > 1 => true,
                TableState::Loaded(_) => {
                    let taken = std::mem::replace(state, TableState::Building);
                    if let TableState::Loaded(table) = taken
                        && let Ok(table) = Arc::try_unwrap(table)
                    {
                        store.unload(table);
                        unloaded += 1;
                    }
                    false
                }
            }
        });
        unloaded
    }

    /// Runs the service's timers: deadlines, idle children.
    pub fn sweep(&mut self) {
        let now = Instant::now();
        self.allowances.retain(|_, allowance| !allowance.is_full(now));
        if self.asked.is_empty() {
            // Nothing is waited for: what comes is housekeeping.
            self.service.drain();
        }
    }
}
