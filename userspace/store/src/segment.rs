//! A segment as it is read: its series and where its records are.
//!
//! From the index of a sealed segment; by going from header to header where there is none (the
//! segment is still written, or its writer died) or it is damaged.
//!
//! Invariant: what is found lies within the file; nothing after the first header that does not
//! fit is believed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Damage, StoreError};
use crate::record::{self, FILE_START, HEADER, Kind};
use crate::series::Series;
use crate::wire::Cursor;

/// Where a profile's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) series: u32,
    pub(crate) step: u32,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) offset: u64,
    /// Header and payload.
    pub(crate) length: u32,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) series: Vec<Series>,
    /// In the order they lie in the file.
    pub(crate) entries: Vec<Entry>,
    /// Up to the end of the last whole record.
    pub(crate) length: u64,
}

impl Segment {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        match Self::from_index(&file, path)? {
            Some(segment) => Ok(segment),
            None => Self::scan(&file, path),
        }
    }

    fn check_start(file: &File, path: &Path) -> Result<u64, StoreError> {
        let length = file.metadata().map_err(StoreError::io("read", path))?.len();
        let mut start = [0; FILE_START.len()];
        if length < start.len() as u64 {
            // Its writer has not come further yet, or died.
            return Ok(length);
        }
        file.read_exact_at(&mut start, 0).map_err(StoreError::io("read", path))?;
        if start != FILE_START {
            let source = Damage("it does not begin as a segment of this version");
            return Err(StoreError::Damaged { path: path.to_owned(), source });
        }
        Ok(length)
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
        let read = payload.and_then(|payload| read_index(Cursor::new(&payload), at));
        Ok(read.ok().map(|(series, entries)| Self {
            path: path.to_owned(),
            series,
            entries,
            length,
        }))
    }

    /// Goes from header to header until one does not fit or the records end.
    pub(crate) fn scan(file: &File, path: &Path) -> Result<Self, StoreError> {
        let length = Self::check_start(file, path)?;
        let io = || StoreError::io("read", path);
        let mut segment = Self {
            path: path.to_owned(),
            series: Vec::new(),
            entries: Vec::new(),
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
                        start: header.start,
                        end: header.end,
                        offset: segment.length,
                        length: header.stored.saturating_add(HEADER as u32),
                    });
                }
                Kind::Profile | Kind::Index | Kind::Trailer => break,
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
    let end = entry.offset.saturating_add(u64::from(entry.length));
    let length = file.metadata()?.len();
    if end > length {
        return Ok(Err(Damage("it ends early")));
    }
    let header = record::header_at(file, entry.offset, length)?;
    match header {
        Some(header) if header.kind == Kind::Profile && header.series == entry.series => {
            record::payload_at(file, entry.offset, &header)
        }
        _ => Ok(Err(Damage("there is no profile where one should be"))),
    }
}

fn read_index(mut cursor: Cursor<'_>, limit: u64) -> Result<(Vec<Series>, Vec<Entry>), Damage> {
    let mut series = Vec::new();
    for _ in 0..cursor.count()? {
        series.push(Series::read(&mut cursor)?);
    }
    let mut entries = Vec::new();
    let (mut start, mut offset) = (0_i64, 0_u64);
    for _ in 0..cursor.count()? {
        let number = cursor.small()?;
        let step = cursor.small()?;
        start = start.wrapping_add(cursor.signed()?);
        let end = start.wrapping_add(cursor.signed()?);
        offset = offset.wrapping_add(cursor.number()?);
        let length = cursor.small()?;
        let is_within = offset.checked_add(u64::from(length)).is_some_and(|end| end <= limit);
        if number as usize >= series.len() || !is_within {
            return Err(Damage("the index points outside"));
        }
        entries.push(Entry { series: number, step, start, end, offset, length });
    }
    Ok((series, entries))
}
