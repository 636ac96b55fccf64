//! Events of the CLR: attaches probes to the processes whose events are wanted, and turns their
//! records into samples with labels.
//!
//! The block of a record was written by the process: its texts are bounded, and stand only in
//! labels of its own samples.

use strata_abi::record::{
    EVENT_WORDS, FLAG_EVENT, Header, MOST_EVENTS, SOURCE_FIRST_EVENT, SOURCE_LAST_EVENT,
};
use strata_bridge_protocol::clr_event::{
    BLOCK_WORDS, Block, ClrEvent, LockWait, MOST_REPORTS, WAIT_BUCKETS, flag, wait_bucket,
    wait_source_name,
};
use strata_bridge_protocol::collection::Collection;
use strata_kinds::{KIND_COUNT, Kind, Kinds};

use super::Engine;
use super::objects::{Amount, amount_of};
use super::samples::{Sample, address_of};
use super::snapshots::FLAG_SNAPSHOT;
use crate::aggregate::{Aggregate, LabelsId};
use crate::image_id::ImageId;
use crate::kernel::broker::Mapped;
use crate::processes::table::{Backing, Space};

// The kernel's and the bridge's numbers are the same.
const _: () = assert!(EVENT_WORDS == BLOCK_WORDS);
const _: () = assert!(MOST_EVENTS as usize == MOST_REPORTS);
const _: () = {
    let mut number = 0;
    while number < KIND_COUNT as u8 {
        let is_event = SOURCE_FIRST_EVENT <= number && number <= SOURCE_LAST_EVENT;
        assert!(is_event == Kinds::OF_BRIDGE.contains(Kind::ALL[number as usize]));
        number += 1;
    }
};

/// Sets of labels of one process in an aggregate beyond which its events have no message: every
/// message is a set of its own.
const MANY_LABELS: usize = 5_000;
/// The same without labels at all: a process has as many classes as it likes.
const MOST_LABELS: usize = 10_000;
/// Sets of all processes beyond which each has a few of its own.
const MANY_LABELS_IN_ALL: usize = 50_000;
const FEW_LABELS: usize = 200;

/// The labels that there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    All,
    /// Only those that few values are of.
    Some,
    None,
}

/// The room for labels of events of a process: none can take that of the others.
pub(super) fn room_for_labels(image: ImageId, to: &Aggregate) -> Room {
    let own = to.label_sets_of(image);
    let is_crowded = to.label_sets() > MANY_LABELS_IN_ALL && own >= FEW_LABELS;
    match own {
        _ if is_crowded => Room::None,
        0..MANY_LABELS => Room::All,
        MANY_LABELS..MOST_LABELS => Room::Some,
        _ => Room::None,
    }
}

/// The block of an event's record; `None` if it is not of one.
pub(super) fn block_of(sample: &Sample<'_>) -> Option<Block> {
    if sample.header.flags & FLAG_EVENT == 0 {
        return None;
    }
    Block::from_words(sample.after_the_stack()?)
}

/// What becomes of a sample because of its event: its stack without the bridge's frames, its
/// labels, and how many events it stands for, with their values.
pub(super) struct Described<'a> {
    pub user: &'a [u64],
    pub labels: LabelsId,
    pub weight: u32,
    pub value: u64,
}

/// The name of a thread, by its number in the process's own namespace.
pub(super) type ThreadNames<'a> = &'a dyn Fn(u32) -> Option<&'a str>;

/// What labels of events are made with.
#[derive(Clone, Copy)]
pub(super) struct Labelling<'a> {
    pub threads: ThreadNames<'a>,
    /// Exceptions have their messages. The bridge reports them when another strata wants them.
    pub messages: bool,
    /// The stack has managed frames only: the runtime has walked it.
    is_managed_only: bool,
}

impl<'a> Labelling<'a> {
    pub fn new(threads: ThreadNames<'a>, messages: bool) -> Self {
        Self { threads, messages, is_managed_only: false }
    }
}

/// The label of events whose stacks have managed frames only.
pub(super) const MANAGED_ONLY: (&str, &str) = ("frames", "managed only");

/// Whether the runtime has walked the stack.
pub(super) fn is_managed_only(header: &Header) -> bool {
    header.flags & FLAG_SNAPSHOT != 0
}

/// Of a sample that is no event, what its header states.
pub(super) fn describe<'a>(
    block: Option<&Block>,
    kind: Kind,
    header: &Header,
    user: &'a [u64],
    (image, space): (ImageId, &Space),
    labelling: Labelling<'_>,
    to: &mut Aggregate,
) -> Described<'a> {
    let Some(block) = block else {
        let Header { weight, value, .. } = *header;
        return Described { user, labels: LabelsId::NONE, weight, value };
    };
    let (weight, value) = amounts(kind, block, header);
    let labelling = Labelling { is_managed_only: is_managed_only(header), ..labelling };
    let labels = labels(kind, block, image, labelling, to);
    Described { user: stack_of_event(header, user, space), labels, weight, value }
}

