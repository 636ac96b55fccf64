//! Process events: one dummy perf event per CPU that carries MMAP2, COMM, FORK and EXIT records.
//!
//! They need no mount and no tracepoint. Build ids are *not* asked for: a build id takes the place
//! of device and inode in the record (include/uapi/linux/perf_event.h,
//! `PERF_RECORD_MISC_MMAP_BUILD_ID`), and those identify files; build ids are read from the files
//! themselves.
//!
//! Any user may rename threads millions of times a second, and the kernel writes a record of each. An
//! event cannot have the executions of programs without these, so a CPU that is flooded with them has
//! an event without either for a while, which counts as a loss of events.
//!
//! Invariant: [`InOrder`] gives events in the order of their times, across all CPUs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::perf_event::{self, CpuEvent};
use super::perf_record::{self, Timed};

/// Data pages of one CPU's ring; a power of two (1 MiB): what processes that map without end write
/// within 100 ms, should the agent not get a CPU for so long.
const DATA_PAGES: usize = 256;
/// The same of hosts with more CPUs than [`MANY_CPUS`] (256 KiB).
const FEWER_DATA_PAGES: usize = 64;
/// Of a ring for which there is no room: how much a user may map is limited without CAP_IPC_LOCK
/// (`perf_mmap` in kernel/events/core.c).
const FEWEST_DATA_PAGES: usize = 16;
/// A ring with less room than this may have lost events, which the kernel says with the next one only.
const NEARLY_FULL: usize = 8 << 10;
const MANY_CPUS: usize = 16;
const PAGE: usize = 4096;
/// Unread bytes of one CPU's ring that wake userspace: about twenty programs that start. Being
/// woken is paid by the process that caused the event, a third of what starting a small program
/// costs when every mapping does it. A process that is sampled for the first time wakes it too.
const WAKEUP_BYTES: u32 = 32 << 10;

/// The most threads of one CPU that are renamed within a second: programs that start threads and name
/// them make some thousands.
const MOST_RENAMED: u32 = 16 << 10;
const RENAMED_WITHIN: u64 = 1_000_000_000;
/// A flooded CPU has an event without names for so long.
const WITHOUT_NAMES: Duration = Duration::from_secs(10);

/// When process events wake userspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// Each event: newly compiled code is known before much of it is sampled, even at the highest
    /// rates.
    Each,
    /// Batches of events.
    Many,
}

/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

struct CpuRing {
    cpu: u32,
    fd: OwnedFd,
    start: *mut u8,
    data_pages: usize,
    has_names: bool,
    renamed: Renamed,
    /// When an event with names, or without, is to take the place of this one.
    replaced_from: Option<Instant>,
}

/// Threads that are renamed, by the times of the records.
#[derive(Default)]
struct Renamed {
    since: u64,
    count: u32,
}

