//! Which files' lines and inlined functions are worth reading now.
//!
//! They are in a file's debug information, which is read whole each time: libc's takes 80 ms, that of
//! a large program seconds. A daemon flushes often, and any flush may have one new place in libc. So
//! samples pay for it: until enough of them went through places of a file whose lines are unknown, its
//! symbol table gives these places their functions, and the rest comes with a later flush. Of
//! programs that are busy, the first flush has it. A recording reads everything.

use std::collections::HashMap;
use std::time::Duration;

use strata_agent::processes::mapped::FileId;

/// The reading that a sample pays for: at 19 Hz two percent of the time it stands for.
const PAID_BY_A_SAMPLE: Duration = Duration::from_millis(1);
/// What reading is taken to cost where it is not known yet.
const FIRST_COST: Duration = Duration::from_millis(20);
/// Files without such samples for so many flushes are forgotten.
const FORGOTTEN_AFTER: u32 = 40;

struct File {
    /// Through places without lines, since the last reading.
    samples: u64,
    cost: Duration,
    used: u32,
}

/// See the module.
pub struct Lines {
    files: HashMap<FileId, File>,
    flush: u32,
    is_limited: bool,
}

impl Lines {
    /// Without a limit, every file is worth it.
    pub fn new(is_limited: bool) -> Self {
        Self { files: HashMap::new(), flush: 0, is_limited }
    }

    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    pub fn begin_flush(&mut self) {
        let flush = self.flush.saturating_add(1);
        self.flush = flush;
        self.files.retain(|_, file| flush.saturating_sub(file.used) <= FORGOTTEN_AFTER);
    }

    /// Whether a file is to be read now, that had so many more samples through places without
    /// lines.
    pub fn are_worth_it(&mut self, file: FileId, samples: u64) -> bool {
        if !self.is_limited {
            return true;
        }
        let new = File { samples: 0, cost: FIRST_COST, used: 0 };
        let file = self.files.entry(file).or_insert(new);
        file.used = self.flush;
        file.samples = file.samples.saturating_add(samples);
        let paid = u64::try_from(PAID_BY_A_SAMPLE.as_micros()).unwrap_or(u64::MAX);
        let paid = Duration::from_micros(paid.saturating_mul(file.samples));
        let worth = paid >= file.cost;
        if worth {
            file.samples = 0;
        }
        worth
    }

    /// What reading a file took.
    pub fn took(&mut self, file: FileId, cost: Duration) {
        if let Some(file) = self.files.get_mut(&file) {
            file.cost = cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    #[test]
    fn samples_pay_for_reading_and_all_over_again() {
        let mut lines = Lines::new(true);
        lines.begin_flush();
        assert!(!lines.are_worth_it(FILE, 19));
        assert!(lines.are_worth_it(FILE, 1), "as many as the first reading is taken to cost");
        lines.took(FILE, Duration::from_millis(80));
        assert!(!lines.are_worth_it(FILE, 79));
        assert!(lines.are_worth_it(FILE, 1));
        assert!(!lines.are_worth_it(FILE, 79), "they have paid once");
        assert!(!lines.are_worth_it(FileId(8), 1), "each file by itself");
    }

    #[test]
    fn a_recording_reads_everything() {
        assert!(Lines::new(false).are_worth_it(FILE, 0));
    }

    #[test]
    fn files_of_ended_programs_are_forgotten() {
        let mut lines = Lines::new(true);
        for file in 0..100 {
            lines.are_worth_it(FileId(file), 1);
        }
        for _ in 0..=FORGOTTEN_AFTER {
            lines.begin_flush();
        }
        assert!(lines.files.is_empty());
    }
}
