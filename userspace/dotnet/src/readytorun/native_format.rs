//! The "native format": sparse arrays and hash tables of precompiled images.
//!
//! Offsets are within the section that holds them. Invariant: a look-up reads a bounded number of
//! bytes, and listing a table no more entries than its caller allows.
//!
//! References: `docs/design/coreclr/botr/readytorun-format.md` ("Native Format"),
//! `src/coreclr/vm/nativeformatreader.h`.

use strata_bytes::{array, index, u16_at, u32_at};

/// A number of one to five bytes and the offset behind it; the lowest bits say how many bytes.
pub(crate) fn unsigned(bytes: &[u8], offset: usize) -> Option<(u32, usize)> {
    let first = *bytes.get(offset)?;
    let after = |length: usize| offset.checked_add(length);
    Some(match first.trailing_ones() {
        0 => (u32::from(first >> 1), after(1)?),
        1 => (u32::from(u16_at(bytes, offset)? >> 2), after(2)?),
        2 => {
            let [low, middle, high] = array(bytes, offset)?;
            (u32::from_le_bytes([low, middle, high, 0]) >> 3, after(3)?)
        }
        3 => (u32_at(bytes, offset)? >> 4, after(4)?),
        4 => (u32_at(bytes, after(1)?)?, after(5)?),
        _ => return None,
    })
}

/// The same, signed.
fn signed(bytes: &[u8], offset: usize) -> Option<(i32, usize)> {
    let (value, after) = unsigned(bytes, offset)?;
    let bits = match after.checked_sub(offset)? {
        1 => 7,
        2 => 14,
        3 => 21,
        4 => 28,
        _ => 32,
    };
    let unused = 32_u32.checked_sub(bits)?;
    Some(((value << unused).cast_signed() >> unused, after))
}

/// A number of a width that a table's header chose.
fn entry(bytes: &[u8], base: usize, number: usize, width: u8) -> Option<usize> {
    match width {
        0 => bytes.get(base.checked_add(number)?).copied().map(usize::from),
        1 => u16_at(bytes, base.checked_add(number.checked_mul(2)?)?).map(usize::from),
        _ => u32_at(bytes, base.checked_add(number.checked_mul(4)?)?).map(index),
    }
}

/// The value of an entry point: the index of its first runtime function.
pub(crate) fn entry_point(bytes: &[u8], offset: usize) -> Option<u32> {
    let (value, _) = unsigned(bytes, offset)?;
    // The lowest bit marks that a list of fix-ups follows, the next one that it is elsewhere.
    Some(if value & 1 != 0 { value >> 2 } else { value >> 1 })
}

/// An array in which most numbers may have nothing.
pub(crate) struct SparseArray<'a> {
    bytes: &'a [u8],
    base: usize,
    count: u32,
    width: u8,
}

impl<'a> SparseArray<'a> {
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, base) = unsigned(bytes, 0)?;
        let width = u8::try_from(header & 3).ok()?;
        Some(Self { bytes, base, count: header >> 2, width })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Where the element is.
    pub fn get(&self, number: u32) -> Option<usize> {
        if number >= self.count {
            return None;
        }
        let block = entry(self.bytes, self.base, index(number / 16), self.width)?;
        let mut offset = self.base.checked_add(block)?;
        // A binary tree of 16 leaves; nodes without leaves are left out.
        for bit in [8, 4, 2, 1] {
            let (node, after) = unsigned(self.bytes, offset)?;
            if number & bit != 0 && node & 2 != 0 {
                offset = offset.checked_add(index(node >> 2))?;
            } else if number & bit == 0 && node & 1 != 0 {
                offset = after;
            } else if node & 3 == 0 && node >> 2 == number & 15 {
                return Some(after);
            } else {
                return None;
            }
        }
        Some(offset)
    }
}

/// Where the entries of a hash table are. At most `most` are read, which bounds the cost of
/// overlapping buckets.
pub(crate) fn hash_entries(bytes: &[u8], most: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut visited = 0_usize;
    let Some(header) = bytes.first().copied() else { return found };
    let (shift, width) = (header >> 2, header & 3);
    if shift > 31 || width > 2 {
        return found;
    }
    for bucket in 0..1_usize << shift {
        let bounds = entry(bytes, 1, bucket, width)
            .zip(bucket.checked_add(1).and_then(|next| entry(bytes, 1, next, width)));
        let Some((mut offset, end)) =
            bounds.and_then(|(start, end)| Some((start.checked_add(1)?, end.checked_add(1)?)))
        else {
            return found;
        };
        while offset < end {
            // The low byte of the hash, then how far away the entry is.
            let at = offset.saturating_add(1);
            let Some((distance, after)) = signed(bytes, at) else { break };
            offset = after;
            visited = visited.saturating_add(1);
            if visited > most {
                return found;
            }
            let distance = isize::try_from(distance).unwrap_or(isize::MAX);
            found.extend(at.checked_add_signed(distance).filter(|entry| *entry < bytes.len()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_read() {
        for (bytes, value, signed_value) in [
            (&[0x0a][..], 5, 5),
            (&[0xfe], 127, -1),
            (&[0x01, 0x02], 128, 128),
            (&[0xfd, 0xff], 0x3fff, -1),
            (&[0x03, 0x00, 0x02], 16384, 16384),
            (&[0x07, 0x00, 0x00, 0x02], 0x20_0000, 0x20_0000),
            (&[0x0f, 0x78, 0x56, 0x34, 0x12], 0x1234_5678, 0x1234_5678),
        ] {
            assert_eq!(unsigned(bytes, 0), Some((value, bytes.len())));
            assert_eq!(signed(bytes, 0), Some((signed_value, bytes.len())));
        }
        assert_eq!(unsigned(&[0x1f, 0, 0, 0, 0], 0), None);
        assert_eq!(unsigned(&[0x0f, 0, 0], 0), None);
    }

    #[test]
    fn a_table_whose_buckets_all_hold_everything_is_cut() {
        // 256 buckets of one byte each, every other one from 0 to 254.
        let mut bytes = vec![8 << 2];
        for bucket in 0..=256_usize {
            bytes.push(if bucket % 2 == 0 { 0 } else { 254 });
        }
        bytes.resize(600, 0);
        assert_eq!(hash_entries(&bytes, 1000).len(), 1000);
        // The same with entries outside of the table: those count too.
        let mut bytes = vec![14 << 2 | 1];
        for bucket in 0..=1_usize << 14 {
            bytes.extend_from_slice(&if bucket % 2 == 0 { [0, 0] } else { [0xff, 0xff] });
        }
        bytes.resize(1 << 16, 0x07);
        let before = std::time::Instant::now();
        assert!(hash_entries(&bytes, 1000).len() <= 1000);
        assert!(before.elapsed() < std::time::Duration::from_secs(1));
        assert!(hash_entries(&[0xff; 40], 1000).is_empty());
        assert!(hash_entries(&[], 1000).is_empty());
    }
}
