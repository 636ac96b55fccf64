//! The bridge's status: state, runtime, losses, counts.
//!
//! Invariant: a loss has a cause, and every cause is counted.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use crate::layout::{MAX_SEGMENTS, STATUS, StatusPage};
use crate::memory::{Memory, Word};

macro_rules! numbered {
    ($(#[$about:meta])* $name:ident {
        $($(#[$variant_about:meta])* $variant:ident = $number:literal $text:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum $name {
            $($(#[$variant_about])* $variant = $number,)*
        }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// For display only.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            #[must_use]
            pub fn from_number(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// What the bridge is doing.
    State {
        /// Not set up yet.
        Starting = 0 "starting",
        Ready = 1 "ready",
        Detaching = 2 "detaching",
        /// Nothing will be written any more.
        Detached = 3 "detached",
        /// It cannot work; a diagnostic has the reason.
        Failed = 4 "failed",
    }
}

numbered! {
    /// Why something was lost in the bridge.
    Loss {
        RingFull = 0 "ring full",
        RingContended = 1 "ring contended",
        EventTooLong = 2 "event too long",
        LogFull = 3 "log full",
        LogContended = 4 "log contended",
        RecordTooLong = 5 "record too long",
        /// A text or a list was longer than its bound.
        RecordCut = 6 "record cut",
        /// No memory for the log.
        LogMemory = 7 "no memory for the log",
        /// No place in the thread-context table.
        ContextFull = 8 "context table full",
        ContextContended = 9 "context contended",
        /// A request of a kind that the bridge does not know.
        RequestUnknown = 10 "unknown request",
        /// A call into the runtime that failed.
        RuntimeCall = 11 "runtime call failed",
        /// A panic that was contained.
        Panic = 12 "panic contained",
        /// The ring has no memory yet.
        RingAbsent = 13 "ring without memory",
        /// A callback about an unload waited as long as it may for a runtime call, and went on.
        UnloadNotAwaited = 14 "unload not awaited",
        /// An event of the runtime's whose bytes do not hold together.
        EventInvalid = 15 "event not understood",
        /// More threads wait for handles at once than there are places.
        WaitsCrowded = 16 "wait without a place",
        /// A suspension of the runtime's threads waited as long as it may for a runtime call, and went on.
        SuspensionNotAwaited = 17 "suspension not awaited",
    }
}

numbered! {
    /// What the bridge counts besides losses.
    Count {
        Methods = 0 "methods",
        MethodUnloads = 1 "methods unloaded",
        Modules = 2 "modules",
        Types = 3 "types",
        AppDomains = 4 "AppDomains",
        Threads = 5 "threads",
        Requests = 6 "requests answered",
        /// Nanoseconds spent in callbacks and in the lookup thread.
        BusyNanoseconds = 7 "nanoseconds busy",
        Callbacks = 8 "callbacks",
        Events = 9 "events",
        OwnersSeen = 10 "owners seen",
        /// The most that a callback has used of its thread's stack: in a library that measures.
        StackBytes = 11 "bytes of stack",
        /// Sessions of the runtime's own events; one that is open has not been closed yet.
        EventSessionsOpened = 12 "event sessions opened",
        EventSessionsClosed = 13 "event sessions closed",
        /// Windows in which events of allocations were on, because all of them would cost too much.
        AllocationWindows = 14 "windows of allocations",
        /// Times that windows were given up because the runtime would collect for each of them.
        AllocationWindowsForgone = 15 "windows of allocations forgone",
        /// Events that found no room in the ring, by kind: [`Count::of_events_without_room`].
        ExceptionsWithoutRoom = 19 "exceptions without room",
        LocksWithoutRoom = 20 "waits for locks without room",
        AllocationsWithoutRoom = 21 "allocations without room",
        ObjectsWithoutRoom = 22 "objects without room",
        PausesWithoutRoom = 23 "pauses without room",
        WaitHandlesWithoutRoom = 24 "waits for handles without room",
    }
}

/// The count of events without room of a kind ([`crate::clr_event::kind`]) is so much greater.
const WITHOUT_ROOM: u64 = 16;
const _: () = {
    use crate::clr_event::kind;
    assert!(Count::ExceptionsWithoutRoom as u64 == WITHOUT_ROOM + kind::EXCEPTION as u64);
    assert!(Count::LocksWithoutRoom as u64 == WITHOUT_ROOM + kind::LOCK as u64);
    assert!(Count::AllocationsWithoutRoom as u64 == WITHOUT_ROOM + kind::ALLOCATION as u64);
    assert!(Count::ObjectsWithoutRoom as u64 == WITHOUT_ROOM + kind::OBJECT as u64);
    assert!(Count::PausesWithoutRoom as u64 == WITHOUT_ROOM + kind::PAUSE as u64);
    assert!(Count::WaitHandlesWithoutRoom as u64 == WITHOUT_ROOM + kind::WAIT_HANDLE as u64);
};

impl Count {
    /// Of a kind of events; `None` for a number that is of none.
    #[must_use]
    pub fn of_events_without_room(kind: u8) -> Option<Self> {
        Self::from_number(u64::from(kind) + WITHOUT_ROOM)
    }
}

impl Loss {
    /// Whether events were lost, which are counted by kind.
    #[must_use]
    pub fn is_of_events(self) -> bool {
        matches!(self, Self::RingFull | Self::RingContended | Self::RingAbsent | Self::EventTooLong)
    }
}

/// The status page, to be written to.
#[derive(Debug)]
pub struct Status<'a, M> {
    memory: &'a M,
}

impl<'a, M: Memory> Status<'a, M> {
    pub fn new(memory: &'a M) -> Self {
        Self { memory }
    }

    fn word(&self, offset: usize) -> Option<&'a M::Word> {
        self.memory.word(STATUS + offset)
    }

    fn store(&self, offset: usize, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    fn add(&self, offset: usize, value: u64) {
        if let Some(word) = self.word(offset) {
            word.add(value, Ordering::Release);
        }
    }

    pub fn set_state(&self, state: State) {
        self.store(offset_of!(StatusPage, state), state as u64);
    }

    /// The process's number in its own PID namespace.
    pub fn set_pid(&self, pid: u32) {
        self.store(offset_of!(StatusPage, pid), u64::from(pid));
    }

    pub fn set_created(&self, time: u64) {
        self.store(offset_of!(StatusPage, created), time);
    }

    /// The runtime's version (major, minor, build, revision) and which `ICorProfilerInfo` it gave.
    pub fn set_runtime(&self, version: [u16; 4], interface: u32, text: &str) {
        let [major, minor, build, revision] = version.map(u64::from);
        let packed = major | minor << 16 | build << 32 | revision << 48;
        self.store(offset_of!(StatusPage, runtime), packed);
        self.store(offset_of!(StatusPage, interface), u64::from(interface));
        self.set_text(offset_of!(StatusPage, runtime_text), text);
    }

    /// The function that is called with events, and the kinds of them that can be wished for, with
    /// [`crate::clr_event::capability`].
    pub fn set_events(&self, function: u64, kinds: u64) {
        self.store(offset_of!(StatusPage, event_function), function);
        self.store(offset_of!(StatusPage, event_kinds), kinds);
    }

    /// The bridge's own version.
    pub fn set_bridge(&self, text: &str) {
        self.set_text(offset_of!(StatusPage, bridge_text), text);
    }

    fn set_text(&self, offset: usize, text: &str) {
        let mut bytes = [0; 64];
        let kept = text.get(..text.floor_char_boundary(bytes.len())).unwrap_or_default();
        for (to, from) in bytes.iter_mut().zip(kept.bytes()) {
            *to = from;
        }
        for (number, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            self.store(offset + 8 * number, u64::from_le_bytes(*word));
        }
    }

    pub fn set_segments(&self, count: usize) {
        self.store(offset_of!(StatusPage, segments), count as u64);
    }

    /// Positions in the log of the oldest and of the newest segment.
    pub fn set_oldest_segment(&self, order: u64) {
        self.store(offset_of!(StatusPage, oldest_segment), order);
    }

    pub fn set_newest_segment(&self, order: u64) {
        self.store(offset_of!(StatusPage, newest_segment), order);
    }

    /// Nothing is committed in a segment any more.
    pub fn clear_committed(&self, segment: usize) {
        if segment < MAX_SEGMENTS {
            self.store(offset_of!(StatusPage, committed) + 8 * segment, 0);
        }
    }

    /// The wishes of this epoch and generation are in force.
    pub fn set_obeyed(&self, epoch: u32, generation: u32) {
        let packed = u64::from(epoch) << 32 | u64::from(generation);
        self.store(offset_of!(StatusPage, obeyed), packed);
    }

    pub fn lost(&self, loss: Loss, count: u64) {
        self.add(offset_of!(StatusPage, losses) + 8 * loss as usize, count);
    }

    pub fn count(&self, count: Count, by: u64) {
        self.add(offset_of!(StatusPage, counts) + 8 * count as usize, by);
    }

    pub fn committed(&self, segment: usize, bytes: u64) {
        if segment < MAX_SEGMENTS {
            self.add(offset_of!(StatusPage, committed) + 8 * segment, bytes);
        }
    }
}

/// The status page, as read: claims of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRecord {
    /// `None`: a state that this version does not know.
    pub state: Option<State>,
    pub pid: u32,
    pub created: u64,
    pub runtime: [u16; 4],
    pub interface: u32,
    /// At most [`MAX_SEGMENTS`].
    pub segments: usize,
    /// Epoch and generation of the wishes in force.
    pub obeyed: (u32, u32),
    pub runtime_text: String,
    pub bridge_text: String,
    /// 0: the bridge has none, as those of older versions.
    pub event_function: u64,
    /// A bit for each kind, and [`crate::clr_event::capability`].
    pub event_kinds: u64,
    /// Positions in the log of the oldest and of the newest segment; 0 in older versions.
    pub oldest_segment: u64,
    pub newest_segment: u64,
    losses: [u64; 32],
    counts: [u64; 32],
    committed: [u64; 64],
}

impl StatusRecord {
    #[must_use]
    pub fn from_bytes(bytes: &[u8; size_of::<StatusPage>()]) -> Self {
        let page = StatusPage::from_bytes(bytes);
        Self {
            state: State::from_number(page.state),
            pid: page.pid as u32,
            created: page.created,
            runtime: page.runtime,
            interface: page.interface as u32,
            segments: page.segments.min(MAX_SEGMENTS as u64) as usize,
            obeyed: ((page.obeyed >> 32) as u32, page.obeyed as u32),
            runtime_text: text(&page.runtime_text),
            bridge_text: text(&page.bridge_text),
            event_function: page.event_function,
            event_kinds: page.event_kinds,
            oldest_segment: page.oldest_segment,
            newest_segment: page.newest_segment,
            losses: page.losses,
            counts: page.counts,
            committed: page.committed,
        }
    }

    #[must_use]
    pub fn lost(&self, loss: Loss) -> u64 {
        self.losses.get(loss as usize).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        self.counts.get(count as usize).copied().unwrap_or(0)
    }

    /// Bytes that are committed in a segment, in whichever order.
    #[must_use]
    pub fn committed(&self, segment: usize) -> u64 {
        self.committed.get(segment).copied().unwrap_or(0)
    }
}

/// A text that ends at its first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}
