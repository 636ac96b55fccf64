//! How one field of a record becomes bytes, and back.
//!
//! Integers are little-endian and packed without padding. A text or a byte string is a `u16` length
//! and its bytes; a list is a `u16` count and its items. What is longer than a bound is truncated,
//! and the record marked ([`crate::record::FLAG_CUT`]).
//!
//! Invariant: decoding allocates no more than the input is long (times the size of an item), never
//! panics and never reads past its input. Encoding never allocates and never panics.

use crate::decode_error::DecodeError;

/// The most bytes of a text.
pub const MAX_TEXT: usize = 4096;
/// The most bytes of a byte string (a signature, a piece of code).
pub const MAX_BLOB: usize = 4096;
/// The most texts in a list.
pub const MAX_TEXTS: usize = 64;
/// The most code ranges of a method.
pub const MAX_RANGES: usize = 64;
/// The most entries of an IL map.
pub const MAX_MAP_ENTRIES: usize = 8192;

/// The destination of encoded bytes.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
    /// A field was longer than its bound.
    fn cut(&mut self) {}
}

/// Counts the bytes that an encoding takes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Measure {
    pub length: usize,
    pub cut: bool,
}

impl Sink for Measure {
    fn put(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len());
    }

    fn cut(&mut self) {
        self.cut = true;
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The rest of a record's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    rest: &'a [u8],
}

impl<'a> Source<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The bytes of the fields that `skip` goes over.
    pub fn passed(
        &mut self,
        skip: impl FnOnce(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<&'a [u8], DecodeError> {
        let before = self.rest;
        skip(self)?;
        before.get(..before.len() - self.rest.len()).ok_or(DecodeError::Truncated)
    }

    /// A count of items of which each takes at least `smallest` bytes.
    fn count(&mut self, smallest: usize, largest: usize) -> Result<usize, DecodeError> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if count > largest {
            return Err(DecodeError::Invalid("a count"));
        }
        if count.saturating_mul(smallest) > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }
}

/// A field of a record: the type that owns it, and the type that borrows it for writing.
pub trait Field: Sized {
    type Borrowed<'a>: Copy;

    fn put(value: Self::Borrowed<'_>, sink: &mut impl Sink);
    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError>;
    fn borrow(&self) -> Self::Borrowed<'_>;

    /// As [`Field::take`], with the same errors, without its value.
    fn skip(source: &mut Source<'_>) -> Result<(), DecodeError> {
        Self::take(source).map(drop)
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Field for $integer {
            type Borrowed<'a> = Self;

            fn put(value: Self, sink: &mut impl Sink) {
                sink.put(&value.to_le_bytes());
            }

            fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(source.array()?))
            }

            fn borrow(&self) -> Self {
                *self
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i32);

/// A UUID, in the order of its text form.
impl Field for [u8; 16] {
    type Borrowed<'a> = Self;

    fn put(value: Self, sink: &mut impl Sink) {
        sink.put(&value);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        source.array()
    }

    fn borrow(&self) -> Self {
        *self
    }
}

fn put_count(count: usize, sink: &mut impl Sink) {
    sink.put(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
}

fn put_bytes(bytes: &[u8], sink: &mut impl Sink) {
    put_count(bytes.len(), sink);
    sink.put(bytes);
}

fn put_text(text: &str, sink: &mut impl Sink) {
    let mut end = text.len();
    if end > MAX_TEXT {
        sink.cut();
        end = text.floor_char_boundary(MAX_TEXT);
    }
    put_bytes(text.as_bytes().get(..end).unwrap_or_default(), sink);
}

fn put_blob(blob: &[u8], sink: &mut impl Sink) {
    let kept = blob.get(..MAX_BLOB).unwrap_or(blob);
    if kept.len() < blob.len() {
        sink.cut();
    }
    put_bytes(kept, sink);
}

/// A list's count, and how many of its items are kept.
fn put_list_count(count: usize, largest: usize, sink: &mut impl Sink) -> usize {
    let kept = count.min(largest);
    if kept < count {
        sink.cut();
    }
    put_count(kept, sink);
    kept
}

/// A text. What is not UTF-8 is replaced when it is read.
impl Field for String {
    type Borrowed<'a> = &'a str;

    fn put(value: &str, sink: &mut impl Sink) {
        put_text(value, sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        let length = source.count(1, MAX_TEXT)?;
        Ok(Self::from_utf8_lossy(source.take(length)?).into_owned())
    }

    fn borrow(&self) -> &str {
        self
    }

    fn skip(source: &mut Source<'_>) -> Result<(), DecodeError> {
        let length = source.count(1, MAX_TEXT)?;
        source.take(length).map(drop)
    }
}

fn take_blob<'a>(source: &mut Source<'a>) -> Result<&'a [u8], DecodeError> {
    let length = source.count(1, MAX_BLOB)?;
    source.take(length)
}

/// A byte string.
impl Field for Vec<u8> {
    type Borrowed<'a> = &'a [u8];

    fn put(value: &[u8], sink: &mut impl Sink) {
        put_blob(value, sink);
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        take_blob(source).map(<[u8]>::to_vec)
    }

    fn borrow(&self) -> &[u8] {
        self
    }

    fn skip(source: &mut Source<'_>) -> Result<(), DecodeError> {
        take_blob(source).map(drop)
    }
}

/// A list of texts to be written.
#[derive(Debug, Clone, Copy)]
pub enum Texts<'a> {
    Slices(&'a [&'a str]),
    Strings(&'a [String]),
}

impl Default for Texts<'_> {
    fn default() -> Self {
        Self::Slices(&[])
    }
}

