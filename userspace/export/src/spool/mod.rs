//! The undelivered batches on disk, bounded in size. Their age limit is the queue's
//! (`crate::queue`).
//!
//! A directory belongs to one spool at a time, by a lock that ends with its process. Each batch is
//! a file, `NUMBER.batch`, written as `NUMBER.new` and renamed; numbers are sixteen hexadecimal
//! digits. Order is that of the batches' own time.
//!
//! Guarantees: a process killed at any moment loses no batch for which [`Spool::put`] returned, and
//! leaves at most one torn file, which the next process counts and removes. A power loss costs at
//! most what was put since the last [`Spool::sync`]; torn files are found by their checksums and
//! counted. `put` and `remove` never wait for the disk to have written: a batch that is delivered
//! soon after it was put costs no write at all.
//!
//! Invariants: the files never take more than the bound, counted in blocks; the oldest goes first
//! when there is no room, and is handed to the caller, who counts it. No byte of a file is trusted.
//! Only the owner of the process can read the directory, and no file has a credential or address.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Batch;

/// A file takes whole blocks.
const BLOCK: u64 = 4096;

const LOCK: &str = "lock";
const WHOLE: &str = "batch";
const HALF: &str = "new";

/// The position of a batch in the queue: by its time, then in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// When its oldest profile began, in nanoseconds since 1970.
    pub oldest: i64,
    /// No two batches of a spool have the same.
    pub number: u64,
}

/// The header of a batch, and its size on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub profiles: u32,
    /// What it takes on disk.
    pub bytes: u64,
}

/// Unusable files that [`Spool::open`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Files that were being written when their writer died.
    pub torn: u64,
    /// Files that are not as they were written.
    pub corrupt: u64,
    /// Files that the system could not read. They stay.
    pub unreadable: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("could not {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} belongs to another strata that runs; stop that one or set another directory", .0.display())]
    Locked(PathBuf),
    #[error("a batch of {0} bytes is more than the spool may hold")]
    TooLarge(u64),
    #[error("the spool is full of what is newer or being sent")]
    Full,
    #[error("a file of the spool was damaged")]
    Corrupt,
}

impl SpoolError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the disk is at fault, and not the request.
    #[must_use]
    pub fn is_of_the_disk(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Locked(_))
    }
}

#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Of all files together.
    most: u64,
    entries: BTreeMap<Key, Facts>,
    bytes: u64,
    /// Being sent: never dropped to make room.
    pinned: BTreeSet<Key>,
    /// Put since the last `sync`.
    unsynced: BTreeSet<Key>,
    found: Found,
    _lock: File,
}

