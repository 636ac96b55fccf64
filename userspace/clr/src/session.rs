//! A session: reads the records of one process's bridge, and owns it where no other strata does.
//!
//! A session holds the bridge's memory files open, so that it reads to the last record also when
//! the process has been killed. An owner (one strata at a time; the kernel releases the lock of one
//! that dies) sends the bridge its wishes and requests. Beside an owner, any number of sessions read
//! what it has the bridge report; the events that they wish for it adds to its own wishes, as long
//! as they are there. With the owner they end.
//!
//! Invariant: one call does bounded work ([`Budget`]), whatever lies in the memory, and never waits
//! for the process: reads that take the lock of its memory are handed out ([`Session::wanted`]).
//! Work that the process can provoke (looking for segments that it claims to have) is done less
//! often the longer it fails.

mod looking;
mod memory_files;
mod presence;
mod requests;
mod rights;
mod snapshots;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use strata_bridge_protocol::beside::BesideError;
use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::layout::CONTEXTS;
use strata_bridge_protocol::objects::ObjectTable;
use strata_bridge_protocol::owning::{Owner, TakeError};
use strata_bridge_protocol::reader::{self, HeaderError, Progress, Reader, file};
pub use strata_bridge_protocol::reader::{Budget, Consumer, Entry, Limits, ReaderLosses};
use strata_bridge_protocol::record::{Enumerated, RawRecord, kind};
use strata_bridge_protocol::shared_file::monotonic_time;
pub use strata_bridge_protocol::status::{Count, Loss, State, StatusRecord};

use crate::deadline::Deadline;
use crate::guarded::{self, Stuck};
use crate::mappings::{Mappings, SharedMapping};
use crate::target::{Target, TargetError};

use looking::{Found, Looking, Segments};

pub use looking::Look;
pub use presence::{BridgeState, EventsWished, Holder, presence};
pub use requests::{MAX_WAITING, Question, Unanswered};
pub use snapshots::Which;

/// The time limit of opening a process's memory.
const OPENING: Duration = Duration::from_secs(2);
/// The shortest interval of checks of the process and the bridge's status.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end of a process and a detach wait for a look under way, so that the segments it
/// opens are not lost.
const LAST_LOOK: Duration = Duration::from_millis(250);
/// Interval of checks while waiting for a detach.
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
    #[error("the events wanted of it cannot be asked for: {0}")]
    Beside(#[from] BesideError),
    #[error("opening the memory of strata's library: {0}")]
    Stuck(#[from] Stuck),
    #[error("the bridge did not leave the process within {0:?}; it may still do so")]
    StillThere(Duration),
}

/// The wishes for a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// This owner's description, for a second strata to report.
    pub owner_name: String,
    /// Report an IL map with every compiled method.
    pub il_maps: bool,
    pub verbose: bool,
    /// Where another strata owns the bridge, read beside it: without requests.
    pub beside: bool,
    pub limits: Limits,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            owner_name: "strata".to_owned(),
            il_maps: false,
            verbose: false,
            beside: false,
            limits: Limits::default(),
        }
    }
}

/// The state of a bridge.
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
    /// Before these entries, records were given back that were not read: everything that lives is
    /// reported again from here on, until `caught_up`, and what is not has ended.
    pub gap: bool,
    /// All has been read that was in the log at the first call, or at the last gap.
    pub caught_up: bool,
    pub unanswered: Vec<(Question, Unanswered)>,
    pub life: Life,
}

/// As [`Poll`], whose entries and gap the [`Consumer`] was passed.
#[derive(Debug)]
pub struct Read {
    pub more: bool,
    pub caught_up: bool,
    /// There was no more in the log: not only no more that can be read now.
    pub at_end: bool,
    pub unanswered: Vec<(Question, Unanswered)>,
    pub life: Life,
}

/// Notes the end of what existed when this owner came.
struct Enumeration<'a, C> {
    consumer: &'a mut C,
    rights: &'a Rights,
    is_over: bool,
}

impl<C: Consumer> Consumer for Enumeration<'_, C> {
    fn gap(&mut self) {
        self.consumer.gap();
    }

    fn record(&mut self, record: RawRecord<'_>) -> Result<(), DecodeError> {
        if record.kind == kind::ENUMERATED
            && let Ok(end) = Enumerated::decode(record.fields)
        {
            self.is_over |= self.rights.is_owners(end.epoch);
        }
        self.consumer.record(record)
    }
}

