//! Reads the mappings of bridged processes, off the event loop.
//!
//! A bridge's memory grows by files that are found among its process's mappings, and reading those
//! takes a lock that the process can hold for as long as it likes ([`Look`]). A session has one
//! look out at a time, so each process can hang one thread at most.

use std::time::Duration;

use strata_clr::session::Look;

use crate::blocking_reader::{BlockingReader, Patience, owner_of};

/// A look takes some milliseconds at most, unless it hangs.
const PATIENCE: Patience = Patience { limit: Duration::from_millis(500), threads: 128, of_one: 8 };

/// Reads maps for all sessions. Each session receives its own results, and also that a look was
/// dropped because every reader was busy.
pub struct MapsReader {
    looks: BlockingReader<Look, ()>,
}

impl Default for MapsReader {
    fn default() -> Self {
        Self { looks: BlockingReader::new("looks", PATIENCE, Look::look) }
    }
}

impl MapsReader {
    pub fn look(&mut self, pid: u32, look: Look) {
        // A refused look is dropped, and requested again later.
        let _ = self.looks.ask_of(owner_of(pid), look);
    }

    /// Abandons looks that hang, so that others continue. To be called at every turn.
    pub fn turn(&mut self) {
        self.looks.answers();
    }

    /// Looks that hung, or were dropped because every reader hangs.
    pub fn unanswered(&self) -> u64 {
        let figures = self.looks.figures();
        figures.given_up + figures.refused
    }
}
