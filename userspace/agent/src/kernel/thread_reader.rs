//! The process that reads iterators over threads, which walk their stacks while they are read: of all
//! threads once, or one after the other of the processes and threads of a list, again and again until
//! there is another order. Between such passes it sleeps by itself: the engine, whose turn costs as
//! much as a pass over a few threads, is not woken for each.
//!
//! Reading another process's memory may fault on a file whose server never answers, and then sleeps
//! where SIGKILL does not reach it. So it is done by a process of its own, started from this
//! executable, that holds two descriptors: the program, and a socket. One that hangs is left
//! behind.
//!
//! Invariant: nothing here waits for that process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use strata_sandbox::capabilities;

use crate::random::Random;

/// The first argument of this executable as a reader.
pub const ARGUMENT: &str = "internal-threads";

/// What of a pass is walked by itself: all threads of a process, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Process(u32),
    Thread(u32),
}

/// Targets of a pass at most. Each costs as much as a dozen threads among all.
pub const MOST_TARGETS: usize = 64;

/// How often passes over targets are repeated: at random intervals, on average as long as wanted, or as the
/// share of a CPU allows that passes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pace {
    pub interval: Duration,
    /// A pass takes a CPU for one part in so many of the time from it to the next.
    pub one_in: u32,
    /// What taking the records of a pass costs, besides reading.
    pub taking: Duration,
}

impl Pace {
    /// How long it is on average from a pass of this cost to the next.
    fn pause(self, reading: Duration) -> Duration {
        ((reading + self.taking) * self.one_in).max(self.interval)
    }
}

/// What is to be repeated.
pub type Repeated = (Vec<Target>, Pace);

/// The next passes, until another order comes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Order {
    /// One over all threads, now.
    pub over_all: bool,
    /// Afterwards those over these targets.
    pub repeated: Option<Repeated>,
}

/// Of an order: its number, whether there is a pass over all threads, how many targets follow, and the pace.
const HEAD: usize = 32;
const TARGET: usize = 8;
/// In place of the number of targets.
const NONE: u32 = u32::MAX;

impl Target {
    fn words(self) -> (u32, u32) {
        match self {
            Self::Process(pid) => (0, pid),
            Self::Thread(tid) => (1, tid),
        }
    }

    fn of(kind: u32, number: u32) -> Self {
        if kind == 0 { Self::Process(number) } else { Self::Thread(number) }
    }
}

impl Order {
    fn bytes(&self, number: u32) -> Vec<u8> {
        let (count, targets, pace) = match &self.repeated {
            None => (NONE, &[][..], Pace::default()),
            Some((targets, pace)) => {
                let targets = targets.get(..MOST_TARGETS).unwrap_or(targets);
                (targets.len() as u32, targets, *pace)
            }
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = Vec::with_capacity(HEAD + MOST_TARGETS * TARGET);
        for word in [number, u32::from(self.over_all), count, pace.one_in] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(nanos(pace.interval).to_ne_bytes());
        bytes.extend(nanos(pace.taking).to_ne_bytes());
        for (kind, number) in targets.iter().map(|target| target.words()) {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    /// The next one and its number; `None` at the end.
    fn read(from: &mut impl Read) -> io::Result<Option<(u32, Self)>> {
        let mut head = [0; HEAD];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut order = Self { over_all: short(&head, 4) != 0, repeated: None };
        let count = short(&head, 8);
        if count != NONE {
            let mut bytes = vec![0; (count as usize).min(MOST_TARGETS) * TARGET];
            from.read_exact(&mut bytes)?;
            let (words, _) = bytes.as_chunks::<TARGET>();
            let targets = words.iter().map(|word| Target::of(short(word, 0), short(word, 4)));
            let pace = Pace {
                one_in: short(&head, 12),
                interval: Duration::from_nanos(long(&head, 16)),
                taking: Duration::from_nanos(long(&head, 24)),
            };
            order.repeated = Some((targets.collect(), pace));
        }
        Ok(Some((short(&head, 0), order)))
    }
}

fn short(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(word.copied().unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(word.copied().unwrap_or_default())
}

/// A link to the loaded iterator program, whose iterators go over a target's threads, or over all.
fn link(program: BorrowedFd<'_>, target: Option<Target>) -> io::Result<OwnedFd> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(target) = target {
        let (pid, tid) = match target {
            Target::Process(pid) => (pid, 0),
            Target::Thread(tid) => (0, tid),
        };
        info.task = libbpf_sys::bpf_iter_link_info__bindgen_ty_3 { tid, pid, pid_fd: 0 };
        options.iter_info = &raw mut info;
        options.iter_info_len = size_of_val(&info) as u32;
    }
    // SAFETY: the options and what they point to live until the call returns.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            &raw const options,
        )
    };
    owned(fd)
}

/// Whether the program can be linked and run: the kernel lets an iterator sleep, and no filter of system
/// calls refuses one. It runs for no thread.
pub fn check(program: BorrowedFd<'_>) -> io::Result<()> {
    iterator(link(program, None)?.as_fd()).map(drop)
}

/// What runs the program of a link for each thread while it is read.
fn iterator(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: a plain number.
    owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })
}

