//! Reads a process's mappings: whether the bridge's memory is still there, and segments of its log
//! that are not open yet.
//!
//! Both take the lock of the process's memory, and the process can hold that for as long as it
//! likes: by mapping something over a file of a FUSE server of its own whose pages are to be
//! written back (fs/fuse/file.c, `fuse_vma_close`). So a session does not read them itself. It
//! hands out a [`Look`], an independent value that carries its results back: the session's caller
//! chooses the thread that may hang.
//!
//! Invariant: one look of a session is out at a time, so a process holds up one thread at most. A
//! look without results makes the next one wait longer, a slow one fifty times what it took, and
//! one that hung twice as long as the one before.

use std::collections::HashSet;
use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use strata_bridge_protocol::layout::MAX_SEGMENTS;
use strata_bridge_protocol::reader::file;
use strata_sandbox::waiting;

use super::memory_files;
use crate::mappings::{Mappings, SharedMapping};
use crate::target::{Target, TargetError};

/// Between two looks for segments: at least this, doubled each time nothing was found.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How often it is checked that the process has not dropped the memory.
const CHECK_MAPPED: Duration = Duration::from_secs(1);
/// The share of time that looks may take.
const LOOKING_SHARE: u32 = 50;
/// A look that took this long has hung or was held up by its process; others wait for the same
/// thread.
const HANGS: Duration = Duration::from_millis(100);
/// After one that hung, doubled each time.
const SHORTEST_REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// A look at what a process has mapped. One that is dropped is asked for again later.
#[derive(Debug)]
pub struct Look {
    target: Target,
    main: SharedMapping,
    /// Segments that were looked at; `None`: none is missing.
    known: Option<HashSet<u64>>,
    home: Sender<(Found, Duration)>,
}

impl Look {
    /// Runs the look and carries its results back. May hang for as long as the process chooses.
    pub fn look(self) {
        let (start, waited) = (Instant::now(), waiting::for_a_processor(waiting::OWN));
        // Gone by exec, or because the process unmapped it.
        let name = format!("map_files/{:x}-{:x}", self.main.start, self.main.end);
        let is_gone = |name: &str| matches!(self.target.read_link(name), Err(TargetError::Gone(_)));
        // A process whose first thread has ended has neither, as long as its other threads are there.
        let is_mapped = !is_gone(&name) || is_gone("exe");
        let segments =
            self.known.filter(|_| is_mapped).map(|known| match Mappings::read(&self.target) {
                Ok(mappings) => Segments::open(&self.target, &mappings, &known),
                Err(_) => Segments { files: Vec::new(), seen: known },
            });
        // On a busy host this thread is what is slow.
        let waited = waiting::for_a_processor(waiting::OWN).saturating_sub(waited);
        let took = start.elapsed().saturating_sub(waited);
        // Ignored by a session that ended meanwhile.
        let _ = self.home.send((Found { is_mapped, segments }, took));
    }
}

/// Segments of the log that were opened.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub files: Vec<File>,
    /// All that are mapped and were looked at, by inode. An inode that is not mapped any more may
    /// come to be another file.
    pub seen: HashSet<u64>,
}

impl Segments {
    /// Opens new ones. A file that is no segment of this bridge costs one check.
    pub fn open(target: &Target, mappings: &Mappings, known: &HashSet<u64>) -> Self {
        let mut segments = Self::default();
        for segment in memory_files::segments(mappings, &HashSet::new()) {
            let is_known = known.contains(&segment.inode);
            if !is_known && segments.files.len() >= MAX_SEGMENTS {
                continue;
            }
            segments.seen.insert(segment.inode);
            if !is_known {
                let opened = memory_files::open(target, &segment);
                let checked = opened.and_then(|file| file::check_segment(&file).map(|()| file));
                segments.files.extend(checked.ok());
            }
        }
        segments
    }
}

/// The results of a look.
#[derive(Debug)]
pub(super) struct Found {
    /// The main file is still mapped where it was.
    pub is_mapped: bool,
    /// `None`: none was looked for.
    pub segments: Option<Segments>,
}

/// Schedules the looks at a session's process.
#[derive(Debug)]
pub(super) struct Looking {
    known: HashSet<u64>,
    /// The look under way, and its start.
    out: Option<(Receiver<(Found, Duration)>, Instant)>,
    checks_at: Instant,
    searches_at: Instant,
    wait: Duration,
    /// The earliest time of the next look.
    rests_until: Instant,
    rest: Duration,
}

impl Looking {
    pub fn new(now: Instant, first: &Segments) -> Self {
        Self {
            known: first.seen.clone(),
            out: None,
            checks_at: now + CHECK_MAPPED,
            searches_at: now,
            wait: SHORTEST_WAIT,
            rests_until: now,
            rest: SHORTEST_REST,
        }
    }

