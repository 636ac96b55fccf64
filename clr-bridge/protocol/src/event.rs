//! Events of the ring: samples that the bridge takes, of whichever type.
//!
//! An event is its 48-byte header ([`EventHeader`]), its frames, then its detail: bytes whose
//! meaning depends on the kind. Kinds are defined by their writers and readers; here they are
//! numbers.
//!
//! Invariant: reading checks every length against the bytes that are there.

use crate::decode_error::DecodeError;
use crate::layout::{EventHeader, MAX_EVENT};

/// The most frames of an event.
pub const MAX_FRAMES: usize = 1024;
/// The most bytes of detail.
pub const MAX_DETAIL: usize = MAX_EVENT - size_of::<EventHeader>() - 8 * MAX_FRAMES;

const HEADER: usize = size_of::<EventHeader>();
const _: () = assert!(cfg!(target_endian = "little"), "the layout is little-endian");

/// An event to be pushed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Event<'a> {
    pub kind: u16,
    pub flags: u32,
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// In the thread's innermost PID namespace.
    pub tid: u32,
    pub app_domain: u64,
    pub values: [u64; 2],
    /// Innermost first.
    pub frames: &'a [u64],
    pub detail: &'a [u8],
}

/// An event, as read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventRecord {
    pub kind: u16,
    pub flags: u32,
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// In the thread's innermost PID namespace.
    pub tid: u32,
    pub app_domain: u64,
    pub values: [u64; 2],
    /// Innermost first.
    pub frames: Vec<u64>,
    pub detail: Vec<u8>,
}

impl Event<'_> {
    /// Bytes in the ring; `None` if it has more frames or detail than an event may have.
    #[must_use]
    pub fn length(&self) -> Option<usize> {
        if self.frames.len() > MAX_FRAMES || self.detail.len() > MAX_DETAIL {
            return None;
        }
        Some(HEADER + 8 * self.frames.len() + self.detail.len())
    }

    /// Passes on the bytes with their offsets from the event's start.
    pub(crate) fn write(&self, mut copy: impl FnMut(usize, &[u8])) {
        let header = EventHeader {
            kind: self.kind,
            frames: self.frames.len() as u16,
            detail: self.detail.len() as u32,
            time: self.time,
            tid: self.tid,
            flags: self.flags,
            app_domain: self.app_domain,
            values: self.values,
        };
        copy(0, &header.to_bytes());
        // SAFETY: the words are initialised, bytes have no alignment, and the byte order is that
        // of the layout.
        let frames = unsafe {
            std::slice::from_raw_parts(self.frames.as_ptr().cast::<u8>(), size_of_val(self.frames))
        };
        if !frames.is_empty() {
            copy(HEADER, frames);
        }
        if !self.detail.is_empty() {
            copy(HEADER + frames.len(), self.detail);
        }
    }
}

impl EventRecord {
    /// The same, to be pushed.
    #[must_use]
    pub fn borrow(&self) -> Event<'_> {
        Event {
            kind: self.kind,
            flags: self.flags,
            time: self.time,
            tid: self.tid,
            app_domain: self.app_domain,
            values: self.values,
            frames: &self.frames,
            detail: &self.detail,
        }
    }

    /// Reads an event; what follows it in its cells is ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(DecodeError::Truncated)?;
        let header = EventHeader::from_bytes(header);
        let (frames, rest) =
            rest.split_at_checked(8 * usize::from(header.frames)).ok_or(DecodeError::Truncated)?;
        let detail = rest.get(..header.detail as usize).ok_or(DecodeError::Truncated)?;
        let (frames, _) = frames.as_chunks::<8>();
        Ok(Self {
            kind: header.kind,
            flags: header.flags,
            time: header.time,
            tid: header.tid,
            app_domain: header.app_domain,
            values: header.values,
            frames: frames.iter().map(|frame| u64::from_le_bytes(*frame)).collect(),
            detail: detail.to_vec(),
        })
    }
}
