//! Whether strata's library is in a process, its state and its owner, found without taking
//! ownership.

use std::fmt;
use std::os::fd::AsRawFd;

use strata_bridge_protocol::control::wish;
use strata_bridge_protocol::layout::{OWNER_LOCK, WISHES, WishBlock, checksum};
use strata_bridge_protocol::owning::read_wishes;
use strata_bridge_protocol::reader::{Limits, ReadAt, Reader, file};
use strata_bridge_protocol::status::{Count, Loss, State};

use super::memory_files;
use crate::mappings::SharedMapping;
use crate::target::Target;

/// The owner of a bridge, as recorded in the memory: the process could have written something else
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    /// In the PID namespace of that strata; 0 when not stated.
    pub pid: u32,
}

impl Holder {
    pub fn new(name: &str, pid: u32) -> Self {
        Self { name: name.chars().filter(|letter| !letter.is_control()).collect(), pid }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "of unknown name" } else { &self.name };
        match self.pid {
            0 => f.write_str(name),
            pid => write!(f, "{name}, pid {pid}"),
        }
    }
}

/// The events that a bridge is to report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventsWished {
    /// Bits of [`wish::EVENTS`], of its owner and of those that read beside it.
    pub wishes: u64,
    /// The bridge has stated that they are in force.
    pub are_in_force: bool,
    /// The runtime walks their stacks, for the owner.
    pub are_snapshots: bool,
}

/// Strata's library in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BridgeState {
    NotLoaded,
    Loaded {
        /// `None`: a state that this version does not know.
        state: Option<State>,
        holder: Option<Holder>,
        methods: u64,
        /// Everything that was lost, of whatever cause.
        losses: u64,
        version: String,
        events: EventsWished,
    },
    /// It is present and cannot be read, with the reason.
    Unusable(String),
}

/// Looks at the memory files among these mappings. Opening them waits for the lock of the process's
/// memory, which it can hold forever: call it on a thread that may hang.
pub fn presence(target: &Target, shared: &[SharedMapping]) -> BridgeState {
    let mut first_reason = None;
    for main in memory_files::mains(shared) {
        match look(target, &main) {
            Ok(BridgeState::Loaded { state: Some(State::Detached), .. }) => {}
            Ok(state) => return state,
            Err(reason) => first_reason = first_reason.or(Some(reason)),
        }
    }
    first_reason.map_or(BridgeState::NotLoaded, BridgeState::Unusable)
}

fn look(target: &Target, main: &SharedMapping) -> Result<BridgeState, String> {
    let file = memory_files::open(target, main).map_err(|error| error.to_string())?;
    file::check_main(&file).map_err(|error| error.to_string())?;
    let reader = Reader::new(&file, Limits::default()).map_err(|error| error.to_string())?;
    let status = reader.status().map_err(|error| error.to_string())?;
    let holder = is_owned(&file).then(|| holder_of(&file));
    let wishes = read_wishes(&file).ok().flatten().filter(|_| holder.is_some());
    let events = wishes.map_or(EventsWished::default(), |wishes| EventsWished {
        wishes: wishes.flags & wish::EVENTS,
        are_in_force: status.obeyed == (wishes.epoch, wishes.generation),
        are_snapshots: wishes.has(wish::SNAPSHOTS),
    });
    Ok(BridgeState::Loaded {
        state: status.state,
        holder,
        methods: status.count(Count::Methods),
        losses: Loss::ALL.iter().fold(0, |sum: u64, loss| sum.saturating_add(status.lost(*loss))),
        version: status.bridge_text.chars().filter(|letter| !letter.is_control()).collect(),
        events,
    })
}

fn holder_of(file: &std::fs::File) -> Holder {
    let mut bytes = [0; size_of::<WishBlock>()];
    let read = file.read_at(WISHES as u64, &mut bytes).unwrap_or(0);
    let block = WishBlock::from_bytes(&bytes);
    if read < bytes.len() || block.check != checksum(bytes.get(8..).unwrap_or_default()) {
        return Holder::new("", 0);
    }
    let name = block.owner_name.split(|&byte| byte == 0).next().unwrap_or_default();
    Holder::new(&String::from_utf8_lossy(name), block.owner_pid)
}

/// Whether a process holds the owner's lock. Asking takes no lock (fcntl(2), F_OFD_GETLK).
pub(super) fn is_owned(file: &std::fs::File) -> bool {
    // SAFETY: a plain C structure for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = OWNER_LOCK;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and `lock` is a structure that the kernel may overwrite.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    outcome == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}
