//! Objects in use of .NET processes: keeps each sampled object with its stack from its allocation
//! until it is gone, and adds what is in use at a flush to the aggregate, as a snapshot.
//!
//! What is alive is what the bridge's table states at that moment, so nothing that was missed
//! before matters later. Stacks are kept as code addresses: the process goes on mapping files and
//! generating code.
//!
//! Invariant: a process has as many objects as the table has places, and its stacks have a limit
//! ([`MOST_FRAMES`]): a process that reports more loses its own. All together have one too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use strata_abi::record::{End, Header};
use strata_bridge_protocol::clr_event::{Block, ClrEvent, SAMPLED_EVERY};
use strata_bridge_protocol::objects::{ObjectId, ObjectTable, ObjectWord};
use strata_kinds::Kind;

use super::clr_events::{
    MANAGED_ONLY, Room, is_managed_only, printable, room_for_labels, stack_of_event,
};
use super::{Engine, monotonic_nanos};
use crate::aggregate::{Addresses, Aggregate, LabelsId, ThreadKey, Words};
use crate::code_address::{CodeAddress, Marker};
use crate::image_id::ImageId;
use crate::managed::events::Objects;
use crate::processes::table::Space;

/// Frames of all stacks of one process.
const MOST_FRAMES: usize = 200_000;
/// The same of all processes, and their objects.
const MOST_FRAMES_IN_ALL: usize = 2_000_000;
const MOST_OBJECTS_IN_ALL: usize = 500_000;
/// Frames of a stack for which there is no room as a whole.
const FEW_FRAMES: usize = 8;

/// Classes that may be kept beyond twice as many as there are objects.
const FEW_CLASSES: usize = 1024;

/// How many objects, and how many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub count: f64,
    pub bytes: f64,
}

/// What a sampled allocation of this weight stands for.
pub(super) fn amount_of(event: &ClrEvent<'_>, weight: u32) -> Amount {
    let size = event.size.max(1) as f64;
    if event.value == 0 {
        // Each byte is chosen with the same chance, so an object the more often the larger it is.
        let each = 1.0 / -(-size / SAMPLED_EVERY as f64).exp_m1();
        let count = each * f64::from(weight.max(1));
        Amount { count, bytes: count * size }
    } else {
        Amount { count: event.value as f64 / size, bytes: event.value as f64 }
    }
}

/// A sampled object.
#[derive(Clone)]
struct Object {
    serial: u32,
    /// When it was allocated.
    time: u64,
    thread: ThreadKey,
    class: Arc<str>,
    stack: Arc<[CodeAddress]>,
    end: End,
    /// The stack has managed frames only.
    is_managed_only: bool,
    amount: Amount,
}

/// The sampled objects of one process.
#[derive(Default)]
struct Heap {
    /// By their place in the bridge's table.
    objects: HashMap<u16, Object>,
    classes: HashSet<Arc<str>>,
    stacks: HashSet<Arc<[CodeAddress]>>,
    frames: usize,
    /// Frames beyond which unused ones are looked for again.
    crowded_from: usize,
    /// Objects in use that were not reported, at the last look.
    unknown: HashSet<ObjectId>,
    /// Objects were in use at the last snapshot.
    had_some: bool,
    /// Samples without a place, as the bridge has stated last.
    refused: u64,
    /// Objects whose stacks were shortened to [`FEW_FRAMES`].
    shortened: u64,
}

/// The sampled objects of all processes.
#[derive(Default)]
pub struct Heaps {
    of: HashMap<ImageId, Heap>,
    /// Objects that are in use and whose samples did not arrive, or had no place in the bridge.
    missing: u64,
    /// Objects whose stacks were shortened, of all processes.
    shortened: u64,
    /// Of all, or a little more.
    frames: usize,
    objects: usize,
}

/// What objects in use have in common.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    thread: ThreadKey,
    class: Arc<str>,
    /// Equal stacks are one.
    stack: Arc<[CodeAddress]>,
    end: u8,
    is_managed_only: bool,
    age: &'static str,
    survived: &'static str,
}

