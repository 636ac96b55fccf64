//! The process that reads iterators over threads, which walk their stacks while they are read: of all
//! threads, or one after the other of the processes and threads of a list.
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

use libbpf_rs::libbpf_sys;
use rustix::thread::CapabilitySet;
use strata_sandbox::capabilities;

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

/// Bytes of an order for so many targets: their number, and of each its kind and its own number.
const ORDER: usize = 4 + MOST_TARGETS * TARGET;
const TARGET: usize = 8;
/// In place of the number of targets: all threads.
const ALL: u32 = u32::MAX;

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

/// The order for a pass over `targets`, or over all threads.
fn order(targets: Option<&[Target]>) -> Vec<u8> {
    let Some(targets) = targets else { return ALL.to_ne_bytes().to_vec() };
    let targets = targets.get(..MOST_TARGETS).unwrap_or(targets);
    let mut bytes = Vec::with_capacity(ORDER);
    bytes.extend((targets.len() as u32).to_ne_bytes());
    for (kind, number) in targets.iter().map(|target| target.words()) {
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

/// The next order; `None` at the end.
fn read_order(from: &mut impl Read) -> io::Result<Option<Option<Vec<Target>>>> {
    let mut word = [0; 4];
    match from.read_exact(&mut word) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let count = u32::from_ne_bytes(word);
    if count == ALL {
        return Ok(Some(None));
    }
    let mut bytes = vec![0; (count as usize).min(MOST_TARGETS) * TARGET];
    from.read_exact(&mut bytes)?;
    let (words, _) = bytes.as_chunks::<4>();
    let (pairs, _) = words.as_chunks::<2>();
    let target = |[kind, number]: &[[u8; 4]; 2]| {
        Target::of(u32::from_ne_bytes(*kind), u32::from_ne_bytes(*number))
    };
    Ok(Some(Some(pairs.iter().map(target).collect())))
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

/// What a pass has cost of a CPU, in nanoseconds, and how many of its targets could not be walked at
/// all: before Linux 6.1, each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub nanos: u64,
    pub refused: u64,
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

    /// Begins a pass over these targets, or over all threads.
    pub fn begin(&mut self, targets: Option<&[Target]>) -> io::Result<()> {
        self.socket.write_all(&order(targets))
    }

    /// What the pass has cost, once it is over.
    pub fn result(&mut self) -> io::Result<Option<Cost>> {
        let mut bytes = [0; 16];
        match self.socket.read(&mut bytes) {
            Ok(16) => {
                let word = |at: usize| {
                    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
                    u64::from_ne_bytes(word.copied().unwrap_or_default())
                };
                Ok(Some(Cost { nanos: word(0), refused: word(8) }))
            }
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it waits in the kernel.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('S' | 'D'))
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
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let program = io::stdout();
    let all = link(program.as_fd(), None)?;
    let has_targets = goes_over_targets(program.as_fd());
    // Of the targets of the last order.
    let mut links: HashMap<Target, OwnedFd> = HashMap::new();
    while let Some(targets) = read_order(&mut socket)? {
        let before = cpu_time();
        let mut refused = 0u64;
        match targets {
            None => read_threads(all.as_fd())?,
            Some(targets) if !has_targets => refused = targets.len() as u64,
            Some(targets) => {
                links.retain(|target, _| targets.contains(target));
                for target in targets {
                    walk(program.as_fd(), target, &mut links);
                }
            }
        }
        let mut cost = [0; 16];
        let (nanos, last) = cost.split_at_mut(8);
        nanos.copy_from_slice(&cpu_time().saturating_sub(before).to_ne_bytes());
        last.copy_from_slice(&refused.to_ne_bytes());
        socket.write_all(&cost)?;
    }
    Ok(())
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

/// A target that is gone has no threads. One that cannot be walked now is with the next pass over
/// all threads.
fn walk(program: BorrowedFd<'_>, target: Target, links: &mut HashMap<Target, OwnedFd>) {
    let link = match links.entry(target) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => match link(program, Some(target)) {
            Ok(link) => place.insert(link),
            Err(_) => return,
        },
    };
    _ = read_threads(link.as_fd());
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

    #[test]
    fn an_order_arrives_as_it_was_given() -> io::Result<()> {
        let few = vec![Target::Process(7), Target::Thread(u32::MAX), Target::Thread(0)];
        let many: Vec<Target> = (0..100).map(Target::Thread).collect();
        let mut bytes = Vec::new();
        for targets in [None, Some(&few), Some(&vec![]), Some(&many)] {
            bytes.extend(order(targets.map(Vec::as_slice)));
        }
        let mut from = bytes.as_slice();
        assert_eq!(read_order(&mut from)?, Some(None));
        assert_eq!(read_order(&mut from)?, Some(Some(few)));
        assert_eq!(read_order(&mut from)?, Some(Some(vec![])));
        let first = many.get(..MOST_TARGETS).map(<[Target]>::to_vec);
        assert_eq!(read_order(&mut from)?, Some(first));
        assert_eq!(read_order(&mut from)?, None);
        Ok(())
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
