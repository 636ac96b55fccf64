//! The writer of a store: takes profiles, seals segments, makes merges, drops what exceeds the age
//! or size limit.
//!
//! Invariant: the files together never exceed `max_bytes`, not even while one is written; what is
//! dropped, refused or truncated is counted. One writer owns a directory, by a lock that ends with
//! its process. [`recovery`]: opening what an earlier writer left; [`retention`]: what is dropped;
//! [`naming`]: symbols that were known late; [`shares`]: what one service may write.

mod naming;
mod recovery;
mod retention;
mod shares;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strata_profile::Profile;

use crate::body::{Facts, MOST_WIDTH};
use crate::directory::{Name, creating};
use crate::error::StoreError;
use crate::late::Summary;
use crate::merging;
use crate::reader::Reader;
use crate::rollup;
use crate::segment::Member;
use crate::series::{Head, Series};
use crate::writing::SegmentWriter;
use shares::Shares;

/// The only frame of what a service has beyond its share of the store.
const BEYOND_SHARE: &str = "[beyond its share of the store]";
/// How long after its end a segment waits for late profiles.
const GRACE_NANOS: i64 = 60_000_000_000;
/// A segment is at most this part of the whole store, so that dropping one is a small step.
const PART_OF_STORE: u64 = 8;
/// The same for a roll-up: for a moment there are two of it.
const ROLLUP_PART_OF_STORE: u64 = 16;
/// Roll-ups written in one go: each is some tens of megabytes.
const MOST_ROLLUPS: usize = 4;

/// The bounds of a store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Profiles that began before this are gone.
    pub max_age: Duration,
    /// All files together.
    pub max_bytes: u64,
    /// The time span of a segment; at most an eighth of `max_age`.
    pub span: Duration,
    /// A segment is sealed early when it is this large.
    pub segment_bytes: u64,
    /// Memory for its dictionaries and its index, about. Dictionaries that have no room are read
    /// back from the file each time they are needed. When one of them or the index takes half of
    /// this, the segment is sealed early; but not for a dictionary that has grown by less than half
    /// since its service's first period, which would need as much in every segment. Only one whose
    /// first period takes two thirds of this may therefore take more than all of it. A profile's
    /// additions and its record under construction come on top while it is added. A roll-up that has
    /// so large a dictionary is joined no more.
    pub dictionary_bytes: usize,
    /// How much may be lost when the host loses power. (Nothing is when the process is killed.)
    pub sync_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(7 * 24 * 3600),
            max_bytes: 2 << 30,
            span: Duration::from_secs(3600),
            segment_bytes: 64 << 20,
            dictionary_bytes: 64 << 20,
            sync_every: Duration::from_secs(15),
        }
    }
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub profiles_written: u64,
    /// Those of them that were written without their stacks: their service had its share of the store.
    pub profiles_folded: u64,
    /// Profiles larger than a record may be, or than the store.
    pub refused_too_large: u64,
    pub refused_too_old: u64,
    /// Profiles that could not be written: the disk was full or failed.
    pub write_failures: u64,
    pub segments_sealed: u64,
    /// How often a dictionary over the memory limit was read back from its segment.
    pub dictionaries_read_back: u64,
    /// Segments left open by an earlier writer.
    pub segments_recovered: u64,
    /// Bytes of half written records in them.
    pub bytes_cut_off: u64,
    /// Files that did not even begin as a segment: segments are put aside, roll-ups removed.
    pub files_unreadable: u64,
    pub dropped_by_age: u64,
    pub dropped_by_size: u64,
    /// Profiles in the dropped segments.
    pub profiles_dropped: u64,
    pub merges_made: u64,
    /// Segments whose merges would not have been smaller, or could not be made.
    pub merges_skipped: u64,
    /// Times that a segment joined a roll-up, and that it could not.
    pub rollups_made: u64,
    pub rollups_skipped: u64,
    /// Symbols of frames that were stored without: kept for queries, and not.
    pub late_symbols_written: u64,
    pub late_symbols_refused: u64,
    /// Dropped for lack of room, while profiles may need them.
    pub late_symbols_dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sealed {
    bytes: u64,
    merged_bytes: u64,
    profiles: u64,
    oldest: i64,
    /// The last start.
    newest: i64,
}

struct Rollup {
    bytes: u64,
    members: Vec<Member>,
}

