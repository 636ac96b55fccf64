//! Whether a thread is slow because it waits for a processor: on a busy host, or within a quota of processor
//! time, what takes long is no sign that it hangs.

use std::time::{Duration, Instant};

use crate::child::Child;
use crate::process_text::Stat;

/// The thread that calls.
pub const OWN: &str = "thread-self";

/// For how long a thread, `PID` or `PID/task/TID` in `/proc`, has waited for a processor since it began;
/// nothing where the kernel does not count that. A wait that lasts is not in it.
#[must_use]
pub fn for_a_processor(thread: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Whether a thread runs, or waits for a processor and nothing else.
#[must_use]
pub fn is_runnable(thread: &str) -> bool {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
    Stat::parse(&stat).and_then(|stat| stat.field(3)).is_some_and(|state| state == "R")
}

/// A helper that waits for a processor has so many times its limit.
const MOST_STARVED: u32 = 6;

/// Until when a helper is not late although its limit has passed.
#[derive(Debug)]
pub(crate) struct Grace(Instant);

impl Grace {
    pub fn none(now: Instant) -> Self {
        Self(now)
    }

    pub fn ends(&self) -> Instant {
        self.0
    }

    /// Whether a helper has spent its limit without an answer: not while it waits for a processor, where
    /// `has_computed` says that it has not spent the limit on one.
    pub fn is_over(
        &mut self,
        child: &Child,
        spent: Duration,
        limit: Duration,
        now: Instant,
        has_computed: impl FnOnce() -> bool,
    ) -> bool {
        if spent < limit || now < self.0 {
            return false;
        }
        if spent < limit * MOST_STARVED && child.is_runnable() && !has_computed() {
            self.0 = now + limit / 10;
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_another_is_not_runnable_and_one_that_computes_is() {
        assert!(is_runnable(OWN));
        let (send, receive) = std::sync::mpsc::channel();
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: without preconditions.
            send.send(unsafe { libc::gettid() }).unwrap();
            hangs.recv().unwrap_err();
        });
        let other = format!("self/task/{}", receive.recv().unwrap());
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while is_runnable(&other) && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!is_runnable(&other));
        drop(let_go);
        thread.join().unwrap();
        assert_eq!(for_a_processor("self/task/0"), Duration::ZERO, "there is no such thread");
    }
}
