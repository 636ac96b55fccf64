//! Objects that are watched from their allocation until a collection has freed them.
//!
//! A sampled object gets a place in a table of fixed size and a weak handle, which keeps nothing
//! alive. The bridge's own thread looks, after collections, which handles are empty, and destroys
//! those; what is alive stands in the shared memory ([`strata_bridge_protocol::objects`]).
//!
//! An object that was allocated since the last collection may be garbage: it counts as in use once
//! collections that examined it have left it. One of generation 1 or 2 is enough if the object was
//! [`SETTLED`] old by then, else it takes two. Of a type that is allocated and dropped all the time, a
//! collection meets one that is just being used, and leaves it, with what it refers to; one of
//! generation 0 also leaves what garbage in older generations refers to.
//!
//! When the table gets crowded, new objects are taken by chance, and when it is [`CROWDED`], every
//! object in it stays by chance. Each that stays stands for as many more, so that sums stay right,
//! whenever an object was taken.
//!
//! **Invariant:** a place is taken and given back without a lock or an allocation. No handle is left
//! when nothing is watched any more: a thread that makes one looks afterwards whether it is still
//! wanted, and the thread that ends the watching takes all back after it has noted that.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use strata_bridge_protocol::clr_event::kind;
use strata_bridge_protocol::layout::OBJECT_SLOTS;
use strata_bridge_protocol::objects::{ObjectId, ObjectWord};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Loss;

use crate::collections::{Collections, Ended};
use crate::sampling::mix;
use crate::session::Session;

/// The first `ICorProfilerInfo` with handles: .NET 7.
pub const SINCE: u32 = 13;

/// Nanoseconds after which a single collection is believed.
const SETTLED: u64 = 20_000_000;
/// Objects from which on those in the table stay by chance.
const CROWDED: u32 = OBJECT_SLOTS as u32 / 4 * 3;
/// An object stands for `2^MAX_SHIFT` at most.
const MAX_SHIFT: u32 = 16;
/// Places that are tried for an object.
const TRIES: u32 = 64;
/// Places that are looked at in one section of calls.
const AT_ONCE: usize = 512;

/// In a place without a handle.
const FREE: usize = 0;
/// A thread is about to put a handle there, or to take it away.
const TAKEN: usize = 1;

/// Generation that objects are in which only a full collection examines.
const OLDEST: u8 = 2;

/// An object that was just allocated.
#[derive(Clone, Copy, Debug)]
pub struct Allocated {
    pub address: u64,
    /// Among the large or the pinned objects, which only a full collection examines.
    pub is_large: bool,
}

/// What is known of a place; all zero: free.
struct Place {
    handle: AtomicUsize,
    /// When its object was allocated; the lowest bit: it is large.
    born: AtomicU64,
    /// Of the objects that have had it.
    serial: AtomicU32,
    /// [`Age`], for the thread that looks.
    age: AtomicU32,
}

/// How often an object was examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Age {
    generation: u8,
    examined: u8,
    in_use: bool,
    survived: u16,
}

impl Age {
    fn pack(self) -> u32 {
        u32::from(self.generation)
            | u32::from(self.examined) << 4
            | u32::from(self.in_use) << 8
            | u32::from(self.survived) << 16
    }

    fn unpack(word: u32) -> Self {
        Self {
            generation: (word & 15) as u8,
            examined: (word >> 4 & 15) as u8,
            in_use: word >> 8 & 1 != 0,
            survived: (word >> 16) as u16,
        }
    }

    /// After a collection that has left the object.
    fn after(self, ended: Ended, born: u64) -> Self {
        let Some(age) = ended.started.checked_sub(born) else { return self };
        let mut next = Self { survived: self.survived.saturating_add(1), ..self };
        if ended.generation >= self.generation && !self.in_use {
            next.generation = (self.generation + 1).min(OLDEST);
            next.examined = (self.examined + 1).min(2);
            next.in_use = ended.generation > 0 && (next.examined == 2 || age >= SETTLED);
        }
        next
    }
}

