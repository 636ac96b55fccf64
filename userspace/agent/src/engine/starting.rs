//! Starts, pauses and stops the samplers of all kinds.
//!
//! Invariant: a sampler that does not start after a pause is tried again from the turn, ever later, and the
//! others sample meanwhile.

use std::error::Error;
use std::iter;
use std::time::{Duration, Instant};

use strata_kinds::{Frequencies, Kind};

use super::{Engine, EngineError, monotonic_nanos};
use crate::kernel::perf_event;

/// A sampler that does not start is tried again after this time, and twice as late each time after that.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Sampling begins without the unwind tables of what was selected after this time.
const LONGEST_LOADING: Duration = Duration::from_secs(1);

/// A sampler did not start after a pause.
pub(super) struct Failing {
    reason: String,
    wait: Duration,
    next: Instant,
}

fn with_causes(error: &EngineError) -> String {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl Failing {
    fn new(reason: String, now: Instant) -> Self {
        Self { reason, wait: AGAIN_AFTER, next: now + AGAIN_AFTER }
    }

    fn again(&mut self, reason: String, now: Instant) {
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        *self = Self { reason, wait: self.wait, next: now + self.wait };
    }
}

impl Engine {
    pub fn start(&mut self) -> Result<(), EngineError> {
        // Samples of others are not even taken.
        let unwanted: Vec<u32> =
            self.table.pids().filter(|pid| self.selection.surely_drops(*pid)).collect();
        for pid in unwanted {
            self.store.skip(&mut self.programs, pid);
        }
        let mut wanted: Vec<u32> = self.table.pids().collect();
        wanted.retain(|pid| self.is_selected_at_start(*pid));
        let waits = [Kind::OffCpu, Kind::Wall].map(|kind| self.sampling.kinds.contains(kind));
        let waits = waits.contains(&true) && !self.selection.is_everything();
        for pid in wanted {
            self.look_for_runtime(pid);
            if waits {
                self.loading.need(&self.table, pid, 0);
                self.processes.dirty.insert(pid);
            }
        }
        if waits {
            self.load_selected();
        }
        self.sampling.started = monotonic_nanos();
        self.waits.started = self.sampling.started;
        if let Some(wall) = &mut self.wall {
            wall.started = self.sampling.started;
        }
        self.start_sampling()
    }

    /// Publishes what was asked for as it comes. A thread may wait only once: its stack must be complete
    /// the first time.
    fn load_selected(&mut self) {
        let until = Instant::now() + LONGEST_LOADING;
        loop {
            self.turn.now = Instant::now();
            self.answer_files();
            self.publish_dirty();
            let now = Instant::now();
            if now >= until || !self.loading.is_asked() {
                break;
            }
            // Some answers are there at once.
            let next = self.loading.next_deadline().map_or(until, |next| next.min(until));
            self.loading.block(next.saturating_duration_since(now));
        }
    }

    /// When sampling started, by the records' clock.
    pub fn started(&self) -> u64 {
        self.sampling.started
    }

    /// Starts the sampler of each kind that needs one and does not run. The first error is returned after
    /// all that can be started.
    fn start_sampling(&mut self) -> Result<(), EngineError> {
        let mut started = Ok(());
        // It gives wall-clock time the stacks of threads that run.
        if self.sampling.kinds.contains(Kind::Cpu) || self.wall.is_some() {
            started = started.and(self.programs.start());
        }
        if self.wall.is_some() {
            started = started.and(self.programs.start_threads());
            // Threads that stay would be where they were last seen; of those that end, process events
            // speak too.
            if !self.passes.is_on() {
                self.passes.start();
            }
        }
        if self.sampling.kinds.contains(Kind::OffCpu) {
            started = started.and(self.programs.start_off_cpu());
        }
        Ok(started?)
    }

    /// What cannot be stopped is reported: the records that it makes are taken as before.
    pub(super) fn stop_sampling(&mut self) {
        self.passes.stop();
        self.rest_passes();
        self.sampling.failing = None;
        if let Err(error) = self.programs.stop() {
            tracing::warn!(%error, "a sampler could not be stopped");
        }
    }

    /// Stops sampling, and takes all that was sampled so far; no stack waits any longer.
    pub fn pause(&mut self) {
        self.stop_sampling();
        self.turn();
        while self.turn.has_more {
            self.turn();
        }
        self.settle_pending(true);
    }

    /// Samples again, at these rates. Samples from before the pause must be flushed by now: they
    /// would be weighed by the new rates. A sampler that does not start is tried again in later turns.
    pub fn resume(&mut self, frequencies: &Frequencies) {
        let frequency = u64::from(frequencies.of(Kind::Cpu));
        self.programs.set_frequency(frequency);
        if let Some(wall) = &mut self.wall {
            wall.set_period(perf_event::period(frequency));
        }
        self.passes.set_frequency(frequencies.of(Kind::Wall));
        self.rates.reset(frequencies);
        self.sampling.stalled.reset();
        self.waits.interrupt();
        if let Err(error) = self.start_sampling() {
            let reason = with_causes(&error);
            tracing::error!(
                "sampling did not start again, or not of all kinds: {reason}; that is tried again"
            );
            self.sampling.failing = Some(Failing::new(reason, Instant::now()));
        }
    }

    /// Why sampling, or that of some kinds, has not started again after a pause.
    pub fn not_sampling(&self) -> Option<&str> {
        self.sampling.failing.as_ref().map(|failing| failing.reason.as_str())
    }

    /// Tries again to start what did not after a pause.
    pub(super) fn start_failing(&mut self) {
        let now = self.turn.now;
        if self.sampling.failing.as_ref().is_none_or(|failing| now < failing.next) {
            return;
        }
        let started = self.start_sampling();
        match (started, &mut self.sampling.failing) {
            (Err(error), Some(failing)) => failing.again(with_causes(&error), now),
            _ => {
                self.sampling.failing = None;
                self.sampling.stalled.reset();
                tracing::info!("all kinds are sampled again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use strata_kinds::Kinds;

    use super::super::Options;
    use super::*;
    use crate::kernel::loader::{Settings, ThreadsOf};
    use crate::kernel::sideband::Wakeup;
    use crate::managed;
    use crate::selection::Wanted;

    const NAME: &str = "engine::starting::tests::what_does_not_start_after_a_pause_is_tried_again";
    /// Set in the process whose limits the test changes.
    const OWN_PROCESS: &str = "STRATA_TEST_OWN_PROCESS";
    static ENDS: AtomicBool = AtomicBool::new(false);

    fn engine() -> Engine {
        let kinds = Kinds::NONE.with(Kind::Cpu, true).with(Kind::Wall, true);
        let mut engine = Engine::new(Options {
            settings: Settings {
                ring_bytes: 1 << 20,
                frequency: 99,
                threads_of: ThreadsOf::All,
                wall: true,
                off_cpu: Some(0),
                ..Settings::of_tests()
            },
            wakeup: Wakeup::Many,
            wanted: Wanted::default(),
            kinds: kinds.with(Kind::OffCpu, true),
            times: Kinds::NONE,
            frequencies: Frequencies::of_daemon(),
            table_memory: 64 << 20,
            waiting_memory: 1 << 20,
            // This process works and waits, and is not left out.
            own_pid: 0,
            managed: managed::Policy::Off,
            messages: false,
            signatures: false,
            opened: None,
        })
        .expect("the programs load, as root");
        engine.start().expect("all kinds are sampled");
        engine
    }

    /// Descriptors that cannot be opened: those from here on.
    fn allow_descriptors(count: Option<u64>) {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a place for the limit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        limit.rlim_cur = count.unwrap_or(limit.rlim_max);
        // SAFETY: a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
    }

    /// What is sampled of this process in half a second: samples of CPUs, and waits.
    fn sampled(engine: &mut Engine) -> (u64, u64) {
        let counts = |engine: &Engine| {
            let ticks: u64 = engine.programs.ticks().iter().map(|(_, ticks)| ticks).sum();
            let waits =
                engine.programs.count_of_waits(strata_abi::record::Counter::Samples as usize);
            (ticks, waits)
        };
        let before = counts(engine);
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            engine.turn();
            std::thread::sleep(Duration::from_millis(10));
        }
        let after = counts(engine);
        (after.0 - before.0, after.1 - before.1)
    }

    fn in_own_process() {
        std::thread::spawn(|| {
            let mut number = 0u64;
            while !ENDS.load(Ordering::Relaxed) {
                number = black_box(number.wrapping_add(1));
            }
        });
        let mut engine = engine();
        let (cpu, waits) = sampled(&mut engine);
        assert!(cpu > 0 && waits > 0, "{cpu} and {waits}");
        let open = open_descriptors();
        // No program can be attached; the clocks of the CPUs are still open.
        allow_descriptors(Some(0));
        for _ in 0..2 {
            engine.pause();
            let (_, waits) = sampled(&mut engine);
            assert_eq!((waits, engine.not_sampling()), (0, None), "it is off");
            engine.resume(&Frequencies::of_daemon());
            let reason = engine.not_sampling().unwrap_or_default();
            assert!(reason.contains("Too many open files"), "{reason}");
            let (cpu, waits) = sampled(&mut engine);
            assert!(cpu > 0 && waits == 0, "{cpu} and {waits}: other kinds go on");
        }
        // Each try is later than the one before.
        let tried = Instant::now();
        let wait = |engine: &Engine| engine.sampling.failing.as_ref().map(|failing| failing.wait);
        while wait(&engine) < Some(AGAIN_AFTER * 4) {
            assert!(tried.elapsed() < Duration::from_secs(30), "{:?}", wait(&engine));
            sampled(&mut engine);
        }
        allow_descriptors(None);
        let freed = Instant::now();
        while engine.not_sampling().is_some() {
            assert!(freed.elapsed() < Duration::from_secs(30));
            sampled(&mut engine);
        }
        let (cpu, waits) = sampled(&mut engine);
        assert!(cpu > 0 && waits > 0, "{cpu} and {waits}");
        for _ in 0..3 {
            engine.pause();
            engine.resume(&Frequencies::of_daemon());
            assert_eq!(engine.not_sampling(), None);
        }
        // A pass may be on, whose reader has some.
        let left = open_descriptors();
        assert!(left < open + 8, "{open} descriptors, then {left}");
        ENDS.store(true, Ordering::Relaxed);
    }

    /// Needs root, and loads the programs.
    #[test]
    fn what_does_not_start_after_a_pause_is_tried_again() {
        if std::env::var_os(OWN_PROCESS).is_some() {
            return in_own_process();
        }
        // The limit would be that of other tests.
        let own = std::env::current_exe().expect("a path");
        let output = Command::new(own)
            .args(["--exact", NAME, "--nocapture"])
            .env(OWN_PROCESS, "1")
            .output()
            .expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        assert!(output.status.success() && text.contains("1 passed"));
    }
}
