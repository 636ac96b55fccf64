//! Handles the answers of the helper processes: opened files, and their tables.

use std::time::Instant;

use strata_sandbox::{FileError, Locator, Refusal, Reply, Request};

use super::{
    Asked, BUSY_FOR, Delay, Loading, State, TableKey, TableState, again_after, is_same, load,
};
use crate::kernel::loader::Programs;
use crate::processes::mapped::FileId;
use crate::processes::table::ProcessTable;
use crate::tables::store::Store;

fn is_not_copied(error: &FileError) -> bool {
    matches!(error, FileError::Refused { refusal: Refusal::NotCopied, .. })
}

impl Loading {
    /// Takes the answers that have come.
    pub fn answers(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        processes: &mut ProcessTable,
    ) {
        if self.asked.is_empty() && self.service.pending() == 0 {
            return;
        }
        let answers = self.service.drain();
        if answers.is_empty() {
            return;
        }
        for (id, outcome) in answers {
            match self.asked.remove(&id) {
                Some(Asked::Open { file, fallback, by_path }) => {
                    self.opened(processes, file, fallback, by_path, outcome);
                }
                Some(Asked::Verify { file }) => self.verified(file, outcome),
                Some(Asked::Table(key)) => {
                    self.table_built(programs, store, key, outcome);
                }
                Some(Asked::Bundle(key)) => {
                    self.progress = true;
                    self.bundle_read(key, outcome);
                }
                None => {}
            }
        }
    }

    fn opened(
        &mut self,
        processes: &mut ProcessTable,
        file: FileId,
        fallback: Option<Locator>,
        by_path: bool,
        outcome: Result<Reply, FileError>,
    ) {
        self.progress = true;
        match outcome {
            Ok(Reply::Opened(opened)) => {
                let named = processes.files.get(file).map(|file| file.inode);
                let same = named.is_some_and(|inode| is_same(&inode, &opened.identity()));
                if !same {
                    // Stacked file systems show other numbers. A path may by now name another file;
                    // only a mapping is certain.
                    processes.files.forget(file);
                    if by_path && named.is_some_and(|inode| inode.inode != opened.identity().inode)
                    {
                        self.fail(file, "the file at its path is another one now".into());
                        return;
                    }
                }
                let entry = self.entry(file);
                entry.verified = Instant::now();
                entry.state = State::Opened(opened.clone());
                self.want_table(TableKey::of(file, &opened, None), &opened);
            }
            Ok(_) => self.fail(file, "an answer to another question".into()),
            Err(error) if error.may_pass() => self.delay(file, Delay::Overload),
            // By its path it would be the same file.
            Err(error) if fallback.is_some() && !is_not_copied(&error) => {
                if let Some(locator) = fallback {
                    let next = match &locator {
                        Locator::InRoot { path, .. } => Some(Locator::Host { path: path.clone() }),
                        _ => None,
                    };
                    let id = self.service.submit(Request::Open(locator));
                    self.asked.insert(id, Asked::Open { file, fallback: next, by_path: true });
                }
            }
            Err(error) => {
                processes.files.forget(file);
                let asked = self.entry(file).process;
                let is_there = |pid| processes.get(pid).is_some_and(|process| !process.exited);
                if asked.is_some_and(is_there) && error.is_no_answer() {
                    self.has_no_answer(file, error.to_string());
                } else if asked.is_some_and(is_there) {
                    self.fail(file, error.to_string());
                } else {
                    // Another process that maps it may still have it opened.
                    self.entry(file).state = State::Unknown;
                }
            }
        }
    }

    fn fail(&mut self, file: FileId, why: String) {
        tracing::debug!(file = file.0, %why, "a mapped file cannot be read");
        self.failed_files += 1;
        self.entry(file).state = State::Failed(why);
    }

    /// The helper that opened it died, or it took too long: another try may find everything in it.
    fn has_no_answer(&mut self, file: FileId, why: String) {
        tracing::debug!(file = file.0, %why, "a mapped file did not answer");
        let entry = self.entry(file);
        let (again, is_first) = (again_after(entry.tries), entry.tries == 0);
        entry.tries = entry.tries.saturating_add(1);
        entry.state = State::NoAnswer { why, again };
        if let Some(pid) = entry.process {
            self.try_later(pid, again);
        }
        self.failed_files += u64::from(is_first);
    }

    fn verified(&mut self, file: FileId, outcome: Result<Reply, FileError>) {
        let Ok(Reply::Opened(now)) = outcome else { return };
        if let State::Opened(before) = &self.entry(file).state
            && before.identity() != now.identity()
        {
            // Same inode, other content.
            self.changed.push(file);
        }
    }

    fn table_built(
        &mut self,
        programs: &mut Programs,
        store: &mut Store,
        key: TableKey,
        outcome: Result<Reply, FileError>,
    ) {
        self.progress = true;
        let state = match outcome {
            Ok(Reply::UnwindTable(table)) => {
                self.built += 1;
                load(programs, store, &table)
            }
            Ok(_) => TableState::None("an answer to another question".into()),
            Err(error) if error.may_pass() => {
                self.delayed_files += 1;
                TableState::Later(Instant::now() + BUSY_FOR)
            }
            Err(error) if error.is_no_answer() => {
                let tries = self.table_tries.entry(key).or_default();
                let again = again_after(*tries);
                *tries = tries.saturating_add(1);
                TableState::NoAnswer { why: error.to_string(), again }
            }
            Err(error) => TableState::None(error.to_string()),
        };
        if !matches!(state, TableState::NoAnswer { .. } | TableState::Later(_)) {
            self.table_tries.remove(&key);
        }
        self.tables.insert(key, state);
    }
}