    /// The start of the look under way.
    pub fn out_since(&self) -> Option<Instant> {
        self.out.as_ref().map(|(_, since)| *since)
    }

    /// The next look is due at once.
    pub fn look_now(&mut self, now: Instant) {
        self.searches_at = now;
        self.rests_until = now;
    }

    /// What comes to be missing later is looked for with the delay reset.
    pub fn nothing_missing(&mut self) {
        self.wait = SHORTEST_WAIT;
    }

    /// A look, if one is due.
    pub fn wanted(
        &mut self,
        now: Instant,
        target: &Target,
        main: SharedMapping,
        is_missing: bool,
    ) -> Option<Look> {
        let searches = is_missing && now >= self.searches_at;
        let is_due = searches || now >= self.checks_at;
        if self.out.is_some() || now < self.rests_until || !is_due {
            return None;
        }
        let (home, found) = channel();
        // No descriptor is left: another time.
        let target = target.try_clone().ok()?;
        self.out = Some((found, now));
        Some(Look { target, main, known: searches.then(|| self.known.clone()), home })
    }

    /// The results that a look carries back.
    pub fn came_back(&mut self, now: Instant) -> Option<Found> {
        let (home, _) = self.out.as_ref()?;
        match home.try_recv() {
            Ok((found, took)) => {
                self.out = None;
                self.checks_at = now + CHECK_MAPPED;
                self.note_time(now, took);
                Some(found)
            }
            Err(TryRecvError::Empty) => None,
            // Every reader was busy.
            Err(TryRecvError::Disconnected) => {
                self.out = None;
                self.rests_until = now + LONGEST_WAIT;
                None
            }
        }
    }

    fn note_time(&mut self, now: Instant, took: Duration) {
        let mut rest = took.saturating_mul(LOOKING_SHARE);
        if took >= HANGS {
            rest = rest.max(self.rest);
            self.rest = (self.rest * 2).min(LONGEST_REST);
        } else {
            self.rest = (self.rest / 2).max(SHORTEST_REST);
        }
        self.rests_until = now + rest.min(LONGEST_REST);
    }

    /// Segments were looked for: these are mapped, so many of them were new.
    pub fn note_segments(&mut self, now: Instant, known: HashSet<u64>, added: usize) {
        self.known = known;
        self.wait = if added > 0 { SHORTEST_WAIT } else { (self.wait * 2).min(LONGEST_WAIT) };
        self.searches_at = now + self.wait;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::SharedKind;

    const MAIN: SharedMapping =
        SharedMapping { start: 0, end: 4096, device: (0, 1), inode: 1, kind: SharedKind::Main };

    /// A look that is due then.
    fn look(looking: &mut Looking, now: Instant, is_missing: bool) -> Option<Look> {
        let target = Target::open(std::process::id()).unwrap();
        looking.wanted(now, &target, MAIN, is_missing)
    }

    /// The outcome of a look that took this long.
    fn comes_back(looking: &mut Looking, look: Look, now: Instant, took: Duration) {
        let found = Found { is_mapped: true, segments: None };
        look.home.send((found, took)).unwrap();
        assert!(looking.came_back(now).is_some());
    }

    #[test]
    fn one_look_is_out_at_a_time_and_a_dropped_one_is_due_again_later() {
        let now = Instant::now();
        let mut looking = Looking::new(now, &Segments::default());
        assert!(look(&mut looking, now, false).is_none(), "nothing is missing");
        let first = look(&mut looking, now, true).unwrap();
        assert!(looking.came_back(now).is_none() && looking.out_since() == Some(now));
        assert!(look(&mut looking, now + LONGEST_REST, true).is_none());
        drop(first);
        assert!(looking.came_back(now).is_none() && looking.out_since().is_none());
        assert!(look(&mut looking, now, true).is_none());
        assert!(look(&mut looking, now + LONGEST_WAIT, true).is_some());
    }

    #[test]
    fn the_longer_a_look_took_the_later_is_the_next_and_twice_as_late_each_time_it_hung() {
        let mut now = Instant::now();
        let mut looking = Looking::new(now, &Segments::default());
        let quick = look(&mut looking, now, true).unwrap();
        let took = Duration::from_millis(10);
        comes_back(&mut looking, quick, now, took);
        assert!(look(&mut looking, now + took * (LOOKING_SHARE - 1), true).is_none());
        now += took * LOOKING_SHARE;
        for rest in [SHORTEST_REST, SHORTEST_REST * 2, SHORTEST_REST * 4] {
            let hung = look(&mut looking, now, true).unwrap();
            comes_back(&mut looking, hung, now, HANGS);
            assert!(look(&mut looking, now + rest - took, true).is_none());
            now += rest;
        }
        let hung = look(&mut looking, now, true).unwrap();
        comes_back(&mut looking, hung, now, LONGEST_REST);
        assert!(look(&mut looking, now + LONGEST_REST, true).is_some(), "it is not left for good");
    }
}