/// A bridge that is read. Dropping it releases an owned one for the next owner, and stops its events.
#[derive(Debug)]
pub struct Session {
    target: Target,
    /// Readable when the process has ended. Without it, `/proc` is asked.
    process: Option<std::os::fd::OwnedFd>,
    main: SharedMapping,
    rights: Rights,
    reader: Reader<File>,
    requests: Requests,
    looking: Looking,
    /// When process and status are looked at again.
    looks_at: Instant,
    leaving: Leaving,
    life: Life,
    enumerated: bool,
    status: StatusRecord,
    /// Bits of [`wish`], without those of events.
    wished: u64,
    /// The same, of events: this session's, and those of readers beside it where it is the owner.
    events: u64,
    readers_events: u64,
    /// Events with stacks that the runtime walks, where they are read.
    snapshots: Option<Box<Snapshots>>,
}

use requests::Requests;
use rights::{Beside, Rights};
use snapshots::Snapshots;

/// Whether the bridge is to detach. Segments not open when it receives the request may be lost, so
/// they are looked for once more before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// The request is sent after a look, or at this time.
    Wanted {
        until: Instant,
        is_looking: bool,
    },
    Told,
}

impl Session {
    /// Finds the bridge of a process and becomes its owner, or reads beside it where that is wanted.
    /// Waits for some seconds at most.
    pub fn open(target: Target, options: &SessionOptions) -> Result<Self, SessionError> {
        let options = options.clone();
        guarded::run("strata-clr-open", target.pid(), OPENING, move |_, deadline| {
            Self::open_here(target, &options, deadline)
        })?
    }

