//! Unwind tables on disk, so that a restart does not parse the host's files again.
//!
//! A table is found by its file's identity, the format's version and the limits it was built under;
//! only files whose identity holds across restarts are kept ([`IdentityTrust::Persistent`]).
//! Invariants: the directory belongs to this user and only this user can write to it, or it is not
//! used; what is read is checked like a worker's answer (digest and content); a failure is counted
//! and costs only the rebuild of a table.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, fstat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use strata_unwind::UnwindTable;
use xxhash_rust::xxh3::xxh3_64;

use crate::identity::{FileIdentity, IdentityTrust};
use crate::managed::FilePart;
use crate::service::OpenFile;

const SUFFIX: &str = ".unwind";
const TEMPORARY: &str = ".tmp-";
/// A change within the same clock tick would not show in the change time, so tables of fresh files
/// are not cached yet.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// How stale the time of last use may get, so that not every read causes a write.
const TOUCH_AFTER: Duration = Duration::from_secs(6 * 3600);
/// Temporary files this old were left by a crash.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// After being full, this much of the limit is kept.
const KEEP_TENTHS: u64 = 8;

/// The cache's directory and size limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    pub directory: PathBuf,
    pub max_bytes: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { directory: default_directory(), max_bytes: 512 << 20 }
    }
}

/// `/var/cache/strata` for root, else below the user's own cache directory.
fn default_directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/cache/strata");
    }
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    base.unwrap_or_else(|| PathBuf::from("/nonexistent")).join("strata")
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    pub hits: u64,
    pub misses: u64,
    pub stored: u64,
    /// Tables whose file was changed too recently to be sure of its identity.
    pub too_fresh: u64,
    /// Damaged or outdated entries, removed.
    pub damaged: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Disk full, no permission, ….
    pub failed_writes: u64,
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("cannot use the cache directory {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("the cache directory {path} belongs to user {owner}: remove it, or choose another")]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "the cache directory {path} is open to others (mode {mode:o}): chmod 700 {path}, after a look into it"
    )]
    Open { path: PathBuf, mode: u32 },
}

/// The key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheKey {
    name: String,
    ctime_ns: i64,
}

impl CacheKey {
    /// `None` for a file whose table must not be kept. `part` is the part of the file that the
    /// table is of, and `limits` the bytes of what else it depends on.
    pub fn new(file: &OpenFile, part: Option<&FilePart>, limits: &[u8]) -> Option<Self> {
        let keeps = file.trust() == IdentityTrust::Persistent && !file.is_copy();
        keeps.then(|| Self::of_identity(file.identity(), part, limits))
    }

    fn of_identity(identity: FileIdentity, part: Option<&FilePart>, limits: &[u8]) -> Self {
        // All of the identity and of the part are in the name, so no two share one. The limits are
        // strata's own, so a target cannot make their digests collide.
        let version = strata_unwind::bytes::VERSION;
        let part = part.map_or_else(String::new, |part| {
            let unpacked = part.unpacked.map_or_else(String::new, |size| format!("-{size:x}"));
            format!("-at-{:x}-{:x}{unpacked}", part.offset, part.length)
        });
        let name = format!("{identity}-v{version}-{:x}{part}{SUFFIX}", xxh3_64(limits));
        Self { name, ctime_ns: identity.ctime_ns }
    }
}

/// The cache directory.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: OwnedFd,
    max_bytes: u64,
    max_entry: u64,
    /// Its contents, as far as this process knows.
    bytes: u64,
    serial: u64,
    pub statistics: CacheStatistics,
}

