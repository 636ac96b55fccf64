//! From precompiled code back to IL: where in a method's code its statements begin.
//!
//! Every method has a list of native and IL offsets; methods with equal lists share one. It is
//! written in nibbles, of which the highest bit marks that the number goes on; since major version
//! 16 its entries are packed into as many bits as the largest needs.
//!
//! Invariant: a list has no more entries than its bytes can hold, and than [`MOST_ENTRIES`].
//!
//! References: `docs/design/coreclr/botr/readytorun-format.md`, `src/coreclr/vm/debuginfostore.cpp`.

use super::native_format::{SparseArray, unsigned};
use strata_bytes::index;

/// What IL offsets are counted from: the lowest value that is none (`ICorDebugInfo::EPILOG`).
const LOWEST: i32 = -3;

/// Statements and calls of one method.
const MOST_ENTRIES: usize = 1 << 16;

/// The table of an image.
#[derive(Debug)]
pub(crate) struct DebugInfo {
    bytes: Vec<u8>,
    major_version: u16,
}

impl DebugInfo {
    pub fn new(bytes: Vec<u8>, major_version: u16) -> Self {
        Self { bytes, major_version }
    }

    /// The list of the method whose first runtime function this is: native and IL offsets.
    pub fn il_map(&self, function: u32) -> Option<Vec<(u32, i32)>> {
        let at = SparseArray::new(&self.bytes)?.get(function)?;
        let (back, after) = unsigned(&self.bytes, at)?;
        let start = if back == 0 { after } else { at.checked_sub(index(back))? };
        let bytes = self.bytes.get(start..)?;
        let mut header = Nibbles::new(bytes);
        let mut length = header.number()?;
        let mut further = 1;
        if length == 0 && self.major_version >= 17 {
            length = header.number()?;
            further = 5;
        }
        for _ in 0..further {
            header.number()?;
        }
        let start = header.next_byte();
        let list = bytes.get(start..start.checked_add(index(length))?)?;
        match self.major_version {
            0..16 => plain(list),
            16 => packed(list, 2),
            17.. => packed(list, 3),
        }
    }
}

/// Entries of three numbers.
fn plain(list: &[u8]) -> Option<Vec<(u32, i32)>> {
    let mut numbers = Nibbles::new(list);
    let count = index(numbers.number()?);
    // Three nibbles at least.
    if count > list.len().min(MOST_ENTRIES) {
        return None;
    }
    let mut native = 0_u32;
    let entries = (0..count).map(|_| {
        native = native.wrapping_add(numbers.number()?);
        let il = il_offset(numbers.number()?);
        let _how = numbers.number()?;
        Some((native, il))
    });
    entries.collect()
}

/// Entries of a kind, a distance and an IL offset, each of its number of bits.
fn packed(list: &[u8], kind_bits: u32) -> Option<Vec<(u32, i32)>> {
    let mut header = Nibbles::new(list);
    let count = index(header.number()?);
    let mut width = || header.number()?.checked_add(1).filter(|bits| *bits <= 32);
    let (native_bits, il_bits) = (width()?, width()?);
    let bits = index(kind_bits + native_bits + il_bits);
    let list = list.get(header.next_byte()..)?;
    if count > MOST_ENTRIES || count.checked_mul(bits)? > list.len().checked_mul(8)? {
        return None;
    }
    let mut native = 0_u32;
    let entries = (0..count).map(|number| {
        let at = number * bits + index(kind_bits);
        native = native.wrapping_add(bits_at(list, at, native_bits)?);
        let il = il_offset(bits_at(list, at + index(native_bits), il_bits)?);
        Some((native, il))
    });
    entries.collect()
}

/// Up to 32 bits, the lowest first.
fn bits_at(bytes: &[u8], at: usize, count: u32) -> Option<u32> {
    let some = bytes.get(at / 8..)?;
    let mut word = 0_u64;
    for (position, byte) in some.iter().take(5).enumerate() {
        word |= u64::from(*byte) << (position * 8);
    }
    let value = (word >> (at % 8)) & ((1_u64 << count) - 1);
    u32::try_from(value).ok()
}

fn il_offset(number: u32) -> i32 {
    number.cast_signed().wrapping_add(LOWEST)
}

/// Numbers of three bits a nibble, the highest first; the low nibble of a byte comes first.
struct Nibbles<'a> {
    bytes: &'a [u8],
    next: usize,
}

impl<'a> Nibbles<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, next: 0 }
    }

    fn nibble(&mut self) -> Option<u32> {
        let byte = u32::from(*self.bytes.get(self.next / 2)?);
        let nibble = if self.next.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        self.next += 1;
        Some(nibble)
    }

    fn number(&mut self) -> Option<u32> {
        const MOST_NIBBLES: u32 = 11;
        let mut value = 0_u32;
        for _ in 0..MOST_NIBBLES {
            let nibble = self.nibble()?;
            value = value << 3 | nibble & 7;
            if nibble & 8 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// The first byte of which nothing was read.
    fn next_byte(&self) -> usize {
        self.next.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nibbles as the compiler writes them.
    fn nibbles(numbers: &[u32]) -> Vec<u8> {
        let mut all = Vec::new();
        for number in numbers {
            let digits = (32 - number.leading_zeros()).div_ceil(3).max(1);
            for digit in (0..digits).rev() {
                let more = if digit > 0 { 8 } else { 0 };
                all.push((number >> (digit * 3) & 7) as u8 | more);
            }
        }
        all.chunks(2).map(|two| two[0] | two.get(1).unwrap_or(&0) << 4).collect()
    }

    #[test]
    fn numbers_have_three_bits_a_nibble() {
        let bytes = nibbles(&[5, 8, 0x1234_5678]);
        let mut read = Nibbles::new(&bytes);
        assert_eq!([read.number(), read.number(), read.number()], [5, 8, 0x1234_5678].map(Some));
        assert_eq!(Nibbles::new(&[0xff; 20]).number(), None, "it has no end");
    }

    #[test]
    fn a_plain_list_has_distances_and_biased_offsets() {
        let list = nibbles(&[3, 0, 1, 0, 7, 3, 1, 300, 45, 1]);
        assert_eq!(plain(&list), Some(vec![(0, -2), (7, 0), (307, 42)]));
        assert_eq!(plain(&nibbles(&[5000, 0, 1, 0])), None, "more than there is");
    }

    #[test]
    fn a_packed_list_has_as_many_bits_as_its_header_says() {
        let mut list = nibbles(&[2, 8, 6]);
        // Kind of 2 bits, distance of 9, offset of 7.
        let entries = [(1_u64, 5_u64, 1_u64), (2, 300, 45)];
        let mut word = 0_u64;
        for (number, (kind, distance, il)) in entries.iter().enumerate() {
            word |= (kind | distance << 2 | il << 11) << (number * 18);
        }
        list.extend(word.to_le_bytes());
        assert_eq!(packed(&list, 2), Some(vec![(5, -2), (305, 42)]));
        assert_eq!(packed(&nibbles(&[2000, 8, 6]), 2), None);
        assert_eq!(packed(&nibbles(&[1, 40, 6]), 2), None);
    }
}