    fn open_here(
        target: Target,
        options: &SessionOptions,
        deadline: Deadline,
    ) -> Result<Self, SessionError> {
        let mappings = Mappings::read(&target)?;
        let mut first_error = None;
        for main in memory_files::mains(&mappings.shared) {
            let file = memory_files::open(&target, &main);
            if deadline.has_passed() {
                return Err(Stuck::TimedOut(OPENING).into());
            }
            match own_main(file, options) {
                Ok((rights, reader, status)) => {
                    let segments = Segments::open(&target, &mappings, &HashSet::new());
                    if deadline.has_passed() {
                        return Err(Stuck::TimedOut(OPENING).into());
                    }
                    let mut session = Self::new(target, main, rights, reader, status, segments);
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
        rights: Rights,
        mut reader: Reader<File>,
        status: StatusRecord,
        segments: Segments,
    ) -> Self {
        let pid = i32::try_from(target.pid()).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let now = Instant::now();
        let looking = Looking::new(now, &segments);
        add_segments(&mut reader, segments);
        Self {
            // A pid that was given away meanwhile would be seen as the target's end: it is alive
            // after its descriptor was made, or the descriptor is not kept.
            process: process.filter(|_| target.is_alive()),
            target,
            main,
            rights,
            reader,
            requests: Requests::default(),
            looking,
            looks_at: now,
            leaving: Leaving::No,
            life: Life::Running,
            enumerated: false,
            status,
            wished: 0,
            events: 0,
            readers_events: 0,
            snapshots: None,
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
        self.wished = flags;
        self.rights.owner().map_or(Ok(()), |owner| owner.wish(flags, [0; 32]))
    }

    /// Whether the bridge follows this session's wishes; else another strata owns it.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        matches!(self.rights, Rights::Owner(_))
    }

    /// The strata that owns the bridge, if this session only reads.
    #[must_use]
    pub fn read_beside(&self) -> Option<Holder> {
        match &self.rights {
            Rights::Owner(_) => None,
            Rights::Reader(beside) => Some(beside.holder()),
        }
    }

    /// Whether the bridge does what was last wished for, as of the last poll.
    #[must_use]
    pub fn is_obeyed(&self) -> bool {
        self.rights.are_obeyed(&self.status)
    }

    /// What the owner wishes for now, for itself and for readers: bits of [`wish`]. `None`: that
    /// cannot be read at this moment.
    #[must_use]
    pub fn wishes(&self) -> Option<u64> {
        self.rights.wishes()
    }

    /// Wishes for events besides what was wished for at the start: bits of [`wish`]. Beside an owner
    /// they are in force once it has added them to its own.
    pub fn wish_for_events(&mut self, flags: u64) -> Result<(), SessionError> {
        self.events = flags & wish::EVENTS;
        if self.life != Life::Running || self.leaving != Leaving::No {
            return Ok(());
        }
        match &mut self.rights {
            Rights::Owner(_) => self.write_wishes(),
            Rights::Reader(beside) => Ok(beside.wish(self.events)?),
        }
    }

    fn write_wishes(&mut self) -> Result<(), SessionError> {
        let wished = self.wished | self.events | self.readers_events;
        self.rights.owner().map_or(Ok(()), |owner| owner.wish(wished, [0; 32]))?;
        Ok(())
    }

    /// Readers beside this owner have come, changed their wishes, or gone.
    fn look_after_readers(&mut self) -> Result<(), SessionError> {
        if self.life != Life::Running || self.leaving != Leaving::No {
            return Ok(());
        }
        let Some(owner) = self.rights.owner() else { return Ok(()) };
        let wishes = owner.readers_wishes()?;
        if std::mem::replace(&mut self.readers_events, wishes) != wishes {
            self.write_wishes()?;
        }
        Ok(())
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The bridge's status at the last poll: claims of the process.
    pub fn status(&self) -> &StatusRecord {
        &self.status
    }

    /// Losses caused by invalid contents of the memory, in the process's own data.
    pub fn losses(&self) -> ReaderLosses {
        self.reader.losses()
    }

    /// How many methods the bridge has reported.
    pub fn methods(&self) -> u64 {
        self.status.count(Count::Methods)
    }

    /// Whether everything that existed when this owner came has been read.
    pub fn is_enumerated(&self) -> bool {
        self.enumerated
    }

    /// Where the process itself has mapped its table of thread contexts.
    #[must_use]
    pub fn contexts_address(&self) -> u64 {
        self.main.start.saturating_add(CONTEXTS as u64)
    }

    /// The AppDomain that a thread has published, by its number in the process's own namespace.
    #[must_use]
    pub fn app_domain_of(&self, tid: u32) -> Option<u64> {
        self.reader.context(tid).ok().flatten().map(|context| context.app_domain)
    }

    /// Which of the objects that the bridge watches are alive: claims of the process.
    #[must_use]
    pub fn objects(&self) -> Option<ObjectTable> {
        self.reader.objects().ok()
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Requests without an answer so far.
    pub fn open_questions(&self) -> usize {
        self.requests.open()
    }

    /// Requests refused because too many waited.
    pub fn dropped_questions(&self) -> u64 {
        self.requests.dropped()
    }

    /// Queues a request. One that is pending already is not queued again; beside an owner none is.
    pub fn ask(&mut self, questions: impl IntoIterator<Item = Question>) {
        if self.is_owner() {
            questions.into_iter().for_each(|question| self.requests.ask(question));
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
        let mut read = reader::Poll::default();
        let Read { more, caught_up, unanswered, life, .. } = self.read(budget, &mut read)?;
        let reader::Poll { entries, gap, .. } = read;
        Ok(Poll { entries, more, gap, caught_up, unanswered, life })
    }

    /// As [`Self::poll`], and passes on each record where it lies.
    pub fn read(
        &mut self,
        budget: Budget,
        consumer: &mut impl Consumer,
    ) -> Result<Read, SessionError> {
        self.look_after()?;
        let mut enumeration = Enumeration { consumer, rights: &self.rights, is_over: false };
        let read = self.reader.read(budget, monotonic_time(), &mut enumeration);
        self.enumerated |= enumeration.is_over;
        let Progress { more, caught_up, at_end, .. } = read?;
        let mut unanswered = match (self.life, self.rights.owner()) {
            (Life::Running, Some(owner)) => self.requests.advance(owner)?,
            _ => Vec::new(),
        };
        if self.life != Life::Running && !more {
            unanswered.extend(self.requests.give_up());
        }
        Ok(Read { more, caught_up, at_end, unanswered, life: self.life })
    }

    /// The look that is due now, if any. Run it on a thread that may hang; [`Self::poll`] takes its
    /// results.
    pub fn wanted(&mut self) -> Option<Look> {
        if self.life != Life::Running {
            return None;
        }
        let is_missing = self.reader.missing_segments(&self.status) > 0;
        let look = self.looking.wanted(Instant::now(), &self.target, self.main, is_missing)?;
        if let Leaving::Wanted { is_looking, .. } = &mut self.leaving {
            *is_looking = true;
        }
        Some(look)
    }

    /// Looks for what is missing as soon as [`Self::wanted`] is called.
    pub fn look_now(&mut self) {
        if self.reader.missing_segments(&self.status) > 0 {
            self.looking.look_now(Instant::now());
        }
    }

    /// Whether segments are still to be found, or are being looked for.
    pub fn is_looking(&self) -> bool {
        self.life == Life::Running
            && (self.looking.out_since().is_some()
                || self.reader.missing_segments(&self.status) > 0)
    }

    /// As [`Self::poll`], and runs a due look at once: for a thread that may hang.
    pub fn look_and_poll(&mut self, budget: Budget) -> Result<Poll, SessionError> {
        self.look_after()?;
        if let Some(look) = self.wanted() {
            look.look();
        }
        self.poll(budget)
    }

    fn look_after(&mut self) -> Result<(), SessionError> {
        let now = Instant::now();
        self.take_found(now);
        if now >= self.looks_at {
            self.looks_at = now + LOOK;
            // Before reading: records written after this are read by the next call.
            self.look_after_process(now);
            let may_go_on = self.life != Life::Running || self.rights.beat()?;
            self.look_after_readers()?;
            self.status = self.reader.status()?;
            if !may_go_on {
                // The bridge reports nothing more until it has another owner, which may also have left
                // because the process has ended.
                self.end(if self.has_ended() { Life::Ended } else { Life::Left });
            }
            if self.reader.missing_segments(&self.status) == 0 {
                self.looking.nothing_missing();
            }
        }
        self.tell_to_leave(now)
    }

    fn look_after_process(&mut self, now: Instant) {
        let is_out = self.looking.out_since().is_some_and(|since| now < since + LAST_LOOK);
        if self.life != Life::Running || is_out {
            return;
        }
        if self.has_ended() {
            self.end(Life::Ended);
        } else if self.status.state == Some(State::Detached) {
            self.end(Life::Left);
        }
    }

    fn has_ended(&self) -> bool {
        match &self.process {
            Some(process) => {
                let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&no_time))
                    .is_ok_and(|ready| ready > 0)
            }
            None => !self.target.is_alive(),
        }
    }

    /// Takes in what a look has found.
    fn take_found(&mut self, now: Instant) {
        let Some(Found { is_mapped, segments }) = self.looking.came_back(now) else { return };
        if let Some(segments) = segments {
            let known = segments.seen.clone();
            let added = add_segments(&mut self.reader, segments);
            self.looking.note_segments(now, known, added);
        }
        match &mut self.leaving {
            Leaving::Wanted { until, is_looking: true } => *until = now,
            // This look may have been too early.
            Leaving::Wanted { is_looking: false, .. } => self.looking.look_now(now),
            Leaving::No | Leaving::Told => {}
        }
        if !is_mapped {
            self.end(if self.has_ended() { Life::Ended } else { Life::Left });
        }
    }

    /// Asks the bridge to detach. The runtime takes some tenths of a second for it. While segments
    /// are missing, a later [`Self::poll`] sends the request: after one more look, or soon.
    pub fn detach(&mut self) -> Result<(), SessionError> {
        if self.life == Life::Running && self.leaving == Leaving::No {
            let now = Instant::now();
            self.status = self.reader.status()?;
            if !self.is_owner() {
                self.end(Life::Left);
                return Ok(());
            }
            self.looking.look_now(now);
            self.leaving = Leaving::Wanted { until: now + LAST_LOOK, is_looking: false };
            self.tell_to_leave(now)?;
        }
        Ok(())
    }

    fn tell_to_leave(&mut self, now: Instant) -> Result<(), SessionError> {
        let Leaving::Wanted { until, .. } = self.leaving else { return Ok(()) };
        let is_missing = self.reader.missing_segments(&self.status) > 0;
        if self.life == Life::Running && (!is_missing || now >= until) {
            if let Some(owner) = self.rights.owner() {
                owner.wish(wish::DETACH, [0; 32])?;
            }
            self.leaving = Leaving::Told;
        }
        Ok(())
    }

    /// Asks the bridge to detach and waits for it while reading: for a thread that may hang.
    pub fn detach_and_wait(
        &mut self,
        time: Duration,
        budget: Budget,
        mut take: impl FnMut(Poll),
    ) -> Result<(), SessionError> {
        let deadline = Deadline::within(time);
        self.detach()?;
        loop {
            let read = self.look_and_poll(budget)?;
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

    /// Leaves the bridge loaded and inactive, for the next owner.
    pub fn release(self) -> Result<(), SessionError> {
        match self.rights {
            Rights::Owner(owner) => Ok(owner.release()?),
            Rights::Reader(_) => Ok(()),
        }
    }
}

/// Passes opened files to the reader; returns how many were segments of this bridge.
fn add_segments(reader: &mut Reader<File>, segments: Segments) -> usize {
    segments.files.into_iter().filter_map(|file| reader.add_segment(file).ok()).count()
}

/// Checks a main file, and locks it where no other strata has.
fn own_main(
    file: Result<File, file::Refused>,
    options: &SessionOptions,
) -> Result<(Rights, Reader<File>, StatusRecord), SessionError> {
    let file = match file {
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
    let rights = match Owner::take(file.try_clone()?, &options.owner_name) {
        Ok(owner) => Rights::Owner(Box::new(owner)),
        // A bridge that detaches by itself sets its state before it takes the lock.
        Err(TakeError::Owned { name, pid }) => match reader.status().map(|status| status.state) {
            Ok(Some(State::Detaching)) => return Err(SessionError::Leaving),
            Ok(Some(State::Detached)) => return Err(SessionError::NotLoaded),
            _ if options.beside => Rights::Reader(Box::new(Beside::new(file)?)),
            _ => return Err(SessionError::Owned(Holder::new(&name, pid))),
        },
        Err(TakeError::Call(error)) => return Err(error.into()),
    };
    Ok((rights, reader, status))
}
