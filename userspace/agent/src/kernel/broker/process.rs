//! The helper process: this executable once more, started before the main process gives its
//! CAP_SYS_ADMIN up.
//!
//! Three kinds of processes, each the parent of the next, all without threads:
//!
//! - the *keeper* starts a broker, and another one if that dies, ever later if each dies soon: once
//!   the main process has given the capability up it may not be able to (`no_new_privs`, as systemd
//!   sets it);
//! - the *broker* reads requests, and opens events of CPUs itself;
//! - a process for each probe, because the kernel takes tens of milliseconds to attach one, and for
//!   ever where the library's file does not answer. It is killed after [`LONGEST`].
//!
//! Invariant: nothing that a target wrote is parsed: of a file sixteen bytes are compared.
//!
//! Invariant: all end with the main process: the socket is closed, and each is killed with its parent.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, WaitStatus,
};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use strata_bridge_protocol::clr_event::FUNCTION;
use strata_sandbox::capabilities;
use strata_sandbox::channel::{Channel, Wait};

use super::{MOST_PROBES, Mapped, Operation, Outcome, REQUEST_BYTES, Reply, Request};
use crate::kernel::perf_event::{
    self, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, UPROBE_PMU, open_uprobe,
};

/// Attaching that takes so long is given up.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// A broker that has died is started again after this time; after one that has died soon, twice as
/// late as the one before, up to a limit.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A broker that has served for so long did not die of how it starts.
pub(super) const STEADY: Duration = Duration::from_secs(10);

/// Runs as a keeper until the main process has ended. Standard input is the socket, standard output
/// the program that probes run, or no program where no probes are wanted.
pub fn run() -> io::Result<()> {
    let program = enter()?;
    // SAFETY: standard input is open, and this process uses it only here.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    let channel = Channel::from_socket(socket);
    let mut failed = 0;
    loop {
        let began = Instant::now();
        match fork()? {
            None => {
                rustix::thread::set_name(c"strata-broker")?;
                let served = serve(&channel, program.as_fd(), is_privileged(), failed);
                std::process::exit(i32::from(served.is_err()));
            }
            Some(broker) => {
                let waited = loop {
                    match rustix::process::waitpid(Some(broker), WaitOptions::empty()) {
                        Err(rustix::io::Errno::INTR) => {}
                        waited => break waited?,
                    }
                };
                if waited.is_some_and(|(_, status)| status.exit_status() == Some(0)) {
                    return Ok(());
                }
                failed = failed_after(failed, began.elapsed());
                std::thread::sleep(wait_after(failed));
            }
        }
    }
}

/// How many brokers have died soon, one after the other, once one more has died after so long.
fn failed_after(failed: u32, lived: Duration) -> u32 {
    if lived >= STEADY { 0 } else { failed.saturating_add(1) }
}

/// How long no broker is started then.
pub(super) fn wait_after(failed: u32) -> Duration {
    AGAIN_AFTER.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(LONGEST_WAIT)
}

/// Leaves this process with what it needs, and returns the program.
fn enter() -> io::Result<OwnedFd> {
    const FIRST_UNWANTED: libc::c_uint = 3;
    // SAFETY: this runs at the start of a process that has opened nothing of its own beyond the
    // three standard descriptors.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST_UNWANTED, libc::c_uint::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Should the main process have ended before, its end of the socket is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_name(c"strata-keeper")?;
    // A service manager signals every process of the service; this one ends after the main process.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    keep_only_what_probes_need();
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::thread::set_no_new_privs(true)?;
    let filter = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    // SAFETY: standard output is open, and this process uses it only as the program.
    Ok(unsafe { OwnedFd::from_raw_fd(1) })
}

/// CAP_SYS_ADMIN for the uprobe PMU, CAP_PERFMON for events of all processes, the others for the
/// libraries of other users' processes. What is not there is missed where it is used.
fn keep_only_what_probes_need() {
    let wanted = CapabilitySet::SYS_ADMIN
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    let _ = capabilities::keep_only(|_| wanted);
}

