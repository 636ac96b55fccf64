//! What an event changes: the mappings of a process, its program and name, its threads, and its end.
//!
//! Invariant: the end of a process is reported once, with that of its last thread as far as is known.
//! Mapping events beyond what a process may have are skipped and counted.

use super::{Mapping, Process, ProcessTable, Space, generated};
use crate::kernel::perf_record::Event;
use crate::processes::mapping_events::Price;

/// The effect of an event, for components with state of their own per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// A process appeared by fork; its mappings are its parent's.
    Forked {
        pid: u32,
        parent: u32,
    },
    /// A new program: nothing of the old one's is mapped any more.
    Executed {
        pid: u32,
    },
    Mapped {
        pid: u32,
        mapping: Mapping,
    },
    /// The process has another name.
    Renamed {
        pid: u32,
    },
    /// A thread has a name that only .NET's runtime gives to one of its own.
    RuntimeThread {
        pid: u32,
    },
    /// The last thread of a process has ended.
    Exited {
        pid: u32,
    },
    /// It maps more than [`MAX_MAPPINGS`](super::MAX_MAPPINGS), as far as is known.
    Refused {
        pid: u32,
    },
    /// It maps so much that its events are skipped for a while.
    Muted {
        pid: u32,
    },
    /// Events were lost: the program and mappings of any process may be out of date.
    Lost,
}

impl Process {
    /// A thread ends. Whether it is the last one, as far as is known.
    fn end_of_thread(&mut self, is_leader: bool) -> bool {
        if is_leader {
            self.is_leaderless = true;
        } else {
            self.others = self.others.saturating_sub(1);
        }
        let is_last = self.is_leaderless && self.others == 0 && !self.exited;
        self.exited |= is_last;
        is_last
    }
}