/// A segment that cannot be read. It is kept for manual recovery until it is too old or the room is
/// needed.
#[derive(Clone, Copy, Debug)]
struct Damaged {
    bytes: u64,
    /// When it was written last, in nanoseconds since 1970.
    written: i64,
}

struct Open {
    number: u64,
    writer: SegmentWriter,
    window: i64,
}

pub struct Store {
    directory: PathBuf,
    options: Options,
    counters: Counters,
    sealed: BTreeMap<u64, Sealed>,
    open: Option<Open>,
    next: u64,
    /// Sealed segments without merges, and with merges but in no roll-up, the oldest first.
    waiting: VecDeque<u64>,
    unrolled: VecDeque<u64>,
    rollups: BTreeMap<u64, Rollup>,
    damaged: BTreeMap<u64, Damaged>,
    /// Files of late symbols.
    names: BTreeMap<u64, Summary>,
    shares: Shares,
    synced: Instant,
    lock: File,
}

impl Store {
    /// Opens a store for writing; makes it if there is none. Segments of a writer that died are
    /// recovered to their last complete record; those of another version are left unchanged, and
    /// are an error.
    pub fn open(directory: &Path, options: Options) -> Result<Self, StoreError> {
        // Profiles reveal what runs on the host, and with which arguments: private to this user.
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.map_err(StoreError::io("create", directory))?;
        let lock = lock(directory)?;
        let mut store = Self {
            directory: directory.to_owned(),
            options: settled(options),
            counters: Counters::default(),
            sealed: BTreeMap::new(),
            open: None,
            next: 0,
            waiting: VecDeque::new(),
            unrolled: VecDeque::new(),
            rollups: BTreeMap::new(),
            damaged: BTreeMap::new(),
            names: BTreeMap::new(),
            shares: Shares::default(),
            synced: Instant::now(),
            lock,
        };
        store.recover()?;
        // The limit may be smaller than it was.
        store.make_room_for_names((0, 0), None)?;
        store.make_room(0)?;
        Ok(store)
    }

    /// Whether another process writes this store; a missing store is free.
    pub fn check_free(directory: &Path) -> Result<(), StoreError> {
        match directory.join("lock").exists() {
            true => lock(directory).map(drop),
            false => Ok(()),
        }
    }