/// The result of a call of libbpf: a new descriptor, or a negated error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A running reader.
pub struct Reader {
    child: Child,
    socket: UnixStream,
}

/// What passes have cost of a CPU, in nanoseconds, with the reader's sleeps between them; how many they
/// were, and how many of their targets could not be walked at all: before Linux 6.1, each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub nanos: u64,
    pub passes: u32,
    pub refused: u32,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.nanos += other.nanos;
        self.passes += other.passes;
        self.refused += other.refused;
    }
}

/// What a reader has done since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of its order. The first one of an order with a pass over all threads is of that pass.
    pub order: u32,
    pub cost: Cost,
}

const REPORT: usize = 24;

impl Report {
    fn bytes(&self) -> [u8; REPORT] {
        let mut bytes = [0; REPORT];
        let Cost { nanos, passes, refused } = self.cost;
        let (nanoseconds, rest) = bytes.split_at_mut(8);
        nanoseconds.copy_from_slice(&nanos.to_ne_bytes());
        for (to, from) in rest.chunks_exact_mut(4).zip([self.order, passes, refused]) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; REPORT]) -> Self {
        let cost =
            Cost { nanos: long(bytes, 0), passes: short(bytes, 12), refused: short(bytes, 16) };
        Self { order: short(bytes, 8), cost }
    }
}

impl Reader {
    pub fn start(program: BorrowedFd<'_>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // A process group of its own: a Ctrl-C on the terminal is for strata, which ends it.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(program.try_clone_to_owned()?))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It goes over to this order after the pass that it is at.
    pub fn order(&mut self, number: u32, order: &Order) -> io::Result<()> {
        self.socket.write_all(&order.bytes(number))
    }

    /// What it has done.
    pub fn reports(&mut self) -> io::Result<Vec<Report>> {
        // Each is written at once, so they arrive whole.
        let mut bytes = [0; 32 * REPORT];
        let mut reports = Vec::new();
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let (all, _) = bytes.get(..length).unwrap_or_default().as_chunks::<REPORT>();
                    reports.extend(all.iter().map(Report::of));
                    if length < bytes.len() {
                        return Ok(reports);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(reports),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it waits in the kernel, or was stopped.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('S' | 'D' | 'T' | 't'))
    }

    /// Does nothing to one that has ended, whose number may be another process's by now.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.try_wait();
    }
}

/// Readers that were killed and have not ended yet.
#[derive(Default)]
pub struct Ending(Vec<Reader>);

impl Ending {
    pub fn add(&mut self, mut reader: Reader) {
        reader.kill();
        self.0.push(reader);
    }

    /// Takes away those that have ended meanwhile.
    pub fn reap(&mut self) {
        self.0.retain_mut(|reader| !reader.has_ended());
    }
}

/// Runs as a reader, until strata has ended.
pub fn run() -> io::Result<()> {
    const FIRST_UNWANTED: libc::c_uint = 3;
    // SAFETY: at the start of a process that has opened nothing beyond its standard descriptors.
    // The signal is for when the thread that started it ends.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_UNWANTED, libc::c_uint::MAX, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"strata-threads".as_ptr());
    }
    keep_only_what_reading_needs();
    // SAFETY: this process owns its standard input, a socket, and uses it only here.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let program = io::stdout();
    let walker = Walker {
        program: program.as_fd(),
        all: link(program.as_fd(), None)?,
        has_targets: goes_over_targets(program.as_fd()),
        links: HashMap::new(),
    };
    serve(socket, walker)
}

