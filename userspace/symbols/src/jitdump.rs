//! `jit-PID.dump`: the binary format that just-in-time compilers write for `perf inject`, with lines.
//!
//! The layout is that of the kernel's `tools/perf/Documentation/jitdump-specification.txt`. The file
//! is fed as it grows; a record that is not complete waits for its rest, and code bytes are passed
//! over without being kept.
//!
//! Invariant: at most [`MAX_RECORD`] bytes wait; a record whose size cannot be ends the file, because
//! nothing behind it can be found.

use crate::jit_ranges::JitRanges;
use std::collections::HashMap;
use std::sync::Arc;
use strata_bytes::{bounded_text, u32_at, u64_at, until_nul};

const MAGIC: u32 = 0x4a69_5444;
const FILE_HEADER: usize = 40;
const RECORD_HEADER: usize = 16;
/// More of a record is not read.
pub const MAX_RECORD: usize = 1 << 20;
const MAX_LOAD: usize = RECORD_HEADER + 40 + crate::MAX_NAME_BYTES + 1;
const MAX_FUNCTIONS: usize = 500_000;
const MAX_NAMES: usize = 64 << 20;
const MAX_LINES: usize = 1 << 20;
const MAX_FILES: usize = 1 << 16;
const MAX_FILE_BYTES: usize = 4 << 20;

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;

/// Why a file cannot be read (further).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JitDumpError {
    #[error("not a jitdump file")]
    Magic,
    #[error("a jitdump file of a machine with the other byte order")]
    ForeignByteOrder,
    #[error("a jitdump file of version {0}, of which nothing is known")]
    Version(u32),
    #[error("the jitdump file is damaged: a record of {0} bytes")]
    Record(u32),
}

#[derive(Debug, Clone, Copy)]
struct Line {
    /// From the start of the code.
    offset: u32,
    line: u32,
    file: u32,
}

/// The function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JitSymbol<'a> {
    pub name: &'a str,
    pub start: u64,
    pub file: Option<&'a str>,
    pub line: Option<u32>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct JitDump {
    ranges: JitRanges,
    /// Lines by the tag of a range.
    lines: HashMap<u32, Vec<Line>>,
    line_count: usize,
    files: Vec<Arc<str>>,
    file_numbers: HashMap<Arc<str>, u32>,
    /// Bytes of their names.
    file_bytes: usize,
    /// Lines come before the code they describe.
    waiting_lines: Option<(u64, Vec<Line>)>,
    next_tag: u32,
    buffer: Vec<u8>,
    skip: u64,
    started: bool,
    failed: Option<JitDumpError>,
    /// The program closed the file: no more records will follow.
    pub closed: bool,
    /// Functions dropped for lack of room.
    pub dropped: u64,
}

impl Default for JitDump {
    fn default() -> Self {
        Self {
            ranges: JitRanges::new(MAX_FUNCTIONS, MAX_NAMES),
            lines: HashMap::new(),
            line_count: 0,
            files: Vec::new(),
            file_numbers: HashMap::new(),
            file_bytes: 0,
            waiting_lines: None,
            next_tag: 1,
            buffer: Vec::new(),
            skip: 0,
            started: false,
            failed: None,
            closed: false,
            dropped: 0,
        }
    }
}