impl Heap {
    fn add(&mut self, id: ObjectId, mut object: Object, class: &str, mut stack: Vec<CodeAddress>) {
        if self.frames + stack.len() > MOST_FRAMES.max(self.crowded_from) {
            self.drop_unused();
            self.crowded_from = self.frames + MOST_FRAMES / 10;
        }
        if self.classes.len() > 2 * self.objects.len() + FEW_CLASSES {
            self.drop_unused();
        }
        if self.frames + stack.len() > MOST_FRAMES && stack.len() > FEW_FRAMES {
            self.shortened += 1;
            stack.truncate(FEW_FRAMES);
            stack.push(CodeAddress::Marker(Marker::Truncated));
        }
        object.stack = match self.stacks.get(stack.as_slice()) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<[CodeAddress]> = stack.into();
                self.frames += new.len();
                self.stacks.insert(new.clone());
                new
            }
        };
        object.class = match self.classes.get(class) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<str> = class.into();
                self.classes.insert(new.clone());
                new
            }
        };
        // The stack of an earlier one may have waited for its tables.
        if self.objects.get(&id.slot).is_none_or(|known| known.time <= object.time) {
            self.objects.insert(id.slot, object);
        }
    }

    /// Whether its objects are as many as each of so many processes may have, or its frames.
    fn has_its_share_of(&self, processes: usize) -> bool {
        self.frames >= MOST_FRAMES_IN_ALL / processes
            || self.objects.len() >= MOST_OBJECTS_IN_ALL / processes
    }

    /// Drops stacks and classes that no object has any more.
    fn drop_unused(&mut self) {
        self.stacks.retain(|stack| Arc::strong_count(stack) > 1);
        self.classes.retain(|class| Arc::strong_count(class) > 1);
        self.frames = self.stacks.iter().map(|stack| stack.len()).sum();
    }

    /// Drops what is gone; returns how many of those in use turn out to be unknown here.
    fn keep_alive(&mut self, table: &ObjectTable) -> u64 {
        self.objects.retain(|slot, object| {
            table.get(ObjectId { slot: *slot, serial: object.serial }).is_some()
        });
        self.drop_unused();
        let is_unknown = |(id, word): &(ObjectId, ObjectWord)| {
            let known = self.objects.get(&id.slot);
            word.in_use && known.is_none_or(|object| object.serial != id.serial)
        };
        let unknown: HashSet<ObjectId> =
            table.iter().filter(is_unknown).map(|(id, _)| id).collect();
        let before = std::mem::replace(&mut self.unknown, unknown);
        self.unknown.difference(&before).count() as u64
    }

    /// What is in use.
    fn in_use(&self, table: &ObjectTable, now: u64) -> HashMap<Key, Amount> {
        let mut sums: HashMap<Key, Amount> = HashMap::new();
        for (slot, object) in &self.objects {
            let word = table.get(ObjectId { slot: *slot, serial: object.serial });
            let Some(word) = word.filter(|word| word.in_use) else { continue };
            let key = Key {
                thread: object.thread,
                class: object.class.clone(),
                stack: object.stack.clone(),
                end: object.end as u8,
                is_managed_only: object.is_managed_only,
                age: age_name(now.saturating_sub(object.time)),
                survived: survived_name(word.survived),
            };
            let times = f64::from(1u32 << word.shift);
            let sum = sums.entry(key).or_default();
            sum.count += object.amount.count * times;
            sum.bytes += object.amount.bytes * times;
        }
        sums
    }

    /// The labels of an aggregate are its own, and have a limit.
    fn labels(key: &Key, to: &mut Aggregate) -> LabelsId {
        let image = key.thread.image;
        if key.class.is_empty() {
            to.note_type_unknown();
        }
        let mut labels = vec![
            ("allocation class", &*key.class),
            ("object age", key.age),
            ("collections survived", key.survived),
        ];
        labels.extend(key.is_managed_only.then_some(MANAGED_ONLY));
        let room = room_for_labels(image, to);
        match room {
            Room::All => {}
            Room::Some => labels.truncate(1),
            Room::None => labels.clear(),
        }
        if room != Room::All {
            to.note_labels_left_out();
        }
        labels.retain(|(_, value)| !value.is_empty());
        to.labels_of_event(image, &labels)
    }

    /// Replaces the process's snapshot in an aggregate.
    fn add_to(&mut self, image: ImageId, table: &ObjectTable, now: u64, to: &mut Aggregate) {
        let sums = self.in_use(table, now);
        let domains: HashSet<u64> = sums.keys().map(|key| key.thread.domain).collect();
        for domain in domains {
            to.begin_snapshot(Kind::Heap, image, domain);
        }
        for (key, amount) in &sums {
            let labels = Self::labels(key, to);
            let end = End::from_byte(key.end).unwrap_or(End::NoProcess);
            to.add_addresses(&Addresses {
                kind: Kind::Heap,
                time: now,
                thread: key.thread,
                labels,
                weight: amount.count.round().max(1.0) as u32,
                value: amount.bytes.round() as u64,
                stack: &key.stack,
                end,
            });
        }
        if sums.is_empty() && self.had_some {
            // That nothing is left replaces the snapshot before.
            to.add_addresses(&Addresses {
                kind: Kind::Heap,
                time: now,
                thread: ThreadKey { image, tid: 0, comm: [0; 16], domain: 0 },
                labels: LabelsId::NONE,
                weight: 0,
                value: 0,
                stack: &[],
                end: End::Complete,
            });
        }
        self.had_some = !sums.is_empty();
    }
}

