//! `/tmp/perf-PID.map`: what just-in-time compilers write for perf. A line per function: start and
//! size in hexadecimal, then the name, which may hold spaces.
//!
//! The file grows while the program runs, so it is fed as it grows. Later lines win: code space is
//! used again. A line that is not complete waits for its rest.
//!
//! Invariant: any text is fine; lines that are none are counted and passed over.

use crate::jit_ranges::JitRanges;
use strata_bytes::bounded_text;

const MAX_LINE: usize = 8192;
const MAX_FUNCTIONS: usize = 500_000;
const MAX_NAMES: usize = 64 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub struct PerfMap {
    ranges: JitRanges,
    partial: Vec<u8>,
    /// Lines that are no entries.
    pub damaged_lines: u64,
    /// Entries dropped for lack of room.
    pub dropped: u64,
}

impl Default for PerfMap {
    fn default() -> Self {
        Self::with_limits(MAX_FUNCTIONS, MAX_NAMES)
    }
}

impl PerfMap {
    #[must_use]
    pub fn with_limits(functions: usize, name_bytes: usize) -> Self {
        Self {
            ranges: JitRanges::new(functions, name_bytes),
            partial: Vec::new(),
            damaged_lines: 0,
            dropped: 0,
        }
    }

    /// Takes the next bytes of the file.
    pub fn feed(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = piece.split_at(end);
            piece = rest.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(line);
            } else {
                self.keep(line);
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole);
            }
        }
        self.keep(piece);
    }

    /// An unfinished line: the part beyond the longest name is dropped.
    fn keep(&mut self, piece: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.partial.len());
        self.partial.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    fn line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return;
        }
        let Some((start, size, name)) = entry(line) else {
            self.damaged_lines = self.damaged_lines.saturating_add(1);
            return;
        };
        if !self.ranges.insert(start, size, &bounded_text(name), 0) {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// The name of the function at `address`.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<&str> {
        self.ranges.find(address).map(|found| found.name)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.len() == 0
    }

    /// The memory held, in bytes, nearly.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.ranges.memory()
    }
}

fn entry(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (start, rest) = word(line)?;
    let (size, name) = word(rest)?;
    let name = name.trim_ascii();
    (!name.is_empty()).then_some(())?;
    Some((number(start)?, number(size)?, name))
}

fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace)?;
    text.split_at_checked(end)
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits);
    // `from_str_radix` takes a sign, which is none of the format's.
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_with_spaces_and_prefixes() {
        let mut map = PerfMap::default();
        map.feed(
            b"3ef414c0 398 LazyCompile:*run /srv/app.js:12\n0x7f00 0x10 Lcom/shop/Order;::pay\r\n",
        );
        assert_eq!(map.lookup(0x3ef4_14c0 + 0x397), Some("LazyCompile:*run /srv/app.js:12"));
        assert_eq!(map.lookup(0x3ef4_14c0 + 0x398), None);
        assert_eq!(map.lookup(0x7f08), Some("Lcom/shop/Order;::pay"));
    }

    #[test]
    fn a_cut_line_waits_for_its_rest() {
        let mut map = PerfMap::default();
        map.feed(b"1000 10 first\n2000 10 sec");
        assert_eq!((map.lookup(0x1008), map.lookup(0x2008)), (Some("first"), None));
        map.feed(b"ond\n");
        assert_eq!(map.lookup(0x2008), Some("second"));
    }

    #[test]
    fn later_lines_win_where_code_space_is_used_again() {
        let mut map = PerfMap::default();
        map.feed(b"1000 100 old\n1040 20 new\n1000 10 newest\n");
        assert_eq!(map.lookup(0x1004), Some("newest"));
        assert_eq!(map.lookup(0x1020), Some("old"));
        assert_eq!(map.lookup(0x1050), Some("new"));
    }

    #[test]
    fn garbage_is_counted_and_passed_over() {
        let mut map = PerfMap::default();
        map.feed(b"\n\xff\xfe\nno numbers here\n1000\n1000 10\n1000 10 \n-1 10 x\n2000 10 good\n");
        map.feed(b"3000 ffffffffffffffff all\n4000 0 nothing\n");
        assert_eq!(map.lookup(0x2000), Some("good"));
        assert_eq!(map.len(), 1);
        assert_eq!((map.damaged_lines, map.dropped), (6, 2));
    }

    #[test]
    fn a_line_without_end_does_not_pile_up() {
        let mut map = PerfMap::default();
        for _ in 0..100 {
            map.feed(&[b'a'; 4096]);
        }
        assert!(map.partial.len() <= MAX_LINE);
        map.feed(b"\n1000 10 good\n");
        assert_eq!(map.lookup(0x1000), Some("good"));
    }
}