impl JitDump {
    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// When the file cannot be read; what was read before stays, and every later call returns the
    /// same error.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), JitDumpError> {
        while self.failed.is_none() {
            if self.skip > 0 {
                let count = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
                piece = piece.get(count..).unwrap_or_default();
                self.skip = self.skip.saturating_sub(u64::try_from(count).unwrap_or(0));
                if self.skip > 0 {
                    break;
                }
            }
            let want = match self.wanted() {
                Ok(want) => want,
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            let missing = want.saturating_sub(self.buffer.len());
            if missing > 0 {
                let count = missing.min(piece.len());
                if count == 0 {
                    break;
                }
                let (taken, rest) = piece.split_at_checked(count).unwrap_or((piece, &[]));
                self.buffer.extend_from_slice(taken);
                piece = rest;
                continue;
            }
            if let Err(error) = self.take() {
                self.failed = Some(error);
            }
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// How many bytes the buffer needs before the next step.
    fn wanted(&self) -> Result<usize, JitDumpError> {
        if !self.started {
            return Ok(FILE_HEADER);
        }
        let (Some(kind), Some(size)) = (u32_at(&self.buffer, 0), u32_at(&self.buffer, 4)) else {
            return Ok(RECORD_HEADER);
        };
        let whole = usize::try_from(size).unwrap_or(usize::MAX);
        if whole < RECORD_HEADER {
            return Err(JitDumpError::Record(size));
        }
        Ok(match kind {
            CODE_LOAD => whole.min(MAX_LOAD),
            DEBUG_INFO => whole.min(MAX_RECORD),
            CODE_MOVE => whole.min(RECORD_HEADER.saturating_add(48)),
            _ => RECORD_HEADER,
        })
    }

    /// Parses the complete records in the buffer.
    fn take(&mut self) -> Result<(), JitDumpError> {
        let buffer = std::mem::take(&mut self.buffer);
        let held = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let size = if self.started {
            let (kind, size) = (u32_at(&buffer, 0), u32_at(&buffer, 4));
            let body = buffer.get(RECORD_HEADER..).unwrap_or_default();
            match kind {
                Some(CODE_LOAD) => self.load(body),
                Some(CODE_MOVE) => self.relocate(body),
                Some(DEBUG_INFO) => self.debug_info(body),
                Some(CODE_CLOSE) => self.closed = true,
                _ => {}
            }
            size
        } else {
            self.started = true;
            check_header(&buffer)?;
            u32_at(&buffer, 8)
        };
        self.skip = u64::from(size.unwrap_or(0)).saturating_sub(held);
        // The buffer's room is used again.
        self.buffer = buffer;
        self.buffer.clear();
        self.buffer.shrink_to(MAX_LOAD);
        Ok(())
    }

    fn load(&mut self, body: &[u8]) {
        let (Some(address), Some(size), Some(name)) =
            (u64_at(body, 16), u64_at(body, 24), body.get(40..))
        else {
            return;
        };
        let name = bounded_text(until_nul(name)).into_owned();
        if !name.is_empty() {
            self.let_go_of_lines(address, size);
        }
        let lines = self.waiting_lines.take().filter(|(described, _)| *described == address);
        let mut tag = 0;
        if let Some((_, lines)) = lines.filter(|(_, lines)| !lines.is_empty())
            && self.line_count.saturating_add(lines.len()) <= MAX_LINES
        {
            tag = self.next_tag;
            self.next_tag = self.next_tag.checked_add(1).unwrap_or(1);
            self.line_count = self.line_count.saturating_add(lines.len());
            self.lines.insert(tag, lines);
        }
        if !self.ranges.insert(address, size, &name, tag) {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// What code replaces needs its lines no more.
    fn let_go_of_lines(&mut self, start: u64, size: u64) {
        let (ranges, lines) = (&self.ranges, &mut self.lines);
        let at = ranges.find(start).filter(|found| found.origin == start);
        let within = ranges.tags_within(start, size);
        for tag in within.chain(at.map(|found| found.tag)) {
            if let Some(gone) = lines.remove(&tag) {
                self.line_count = self.line_count.saturating_sub(gone.len());
            }
        }
    }

    fn relocate(&mut self, body: &[u8]) {
        let (Some(from), Some(to), Some(size)) =
            (u64_at(body, 16), u64_at(body, 24), u64_at(body, 32))
        else {
            return;
        };
        let Some((name, tag)) =
            self.ranges.find(from).map(|found| (found.name.to_owned(), found.tag))
        else {
            return;
        };
        if let Some(end) = from.checked_add(size) {
            self.ranges.remove(from, end);
        }
        self.let_go_of_lines(to, size);
        if !self.ranges.insert(to, size, &name, tag) {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    fn debug_info(&mut self, body: &[u8]) {
        let (Some(start), Some(count), Some(mut rest)) =
            (u64_at(body, 0), u64_at(body, 8), body.get(16..))
        else {
            return;
        };
        let mut lines = Vec::new();
        let mut last_file = 0;
        for _ in 0..count {
            let (Some(address), Some(line), Some(name)) =
                (u64_at(rest, 0), u32_at(rest, 8), rest.get(16..))
            else {
                break;
            };
            let name = until_nul(name);
            // "As before" is written as one byte 0xff.
            if name != [0xff] {
                last_file = self.file_number(name);
            }
            if let Some(offset) =
                address.checked_sub(start).and_then(|offset| u32::try_from(offset).ok())
            {
                lines.push(Line { offset, line, file: last_file });
            }
            rest = rest.get(name.len().saturating_add(17)..).unwrap_or_default();
        }
        lines.sort_by_key(|line| line.offset);
        self.waiting_lines = Some((start, lines));
    }

    /// The number + 1 of a file name; 0 when there is no room.
    fn file_number(&mut self, name: &[u8]) -> u32 {
        let name = bounded_text(name);
        if let Some(&number) = self.file_numbers.get(name.as_ref()) {
            return number;
        }
        let bytes = self.file_bytes.saturating_add(name.len());
        if name.is_empty() || self.files.len() >= MAX_FILES || bytes > MAX_FILE_BYTES {
            return 0;
        }
        self.file_bytes = bytes;
        let name: Arc<str> = name.into();
        self.files.push(name.clone());
        let number = u32::try_from(self.files.len()).unwrap_or(0);
        self.file_numbers.insert(name, number);
        number
    }

    /// The function at `address`.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<JitSymbol<'_>> {
        let found = self.ranges.find(address)?;
        let offset = address.saturating_sub(found.origin);
        let line = self.lines.get(&found.tag).and_then(|lines| {
            let end = lines.partition_point(|line| u64::from(line.offset) <= offset);
            lines.get(end.checked_sub(1)?)
        });
        Some(JitSymbol {
            name: found.name,
            start: found.origin,
            file: line
                .and_then(|line| usize::try_from(line.file).ok()?.checked_sub(1))
                .and_then(|index| self.files.get(index))
                .map(|file| &**file),
            line: line.map(|line| line.line).filter(|&line| line != 0),
        })
    }

    /// Bytes that this takes, roughly.
    #[must_use]
    pub fn memory(&self) -> usize {
        const FILE: usize = 100;
        const LINES: usize = 80;
        let files = self.file_bytes.saturating_add(self.files.len().saturating_mul(FILE));
        let of_lines = self.line_count.saturating_mul(size_of::<Line>());
        let lines = of_lines.saturating_add(self.lines.len().saturating_mul(LINES));
        [files, lines, self.buffer.capacity()]
            .into_iter()
            .fold(self.ranges.memory(), usize::saturating_add)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.len() == 0
    }
}

fn check_header(header: &[u8]) -> Result<(), JitDumpError> {
    let magic = u32_at(header, 0).unwrap_or(0);
    if magic.swap_bytes() == MAGIC {
        return Err(JitDumpError::ForeignByteOrder);
    }
    if magic != MAGIC {
        return Err(JitDumpError::Magic);
    }
    match u32_at(header, 4) {
        Some(1) => Ok(()),
        version => Err(JitDumpError::Version(version.unwrap_or(0))),
    }
}
