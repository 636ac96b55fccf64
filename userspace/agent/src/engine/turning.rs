//! One turn of the loop: applies everything that has arrived, in the order of time, and publishes
//! the results to the kernel.

use std::time::{Duration, Instant};

use super::loading::Missing;
use super::samples::OwnedSample;
use super::{Engine, monotonic_nanos, samples};
use crate::kernel::perf_record::Event;
use crate::managed::bridge::tells_a_runtime;
use crate::processes::table::{Backing, Change, Mapping};

/// The time spent on records before their results are published.
const LONGEST_TURN: Duration = Duration::from_millis(50);

impl Engine {
    /// Takes everything that has arrived: events, records, answers about files.
    pub fn turn(&mut self) {
        self.turn.now = Instant::now();
        self.start_failing();
        self.pass_over_threads();
        let began = self.drain_events();
        // Tables that stacks wait for are published at the end of a turn: on a busy host a turn
        // without a limit would never end.
        let until = self.take_samples(began, self.turn.now + LONGEST_TURN);
        self.turn.took_records(began, self.turn.has_more.then_some(until));
        self.apply_events(until);
        self.turn.applied_until = self.events.in_order.given(until);
        self.answer_files();
        self.managed.turn(
            &mut self.programs,
            &mut self.store,
            &self.aggregate,
            &mut self.processes.dirty,
        );
        self.take_snapshots();
        self.attach_events();
        self.publish_dirty();
        self.settle_pending(false);
        self.repair();
        self.make_room();
        self.expect_cpus();
        self.sweep();
    }

    /// Takes records and the events before each, until this time or until there are no more. Returns the
    /// time until which events may be applied: later ones than records left in the ring may not.
    fn take_samples(&mut self, mut drained_until: u64, enough: Instant) -> u64 {
        self.turn.has_more = false;
        self.turn.took_some = false;
        while let Some(sample) = self.next_sample() {
            self.turn.took_some = true;
            let time = sample.time();
            if time > drained_until {
                drained_until = self.drain_events();
            }
            self.apply_events(time);
            self.take_sample(sample.as_sample());
            if Instant::now() >= enough {
                self.turn.has_more = true;
                return time;
            }
        }
        u64::MAX
    }

    /// Makes room in the rings, between turns.
    pub(super) fn empty_rings(&mut self) {
        let drained_until = self.drain_events();
        self.take_samples(drained_until, Instant::now() + LONGEST_TURN);
    }

    /// The next record of all rings, in the order of time.
    fn next_sample(&mut self) -> Option<OwnedSample> {
        let Self { programs, heads, figures, .. } = self;
        let [cpu, wait, thread, event] = heads;
        while cpu.is_none() {
            let Some(record) = programs.next_record() else { break };
            // The record borrows the ring: it is kept aside while events are applied.
            *cpu = samples::parse(&record).map(|sample| sample.to_owned());
            figures.malformed_records += u64::from(cpu.is_none());
        }
        while wait.is_none() {
            let Some(record) = programs.next_wait() else { break };
            *wait = samples::parse(&record).map(|sample| sample.to_owned());
            figures.malformed_records += u64::from(wait.is_none());
        }
        while thread.is_none() {
            let Some(record) = programs.next_thread() else { break };
            *thread = samples::parse(&record).map(|sample| sample.to_owned());
            figures.malformed_records += u64::from(thread.is_none());
        }
        while event.is_none() {
            let Some(record) = programs.next_clr_event() else { break };
            *event = samples::parse(&record).map(|sample| sample.to_owned());
            figures.malformed_records += u64::from(event.is_none());
        }
        let first = heads.iter_mut().filter(|head| head.is_some());
        first.min_by_key(|head| head.as_ref().map(OwnedSample::time))?.take()
    }

    /// Applies the events up to now, and returns them.
    fn drain_events(&mut self) -> u64 {
        let now = monotonic_nanos();
        let (table, selection) = (&mut self.table, &self.selection);
        self.events.sideband.drain(&mut self.events.drained, |pid, time| {
            table.passes_over(pid, time, !selection.surely_drops(pid))
        });
        self.events.in_order.take_in(&mut self.events.drained, now);
        let programs = &mut self.programs;
        self.events.has_no_names =
            self.events.sideband.follow_floods(&mut |cpu, event| programs.open_event(cpu, event));
        now
    }