impl Renamed {
    /// Whether that is one too many.
    fn is_flood(&mut self, time: u64) -> bool {
        if time.saturating_sub(self.since) >= RENAMED_WITHIN {
            *self = Self { since: time, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count > MOST_RENAMED
    }
}

// SAFETY: the mapping belongs to this value alone; the kernel side is accessed by atomics.
unsafe impl Send for CpuRing {}

/// The memory of an event's ring.
fn map_ring(event: BorrowedFd<'_>, data_pages: usize) -> io::Result<*mut u8> {
    // SAFETY: a fresh mapping of the event's ring; the result is checked.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            (data_pages + 1) * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            event.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}

impl CpuRing {
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapping's first page, 8-byte aligned, shared with the kernel.
        unsafe { &*self.start.add(offset).cast::<AtomicU64>() }
    }

    /// Copies `length` bytes at ring position `at`, which may wrap.
    fn copy(&self, at: u64, length: usize, to: &mut Vec<u8>) {
        let size = self.data_pages * PAGE;
        let offset = at as usize & (size - 1);
        let first = length.min(size - offset);
        // SAFETY: both parts lie within the data pages; the kernel does not write between tail
        // and head.
        unsafe {
            let data = self.start.add(PAGE);
            to.extend_from_slice(std::slice::from_raw_parts(data.add(offset), first));
            to.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
    }

    /// Mappings of processes that `passes_over` names with their time are not even parsed.
    fn drain(
        &mut self,
        scratch: &mut Vec<u8>,
        events: &mut Vec<Timed>,
        passes_over: &mut impl FnMut(u32, u64) -> bool,
    ) {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        if head.wrapping_sub(tail) > (self.data_pages * PAGE - NEARLY_FULL) as u64 {
            events.push(Timed::lost(0));
        }
        while head.wrapping_sub(tail) >= 8 {
            scratch.clear();
            self.copy(tail, 8, scratch);
            let header = scratch.first_chunk::<8>().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let (kind, misc, size) = (header as u32, (header >> 32) as u16, header >> 48);
            if size < 8 || size > head.wrapping_sub(tail) {
                tail = head;
                break;
            }
            scratch.clear();
            self.copy(tail.wrapping_add(8), size as usize - 8, scratch);
            let is_passed_over = perf_record::mapping_of(kind, scratch)
                .is_some_and(|(pid, time)| passes_over(pid, time));
            let renamed_at = perf_record::renamed_at(kind, misc, scratch);
            if renamed_at.is_some_and(|time| self.renamed.is_flood(time)) {
                self.replaced_from.get_or_insert_with(Instant::now);
            }
            if !is_passed_over {
                events.extend(perf_record::parse(kind, misc, scratch));
            }
            tail = tail.wrapping_add(size);
        }
        self.position(DATA_TAIL).store(tail, Ordering::Release);
    }
}

fn is_without_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM))
}

