//! A segment as read: its series and the positions of its records.
//!
//! From the index of a sealed segment; by going from header to header where there is none (the
//! segment is still written, or its writer died) or it is damaged.
//!
//! Invariant: what is found lies within the file; nothing after the first inconsistent header is
//! used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::directory::Identity;
use crate::error::{Damage, StoreError};
use crate::record::{self, FILE_START, HEADER, Header, Kind};
use crate::series::Series;
use crate::wire::{Cursor, put, put_signed};

/// The position of a profile's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) series: u32,
    pub(crate) step: u32,
    /// In a roll-up, its segment: a position in [`Segment::members`].
    pub(crate) member: u16,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) offset: u64,
    /// Header and payload.
    pub(crate) length: u32,
}

/// A segment that a roll-up stands for, and between which times its profiles start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) number: u64,
    pub(crate) first: i64,
    pub(crate) last: i64,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// Still open, so that it can be read when it has lost its name; not if only scanned.
    pub(crate) file: Option<Arc<File>>,
    /// The identity of the file that had that name.
    pub(crate) identity: Identity,
    pub(crate) series: Vec<Series>,
    /// In the order they lie in the file.
    pub(crate) entries: Vec<Entry>,
    /// Of a roll-up only.
    pub(crate) members: Vec<Member>,
    /// Up to the end of the last whole record.
    pub(crate) length: u64,
}