/// The labels of an event.
fn labels(
    kind: Kind,
    block: &Block,
    image: ImageId,
    labelling: Labelling<'_>,
    to: &mut Aggregate,
) -> LabelsId {
    let Some(event) = block.event() else { return LabelsId::NONE };
    let room = room_for_labels(image, to);
    if room == Room::None {
        to.note_labels_left_out();
        return LabelsId::NONE;
    }
    let type_name = printable(event.type_name);
    if type_name.is_empty() && matches!(kind, Kind::Exceptions | Kind::Allocations) {
        to.note_type_unknown();
    }
    let message = printable(event.message);
    let lock =
        if room == Room::All { Lock::of(&event, labelling.threads) } else { Lock::default() };
    let mut labels = Vec::with_capacity(4);
    let unbounded = match kind {
        Kind::Exceptions => labelling.messages && !message.is_empty(),
        Kind::Locks => event.message.parse::<LockWait>().is_ok(),
        Kind::Gc => is_number(&message),
        _ => false,
    };
    if unbounded && room != Room::All {
        to.note_labels_left_out();
    }
    match kind {
        Kind::Exceptions => {
            labels.push(("exception type", type_name.as_str()));
            if unbounded && room == Room::All {
                labels.push(("exception message", message.as_str()));
            }
            if event.flags & flag::RETHROWN != 0 {
                labels.push(("rethrown", "true"));
            }
        }
        Kind::Allocations => labels.push(("allocation class", type_name.as_str())),
        Kind::Locks => {
            labels.push(("Duration bucket", bucket_of(&event)));
            labels.push(("lock address", lock.address.as_str()));
            labels.push(("blocking thread id", lock.owner.as_str()));
            labels.push(("blocking thread name", lock.owner_name.as_str()));
        }
        Kind::WaitHandles => {
            labels.push(("wait source", wait_source_name(event.size)));
            labels.push(("Duration bucket", bucket_of(&event)));
        }
        Kind::Gc => {
            let collection = Collection::unpack(event.size);
            labels.push(("gc generation", generation_name(collection.generation)));
            labels.push(("gc reason", collection.reason_name()));
            labels.push(("gc type", collection.kind_name()));
            if unbounded && room == Room::All {
                labels.push(("gc number", message.as_str()));
            }
        }
        // Objects have theirs once it is known which are in use; the others are no events of the CLR.
        Kind::Heap | Kind::Cpu | Kind::Wall | Kind::OffCpu => {}
    }
    labels.extend(labelling.is_managed_only.then_some(MANAGED_ONLY));
    labels.retain(|(_, value)| !value.is_empty());
    to.labels_of_event(image, &labels)
}

/// The name of the bucket of a wait's duration.
fn bucket_of(event: &ClrEvent<'_>) -> &'static str {
    let each = event.value / u64::from(event.weight.max(1));
    WAIT_BUCKETS.get(wait_bucket(each)).map_or("", |(_, name)| name)
}

/// What a wait for a lock states of it, as texts; empty where it states nothing.
#[derive(Default)]
struct Lock {
    address: String,
    owner: String,
    owner_name: String,
}

impl Lock {
    fn of(event: &ClrEvent<'_>, threads: ThreadNames<'_>) -> Self {
        let Ok(LockWait { lock, owner }) = event.message.parse() else { return Self::default() };
        let has_owner = owner != 0;
        Self {
            address: format!("{lock:#x}"),
            owner: if has_owner { owner.to_string() } else { String::new() },
            owner_name: threads(owner).filter(|_| has_owner).map(printable).unwrap_or_default(),
        }
    }
}

/// The generations that are collected; the process may state any number.
fn generation_name(generation: u8) -> &'static str {
    ["0", "1", "2"].get(usize::from(generation)).copied().unwrap_or_default()
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// How many events a record stands for, and their values together.
fn amounts(kind: Kind, block: &Block, header: &Header) -> (u32, u64) {
    let weight = header.weight.max(1);
    let Some(event) = block.event().filter(|_| kind == Kind::Allocations) else {
        return (weight, header.value);
    };
    let Amount { count, bytes } = amount_of(&event, weight);
    // Rounded by chance, so that sums are right.
    let chance = header.time.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    let chance = chance as f64 / (1u64 << 53) as f64;
    ((count + chance).max(1.0) as u32, bytes as u64)
}

/// A text on one line.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|each| if each.is_control() { ' ' } else { each }).collect()
}

/// The stack of an event: a probe's begins in the bridge, one that the runtime has walked does not.
pub(super) fn stack_of_event<'a>(header: &Header, user: &'a [u64], space: &Space) -> &'a [u64] {
    if is_managed_only(header) { user } else { below_the_bridge(user, space) }
}

