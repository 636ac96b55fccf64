//! The off-CPU sampler's programs and maps.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::BtfTracePoint;
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::{Btf, Ebpf, EbpfLoader};
use strata_abi::{wait_pace, wait_slots};

use super::{HotValue, LoadError, Programs, map, program};

/// The programs and their tracepoints. The one that sends beginnings of waits is attached last: where another
/// cannot be, no wait has begun that would never end.
const PROGRAMS: [(&str, &str); 2] = [("woken", "sched_waking"), ("switched", "sched_switch")];

/// A window of time is about as long, in nanoseconds: a power of two of the kernel's ticks.
const WINDOW: u64 = 128_000_000;

/// Switched on by [`super::Settings::off_cpu`].
pub(super) struct OffCpu {
    pub(super) waits: RingBuf<MapData>,
    hot: Array<MapData, HotValue>,
    /// Which slots have a wait that was sent.
    waiting: Array<MapData, u64>,
    /// Of the programs that are attached.
    links: Vec<(&'static str, BtfTracePointLinkId)>,
}

/// A window of time, as the programs measure it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// It has `2^shift` of the kernel's ticks.
    pub(super) shift: u32,
    nanos: u64,
}

impl Window {
    /// By this kernel's tick (`CONFIG_HZ`), which is the resolution of its coarse clocks.
    pub(super) fn of_this_kernel() -> Self {
        let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid place for the result; the clock always exists.
        unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
        Self::of_ticks(u64::try_from(tick.tv_nsec).unwrap_or_default())
    }

    fn of_ticks(tick: u64) -> Self {
        let tick = tick.clamp(1_000_000, 10_000_000);
        // The power of two that is nearest by its quotient.
        let shift = (0..8).find(|shift| (tick << shift) * 3 / 2 > WINDOW).unwrap_or(8);
        Self { shift, nanos: tick << shift }
    }

    /// Nanoseconds that a CPU may spend on switches and waits in it. `share`: thousandths of one CPU that the
    /// whole host may.
    pub(super) fn budget(self, share: u32, cpus: u32) -> u32 {
        let all = self.nanos / 1000 * u64::from(share);
        u32::try_from((all / u64::from(cpus.max(1))).max(u64::from(wait_pace::LEAST_BUDGET)))
            .unwrap_or(u32::MAX)
    }
}

/// Which threads share a set of slots: no program can know it.
pub(super) fn seed() -> u32 {
    // The upper half of a keyed hash whose keys are random (`std::hash::RandomState`).
    (RandomState::new().hash_one(()) >> 32) as u32 | 1
}

/// Sets the sizes of the maps.
pub(super) fn size(loader: &mut EbpfLoader<'_>, cpus: u32, ring_bytes: u32) {
    for name in ["OFF_CPU_HOT", "OFF_CPU_RECORD", "OFF_CPU_CACHE", "OFF_CPU_PACES"] {
        loader.map_max_entries(name, cpus);
    }
    for name in ["WAIT_SLOTS", "WAIT_TIMES"] {
        loader.map_max_entries(name, wait_slots::SETS);
    }
    loader.map_max_entries("WAITS", ring_bytes);
}

impl OffCpu {
    pub(super) fn of(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let types = Btf::from_sys_fs().map_err(LoadError::Types)?;
        for (name, tracepoint) in PROGRAMS {
            let program: &mut BtfTracePoint = program(ebpf, name)?;
            program
                .load(tracepoint, &types)
                .map_err(|source| LoadError::Program { name, source })?;
        }
        let (waits, hot) = (map(ebpf, "WAITS")?, map(ebpf, "OFF_CPU_HOT")?);
        Ok(Self { waits, hot, waiting: map(ebpf, "WAITING")?, links: Vec::new() })
    }

    /// All programs, or none. While they are attached, nothing is done.
    pub(super) fn start(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        let started = self.attach(ebpf);
        if started.is_err() {
            let _ = self.stop(ebpf);
        }
        started
    }

