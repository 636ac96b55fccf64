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
        COMPRESS_ZSTD => zstd(stream, what, bytes),
        other => Err(Error::Unpack { what, reason: format!("compression {other} is not known") }),
    }
}

/// A stream of any number of frames: LLD makes one of each MiB.
fn zstd(stream: &[u8], what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let mut rest = stream;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let decoder =
            ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, MAX_DICTIONARY)
                .map_err(|error| Error::Unpack { what, reason: error.to_string() })?;
        let room = limit.saturating_sub(u64::try_from(all.len()).unwrap_or(u64::MAX));
        all.append(&mut drain(decoder, what, room)?);
    }
    Ok(all)
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

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// A section as LLD writes it, with a frame for each part.
    fn of_frames(parts: &[&[u8]]) -> Vec<u8> {
        let mut packed = vec![0; 24];
        packed[..4].copy_from_slice(&COMPRESS_ZSTD.to_le_bytes());
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        packed[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
        for part in parts {
            packed.extend(compress_to_vec(*part, CompressionLevel::Fastest));
        }
        packed
    }

    #[test]
    fn a_section_of_several_zstd_frames_is_read_to_its_end() {
        let parts: [&[u8]; 3] = [&[7; 300_000], b"debug", &[9; 200_000]];
        let packed = of_frames(&parts);
        let read = section(&packed, "x", 1 << 20).expect("it is read");
        assert!(read == parts.concat(), "{} bytes", read.len());
        // Neither one that states less than it has, nor one that is cut.
        let mut less = packed.clone();
        less[8..16].copy_from_slice(&300_001u64.to_le_bytes());
        assert!(matches!(section(&less, "x", 1 << 20), Err(Error::TooLarge { .. })));
        let cut = &packed[..packed.len() - 3];
        assert!(matches!(section(cut, "x", 1 << 20), Err(Error::Unpack { .. })));
    }
}
