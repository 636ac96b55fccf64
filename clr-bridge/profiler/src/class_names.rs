//! Names of classes for events, which are reported by threads that a collection waits for.
//!
//! A class's name is made from the metadata of its module and of those of its type arguments, once;
//! then it is in a cache without a lock. Modules have a table of their own here: the one of all that
//! was reported ([`crate::known`]) is locked for longer, by threads that a collection does not wait for.
//!
//! **Invariant:** [`name_of`] waits two milliseconds for a lock at most, and allocates nothing. Where a name
//! cannot be had by then there is none, and the next event of that class tries again.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use strata_bridge_protocol::clr_event::MAX_TYPE;
use strata_bridge_protocol::shared_file::monotonic_time;

use crate::metadata::Metadata;
use crate::sampling::mix;
use crate::scratch::{LongText, Scratch};
use crate::session::Session;
use crate::text::{Text, valid_part};
use crate::types;
use strata_bridge_protocol::table::Table;

/// A name as events have it.
pub type Name = Text<MAX_TYPE>;

const WORDS: usize = MAX_TYPE / 8;
/// Names that are kept: 140 kB, of which only used pages are memory.
const SLOTS: usize = 512;
/// Attempts to get the table's lock, which is held for nanoseconds.
const TRIES: usize = 64;
/// Nanoseconds between further ones, and of all of them.
const PAUSE: i64 = 50_000;
const PATIENCE: u64 = 2_000_000;
/// Arguments of arguments; deeper ones are [`NOT_SHOWN`]. Each takes stack of the app's.
const DEEPEST: u32 = 16;
const NOT_SHOWN: &str = "…";
/// The most type arguments of a class that are shown.
const MOST_ARGUMENTS: usize = 16;

/// A name in the cache. All zero: none.
struct Slot {
    /// Odd while it is being written.
    version: AtomicU64,
    class: AtomicU64,
    generation: AtomicU64,
    length: AtomicU64,
    words: [AtomicU64; WORDS],
}

type Slots = [Slot; SLOTS];

pub struct ClassNames {
    modules: Mutex<Table<Option<Metadata>>>,
    /// Made when events are first wanted, and freed with this.
    slots: AtomicPtr<Slots>,
    /// Counts the ends of modules, whose classes' ids may be those of others then.
    generation: AtomicU64,
}

impl Drop for ClassNames {
    fn drop(&mut self) {
        let slots = *self.slots.get_mut();
        if !slots.is_null() {
            // SAFETY: allocated in `prepare` with this layout, and nothing uses it any more.
            unsafe { dealloc(slots.cast(), Layout::new::<Slots>()) };
        }
    }
}

impl ClassNames {
    pub const fn new() -> Self {
        Self {
            modules: Mutex::new(Table::new()),
            slots: AtomicPtr::new(null_mut()),
            generation: AtomicU64::new(0),
        }
    }

    fn modules(&self) -> MutexGuard<'_, Table<Option<Metadata>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the cache. Without memory every name is made anew.
    pub fn prepare(&self) {
        if self.slots.load(Ordering::Acquire).is_null() {
            // SAFETY: the type has a size.
            let slots = unsafe { alloc_zeroed(Layout::new::<Slots>()) }.cast::<Slots>();
            self.slots.store(slots, Ordering::Release);
        }
    }

    /// A module's metadata is there, or is to be read in another way from now on.
    pub fn enter_module(&self, id: usize, metadata: Option<Metadata>) {
        // Without memory its classes have no name here.
        let _ = self.modules().insert(id as u64, metadata);
    }