    fn apply_events(&mut self, until: u64) {
        while let Some(event) = self.events.in_order.next(until) {
            if let Event::Comm { pid, exec: true, .. } = event.event
                && self.table.is_muted(pid, event.time)
            {
                // Mapping events of its new program may have been skipped.
                self.processes.repairs.is_surely_outdated(pid, self.turn.now);
            }
            if let (Some(tid), Some(wall)) = (self.table.ended_thread(&event.event), &mut self.wall)
            {
                wall.end(tid, event.time, &mut self.aggregate);
            }
            if matches!(event.event, Event::Mmap { pid, .. } if self.selection.surely_drops(pid)) {
                self.table.apply_unwanted(&event.event, event.time);
                continue;
            }
            match self.table.apply(&event.event, event.time) {
                Change::None => {}
                Change::Forked { pid, parent } => {
                    self.selection.forked(pid, parent);
                    self.store.forked(&mut self.programs, pid, parent);
                    self.store.set_unwanted(&mut self.programs, pid, 0);
                    if self.selection.surely_keeps(pid) {
                        self.processes.dirty.insert(pid);
                    } else if self.selection.surely_drops(pid) {
                        self.store.skip(&mut self.programs, pid);
                        continue;
                    }
                    self.note_begun(pid, event.time);
                }
                Change::Lost => {
                    self.processes.repairs.events_were_lost(self.turn.now);
                    if let Some(wall) = &mut self.wall {
                        wall.events_were_lost();
                    }
                }
                Change::Refused { pid } => {
                    // What it has unmapped is forgotten.
                    self.processes.repairs.is_missing_some(pid, self.turn.now);
                }
                Change::Muted { pid } => self.processes.repairs.was_muted(pid),
                Change::Executed { pid } => {
                    self.processes.repairs.executed(pid, self.turn.now);
                    self.executed_in_wall(pid, event.time);
                    if !self.selection.surely_drops(pid) {
                        self.note_begun(pid, event.time);
                    }
                    self.programs.release(pid);
                    self.take_last_snapshots(&[pid]);
                    self.managed.left(pid);
                    self.store.outdate(&mut self.programs, pid);
                    self.store.set_unwanted(&mut self.programs, pid, 0);
                    if self.selection.surely_drops(pid) {
                        if self.table.get(pid).is_some_and(|process| process.parent == 0) {
                            // Its start was missed: its parent may be followed.
                            self.processes.repairs.is_missing_some(pid, self.turn.now);
                        }
                        self.store.skip(&mut self.programs, pid);
                    }
                }
                Change::Mapped { pid, mapping } => {
                    if self.events.has_no_names && self.is_sampled(pid) {
                        // It may be of another program.
                        self.processes.repairs.is_missing_some(pid, self.turn.now);
                    }
                    // Others are examined when they are sampled and turn out to be selected.
                    if self.selection.is_chosen(pid) || self.is_sampled(pid) {
                        self.loading.first_seen(&self.table, pid, &mapping);
                        self.processes.dirty.insert(pid);
                    }
                    if self.is_wanted(pid) {
                        self.look_at_mapping(pid, &mapping);
                    }
                }
                Change::Renamed { pid } => {
                    // Whether it is wanted may depend on its name.
                    if !self.selection.is_everything() {
                        self.store.withdraw(&mut self.programs, pid);
                    }
                }
                Change::RuntimeThread { pid } => {
                    if self.is_wanted(pid)
                        && let Some(process) = self.table.get(pid)
                    {
                        self.managed.found(pid, process.image);
                    }
                }
                Change::Exited { pid } => self.ended(pid),
            }
        }
    }

    /// Whether a process is recorded, as far as is known.
    pub(super) fn is_wanted(&self, pid: u32) -> bool {
        let image = self.table.get(pid).map(|process| process.image);
        image.is_some_and(|image| self.selection.is_wanted(pid, image))
    }

    /// Whether a process was sampled lately. Of others no file is opened while the whole host is
    /// recorded: a user's processes that do nothing cost nothing, whatever they map.
    fn is_sampled(&self, pid: u32) -> bool {
        self.store.is_published(pid) || self.pending.waits_for(pid)
    }

    /// Whether a process that is recorded is a .NET process, by all it has mapped, and where it has
    /// generated code otherwise, by the names of its threads: a runtime inside its program that does
    /// not map its code twice (before .NET 7, with `DOTNET_EnableWriteXorExecute=0`, or without a
    /// memory file) maps nothing that shows it.
    pub(super) fn look_for_runtime(&mut self, pid: u32) {
        let Some(process) = self.table.get(pid) else { return };
        let (image, space) = (process.image, process.space.clone());
        if space.mappings().iter().any(|mapping| self.shows_runtime(mapping)) {
            self.managed.found(pid, image);
            return;
        }
        let generates = space.mappings().iter().any(|mapping| mapping.backing.is_generated());
        if generates
            && self.managed.standing_of(image).is_none()
            && strata_clr::Target::open(pid)
                .is_ok_and(|target| strata_clr::has_runtime_threads(&target))
        {
            self.managed.found(pid, image);
        }
    }

    fn look_at_mapping(&mut self, pid: u32, mapping: &Mapping) {
        let Some(process) = self.table.get(pid) else { return };
        if self.shows_runtime(mapping) {
            self.managed.found(pid, process.image);
        }
    }