/// Carries out orders.
fn serve(mut socket: UnixStream, mut walker: Walker<'_>) -> io::Result<()> {
    /// Reports of repeated passes are this far apart.
    const REPORTS: Duration = Duration::from_millis(200);
    let mut random = Random::new();
    let (mut number, mut order) = (0, Order::default());
    let mut done = Cost::default();
    let mut reported = Instant::now();
    // Of the last pass over targets, and what the pause after it is multiplied by: drawn once, because
    // drawn again with each order the pauses would be shorter.
    let (mut began, mut last_cost, mut factor) = (Instant::now(), Duration::ZERO, 1.0);
    let mut used = cpu_time();
    loop {
        let until = match &order {
            Order { over_all: true, .. } => Some(Instant::now()),
            Order { repeated: None, .. } => None,
            Order { repeated: Some((_, pace)), .. } => {
                Some(began + pace.pause(last_cost).mul_f64(factor))
            }
        };
        if has_order(&socket, until)? {
            let Some(next) = Order::read(&mut socket)? else { return Ok(()) };
            if done.passes > 0 {
                report(&mut socket, number, &mut done)?;
            }
            (number, order) = next;
            continue;
        }
        let now = Instant::now();
        let is_over_all = std::mem::take(&mut order.over_all);
        let refused = match &order.repeated {
            _ if is_over_all => {
                read_threads(walker.all.as_fd())?;
                0
            }
            Some((targets, _)) => walker.walk(targets),
            None => 0,
        };
        let before = std::mem::replace(&mut used, cpu_time());
        let nanos = used.saturating_sub(before);
        done += Cost { nanos, passes: 1, refused };
        if !is_over_all {
            // What one over all threads costs is the engine's to make up for.
            (began, last_cost, factor) = (now, Duration::from_nanos(nanos), random.factor());
        }
        if is_over_all || now.duration_since(reported) >= REPORTS {
            report(&mut socket, number, &mut done)?;
            reported = now;
        }
    }
}

fn report(socket: &mut UnixStream, order: u32, done: &mut Cost) -> io::Result<()> {
    socket.write_all(&Report { order, cost: std::mem::take(done) }.bytes())
}

/// Waits for an order: false at this time, or never without one.
fn has_order(socket: &UnixStream, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The program, and its links.
struct Walker<'a> {
    program: BorrowedFd<'a>,
    all: OwnedFd,
    /// Otherwise passes go over all threads alone.
    has_targets: bool,
    /// Of the targets of the last pass.
    links: HashMap<Target, OwnedFd>,
}

impl Walker<'_> {
    /// Returns how many could not be walked at all.
    fn walk(&mut self, targets: &[Target]) -> u32 {
        if !self.has_targets {
            return targets.len() as u32;
        }
        self.links.retain(|target, _| targets.contains(target));
        for target in targets {
            // One that is gone has no threads. One that cannot be walked now is with the next pass over
            // all threads.
            let link = match self.links.entry(*target) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match link(self.program, Some(*target)) {
                    Ok(link) => place.insert(link),
                    Err(_) => continue,
                },
            };
            _ = read_threads(link.as_fd());
        }
        0
    }
}

/// Whether the kernel has iterators over some threads. Before Linux 6.1, the number of a process is
/// one word too many, but that of a thread is not read and its link goes over all threads.
fn goes_over_targets(program: BorrowedFd<'_>) -> bool {
    let this = Target::Process(std::process::id());
    match link(program, Some(this)) {
        Ok(_) => true,
        Err(error) => !matches!(error.raw_os_error(), Some(libc::E2BIG | libc::EINVAL)),
    }
}

