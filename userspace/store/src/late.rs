//! Symbols of frames that had none when their profile was stored.
//!
//! A profile's late frame has its key as its system name. A `NUMBER.names` file has symbols by key:
//! records that are only appended, each with the texts of its symbols once. A query that meets a
//! key reads these files, and shows the symbol, or the frame without the key. Merges and roll-ups
//! copy keys as they are, so no profile is rewritten.
//!
//! Invariant: a key that has no symbol changes nothing in an answer. Damage costs the record it is
//! in and those that follow it in its file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hashbrown::{HashMap, HashSet};
use strata_profile::{FrameKind, LateKey};

use crate::dictionary::MOST_FRAMES;
use crate::directory;
use crate::error::{Damage, StoreError};
use crate::record::{self, FILE_START, Header, Kind};
use crate::tables::kind_of;
use crate::wire::{Cursor, put, put_text};

/// The most that a record of symbols takes, decompressed.
pub(crate) const MOST_RECORD: usize = 1 << 20;
/// Of all files together, decompressed; a query has all of it in memory.
pub(crate) const MOST_RAW: u64 = 16 << 20;

/// A function, at a line, of a late symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateFrame {
    pub kind: FrameKind,
    pub name: Arc<str>,
    /// Empty if it is the same.
    pub system_name: Arc<str>,
    pub file: Arc<str>,
    pub line: u32,
}

/// The symbol of a frame that was stored with a [`LateKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateSymbol {
    pub key: LateKey,
    /// Of its mapping.
    pub path: Arc<str>,
    pub build_id: Arc<str>,
    /// The innermost inlined function first.
    pub frames: Vec<LateFrame>,
    /// When the last profile without it ended, in nanoseconds since 1970.
    pub last_nanos: i64,
}

impl LateSymbol {
    /// Bytes of memory that these take together. Texts of modules are shared; those of frames count
    /// for each, shared or not.
    #[must_use]
    pub fn memory(symbols: &[Self]) -> usize {
        let mut modules = HashSet::new();
        let texts = |frame: &LateFrame| {
            let texts = [&frame.name, &frame.system_name, &frame.file];
            texts.iter().map(|text| text.len()).sum::<usize>() + size_of::<LateFrame>()
        };
        let memory = |symbol: &Self| {
            let of_module = [&symbol.path, &symbol.build_id];
            let new = of_module.iter().filter(|text| modules.insert(text.as_ptr()));
            let of_module = new.map(|text| text.len()).sum::<usize>();
            size_of::<Self>() + of_module + symbol.frames.iter().map(texts).sum::<usize>()
        };
        symbols.iter().map(memory).sum()
    }
}

/// A record in the making.
#[derive(Default)]
pub(crate) struct Batch<'s> {
    strings: HashMap<&'s str, u64>,
    texts: Vec<u8>,
    symbols: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) last: Option<i64>,
}

impl<'s> Batch<'s> {
    pub(crate) fn add(&mut self, symbol: &'s LateSymbol) {
        let LateSymbol { key, path, build_id, frames, last_nanos } = symbol;
        put(&mut self.symbols, key.0);
        self.text(path);
        self.text(build_id);
        let frames = frames.get(..MOST_FRAMES).unwrap_or(frames);
        put(&mut self.symbols, frames.len() as u64);
        for frame in frames {
            for text in [&frame.name, &frame.system_name, &frame.file] {
                self.text(text);
            }
            put(&mut self.symbols, u64::from(frame.line));
            put(&mut self.symbols, frame.kind as u64);
        }
        self.count = self.count.saturating_add(1);
        self.last = self.last.max(Some(*last_nanos));
    }

    fn text(&mut self, text: &'s str) {
        let next = self.strings.len() as u64;
        let number = *self.strings.entry(text).or_insert_with(|| {
            put_text(&mut self.texts, text);
            next
        });
        put(&mut self.symbols, number);
    }

    /// Bytes so far, decompressed.
    pub(crate) fn bytes(&self) -> usize {
        self.texts.len().saturating_add(self.symbols.len())
    }

    /// The record; `None` if it is too large.
    pub(crate) fn seal(self) -> Option<Vec<u8>> {
        let mut payload = Vec::with_capacity(self.bytes().saturating_add(16));
        put(&mut payload, self.strings.len() as u64);
        payload.extend_from_slice(&self.texts);
        put(&mut payload, self.count);
        payload.extend_from_slice(&self.symbols);
        if payload.len() > MOST_RECORD {
            return None;
        }
        let end = self.last.unwrap_or(i64::MIN);
        let series = u32::try_from(self.count).unwrap_or(u32::MAX);
        record::seal(Header { series, end, ..Header::of(Kind::Names) }, &payload)
    }
}