    /// Whether only a .NET process has such a mapping.
    fn shows_runtime(&self, mapping: &Mapping) -> bool {
        match mapping.backing {
            Backing::Runtime => true,
            Backing::File(file) => {
                self.table.files.get(file).is_some_and(|file| tells_a_runtime(&file.path))
            }
            Backing::Anonymous | Backing::Vdso => false,
        }
    }

    /// Files whose answers have arrived; processes that wait for them become dirty again.
    pub(super) fn answer_files(&mut self) {
        self.loading.answers(&mut self.programs, &mut self.store, &mut self.table);
        for pid in self.table.renew_files(&self.loading.take_changed()) {
            if self.store.is_published(pid) {
                self.loading.need(&self.table, pid, 0);
                self.processes.dirty.insert(pid);
            }
        }
        if self.loading.take_progress() {
            self.processes.dirty.extend(self.loading.take_waiting());
        }
    }

    /// Publishes every process whose mappings changed and whose files are all known.
    pub(super) fn publish_dirty(&mut self) {
        for pid in std::mem::take(&mut self.processes.dirty) {
            let Some(process) = self.table.get(pid) else { continue };
            if process.exited && !self.pending.waits_for(pid) || self.store.is_skipped(pid) {
                continue;
            }
            if !self.processes.paces.publishing.take(
                pid,
                process.space.mappings().len(),
                self.turn.now,
            ) {
                self.processes.dirty.insert(pid);
                continue;
            }
            if process.space.has_copies() {
                // Whether the files are still around them is known by reading.
                self.processes.repairs.is_surely_outdated(pid, self.turn.now);
            }
            let generated = if self.pending.has_enough_of(pid) {
                self.managed.units_of(process.image)
            } else {
                self.managed.units_to_publish(process.image)
            };
            let program = self.table.program_of(process.image);
            let program = program.as_ref();
            let missing = Missing::LeaveOut;
            let (code, complete) =
                self.loading.code_of(&process.space, program, generated, missing);
            // A published process continues with the tables known, so that pending ones delay
            // nothing else; after each publication, a few stacks through pending code arrive as raw
            // records.
            let goes_on = self.store.is_published(pid) && !self.pending.is_full();
            if !complete {
                self.loading.wait(pid);
            }
            if process.exited || !(complete || goes_on) {
                continue;
            }
            if let Err(error) = self.store.publish(&mut self.programs, pid, &code, complete) {
                tracing::warn!(pid, %error, "a process's tables could not be published");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_abi::record::{End, Header};
    use strata_kinds::{Frequencies, Kind, Kinds};

    use super::super::{Options, samples};
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::code_address::CodeAddress;
    use crate::kernel::loader::Settings;
    use crate::kernel::perf_record::{MappedInode, Timed};
    use crate::kernel::sideband::Wakeup;
    use crate::managed;
    use crate::processes::mapped::FileId;
    use crate::selection::Wanted;
    use crate::tables::extents::{Code, Stretch};

    /// No process of this host has such a number.
    const PID: u32 = 1 << 23;

    /// Of the whole host, and not sampling. Loads the programs: needs root.
    fn engine() -> Engine {
        let mut engine = Engine::new(Options {
            settings: Settings::of_tests(),
            wakeup: Wakeup::Many,
            wanted: Wanted::default(),
            kinds: Kinds::NONE,
            times: Kinds::NONE,
            frequencies: Frequencies::of_daemon(),
            table_memory: 64 << 20,
            waiting_memory: 1 << 20,
            own_pid: std::process::id(),
            managed: managed::Policy::Off,
            messages: false,
            signatures: false,
            opened: None,
        })
        .expect("the programs load, as root");
        engine.sampling.kinds = Kinds::NONE.with(Kind::Cpu, true);
        engine
    }

    fn apply(engine: &mut Engine, event: Event) {
        let time = monotonic_nanos();
        engine.events.in_order.take_in(&mut vec![Timed { time, event }], time);
        engine.apply_events(u64::MAX);
    }

    /// Publishes a process with a mapping at this address, and returns its generation in the kernel.
    fn publish(engine: &mut Engine, pid: u32, start: u64) -> u32 {
        let code = [Stretch { start, end: start + 0x1000, code: Code::FramePointer }];
        let Engine { store, programs, .. } = engine;
        store.publish(programs, pid, &code, true).expect("there is room");
        programs.process(pid).expect("it is published").generation
    }

    /// A process maps a file.
    fn maps(engine: &mut Engine, pid: u32, number: u32) -> FileId {
        let path = format!("/no/such/file/{number}").into_bytes();
        let inode = MappedInode { major: 0, minor: 1, inode: u64::from(number), generation: 1 };
        let (start, length) = (0x10_0000 + u64::from(number) * 0x1000, 0x1000);
        apply(engine, Event::Mmap { pid, start, length, offset: 0, inode, path });
        let process = engine.table.get(pid).expect("a process");
        let mapping = process.space.mapping_of(start).expect("a mapping");
        let Backing::File(file) = mapping.backing else { panic!("no file") };
        file
    }

    /// A process maps a file that no other has mapped: whether that is opened.
    fn opens_what_it_maps(engine: &mut Engine, pid: u32) -> bool {
        let file = maps(engine, pid, pid);
        engine.loading.is_asked_about(file)
    }

    /// Takes a sample of a process that the kernel unwound with this generation's tables: how many
    /// addresses its stack has, and whether it is complete.
    fn taken(engine: &mut Engine, pid: u32, generation: u32) -> (usize, bool) {
        engine.aggregate = Aggregate::new(Kinds::NONE);
        let header = Header {
            pid,
            tid: pid,
            generation,
            kernel_frames: 0,
            user_frames: 3,
            end: End::Complete as u8,
            stack_bytes: 0,
            ..samples::tests::header(0)
        };
        engine.take_sample(samples::Sample { header, words: &[0x1010, 0x1020, 0x1030] });
        let rows: Vec<_> = engine.aggregate.rows().collect();
        assert_eq!(rows.len(), 1);
        let stack = engine.aggregate.stack_of(rows[0].stack);
        let places = stack.iter().filter_map(|at| engine.aggregate.code_address(*at as usize));
        let markers = places.filter(|place| matches!(place, CodeAddress::Marker(_))).count();
        (stack.len() - markers, markers == 0)
    }

    /// Needs root, and loads the programs.
    #[test]
    fn files_are_opened_only_for_processes_that_are_sampled_or_selected() {
        let mut engine = engine();
        let (idle, sampled, selected) = (PID, PID + 1, PID + 2);
        for pid in [idle, sampled, selected] {
            engine.table.insert_unknown(pid, "test");
        }
        publish(&mut engine, sampled, 0x1000);
        engine.selection.add_root(selected);
        assert!(!opens_what_it_maps(&mut engine, idle));
        assert!(opens_what_it_maps(&mut engine, sampled));
        assert!(opens_what_it_maps(&mut engine, selected));
        assert!(!engine.processes.dirty.contains(&idle));
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_file_that_a_process_of_many_may_not_open_now_is_opened_for_another() {
        let mut engine = engine();
        let (many, other) = (PID, PID + 1);
        for pid in [many, other] {
            engine.table.insert_unknown(pid, "test");
            publish(&mut engine, pid, 0x1000);
        }
        for number in 1..=600 {
            maps(&mut engine, many, number);
        }
        // Above all others, as the C library is.
        let shared = maps(&mut engine, many, 601);
        engine.loading.need(&engine.table, many, 0);
        assert!(!engine.loading.is_asked_about(shared), "more than it may open at once");
        assert_eq!(maps(&mut engine, other, 601), shared);
        assert!(engine.loading.is_asked_about(shared), "for the other one, as it maps it");
        // One that has mapped it before, when it is sampled.
        let next = maps(&mut engine, many, 602);
        let mapped_before = PID + 2;
        engine.table.insert_unknown(mapped_before, "test");
        assert_eq!(maps(&mut engine, mapped_before, 602), next);
        engine.loading.need(&engine.table, many, 0);
        assert!(!engine.loading.is_asked_about(next));
        engine.loading.need(&engine.table, mapped_before, 0);
        assert!(engine.loading.is_asked_about(next));
    }

    /// Needs root, and loads the programs.
    #[test]
    fn stacks_unwound_by_the_program_before_an_exec_keep_only_where_they_are() {
        let mut engine = engine();
        let (pid, repaired) = (PID, PID + 1);
        for pid in [pid, repaired] {
            engine.table.insert_unknown(pid, "before");
            let before = publish(&mut engine, pid, 0x1000);
            assert_eq!(taken(&mut engine, pid, before), (3, true));
            if pid == repaired {
                // The event was lost.
                engine.repaired(pid, &Change::Executed { pid });
            } else {
                let name = b"after".to_vec();
                apply(&mut engine, Event::Comm { pid, tid: pid, name, exec: true });
            }
            assert_eq!(taken(&mut engine, pid, before), (1, false));
            let after = publish(&mut engine, pid, 0x10_0000);
            assert_eq!(taken(&mut engine, pid, after), (3, true));
            assert_eq!(taken(&mut engine, pid, before), (1, false), "a late one");
            // Its number is another process's.
            apply(&mut engine, Event::Fork { pid, parent: 1, tid: pid });
            assert_eq!(taken(&mut engine, pid, before), (3, true));
        }
    }
}