impl ProcessTable {
    /// `time` is the event's.
    pub fn apply(&mut self, event: &Event, time: u64) -> Change {
        match event {
            Event::Mmap { pid, start, length, offset, inode, path } => {
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let was_muted = process.events.is_muted(time);
                let (start, end) = (*start, start.saturating_add(*length));
                let mapping = |backing| Mapping { start, end, offset: *offset, backing };
                let is_known = generated(path)
                    .is_some_and(|backing| process.space.holds_generated(&mapping(backing)));
                let price = if is_known { Price::Known } else { Price::New };
                if !process.events.take(time, price) {
                    self.muted_events += 1;
                    return if was_muted { Change::None } else { Change::Muted { pid: *pid } };
                }
                if is_known {
                    return Change::None;
                }
                let Some(backing) = self.backing(*inode, path) else { return Change::None };
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let mapping = mapping(backing);
                let refused = process.space.refused;
                process.is_executing = false;
                process.may_have_ended = false;
                process.space.map(mapping);
                let is_refused = process.space.refused > refused;
                self.refused_mappings += u64::from(is_refused);
                if is_refused {
                    return Change::Refused { pid: *pid };
                }
                let image = process.image;
                self.images.note_mapped(image, backing, &self.files);
                Change::Mapped { pid: *pid, mapping }
            }
            Event::Comm { pid, tid, name, exec } => self.rename(*pid, *tid, name, *exec, time),
            Event::Fork { pid, parent, .. } if pid == parent => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.others = process.others.saturating_add(1);
                }
                Change::None
            }
            Event::Fork { pid, parent, .. } => self.fork(*pid, *parent, time),
            Event::Exit { pid, tid } => {
                let Some(process) = self.processes.get_mut(pid) else { return Change::None };
                let is_leader = pid == tid;
                // A program that gains privileges (a setuid one; any that root's child executes
                // when its parent has given some up) is reported as ended before it has mapped
                // anything: `begin_new_exec` calls `perf_event_exit_task` (fs/exec.c, Linux 6.18).
                // Its end is reported again.
                if is_leader && std::mem::take(&mut process.is_executing) {
                    // An exec that fails from there on ends its process, which is reported once.
                    process.may_have_ended = true;
                    self.leaderless.push(*pid);
                    return Change::None;
                }
                if process.end_of_thread(is_leader) {
                    return Change::Exited { pid: *pid };
                }
                if is_leader {
                    self.leaderless.push(*pid);
                }
                Change::None
            }
            Event::Lost { count } => {
                self.lost_events += count;
                Change::Lost
            }
        }
    }

    /// A process has ended, whatever was known of its threads. False where that was known.
    pub fn end(&mut self, pid: u32) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        !std::mem::replace(&mut process.exited, true)
    }

    /// Processes whose main thread has ended before others, since the last call, of whose ends the
    /// event may be lost, and those that may have ended as they executed a program.
    pub fn take_leaderless(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.leaderless)
    }

    /// Whether the main thread of a process has ended, and others may go on; or it is not known
    /// whether that has.
    pub fn is_leaderless(&self, pid: u32) -> bool {
        self.get(pid).is_some_and(|process| {
            (process.is_leaderless || process.may_have_ended) && !process.exited
        })
    }

    /// The thread that ends with an event, which has not been applied yet.
    pub fn ended_thread(&self, event: &Event) -> Option<u32> {
        let Event::Exit { pid, tid } = *event else { return None };
        // See `apply`.
        let is_executing = pid == tid && self.get(pid).is_some_and(|process| process.is_executing);
        (!is_executing).then_some(tid)
    }

    /// Whether mapping events of a process are skipped at this time.
    pub fn is_muted(&self, pid: u32, time: u64) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.events.is_muted(time))
    }

    /// Whether a process's mapping event is skipped, which is counted where the process is `wanted`.
    pub fn passes_over(&mut self, pid: u32, time: u64, is_wanted: bool) -> bool {
        let is_muted = self.is_muted(pid, time);
        self.muted_events += u64::from(is_muted && is_wanted);
        is_muted
    }

    /// What processes that are not recorded were refused so far is no loss.
    pub fn forget_refusals(&mut self, is_unwanted: impl Fn(u32) -> bool) {
        let unwanted = self.processes.iter().filter(|(pid, _)| is_unwanted(**pid));
        let refused: u64 = unwanted.map(|(_, process)| process.space.refused).sum();
        self.refused_mappings = self.refused_mappings.saturating_sub(refused);
    }

    /// Applies an event of a process that is not recorded: what it was refused is no loss.
    pub fn apply_unwanted(&mut self, event: &Event, time: u64) -> Change {
        let before = (self.refused_mappings, self.muted_events);
        let change = self.apply(event, time);
        (self.refused_mappings, self.muted_events) = before;
        change
    }

    /// Puts a process in place of the one that had its number.
    fn replace(&mut self, pid: u32, new: Process, time: u64) {
        if let Some(old) = self.processes.insert(pid, new)
            && let Some(image) = self.images.get_mut(old.image)
        {
            image.replaced = Some(time);
        }
    }

    pub(super) fn rename(
        &mut self,
        pid: u32,
        tid: u32,
        name: &[u8],
        exec: bool,
        time: u64,
    ) -> Change {
        if !exec && pid != tid {
            let is_runtimes = strata_clr::is_runtime_thread(name);
            return if is_runtimes { Change::RuntimeThread { pid } } else { Change::None };
        }
        let name = String::from_utf8_lossy(name);
        if exec {
            let image = self.images.add(pid, &name, time);
            let before = self.processes.get(&pid);
            let parent = before.map_or(0, |process| process.parent);
            let events =
                before.map_or_else(Default::default, |process| process.events.of_next_program());
            let space = Space::default();
            let process = Process::new(parent, image, space, events);
            self.replace(pid, Process { is_executing: true, ..process }, time);
            return Change::Executed { pid };
        }
        if let Some(process) = self.processes.get(&pid)
            && let Some(image) = self.images.get_mut(process.image)
        {
            image.comm = name.as_ref().into();
            return Change::Renamed { pid };
        }
        Change::None
    }

    fn fork(&mut self, pid: u32, parent: u32, time: u64) -> Change {
        let (of_parent, space, events) = match self.processes.get(&parent) {
            Some(parent) => {
                (self.image(parent.image).cloned(), parent.space.clone(), parent.events)
            }
            None => Default::default(),
        };
        let (comm, program) =
            of_parent.map_or_else(Default::default, |image| (image.comm, image.program));
        let image = self.images.add(pid, &comm, time);
        if let Some(image) = self.images.get_mut(image) {
            image.program = program;
        }
        self.replace(pid, Process::new(parent, image, space, events), time);
        Change::Forked { pid, parent }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{existing, file, mapped};
    use super::super::{DOUBLE_MAPPED, Existing, MAX_MAPPINGS, Threads};
    use super::*;

    #[test]
    fn a_program_that_gains_privileges_by_its_execution_has_not_ended() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "strata");
        let (pid, tid) = (8, 8);
        table.apply(&Event::Fork { pid, parent: 7, tid }, 1);
        let name = b"su".as_slice().into();
        table.apply(&Event::Comm { pid, tid, name, exec: true }, 2);
        let exit = Event::Exit { pid, tid };
        assert_eq!(table.ended_thread(&exit), None);
        assert_eq!(table.ended_thread(&Event::Exit { pid, tid: 9 }), Some(9));
        assert_eq!(table.apply(&exit, 3), Change::None);
        assert!(table.get(pid).is_some_and(|process| !process.exited));
        assert_eq!(table.ended_thread(&exit), Some(tid));
        // Unless its exec has failed: then this was its end.
        assert_eq!((table.take_leaderless(), table.is_leaderless(pid)), (vec![pid], true));
        table.apply(&mapped(pid, 0x1000, b"/bin/su"), 4);
        assert!(!table.is_leaderless(pid));
        assert_eq!(table.apply(&exit, 5), Change::Exited { pid }, "its end is reported again");
    }

    #[test]
    fn a_process_ends_with_its_last_thread() {
        let mut table = ProcessTable::default();
        let (pid, gone) = (7, Change::Exited { pid: 7 });
        let thread = |tid| Event::Fork { pid, parent: pid, tid };
        let exit = |tid| Event::Exit { pid, tid };
        table.apply(&Event::Fork { pid, parent: 1, tid: pid }, 1);
        for tid in [8, 9] {
            table.apply(&thread(tid), 1);
        }
        assert_eq!(table.apply(&exit(9), 2), Change::None);
        assert_eq!(table.apply(&exit(pid), 3), Change::None);
        assert_eq!((table.take_leaderless(), table.is_leaderless(pid)), (vec![pid], true));
        // A thread that goes on may make others.
        table.apply(&thread(10), 4);
        assert_eq!(table.apply(&exit(8), 5), Change::None);
        assert_eq!(table.apply(&exit(10), 6), gone);
        assert!(!table.is_leaderless(pid) && !table.end(pid));
        // One whose leader had ended before events were, and of whose threads an end is lost.
        let threads = Threads { is_leaderless: true, others: 2 };
        table.insert_existing(Existing { threads, ..existing(11, "late") }, vec![]);
        assert_eq!(table.take_leaderless(), [11]);
        assert_eq!(table.apply(&Event::Exit { pid: 11, tid: 12 }, 7), Change::None);
        assert!(table.end(11));
        // The last thread executes another program.
        table.apply(&Event::Fork { pid: 20, parent: 1, tid: 20 }, 8);
        table.apply(&Event::Fork { pid: 20, parent: 20, tid: 21 }, 8);
        table.apply(&Event::Exit { pid: 20, tid: 20 }, 9);
        let name = b"next".as_slice().into();
        table.apply(&Event::Comm { pid: 20, tid: 20, name, exec: true }, 10);
        assert!(!table.is_leaderless(20));
        table.end(20);
    }

    #[test]
    fn a_runtime_that_maps_and_unmaps_code_all_the_time_is_not_muted() {
        const SECOND: u64 = 1_000_000_000;
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "dotnet");
        // 5,000 a second, in ever new places of 1 GiB.
        for number in 0..100_000u64 {
            let event = mapped(7, 0x7f00_0000_0000 + number % 16_384 * 0x1_0000, DOUBLE_MAPPED);
            table.apply(&event, number * SECOND / 5_000);
        }
        assert_eq!((table.muted_events, table.refused_mappings), (0, 0));
        assert_eq!(table.get(7).map(|process| process.space.mappings().len()), Some(1));
    }

    #[test]
    fn what_processes_that_are_not_recorded_map_is_no_loss() {
        let mut table = ProcessTable::default();
        let page = |number: u64| file(number * 0x2000, number * 0x2000 + 0x1000, 0);
        for (pid, more) in [(7, 3), (8, 5)] {
            let pages = (0..(MAX_MAPPINGS + more) as u64).map(page).collect();
            table.insert_existing(existing(pid, "wide"), pages);
        }
        table.forget_refusals(|pid| pid == 8);
        assert_eq!(table.refused_mappings, 3);
        let more = mapped(8, 0x7f00_0000_0000, b"/tmp/x");
        assert_eq!(table.apply_unwanted(&more, 1), Change::Refused { pid: 8 });
        assert_eq!(table.refused_mappings, 3);
        let muted = |table: &mut ProcessTable| {
            while !table.is_muted(8, 2) {
                table.apply_unwanted(&more, 2);
            }
            table.muted_events
        };
        assert_eq!(muted(&mut table), 0);
        assert!(table.passes_over(8, 2, false) && table.muted_events == 0);
        assert!(table.passes_over(8, 2, true) && table.muted_events == 1);
    }

    #[test]
    fn a_thread_named_as_only_the_runtimes_own_are_shows_a_runtime() {
        let mut table = ProcessTable::default();
        table.insert_existing(existing(7, "app"), vec![]);
        let comm = |tid, name: &[u8]| Event::Comm { pid: 7, tid, name: name.to_vec(), exec: false };
        let shown = Change::RuntimeThread { pid: 7 };
        assert_eq!(table.apply(&comm(8, b".NET SynchManag"), 5), shown);
        // Programs compiled ahead of time have such threads too.
        assert_eq!(table.apply(&comm(9, b".NET Finalizer"), 6), Change::None);
        assert_eq!(table.apply(&comm(7, b".NET SynchManag"), 7), Change::Renamed { pid: 7 });
    }

    #[test]
    fn exec_starts_a_new_image_and_forgets_mappings() {
        let mut table = ProcessTable::default();
        table.insert_existing(existing(7, "sh"), vec![file(0x1000, 0x2000, 0)]);
        let old = table.get(7).map(|process| process.image);
        let exec = Event::Comm { pid: 7, tid: 7, name: b"cat".to_vec(), exec: true };
        assert_eq!(table.apply(&exec, 5), Change::Executed { pid: 7 });
        let replaced = old.and_then(|old| table.image(old)).and_then(|old| old.replaced);
        assert_eq!(replaced, Some(5));
        let process = table.get(7).expect("still there");
        assert!(process.space.mappings().is_empty());
        assert_ne!(Some(process.image), old);
        assert_eq!(process.parent, 1);
    }
}
