//! Runs two tasks at once, on scoped threads.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

/// The most threads of a query: strata shares its host with other programs.
const MOST_THREADS: usize = 4;

/// The number of threads that a query may use.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS)
}

/// Both at once, the second on a thread of its own; one after the other if there can be no more
/// threads.
pub(crate) fn both<T: Send>(
    first: impl FnOnce() -> T,
    second: impl FnOnce() -> T + Send,
) -> impl Iterator<Item = T> {
    // Taken by the thread that runs it: if no thread can be started, it must not be lost.
    let second = Mutex::new(Some(second));
    let run = || {
        let second = second.lock().unwrap_or_else(PoisonError::into_inner).take();
        second.map(|second| second())
    };
    thread::scope(|scope| {
        let spawned = Builder::new().name("store".into()).spawn_scoped(scope, run);
        let one = first();
        let other = match spawned.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(other)) => other,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => run(),
        };
        std::iter::once(one).chain(other)
    })
}

#[cfg(test)]
mod tests {
    use super::both;

    #[test]
    fn both_are_done_and_come_back_in_order() {
        let text = "borrowed".to_owned();
        let done: Vec<_> = both(|| text.len(), || text.len() * 2).collect();
        assert_eq!(done, [8, 16]);
    }

    #[test]
    #[should_panic(expected = "from the other thread")]
    fn a_panic_is_not_lost() {
        both(|| (), || panic!("from the other thread")).for_each(drop);
    }
}