impl<'a> From<&'a [&'a str]> for Texts<'a> {
    fn from(texts: &'a [&'a str]) -> Self {
        Self::Slices(texts)
    }
}

impl<'a> From<&'a [String]> for Texts<'a> {
    fn from(texts: &'a [String]) -> Self {
        Self::Strings(texts)
    }
}

impl Field for Vec<String> {
    type Borrowed<'a> = Texts<'a>;

    fn put(value: Texts<'_>, sink: &mut impl Sink) {
        match value {
            Texts::Slices(texts) => {
                let kept = put_list_count(texts.len(), MAX_TEXTS, sink);
                texts.iter().take(kept).for_each(|text| put_text(text, sink));
            }
            Texts::Strings(texts) => {
                let kept = put_list_count(texts.len(), MAX_TEXTS, sink);
                texts.iter().take(kept).for_each(|text| put_text(text, sink));
            }
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        let count = source.count(2, MAX_TEXTS)?;
        (0..count).map(|_| String::take(source)).collect()
    }

    fn borrow(&self) -> Texts<'_> {
        Texts::Strings(self)
    }

    fn skip(source: &mut Source<'_>) -> Result<(), DecodeError> {
        let count = source.count(2, MAX_TEXTS)?;
        (0..count).try_for_each(|_| String::skip(source))
    }
}

/// A piece of a method's code, to be written.
#[derive(Debug, Clone, Copy)]
pub struct CodeRange<'a> {
    pub start: u64,
    pub size: u32,
    /// The first bytes of the code, as they are in memory.
    pub code: &'a [u8],
}

/// A piece of a method's code.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeRangeRecord {
    pub start: u64,
    pub size: u32,
    /// The first bytes of the code, as they were in memory.
    pub code: Vec<u8>,
}

/// A list of code ranges to be written.
#[derive(Debug, Clone, Copy)]
pub enum Ranges<'a> {
    Slices(&'a [CodeRange<'a>]),
    Owned(&'a [CodeRangeRecord]),
}

impl Default for Ranges<'_> {
    fn default() -> Self {
        Self::Slices(&[])
    }
}

impl<'a> From<&'a [CodeRange<'a>]> for Ranges<'a> {
    fn from(ranges: &'a [CodeRange<'a>]) -> Self {
        Self::Slices(ranges)
    }
}

fn put_range(start: u64, size: u32, code: &[u8], sink: &mut impl Sink) {
    u64::put(start, sink);
    u32::put(size, sink);
    put_blob(code, sink);
}

impl Field for Vec<CodeRangeRecord> {
    type Borrowed<'a> = Ranges<'a>;

    fn put(value: Ranges<'_>, sink: &mut impl Sink) {
        match value {
            Ranges::Slices(ranges) => {
                let kept = put_list_count(ranges.len(), MAX_RANGES, sink);
                for range in ranges.iter().take(kept) {
                    put_range(range.start, range.size, range.code, sink);
                }
            }
            Ranges::Owned(ranges) => {
                let kept = put_list_count(ranges.len(), MAX_RANGES, sink);
                for range in ranges.iter().take(kept) {
                    put_range(range.start, range.size, &range.code, sink);
                }
            }
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        let owned = |range: CodeRange<'_>| CodeRangeRecord {
            start: range.start,
            size: range.size,
            code: range.code.to_vec(),
        };
        let count = range_count(source)?;
        (0..count).map(|_| take_range(source).map(owned)).collect()
    }

    fn borrow(&self) -> Ranges<'_> {
        Ranges::Owned(self)
    }
}

fn range_count(source: &mut Source<'_>) -> Result<usize, DecodeError> {
    source.count(14, MAX_RANGES)
}

fn take_range<'a>(source: &mut Source<'a>) -> Result<CodeRange<'a>, DecodeError> {
    Ok(CodeRange { start: u64::take(source)?, size: u32::take(source)?, code: take_blob(source)? })
}

/// A list of code ranges where it lies: all of them are whole.
#[derive(Debug, Clone, Copy)]
pub struct RangesView<'a> {
    count: usize,
    ranges: Source<'a>,
}

impl<'a> RangesView<'a> {
    pub(crate) fn take(source: &mut Source<'a>) -> Result<Self, DecodeError> {
        let count = range_count(source)?;
        let ranges = *source;
        (0..count).try_for_each(|_| take_range(source).map(drop))?;
        Ok(Self { count, ranges })
    }

    pub fn iter(&self) -> impl Iterator<Item = CodeRange<'a>> + use<'a> {
        let mut ranges = self.ranges;
        (0..self.count).map_while(move |_| take_range(&mut ranges).ok())
    }
}

/// From an offset in a method's native code to an offset in its IL, or to one of the negative
/// values that mean prologue, epilogue and no mapping (`corprof.idl`,
/// `COR_DEBUG_IL_TO_NATIVE_MAP`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IlMapEntry {
    pub native: u32,
    pub il: i32,
}

impl Field for Vec<IlMapEntry> {
    type Borrowed<'a> = &'a [IlMapEntry];

    fn put(value: &[IlMapEntry], sink: &mut impl Sink) {
        let kept = put_list_count(value.len(), MAX_MAP_ENTRIES, sink);
        for entry in value.iter().take(kept) {
            u32::put(entry.native, sink);
            i32::put(entry.il, sink);
        }
    }

    fn take(source: &mut Source<'_>) -> Result<Self, DecodeError> {
        let count = source.count(8, MAX_MAP_ENTRIES)?;
        (0..count)
            .map(|_| Ok(IlMapEntry { native: u32::take(source)?, il: i32::take(source)? }))
            .collect()
    }

    fn borrow(&self) -> &[IlMapEntry] {
        self
    }
}
