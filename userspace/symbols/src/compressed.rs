//! Unpacking compressed sections and `.gnu_debugdata`, never further than a limit.
//!
//! Invariant: what comes out is read piece by piece up to a limit the caller sets; the size that the
//! input claims is only ever compared with it.

use crate::Error;
use std::io::Read;
use strata_bytes::{array, u32_at, u64_at};

/// `Elf64_Chdr::ch_type` (`elf.h`).
const COMPRESS_ZLIB: u32 = 1;
const COMPRESS_ZSTD: u32 = 2;
/// Dictionaries larger than this are refused before they are allocated.
const MAX_DICTIONARY: u64 = 64 << 20;

/// Reads `reader` to its end, or fails when there is more than `limit`.
fn drain(reader: impl Read, what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let mut unpacked = Vec::new();
    reader
        .take(limit.saturating_add(1))
        .read_to_end(&mut unpacked)
        .map_err(|error| Error::Unpack { what, reason: error.to_string() })?;
    let bytes = u64::try_from(unpacked.len()).unwrap_or(u64::MAX);
    if bytes > limit {
        return Err(Error::TooLarge { what, bytes, limit });
    }
    Ok(unpacked)
}

/// Unpacks a section with `SHF_COMPRESSED`: an `Elf64_Chdr` and a stream.
pub(crate) fn section(packed: &[u8], what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let cut = || Error::Cut { what };
    let kind = u32_at(packed, 0).ok_or_else(cut)?;
    let bytes = u64_at(packed, 8).ok_or_else(cut)?;
    let stream = packed.get(24..).ok_or_else(cut)?;
    if bytes > limit {
        return Err(Error::TooLarge { what, bytes, limit });
    }
    match kind {
        COMPRESS_ZLIB => drain(flate2::read::ZlibDecoder::new(stream), what, bytes),
        COMPRESS_ZSTD => {
            let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(
                stream,
                MAX_DICTIONARY,
            )
            .map_err(|error| Error::Unpack { what, reason: error.to_string() })?;
            drain(decoder, what, bytes)
        }
        other => Err(Error::Unpack { what, reason: format!("compression {other} is not known") }),
    }
}

/// Unpacks an old `.zdebug_*` section: `ZLIB`, a big-endian size and a stream.
pub(crate) fn old_section(packed: &[u8], what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let (Some(b"ZLIB"), Some(size)) = (packed.get(..4), array(packed, 4)) else {
        return Err(Error::Cut { what });
    };
    let bytes = u64::from_be_bytes(size);
    if bytes > limit {
        return Err(Error::TooLarge { what, bytes, limit });
    }
    let stream = packed.get(12..).unwrap_or_default();
    drain(flate2::read::ZlibDecoder::new(stream), what, bytes)
}

/// Unpacks an xz stream (`.gnu_debugdata`).
pub(crate) fn xz(packed: &[u8], what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let kib = u32::try_from(MAX_DICTIONARY >> 10).unwrap_or(u32::MAX);
    drain(lzma_rust2::XzReader::new_mem_limit(packed, false, kib), what, limit)
}
