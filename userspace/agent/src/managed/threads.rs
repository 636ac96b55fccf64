//! The names of one process's managed threads, as long as the threads live, and until what was sampled
//! before is taken.
//!
//! The kernel's name of a thread is cut at 15 bytes, and .NET Core 3.1 sets none.

use strata_bridge_protocol::record::ThreadRecord;

use super::text_bytes;
use crate::hash::HashMap;

/// What a thread takes besides its name.
const ENTRY: usize = 2 * size_of::<(u64, u32)>();
/// What a name takes besides its text.
const NAME: usize = 2 * size_of::<(u32, u64, Box<str>)>();

#[derive(Default)]
pub struct ThreadNames {
    /// By the thread's number in the process's own namespace: its id, and its name.
    names: HashMap<u32, (u64, Box<str>)>,
    /// By the runtime's id.
    numbers: HashMap<u64, u32>,
    /// Names of threads that have ended, by the thread's number.
    ended: HashMap<u32, Box<str>>,
    bytes: usize,
}

impl ThreadNames {
    /// Adds a thread, or its new name.
    pub fn add(&mut self, record: ThreadRecord) {
        let ThreadRecord { managed_id, os_tid, name } = record;
        self.take(managed_id);
        if name.is_empty() {
            return;
        }
        self.bytes += ENTRY + size_of_name(&name);
        self.numbers.insert(managed_id, os_tid);
        // The number of another that has ended.
        if let Some((_, before)) = self.names.insert(os_tid, (managed_id, name.into())) {
            self.bytes = self.bytes.saturating_sub(size_of_name(&before));
        }
    }

    /// A thread has ended: its name stays until [`Self::forget_ended`].
    pub fn remove(&mut self, managed_id: u64) {
        let Some((tid, name)) = self.take(managed_id) else { return };
        self.bytes += size_of_name(&name);
        if let Some(before) = self.ended.insert(tid, name) {
            self.bytes = self.bytes.saturating_sub(size_of_name(&before));
        }
    }

    fn take(&mut self, managed_id: u64) -> Option<(u32, Box<str>)> {
        let tid = self.numbers.remove(&managed_id)?;
        self.bytes = self.bytes.saturating_sub(ENTRY);
        self.names.get(&tid).filter(|(id, _)| *id == managed_id)?;
        let (_, name) = self.names.remove(&tid)?;
        self.bytes = self.bytes.saturating_sub(size_of_name(&name));
        Some((tid, name))
    }

    /// All that was sampled while the threads lived that have ended was taken.
    pub fn forget_ended(&mut self) {
        for (_, name) in std::mem::take(&mut self.ended) {
            self.bytes = self.bytes.saturating_sub(size_of_name(&name));
        }
    }

    /// Keeps the names of these threads only.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.numbers.keys().copied().filter(|id| !is_there(*id)).collect();
        gone.into_iter().for_each(|id| self.remove(id));
    }

    pub fn get(&self, tid: u32) -> Option<&str> {
        let name = self.names.get(&tid).map(|(_, name)| name);
        name.or_else(|| self.ended.get(&tid)).map(|name| &**name)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn size_of_name(name: &str) -> usize {
    NAME + text_bytes(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(managed_id: u64, os_tid: u32, name: &str) -> ThreadRecord {
        ThreadRecord { managed_id, os_tid, name: name.into() }
    }

    #[test]
    fn a_thread_has_its_last_name_until_it_ends() {
        let mut threads = ThreadNames::default();
        threads.add(thread(1, 7, "first"));
        let once = threads.bytes();
        for _ in 0..1000 {
            threads.add(thread(1, 7, "other"));
        }
        assert_eq!((threads.get(7), threads.bytes()), (Some("other"), once));
        // Its number was given to another before its end was reported.
        threads.add(thread(2, 7, "later"));
        assert_eq!((threads.get(7), threads.bytes()), (Some("later"), once + ENTRY));
        threads.remove(1);
        assert_eq!((threads.get(7), threads.bytes()), (Some("later"), once));
        threads.remove(2);
        assert_eq!((threads.get(7), threads.bytes()), (Some("later"), once - ENTRY));
        // What it was sampled with is taken.
        threads.forget_ended();
        assert_eq!((threads.get(7), threads.bytes()), (None, 0));
        threads.add(thread(3, 8, ""));
        assert_eq!((threads.get(8), threads.bytes()), (None, 0));
    }

    #[test]
    fn every_thread_that_a_process_claims_is_counted() {
        let mut threads = ThreadNames::default();
        for id in 0..10_000 {
            threads.add(thread(id, 7, "name"));
        }
        assert!(threads.bytes() >= 10_000 * ENTRY);
        (0..10_000).for_each(|id| threads.remove(id));
        threads.forget_ended();
        assert!(threads.numbers.is_empty() && threads.names.is_empty() && threads.bytes() == 0);
    }
}
