//! The memory that workers may use for symbols, and the debug information that fits into it.
//!
//! A worker reads a file's debug information whole: of a large program it takes more than everything
//! else of a daemon together. Where there is no room, the file's symbol table gives the names, and
//! lines and inlined functions are left out, which is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use strata_symbols::Options;

/// Workers of the file service of symbolization, at most.
const WORKERS: u64 = 2;
/// What a worker takes for each byte of debug information: the unpacked sections, an index of the
/// addresses, and the parsed units. Seen: 1.8 (a Rust program) to 3 (libc, whose sections are
/// compressed).
const TIMES: u64 = 3;

/// See the module.
pub struct WorkerMemory(AtomicU64);

impl Default for WorkerMemory {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl WorkerMemory {
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// With the limits that the memory allows now.
    pub fn options(&self) -> Options {
        let usual = Options::default();
        let room = self.0.load(Ordering::Relaxed) / WORKERS / TIMES;
        Options {
            dwarf_limit: usual.dwarf_limit.min(room),
            mini_debug_limit: usual.mini_debug_limit.min(room),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_information_is_read_as_far_as_there_is_room_for_it() {
        let memory = WorkerMemory::default();
        assert_eq!(memory.options(), Options::default(), "a recording has no limit");
        memory.set(60 << 20);
        assert_eq!(memory.options().dwarf_limit, 10 << 20);
        memory.set(0);
        assert!(memory.options().lines, "sections that are empty are still read");
        assert_eq!(memory.options().dwarf_limit, 0);
    }
}
