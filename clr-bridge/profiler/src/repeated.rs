//! Events that the runtime delivers more than once.
//!
//! Where another profiler of the process has a session of events too, the runtime calls every profiler
//! for every session (src/coreclr/vm/eetoprofinterfaceimpl.cpp, `EventPipeEventDelivered`): an event
//! that both sessions have comes twice, one right after the other, on the same thread. No two events of
//! a thread in a row are equal otherwise: they have addresses, times or numbers in them, or others come
//! in between.
//!
//! **Invariant:** no lock, no allocation. Two threads that share a place may let a repeated event pass,
//! and never lose one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sampling::mix;

/// Places for the last events of threads.
const PLACES: usize = 512;
/// Bytes at the start and at the end of an event's data by which events are distinguished.
const ENDS: usize = 256;

pub struct Repeated {
    last: [AtomicU64; PLACES],
}

impl Repeated {
    pub const fn new() -> Self {
        Self { last: [const { AtomicU64::new(0) }; PLACES] }
    }

    /// Whether the last event of this thread was the same.
    pub fn is(&self, thread: u64, id: u32, data: &[u8]) -> bool {
        let thread = mix(thread);
        let event = digest(thread ^ u64::from(id), data);
        self.place(thread).is_some_and(|place| place.swap(event, Ordering::Relaxed) == event)
    }

    /// An event came that is of no use: an equal one after it is another. A large array that a thread
    /// makes, drops and makes again may lie where the one before was, after a collection that the thread
    /// has triggered, and that another one has made.
    pub fn interrupt(&self, thread: u64) {
        if let Some(place) = self.place(mix(thread)) {
            place.store(0, Ordering::Relaxed);
        }
    }

    fn place(&self, thread: u64) -> Option<&AtomicU64> {
        self.last.get(thread as usize % PLACES)
    }
}

fn digest(seed: u64, data: &[u8]) -> u64 {
    let first = data.get(..ENDS).unwrap_or(data);
    let last = data.get(data.len().saturating_sub(ENDS)..).unwrap_or_default();
    [first, last].into_iter().fold(seed ^ data.len() as u64, |digest, part| {
        part.chunks(8).fold(digest, |digest, chunk| {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            mix(digest ^ u64::from_le_bytes(word))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_comes_twice_in_a_row_on_one_thread_is_repeated() {
        let repeated = Repeated::new();
        assert!(!repeated.is(1, 10, b"data"));
        assert!(repeated.is(1, 10, b"data"));
        assert!(!repeated.is(1, 81, b"data"));
        assert!(!repeated.is(1, 81, b"date"));
        assert!(!repeated.is(1, 81, b"date\0"));
        assert!(!repeated.is(1, 81, b"date"), "another came in between");
    }

    #[test]
    fn an_equal_event_after_one_of_no_use_is_another() {
        let repeated = Repeated::new();
        for _ in 0..3 {
            assert!(!repeated.is(1, 10, b"data"));
            assert!(repeated.is(1, 10, b"data"), "the second session's");
            repeated.interrupt(1);
        }
    }

    #[test]
    fn the_same_event_of_another_thread_is_not_repeated() {
        let repeated = Repeated::new();
        for thread in 1..100 {
            assert!(!repeated.is(thread, 10, b"data"), "{thread}");
        }
    }

    #[test]
    fn both_ends_of_long_data_tell_events_apart() {
        let repeated = Repeated::new();
        let mut data = vec![b'N'; 5_000];
        assert!(!repeated.is(1, 10, &data));
        data[4_990] = 1;
        assert!(!repeated.is(1, 10, &data));
        data[1] = 1;
        assert!(!repeated.is(1, 10, &data));
        assert!(repeated.is(1, 10, &data));
    }
}
