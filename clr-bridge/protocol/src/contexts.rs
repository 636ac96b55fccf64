//! The thread-context table: what each thread is doing, for a sampler outside the process.
//!
//! A slot is found by hashing the thread's tid (in its innermost PID namespace, as the sampler
//! knows it) and looking at up to [`CONTEXT_PROBES`] places from there; a free slot ends the
//! search. The first word of a slot is its tid and its sequence, which is odd while the rest is
//! being written: a sampler that finds it odd, or changed after reading, ignores the slot.
//!
//! Slots are given out and taken back under a lock in the process's own memory, a few times in a
//! thread's life. Setting a context takes no lock, and is meant to be called by the thread itself.
//!
//! Invariant: a thread's slot stays where it is as long as the thread has it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::layout::{
    CONTEXT_FREE, CONTEXT_GONE, CONTEXT_PROBES, CONTEXT_SLOTS, CONTEXTS, ContextSlot, context_place,
};
use crate::memory::{Memory, Word};

const SLOT: usize = size_of::<ContextSlot>();
/// A slot that others keep writing to is given up after this many attempts.
const ATTEMPTS: usize = 64;

/// What a thread is doing. All zero: nothing known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Context {
    pub app_domain: u64,
    /// Number of a set of labels that the bridge has published.
    pub label_set: u64,
    pub span: u64,
    /// Upper half first, as in its text form.
    pub trace: [u64; 2],
    pub root_span: u64,
}

/// A thread's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    index: usize,
    tid: u32,
}

/// The allocator of slots.
#[derive(Debug, Default)]
pub struct Registrar {
    lock: Mutex<()>,
}

/// The table, to be written to.
#[derive(Debug)]
pub struct Contexts<'a, M> {
    memory: &'a M,
}

fn first_word(tid: u32, sequence: u32) -> u64 {
    u64::from(tid) | u64::from(sequence) << 32
}

fn place(index: usize) -> usize {
    CONTEXTS + (index & (CONTEXT_SLOTS - 1)) * SLOT
}

impl<'a, M: Memory> Contexts<'a, M> {
    pub fn new(memory: &'a M) -> Self {
        Self { memory }
    }

    fn word(&self, index: usize, field: usize) -> Option<&'a M::Word> {
        self.memory.word(place(index) + field)
    }

    fn tid(&self, index: usize) -> u32 {
        self.word(index, 0).map_or(CONTEXT_GONE, |word| word.load(Ordering::Acquire) as u32)
    }

    /// The slot of a thread, if it has one.
    #[must_use]
    pub fn find(&self, tid: u32) -> Option<Slot> {
        let first = context_place(tid);
        (first..first + CONTEXT_PROBES)
            .map(|index| (index, self.tid(index)))
            .take_while(|(_, found)| *found != CONTEXT_FREE)
            .find(|(_, found)| *found == tid)
            .map(|(index, _)| Slot { index: index & (CONTEXT_SLOTS - 1), tid })
    }

    /// Allocates an empty slot for a thread, or returns the one it has. `None` if all places are
    /// taken.
    pub fn register(&self, registrar: &Registrar, tid: u32) -> Option<Slot> {
        if tid == CONTEXT_FREE || tid == CONTEXT_GONE {
            return None;
        }
        let _held = registrar.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = self.find(tid) {
            return Some(slot);
        }
        let first = context_place(tid);
        let index = (first..first + CONTEXT_PROBES)
            .find(|index| matches!(self.tid(*index), CONTEXT_FREE | CONTEXT_GONE))?;
        let slot = Slot { index: index & (CONTEXT_SLOTS - 1), tid };
        let generation = self.word(slot.index, offset_of_generation())?;
        generation.store(generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let word = self.word(slot.index, 0)?;
        word.store(first_word(tid, even(word)), Ordering::Release);
        Some(slot)
    }

    /// Frees a thread's slot: called by the thread itself, or when it has ended.
    pub fn remove(&self, registrar: &Registrar, tid: u32) {
        let _held = registrar.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = self.find(tid) else { return };
        self.set(slot, &Context::default());
        let next_is_free = self.tid(slot.index + 1) == CONTEXT_FREE;
        let mut index = slot.index;
        self.give_back(index, if next_is_free { CONTEXT_FREE } else { CONTEXT_GONE });
        // No search needs to go on past slots of ended threads that lie before a free one.
        for _ in 0..CONTEXT_PROBES {
            index = index.wrapping_sub(1) & (CONTEXT_SLOTS - 1);
            if !next_is_free || self.tid(index) != CONTEXT_GONE {
                break;
            }
            self.give_back(index, CONTEXT_FREE);
        }
    }

    fn give_back(&self, index: usize, tid: u32) {
        if let Some(word) = self.word(index, 0) {
            word.store(first_word(tid, even(word)), Ordering::Release);
        }
    }

    /// A thread's context, unless it is being written now.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<Context> {
        let word = self.word(slot.index, 0)?;
        let before = word.load(Ordering::Acquire);
        if before as u32 != slot.tid || !(before >> 32).is_multiple_of(2) {
            return None;
        }
        let field = |at| Some(self.word(slot.index, at)?.load(Ordering::Relaxed));
        let context = Context {
            app_domain: field(8)?,
            label_set: field(16)?,
            span: field(24)?,
            trace: [field(32)?, field(40)?],
            root_span: field(48)?,
        };
        self.memory.fence(Ordering::Acquire);
        (word.load(Ordering::Relaxed) == before).then_some(context)
    }

    /// Publishes what a thread is doing from now on. `false` if the slot is no longer that
    /// thread's, or others were writing to it all the time.
    pub fn set(&self, slot: Slot, context: &Context) -> bool {
        let Some(word) = self.word(slot.index, 0) else { return false };
        for _ in 0..ATTEMPTS {
            let found = word.load(Ordering::Relaxed);
            let sequence = (found >> 32) as u32;
            if found as u32 != slot.tid {
                return false;
            }
            let odd = sequence.wrapping_add(1);
            if !sequence.is_multiple_of(2) || !word.replace(found, first_word(slot.tid, odd)) {
                std::hint::spin_loop();
                continue;
            }
            self.memory.fence(Ordering::Release);
            let fields = [
                context.app_domain,
                context.label_set,
                context.span,
                context.trace[0],
                context.trace[1],
                context.root_span,
            ];
            for (number, value) in fields.into_iter().enumerate() {
                if let Some(field) = self.word(slot.index, 8 + 8 * number) {
                    field.store(value, Ordering::Relaxed);
                }
            }
            word.store(first_word(slot.tid, odd.wrapping_add(1)), Ordering::Release);
            return true;
        }
        false
    }
}

/// A slot's sequence, one on if a thread ended while it was writing.
fn even(word: &impl Word) -> u32 {
    let sequence = (word.load(Ordering::Relaxed) >> 32) as u32;
    sequence.wrapping_add(sequence % 2)
}

const fn offset_of_generation() -> usize {
    std::mem::offset_of!(ContextSlot, generation)
}

const _: () = {
    use std::mem::offset_of;
    // The order in which `set` writes.
    assert!(offset_of!(ContextSlot, app_domain) == 8);
    assert!(offset_of!(ContextSlot, label_set) == 16);
    assert!(offset_of!(ContextSlot, span) == 24);
    assert!(offset_of!(ContextSlot, trace) == 32);
    assert!(offset_of!(ContextSlot, root_span) == 48);
    assert!(offset_of!(ContextSlot, generation) == 56);
};