fn is_privileged() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// The system calls of these processes. No file is opened for writing, no program executed, no code
/// mapped; other calls fail.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let always = [
        libc::SYS_perf_event_open,
        // Files, requests, replies.
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_statx,
        libc::SYS_newfstatat,
        libc::SYS_close,
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_fcntl,
        libc::SYS_ppoll,
        // Processes.
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_wait4,
        libc::SYS_waitid,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_gettid,
        libc::SYS_prctl,
        libc::SYS_capget,
        libc::SYS_exit,
        libc::SYS_exit_group,
        // Memory.
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Time, locks, signals.
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_getrandom,
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
    ];
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        always.into_iter().map(|call| (call, Vec::new())).collect();
    let only = |argument: u8, mask: i64, value: i64| {
        let operator = SeccompCmpOp::MaskedEq(mask as u64);
        let condition =
            SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value as u64)?;
        SeccompRule::new(vec![condition])
    };
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![only(2, libc::PROT_EXEC.into(), 0)?]);
    }
    // Processes like this one: no threads, no namespaces.
    let others = libc::CLONE_VM
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    rules.insert(libc::SYS_clone, vec![only(0, others.into(), 0)?]);
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    rules.insert(libc::SYS_openat, vec![only(2, writes.into(), 0)?]);
    let requests = [PERF_EVENT_IOC_SET_BPF, PERF_EVENT_IOC_ENABLE];
    let requests = requests.map(|request| only(1, u32::MAX.into(), request as i64));
    rules.insert(libc::SYS_ioctl, requests.into_iter().collect::<Result<_, _>>()?);
    SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

/// `None` in the child, which is killed when its parent ends.
fn fork() -> io::Result<Option<Pid>> {
    let parent = rustix::process::getpid();
    // SAFETY: these processes have one thread each, so that the child may do anything.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child > 0 {
        return Ok(Pid::from_raw(child));
    }
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // It may have ended before that.
    if rustix::process::getppid() != Some(parent) {
        std::process::exit(1);
    }
    Ok(None)
}

/// A process that attaches a probe.
struct Attaching {
    id: u64,
    pid: Pid,
    exit: OwnedFd,
    since: Instant,
    is_killed: bool,
}

impl Attaching {
    /// Starts it. It answers by itself, and then exits with 0.
    fn start(
        channel: &Channel,
        program: BorrowedFd<'_>,
        (id, mapped): (u64, Mapped),
    ) -> io::Result<Self> {
        let Some(pid) = fork()? else {
            let _ = rustix::thread::set_name(c"strata-attach");
            let answered = answer(channel, id, attach(&mapped, program));
            std::process::exit(i32::from(answered.is_err()));
        };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(exit) => Ok(Self { id, pid, exit, since: Instant::now(), is_killed: false }),
            Err(errno) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                Err(errno.into())
            }
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= LONGEST
    }

    fn has_ended(&self) -> Option<WaitStatus> {
        let waited = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
        Some(waited.ok()??.1)
    }
}

/// Serves requests until the other end of the channel is closed.
pub(super) fn serve(
    channel: &Channel,
    program: BorrowedFd<'_>,
    is_privileged: bool,
    failed: u32,
) -> io::Result<()> {
    let begun = Reply { id: 0, outcome: Outcome::Begun { is_privileged, failed } };
    channel.send(&begun.encode(), &[], Wait::Block)?;
    let mut attaching: Vec<Attaching> = Vec::new();
    let mut buffer = [0; REQUEST_BYTES];
    loop {
        wait(channel, &attaching)?;
        look_after(channel, &mut attaching)?;
        let received = match channel.receive(&mut buffer, false, Wait::DontWait) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // Longer than a request.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
            Err(error) => return Err(error),
        };
        if received.length == 0 {
            return Ok(());
        }
        let Some(Request { id, operation }) =
            buffer.get(..received.length).and_then(Request::decode)
        else {
            continue;
        };
        match operation {
            Operation::Cpu(cpu, event) => {
                answer(channel, id, event.open(cpu).map_err(Outcome::Open))?;
            }
            Operation::Probe(mapped) => {
                let started = match attaching.len() {
                    MOST_PROBES.. => Err(io::ErrorKind::QuotaExceeded.into()),
                    _ => Attaching::start(channel, program, (id, mapped)),
                };
                match started {
                    Ok(started) => attaching.push(started),
                    Err(_) => answer(channel, id, Err(Outcome::Died))?,
                }
            }
        }
    }
}

