//! Measures strata's memory, and keeps it within its limit.
//!
//! Counted are: memory of its own and of its helper processes, the program's file once, and the
//! kernel's memory for BPF maps, whose pages strata maps too and which count once.
//!
//! Memory is freed in this order: symbols that the last profile did not need, and processes'
//! identities, which are resolved again; then the aggregate, by an early flush; then helper
//! processes. Each is counted, and no sample is lost. Unwind tables have their own part of the
//! limit: the least used are evicted. What is left is for symbols: of files whose debug information
//! is larger, lines and inlined functions are left out.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Bytes in use.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Use {
    /// strata's own, the program's file included.
    pub own: u64,
    /// Of helper processes, without the program's file.
    pub workers: u64,
    /// Of BPF maps.
    pub maps: u64,
}

impl Use {
    pub fn total(&self) -> u64 {
        self.own.saturating_add(self.workers).saturating_add(self.maps)
    }
}

/// Resident bytes of strata, without the pages of BPF maps.
fn resident() -> u64 {
    let Ok(file) = fs::File::open("/proc/self/smaps") else { return 0 };
    let mut all = 0u64;
    let mut is_map = false;
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        if let Some(kib) = line.strip_prefix("Rss:") {
            if !is_map {
                all = all.saturating_add(bytes(kib));
            }
        } else if line.as_bytes().first().is_some_and(|first| !first.is_ascii_uppercase()) {
            is_map = line.ends_with("anon_inode:bpf-map");
        }
    }
    all
}

/// Anonymous bytes of a process. `statm`, because the kernel makes `status` of thirty other things.
fn private(process: &str) -> u64 {
    let mut text = [0u8; 256];
    let file = fs::File::open(format!("/proc/{process}/statm"));
    let length = file.and_then(|mut file| file.read(&mut text)).unwrap_or(0);
    let text = std::str::from_utf8(text.get(..length).unwrap_or_default()).unwrap_or_default();
    // SAFETY: only asks.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    anonymous_pages(text).saturating_mul(page)
}

/// size, resident, shared, …: fs/proc/array.c, `proc_pid_statm`; what is shared is of files or shmem.
fn anonymous_pages(statm: &str) -> u64 {
    let mut pages = statm.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared)
}

fn bytes(kib: &str) -> u64 {
    let number = kib.trim().trim_end_matches("kB").trim();
    number.parse::<u64>().unwrap_or(0).saturating_mul(1024)
}

/// How a limit is divided. The parts add up to less than the limit: programs take memory outside of
/// any part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub limit: u64,
    /// Of the kernel's, for unwind tables.
    pub tables: u64,
    /// Of the record ring; a power of two.
    pub ring: u32,
    /// Of samples between two flushes.
    pub samples: usize,
    /// The most symbols kept.
    pub names: usize,
    /// The most identities kept.
    pub process_metadata: usize,
    /// Of batches that wait in memory, of each exporter.
    pub exporter: usize,
    /// Of profiles that wait for the end of an exporter's period. Their origins, and what the store
    /// and the exporters make of them, take three times as much on top.
    pub waiting: usize,
    /// Of the store's dictionaries.
    pub store: usize,
    /// Of bridges' records, of all .NET processes together.
    pub bridges: usize,
    /// Of copied stacks that cannot be unwound yet: there are some for seconds after a process has
    /// started, and then none.
    pub stacks: usize,
}

/// The approximate size of a symbol with its code address.
const NAME_BYTES: u64 = 450;
/// The approximate size of an identity.
const PROCESS_METADATA_BYTES: u64 = 3 << 10;

impl Budget {
    pub fn of(limit: u64, exporters: usize) -> Self {
        let part = |of: u64| limit / of;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let ring = part(32).clamp(1 << 20, 8 << 20);
        let ring = if ring.is_power_of_two() { ring } else { ring.next_power_of_two() / 2 };
        Self {
            limit,
            tables: part(6).max(8 << 20),
            ring: u32::try_from(ring).unwrap_or(1 << 20),
            samples: size(part(16)),
            names: size(part(10) / NAME_BYTES),
            process_metadata: size(part(20) / PROCESS_METADATA_BYTES),
            exporter: size(part(24) / exporters.max(1) as u64).max(1 << 20),
            waiting: size(part(48)),
            store: size(part(24)),
            bridges: size(part(6)),
            stacks: size(part(8)).min(32 << 20),
        }
    }
}

/// The memory pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    None,
    /// Over nine tenths of the limit.
    Tight,
    /// Nearly at the limit.
    Over,
}

/// Measures memory periodically.
#[derive(Debug)]
pub struct Watch {
    pub limit: u64,
    pub last: Use,
    pub peak: u64,
    /// Resident bytes that are not strata's alone: its file, without the pages of BPF maps.
    shared: u64,
    looked: Instant,
    recent: Recent,
}

/// The most that strata itself took lately: a flush takes more than what lies between two.
#[derive(Debug)]
struct Recent {
    /// Of this span and of the one before.
    highest: [u64; 2],
    since: Instant,
    spans: u32,
}

impl Recent {
    fn note(&mut self, own: u64) {
        if self.since.elapsed() >= SPAN {
            let [now, _] = self.highest;
            (self.highest, self.since) = ([0, now], Instant::now());
            self.spans = self.spans.saturating_add(1);
        }
        let [now, _] = &mut self.highest;
        *now = own.max(*now);
    }

