//! Probes of single processes: a BPF program at one address of one process's code (a uprobe).
//!
//! The kernel takes tens of milliseconds to attach a probe, and a tenth of a second to remove one;
//! with the process's library in a file that hangs it takes for ever. So both are done on threads
//! of their own. Attaching needs CAP_SYS_ADMIN (`perf_event_open` with the uprobe PMU), which
//! strata gives up once it has started: the threads are made by one that was there before.
//!
//! The library is the process's own file. Before the probe is attached, the bytes at its place are
//! compared with those expected there, and it acts in that process only, so that a process can harm
//! itself at most.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::sideband::{Attributes, PERF_FLAG_FD_CLOEXEC};
use crate::blocking_reader::{Owner, ROOT, owner_of};
use crate::processes::table::ImageId;

/// The most concurrent attaches.
const MOST_AT_ONCE: usize = 8;
/// One that takes so long does not count among them any more: the file that it reads does not
/// answer.
const HANGS: Duration = Duration::from_secs(10);
/// The most threads, those that hang included.
const MOST_THREADS: usize = 128;
/// The same for processes of one user other than root: their libraries may all lie in a file system
/// that does not answer.
const MOST_OF_ONE: usize = 8;

/// The kernel's number of the uprobe PMU.
const PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

/// `_IO('$', 0)`, `_IOW('$', 8, u32)` (include/uapi/linux/perf_event.h).
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("this kernel has no uprobes ({PMU}): {0}")]
    NoUprobes(#[source] io::Error),
    #[error("the library in the process cannot be read: {0}")]
    Library(#[source] io::Error),
    #[error("the library in the process has other code at its event function")]
    OtherCode,
    #[error("a probe of the process cannot be opened (perf_event_open, needs CAP_SYS_ADMIN): {0}")]
    Open(#[source] io::Error),
    #[error("the BPF program cannot be attached to a probe: {0}")]
    Attach(#[source] io::Error),
    #[error("there is no thread to attach a probe with")]
    NoThread,
}

impl ProbeError {
    /// Whether a later attempt may succeed: something was used up, of the host or of strata.
    pub fn may_pass(&self) -> bool {
        const USED_UP: [i32; 5] =
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
        match self {
            Self::NoThread => true,
            Self::NoUprobes(error)
            | Self::Library(error)
            | Self::Open(error)
            | Self::Attach(error) => {
                error.raw_os_error().is_some_and(|number| USED_UP.contains(&number))
            }
            Self::OtherCode => false,
        }
    }
}

/// Where a probe is to be: the mapping of a process, and the address in it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    pub address: u64,
    /// The bytes that have to be there.
    pub code: [u8; 16],
}

type Job = Box<dyn FnOnce() + Send>;

/// A probe; it is removed when this is dropped, on another thread.
pub struct Probe {
    event: Option<OwnedFd>,
    jobs: Sender<Job>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        let event = self.event.take();
        // Without the thread it is removed here.
        let _ = self.jobs.send(Box::new(move || drop(event)));
    }
}

/// The result of attaching.
pub struct Arrival {
    pub image: ImageId,
    pub outcome: Result<Probe, ProbeError>,
}

/// Attaches one program to processes.
pub struct Probes {
    program: Arc<OwnedFd>,
    jobs: Sender<Job>,
    /// With the user of the process.
    waiting: VecDeque<(ImageId, Owner, Place)>,
    running: Running,
    sender: Sender<Arrival>,
    receiver: Receiver<Arrival>,
}

impl Probes {
    /// Starts the thread that makes the others, with the capabilities of the calling one.
    pub fn new(program: OwnedFd) -> io::Result<Self> {
        let (jobs, to_do) = channel::<Job>();
        let make = move || {
            for job in to_do {
                // Without a thread its sender is dropped, which is an answer too.
                let _ = std::thread::Builder::new().name("probe".into()).spawn(job);
            }
        };
        std::thread::Builder::new().name("probes".into()).spawn(make)?;
        let (sender, receiver) = channel();
        let waiting = VecDeque::new();
        Ok(Self {
            program: Arc::new(program),
            jobs,
            waiting,
            running: Running::default(),
            sender,
            receiver,
        })
    }

    pub fn attach(&mut self, image: ImageId, place: Place) {
        self.waiting.push_back((image, owner_of(place.pid), place));
        self.start_waiting();
    }

    fn start_waiting(&mut self) {
        let now = Instant::now();
        while let Some(position) = self.next(now)
            && let Some((image, owner, place)) = self.waiting.remove(position)
        {
            let (program, jobs) = (Arc::clone(&self.program), self.jobs.clone());
            let mut answer = Answer { image, sender: self.sender.clone(), is_given: false };
            let job = move || {
                let event = attach(&place, &program);
                answer.give(event.map(|event| Probe { event: Some(event), jobs }));
            };
            self.running.0.push((image, owner, now));
            let _ = self.jobs.send(Box::new(job));
        }
    }

    /// The position of the first that may be attached now.
    fn next(&self, now: Instant) -> Option<usize> {
        if !self.running.has_room(now) {
            return None;
        }
        self.waiting.iter().position(|(_, owner, _)| self.running.has_room_for(*owner, now))
    }

    pub fn arrived(&mut self) -> Option<Arrival> {
        let arrival = self.receiver.try_recv().ok();
        if let Some(arrival) = &arrival {
            self.running.0.retain(|(image, ..)| *image != arrival.image);
        }
        self.start_waiting();
        arrival
    }
}

/// Attaches under way: their process, its user, and since when.
#[derive(Default)]
struct Running(Vec<(ImageId, Owner, Instant)>);

impl Running {
    fn has_room(&self, now: Instant) -> bool {
        let works = |since: Instant| now.saturating_duration_since(since) < HANGS;
        let work = self.0.iter().filter(|(.., since)| works(*since)).count();
        work < MOST_AT_ONCE && self.0.len() < MOST_THREADS
    }

    /// What hangs of one user's processes takes no room of others.
    fn has_room_for(&self, owner: Owner, now: Instant) -> bool {
        let own = self.0.iter().filter(|(_, other, _)| *other == owner).count();
        self.has_room(now) && (owner == ROOT || own < MOST_OF_ONE)
    }
}

/// Answers once, also when the thread could not be made.
struct Answer {
    image: ImageId,
    sender: Sender<Arrival>,
    is_given: bool,
}

impl Answer {
    fn give(&mut self, outcome: Result<Probe, ProbeError>) {
        if !std::mem::replace(&mut self.is_given, true) {
            // There is no receiver when the recording has ended meanwhile.
            let _ = self.sender.send(Arrival { image: self.image, outcome });
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.give(Err(ProbeError::NoThread));
    }
}

fn attach(place: &Place, program: &OwnedFd) -> Result<OwnedFd, ProbeError> {
    let kind = std::fs::read_to_string(PMU).and_then(|text| {
        text.trim().parse::<u32>().map_err(|error| io::Error::other(error.to_string()))
    });
    let kind = kind.map_err(ProbeError::NoUprobes)?;
    let Place { pid, start, end, .. } = *place;
    let path = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let offset = place.address.saturating_sub(start).saturating_add(place.offset);
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let library = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path);
    let library = library.map_err(ProbeError::Library)?;
    let mut code = [0; 16];
    library.read_exact_at(&mut code, offset).map_err(ProbeError::Library)?;
    if code != place.code {
        return Err(ProbeError::OtherCode);
    }
    let path = CString::new(path).map_err(|_| ProbeError::OtherCode)?;
    let attributes = Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..Attributes::default()
    };
    let pid = i32::try_from(pid).unwrap_or(i32::MAX);
    // SAFETY: a valid attribute block and a path that lives through the call; the result is
    // checked.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            -1i32,
            -1i32,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if event < 0 {
        return Err(ProbeError::Open(io::Error::last_os_error()));
    }
    // SAFETY: a descriptor without another owner.
    let event = unsafe { OwnedFd::from_raw_fd(event as i32) };
    // SAFETY: plain ioctls on the event; the results are checked.
    let attached = unsafe {
        libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) == 0
            && libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0) == 0
    };
    if attached { Ok(event) } else { Err(ProbeError::Attach(io::Error::last_os_error())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_hang_leave_room_to_other_users() {
        let (begun, mut running) = (Instant::now(), Running::default());
        let mut hanging = 0;
        for image in 0..1000 {
            // Each is known to hang before the next one comes.
            let now = begun + HANGS * image;
            if running.has_room_for(1000, now) {
                running.0.push((ImageId(image), 1000, now));
                hanging += 1;
            }
        }
        let now = begun + HANGS * 1000;
        assert_eq!(hanging, MOST_OF_ONE);
        assert!(!running.has_room_for(1000, now));
        assert!(running.has_room_for(1001, now) && running.has_room_for(ROOT, now));
        // One of them has answered.
        running.0.pop();
        assert!(running.has_room_for(1000, now));
    }

    #[test]
    fn what_is_used_up_may_pass_and_other_code_does_not() {
        let used_up = io::Error::from_raw_os_error(libc::EMFILE);
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        assert!(ProbeError::NoThread.may_pass() && ProbeError::Open(used_up).may_pass());
        assert!(!ProbeError::OtherCode.may_pass() && !ProbeError::Open(refused).may_pass());
    }
}
