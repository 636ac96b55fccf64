//! Probes of single processes: a BPF program at one address of one process's code (a uprobe).
//!
//! The kernel takes tens of milliseconds to attach a probe, and a tenth of a second to remove one;
//! with the process's library in a file that hangs it takes for ever. The [`broker`](super::broker)
//! attaches them, because that needs CAP_SYS_ADMIN, in a process for each; they are removed here, on
//! a thread for each. This module decides which is attached when.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::broker::client::{Broker, RequestId};
use super::broker::{MOST_PROBES, Mapped};
use super::perf_event::UPROBE_PMU;
use crate::blocking_reader::{Owner, ROOT, owner_of};
use crate::image_id::ImageId;

/// The most concurrent attaches.
const MOST_AT_ONCE: usize = 8;
/// One that takes so long does not count among them any more: the file that it reads does not
/// answer.
const HANGS: Duration = Duration::from_secs(10);
/// The most attaches of processes of one user other than root, those that hang included: their
/// libraries may all lie in a file system that does not answer.
const MOST_OF_ONE: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("this kernel has no uprobes ({UPROBE_PMU}): {0}")]
    NoUprobes(#[source] io::Error),
    #[error("the library in the process cannot be read: {0}")]
    Library(#[source] io::Error),
    #[error("the library in the process has other code at its event function")]
    OtherCode,
    #[error("a probe of the process cannot be opened (perf_event_open, needs CAP_SYS_ADMIN): {0}")]
    Open(#[source] io::Error),
    #[error("the BPF program cannot be attached to a probe: {0}")]
    Attach(#[source] io::Error),
    #[error("the library in the process does not answer: attaching a probe was given up")]
    Late,
    #[error("the helper process that attaches probes has ended, or could not start another one")]
    Ended,
}

impl ProbeError {
    /// Whether probes cannot be had on this host, or with these rights: the bridge can do without.
    pub fn is_for_good(&self) -> bool {
        match self {
            Self::NoUprobes(_) | Self::Library(_) | Self::Open(_) | Self::Attach(_) => {
                !self.may_pass()
            }
            Self::OtherCode | Self::Late | Self::Ended => false,
        }
    }

    /// Whether a later attempt may succeed: something was used up, of the host or of strata.
    pub fn may_pass(&self) -> bool {
        const USED_UP: [i32; 5] =
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
        match self {
            Self::Late | Self::Ended => true,
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

/// A probe; it is removed when this is dropped, on another thread.
pub struct Probe(Option<OwnedFd>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(remove);
    }
}

/// Closes an event on a thread of its own.
pub(super) fn remove(event: OwnedFd) {
    // Without a thread it is closed here, with what the thread would have run.
    let _ = std::thread::Builder::new().name("probe".into()).spawn(move || drop(event));
}

/// The result of attaching.
pub struct Arrival {
    pub image: ImageId,
    pub outcome: Result<Probe, ProbeError>,
}

/// The probes that are wanted and not attached yet.
#[derive(Default)]
pub struct Probes {
    /// With the user of the process.
    waiting: VecDeque<(ImageId, Owner, Mapped)>,
    running: Running,
    /// Those that could not even be asked for.
    failed: VecDeque<Arrival>,
}

impl Probes {
    pub fn attach(&mut self, broker: &mut Broker, image: ImageId, mapped: Mapped) {
        self.waiting.push_back((image, owner_of(mapped.pid), mapped));
        self.start_waiting(broker);
    }

    fn start_waiting(&mut self, broker: &mut Broker) {
        let now = Instant::now();
        while let Some(position) = self.next(now)
            && let Some((image, owner, mapped)) = self.waiting.remove(position)
        {
            match broker.attach(mapped) {
                Some(request) => {
                    self.running.0.push(Attach { image, owner, since: now, request });
                }
                None => {
                    self.failed.push_back(Arrival { image, outcome: Err(ProbeError::Ended) });
                }
            }
        }
    }

    /// The position of the first that may be attached now.
    fn next(&self, now: Instant) -> Option<usize> {
        if !self.running.has_room(now) {
            return None;
        }
        self.waiting.iter().position(|(_, owner, _)| self.running.has_room_for(*owner, now))
    }

    pub fn arrived(&mut self, broker: &mut Broker) -> Option<Arrival> {
        if let Some(failed) = self.failed.pop_front() {
            return Some(failed);
        }
        let Some((request, outcome)) = broker.attached() else {
            self.start_waiting(broker);
            return None;
        };
        let outcome = outcome.map(|event| Probe(Some(event)));
        let place = self.running.0.iter().position(|attach| attach.request == request)?;
        let image = self.running.0.swap_remove(place).image;
        self.start_waiting(broker);
        Some(Arrival { image, outcome })
    }
}

/// A probe that is being attached.
struct Attach {
    image: ImageId,
    /// The user of its process.
    owner: Owner,
    since: Instant,
    request: RequestId,
}

/// Attaches under way.
#[derive(Default)]
struct Running(Vec<Attach>);

impl Running {
    fn has_room(&self, now: Instant) -> bool {
        let works = |since: Instant| now.saturating_duration_since(since) < HANGS;
        let work = self.0.iter().filter(|attach| works(attach.since)).count();
        work < MOST_AT_ONCE && self.0.len() < MOST_PROBES
    }

    /// What hangs of one user's processes takes no room of others.
    fn has_room_for(&self, owner: Owner, now: Instant) -> bool {
        let own = self.0.iter().filter(|attach| attach.owner == owner).count();
        self.has_room(now) && (owner == ROOT || own < MOST_OF_ONE)
    }
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
                let request = RequestId::default();
                running.0.push(Attach { image: ImageId(image), owner: 1000, since: now, request });
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
        assert!(
            ProbeError::Ended.may_pass()
                && ProbeError::Late.may_pass()
                && ProbeError::Open(used_up).may_pass()
        );
        assert!(!ProbeError::OtherCode.may_pass() && !ProbeError::Open(refused).may_pass());
    }

    #[test]
    fn a_host_without_probes_is_told_apart_from_a_library_with_other_code() {
        let error = io::Error::from_raw_os_error;
        assert!(
            ProbeError::Open(error(libc::EACCES)).is_for_good()
                && ProbeError::Attach(error(libc::EPERM)).is_for_good()
                && ProbeError::NoUprobes(error(libc::ENOENT)).is_for_good()
        );
        assert!(
            !ProbeError::Open(error(libc::EMFILE)).is_for_good()
                && !ProbeError::Late.is_for_good()
                && !ProbeError::OtherCode.is_for_good()
        );
    }
}
