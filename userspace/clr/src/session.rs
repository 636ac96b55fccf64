//! A bridge in a process, read and owned.
//!
//! A session holds the bridge's memory files open, so that it reads to the last record also when the
//! process has been killed. It owns the bridge (one strata at a time; the kernel releases the lock of
//! one that dies) and tells it what is wanted.
//!
//! Invariant: one call does bounded work ([`Budget`]), whatever lies in the memory; what the process
//! can make strata do without being asked (looking for segments it says it has) grows rarer the
//! longer it is in vain.

mod memory_files;
mod presence;
mod requests;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use strata_bridge_layout::control::wish;
use strata_bridge_layout::owning::{Owner, TakeError};
pub use strata_bridge_layout::reader::{Budget, Entry, Limits, ReaderLosses};
use strata_bridge_layout::reader::{HeaderError, Reader, file};
use strata_bridge_layout::record::Record;
use strata_bridge_layout::shared_file::monotonic_time;
pub use strata_bridge_layout::status::{Count, Loss, State, StatusRecord};

use crate::deadline::Deadline;
use crate::mappings::{Mappings, SharedMapping};
use crate::target::{Target, TargetError};

pub use presence::{BridgeState, Holder, presence};
pub use requests::{MAX_WAITING, Question, Unanswered};

/// Between two looks for segments: at least this, doubled each time nothing was found.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// Looking for segments may take this part of the time.
const LOOKING_SHARE: u32 = 50;
/// How often the process and the bridge's status are looked at, at most.
const LOOK: Duration = Duration::from_millis(20);
/// How often it is checked that the process has not dropped the memory.
const CHECK_MAPPED: Duration = Duration::from_secs(1);
/// Between two looks while waiting for a detach.
const DETACH_LOOK: Duration = Duration::from_millis(10);

/// Why a bridge cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("strata's library is not loaded in the process")]
    NotLoaded,
    #[error("strata's library is leaving the process")]
    Leaving,
    #[error("the memory of strata's library in the process: {0}")]
    Refused(#[from] file::Refused),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("another strata reads this process: {0}; stop it, or leave the process to it")]
    Owned(Holder),
    #[error("the memory of strata's library cannot be used: {0}")]
    Io(#[from] io::Error),
    #[error("the bridge did not leave the process within {0:?}; it may still do so")]
    StillThere(Duration),
}

/// What is wanted of a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Who this is, for a second strata to say.
    pub owner_name: String,
    /// Tell of an IL map with every compiled method.
    pub il_maps: bool,
    pub verbose: bool,
    pub limits: Limits,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            owner_name: "strata".to_owned(),
            il_maps: false,
            verbose: false,
            limits: Limits::default(),
        }
    }
}

/// How a bridge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// It may write more.
    Running,
    /// It left the process, or the process dropped its memory.
    Left,
    /// The process has ended.
    Ended,
}

/// What a call has read.
#[derive(Debug)]
pub struct Poll {
    pub entries: Vec<Entry>,
    /// The budget ended the call: there may be more right now.
    pub more: bool,
    pub unanswered: Vec<(Question, Unanswered)>,
    pub life: Life,
}

/// A bridge, until it is dropped: then it is free for the next owner and goes quiet.
#[derive(Debug)]
pub struct Session {
    target: Target,
    /// Readable when the process has ended. Without it, `/proc` is asked.
    process: Option<std::os::fd::OwnedFd>,
    main: SharedMapping,
    owner: Owner,
    reader: Reader<File>,
    requests: Requests,
    /// Files that were looked at, by inode.
    known: HashSet<u64>,
    look: NextLook,
    /// When process and status are looked at again.
    looks_at: Instant,
    checked: Instant,
    life: Life,
    enumerated: bool,
    status: StatusRecord,
}

use requests::Requests;

#[derive(Debug)]
struct NextLook {
    at: Instant,
    wait: Duration,
}