/// Has the program run for each thread of a link.
fn read_threads(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut pass = std::fs::File::from(iterator(link)?);
    // The program runs while its output, which is empty, is read.
    let mut output = [0; 64];
    loop {
        match pass.read(&mut output) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // After a million threads the kernel asks for another call.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// What root executes has all of its capabilities again: this takes CAP_BPF, for each run of the
/// iterator, or CAP_SYS_ADMIN on behalf of it. Best effort: without it a pass fails, and says so.
fn keep_only_what_reading_needs() {
    let _ = capabilities::keep_only(|held| match held.contains(CapabilitySet::BPF) {
        true => CapabilitySet::BPF,
        false => CapabilitySet::SYS_ADMIN,
    });
    let _ = rustix::thread::set_no_new_privs(true);
}

/// Nanoseconds of a CPU that this thread has used.
fn cpu_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    const PACE: Pace =
        Pace { interval: Duration::from_millis(4), one_in: 114, taking: Duration::from_micros(3) };

    #[test]
    fn orders_and_reports_arrive_as_they_were_given() -> io::Result<()> {
        let few = vec![Target::Process(7), Target::Thread(u32::MAX), Target::Thread(0)];
        let many: Vec<Target> = (0..100).map(Target::Thread).collect();
        let first = many.get(..MOST_TARGETS).map(<[Target]>::to_vec).unwrap_or_default();
        let given = [
            (true, None, None),
            (true, Some(few.clone()), Some(few)),
            (false, None, None),
            (false, Some(many), Some(first)),
        ];
        let order = |over_all, targets: Option<Vec<Target>>| Order {
            over_all,
            repeated: targets.map(|targets| (targets, PACE)),
        };
        let mut bytes = Vec::new();
        for (number, (over_all, targets, _)) in (7..).zip(&given) {
            bytes.extend(order(*over_all, targets.clone()).bytes(number));
        }
        let mut from = bytes.as_slice();
        for (number, (over_all, _, arrive)) in (7..).zip(given) {
            assert_eq!(Order::read(&mut from)?, Some((number, order(over_all, arrive))));
        }
        assert_eq!(Order::read(&mut from)?, None);
        let cost = Cost { nanos: u64::MAX, passes: 2, refused: 3 };
        let report = Report { order: 4, cost };
        assert_eq!(Report::of(&report.bytes()), report);
        Ok(())
    }

    #[test]
    fn passes_are_repeated_until_another_order_comes() -> anyhow::Result<()> {
        // None of its links can be made: a pass goes over no thread.
        let program = std::fs::File::open("/dev/null")?;
        let (ours, theirs) = UnixStream::pair()?;
        let serving = std::thread::spawn(move || {
            let walker = Walker {
                program: program.as_fd(),
                all: program.try_clone()?.into(),
                has_targets: true,
                links: HashMap::new(),
            };
            serve(theirs, walker)
        });
        let child = Command::new("true").spawn()?;
        let mut reader = Reader { child, socket: ours };
        let reports = |reader: &mut Reader, count: usize| {
            reader.socket.set_nonblocking(false)?;
            let mut bytes = [0; REPORT];
            let mut reports = Vec::new();
            while reports.len() < count {
                reader.socket.read_exact(&mut bytes)?;
                reports.push(Report::of(&bytes));
            }
            reader.socket.set_nonblocking(true)?;
            io::Result::Ok(reports)
        };
        let order = Order { over_all: false, repeated: Some((vec![Target::Thread(1)], PACE)) };
        reader.order(1, &order)?;
        for Report { order, cost } in reports(&mut reader, 2)? {
            assert!(order == 1 && cost.passes > 1 && cost.nanos > 0, "{cost:?}");
        }
        // What was done for an order is reported before the next is carried out.
        std::thread::sleep(Duration::from_millis(50));
        reader.order(2, &order)?;
        let last = reports(&mut reader, 2)?;
        let orders: Vec<u32> = last.iter().map(|report| report.order).collect();
        assert!(orders == [1, 2] || orders == [1, 1], "{orders:?}");
        reader.order(3, &Order::default())?;
        std::thread::sleep(Duration::from_millis(300));
        reader.reports()?;
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(reader.reports()?, []);
        drop(reader);
        serving.join().expect("no panic")?;
        Ok(())
    }

    #[test]
    fn a_dear_pass_puts_off_the_next_one() {
        let pauses = [0, 30, 1_000].map(|micros| PACE.pause(Duration::from_micros(micros)));
        assert_eq!(pauses.map(|pause| pause.as_micros()), [4_000, 4_000, 114_342]);
    }

    #[test]
    fn a_reader_that_is_of_no_use_leaves_no_process() -> io::Result<()> {
        // This executable has no such test, and ends by itself.
        let program = std::fs::File::open("/dev/null")?;
        let (mut ending, reader) = (Ending::default(), Reader::start(program.as_fd())?);
        let process = format!("/proc/{}", reader.pid());
        ending.add(reader);
        let end = Instant::now() + Duration::from_secs(10);
        while !ending.0.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            ending.reap();
        }
        assert!(!Path::new(&process).exists());
        Ok(())
    }
}