impl Cache {
    pub fn open(config: &CacheConfig, max_entry: u64) -> Result<Self, CacheError> {
        let path = &config.directory;
        let io_error = |source: io::Error| CacheError::Io { path: path.clone(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                make_directory(path).map_err(io_error)?;
                openat(CWD, path, flags, Mode::empty())
            }
            opened => opened,
        };
        let directory = directory.map_err(|errno| io_error(errno.into()))?;
        let stat = fstat(&directory).map_err(|errno| io_error(errno.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(CacheError::Owner { path: path.clone(), owner: stat.st_uid });
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(CacheError::Open { path: path.clone(), mode: stat.st_mode & 0o7777 });
        }
        let mut cache = Self {
            directory,
            max_bytes: config.max_bytes,
            max_entry,
            bytes: 0,
            serial: 0,
            statistics: CacheStatistics::default(),
        };
        cache.make_room(config.max_bytes);
        Ok(cache)
    }

    /// The table, if it is there and undamaged.
    pub fn load(&mut self, key: &CacheKey) -> Option<UnwindTable> {
        let bytes = match self.read(&key.name) {
            Ok(bytes) => bytes,
            Err(_) => {
                self.statistics.misses += 1;
                return None;
            }
        };
        match strata_unwind::bytes::from_bytes(&bytes) {
            Ok(table) => {
                self.statistics.hits += 1;
                Some(table)
            }
            Err(_) => {
                self.statistics.damaged += 1;
                self.statistics.misses += 1;
                let _ = unlinkat(&self.directory, key.name.as_str(), AtFlags::empty());
                None
            }
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > self.max_entry {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| io::ErrorKind::InvalidData)?];
        std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::from(file.try_clone()?),
            &mut bytes,
            0,
        )?;
        if now().saturating_sub(since_epoch(stat.st_mtime)) > TOUCH_AFTER {
            let used = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            // The least recently used go first; a time that cannot be set makes it go earlier.
            let _ = rustix::fs::futimens(
                &file,
                &Timestamps { last_access: used, last_modification: used },
            );
        }
        Ok(bytes)
    }

    /// Stores a table's bytes, which were checked already.
    pub fn store(&mut self, key: &CacheKey, bytes: &[u8]) {
        let changed = Duration::from_nanos(u64::try_from(key.ctime_ns).unwrap_or(0));
        if now().checked_sub(changed).is_none_or(|age| age < SETTLED_AFTER) {
            self.statistics.too_fresh += 1;
            return;
        }
        let size = bytes.len() as u64;
        if size > self.max_entry.min(self.max_bytes) {
            self.statistics.failed_writes += 1;
            return;
        }
        if self.bytes.saturating_add(size) > self.max_bytes {
            self.make_room((self.max_bytes / 10).saturating_mul(KEEP_TENTHS).saturating_sub(size));
        }
        match self.write(&key.name, bytes) {
            Ok(()) => {
                self.statistics.stored += 1;
                self.bytes = self.bytes.saturating_add(size);
            }
            Err(_) => self.statistics.failed_writes += 1,
        }
    }

    /// Another strata reading at the same time sees all of an entry or nothing.
    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.serial += 1;
        let temporary = format!("{TEMPORARY}{}-{}", std::process::id(), self.serial);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        let written = io::Write::write_all(&mut std::fs::File::from(file), bytes).and_then(|()| {
            renameat(&self.directory, temporary.as_str(), &self.directory, name)
                .map_err(io::Error::from)
        });
        if written.is_err() {
            let _ = unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
        }
        written
    }

    /// Counts what is there, and removes the least recently used down to `most` bytes.
    fn make_room(&mut self, most: u64) {
        let mut entries = Vec::new();
        let Ok(directory) = Dir::read_from(&self.directory) else { return };
        for entry in directory.flatten() {
            let name = OsStr::new(entry.file_name().to_str().unwrap_or_default()).to_owned();
            let Ok(stat) = statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            let used = since_epoch(stat.st_mtime);
            let text = name.to_string_lossy();
            if text.starts_with(TEMPORARY) {
                if now().saturating_sub(used) > ABANDONED_AFTER {
                    let _ = unlinkat(&self.directory, &name, AtFlags::empty());
                }
            } else if text.ends_with(SUFFIX) {
                entries.push((used, u64::try_from(stat.st_size).unwrap_or(0), name));
            }
        }
        self.bytes = entries.iter().fold(0, |sum: u64, (_, size, _)| sum.saturating_add(*size));
        if self.bytes <= most {
            return;
        }
        entries.sort_unstable();
        for (_, size, name) in entries {
            if self.bytes <= most {
                break;
            }
            if unlinkat(&self.directory, &name, AtFlags::empty()).is_ok() {
                self.bytes = self.bytes.saturating_sub(size);
                self.statistics.evicted += 1;
            }
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn since_epoch(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests;