/// Seconds since the allocation, coarsely: each value is a row of its own.
fn age_name(nanoseconds: u64) -> &'static str {
    match nanoseconds / 1_000_000_000 {
        0..10 => "under 10 s",
        10..60 => "10 s to 1 min",
        60..600 => "1 to 10 min",
        600..3_600 => "10 min to 1 h",
        3_600..86_400 => "1 h to 1 day",
        _ => "over 1 day",
    }
}

fn survived_name(collections: u16) -> &'static str {
    match collections {
        0 => "0",
        1 => "1",
        2..4 => "2 to 3",
        4..16 => "4 to 15",
        16..256 => "16 to 255",
        _ => "256 or more",
    }
}

impl Heaps {
    /// Objects in use that are not in any snapshot.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Objects whose stacks were shortened: those of their process had too many frames.
    pub fn shortened(&self) -> u64 {
        self.shortened
    }

    /// Code addresses that are still needed.
    pub(super) fn code_addresses(&self) -> impl Iterator<Item = CodeAddress> + '_ {
        let stacks = self.of.values().flat_map(|heap| &heap.stacks);
        stacks.flat_map(|stack| stack.iter().copied())
    }
}

impl Engine {
    /// Keeps an object that was allocated in this stack. The block is the process's claim.
    pub(super) fn keep_object(
        &mut self,
        block: &Block,
        header: &Header,
        thread: ThreadKey,
        words: &Words<'_>,
        space: &Space,
    ) {
        let event = block.event();
        let id = event.and_then(|event| event.message.parse::<ObjectId>().ok());
        let Some((event, id)) = event.zip(id) else {
            self.figures.malformed_records += 1;
            return;
        };
        let user = stack_of_event(header, words.user, space);
        let mut stack: Vec<CodeAddress> =
            CodeAddress::of_user(user, space, thread.image, words.era).collect();
        stack.extend(CodeAddress::of_end(words.end));
        // So that what is asked about them is known when they are shown.
        self.aggregate.note_addresses(&stack);
        let object = Object {
            serial: id.serial,
            time: header.time,
            thread,
            class: Arc::default(),
            stack: Arc::default(),
            end: words.end,
            is_managed_only: is_managed_only(header),
            amount: amount_of(&event, header.weight),
        };
        let heaps = &mut self.heaps;
        let is_full = heaps.frames > MOST_FRAMES_IN_ALL || heaps.objects > MOST_OBJECTS_IN_ALL;
        // One that is left out is counted when it turns out to be in use.
        let others = heaps.of.len();
        let heap = heaps.of.entry(thread.image).or_default();
        if is_full && heap.has_its_share_of(others + 1) {
            return;
        }
        let before = (heap.frames, heap.objects.len());
        heap.add(id, object, &printable(event.type_name), stack);
        heaps.shortened += std::mem::take(&mut heap.shortened);
        heaps.frames = heaps.frames.saturating_sub(before.0) + heap.frames;
        heaps.objects = heaps.objects.saturating_sub(before.1) + heap.objects.len();
    }