impl Session {
    /// Finds the bridge of a process and becomes its owner.
    pub fn open(target: Target, options: &SessionOptions) -> Result<Self, SessionError> {
        let mappings = Mappings::read(&target)?;
        let mut first_error = None;
        for main in memory_files::mains(&mappings.shared) {
            match open_main(&target, &main, options) {
                Ok((owner, reader, status)) => {
                    let mut session = Self::new(target, main, owner, reader, status);
                    session.add_segments(&mappings);
                    session.wish(options)?;
                    return Ok(session);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(SessionError::NotLoaded))
    }

    fn new(
        target: Target,
        main: SharedMapping,
        owner: Owner,
        reader: Reader<File>,
        status: StatusRecord,
    ) -> Self {
        let pid = i32::try_from(target.pid()).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let now = Instant::now();
        Self {
            // A pid that was given away meanwhile would be seen as the target's end: it is alive
            // after its descriptor was made, or the descriptor is not kept.
            process: process.filter(|_| target.is_alive()),
            target,
            main,
            owner,
            reader,
            requests: Requests::default(),
            known: HashSet::new(),
            look: NextLook { at: now, wait: SHORTEST_LOOK },
            looks_at: now,
            checked: now,
            life: Life::Running,
            enumerated: false,
            status,
        }
    }

    fn wish(&mut self, options: &SessionOptions) -> io::Result<()> {
        let mut flags = wish::JIT_EVENTS;
        if options.il_maps {
            flags |= wish::IL_MAPS;
        }
        if options.verbose {
            flags |= wish::VERBOSE;
        }
        self.owner.wish(flags, [0; 32])
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What the bridge said about itself when it was last looked at: claims of the process.
    pub fn status(&self) -> &StatusRecord {
        &self.status
    }

    /// What the memory's contents have cost the process's own data.
    pub fn losses(&self) -> ReaderLosses {
        self.reader.losses()
    }

    /// How many methods the bridge has told of.
    pub fn methods(&self) -> u64 {
        self.status.count(Count::Methods)
    }

    /// Whether everything that existed when this owner came has been read.
    pub fn is_enumerated(&self) -> bool {
        self.enumerated
    }

    /// The AppDomain that a thread says it is in, by its number in the process's own namespace.
    #[must_use]
    pub fn app_domain_of(&self, tid: u32) -> Option<u64> {
        self.reader.context(tid).ok().flatten().map(|context| context.app_domain)
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Questions without an answer so far.
    pub fn open_questions(&self) -> usize {
        self.requests.open()
    }

    /// Questions that were turned away because too many waited.
    pub fn dropped_questions(&self) -> u64 {
        self.requests.dropped()
    }

    /// Asks. What was asked and not answered yet is not asked again.
    pub fn ask(&mut self, questions: impl IntoIterator<Item = Question>) {
        for question in questions {
            self.requests.ask(question);
        }
    }

    /// Asks which methods these addresses belong to.
    pub fn resolve(&mut self, addresses: &[u64]) {
        self.ask(addresses.iter().map(|&ip| Question::Address(ip)));
    }

    /// Asks for the IL maps of methods, by function, ReJIT id and start of the code.
    pub fn il_maps(&mut self, methods: &[(u64, u64, u64)]) {
        let question = |&(function, rejit, start): &_| Question::IlMap { function, rejit, start };
        self.ask(methods.iter().map(question));
    }

    /// The process has ended, or runs another program now: nothing more will be written.
    pub fn process_ended(&mut self) {
        self.end(Life::Ended);
    }

    fn end(&mut self, life: Life) {
        if self.life == Life::Running {
            self.life = life;
            self.reader.process_ended();
        }
    }

    /// Reads what is new, sends what is asked, and looks whether the bridge is still there.
    pub fn poll(&mut self, budget: Budget) -> Result<Poll, SessionError> {
        let now = Instant::now();
        if now >= self.looks_at {
            self.looks_at = now + LOOK;
            // Before reading: what is written after this is read by the next call.
            self.look_after_process(now);
            if self.life == Life::Running {
                self.owner.beat()?;
            }
            self.status = self.reader.status()?;
            self.look_for_segments(now);
        }
        let read = self.reader.poll(budget, monotonic_time())?;
        self.enumerated |= read.entries.iter().any(|entry| self.is_own_enumeration(entry));
        let mut unanswered = match self.life {
            Life::Running => self.requests.advance(&mut self.owner)?,
            _ => Vec::new(),
        };
        if self.life != Life::Running && !read.more {
            unanswered.extend(self.requests.give_up());
        }
        Ok(Poll { entries: read.entries, more: read.more, unanswered, life: self.life })
    }

    fn is_own_enumeration(&self, entry: &Entry) -> bool {
        matches!(&entry.record, Record::Enumerated(end) if end.epoch == self.owner.wishes().epoch)
    }

    fn look_after_process(&mut self, now: Instant) {
        if self.life != Life::Running {
            return;
        }
        let ended = match &self.process {
            Some(process) => {
                let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&no_time))
                    .is_ok_and(|ready| ready > 0)
            }
            None => !self.target.is_alive(),
        };
        if ended {
            self.end(Life::Ended);
        } else if self.status.state == Some(State::Detached) {
            self.end(Life::Left);
        } else if now.duration_since(self.checked) >= CHECK_MAPPED {
            self.checked = now;
            // Gone by exec, or because the process unmapped it.
            let name = format!("map_files/{:x}-{:x}", self.main.start, self.main.end);
            if matches!(self.target.read_link(&name), Err(TargetError::Gone(_))) {
                self.end(Life::Left);
            }
        }
    }

    /// Opens segments that the bridge says it has and that are not open yet.
    fn look_for_segments(&mut self, now: Instant) {
        if self.life != Life::Running || now < self.look.at {
            return;
        }
        if self.reader.missing_segments(&self.status) == 0 {
            self.look.wait = SHORTEST_LOOK;
            return;
        }
        let found = match Mappings::read(&self.target) {
            Ok(mappings) => self.add_segments(&mappings),
            Err(_) => 0,
        };
        let took = now.elapsed();
        self.look.wait =
            if found > 0 { SHORTEST_LOOK } else { (self.look.wait * 2).min(LONGEST_LOOK) };
        self.look.at = Instant::now() + self.look.wait.max(took.saturating_mul(LOOKING_SHARE));
    }

    fn add_segments(&mut self, mappings: &Mappings) -> usize {
        let mut added = 0;
        for segment in memory_files::segments(mappings, &self.known) {
            self.known.insert(segment.inode);
            // What is no segment of this bridge costs nothing but having been looked at.
            let opened = memory_files::open(&self.target, &segment);
            let checked = opened.and_then(|file| file::check_segment(&file).map(|()| file));
            if let Ok(file) = checked
                && self.reader.add_segment(file).is_ok()
            {
                added += 1;
            }
        }
        added
    }

    /// Asks the bridge to leave the process. The runtime takes some tenths of a second for it.
    pub fn detach(&mut self) -> Result<(), SessionError> {
        if self.life == Life::Running {
            // After this the memory may be unmapped: what is not open then is lost.
            self.status = self.reader.status()?;
            self.look.at = Instant::now();
            self.look_for_segments(Instant::now());
            self.owner.wish(wish::DETACH, [0; 32])?;
        }
        Ok(())
    }

    /// Asks the bridge to leave and waits until it has, reading on.
    pub fn detach_and_wait(
        &mut self,
        time: Duration,
        budget: Budget,
        mut take: impl FnMut(Poll),
    ) -> Result<(), SessionError> {
        let deadline = Deadline::within(time);
        self.detach()?;
        loop {
            let read = self.poll(budget)?;
            let (life, more) = (read.life, read.more);
            take(read);
            match life {
                _ if more && !deadline.has_passed() => {}
                Life::Running if deadline.has_passed() => {
                    return Err(SessionError::StillThere(time));
                }
                Life::Running => std::thread::sleep(DETACH_LOOK),
                Life::Left | Life::Ended => return Ok(()),
            }
        }
    }

    /// Leaves the bridge loaded and quiet, for the next owner.
    pub fn release(self) -> Result<(), SessionError> {
        self.owner.release()?;
        Ok(())
    }
}

/// Opens, checks and locks a main file.
fn open_main(
    target: &Target,
    main: &SharedMapping,
    options: &SessionOptions,
) -> Result<(Owner, Reader<File>, StatusRecord), SessionError> {
    let file = match memory_files::open(target, main) {
        Ok(file) => file,
        // It was unmapped since the mappings were read.
        Err(file::Refused::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(SessionError::NotLoaded);
        }
        Err(error) => return Err(error.into()),
    };
    file::check_main(&file)?;
    let reader = Reader::new(file.try_clone()?, options.limits)?;
    let status = reader.status()?;
    match status.state {
        Some(State::Detaching) => return Err(SessionError::Leaving),
        Some(State::Detached) => return Err(SessionError::NotLoaded),
        _ => {}
    }
    let owner = Owner::take(file, &options.owner_name).map_err(|error| match error {
        TakeError::Owned { name, pid } => SessionError::Owned(Holder::new(&name, pid)),
        TakeError::Call(error) => SessionError::Io(error),
    })?;
    Ok((owner, reader, status))
}