impl Segment {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        let segment = match Self::from_index(&file, path)? {
            Some(segment) => segment,
            None => Self::scan(&file, path)?,
        };
        Ok(Self { file: Some(Arc::new(file)), ..segment })
    }

    fn check_start(file: &File, path: &Path) -> Result<u64, StoreError> {
        let length = file.metadata().map_err(StoreError::io("read", path))?.len();
        let mut start = [0; FILE_START.len()];
        if length < start.len() as u64 {
            // Its writer has not written further yet, or died.
            return Ok(length);
        }
        file.read_exact_at(&mut start, 0).map_err(StoreError::io("read", path))?;
        if start == FILE_START {
            return Ok(length);
        }
        let path = path.to_owned();
        Err(match record::version_of(&start) {
            Some(version) => StoreError::OtherVersion { path, version },
            None => StoreError::Damaged { path, source: Damage("it does not begin as a segment") },
        })
    }

    /// An error if a file is of another version of the format.
    pub(crate) fn check_version(path: &Path) -> Result<(), StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        match Self::check_start(&file, path) {
            Ok(_) | Err(StoreError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn from_index(file: &File, path: &Path) -> Result<Option<Self>, StoreError> {
        let length = Self::check_start(file, path)?;
        let io = || StoreError::io("read", path);
        let Some(at) = length.checked_sub(HEADER as u64) else { return Ok(None) };
        let trailer = record::header_at(file, at, length).map_err(io())?;
        let Some(trailer) = trailer.filter(|header| header.kind == Kind::Trailer) else {
            return Ok(None);
        };
        let Ok(at) = u64::try_from(trailer.start) else { return Ok(None) };
        let header = record::header_at(file, at, length).map_err(io())?;
        let Some(header) = header.filter(|header| header.kind == Kind::Index) else {
            return Ok(None);
        };
        let payload = record::payload_at(file, at, &header).map_err(io())?;
        let identity = Identity::of(file, path)?;
        let read = payload.and_then(|payload| read_index(Cursor::new(&payload), at));
        Ok(read.ok().map(|contents| Self {
            path: path.to_owned(),
            file: None,
            identity,
            series: contents.series,
            entries: contents.entries,
            members: contents.members,
            length,
        }))
    }

    /// Goes from header to header until one does not fit or the records end.
    pub(crate) fn scan(file: &File, path: &Path) -> Result<Self, StoreError> {
        let length = Self::check_start(file, path)?;
        let io = || StoreError::io("read", path);
        let mut segment = Self {
            path: path.to_owned(),
            file: None,
            identity: Identity::of(file, path)?,
            series: Vec::new(),
            entries: Vec::new(),
            members: Vec::new(),
            length: FILE_START.len() as u64,
        };
        while let Some(header) = record::header_at(file, segment.length, length).map_err(io())? {
            match header.kind {
                Kind::Series => {
                    let payload = record::payload_at(file, segment.length, &header).map_err(io())?;
                    let series = payload.and_then(|bytes| Series::read(&mut Cursor::new(&bytes)));
                    let Ok(series) = series else { break };
                    if header.series as usize != segment.series.len() {
                        break;
                    }
                    segment.series.push(series);
                }
                Kind::Profile if (header.series as usize) < segment.series.len() => {
                    segment.entries.push(Entry {
                        series: header.series,
                        step: header.step,
                        member: header.member,
                        start: header.start,
                        end: header.end,
                        offset: segment.length,
                        length: header.stored.saturating_add(HEADER as u32),
                    });
                }
                Kind::Members if segment.members.is_empty() => {
                    let payload = record::payload_at(file, segment.length, &header).map_err(io())?;
                    let members = payload.and_then(|bytes| read_members(&mut Cursor::new(&bytes)));
                    let Ok(members) = members else { break };
                    segment.members = members;
                }
                Kind::Profile | Kind::Members | Kind::Index | Kind::Trailer | Kind::Names => break,
            }
            segment.length = segment.length.saturating_add(header.length());
        }
        segment.cut_torn_end(file)?;
        Ok(segment)
    }

    /// The file system may have given the last record its length but not its bytes.
    fn cut_torn_end(&mut self, file: &File) -> Result<(), StoreError> {
        while let Some(last) = self.entries.last() {
            if last.offset.saturating_add(u64::from(last.length)) != self.length {
                break;
            }
            let is_whole = read_record(file, last).map_err(StoreError::io("read", &self.path))?;
            if is_whole.is_ok() {
                break;
            }
            self.length = last.offset;
            self.entries.pop();
        }
        Ok(())
    }

    pub(crate) fn series_of(&self, entry: &Entry) -> Option<&Series> {
        self.series.get(entry.series as usize)
    }
}

/// The payload of an entry's record.
pub(crate) fn read_record(file: &File, entry: &Entry) -> std::io::Result<Result<Vec<u8>, Damage>> {
    let read = read_whole(file, entry)?;
    Ok(read.and_then(|(header, bytes)| record::payload_of(&header, &bytes)))
}

/// The whole record of an entry, whose length is known to lie within the file.
pub(crate) fn read_whole(
    file: &File,
    entry: &Entry,
) -> std::io::Result<Result<(Header, Vec<u8>), Damage>> {
    let read = record::record_at(file, entry.offset, entry.length)?;
    Ok(read.and_then(|(header, bytes)| {
        let is_it = header.kind == Kind::Profile
            && (header.series, header.member) == (entry.series, entry.member);
        match is_it {
            true => Ok((header, bytes)),
            false => Err(Damage("there is no profile where one should be")),
        }
    }))
}

#[derive(Default)]
struct Contents {
    series: Vec<Series>,
    entries: Vec<Entry>,
    members: Vec<Member>,
}

fn read_index(mut cursor: Cursor<'_>, limit: u64) -> Result<Contents, Damage> {
    let mut contents = Contents::default();
    for _ in 0..cursor.count()? {
        contents.series.push(Series::read(&mut cursor)?);
    }
    contents.members = read_members(&mut cursor)?;
    let (mut start, mut offset) = (0_i64, 0_u64);
    for _ in 0..cursor.count()? {
        let number = cursor.small()?;
        let step = cursor.small()?;
        let member = match contents.members.len() {
            0 => 0,
            _ => u16::try_from(cursor.small()?).map_err(|_| Damage("a number is too large"))?,
        };
        start = start.wrapping_add(cursor.signed()?);
        let end = start.wrapping_add(cursor.signed()?);
        offset = offset.wrapping_add(cursor.number()?);
        let length = cursor.small()?;
        let is_within = offset.checked_add(u64::from(length)).is_some_and(|end| end <= limit);
        if number as usize >= contents.series.len() || !is_within {
            return Err(Damage("the index points outside"));
        }
        contents.entries.push(Entry { series: number, step, member, start, end, offset, length });
    }
    Ok(contents)
}

pub(crate) fn put_members(out: &mut Vec<u8>, members: &[Member]) {
    put(out, members.len() as u64);
    for member in members {
        put(out, member.number);
        put_signed(out, member.first);
        put_signed(out, member.last);
    }
}

fn read_members(cursor: &mut Cursor<'_>) -> Result<Vec<Member>, Damage> {
    let mut members = Vec::new();
    for _ in 0..cursor.count()? {
        members.push(Member {
            number: cursor.number()?,
            first: cursor.signed()?,
            last: cursor.signed()?,
        });
    }
    Ok(members)
}
