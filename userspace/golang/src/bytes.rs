//! Words and texts as Go's tables have them.

use std::borrow::Cow;

use strata_bytes::{MAX_NAME_BYTES, u32_at, u64_at, until_nul};

/// A pointer-sized word.
pub(crate) fn word_at(bytes: &[u8], offset: usize, pointer_size: u8) -> Option<u64> {
    if pointer_size == 4 { u32_at(bytes, offset).map(u64::from) } else { u64_at(bytes, offset) }
}

/// The bytes from `offset` up to the next NUL (or the end), at most [`MAX_NAME_BYTES`] of them.
pub(crate) fn c_string(bytes: &[u8], offset: usize) -> Option<Cow<'_, str>> {
    let rest = bytes.get(offset..)?;
    let rest = rest.get(..MAX_NAME_BYTES).unwrap_or(rest);
    let text = String::from_utf8_lossy(until_nul(rest));
    (!text.is_empty()).then_some(text)
}