/// A symbol as it lies in a file: positions among its record's texts.
pub(crate) struct Found {
    texts: Arc<[Box<str>]>,
    path: u32,
    build_id: u32,
    pub(crate) frames: Vec<FoundFrame>,
}

#[derive(Clone, Copy)]
pub(crate) struct FoundFrame {
    pub(crate) name: u32,
    pub(crate) system_name: u32,
    pub(crate) file: u32,
    pub(crate) line: u32,
    pub(crate) kind: FrameKind,
}

impl Found {
    pub(crate) fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", |text| text)
    }

    pub(crate) fn path(&self) -> &str {
        self.text(self.path)
    }

    pub(crate) fn build_id(&self) -> &str {
        self.text(self.build_id)
    }
}

type Symbols = HashMap<u64, Found>;

fn read_payload(payload: &[u8], symbols: &mut Symbols) -> Result<(), Damage> {
    let mut cursor = Cursor::new(payload);
    let mut texts: Vec<Box<str>> = Vec::new();
    for _ in 0..cursor.count()? {
        texts.push(cursor.text()?.into());
    }
    let texts: Arc<[Box<str>]> = texts.into();
    for _ in 0..cursor.count()? {
        let key = cursor.number()?;
        let (path, build_id) = (cursor.small()?, cursor.small()?);
        let count = cursor.count()?;
        if count == 0 || count > MOST_FRAMES {
            return Err(Damage("a symbol has no frames, or too many"));
        }
        let mut frames = Vec::new();
        for _ in 0..count {
            frames.push(FoundFrame {
                name: cursor.small()?,
                system_name: cursor.small()?,
                file: cursor.small()?,
                line: cursor.small()?,
                kind: kind_of(cursor.small()?)?,
            });
        }
        symbols.insert(key, Found { texts: Arc::clone(&texts), path, build_id, frames });
    }
    if cursor.is_empty() { Ok(()) } else { Err(Damage("something follows the symbols")) }
}

/// What a file of symbols holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Up to the end of the last whole record.
    pub(crate) length: u64,
    /// Decompressed.
    pub(crate) raw: u64,
    pub(crate) symbols: u64,
    /// When the last profile ended that lacked one of them.
    pub(crate) last: Option<i64>,
}

/// Goes through the whole records of a file.
pub(crate) fn scan(
    file: &File,
    mut take: impl FnMut(&[u8]) -> Result<(), Damage>,
) -> std::io::Result<Summary> {
    let length = file.metadata()?.len();
    let mut summary = Summary::default();
    if record::version_at_start(file, length)? != Some(record::VERSION) {
        return Ok(summary);
    }
    summary.length = FILE_START.len() as u64;
    while let Some(header) = record::header_at(file, summary.length, length)? {
        let raw = u64::from(header.raw);
        let is_one = header.kind == Kind::Names && raw <= MOST_RECORD as u64;
        // More than a writer lets grow is not read: a reader has all of it in memory.
        if !is_one || summary.raw.saturating_add(raw) > MOST_RAW {
            break;
        }
        let payload = record::payload_at(file, summary.length, &header)?;
        if payload.and_then(|payload| take(&payload)).is_err() {
            break;
        }
        summary.length = summary.length.saturating_add(header.length());
        summary.raw = summary.raw.saturating_add(raw);
        summary.symbols = summary.symbols.saturating_add(u64::from(header.series));
        summary.last = summary.last.max(Some(header.end));
    }
    Ok(summary)
}

/// Checks one record's payload.
pub(crate) fn check(payload: &[u8]) -> Result<(), Damage> {
    read_payload(payload, &mut Symbols::new())
}

/// The late symbols of a store, read when the first key is met.
pub(crate) struct LateSymbols {
    directory: PathBuf,
    read: OnceLock<Symbols>,
}

impl LateSymbols {
    pub(crate) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), read: OnceLock::new() }
    }

    pub(crate) fn get(&self, key: LateKey) -> Option<&Found> {
        // Files that cannot be read are like those that are not there: frames stay as they are.
        self.read.get_or_init(|| read_all(&self.directory).unwrap_or_default()).get(&key.0)
    }
}

fn read_all(directory: &Path) -> Result<Symbols, StoreError> {
    let mut symbols = Symbols::new();
    let mut raw = 0_u64;
    // The newest first: with more than a writer leaves, the oldest are left out.
    for path in directory::names_files(directory)?.into_iter().rev() {
        // Dropped since.
        let Ok(file) = File::open(&path) else { continue };
        let summary = scan(&file, |payload| read_payload(payload, &mut symbols));
        raw = raw.saturating_add(summary.map_or(0, |summary| summary.raw));
        if raw > MOST_RAW {
            break;
        }
    }
    Ok(symbols)
}
