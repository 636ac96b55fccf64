//! A segment being written: records are appended, then the index, then it gets its final name.
//!
//! Dictionaries of many services may exceed the memory limit. One without room is dropped when
//! another service's turn comes, and read back from the file before its next record. Services come
//! in turn, so dictionaries in memory stay, rather than the last used; only for a large one others
//! are evicted.
//!
//! Invariant: a record is written in one piece, and a failed write is truncated away; the file up
//! to `length` holds complete records only.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use strata_profile::Profile;

use crate::body::{self, Facts};
use crate::dictionary::Dictionary;
use crate::directory::creating;
use crate::error::{Damage, StoreError};
use crate::record::{self, FILE_START, Header, Kind};
use crate::segment::{Entry, Member, Segment, put_members, read_record};
use crate::series::Series;
use crate::tables::Tables;
use crate::wire::{put, put_signed};

/// The most that an entry of the index takes.
const ENTRY_BYTES: u64 = 48;
/// And that a member takes.
const MEMBER_BYTES: u64 = 30;

pub(crate) struct SegmentWriter {
    file: File,
    path: PathBuf,
    pub(crate) length: u64,
    entries: Vec<Entry>,
    series: Vec<Series>,
    series_bytes: u64,
    numbers: HashMap<Series, u32>,
    dictionaries: HashMap<String, Kept>,
    /// Bytes of memory of those.
    dictionary_bytes: usize,
    /// Whether one of them has become too large.
    has_outgrown: bool,
    /// The service whose dictionary was used last.
    last: String,
    /// How often one was read back.
    pub(crate) reads_back: u64,
    /// What all of it may take.
    limit: usize,
    members: Vec<Member>,
}

/// What the records of a service have brought.
#[derive(Default)]
struct Kept {
    /// `None` while it is only in the file.
    dictionary: Option<Dictionary>,
    /// The positions among the entries of the records that brought something.
    brought: Vec<u32>,
    /// When the first record began and ended. Each process of a service brings one in a period.
    period: Option<(i64, i64)>,
    /// Bytes of memory of the dictionary after that period, and when it was used last.
    first: usize,
    last: usize,
}

impl Kept {
    /// Notes what the dictionary takes after a record of these times; returns whether it has become
    /// too large: a new segment would need less. It would not if the first period brought most of
    /// it, whichever process of it came first.
    fn outgrows(&mut self, limit: usize, (start, end): (i64, i64)) -> bool {
        self.last = self.dictionary.as_ref().map_or(0, Dictionary::memory);
        let (first_start, first_end) = *self.period.get_or_insert((start, end));
        if self.first == 0 || (start < first_end && first_start < end) {
            self.first = self.last;
        }
        self.last > limit / 2 && self.last > self.first.saturating_add(self.first / 2)
    }

    fn memory(&self) -> usize {
        let brought = self.brought.capacity().saturating_mul(size_of::<u32>());
        self.dictionary.as_ref().map_or(0, Dictionary::memory).saturating_add(brought)
    }
}