type Places = [Place; OBJECT_SLOTS];

/// The watched objects of a session.
pub struct Watched {
    /// Made when objects are first wanted, and freed with this.
    places: AtomicPtr<Places>,
    used: AtomicU32,
    random: AtomicU64,
    /// New objects are taken with a chance of one in `2^shift`.
    shift: AtomicU32,
    pub collections: Collections,
    /// The next collection that the objects were not looked at after.
    looked: AtomicU64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let places = *self.places.get_mut();
        if !places.is_null() {
            // SAFETY: allocated in `prepare` with this layout, and nothing uses it any more.
            unsafe { dealloc(places.cast(), Layout::new::<Places>()) };
        }
    }
}

impl Watched {
    pub const fn new() -> Self {
        Self {
            places: AtomicPtr::new(null_mut()),
            used: AtomicU32::new(0),
            random: AtomicU64::new(0),
            shift: AtomicU32::new(0),
            collections: Collections::new(),
            looked: AtomicU64::new(0),
        }
    }

    fn places(&self) -> Option<&Places> {
        // SAFETY: null or made in `prepare`, where it is all zero, which is valid for atomics; it
        // lives as long as this.
        unsafe { self.places.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the table; false without memory.
    fn prepare(&self) -> bool {
        if self.places().is_some() {
            return true;
        }
        // SAFETY: the type has a size.
        let places = unsafe { alloc_zeroed(Layout::new::<Places>()) }.cast::<Places>();
        self.places.store(places, Ordering::Release);
        !places.is_null()
    }

    /// Takes a free place, for a while.
    fn take(&self) -> Option<(usize, &Place)> {
        let places = self.places()?;
        for _ in 0..TRIES {
            // Anywhere: what lives long would fill places in a row.
            let number = self.random.fetch_add(1, Ordering::Relaxed);
            let slot = mix(number) as usize % OBJECT_SLOTS;
            let place = places.get(slot)?;
            let taken =
                place.handle.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                self.used.fetch_add(1, Ordering::Relaxed);
                return Some((slot, place));
            }
        }
        None
    }

    fn give_back(&self, place: &Place) {
        place.handle.store(FREE, Ordering::Release);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    fn chance(&self, shift: u32) -> bool {
        if shift == 0 {
            return true;
        }
        let number = self.random.fetch_add(1, Ordering::Relaxed);
        mix(number ^ monotonic_time()) & ((1 << shift) - 1) == 0
    }

    /// The chance with which a new object is taken: the fewer places are free, the smaller.
    fn shift_now(&self) -> u32 {
        let used = self.used.load(Ordering::Relaxed);
        let free = (OBJECT_SLOTS as u32).saturating_sub(used).max(1);
        let quarter = OBJECT_SLOTS as u32 / 4;
        let more = if free > quarter { 0 } else { (quarter / free).ilog2() + 1 };
        (self.shift.load(Ordering::Relaxed) + more).min(MAX_SHIFT)
    }
}

/// Watches an object that the calling thread has just allocated, unless it is left to others to
/// stand for it. Its thread is in cooperative mode: the object stays where it is until the handle is
/// made.
pub fn watch(session: &Session, object: Allocated) -> Option<ObjectId> {
    let watched = &session.events().objects;
    let objects = session.shared().writer().objects()?;
    watched.places()?;
    let shift = watched.shift_now();
    if object.address == 0 || !watched.chance(shift) {
        return None;
    }
    let Some((slot, place)) = watched.take() else {
        objects.refused();
        return None;
    };
    let Some(handle) = session.info().weak_handle(object.address as usize) else {
        session.shared().lost(Loss::RuntimeCall);
        watched.give_back(place);
        return None;
    };
    let serial = place.serial.load(Ordering::Relaxed).wrapping_add(1).max(1);
    place.serial.store(serial, Ordering::Relaxed);
    place.born.store(monotonic_time() & !1 | u64::from(object.is_large), Ordering::Relaxed);
    place.age.store(Age::default().pack(), Ordering::Relaxed);
    let word = ObjectWord { serial, shift: shift as u8, ..ObjectWord::default() };
    objects.set(slot, word);
    place.handle.store(handle, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if !session.events().wants(kind::OBJECT) {
        destroy(session, slot, place, handle);
        return None;
    }
    Some(ObjectId { slot: slot as u16, serial })
}

/// Destroys the handle in a place, unless another thread does.
fn destroy(session: &Session, slot: usize, place: &Place, handle: usize) {
    let taken = place.handle.compare_exchange(handle, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
    if taken.is_err() {
        return;
    }
    if let Some(objects) = session.shared().writer().objects() {
        objects.set(slot, ObjectWord::default());
    }
    if session.info().destroy_handle(handle).is_none() {
        session.shared().lost(Loss::RuntimeCall);
    }
    session.events().objects.give_back(place);
}

/// Whether there are handles.
pub fn are_watched(session: &Session) -> bool {
    session.events().objects.used.load(Ordering::Relaxed) != 0
}

/// Makes ready what watching needs, or takes all handles back, as the events wanted need it. After
/// the session of events is opened or closed.
pub fn apply(session: &Session) {
    let watched = &session.events().objects;
    if session.events().wants(kind::OBJECT) {
        let is_ready = watched.prepare() && session.shared().writer().prepare_objects().is_ok();
        if !is_ready {
            session.shared().lost(Loss::LogMemory);
        }
        return;
    }
    fence(Ordering::SeqCst);
    let Some(places) = watched.places() else { return };
    for (slot, place) in places.iter().enumerate() {
        let handle = place.handle.load(Ordering::SeqCst);
        if handle > TAKEN {
            destroy(session, slot, place, handle);
        }
    }
    watched.shift.store(0, Ordering::Relaxed);
}

/// Looks which objects are gone and how often the others were examined, if there was a collection
/// since the last look. For the bridge's own thread. True when there are so many that it should look
/// again soon.
pub fn look(session: &Session) -> bool {
    let watched = &session.events().objects;
    if !session.events().wants(kind::OBJECT) || watched.places().is_none() {
        return false;
    }
    let mut new = [Ended::default(); 64];
    let mut count = 0;
    let before = watched.looked.load(Ordering::Relaxed);
    let next = watched.collections.since(before, |ended| {
        if let Some(place) = new.get_mut(count) {
            *place = ended;
            count += 1;
        }
    });
    watched.looked.store(next, Ordering::Relaxed);
    let ended = new.get(..count).unwrap_or_default();
    if next != before {
        for_each(session, |slot, place, handle| after(session, slot, place, handle, ended));
    }
    let used = watched.used.load(Ordering::Relaxed);
    let shift = watched.shift.load(Ordering::Relaxed);
    if used > CROWDED && shift < MAX_SHIFT {
        watched.shift.store(shift + 1, Ordering::Relaxed);
        for_each(session, |slot, place, handle| thin(session, slot, place, handle, shift + 1));
    } else if used < OBJECT_SLOTS as u32 / 8 && shift > 0 {
        watched.shift.store(shift - 1, Ordering::Relaxed);
    }
    used > OBJECT_SLOTS as u32 / 2
}

/// Every place with a handle, while the runtime may be called.
fn for_each(session: &Session, mut work: impl FnMut(usize, &Place, usize)) {
    let Some(places) = session.events().objects.places() else { return };
    for (number, part) in places.chunks(AT_ONCE).enumerate() {
        let all = || {
            for (at, place) in part.iter().enumerate() {
                let handle = place.handle.load(Ordering::Acquire);
                if handle > TAKEN {
                    work(number * AT_ONCE + at, place, handle);
                }
            }
        };
        // Nor while a collection moves what the handles refer to.
        if session.in_section(all).is_none() {
            return;
        }
    }
}

/// After collections: an object is gone, or has become older.
fn after(session: &Session, slot: usize, place: &Place, handle: usize, ended: &[Ended]) {
    match session.info().object_of_handle(handle) {
        Some(0) => return destroy(session, slot, place, handle),
        Some(_) => {}
        None => return session.shared().lost(Loss::RuntimeCall),
    }
    let born = place.born.load(Ordering::Relaxed);
    let before = Age::unpack(place.age.load(Ordering::Relaxed));
    let is_large = born & 1 != 0;
    let start = if is_large { Age { generation: OLDEST, ..before } } else { before };
    let age = ended.iter().fold(start, |age, one| age.after(*one, born));
    place.age.store(age.pack(), Ordering::Relaxed);
    if let Some(objects) = session.shared().writer().objects() {
        let word = objects.get(slot);
        objects.set(slot, ObjectWord { in_use: age.in_use, survived: age.survived, ..word });
    }
}

/// Too many: an object stays by chance, and stands for more.
fn thin(session: &Session, slot: usize, place: &Place, handle: usize, shift: u32) {
    let Some(objects) = session.shared().writer().objects() else { return };
    let word = objects.get(slot);
    let Some(less) = shift.checked_sub(u32::from(word.shift)).filter(|less| *less > 0) else {
        return;
    };
    if session.events().objects.chance(less) {
        objects.set(slot, ObjectWord { shift: shift as u8, ..word });
    } else {
        destroy(session, slot, place, handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(started: u64, generation: u8) -> Ended {
        Ended { started, generation }
    }

    #[test]
    fn an_object_that_was_just_allocated_has_to_be_left_twice() {
        let born = 1_000;
        let once = Age::default().after(ended(2_000, 0), born);
        assert_eq!((once.in_use, once.survived, once.generation), (false, 1, 1));
        // A collection of younger ones does not look at it.
        let young = once.after(ended(3_000, 0), born);
        assert_eq!((young.in_use, young.survived), (false, 2));
        assert!(young.after(ended(4_000, 1), born).in_use);
        assert_eq!(Age::unpack(young.pack()), young);
    }

    #[test]
    fn an_object_that_was_there_for_a_while_is_left_once() {
        assert!(Age::default().after(ended(1_000 + SETTLED, 1), 1_000).in_use);
        // Garbage may refer to it, in a generation that was not collected.
        assert!(!Age::default().after(ended(1_000 + SETTLED, 0), 1_000).in_use);
        let large = Age { generation: OLDEST, ..Age::default() };
        assert!(!large.after(ended(1_000 + SETTLED, 1), 1_000).in_use);
        assert!(large.after(ended(1_000 + SETTLED, 2), 1_000).in_use);
    }

    #[test]
    fn a_collection_that_started_before_does_not_count() {
        assert_eq!(Age::default().after(ended(999, 2), 1_000), Age::default());
    }

    #[test]
    fn the_fewer_places_are_free_the_fewer_objects_are_taken() {
        let watched = Watched::new();
        let slots = OBJECT_SLOTS as u32;
        for (used, shift) in
            [(0, 0), (slots / 2, 0), (slots / 4 * 3, 1), (slots / 8 * 7, 2), (slots, 12)]
        {
            watched.used.store(used, Ordering::Relaxed);
            assert_eq!(watched.shift_now(), shift, "{used}");
        }
    }

    #[test]
    fn places_are_taken_and_given_back_by_threads_at_the_same_time() {
        let watched = Watched::new();
        assert!(watched.prepare() && watched.prepare());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let (_, place) = watched.take().expect("most places are free");
                        watched.give_back(place);
                    }
                });
            }
        });
        assert_eq!(watched.used.load(Ordering::Relaxed), 0);
        // Nearly every place can be taken, and none twice.
        let mut taken = std::collections::HashSet::new();
        while let Some((slot, _)) = watched.take() {
            assert!(taken.insert(slot));
        }
        assert!(taken.len() > OBJECT_SLOTS / 2, "{}", taken.len());
    }
}
