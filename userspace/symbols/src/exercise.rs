//! Entry points for fuzzers: each does with bytes all that strata does with such a file.
//!
//! Invariant: each returns for every input.

use crate::{ElfFile, JitDump, KernelSymbols, Options, PerfMap, Resolver, debug_files};

pub use strata_golang::exercise::line_table;

/// An ELF file: headers, notes, symbols, stubs, Go, DWARF. Returns the number of frames found.
#[must_use]
pub fn elf(bytes: &[u8]) -> usize {
    let Ok(file) = ElfFile::open(&bytes) else {
        return 0;
    };
    let _ = (file.build_id(), file.debug_link(), file.features());
    let _ = debug_files::accept(&bytes, Some(&[1; 20]), None);
    let mut addresses = vec![0, 1, file.entry, u64::MAX];
    for (start, end) in file.code_ranges().into_iter().take(64) {
        let step = end.saturating_sub(start).checked_div(64).unwrap_or(0).max(1);
        let mut address = start;
        for _ in 0..64 {
            addresses.push(address);
            address = address.saturating_add(step);
        }
    }
    for offset in [0, 0x1000, 0x12345] {
        addresses.extend(file.address_of(offset));
    }
    addresses.sort_unstable();
    let options =
        Options { dwarf_limit: 64 << 20, mini_debug_limit: 16 << 20, ..Options::default() };
    let mut frames = 0_usize;
    for debug in [None, Some(&bytes as &dyn crate::ReadAt)] {
        if let Ok(mut resolver) = Resolver::new(&bytes, debug, options) {
            let found = resolver.resolve(&addresses);
            frames = found.iter().fold(frames, |sum, found| sum.saturating_add(found.frames.len()));
        }
    }
    frames
}

/// A perf map, fed in pieces. Returns the number of functions.
#[must_use]
pub fn perf_map(bytes: &[u8]) -> usize {
    let mut map = PerfMap::with_limits(1000, 1 << 20);
    for piece in bytes.chunks(61) {
        map.feed(piece);
    }
    for address in [0, 0x1000, u64::MAX] {
        let _ = map.lookup(address);
    }
    map.len()
}

/// A jitdump, fed in pieces. Returns the number of functions.
#[must_use]
pub fn jitdump(bytes: &[u8]) -> usize {
    let mut dump = JitDump::default();
    for piece in bytes.chunks(61) {
        if dump.feed(piece).is_err() {
            break;
        }
    }
    for address in [0, 0x1000, u64::MAX] {
        let _ = dump.lookup(address);
    }
    dump.len()
}

/// `/proc/kallsyms`. Returns the number of functions.
#[must_use]
pub fn kallsyms(bytes: &[u8]) -> usize {
    KernelSymbols::parse(bytes).map_or(0, |symbols| {
        let _ = symbols.lookup(0xffff_ffff_8100_0000);
        symbols.len()
    })
}