    fn attach(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        // Threads that waited when the programs were stopped have run since, unseen.
        for word in 0..wait_slots::WAITING_WORDS {
            self.waiting
                .set(word, 0, 0)
                .map_err(|source| LoadError::Map { name: "WAITING", source })?;
        }
        for (name, _) in PROGRAMS {
            let program: &mut BtfTracePoint = program(ebpf, name)?;
            let link = program.attach().map_err(|source| LoadError::Program { name, source })?;
            self.links.push((name, link));
        }
        Ok(())
    }

    /// The first error, after all that can be detached.
    pub(super) fn stop(&mut self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        let mut stopped = Ok(());
        for (name, link) in self.links.drain(..).rev() {
            let program: Result<&mut BtfTracePoint, LoadError> = program(ebpf, name);
            let detached = program.and_then(|program| {
                program.detach(link).map_err(|source| LoadError::Program { name, source })
            });
            stopped = stopped.and(detached);
        }
        stopped
    }

    /// A counter of one CPU.
    pub(super) fn count(&self, cpu: u32, counter: usize) -> u64 {
        let hot = self.hot.get(&cpu, 0).ok();
        hot.and_then(|hot| hot.counter(counter)).unwrap_or_default()
    }
}

impl Programs {
    /// Starts sampling waits, if the settings say so.
    pub fn start_off_cpu(&mut self) -> Result<(), LoadError> {
        match &mut self.off_cpu {
            Some(off_cpu) => off_cpu.start(&mut self.ebpf),
            None => Ok(()),
        }
    }

