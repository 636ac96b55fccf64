//! A gate that one thread passes in short sections, and that callbacks shut.
//!
//! An id of the runtime's may be used until its unload callback returns. So the bridge's own thread
//! uses ids only in sections, and such a callback first shuts the gate, then waits for the section
//! that is under way, however long its thread is preempted. **Invariant:** between the return of
//! [`Gate::wait_for_section`] and [`Gate::open`] no section runs.
//!
//! Both sides store first and then load the other's flag (Dekker's algorithm), sequentially
//! consistent.

use std::sync::atomic::{AtomicU32, Ordering};

use strata_bridge_protocol::shared_file::monotonic_time;

const NONE: u32 = 0;
const RUNS: u32 = 1;
/// A section runs, and a callback sleeps until it ends.
const IS_AWAITED: u32 = 2;

/// The longest wait for a section: one runtime call needs microseconds, and more only when its
/// thread does not get the CPU. It guards against a deadlock through an unknown lock of the
/// runtime's. In slices: of these a process that is stopped meanwhile, with the section, loses one.
const LONGEST: u32 = 1_000;
const SLICE: u64 = 10_000_000;

/// **Invariant:** sections are entered by one thread only.
pub struct Gate {
    section: AtomicU32,
    /// The number of reasons that keep it shut.
    shut: AtomicU32,
}

/// The section ends when this is dropped; callbacks that shut the gate wait for it.
pub struct Section<'a>(&'a Gate);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if self.0.section.swap(NONE, Ordering::SeqCst) == IS_AWAITED {
            wake(&self.0.section);
        }
    }
}

impl Gate {
    pub const fn new() -> Self {
        Gate { section: AtomicU32::new(NONE), shut: AtomicU32::new(0) }
    }

    /// Begins a section, unless the gate is shut.
    pub fn enter(&self) -> Option<Section<'_>> {
        if self.shut.load(Ordering::SeqCst) != 0 {
            return None;
        }
        self.section.store(RUNS, Ordering::SeqCst);
        let section = Section(self);
        (self.shut.load(Ordering::SeqCst) == 0).then_some(section)
    }

    /// Waits until the gate may be open again.
    pub fn wait_until_open(&self, nanoseconds: u64) {
        let shut = self.shut.load(Ordering::SeqCst);
        if shut != 0 {
            wait(&self.shut, shut, nanoseconds);
        }
    }

    /// Prevents sections until [`Gate::open`].
    pub fn shut(&self) {
        self.shut.fetch_add(1, Ordering::SeqCst);
    }

    pub fn open(&self) {
        if self.shut.fetch_sub(1, Ordering::SeqCst) == 1 {
            wake(&self.shut);
        }
    }

    /// Waits for the section that is under way. `false`: it did not end in [`LONGEST`].
    pub fn wait_for_section(&self) -> bool {
        self.wait_for_section_at_most(LONGEST)
    }

    /// The same, for so many hundredths of a second.
    pub fn wait_for_section_at_most(&self, slices: u32) -> bool {
        (0..slices).any(|_| self.wait_for_section_for(SLICE))
    }

    /// The same, once for so many nanoseconds.
    pub fn wait_for_section_for(&self, nanoseconds: u64) -> bool {
        let mut until = None;
        loop {
            let swapped =
                self.section.compare_exchange(RUNS, IS_AWAITED, Ordering::SeqCst, Ordering::SeqCst);
            if swapped == Err(NONE) {
                return true;
            }
            let now = monotonic_time();
            let until = *until.get_or_insert(now + nanoseconds);
            if now >= until {
                return false;
            }
            wait(&self.section, IS_AWAITED, until - now);
        }
    }
}

/// Sleeps while the word has this value, at most so long. May return early.
pub fn wait(word: &AtomicU32, value: u32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanoseconds % 1_000_000_000) as _,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: word and time live during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

pub fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address of the word matters to the kernel.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_shuts_the_gate_waits_for_a_section_of_any_length() {
        let gate = Gate::new();
        let (entered, used) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let section = gate.enter();
                entered.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(300));
                used.store(true, Ordering::SeqCst);
                drop(section);
            });
            while !entered.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            gate.shut();
            assert!(gate.wait_for_section());
            assert!(used.load(Ordering::SeqCst));
            assert!(gate.enter().is_none());
            gate.open();
            assert!(gate.enter().is_some());
        });
    }

    #[test]
    fn a_shut_gate_is_waited_for_and_opens_for_the_one_who_waits() {
        let gate = Gate::new();
        gate.shut();
        gate.shut();
        gate.open();
        assert!(gate.enter().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                gate.open();
            });
            let start = Instant::now();
            while gate.enter().is_none() {
                gate.wait_until_open(10_000_000_000);
            }
            assert!(start.elapsed() < Duration::from_secs(5));
        });
    }

    #[test]
    fn no_section_uses_what_was_freed() {
        let gate = Gate::new();
        let value = AtomicU64::new(1);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        gate.shut();
                        assert!(gate.wait_for_section());
                        // Freed, while every freer is in here.
                        value.fetch_add(2, Ordering::SeqCst);
                        value.fetch_sub(2, Ordering::SeqCst);
                        gate.open();
                    }
                    ends.store(true, Ordering::SeqCst);
                });
            }
            let mut sections = 0;
            while !ends.load(Ordering::SeqCst) || sections == 0 {
                match gate.enter() {
                    Some(_section) => {
                        sections += 1;
                        assert_eq!(value.load(Ordering::SeqCst), 1);
                        std::hint::spin_loop();
                        assert_eq!(value.load(Ordering::SeqCst), 1);
                    }
                    None => gate.wait_until_open(1_000_000),
                }
            }
        });
    }
}