    /// What strata itself may take soon. It is not known before there was a flush.
    fn expected(&self, limit: u64) -> u64 {
        let [now, before] = self.highest;
        if self.spans == 0 { now.saturating_add(limit / 8) } else { now.max(before) }
    }
}

/// Longer than any period between flushes of the store.
const SPAN: Duration = Duration::from_secs(30);

/// What helper processes take that have nothing to do.
const IDLE_WORKERS: u64 = 6 << 20;

/// The interval of full measurements, which cost a millisecond. The parts that change are measured
/// every time.
const THOROUGHLY: Duration = Duration::from_secs(60);

impl Watch {
    pub fn new(limit: u64) -> Self {
        let now = Instant::now();
        let recent = Recent { highest: [0; 2], since: now, spans: 0 };
        let mut watch =
            Self { limit, last: Use::default(), peak: 0, shared: 0, looked: now, recent };
        watch.look_thoroughly();
        watch
    }

    fn look_thoroughly(&mut self) {
        self.looked = Instant::now();
        self.shared = resident().saturating_sub(private("self"));
    }

    pub fn pressure(&self) -> Pressure {
        let used = self.last.total();
        if used > self.limit / 100 * 95 {
            Pressure::Over
        } else if used > self.limit / 10 * 9 {
            Pressure::Tight
        } else {
            Pressure::None
        }
    }

    /// What workers may use for symbols, which they read while strata itself takes most: at a flush.
    pub fn room_for_workers(&self) -> u64 {
        let own = self.recent.expected(self.limit);
        let used = own.saturating_add(self.last.maps).saturating_add(IDLE_WORKERS);
        (self.limit / 100 * 95).saturating_sub(used)
    }

    /// A new measurement. `workers` are the helper processes, `maps` the bytes of BPF maps.
    pub fn look(&mut self, workers: impl Iterator<Item = u32>, maps: u64) -> Pressure {
        if self.looked.elapsed() >= THOROUGHLY {
            self.look_thoroughly();
        }
        let workers = workers.map(|pid| private(&pid.to_string())).sum();
        let own = self.shared.saturating_add(private("self"));
        self.last = Use { own, workers, maps };
        self.recent.note(own);
        self.peak = self.peak.max(self.last.total());
        self.pressure()
    }
}

/// One heap for all threads: with one each, memory freed by a thread could not be used by others,
/// and the limit is for all of them. Call before there are threads.
///
/// Tables and buffers of flushes get memory of their own, which goes back to the kernel when they
/// are freed and moves when they grow. glibc would put them into the heap from the second on, where
/// what is allocated between them keeps all of it: twice as much as was in use.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Returns the allocator's free memory to the kernel. Walking the heap costs a millisecond: while memory
/// is not tight, once a minute is enough.
pub fn trim_now_and_then() {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= TRIM) {
        *last = Some(Instant::now());
        trim();
    }
}

/// See [`trim_now_and_then`].
const TRIM: Duration = Duration::from_secs(60);

/// The same at once: memory is tight.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_limit_leave_room() {
        for limit in [64_000_000, 96_000_000, 256_000_000, 4_000_000_000] {
            let budget = Budget::of(limit, 3);
            let parts = budget.tables
                + u64::from(budget.ring)
                + budget.samples as u64
                + budget.names as u64 * NAME_BYTES
                + budget.process_metadata as u64 * PROCESS_METADATA_BYTES
                + budget.exporter as u64 * 3
                + budget.waiting as u64
                + budget.store as u64
                + budget.bridges as u64;
            assert!(parts < limit * 3 / 4, "{limit}: {budget:?}");
            assert!(budget.ring.is_power_of_two());
        }
    }

    #[test]
    fn anonymous_memory_is_what_is_resident_and_not_shared() {
        assert_eq!(anonymous_pages("5000 1200 700 300 0 900 0\n"), 500);
        assert_eq!(anonymous_pages(""), 0);
    }

    #[test]
    fn workers_get_what_is_left_when_strata_takes_most() {
        let mut watch = Watch::new(100 << 20);
        watch.last = Use { own: 10 << 20, workers: 0, maps: 20 << 20 };
        watch.recent = Recent { highest: [30 << 20, 40 << 20], since: Instant::now(), spans: 3 };
        let room = watch.room_for_workers();
        assert!(
            (28 << 20..=29 << 20).contains(&room),
            "of 95: 40 in a flush, 20 of maps, 6: {room}"
        );
        watch.recent = Recent { highest: [30 << 20, 0], since: Instant::now(), spans: 0 };
        assert!(watch.room_for_workers() < 28 << 20, "how much a flush takes is not known yet");
        watch.recent.highest = [90 << 20, 0];
        assert_eq!(watch.room_for_workers(), 0);
    }

    #[test]
    fn own_memory_is_seen() {
        let mut watch = Watch::new(1 << 40);
        watch.look(std::iter::empty(), 0);
        let before = watch.last.own;
        let filled = vec![7u8; 32 << 20];
        watch.look(std::iter::empty(), 0);
        let after = watch.last.own;
        assert!(after > before + (24 << 20), "{before} {after} {}", filled.len());
        assert_eq!(watch.pressure(), Pressure::None);
    }
}