impl Spool {
    /// Opens a directory for `most` bytes, creates it if needed, and reads its contents.
    ///
    /// # Errors
    /// If it cannot be used, or another process uses it.
    pub fn open(directory: &Path, most: u64) -> Result<Self, SpoolError> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.map_err(SpoolError::io("create", directory))?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))
            .map_err(SpoolError::io("make private", directory))?;
        let mut spool = Self {
            directory: directory.to_owned(),
            most,
            entries: BTreeMap::new(),
            bytes: 0,
            pinned: BTreeSet::new(),
            unsynced: BTreeSet::new(),
            found: Found::default(),
            _lock: lock(directory)?,
        };
        spool.look()?;
        Ok(spool)
    }

    fn look(&mut self) -> Result<(), SpoolError> {
        let failed = || SpoolError::io("read", &self.directory);
        for file in std::fs::read_dir(&self.directory).map_err(failed())? {
            let path = file.map_err(failed())?.path();
            let Some((number, is_whole)) = name_of(&path) else { continue };
            if !is_whole {
                std::fs::remove_file(&path).map_err(SpoolError::io("remove", &path))?;
                self.found.torn = self.found.torn.saturating_add(1);
                continue;
            }
            match file::header(&path) {
                Ok(Some(header)) => {
                    let bytes = on_disk(header.payload);
                    let facts = Facts { profiles: header.profiles, bytes };
                    self.bytes = self.bytes.saturating_add(bytes);
                    self.entries.insert(Key { oldest: header.oldest, number }, facts);
                }
                Ok(None) => {
                    std::fs::remove_file(&path).map_err(SpoolError::io("remove", &path))?;
                    self.found.corrupt = self.found.corrupt.saturating_add(1);
                }
                Err(_) => self.found.unreadable = self.found.unreadable.saturating_add(1),
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn found(&self) -> Found {
        self.found
    }

    /// All batches, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Key, Facts)> {
        self.entries.iter().map(|(&key, &facts)| (key, facts))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the files take on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[must_use]
    pub fn facts(&self, key: Key) -> Option<Facts> {
        self.entries.get(&key).copied()
    }

    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Stores a batch as `number`, which no other batch here may have. What is dropped to make room
    /// for it, all of it older, is added to `dropped`.
    ///
    /// # Errors
    /// If there is no room, or the disk fails. Then the batch is not here.
    pub fn put(
        &mut self,
        number: u64,
        batch: &Batch,
        dropped: &mut Vec<(Key, Facts)>,
    ) -> Result<Key, SpoolError> {
        let payload = batch.to_bytes();
        let length = payload.len() as u64;
        let needed = on_disk(length);
        if needed > self.most || payload.len() > file::MOST_PAYLOAD {
            return Err(SpoolError::TooLarge(length));
        }
        let key = Key { oldest: batch.oldest, number };
        self.make_room(needed, key, dropped)?;
        let half = self.path(number, HALF);
        let whole = self.path(number, WHOLE);
        file::write(&half, batch, &payload).map_err(SpoolError::io("write", &half))?;
        if let Err(error) = std::fs::rename(&half, &whole) {
            let _ = std::fs::remove_file(&half);
            return Err(SpoolError::io("rename", &half)(error));
        }
        self.bytes = self.bytes.saturating_add(needed);
        self.entries.insert(key, Facts { profiles: batch.profiles, bytes: needed });
        self.unsynced.insert(key);
        Ok(key)
    }

    /// Drops the oldest until `needed` bytes fit, but nothing newer than `newcomer`.
    fn make_room(
        &mut self,
        needed: u64,
        newcomer: Key,
        dropped: &mut Vec<(Key, Facts)>,
    ) -> Result<(), SpoolError> {
        while self.bytes.saturating_add(needed) > self.most {
            let mut older = self.entries.range(..newcomer);
            let Some((&key, &facts)) = older.find(|(key, _)| !self.pinned.contains(key)) else {
                return Err(SpoolError::Full);
            };
            dropped.push((key, facts));
            self.remove(key)?;
        }
        Ok(())
    }

    /// Reads a batch back. A damaged one is removed.
    ///
    /// # Errors
    /// If it cannot be read, or is not what was put.
    pub fn read(&mut self, key: Key) -> Result<Batch, SpoolError> {
        let path = self.path(key.number, WHOLE);
        let read = file::read(&path).map_err(SpoolError::io("read", &path))?;
        if let Some(batch) = read.filter(|batch| batch.oldest == key.oldest) {
            return Ok(batch);
        }
        self.remove(key)?;
        Err(SpoolError::Corrupt)
    }

    /// Removes a batch: it was delivered, or dropped.
    ///
    /// # Errors
    /// If its file could not be removed. It counts as removed all the same, until the next start.
    pub fn remove(&mut self, key: Key) -> Result<(), SpoolError> {
        let Some(facts) = self.entries.remove(&key) else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(facts.bytes);
        self.pinned.remove(&key);
        self.unsynced.remove(&key);
        let path = self.path(key.number, WHOLE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SpoolError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Whether the batch is being sent, and may not be dropped to make room.
    pub fn pin(&mut self, key: Key, is_pinned: bool) {
        if is_pinned && self.entries.contains_key(&key) {
            self.pinned.insert(key);
        } else {
            self.pinned.remove(&key);
        }
    }

    /// As [`Self::pin`], and all others are not being sent.
    pub fn pin_only(&mut self, keys: impl Iterator<Item = Key>) {
        self.pinned.clear();
        keys.for_each(|key| self.pin(key, true));
    }

    /// Sets another bound. What is dropped because of it is added to `dropped`.
    ///
    /// # Errors
    /// If a file could not be removed.
    pub fn set_most(
        &mut self,
        most: u64,
        dropped: &mut Vec<(Key, Facts)>,
    ) -> Result<(), SpoolError> {
        self.most = most;
        let last = Key { oldest: i64::MAX, number: u64::MAX };
        match self.make_room(0, last, dropped) {
            Err(SpoolError::Full) => Ok(()),
            other => other,
        }
    }

    /// Waits until the disk has what was put and not removed again.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        while let Some(&key) = self.unsynced.first() {
            let path = self.path(key.number, WHOLE);
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(SpoolError::io("sync", &path))?;
            self.unsynced.remove(&key);
        }
        let synced = File::open(&self.directory).and_then(|file| file.sync_all());
        synced.map_err(SpoolError::io("sync", &self.directory))
    }

    fn path(&self, number: u64, ending: &str) -> PathBuf {
        self.directory.join(format!("{number:016x}.{ending}"))
    }
}

/// What a payload takes on disk.
fn on_disk(payload: u64) -> u64 {
    let bytes = payload.saturating_add(file::HEADER as u64);
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// The number in a file's name, and whether it is a whole batch.
fn name_of(path: &Path) -> Option<(u64, bool)> {
    let (number, ending) = path.file_name()?.to_str()?.split_once('.')?;
    let is_whole = match ending {
        WHOLE => true,
        HALF => false,
        _ => return None,
    };
    let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(number, 16).ok().filter(|_| is_number)?;
    // As it would be written, so that no two names mean the same number.
    let same = format!("{number:016x}.{ending}");
    (path.file_name()?.to_str()? == same).then_some((number, is_whole))
}

/// Whether a strata that runs has opened the spool.
pub(crate) fn is_in_use(directory: &Path) -> bool {
    let lock = File::open(directory.join(LOCK));
    lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn lock(directory: &Path) -> Result<File, SpoolError> {
    let path = directory.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options.create(true).write(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(SpoolError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SpoolError::Locked(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(SpoolError::io("lock", &path)(error)),
    }
}
