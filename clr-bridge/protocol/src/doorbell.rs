//! The doorbell: a word that the bridge's thread sleeps on, so that an idle bridge costs nothing.
//!
//! A futex (futex(2)) in the control page. The owner counts it up and wakes after it has written
//! wishes or requests; the process itself does so when its thread is to look for another reason.
//! The thread reads the word, looks at everything, and sleeps only while the word is what it was: a
//! ring between the look and the sleep is not missed.
//!
//! Both count in parts of their own ([`OWNER_PART`], [`BRIDGE_STEP`]), because the owner's write is
//! not atomic with the bridge's: one cannot undo the other's ring.
//!
//! Invariant: waking waits for nothing of the process that sleeps. The kernel finds the word by the
//! file and the offset, after the same page lookup that a write of the owner needs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the word that the owner counts in.
pub const OWNER_PART: u32 = 0x00ff_ffff;
/// What the bridge adds.
pub const BRIDGE_STEP: u64 = 1 << 24;

/// The word's next value for an owner that finds this one.
#[must_use]
pub fn rung(word: u32) -> u32 {
    word.wrapping_add(1) & OWNER_PART
}

/// The value that a sleeper compares.
pub(crate) fn value(word: &AtomicU64) -> u32 {
    word.load(Ordering::SeqCst) as u32
}

/// Rings from within the process.
pub(crate) fn ring(word: &AtomicU64) {
    word.fetch_add(BRIDGE_STEP, Ordering::SeqCst);
    wake(word.as_ptr().cast());
}

/// Sleeps while the word has this value, at most so long. May return early.
pub(crate) fn wait(word: &AtomicU64, seen: u32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanoseconds % 1_000_000_000) as _,
    };
    // The lower half, which comes first. Not `FUTEX_PRIVATE_FLAG`: the owner is another process.
    let half = word.as_ptr().cast::<u32>();
    // SAFETY: word and time live during the call; the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAIT, seen, &raw const time) };
}

/// Wakes the thread that sleeps on the word at this address. There is one: a process that has
/// others sleep there keeps its own bridge asleep.
pub(crate) fn wake(half: *const u32) {
    // SAFETY: only the address matters to the kernel, and what is not mapped is an error.
    unsafe { libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAKE, 1) };
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const LONG: u64 = 60_000_000_000;

    #[test]
    fn a_ring_between_the_look_and_the_sleep_is_not_missed() {
        let word = AtomicU64::new(0);
        let start = Instant::now();
        let seen = value(&word);
        ring(&word);
        wait(&word, seen, LONG);
        let seen = value(&word);
        word.store(u64::from(rung(seen)), Ordering::SeqCst);
        wait(&word, seen, LONG);
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_sleeper_is_woken() {
        let word = AtomicU64::new(7);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                ring(&word);
            });
            let start = Instant::now();
            wait(&word, 7, LONG);
            assert!(start.elapsed() < Duration::from_secs(30));
        });
    }

    #[test]
    fn an_owners_ring_shows_whatever_the_bridge_has_counted() {
        for word in [0, 5, OWNER_PART, 5 + BRIDGE_STEP as u32, u32::MAX] {
            assert_ne!(rung(word), word);
        }
    }
}
