//! Reading bytes that others wrote.
//!
//! Code map:
//! - this module: little-endian numbers at an offset; `cursor`: the same, moving forward
//! - `read_at` (`std`): files read at offsets, and parts of them
//! - `text` (`std`): text of bounded length
//!
//! Invariant: nothing here panics, whatever the bytes are, and nothing is allocated by a size that
//! only the bytes vouch for.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "std")]
extern crate std;

mod cursor;
#[cfg(feature = "std")]
mod read_at;
#[cfg(feature = "std")]
mod text;

pub use cursor::Cursor;
#[cfg(feature = "std")]
pub use read_at::{FileAt, Part, ReadAt, ReadError, fill, read_range, read_whole};
#[cfg(feature = "std")]
pub use text::{MAX_NAME_BYTES, bounded_str, bounded_text};

/// So many bytes at an offset.
#[inline]
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

macro_rules! numbers {
    ($($name:ident: $number:ty),*) => {$(
        #[inline]
        #[must_use]
        pub fn $name(bytes: &[u8], offset: usize) -> Option<$number> {
            array(bytes, offset).map(<$number>::from_le_bytes)
        }
    )*};
}

numbers!(u8_at: u8, u16_at: u16, u32_at: u32, i32_at: i32, u64_at: u64);

/// A `u32` as an index; one that does not fit is beyond every slice.
#[inline]
#[must_use]
pub fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The bytes before the first NUL (all, when there is none).
#[inline]
#[must_use]
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    // The search of the standard library goes a word at a time.
    core::ffi::CStr::from_bytes_until_nul(bytes).map_or(bytes, core::ffi::CStr::to_bytes)
}