    /// Adds what is in use now to the aggregate: at a flush, when all records have been taken.
    pub(super) fn count_objects(&mut self) {
        if !self.sampling.kinds.contains(Kind::Heap) {
            return;
        }
        let now = monotonic_nanos();
        let Self { heaps, managed, aggregate, .. } = self;
        let Heaps { of, missing, frames, objects, .. } = heaps;
        of.retain(|image, heap| {
            let Some(Objects { table, has_ended, are_all_reported }) = managed.objects_of(*image)
            else {
                return false;
            };
            let refused = table.refused.saturating_sub(heap.refused);
            heap.refused = heap.refused.max(table.refused);
            // The process states it.
            *missing = missing.saturating_add(refused.min(1 << 32));
            let unknown = heap.keep_alive(&table);
            *missing = missing.saturating_add(if are_all_reported { unknown } else { 0 });
            heap.add_to(*image, &table, now, aggregate);
            // The number of its image may be another's soon.
            !has_ended
        });
        managed.forget_last_objects();
        *frames = of.values().map(|heap| heap.frames).sum();
        *objects = of.values().map(|heap| heap.objects.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::layout::{MAIN_SIZE, OBJECT_WORDS};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn object(serial: u32, bytes: f64) -> Object {
        let image = ImageId(1);
        Object {
            serial,
            time: 0,
            thread: ThreadKey { image, tid: 1, comm: [0; 16], domain: 0 },
            class: Arc::default(),
            stack: Arc::default(),
            end: End::Complete,
            is_managed_only: false,
            amount: Amount { count: bytes / 100.0, bytes },
        }
    }

    fn table(words: &[(u16, ObjectWord)]) -> ObjectTable {
        let mut main = vec![0u8; MAIN_SIZE];
        for (slot, word) in words {
            let at = OBJECT_WORDS + usize::from(*slot) * 8;
            main[at..at + 8].copy_from_slice(&word.pack().to_le_bytes());
        }
        ObjectTable::read(&main.as_slice()).expect("a table")
    }

    fn alive(serial: u32, shift: u8) -> ObjectWord {
        ObjectWord { serial, shift, in_use: true, survived: 1 }
    }

    fn stack(address: u64) -> Vec<CodeAddress> {
        vec![CodeAddress::Kernel(address)]
    }

    fn id(slot: u16, serial: u32) -> ObjectId {
        ObjectId { slot, serial }
    }

    #[test]
    fn only_what_is_in_use_is_in_a_snapshot_and_stands_for_as_many_as_the_table_states() {
        let mut heap = Heap::default();
        heap.add(id(1, 1), object(1, 100.0), "Leak", stack(1));
        heap.add(id(2, 1), object(1, 100.0), "Leak", stack(1));
        heap.add(id(3, 1), object(1, 700.0), "Fresh", stack(1));
        heap.add(id(4, 1), object(1, 900.0), "Freed", stack(1));
        let fresh = ObjectWord { in_use: false, ..alive(1, 0) };
        let table = table(&[(1, alive(1, 0)), (2, alive(1, 3)), (3, fresh), (4, alive(2, 0))]);
        assert_eq!(heap.keep_alive(&table), 1, "the second object of place 4 is unknown");
        assert_eq!(heap.keep_alive(&table), 0, "it is counted once");
        assert_eq!(heap.objects.len(), 3);
        let mut aggregate = Aggregate::new(strata_kinds::Kinds::NONE);
        for _ in 0..2 {
            heap.add_to(ImageId(1), &table, 30 * SECOND, &mut aggregate);
        }
        let rows: Vec<_> = aggregate.rows().collect();
        assert_eq!(rows.len(), 1, "a snapshot replaces the one before");
        assert_eq!((rows[0].weight, rows[0].value), (9, 900));
        let labels = aggregate.labels_of(rows[0].labels);
        let labels: Vec<_> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("allocation class", "Leak"),
            ("object age", "10 s to 1 min"),
            ("collections survived", "1"),
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn stacks_are_kept_once_and_as_long_as_an_object_has_them() {
        let mut heap = Heap::default();
        for slot in 0..100 {
            heap.add(id(slot, 1), object(1, 1.0), "A", stack(u64::from(slot % 2)));
        }
        assert_eq!((heap.stacks.len(), heap.frames, heap.classes.len()), (2, 2, 1));
        heap.keep_alive(&table(&[(0, alive(1, 0))]));
        assert_eq!((heap.objects.len(), heap.stacks.len(), heap.frames), (1, 1, 1));
    }

    #[test]
    fn classes_are_kept_as_long_as_an_object_has_them() {
        let mut heap = Heap::default();
        for number in 0..100_000 {
            heap.add(id(7, number), object(number, 1.0), &format!("Class{number}"), stack(1));
            assert!(heap.classes.len() <= FEW_CLASSES + 3, "{}", heap.classes.len());
        }
    }

    #[test]
    fn a_process_that_comes_late_has_its_share() {
        let mut first = Heap::default();
        for slot in 0..1_000u16 {
            let frames = (0..500).map(|frame| CodeAddress::Kernel(frame << 16 | u64::from(slot)));
            first.add(id(slot, 1), object(1, 1.0), "A", frames.collect());
        }
        let second = Heap::default();
        assert!(!second.has_its_share_of(20));
        let many = MOST_FRAMES_IN_ALL / first.frames + 1;
        assert!(first.has_its_share_of(many) && !first.has_its_share_of(1));
    }

    #[test]
    fn a_process_with_stacks_without_end_has_a_bounded_number_of_frames() {
        let mut heap = Heap::default();
        for slot in 0..1_000u16 {
            let frames = (0..1_000).map(|frame| CodeAddress::Kernel(frame << 16 | u64::from(slot)));
            heap.add(id(slot, 1), object(1, 1.0), "A", frames.collect());
        }
        assert!(heap.frames < MOST_FRAMES + 1_000 * (FEW_FRAMES + 1), "{}", heap.frames);
        let last = heap.objects.get(&999).and_then(|object| object.stack.last().copied());
        assert_eq!(last, Some(CodeAddress::Marker(Marker::Truncated)));
        let is_short = |object: &&Object| object.stack.len() == FEW_FRAMES + 1;
        let short = heap.objects.values().filter(is_short).count();
        assert_eq!((heap.shortened, short), (800, 800));
        // A stack of few frames is whole in any case.
        heap.add(id(1_000, 1), object(1, 1.0), "A", stack(7));
        assert_eq!(heap.shortened, 800);
        assert_eq!(heap.objects.get(&1_000).map(|object| object.stack.len()), Some(1));
    }
}