/// Waits for a request, or until something of the processes that attach is due.
fn wait(channel: &Channel, attaching: &[Attaching]) -> io::Result<()> {
    let exits = attaching.iter().map(|one| PollFd::new(&one.exit, PollFlags::IN));
    let mut wanted: Vec<PollFd<'_>> =
        std::iter::once(PollFd::new(channel, PollFlags::IN)).chain(exits).collect();
    let now = Instant::now();
    let running = attaching.iter().filter(|one| !one.is_killed);
    let due = running.map(|one| (one.since + LONGEST).saturating_duration_since(now)).min();
    // Not a moment too early.
    let due = due.map(|due| due + Duration::from_millis(1));
    let due = due.and_then(|due| Timespec::try_from(due).ok());
    match poll(&mut wanted, due.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Reaps processes that have ended, answers for those that could not, and kills those that are late.
/// One that a file holds in the kernel ends when that answers, and keeps its place until then.
fn look_after(channel: &Channel, attaching: &mut Vec<Attaching>) -> io::Result<()> {
    let (now, mut place) = (Instant::now(), 0);
    while let Some(one) = attaching.get_mut(place) {
        if let Some(status) = one.has_ended() {
            let outcome = if one.is_killed { Outcome::Late } else { Outcome::Died };
            let id = attaching.swap_remove(place).id;
            if status.exit_status() != Some(0) {
                answer(channel, id, Err(outcome))?;
            }
            continue;
        }
        if one.is_late(now) && !one.is_killed {
            one.is_killed = true;
            let _ = rustix::process::pidfd_send_signal(&one.exit, Signal::KILL);
        }
        place += 1;
    }
    Ok(())
}

fn answer(channel: &Channel, id: u64, result: Result<OwnedFd, Outcome>) -> io::Result<()> {
    match result {
        Ok(event) => {
            let reply = Reply { id, outcome: Outcome::Done };
            channel.send(&reply.encode(), &[event.as_fd()], Wait::Block)
        }
        Err(outcome) => channel.send(&Reply { id, outcome }.encode(), &[], Wait::Block),
    }
}

/// Attaches the program to the event function of the library that a process has mapped there.
///
/// The library is the process's own file, and is compared and attached to by one descriptor, so that
/// both are of the same file. The probe acts in that process alone: one that changes the file
/// afterwards harms itself at most.
fn attach(mapped: &Mapped, program: BorrowedFd<'_>) -> Result<OwnedFd, Outcome> {
    let kind = std::fs::read_to_string(UPROBE_PMU).and_then(|text| {
        text.trim().parse::<u32>().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    });
    let kind = kind.map_err(Outcome::NoUprobes)?;
    let Mapped { pid, start, end, offset } = *mapped;
    let place = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let library = |errno: rustix::io::Errno| Outcome::Library(errno.into());
    // Opening a device or a pipe for reading has effects; this has none.
    let found = openat(CWD, place.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let found = File::from(found.map_err(library)?);
    if !found.metadata().map_err(Outcome::Library)?.is_file() {
        return Err(Outcome::OtherCode);
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = File::from(openat(CWD, path.as_str(), flags, Mode::empty()).map_err(library)?);
    let mut code = [0; FUNCTION.len()];
    opened.read_exact_at(&mut code, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Outcome::OtherCode,
        _ => Outcome::Library(error),
    })?;
    if code != FUNCTION {
        return Err(Outcome::OtherCode);
    }
    let path = CString::new(path).map_err(|_| Outcome::OtherCode)?;
    let event = open_uprobe(kind, pid, &path, offset).map_err(Outcome::Open)?;
    perf_event::attach(event.as_fd(), program).map_err(Outcome::Attach)?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use super::*;
    use crate::kernel::perf_event::CpuEvent;

    /// A broker on a thread of this process, with the helper's filter of system calls.
    struct Served(Channel);

    impl Served {
        fn start() -> Self {
            let (ours, theirs) = Channel::pair().expect("a pair of sockets");
            std::thread::spawn(move || {
                // No BPF program: what is attached is refused at the last step.
                let program = File::open("/dev/null").expect("it is there");
                let filter = filter().expect("it compiles");
                seccompiler::apply_filter(&filter).expect("the kernel takes it");
                serve(&theirs, program.as_fd(), false, 0).expect("it serves to the end");
            });
            let served = Self(ours);
            let (begun, _) = served.reply();
            assert!(matches!(begun.outcome, Outcome::Begun { is_privileged: false, failed: 0 }));
            served
        }

        fn reply(&self) -> (Reply, Option<OwnedFd>) {
            let mut buffer = [0; super::super::REPLY_BYTES];
            let mut received = self.0.receive(&mut buffer, true, Wait::Block).expect("a reply");
            let reply = Reply::decode(&buffer[..received.length]).expect("an intact one");
            (reply, received.descriptors.pop())
        }

        fn ask(&self, operation: Operation) -> (Outcome, Option<OwnedFd>) {
            let request = Request { id: 5, operation };
            self.0.send(&request.encode(), &[], Wait::Block).expect("it takes it");
            let (reply, event) = self.reply();
            assert_eq!(reply.id, 5);
            assert_eq!(matches!(reply.outcome, Outcome::Done), event.is_some());
            (reply.outcome, event)
        }
    }

    fn kind_of(fd: RawFd) -> String {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("it is open");
        link.to_string_lossy().into_owned()
    }

    /// Needs root, as strata does.
    #[test]
    fn events_of_cpus_are_opened_and_what_is_no_request_is_passed_over() {
        let served = Served::start();
        for bytes in [&[][..], &[0; 7], &[0; REQUEST_BYTES], &[0xff; REQUEST_BYTES], &[0; 999]] {
            // An empty message would be taken for a closed socket.
            if !bytes.is_empty() {
                served.0.send(bytes, &[], Wait::Block).expect("it takes it");
            }
        }
        let processes = |has_names| CpuEvent::Processes { wakeup_bytes: 1, has_names };
        for event in [CpuEvent::Clock { frequency: 97 }, processes(true), processes(false)] {
            let (outcome, opened) = served.ask(Operation::Cpu(0, event));
            let opened = opened.unwrap_or_else(|| panic!("{outcome:?}"));
            assert!(kind_of(opened.as_raw_fd()).contains("[perf_event]"));
            let (outcome, _) = served.ask(Operation::Cpu(1 << 20, event));
            assert!(matches!(outcome, Outcome::Open(_)), "no such CPU: {outcome:?}");
        }
    }

    /// The mapping of a file in this process.
    struct Mapping {
        start: usize,
        _file: tempfile::NamedTempFile,
    }

    impl Mapping {
        const BYTES: usize = 4096;

        fn of(content: &[u8]) -> Self {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), content).expect("it is written");
            // SAFETY: a new mapping of a file that stays as long.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    Self::BYTES,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE,
                    file.as_raw_fd(),
                    0,
                )
            };
            assert_ne!(start, libc::MAP_FAILED);
            Self { start: start as usize, _file: file }
        }

        fn at(&self, offset: u64) -> Operation {
            let start = self.start as u64;
            let end = start + Self::BYTES as u64;
            Operation::Probe(Mapped { pid: std::process::id(), start, end, offset })
        }
    }

    /// Needs root, as strata does.
    #[test]
    fn a_probe_is_attached_where_the_bridges_function_is_and_nowhere_else() {
        let served = Served::start();
        let mut content = vec![0x90; Mapping::BYTES];
        content[0x40..][..FUNCTION.len()].copy_from_slice(&FUNCTION);
        let library = Mapping::of(&content);
        for other in [0, 0x41, 0x3f, 4096 - 4, 4096, 1 << 40] {
            let (outcome, _) = served.ask(library.at(other));
            assert!(matches!(outcome, Outcome::OtherCode), "{other:#x}: {outcome:?}");
        }
        // Its code is there; what it is to run is no BPF program.
        let (outcome, _) = served.ask(library.at(0x40));
        assert!(matches!(outcome, Outcome::Attach(_)), "{outcome:?}");
        let gone = Mapped { pid: std::process::id(), start: 4096, end: 8192, offset: 0 };
        let (outcome, _) = served.ask(Operation::Probe(gone));
        assert!(matches!(outcome, Outcome::Library(_)), "{outcome:?}");
    }

    /// A process that does nothing, in the place of one that attaches.
    fn idle(id: u64) -> Attaching {
        let Some(pid) = fork().expect("a process") else {
            loop {
                std::thread::sleep(LONGEST);
            }
        };
        let exit = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("it is there");
        Attaching { id, pid, exit, since: Instant::now(), is_killed: false }
    }

    #[test]
    fn a_process_that_dies_or_is_late_is_answered_for() {
        let (ours, theirs) = Channel::pair().expect("a pair of sockets");
        let (killed, mut late, patient) = (idle(1), idle(2), idle(3));
        rustix::process::pidfd_send_signal(&killed.exit, Signal::KILL).expect("it is there");
        late.since = Instant::now().checked_sub(LONGEST).expect("it was up by then");
        let mut attaching = vec![killed, late, patient];
        while attaching.len() > 1 {
            wait(&ours, &attaching).expect("it waits");
            look_after(&theirs, &mut attaching).expect("it answers");
        }
        let replies = Served(ours);
        let mut answered = [replies.reply().0, replies.reply().0];
        answered.sort_by_key(|reply| reply.id);
        let [died, late] = answered;
        assert!(died.id == 1 && matches!(died.outcome, Outcome::Died));
        assert!(late.id == 2 && matches!(late.outcome, Outcome::Late));
        let patient = attaching.pop().expect("it is left");
        assert_eq!(patient.id, 3);
        rustix::process::pidfd_send_signal(&patient.exit, Signal::KILL).expect("it is there");
    }

    #[test]
    fn a_broker_that_dies_again_and_again_is_started_ever_later_until_one_has_served() {
        let mut failed = 0;
        let waits: Vec<u128> = [0, 9, 0, 0, 60, 0, 0]
            .map(|lived| {
                failed = failed_after(failed, Duration::from_secs(lived));
                wait_after(failed).as_millis()
            })
            .into();
        assert_eq!(waits, [100, 200, 400, 800, 100, 100, 200]);
        assert_eq!(wait_after(failed_after(u32::MAX, Duration::ZERO)), LONGEST_WAIT);
    }

    #[test]
    fn the_filter_is_a_program_the_kernel_would_take() {
        let program = filter().expect("it compiles");
        assert!(program.len() > 30 && program.len() < 4096, "{}", program.len());
    }
}