/// A stack without the bridge's own frames on top.
fn below_the_bridge<'a>(user: &'a [u64], space: &Space) -> &'a [u64] {
    let file_of = |word: &u64| match space.mapping_of(address_of(*word)).map(|found| found.backing)
    {
        Some(Backing::File(file)) => Some(file),
        _ => None,
    };
    let Some(bridge) = user.first().and_then(file_of) else { return user };
    let first = user.iter().position(|word| file_of(word) != Some(bridge));
    // A stack that ends within the bridge keeps its last frame.
    let first = first.unwrap_or_else(|| user.len().saturating_sub(1));
    user.get(first..).unwrap_or_default()
}

impl Engine {
    /// Attaches probes to processes whose bridge is there.
    pub(super) fn attach_events(&mut self) {
        while let Some(arrival) = self.programs.attached_probe() {
            self.managed.events_attached(arrival);
        }
        for candidate in self.managed.events_to_attach() {
            let (image, pid) = (candidate.image, candidate.pid);
            let Some(process) = self.table.get(pid).filter(|process| process.image == image) else {
                continue;
            };
            // The first event's stack should be whole.
            if !self.store.is_published(pid) {
                self.loading.need(&self.table, pid, 0);
                self.processes.dirty.insert(pid);
                continue;
            }
            let Some(mapping) = process.space.mapping_of(candidate.address) else {
                self.managed.events_unmapped(image);
                continue;
            };
            let within = candidate.address.saturating_sub(mapping.start);
            let offset = within.saturating_add(mapping.offset);
            let mapped = Mapped { pid, start: mapping.start, end: mapping.end, offset };
            self.managed.events_attaching(image);
            self.programs.attach_probe(image, mapped);
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::clr_event::{ClrEvent, kind};

    use super::*;
    use crate::engine::samples::tests::header;

    const IMAGE: ImageId = ImageId(1);

    fn of(aggregate: &Aggregate, id: LabelsId) -> Vec<(&str, &str)> {
        aggregate.labels_of(id).iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    fn left_out(aggregate: &Aggregate) -> usize {
        aggregate.shortfalls().labels_left_out as usize
    }

    #[test]
    fn events_without_a_type_are_counted() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        for (kind, type_name) in [
            (Kind::Exceptions, ""),
            (Kind::Allocations, ""),
            (Kind::Exceptions, "A"),
            (Kind::Gc, ""),
        ] {
            let event = ClrEvent { type_name, ..ClrEvent::default() };
            labels(kind, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
        }
        assert_eq!(aggregate.shortfalls().types_unknown, 2);
    }

    #[test]
    fn an_exception_has_its_type_and_message_and_whether_it_was_thrown_before() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let event = ClrEvent {
            kind: kind::EXCEPTION,
            type_name: "Shop.Sold",
            message: "item\n7",
            flags: flag::RETHROWN,
            ..ClrEvent::default()
        };
        let id = labels(Kind::Exceptions, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
        let expected = [
            ("exception type", "Shop.Sold"),
            ("exception message", "item 7"),
            ("rethrown", "true"),
        ];
        assert_eq!(of(&aggregate, id), expected);
        // Another strata wants the messages, this one does not.
        let without = Labelling { messages: false, ..NAMELESS };
        let id = labels(Kind::Exceptions, &Block::new(&event), IMAGE, without, &mut aggregate);
        assert_eq!(of(&aggregate, id), [expected[0], expected[2]]);
        let walked = Labelling { is_managed_only: true, ..NAMELESS };
        let id = labels(Kind::Exceptions, &Block::new(&event), IMAGE, walked, &mut aggregate);
        assert_eq!(of(&aggregate, id)[3..], [("frames", "managed only")]);
    }

    const NAMELESS: Labelling<'static> =
        Labelling { threads: &|_| None, messages: true, is_managed_only: false };

    #[test]
    fn a_wait_has_its_lock_its_owner_and_the_bucket_of_its_duration() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let threads: ThreadNames<'_> = &|tid| (tid == 7).then_some("holder\n1");
        let threads = Labelling { threads, ..NAMELESS };
        let mut of_wait = |message, value, weight| {
            let event =
                ClrEvent { kind: kind::LOCK, message, value, weight, ..ClrEvent::default() };
            let id = labels(Kind::Locks, &Block::new(&event), IMAGE, threads, &mut aggregate);
            let labels = aggregate.labels_of(id);
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let expected = [
            "Duration bucket=50 - 99 ms",
            "lock address=0x7f0012345678",
            "blocking thread id=7",
            "blocking thread name=holder 1",
        ];
        assert_eq!(of_wait("7f0012345678:7", 4 * 60_000_000, 4), expected);
        assert_eq!(
            of_wait("40:8", 5, 1),
            ["Duration bucket=0 - 9 ms", "lock address=0x40", "blocking thread id=8"]
        );
        assert_eq!(of_wait("40:0", 5, 1), ["Duration bucket=0 - 9 ms", "lock address=0x40"]);
        assert_eq!(of_wait("anything", 5, 0), ["Duration bucket=0 - 9 ms"]);
    }

    #[test]
    fn a_wait_for_a_handle_has_its_source_and_the_bucket_of_its_duration() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut of_wait = |size, value, weight| {
            let event =
                ClrEvent { kind: kind::WAIT_HANDLE, size, value, weight, ..ClrEvent::default() };
            let kind = Kind::WaitHandles;
            let id = labels(kind, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
            let labels = aggregate.labels_of(id);
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let expected = ["wait source=MonitorWait", "Duration bucket=50 - 99 ms"];
        assert_eq!(of_wait(1, 4 * 60_000_000, 4), expected);
        assert_eq!(of_wait(0, 5, 1), ["wait source=Unknown", "Duration bucket=0 - 9 ms"]);
        assert_eq!(of_wait(u64::MAX, 5, 0), ["Duration bucket=0 - 9 ms"], "a number of its own");
    }

    #[test]
    fn a_pause_has_its_collection() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut of_event = |size, message| {
            let event = ClrEvent { kind: kind::PAUSE, size, message, ..ClrEvent::default() };
            let id = labels(Kind::Gc, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
            let labels = aggregate.labels_of(id);
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let induced = Collection { generation: 1, reason: 1, kind: 0 };
        let expected =
            ["gc generation=1", "gc reason=Induced", "gc type=NonConcurrentGC", "gc number=41"];
        assert_eq!(of_event(induced.pack(), "41"), expected);
        assert!(of_event(u64::MAX, "none").is_empty(), "numbers that mean nothing");
    }

    #[test]
    fn an_allocation_stands_for_as_many_as_its_size_makes_likely() {
        let of = |size, value, time| {
            let event = ClrEvent { kind: kind::ALLOCATION, size, value, ..ClrEvent::default() };
            let header = Header { time, weight: 1, ..header(0) };
            amounts(Kind::Allocations, &Block::new(&event), &header)
        };
        let (count, bytes) = of(32, 0, 1);
        assert!((3_200..3_202).contains(&count) && (102_400..102_450).contains(&bytes));
        // A tick has what it stands for.
        assert_eq!(of(100, 102_400, 1).0, 1024);
        assert!((102_400..=102_401).contains(&of(0, 0, 1).0));
        // One and a half on average.
        let sum: u32 = (0..10_000).map(|time| of(100, 150, time).0).sum();
        assert!((14_700..15_300).contains(&sum), "{sum}");
    }

    #[test]
    fn a_process_with_messages_without_end_has_a_bounded_number_of_them() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut last = LabelsId::NONE;
        for number in 0..3 * MOST_LABELS {
            let message = number.to_string();
            let event = ClrEvent { type_name: "E", message: &message, ..ClrEvent::default() };
            last = labels(Kind::Exceptions, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
        }
        assert!(aggregate.label_sets() <= MOST_LABELS + 2);
        assert_eq!(of(&aggregate, last), [("exception type", "E")]);
        assert_eq!(left_out(&aggregate), 3 * MOST_LABELS - MANY_LABELS);
        // One that has no message lacks none.
        let event = ClrEvent { type_name: "E", ..ClrEvent::default() };
        labels(Kind::Exceptions, &Block::new(&event), IMAGE, NAMELESS, &mut aggregate);
        assert_eq!(left_out(&aggregate), 3 * MOST_LABELS - MANY_LABELS);
    }

    #[test]
    fn a_process_with_messages_without_end_leaves_others_theirs() {
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        let mut thrown = |image, class: &str, message: &str| {
            let event = ClrEvent { type_name: class, message, ..ClrEvent::default() };
            labels(Kind::Exceptions, &Block::new(&event), image, NAMELESS, &mut aggregate)
        };
        for image in 0..20 {
            for number in 0..2 * MOST_LABELS {
                thrown(ImageId(image), &format!("{image} {number}"), "");
            }
        }
        let id = thrown(ImageId(99), "Shop.Sold", "item 7");
        let expected = [("exception type", "Shop.Sold"), ("exception message", "item 7")];
        assert_eq!(of(&aggregate, id), expected);
        let left_out = left_out(&aggregate);
        assert_eq!(left_out + aggregate.label_sets(), 20 * 2 * MOST_LABELS + 1);
        let most = MANY_LABELS_IN_ALL + 2 + 20 * FEW_LABELS;
        assert!(aggregate.label_sets() <= most, "{}", aggregate.label_sets());
    }
}
