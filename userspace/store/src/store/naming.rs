//! Late symbols, as the writer keeps them: files that are appended to, within bounds of their own.
//!
//! Invariant: a record is one write and a file only grows, so a killed writer leaves whole records
//! and at most one torn one, which is truncated when the store is opened. The files take a 64th of
//! the store at most; beyond that the file goes first whose symbols were lacked longest ago.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use super::{Store, remove};
use crate::directory::{Name, creating};
use crate::error::StoreError;
use crate::late::{self, Batch, LateSymbol, MOST_RAW, MOST_RECORD, Summary};
use crate::record::FILE_START;

/// All files are at most this part of the store.
const PART_OF_STORE: u64 = 64;
/// A file is at most this part of them, and there are at most so many times two of them.
const PART: u64 = 8;

impl Store {
    /// Keeps symbols of frames that profiles were stored without. Queries from now on show them.
    pub fn name_late(&mut self, symbols: &[LateSymbol]) -> Result<(), StoreError> {
        let most = self.most_names() / PART;
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(MOST_RECORD) / 2;
        let mut rest = symbols;
        while !rest.is_empty() {
            let mut batch = Batch::default();
            while let Some((symbol, others)) = rest.split_first() {
                // Its texts may be in the record already: this is the most that it may add.
                let bytes =
                    batch.bytes().saturating_add(LateSymbol::memory(std::slice::from_ref(symbol)));
                if batch.count > 0 && bytes > most {
                    break;
                }
                batch.add(symbol);
                rest = others;
            }
            let (count, last, raw) = (batch.count, batch.last, batch.bytes() as u64);
            let written = match batch.seal() {
                Some(record) => {
                    let added = Summary { length: record.len() as u64, raw, symbols: count, last };
                    self.write_names(&record, added)
                }
                None => Err(StoreError::TooLarge { bytes: raw }),
            };
            let counters = &mut self.counters;
            let (written_before, refused) =
                (counters.late_symbols_written, counters.late_symbols_refused);
            match written {
                Ok(()) => counters.late_symbols_written = written_before.saturating_add(count),
                // The others may have room.
                Err(StoreError::TooLarge { .. }) => {
                    counters.late_symbols_refused = refused.saturating_add(count);
                }
                Err(error) => {
                    let count = count.saturating_add(rest.len() as u64);
                    counters.late_symbols_refused = refused.saturating_add(count);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Bytes of all files of late symbols.
    fn most_names(&self) -> u64 {
        self.options.max_bytes / PART_OF_STORE
    }

    fn write_names(&mut self, record: &[u8], added: Summary) -> Result<(), StoreError> {
        let most = self.most_names();
        let Summary { length, raw, .. } = added;
        let bytes = length.saturating_add(FILE_START.len() as u64);
        if bytes > most / PART {
            return Err(StoreError::TooLarge { bytes });
        }
        let has_room = |names: &Summary| {
            names.length.saturating_add(bytes) <= most / PART
                && names.raw.saturating_add(raw) <= MOST_RAW / PART
        };
        let newest = self.names.last_key_value().map(|(&number, names)| (number, *names));
        let joined = newest.filter(|(_, names)| has_room(names));
        self.make_room_for_names((bytes, raw), joined.map(|(number, _)| number))?;
        self.make_room(bytes)?;
        let (number, before) = joined.unwrap_or_else(|| {
            let number = self.next;
            self.next = number.saturating_add(1);
            (number, Summary::default())
        });
        let path = Name::Names.path(&self.directory, number);
        let after = append(&path, before, record)?;
        let after = Summary {
            length: after,
            raw: before.raw.saturating_add(raw),
            symbols: before.symbols.saturating_add(added.symbols),
            last: before.last.max(added.last),
        };
        self.names.insert(number, after);
        Ok(())
    }

    /// Drops the files whose symbols were lacked longest ago, until so many bytes, and so many
    /// decompressed, find room beside the others: in one that is spared, or in a new one.
    pub(super) fn make_room_for_names(
        &mut self,
        (bytes, raw): (u64, u64),
        spared: Option<u64>,
    ) -> Result<(), StoreError> {
        let most = self.most_names();
        let new = u64::from(bytes > 0 && spared.is_none());
        let taken = |of: fn(&Summary) -> u64, names: &Self| {
            names.names.values().map(of).fold(0, u64::saturating_add)
        };
        while taken(|names| names.length, self).saturating_add(bytes) > most
            || taken(|names| names.raw, self).saturating_add(raw) > MOST_RAW
            || (self.names.len() as u64).saturating_add(new) > 2 * PART
        {
            let others = self.names.iter().filter(|(number, _)| Some(**number) != spared);
            let oldest = others.min_by_key(|(_, names)| names.last).map(|(&number, _)| number);
            let Some(oldest) = oldest else { break };
            let symbols = self.names.get(&oldest).map_or(0, |names| names.symbols);
            self.drop_names(oldest)?;
            let dropped = self.counters.late_symbols_dropped;
            self.counters.late_symbols_dropped = dropped.saturating_add(symbols);
        }
        Ok(())
    }

    fn drop_names(&mut self, number: u64) -> Result<(), StoreError> {
        remove(&Name::Names.path(&self.directory, number))?;
        self.names.remove(&number);
        Ok(())
    }

    /// Drops the files whose profiles are all gone.
    pub(super) fn drop_old_names(&mut self, oldest_kept: i64) -> Result<(), StoreError> {
        let starts = self.open.as_ref().and_then(|open| open.writer.starts());
        let starts = starts.map(|(oldest, _)| oldest).into_iter();
        let sealed = self.sealed.values().map(|sealed| sealed.oldest);
        let oldest = starts.chain(sealed).min().unwrap_or(oldest_kept).max(oldest_kept);
        let is_over = |names: &Summary| names.last.is_none_or(|last| last < oldest);
        let over: Vec<u64> = self
            .names
            .iter()
            .filter(|(_, names)| is_over(names))
            .map(|(&number, _)| number)
            .collect();
        over.into_iter().try_for_each(|number| self.drop_names(number))
    }

    /// Truncates what a killed writer left to its whole records.
    pub(super) fn recover_names(&mut self, number: u64, path: &Path) -> Result<(), StoreError> {
        let open = OpenOptions::new().read(true).append(true).open(path);
        let file = open.map_err(StoreError::io("open", path))?;
        let summary = late::scan(&file, late::check).map_err(StoreError::io("read", path))?;
        if summary.last.is_none() {
            return remove(path);
        }
        let length = file.metadata().map_err(StoreError::io("read", path))?.len();
        if length > summary.length {
            file.set_len(summary.length).map_err(StoreError::io("cut", path))?;
            let cut = length.saturating_sub(summary.length);
            self.counters.bytes_cut_off = self.counters.bytes_cut_off.saturating_add(cut);
        }
        self.names.insert(number, summary);
        Ok(())
    }
}

/// Appends a record to a file, which is new if it has no length. Returns how long it is then.
fn append(path: &Path, before: Summary, record: &[u8]) -> Result<u64, StoreError> {
    let open = creating().append(true).open(path);
    let mut file = open.map_err(StoreError::io("open", path))?;
    let start = if before.length == 0 { &FILE_START[..] } else { &[] };
    let bytes = [start, record].concat();
    let written = file.write_all(&bytes).and_then(|()| file.sync_data());
    if let Err(error) = written {
        undo(&file, path, before.length);
        return Err(StoreError::io("write", path)(error));
    }
    Ok(before.length.saturating_add(bytes.len() as u64))
}

/// What cannot be truncated now is truncated when the store is opened again, and a reader stops
/// before it.
fn undo(file: &File, path: &Path, length: u64) {
    let _ = match length {
        0 => std::fs::remove_file(path),
        _ => file.set_len(length),
    };
}
