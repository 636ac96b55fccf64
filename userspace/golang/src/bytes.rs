//! Little-endian reads out of a byte slice that answer `None` instead of panicking.
//!
//! Invariant: an offset is only ever turned into a slice with `get`.

use crate::MAX_NAME_BYTES;
use std::borrow::Cow;

pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.get(..N).and_then(|piece| piece.try_into().ok())
}

pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    array(bytes, offset).map(i32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// A pointer-sized word.
pub(crate) fn word_at(bytes: &[u8], offset: usize, pointer_size: u8) -> Option<u64> {
    if pointer_size == 4 { u32_at(bytes, offset).map(u64::from) } else { u64_at(bytes, offset) }
}

/// The bytes from `offset` up to the next NUL (or the end), at most [`MAX_NAME_BYTES`] of them.
pub(crate) fn c_string(bytes: &[u8], offset: usize) -> Option<Cow<'_, str>> {
    let rest = bytes.get(offset..)?;
    let rest = rest.get(..MAX_NAME_BYTES).unwrap_or(rest);
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let text = String::from_utf8_lossy(rest.get(..end)?);
    (!text.is_empty()).then_some(text)
}