    /// A module ends, and with it its classes, and those that have them as arguments.
    pub fn forget_module(&self, id: usize) {
        self.modules().remove(id as u64);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// The metadata of a module, for a thread that a collection may wait for. `Err`: others keep the table
    /// busy. A thread that holds it calls nothing of the runtime, but may have been preempted: it is waited
    /// for briefly.
    pub fn metadata(&self, module: usize) -> Result<Option<Metadata>, Busy> {
        let (mut attempts, mut since) = (0, 0);
        loop {
            match self.modules.try_lock() {
                Ok(modules) => return Ok(modules.get(module as u64).flatten()),
                Err(TryLockError::Poisoned(modules)) => {
                    return Ok(modules.into_inner().get(module as u64).flatten());
                }
                Err(TryLockError::WouldBlock) if attempts < TRIES => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => {
                    let now = monotonic_time();
                    if attempts == TRIES {
                        since = now;
                    } else if now.saturating_sub(since) > PATIENCE {
                        return Err(Busy);
                    }
                    pause();
                }
            }
            attempts += 1;
        }
    }

    fn slot(&self, class: usize) -> Option<&Slot> {
        // SAFETY: null or made in `prepare`, where it is all zero, which is valid for atomics; it
        // lives as long as this.
        let slots = unsafe { self.slots.load(Ordering::Acquire).as_ref() }?;
        slots.get(mix(class as u64) as usize % SLOTS)
    }

    /// Appends a name from the cache, if it is there.
    fn cached(&self, class: usize, name: &mut Name) -> bool {
        let Some(slot) = self.slot(class) else { return false };
        let version = slot.version.load(Ordering::Acquire);
        let generation = self.generation.load(Ordering::SeqCst);
        if version & 1 != 0
            || slot.class.load(Ordering::Relaxed) != class as u64
            || slot.generation.load(Ordering::Relaxed) != generation
        {
            return false;
        }
        let length = slot.length.load(Ordering::Relaxed) as usize;
        let mut bytes = [0u8; MAX_TYPE];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&slot.words) {
            *to = word.load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        if slot.version.load(Ordering::Relaxed) != version {
            return false;
        }
        name.push(valid_part(bytes.get(..length).unwrap_or_default()));
        true
    }

    /// Keeps a name that was made since `generation`, unless another thread writes to its place.
    fn keep(&self, class: usize, name: &str, generation: u64) {
        let Some(slot) = self.slot(class) else { return };
        let version = slot.version.load(Ordering::Relaxed);
        let next = version.wrapping_add(1);
        if version & 1 != 0
            || slot
                .version
                .compare_exchange(version, next, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // A reader that sees any of what follows sees that number, too.
        fence(Ordering::Release);
        let mut bytes = [0u8; MAX_TYPE];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        for (word, bytes) in slot.words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        slot.length.store(name.len().min(MAX_TYPE) as u64, Ordering::Relaxed);
        slot.class.store(class as u64, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Relaxed);
        slot.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: PAUSE };
    // SAFETY: it reads the time and stores nothing.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Other threads keep what is asked for busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The name of a class whose object is alive, with its type arguments: `Shop.Cart<System.Int32>[]`.
/// `None`, and no text: it cannot be had now.
pub fn name_of(session: &Session, class: usize, name: &mut Name) -> Option<()> {
    let names = session.class_names();
    if names.cached(class, name) {
        return Some(());
    }
    make(session, class, name)
}

#[inline(never)]
fn make(session: &Session, class: usize, name: &mut Name) -> Option<()> {
    let names = session.class_names();
    let generation = names.generation.load(Ordering::SeqCst);
    let mut scratch = session.scratch().take_without_memory()?;
    let Scratch { second: raw, .. } = scratch.get();
    if push_class(session, class, DEEPEST, name, raw).is_none() {
        name.clear();
        return None;
    }
    names.keep(class, name.as_str(), generation);
    Some(())
}

/// Appends the name of a class. Calls itself, so its frame is small. Once the text is full nothing more
/// is looked up, so work is bounded by its length.
fn push_class(
    session: &Session,
    class: usize,
    depth: u32,
    name: &mut Name,
    raw: &mut LongText,
) -> Option<()> {
    if name.is_full() {
        return Some(());
    }
    let Some(depth) = depth.checked_sub(1) else {
        name.push(NOT_SHOWN);
        return Some(());
    };
    if let Some((element, rank)) = session.info().array_element(class) {
        push_class(session, element, depth, name, raw)?;
        name.push("[");
        (1..rank.min(32)).for_each(|_| name.push(","));
        name.push("]");
        return Some(());
    }
    let mut arguments = [0usize; MOST_ARGUMENTS];
    let count = raw_name(session, class, &mut arguments, raw)?;
    let mut arguments = arguments.iter().take(count);
    // Types that a class is nested in have arguments of their own, the first ones.
    let mut passed = 0;
    loop {
        let (part, of_part, end) = next_part(raw.as_str(), passed);
        name.push(part);
        passed = end;
        let is_last = end >= raw.as_str().len();
        let of_part = if is_last { arguments.len() } else { of_part };
        for (position, argument) in arguments.by_ref().take(of_part).enumerate() {
            name.push(if position == 0 { "<" } else { ", " });
            push_class(session, *argument, depth, name, raw)?;
            if position + 1 == of_part {
                name.push(">");
            }
        }
        if is_last {
            return Some(());
        }
        // It has made way for those of the arguments.
        raw_name(session, class, &mut [], raw)?;
    }
}

/// The part of a name from a place on that ends with a number of type arguments, that number, and where
/// the next part begins: "Cart`1" of "Cart`1+Line`2".
fn next_part(raw: &str, from: usize) -> (&str, usize, usize) {
    let rest = raw.get(from..).unwrap_or_default();
    let Some((part, after)) = rest.split_once('`') else { return (rest, 0, raw.len()) };
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let number = after.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    (part, number, from + part.len() + 1 + digits)
}

/// The name of a class as metadata has it, and how many arguments it has.
#[inline(never)]
fn raw_name(
    session: &Session,
    class: usize,
    arguments: &mut [usize],
    raw: &mut LongText,
) -> Option<usize> {
    let info = session.info().class_info(class, arguments)?;
    let metadata = session.class_names().metadata(info.module).ok()??;
    if !metadata.has(info.token) {
        return None;
    }
    raw.clear();
    types::full_name(&metadata, info.token, raw);
    (!raw.as_str().is_empty()).then_some((info.arguments as usize).min(MOST_ARGUMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(names: &ClassNames, class: usize) -> Option<String> {
        let mut name = Name::new();
        names.cached(class, &mut name).then(|| name.as_str().to_owned())
    }

    #[test]
    fn a_name_is_kept_until_a_module_ends() {
        let names = ClassNames::new();
        names.keep(0x1000, "Shop.Cart", 0);
        assert_eq!(cached(&names, 0x1000), None, "there is no cache yet");
        names.prepare();
        names.keep(0x1000, "Shop.Cart<System.Int32>", 0);
        assert_eq!(cached(&names, 0x1000).as_deref(), Some("Shop.Cart<System.Int32>"));
        assert_eq!(cached(&names, 0x2000), None);
        names.forget_module(1);
        assert_eq!(cached(&names, 0x1000), None);
        // One that was made before the end.
        names.keep(0x1000, "Shop.Gone", 0);
        assert_eq!(cached(&names, 0x1000), None);
    }

    #[test]
    fn a_long_name_is_kept_to_its_bound() {
        let names = ClassNames::new();
        names.prepare();
        let long = "x".repeat(MAX_TYPE);
        names.keep(8, &long, 0);
        assert_eq!(cached(&names, 8), Some(long));
    }

    #[test]
    fn a_reader_never_sees_half_a_name() {
        let names = ClassNames::new();
        names.prepare();
        let texts = ["a".repeat(200), "b".repeat(100)];
        let ends = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for text in &texts {
                let names = &names;
                let ends = &ends;
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        names.keep(8, text, 0);
                    }
                });
            }
            for _ in 0..100_000 {
                if let Some(name) = cached(&names, 8) {
                    assert!(texts.contains(&name), "{name}");
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_that_may_not_wait_is_refused_while_the_table_is_locked() {
        let names = ClassNames::new();
        names.enter_module(1, None);
        assert!(matches!(names.metadata(1), Ok(None)));
        let held = names.modules();
        assert!(matches!(names.metadata(1), Err(Busy)));
        drop(held);
        assert!(names.metadata(1).is_ok());
    }

    #[test]
    fn parts_of_a_name_have_their_numbers_of_arguments() {
        let raw = "Shop.Cart`1+Line`2+Plain";
        let (part, number, next) = next_part(raw, 0);
        assert_eq!((part, number), ("Shop.Cart", 1));
        let (part, number, next) = next_part(raw, next);
        assert_eq!((part, number), ("+Line", 2));
        assert_eq!(next_part(raw, next), ("+Plain", 0, raw.len()));
        assert_eq!(next_part("Plain", 0), ("Plain", 0, 5));
        assert_eq!(next_part("Odd`", 0), ("Odd", 0, 4));
    }
}