impl SegmentWriter {
    /// A segment whose dictionaries and index take about `limit` bytes of memory at most, if a new
    /// one is begun when this one is full.
    pub(crate) fn create_within(path: &Path, limit: usize) -> Result<Self, StoreError> {
        Ok(Self { limit, ..Self::create(path)? })
    }

    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        let open = creating().read(true).write(true).truncate(true).open(path);
        let mut file = open.map_err(StoreError::io("create", path))?;
        file.write_all(&FILE_START).map_err(StoreError::io("write", path))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            length: FILE_START.len() as u64,
            entries: Vec::new(),
            series: Vec::new(),
            series_bytes: 0,
            numbers: HashMap::new(),
            dictionaries: HashMap::new(),
            dictionary_bytes: 0,
            has_outgrown: false,
            last: String::new(),
            reads_back: 0,
            limit: usize::MAX,
            members: Vec::new(),
        })
    }

    pub(crate) fn profiles(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The first and the last start of what is in it.
    pub(crate) fn starts(&self) -> Option<(i64, i64)> {
        let first = self.entries.iter().map(|entry| entry.start).min()?;
        let last = self.entries.iter().map(|entry| entry.start).max()?;
        Some((first, last))
    }

    /// Bytes of memory: the dictionaries, and the index in the making.
    pub(crate) fn memory(&self) -> usize {
        self.dictionary_bytes.saturating_add(self.index_memory())
    }

    /// Whether its index or one of its dictionaries, which are needed whole, takes too much memory.
    pub(crate) fn is_full(&self) -> bool {
        self.has_outgrown || self.index_memory() > self.limit / 2
    }

    fn index_memory(&self) -> usize {
        let series = usize::try_from(self.series_bytes).unwrap_or(usize::MAX).saturating_mul(2);
        let entries = self.entries.capacity().saturating_mul(size_of::<Entry>());
        let lists = [series, entries, self.dictionaries.allocation_size()];
        lists.into_iter().fold(0, usize::saturating_add)
    }

    /// The most that [`Self::seal`] adds to the file.
    pub(crate) fn index_bytes(&self) -> u64 {
        let entries = (self.entries.len() as u64).saturating_mul(ENTRY_BYTES);
        let members = (self.members.len() as u64).saturating_mul(MEMBER_BYTES);
        let rest = self.series_bytes.saturating_add(members);
        entries.saturating_add(rest).saturating_add(4 * record::HEADER as u64)
    }

    /// The bytes that [`Self::write`] will add for a profile. Its names are known to the
    /// dictionary from now on: the next call must be [`Self::write`] with it, or the segment
    /// must be sealed.
    pub(crate) fn encode(
        &mut self,
        series: &Series,
        step: u32,
        times: (i64, i64),
        profile: &Profile,
        facts: Facts<'_>,
    ) -> Result<Encoded, StoreError> {
        self.encode_for(0, series, step, times, profile, facts)
    }

    /// The same for a member of a roll-up.
    pub(crate) fn encode_for(
        &mut self,
        member: u16,
        series: &Series,
        step: u32,
        times: (i64, i64),
        profile: &Profile,
        facts: Facts<'_>,
    ) -> Result<Encoded, StoreError> {
        let mut bytes = Vec::new();
        let number = self.number_of(series, &mut bytes)?;
        let (payload, brings) = self.with_dictionary(&series.service, times, |dictionary| {
            let known = dictionary.known();
            let payload = body::encode(dictionary, profile, facts);
            (payload, dictionary.known() > known)
        })?;
        let (start, end) = times;
        let header =
            Header { series: number, member, step, start, end, ..Header::of(Kind::Profile) };
        let record = seal(header, &payload)?;
        let entry = Entry {
            series: number,
            step,
            member,
            start,
            end,
            offset: self.length.saturating_add(bytes.len() as u64),
            length: u32::try_from(record.len()).unwrap_or(u32::MAX),
        };
        bytes.extend_from_slice(&record);
        Ok(Encoded { bytes, entry, brings })
    }

    /// Does something with the dictionary of a service for a record of these times. It is read back
    /// if it was forgotten.
    fn with_dictionary<T>(
        &mut self,
        service: &str,
        times: (i64, i64),
        work: impl FnOnce(&mut Dictionary) -> T,
    ) -> Result<T, StoreError> {
        if self.last != service {
            // Only for one that has to come: services that fit together stay all.
            let coming = self.dictionaries.get(service);
            let is_there = coming.is_some_and(|kept| kept.dictionary.is_some());
            let needed = coming.map_or(0, |kept| kept.last);
            if !is_there && self.memory().saturating_add(needed) > self.limit / 4 * 3 {
                let last = std::mem::take(&mut self.last);
                self.forget(&last);
            }
            service.clone_into(&mut self.last);
        }
        self.make_room_for(service);
        if !self.dictionaries.contains_key(service) {
            self.dictionaries.insert(service.to_owned(), Kept::default());
        }
        let Self { dictionaries, entries, file, path, reads_back, .. } = self;
        let kept = dictionaries.entry_ref(service).or_default();
        let before = kept.memory();
        let dictionary = match &mut kept.dictionary {
            Some(dictionary) => dictionary,
            none => {
                *reads_back = reads_back.saturating_add(u64::from(!kept.brought.is_empty()));
                none.insert(read_back(file, path, entries, &kept.brought)?)
            }
        };
        let done = work(dictionary);
        self.has_outgrown |= kept.outgrows(self.limit, times);
        let others = self.dictionary_bytes.saturating_sub(before);
        self.dictionary_bytes = others.saturating_add(kept.memory());
        self.make_room_for(service);
        Ok(done)
    }

    /// Forgets others, the largest first, while there is no room for a service's dictionary. One that
    /// is read back needs it twice for a moment: the tables that are read, and what is made of them.
    fn make_room_for(&mut self, service: &str) {
        let kept = self.dictionaries.get(service).filter(|kept| kept.dictionary.is_none());
        let needed = kept.map_or(0, |kept| kept.last.saturating_mul(2));
        while self.memory().saturating_add(needed) > self.limit {
            let others = self.dictionaries.iter().filter(|(name, _)| *name != service);
            let others = others.filter(|(_, kept)| kept.dictionary.is_some());
            let largest = others.max_by_key(|(_, kept)| kept.last).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            self.forget(&largest);
        }
    }

    /// Frees the memory of a dictionary, which the file has.
    fn forget(&mut self, service: &str) {
        let Some(kept) = self.dictionaries.get_mut(service) else { return };
        let before = kept.memory();
        kept.dictionary = None;
        let others = self.dictionary_bytes.saturating_sub(before);
        self.dictionary_bytes = others.saturating_add(kept.memory());
    }

    /// The number of a series; if it is new, its record is added to `bytes`.
    fn number_of(&mut self, series: &Series, bytes: &mut Vec<u8>) -> Result<u32, StoreError> {
        let next = u32::try_from(self.series.len()).unwrap_or(u32::MAX);
        if let Some(&number) = self.numbers.get(series) {
            return Ok(number);
        }
        let mut payload = Vec::new();
        series.encode(&mut payload);
        let header = Header { series: next, ..Header::of(Kind::Series) };
        self.series_bytes = self.series_bytes.saturating_add(payload.len() as u64);
        bytes.append(&mut seal(header, &payload)?);
        self.numbers.insert(series.clone(), next);
        self.series.push(series.clone());
        Ok(next)
    }

    /// Begins a roll-up: the segments that it replaces, and the series that get the first numbers.
    pub(crate) fn begin_rollup(
        &mut self,
        members: Vec<Member>,
        series: &[Series],
    ) -> Result<(), StoreError> {
        let mut payload = Vec::new();
        put_members(&mut payload, &members);
        let mut bytes = seal(Header::of(Kind::Members), &payload)?;
        self.members = members;
        for series in series {
            self.number_of(series, &mut bytes)?;
        }
        self.push(&bytes)
    }

    /// Adds a record as it lay in another file whose series and dictionary this one has taken over.
    pub(crate) fn copy(&mut self, entry: Entry, record: &[u8]) -> Result<(), StoreError> {
        let entry = Entry { offset: self.length, ..entry };
        self.push(record)?;
        self.entries.push(entry);
        Ok(())
    }

    /// What the service's records so far have brought.
    pub(crate) fn take_over(&mut self, service: &str, dictionary: Dictionary) {
        self.close_service(service);
        self.dictionary_bytes = self.dictionary_bytes.saturating_add(dictionary.memory());
        let kept = Kept { dictionary: Some(dictionary), ..Kept::default() };
        self.dictionaries.insert(service.to_owned(), kept);
    }

    /// Frees the dictionary of a service of which nothing more will be written.
    pub(crate) fn close_service(&mut self, service: &str) {
        let closed = self.dictionaries.remove(service).map_or(0, |closed| closed.memory());
        self.dictionary_bytes = self.dictionary_bytes.saturating_sub(closed);
    }

    pub(crate) fn write(&mut self, encoded: Encoded) -> Result<(), StoreError> {
        self.push(&encoded.bytes)?;
        let Encoded { entry, brings, .. } = encoded;
        let position = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push(entry);
        let series = self.series.get(entry.series as usize);
        let Some(kept) = series.and_then(|series| self.dictionaries.get_mut(&series.service))
        else {
            return Ok(());
        };
        let before = kept.memory();
        if brings {
            kept.brought.push(position);
        }
        let others = self.dictionary_bytes.saturating_sub(before);
        self.dictionary_bytes = others.saturating_add(kept.memory());
        // The index has grown.
        let last = std::mem::take(&mut self.last);
        self.make_room_for(&last);
        self.last = last;
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if let Err(error) = self.file.write_all(bytes) {
            // What cannot be truncated now is truncated when the store is opened again.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(SeekFrom::Start(self.length));
            return Err(StoreError::io("write", &self.path)(error));
        }
        self.length = self.length.saturating_add(bytes.len() as u64);
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(StoreError::io("write", &self.path))
    }

    /// Writes the index and gives the file its final name. It is on the disk after that.
    pub(crate) fn seal(mut self, name: &Path) -> Result<u64, StoreError> {
        let mut payload = Vec::new();
        put(&mut payload, self.series.len() as u64);
        for series in &self.series {
            series.encode(&mut payload);
        }
        put_members(&mut payload, &self.members);
        put(&mut payload, self.entries.len() as u64);
        let (mut start, mut offset) = (0_i64, 0_u64);
        for entry in &self.entries {
            put(&mut payload, u64::from(entry.series));
            put(&mut payload, u64::from(entry.step));
            if !self.members.is_empty() {
                put(&mut payload, u64::from(entry.member));
            }
            put_signed(&mut payload, entry.start.wrapping_sub(start));
            put_signed(&mut payload, entry.end.wrapping_sub(entry.start));
            put(&mut payload, entry.offset.wrapping_sub(offset));
            put(&mut payload, u64::from(entry.length));
            start = entry.start;
            offset = entry.offset;
        }
        let mut bytes = seal(Header::of(Kind::Index), &payload)?;
        let at = i64::try_from(self.length).unwrap_or(i64::MAX);
        let trailer = Header { start: at, ..Header::of(Kind::Trailer) };
        bytes.append(&mut seal(trailer, &[])?);
        self.push(&bytes)?;
        self.file.sync_all().map_err(StoreError::io("write", &self.path))?;
        std::fs::rename(&self.path, name).map_err(StoreError::io("rename", &self.path))?;
        if let Some(directory) = name.parent() {
            let opened = File::open(directory).and_then(|directory| directory.sync_all());
            opened.map_err(StoreError::io("write", directory))?;
        }
        Ok(self.length)
    }

    /// The open segment of a process that died, truncated to its complete records and ready to be
    /// sealed. Also returns how many bytes were truncated.
    pub(crate) fn recover(path: &Path) -> Result<(Self, u64), StoreError> {
        let open = OpenOptions::new().append(true).read(true).open(path);
        let file = open.map_err(StoreError::io("open", path))?;
        let segment = Segment::scan(&file, path)?;
        let length = file.metadata().map_err(StoreError::io("read", path))?.len();
        file.set_len(segment.length).map_err(StoreError::io("cut", path))?;
        let mut series_bytes = Vec::new();
        segment.series.iter().for_each(|series| series.encode(&mut series_bytes));
        let writer = Self {
            file,
            path: path.to_owned(),
            length: segment.length,
            entries: segment.entries,
            series: segment.series,
            series_bytes: series_bytes.len() as u64,
            numbers: HashMap::new(),
            dictionaries: HashMap::new(),
            dictionary_bytes: 0,
            has_outgrown: false,
            last: String::new(),
            reads_back: 0,
            limit: usize::MAX,
            members: segment.members,
        };
        Ok((writer, length.saturating_sub(segment.length)))
    }
}

/// A profile's record, and that of its series if it is the first of it.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    entry: Entry,
    /// Whether it brings something to the dictionary.
    brings: bool,
}

/// A dictionary as the records at these positions have made it.
fn read_back(
    file: &File,
    path: &Path,
    entries: &[Entry],
    brought: &[u32],
) -> Result<Dictionary, StoreError> {
    let mut tables = Tables::new();
    for entry in brought.iter().filter_map(|&at| entries.get(at as usize)) {
        let payload = read_record(file, entry).map_err(StoreError::io("read", path))?;
        let added = payload
            .and_then(|payload| body::parts(&payload).and_then(|(added, _)| tables.add(added)));
        added.map_err(|source| StoreError::Damaged { path: path.to_owned(), source })?;
    }
    let twice = Damage("a dictionary has something twice");
    let damaged = || StoreError::Damaged { path: path.to_owned(), source: twice };
    Dictionary::of(&tables).ok_or_else(damaged)
}

fn seal(header: Header, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
    record::seal(header, payload).ok_or(StoreError::TooLarge { bytes: payload.len() as u64 })
}
