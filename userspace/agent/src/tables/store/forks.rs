//! Processes that are forked: the kernel gives each its parent's entry, until it executes a program.
//!
//! Invariant: a process keeps the entry that it was given if its parent still has that one when the fork is
//! known. What the parent has mapped since may be something else in the child.

use std::time::Instant;

use strata_abi::tables::MAX_INHERITED;

use super::{Owner, Store};
use crate::clock::monotonic_nanos;
use crate::kernel::loader::Programs;

impl Store {
    /// A process was forked. Where it was given its parent's entry, and that still has it, both are
    /// published with it. What the parent has mapped since may be something else in the child.
    pub fn forked(&mut self, programs: &mut Programs, pid: u32, parent: u32) {
        self.forks += 1;
        if self.forks >= MAX_INHERITED / 4 {
            self.allow_inheriting(programs);
        }
        // A pid may be reused before its last owner was evicted.
        self.withdraw(programs, pid);
        // It may have executed a program since, and has none then.
        let Some(given) = programs.inherited_by(pid) else { return };
        let owner = self
            .owners
            .get(&parent)
            .filter(|owner| self.blocks.get(owner.block).is_some_and(|block| block.is_of(&given)));
        match owner.cloned() {
            Some(owner) => {
                self.blocks.add_user(owner.block);
                self.owners.insert(
                    pid,
                    Owner { last_used: Instant::now(), since: monotonic_nanos(), ..owner },
                );
            }
            None => programs.remove_process(pid),
        }
    }

    /// Entries that processes were given are seen to: as many more may be given.
    pub fn allow_inheriting(&mut self, programs: &mut Programs) {
        if std::mem::take(&mut self.forks) > 0 {
            programs.allow_inheriting();
        }
    }

    /// Withdraws entries that processes were given and that nothing is known of: events were lost.
    pub fn withdraw_inherited(&mut self, programs: &mut Programs) {
        for pid in programs.inheritors() {
            if !self.owners.contains_key(&pid) && !self.skipped.contains_key(&pid) {
                programs.remove_process(pid);
            }
        }
        programs.allow_inheriting();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{PID, publish, store};
    use super::*;
    use crate::kernel::loader::{Settings, ThreadsOf};

    /// A process that goes on with this one's memory, until it is killed.
    struct Forked(u32);

    impl Forked {
        fn new() -> Self {
            // SAFETY: the child does nothing but wait.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                loop {
                    // SAFETY: takes nothing.
                    unsafe { libc::pause() };
                }
            }
            Self(u32::try_from(pid).expect("a process"))
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            // SAFETY: a child of this process that was not waited for.
            unsafe {
                libc::kill(self.0 as i32, libc::SIGKILL);
                libc::waitpid(self.0 as i32, std::ptr::null_mut(), 0);
            }
        }
    }

    /// A store that has published this process, whose children are given its entry.
    fn publishing() -> (Store, Programs, u32) {
        let settings = Settings { threads_of: ThreadsOf::All, ..Settings::of_tests() };
        let (mut store, mut programs) = (store(), Programs::load(settings).expect("as root"));
        let own = std::process::id();
        publish(&mut store, &mut programs, own, 0x1000);
        (store, programs, own)
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_process_that_is_forked_has_its_parents_entry_until_it_executes_a_program() {
        let (mut store, mut programs, parent) = publishing();
        let of_parent = |programs: &Programs| programs.process(parent);
        let child = Forked::new();
        assert!(of_parent(&programs).is_some());
        assert_eq!(
            programs.process(child.0),
            of_parent(&programs),
            "before anything is known of it"
        );
        store.forked(&mut programs, child.0, parent);
        assert_eq!(programs.process(child.0), of_parent(&programs));
        assert!(store.is_published(child.0));
        // The parent's end leaves it what both had.
        store.withdraw(&mut programs, parent);
        store.reclaim();
        assert_eq!(store.blocks.count(), 1);
        store.withdraw(&mut programs, child.0);
        assert!(store.blocks.count() == 0 && programs.process(child.0).is_none());

        // What the child has is released before that is known.
        publish(&mut store, &mut programs, parent, 0x1000);
        let child = Forked::new();
        publish(&mut store, &mut programs, parent, 0x10_0000);
        assert!(programs.process(child.0).is_some_and(|given| Some(given) != of_parent(&programs)));
        store.forked(&mut programs, child.0, parent);
        assert!(programs.process(child.0).is_none() && !store.is_published(child.0));

        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        // The call returns a moment before the program is there.
        let until = Instant::now() + Duration::from_secs(20);
        while programs.process(other.id()).is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        store.forked(&mut programs, other.id(), parent);
        assert!(programs.process(other.id()).is_none() && !store.is_published(other.id()));
        other.kill().and_then(|()| other.wait()).expect("it ends");

        // Its event was lost, and the parent is not known any more.
        let (lost, late) = (Forked::new(), Forked::new());
        assert!(programs.process(lost.0).is_some() && programs.process(late.0).is_some());
        store.withdraw(&mut programs, parent);
        store.forked(&mut programs, late.0, parent);
        assert!(programs.process(late.0).is_none() && programs.process(lost.0).is_some());
        store.withdraw_inherited(&mut programs);
        assert!(programs.process(lost.0).is_none());
        store.skip(&mut programs, parent);
        let of_skipped = Forked::new();
        assert!(programs.process(of_skipped.0).is_none());
    }

    /// Needs root, and loads the programs.
    #[test]
    fn one_that_forks_without_end_does_not_take_the_entries_of_all() {
        let (mut store, mut programs, parent) = publishing();
        let is_given = |programs: &Programs| programs.process(Forked::new().0).is_some();
        assert!(is_given(&programs));
        programs.set_inherited(MAX_INHERITED - 2);
        // Of two, as other tests start processes too.
        let given = (0..5).filter(|_| is_given(&programs)).count();
        assert!(given <= 2, "{given}");
        store.forked(&mut programs, PID, parent);
        store.allow_inheriting(&mut programs);
        assert!(is_given(&programs));
    }
}