    /// As [`Self::records_fd`], of waits.
    pub fn waits_fd(&self) -> Option<BorrowedFd<'_>> {
        self.off_cpu.as_ref().map(|off_cpu| off_cpu.waits.as_fd())
    }

    /// The next record of a wait.
    pub fn next_wait(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        self.off_cpu.as_mut()?.waits.next()
    }

    /// A counter of the off-CPU sampler; as [`Programs::count`].
    pub fn count_of_waits(&self, counter: usize) -> u64 {
        let Some(off_cpu) = &self.off_cpu else { return 0 };
        (0..self.room).map(|cpu| off_cpu.count(cpu, counter)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use strata_abi::record::{Counter, FORM_ENDED, Header};

    use super::super::Settings;
    use super::*;
    use crate::kernel::introspect;

    /// A thread that waits for a message, reports that it has one, and waits for the next.
    fn waiting_thread() -> (u32, Sender<()>, Receiver<()>) {
        let (to, messages) = channel::<()>();
        let (has_one, reports) = channel();
        let (number, numbers) = channel();
        std::thread::spawn(move || {
            // SAFETY: the call has no preconditions.
            let _ = number.send(unsafe { libc::gettid() }.cast_unsigned());
            while messages.recv().is_ok() {
                let _ = has_one.send(());
            }
        });
        (numbers.recv().expect("it runs"), to, reports)
    }

    /// The headers of the wanted records: until there is one of the wanted form, and all that are there
    /// then. Of an end, the value is when the wait began.
    fn records_of(
        programs: &mut Programs,
        is_wanted: impl Fn(&Header) -> bool,
        with_end: bool,
    ) -> Vec<Header> {
        let until = Instant::now() + Duration::from_secs(10);
        let mut headers: Vec<Header> = Vec::new();
        let mut is_there = false;
        while !is_there {
            assert!(Instant::now() < until, "no such record in ten seconds: {headers:?}");
            std::thread::sleep(Duration::from_millis(20));
            while let Some(record) = programs.next_wait() {
                assert!(record.len() >= size_of::<Header>());
                // SAFETY: records start with a header, of which any bytes are a value.
                let header = unsafe { record.as_ptr().cast::<Header>().read_unaligned() };
                if is_wanted(&header) {
                    is_there |= (header.form == FORM_ENDED) == with_end;
                    headers.push(header);
                }
            }
        }
        headers
    }

    fn loaded() -> Programs {
        let settings =
            Settings { ring_bytes: 1 << 20, off_cpu: Some(1000), ..Settings::of_tests() };
        Programs::load(settings).expect("the programs load, as root")
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_thread_whose_set_is_full_of_waits_has_a_slot_before_long() {
        // Threads that the kernel does not have.
        const OTHERS: [u32; wait_slots::WAYS] = [1 << 30, 1 << 30 | 1, 1 << 30 | 2, 1 << 30 | 3];
        let mut programs = loaded();
        let mut slots: Array<MapData, [u32; wait_slots::SET_BYTES / 4]> =
            map(&mut programs.ebpf, "WAIT_SLOTS").expect("the map is there");
        programs.start_off_cpu().expect("they are attached");
        let mut full = [0; wait_slots::SET_BYTES / 4];
        full[..wait_slots::WAYS].copy_from_slice(&OTHERS);
        for set in 0..wait_slots::SETS {
            slots.set(set, full, 0).expect("a set");
        }
        let waiting = &mut programs.off_cpu.as_mut().expect("it is on").waiting;
        for word in 0..wait_slots::WAITING_WORDS {
            waiting.set(word, u64::MAX, 0).expect("a word");
        }
        let (tid, to, reports) = waiting_thread();
        // Both: the thread's own waits, and those that ended because their slots were taken. Other tests'
        // waits may fill the ring meanwhile.
        let is_other = |header: &Header| OTHERS.contains(&header.tid);
        let is_own = |header: &Header| header.tid == tid;
        let (mut own, mut other, mut crowded) = (false, false, 0);
        for _ in 0..20 {
            for _ in 0..50 {
                to.send(()).expect("the thread waits");
                reports.recv().expect("the thread runs");
                std::thread::sleep(Duration::from_millis(1));
            }
            let wanted = |header: &Header| is_own(header) || is_other(header);
            let mut headers = records_of(&mut programs, wanted, true);
            headers.retain(|header| header.form == FORM_ENDED);
            own |= headers.iter().any(is_own);
            other |= headers.iter().any(is_other);
            // By chance the first wait may have got a slot.
            crowded = programs.count_of_waits(Counter::Crowded as usize);
            if own && other && crowded > 0 {
                break;
            }
        }
        assert!(own && other && crowded > 0, "{own}, {other}, {crowded}");
    }

    /// Needs root, and loads the programs.
    #[test]
    fn the_time_of_all_programs_is_counted_and_not_the_samplers_alone() {
        let _statistics = introspect::enable_run_time_stats().expect("as root");
        let mut programs = loaded();
        programs.start_off_cpu().expect("they are attached");
        std::thread::sleep(Duration::from_millis(20));
        let sampler = programs.sampler_use().expect("it is loaded");
        assert_eq!(sampler.run_time, Duration::ZERO, "it is not started");
        assert!(programs.run_time() > Duration::ZERO);
    }

    /// Needs root, and loads the programs.
    #[test]
    fn a_wait_that_began_before_a_pause_does_not_end_after_it() {
        let mut programs = loaded();
        let (tid, to, reports) = waiting_thread();
        let is_own = |header: &Header| header.tid == tid;
        let run = || {
            to.send(()).expect("the thread waits");
            reports.recv().expect("the thread runs");
            std::thread::sleep(Duration::from_millis(20));
        };
        programs.start_off_cpu().expect("they are attached");
        run();
        records_of(&mut programs, is_own, false);
        run();
        records_of(&mut programs, is_own, true);
        programs.stop().expect("they are detached");
        let stopped = crate::engine::monotonic_nanos();
        run();
        programs.start_off_cpu().expect("they are attached again");
        run();
        let mut after = records_of(&mut programs, is_own, false);
        run();
        after.extend(records_of(&mut programs, is_own, true));
        let mut ends = after.iter().filter(|header| header.form == FORM_ENDED);
        assert!(ends.all(|end| end.value > stopped), "{stopped}: {after:?}");
    }

    #[test]
    fn waits_cost_their_share_whatever_the_kernels_tick_is() {
        for hz in [100, 250, 300, 1000] {
            let window = Window::of_ticks(1_000_000_000 / hz);
            let spent = f64::from(window.budget(10, 2)) * 2.0 / window.nanos as f64;
            println!("{hz} Hz: {window:?}, {spent:.5} of a CPU");
            assert!((80_000_000..192_000_000).contains(&window.nanos), "{hz}");
            assert!((spent - 0.01).abs() < 0.0001, "{hz}");
        }
        let window = Window::of_this_kernel();
        assert!((80_000_000..192_000_000).contains(&window.nanos), "{window:?}");
    }
}
