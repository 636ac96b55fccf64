//! Tables of (address range → value), delta-coded as varints: stack deltas, files, lines, inline
//! indices.
//!
//! Each step is a zigzag value delta and an address delta in units of the pc quantum; a zero value
//! delta that is not the first ends the table (`runtime/symtab.go`, `step`).
//!
//! Invariant: an iterator ends after at most a fixed number of steps per byte of the function it
//! covers, whatever the bytes say, and never yields an empty or backward range.

/// One range of addresses with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcValue {
    pub start: u64,
    pub end: u64,
    pub value: i32,
}

/// Iterates over the ranges of one function, in ascending order.
#[derive(Debug, Clone)]
pub struct PcValues<'a> {
    bytes: &'a [u8],
    at: usize,
    pc: u64,
    end: u64,
    value: i32,
    quantum: u8,
    first: bool,
    idle_steps: u8,
}

/// Steps in a row that do not advance the address. Go's linker writes none.
const MAX_IDLE_STEPS: u8 = 16;

impl<'a> PcValues<'a> {
    /// `bytes` starts at the table; `entry..end` are the function's addresses.
    pub(crate) fn new(bytes: &'a [u8], entry: u64, end: u64, quantum: u8) -> Self {
        Self { bytes, at: 0, pc: entry, end, value: -1, quantum, first: true, idle_steps: 0 }
    }

    pub(crate) fn empty() -> Self {
        Self::new(&[], 0, 0, 1)
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0_u32;
        for shift in [0_u32, 7, 14, 21, 28] {
            let byte = *self.bytes.get(self.at)?;
            self.at = self.at.checked_add(1)?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn step(&mut self) -> Option<PcValue> {
        let zigzag = self.varint()?;
        if zigzag == 0 && !self.first {
            return None;
        }
        self.first = false;
        let delta = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
        self.value = self.value.wrapping_add(delta);
        let advance = u64::from(self.varint()?).checked_mul(u64::from(self.quantum))?;
        let start = self.pc;
        self.pc = start.checked_add(advance)?;
        Some(PcValue { start, end: self.pc.min(self.end), value: self.value })
    }

    /// The value at `pc`.
    pub(crate) fn value_at(mut self, pc: u64) -> Option<i32> {
        self.find(|range| pc < range.end).map(|range| range.value)
    }
}

impl Iterator for PcValues<'_> {
    type Item = PcValue;

    fn next(&mut self) -> Option<PcValue> {
        while self.pc < self.end && self.idle_steps < MAX_IDLE_STEPS {
            let Some(range) = self.step() else {
                self.idle_steps = MAX_IDLE_STEPS;
                return None;
            };
            if range.start < range.end {
                self.idle_steps = 0;
                return Some(range);
            }
            self.idle_steps = self.idle_steps.saturating_add(1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], end: u64) -> Vec<(u64, u64, i32)> {
        PcValues::new(bytes, 100, end, 1)
            .map(|range| (range.start, range.end, range.value))
            .collect()
    }

    #[test]
    fn deltas_add_up_from_minus_one() {
        // +1 for 5 bytes, +24 for 10, -24 for the rest; then the end mark.
        assert_eq!(
            all(&[2, 5, 48, 10, 47, 50, 0], 165),
            [(100, 105, 0), (105, 115, 24), (115, 165, 0)]
        );
    }

    #[test]
    fn a_table_never_leaves_its_function() {
        assert_eq!(all(&[2, 5, 48, 100, 2, 2, 0], 110), [(100, 105, 0), (105, 110, 24)]);
    }

    #[test]
    fn a_table_that_stands_still_ends() {
        assert_eq!(all(&[2, 0].repeat(1000), 110), []);
    }

    #[test]
    fn a_varint_without_end_ends_the_table() {
        assert_eq!(all(&[0xff; 64], 110), []);
    }
}