    /// Whether its directory is still the one that was opened: it may have been removed, or another put
    /// in its place, and what is written then is nowhere.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
        match std::fs::metadata(self.directory.join("lock")).map(identity) {
            Ok(now) => self.lock.metadata().map(identity).is_ok_and(|own| now == own),
            // A disk that fails says nothing about it.
            Err(error) => {
                use std::io::ErrorKind::{NotADirectory, NotFound};
                !matches!(error.kind(), NotFound | NotADirectory)
            }
        }
    }

    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(&self.directory)
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The size of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let sealed = self.sealed.values();
        let sealed = sealed.map(|sealed| sealed.bytes.saturating_add(sealed.merged_bytes));
        let rollups = self.rollups.values().map(|rollup| rollup.bytes);
        let open = self.open.as_ref().map_or(0, |open| open.writer.length);
        let damaged = self.damaged.values().map(|damaged| damaged.bytes);
        let names = self.names.values().map(|names| names.length);
        sealed.chain(rollups).chain(damaged).chain(names).fold(open, u64::saturating_add)
    }

    /// Bytes of memory that the dictionaries and the index of the segment that is written take.
    #[must_use]
    pub fn dictionaries(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.writer.memory())
    }

    /// When the youngest profile began, in nanoseconds since 1970.
    #[must_use]
    pub fn newest(&self) -> Option<i64> {
        let open = self.open.as_ref().and_then(|open| open.writer.starts());
        let sealed = self.sealed.values().map(|sealed| sealed.newest);
        sealed.chain(open.map(|(_, newest)| newest)).filter(|newest| *newest > i64::MIN).max()
    }

    /// Adds a profile. `now` in nanoseconds since 1970, as ages are counted: the writer may hold it
    /// back while a clock is not trusted.
    pub fn append(&mut self, head: &Head, profile: &Profile, now: i64) -> Result<(), StoreError> {
        if head.end_nanos < self.oldest_kept(now) {
            self.counters.refused_too_old += 1;
            return Err(StoreError::TooOld);
        }
        let width = profile.sample_types.len();
        if width > MOST_WIDTH {
            self.counters.refused_too_large += 1;
            return Err(StoreError::TooManyTypes(width));
        }
        let folded;
        let span = nanos(self.options.span).max(1);
        let window = head.start_nanos.div_euclid(span).saturating_mul(span);
        let budget = shares::budget(self.options.max_bytes, span);
        let profile = match self.shares.is_over(&head.service, window, span, budget) {
            true => {
                self.counters.profiles_folded += 1;
                folded = strata_profile::without_stacks(profile, BEYOND_SHARE);
                &folded
            }
            false => profile,
        };
        let mut written = self.try_append(head, profile);
        if matches!(written, Err(StoreError::Damaged { .. })) {
            // The open segment is damaged, not the profile: it goes to another segment.
            self.abandon();
            written = self.try_append(head, profile);
        }
        match &written {
            Ok(()) => self.counters.profiles_written += 1,
            Err(StoreError::TooLarge { .. }) => self.counters.refused_too_large += 1,
            Err(_) => self.counters.write_failures += 1,
        }
        if written.is_err() {
            // The dictionary has names that are not in the file.
            self.abandon();
        }
        written
    }

    fn try_append(&mut self, head: &Head, profile: &Profile) -> Result<(), StoreError> {
        let span = nanos(self.options.span).max(1);
        let window = head.start_nanos.div_euclid(span).saturating_mul(span);
        let fits = self.open.as_ref().is_none_or(|open| {
            // Slightly late profiles are usual: the periods of processes do not end together.
            let is_near = window == open.window || window == open.window.saturating_sub(span);
            is_near && open.writer.length < self.options.segment_bytes && !open.writer.is_full()
        });
        if !fits {
            self.seal()?;
        }
        let directory = &self.directory;
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let number = self.next;
                let path = Name::Open.path(directory, number);
                let limit = self.options.dictionary_bytes;
                let writer = SegmentWriter::create_within(&path, limit)?;
                self.next = number.saturating_add(1);
                none.insert(Open { number, writer, window })
            }
        };
        let series = Series::of(head, profile);
        let facts = Facts { runtime_id: &head.runtime_id, profiles: 1 };
        let times = (head.start_nanos, head.end_nanos);
        let before = open.writer.reads_back;
        let encoded = open.writer.encode(&series, 0, times, profile, facts);
        self.counters.dictionaries_read_back += open.writer.reads_back.saturating_sub(before);
        let encoded = encoded?;
        let bytes = encoded.bytes.len() as u64;
        if bytes > self.options.max_bytes / PART_OF_STORE {
            return Err(StoreError::TooLarge { bytes });
        }
        let index = open.writer.index_bytes().saturating_add(512);
        self.make_room(bytes.saturating_add(index))?;
        self.shares.add(&head.service, bytes);
        match &mut self.open {
            Some(open) => open.writer.write(encoded),
            None => Ok(()),
        }
    }

    /// Seals the segment that is written, if there is one.
    pub fn seal(&mut self) -> Result<(), StoreError> {
        let Some(Open { number, writer, .. }) = self.open.take() else { return Ok(()) };
        let path = Name::Open.path(&self.directory, number);
        self.seal_writer(number, writer, &path)
    }

    fn seal_writer(
        &mut self,
        number: u64,
        writer: SegmentWriter,
        path: &Path,
    ) -> Result<(), StoreError> {
        let Some((oldest, newest)) = writer.starts() else {
            return std::fs::remove_file(path).map_err(StoreError::io("remove", path));
        };
        let mut sealed = Sealed {
            bytes: writer.length,
            profiles: writer.profiles(),
            oldest,
            newest,
            merged_bytes: 0,
        };
        let result = writer.seal(&Name::Sealed.path(&self.directory, number));
        if let Ok(bytes) = result {
            sealed.bytes = bytes;
            self.counters.segments_sealed += 1;
            self.waiting.push_back(number);
        }
        // Without an index, and under its old name, it can still be read.
        self.sealed.insert(number, sealed);
        result.map(|_| ())
    }

    fn abandon(&mut self) {
        // It stays as it is if even that fails, and is recovered by the next writer.
        let _ = self.seal();
    }

    /// Periodic maintenance, off the path of profiles: seals finished segments, makes merges, drops
    /// old ones, syncs to disk.
    pub fn tend(&mut self, now: i64) -> Result<(), StoreError> {
        self.drop_old(now)?;
        let span = nanos(self.options.span);
        let is_over = self.open.as_ref().is_some_and(|open| {
            now >= open.window.saturating_add(span).saturating_add(GRACE_NANOS)
        });
        if is_over {
            self.seal()?;
        }
        if self.synced.elapsed() >= self.options.sync_every {
            self.sync()?;
        }
        while let Some(number) = self.waiting.pop_front() {
            self.merge(number)?;
        }
        for _ in 0..MOST_ROLLUPS {
            let Some(number) = self.unrolled.pop_front() else { break };
            self.roll(number)?;
        }
        Ok(())
    }

    /// Syncs written data to disk.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.synced = Instant::now();
        self.open.as_ref().map_or(Ok(()), |open| open.writer.sync())
    }

    fn merge(&mut self, number: u64) -> Result<(), StoreError> {
        let Some(sealed) = self.sealed.get(&number).copied() else { return Ok(()) };
        if !self.has_room_beside(number, sealed.bytes)? {
            self.counters.merges_skipped += 1;
            return Ok(());
        }
        let path = |name: Name| name.path(&self.directory, number);
        let (old, new, merged) = (path(Name::Sealed), path(Name::New), path(Name::Merged));
        let made = merging::merge(&old, &new, &merged, sealed.bytes);
        match made {
            Ok(Some(bytes)) => {
                self.counters.merges_made += 1;
                if let Some(sealed) = self.sealed.get_mut(&number) {
                    sealed.merged_bytes = bytes;
                }
                self.unrolled.push_back(number);
            }
            Ok(None) | Err(_) => self.counters.merges_skipped += 1,
        }
        made.map(|_| ())
    }

    /// Adds the hours of a merged segment to the last roll-up, or to a new one.
    fn roll(&mut self, number: u64) -> Result<(), StoreError> {
        let Some(sealed) = self.sealed.get(&number).copied() else { return Ok(()) };
        let member = Member { number, first: sealed.oldest, last: sealed.newest };
        let most = self.options.max_bytes / ROLLUP_PART_OF_STORE;
        let joined = self.rollups.last_key_value().and_then(|(&first, rollup)| {
            let bytes = rollup.bytes.saturating_add(sealed.merged_bytes);
            let fits = bytes <= most && rollup::has_room_for(&rollup.members, member);
            fits.then_some((first, bytes))
        });
        for (first, bytes) in joined.into_iter().chain([(number, sealed.merged_bytes)]) {
            // Names and a list of members may come on top of what there is.
            let limit = bytes.saturating_add(4_096);
            if limit <= most && self.has_room_beside(number, limit)? {
                let made = self.roll_into(first, member, limit)?;
                if made {
                    self.counters.rollups_made += 1;
                    return Ok(());
                }
            }
        }
        self.counters.rollups_skipped += 1;
        Ok(())
    }

    fn roll_into(&mut self, first: u64, member: Member, limit: u64) -> Result<bool, StoreError> {
        let path = |name: Name, number: u64| name.path(&self.directory, number);
        let rollup = path(Name::Rollup, first);
        // Eviction may have dropped it.
        let old = self.rollups.contains_key(&first).then_some(rollup.as_path());
        let (merged, new) = (path(Name::Merged, member.number), path(Name::New, first));
        let paths = rollup::Paths { old, merged: &merged, new: &new, rollup: &rollup };
        let most = rollup::Most { bytes: limit, tables: self.options.dictionary_bytes / 2 };
        let made = match rollup::roll(&paths, member, most) {
            Err(StoreError::Damaged { .. } | StoreError::OtherVersion { .. }) => None,
            other => other?,
        };
        let Some(bytes) = made else { return Ok(false) };
        let entry = self.rollups.entry(first);
        let rolled = entry.or_insert(Rollup { bytes, members: Vec::new() });
        rolled.bytes = bytes;
        rolled.members.push(member);
        Ok(true)
    }
}

/// The bounds, made to fit each other.
fn settled(options: Options) -> Options {
    let most_span = (options.max_age / 8).max(Duration::from_secs(1));
    Options {
        span: options.span.clamp(Duration::from_secs(1), most_span),
        segment_bytes: options.segment_bytes.min(options.max_bytes / PART_OF_STORE),
        ..options
    }
}

fn lock(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join("lock");
    let open = creating().read(true).write(true).truncate(false).open(&path);
    let mut file = open.map_err(StoreError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {
            // For an error message of another process only: a disk that is full is no reason not to
            // open the store.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = file.take(20).read_to_string(&mut text);
            Err(StoreError::Locked { directory: directory.to_owned(), owner: text.parse().ok() })
        }
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path)(error)),
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