impl Drop for CpuRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map_ring`.
        unsafe { libc::munmap(self.start.cast(), (self.data_pages + 1) * PAGE) };
    }
}

/// The process events of all CPUs.
pub struct Sideband {
    wakeup: Wakeup,
    data_pages: usize,
    rings: Vec<CpuRing>,
    epoll: OwnedFd,
    scratch: Vec<u8>,
    /// Events of rings that were replaced.
    left: Vec<Timed>,
    /// CPUs whose events could not be had.
    missing: Vec<Missing>,
}

/// A CPU without a ring.
struct Missing {
    cpu: u32,
    /// The reason has been logged.
    is_logged: bool,
}

/// Opens an event of a CPU; [`WouldBlock`](io::ErrorKind::WouldBlock) when it is there later.
type Opens<'a> = &'a mut dyn FnMut(u32, CpuEvent) -> io::Result<OwnedFd>;

impl Sideband {
    pub fn open(cpus: &[u32], wakeup: Wakeup) -> io::Result<Self> {
        // SAFETY: no memory involved; the result is checked.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor without another owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let data_pages = if cpus.len() > MANY_CPUS { FEWER_DATA_PAGES } else { DATA_PAGES };
        let (rings, scratch, left, missing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut sideband = Self { wakeup, data_pages, rings, epoll, scratch, left, missing };
        for &cpu in cpus {
            match sideband.try_open_on(cpu, true, &mut |cpu, event| event.open(cpu)) {
                // The CPU has just been switched off.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    sideband.note_missing(cpu, false);
                }
                outcome => outcome?,
            }
        }
        Ok(sideband)
    }

    /// Rings of CPUs that are off get no events any more, and keep the memory of the next ones.
    pub fn close_others(&mut self, cpus: &[u32]) {
        let others = self.rings.iter().map(|ring| ring.cpu).filter(|cpu| !cpus.contains(cpu));
        for cpu in others.collect::<Vec<u32>>() {
            self.close(cpu);
        }
    }

    /// Takes the events of a CPU from a new ring: one that was switched off has lost the old one.
    pub fn open_on(&mut self, cpu: u32, opens: Opens<'_>) {
        let known = self.missing.iter().position(|missing| missing.cpu == cpu);
        let known = known.map(|place| self.missing.swap_remove(place));
        let was_logged = known.is_some_and(|missing| missing.is_logged);
        match self.try_open_on(cpu, true, opens) {
            // How many there were until now is unknown.
            Ok(()) => self.left.push(Timed::lost(1)),
            Err(error) => {
                let is_failure = error.kind() != io::ErrorKind::WouldBlock;
                if is_failure && !was_logged {
                    tracing::warn!(cpu, %error, "no process events of this CPU until that succeeds");
                }
                self.note_missing(cpu, was_logged || is_failure);
            }
        }
    }

    fn note_missing(&mut self, cpu: u32, is_logged: bool) {
        if self.missing.iter().all(|missing| missing.cpu != cpu) {
            self.missing.push(Missing { cpu, is_logged });
        }
    }

    /// Tries again where there is no ring, of the CPUs that are on.
    pub fn open_missing(&mut self, cpus: &[u32], opens: Opens<'_>) {
        self.missing.retain(|missing| cpus.contains(&missing.cpu));
        let missing: Vec<u32> = self.missing.iter().map(|missing| missing.cpu).collect();
        for cpu in missing {
            self.open_on(cpu, opens);
        }
    }

    /// Replaces the events of CPUs that are flooded with names by ones without, and those by ones with
    /// names again later. Returns whether a CPU has none.
    pub fn follow_floods(&mut self, opens: Opens<'_>) -> bool {
        let now = Instant::now();
        let due = self.rings.iter().filter(|ring| ring.replaced_from.is_some_and(|due| due <= now));
        let due: Vec<(u32, bool)> = due.map(|ring| (ring.cpu, !ring.has_names)).collect();
        for (cpu, has_names) in due {
            let outcome = self.try_open_on(cpu, has_names, opens);
            let Some(ring) = self.rings.iter_mut().find(|ring| ring.cpu == cpu) else {
                // It was closed to make room for one that could not be opened.
                self.left.push(Timed::lost(1));
                self.note_missing(cpu, false);
                continue;
            };
            match outcome {
                Ok(()) => {
                    match has_names {
                        true => tracing::debug!(cpu, "names of threads are taken again"),
                        false => tracing::debug!(cpu, "threads are renamed without end"),
                    }
                    ring.replaced_from = (!has_names).then(|| now + WITHOUT_NAMES);
                    // How many there were is unknown.
                    self.left.push(Timed::lost(1));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The CPU was switched off: it has a new ring when it is on again.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    self.rings.retain(|ring| ring.cpu != cpu);
                    self.note_missing(cpu, false);
                }
                Err(error) => {
                    tracing::debug!(cpu, %error, "the process events of a CPU stay as they are");
                    // A flood that goes on is noticed again.
                    ring.replaced_from = has_names.then(|| now + WITHOUT_NAMES);
                    ring.renamed = Renamed::default();
                }
            }
        }
        self.rings.iter().any(|ring| !ring.has_names)
    }

    fn try_open_on(&mut self, cpu: u32, has_names: bool, opens: Opens<'_>) -> io::Result<()> {
        let wakeup_bytes = match self.wakeup {
            Wakeup::Each => 1,
            Wakeup::Many => WAKEUP_BYTES,
        };
        let event = opens(cpu, CpuEvent::Processes { wakeup_bytes, has_names })?;
        let (start, data_pages) = self.map(cpu, event.as_fd())?;
        let renamed = Renamed::default();
        let ring =
            CpuRing { cpu, fd: event, start, data_pages, has_names, renamed, replaced_from: None };
        let mut interest =
            libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: valid descriptors and a valid event.
        let added = unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                ring.fd.as_raw_fd(),
                &raw mut interest,
            )
        };
        if added != 0 {
            return Err(io::Error::last_os_error());
        }
        perf_event::enable(ring.fd.as_fd())?;
        // An event seen by both is delivered twice; the second changes nothing.
        self.close(cpu);
        self.rings.push(ring);
        Ok(())
    }

    /// The memory of a CPU's new ring, with as many pages as there is room for. What the old one takes is
    /// given up for it: a loss follows in any case.
    fn map(&mut self, cpu: u32, event: BorrowedFd<'_>) -> io::Result<(*mut u8, usize)> {
        let mut data_pages = self.data_pages;
        loop {
            match map_ring(event, data_pages) {
                Err(error) if is_without_room(&error) => {
                    if self.close(cpu) {
                        continue;
                    }
                    if data_pages <= FEWEST_DATA_PAGES {
                        return Err(error);
                    }
                    data_pages /= 2;
                }
                outcome => return Ok((outcome?, data_pages)),
            }
        }
    }

    /// Closes the ring of a CPU, if there is one.
    fn close(&mut self, cpu: u32) -> bool {
        let place = self.rings.iter().position(|ring| ring.cpu == cpu);
        let Some(place) = place else { return false };
        let mut old = self.rings.swap_remove(place);
        old.drain(&mut self.scratch, &mut self.left, &mut |_, _| false);
        true
    }

    /// Readable when any CPU has events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Clears the readiness, so that `fd` is readable again only for new events.
    pub fn clear_ready(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: room for 32 events; a timeout of zero does not block.
        while unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 32, 0) } == 32
        {
        }
    }

    /// All events so far, one CPU's after the other's, except mapping events that are skipped.
    pub fn drain(&mut self, into: &mut Vec<Timed>, mut passes_over: impl FnMut(u32, u64) -> bool) {
        into.append(&mut self.left);
        for ring in &mut self.rings {
            ring.drain(&mut self.scratch, into, &mut passes_over);
        }
    }
}

/// Events in the order of their times. Rings are read one after the other: the fork of a process
/// may be written to the first just after it was read, and its exec to the last just before. So
/// events later than the start of the reading wait for the next one.
#[derive(Default)]
pub struct InOrder {
    events: VecDeque<Timed>,
    complete_until: u64,
}

impl InOrder {
    /// Adds the events read from the rings, the first of which was read at this time or later.
    pub fn take_in(&mut self, new: &mut Vec<Timed>, read_from: u64) {
        self.complete_until = read_from;
        if new.is_empty() {
            return;
        }
        self.events.extend(new.drain(..));
        // Stable: records of the same moment stay in their CPU's order.
        self.events.make_contiguous().sort_by_key(|event| event.time);
    }

    /// The time until which all events were given, after they were up to this one.
    pub fn given(&self, until: u64) -> u64 {
        until.min(self.complete_until)
    }

    /// The next event until a time.
    pub fn next(&mut self, until: u64) -> Option<Timed> {
        let until = until.min(self.complete_until);
        self.events.pop_front_if(|event| event.time <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::perf_record::Event;
    use super::*;

    fn fork(time: u64) -> Timed {
        Timed { time, event: Event::Fork { pid: 9, parent: 1, tid: 9 } }
    }

    fn exec(time: u64) -> Timed {
        let event = Event::Comm { pid: 9, tid: 9, name: b"new".to_vec(), exec: true };
        Timed { time, event }
    }

    fn times(events: &mut InOrder, until: u64) -> Vec<u64> {
        std::iter::from_fn(|| events.next(until)).map(|event| event.time).collect()
    }

    fn threads_renamed(times: u32) {
        let renamed = std::thread::spawn(move || {
            // SAFETY: a set of CPUs is zeroed bytes; the calls read what lives through them.
            let is_pinned = unsafe {
                let mut first: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(0, &mut first);
                libc::sched_setaffinity(0, size_of_val(&first), &raw const first)
            };
            assert_eq!(is_pinned, 0);
            for _ in 0..times {
                // SAFETY: a text that ends in NUL.
                unsafe { libc::prctl(libc::PR_SET_NAME, c"renamed".as_ptr()) };
            }
        });
        renamed.join().expect("it ends");
    }

    /// Needs root, as strata does.
    #[test]
    fn a_cpu_that_is_flooded_with_names_has_an_event_without_them_for_a_while() {
        let mut opens = |cpu, event: CpuEvent| event.open(cpu);
        let mut sideband = Sideband::open(&[0], Wakeup::Many).expect("events");
        let mut events = Vec::new();
        let mut renamed = |sideband: &mut Sideband, times| {
            threads_renamed(times);
            sideband.drain(&mut events, |_, _| false);
            let of_test =
                |of: &Timed| matches!(&of.event, Event::Comm { name, .. } if name == b"renamed");
            let count = events.iter().filter(|event| of_test(event)).count();
            let is_lost = events.iter().any(|event| matches!(event.event, Event::Lost { .. }));
            events.clear();
            (count, is_lost)
        };
        let few = renamed(&mut sideband, 1000);
        assert_eq!(few, (1000, false));
        assert!(!sideband.follow_floods(&mut opens));
        // A ring is read as it fills. The host may be too busy for a flood within a second.
        let mut flood = || {
            renamed(&mut sideband, MOST_RENAMED / 8);
            sideband.follow_floods(&mut opens)
        };
        assert!((0..1000).any(|_| flood()));
        assert_eq!(renamed(&mut sideband, 1000), (0, true));
        assert_eq!(renamed(&mut sideband, 1000), (0, false));
        assert!(sideband.follow_floods(&mut opens), "it lasts");
        sideband.rings[0].replaced_from = Some(Instant::now());
        assert!(!sideband.follow_floods(&mut opens));
        assert_eq!(renamed(&mut sideband, 1000), (1000, true));
    }

    /// This thread may lock half a ring beside what any user may, which is one ring on two CPUs.
    fn give_up_locking() -> Result<(), rustix::io::Errno> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let limit = getrlimit(Resource::Memlock);
        let half_a_ring = DATA_PAGES / 2 * PAGE;
        setrlimit(Resource::Memlock, Rlimit { current: Some(half_a_ring as u64), ..limit })?;
        let mut own = capabilities(None)?;
        own.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, own)
    }

    /// Needs root, as strata does.
    #[test]
    fn a_ring_takes_the_memory_of_the_one_before_where_there_is_no_more() {
        const ALONE: &str = "STRATA_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            // What other tests lock counts too.
            let test = "kernel::sideband::tests::a_ring_takes_the_memory_of_the_one_before_where_there_is_no_more";
            let mut alone = std::process::Command::new(std::env::current_exe().expect("a test"));
            let ended = alone.args(["--exact", test]).env(ALONE, "1").output().expect("it starts");
            let output = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        let mut opens = |cpu, event: CpuEvent| event.open(cpu);
        give_up_locking().expect("needs root");
        let mut sideband = Sideband::open(&[0], Wakeup::Many).expect("events");
        for _ in 0..3 {
            sideband.open_on(0, &mut opens);
            assert!(sideband.missing.is_empty() && sideband.rings.len() == 1);
        }
        threads_renamed(10);
        let mut events = Vec::new();
        sideband.drain(&mut events, |_, _| false);
        let of_test =
            |of: &&Timed| matches!(&of.event, Event::Comm { name, .. } if name == b"renamed");
        assert_eq!(events.iter().filter(of_test).count(), 10);
        assert_eq!(events.iter().filter(|of| matches!(of.event, Event::Lost { .. })).count(), 3);
        sideband.close_others(&[1]);
        assert!(sideband.rings.is_empty());
    }

    #[test]
    fn names_are_a_flood_where_there_are_too_many_within_a_second() {
        let mut names = Renamed::default();
        let each = RENAMED_WITHIN / u64::from(MOST_RENAMED) + 1;
        assert!((0..1_000_000).all(|number| !names.is_flood(number * each)));
        let mut names = Renamed::default();
        let taken = (0..1_000_000).take_while(|number| !names.is_flood(number * each / 2)).count();
        assert_eq!(taken, MOST_RENAMED as usize);
    }

    #[test]
    fn an_exec_that_was_read_before_its_fork_comes_after_it() {
        let mut events = InOrder::default();
        events.take_in(&mut vec![fork(40), exec(105)], 100);
        assert_eq!(times(&mut events, u64::MAX), [40], "older ones may still come");
        events.take_in(&mut vec![fork(102), exec(180)], 200);
        assert_eq!(times(&mut events, 110), [102, 105]);
        assert_eq!(times(&mut events, u64::MAX), [180]);
    }
}
