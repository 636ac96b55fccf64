//! Little-endian reads that answer `None` instead of panicking, and bounded text.

use crate::MAX_NAME_BYTES;
use std::borrow::Cow;

pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.get(..N).and_then(|piece| piece.try_into().ok())
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// The bytes before the first NUL (all, when there is none).
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.iter().position(|&byte| byte == 0).and_then(|end| bytes.get(..end)).unwrap_or(bytes)
}

/// Text of at most [`MAX_NAME_BYTES`].
pub(crate) fn bounded_text(bytes: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(bytes.get(..MAX_NAME_BYTES).unwrap_or(bytes)) {
        Cow::Borrowed(text) => Cow::Borrowed(bounded_str(text)),
        Cow::Owned(text) => Cow::Owned(bounded_str(&text).to_owned()),
    }
}

/// `text`, cut at a character boundary.
pub(crate) fn bounded_str(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default()
}
