//! Two places that matter in every program, known by what they are: the signal restorer (musl's
//! and Go's have no call frame information) and the entry point.
//!
//! Invariant: only code that nothing describes is looked at.

use strata_layout::rule::Packed;

use crate::coverage::{Coverage, Proposal};
use crate::elf::Elf;
use crate::limits::Limits;
use crate::read::ReadAt;
use crate::rules::Rules;

/// `mov $15, %rax; syscall`: `rt_sigreturn`, which only a restorer calls.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Instructions of an entry function before it calls the first function of the C library.
const ENTRY_BYTES: u64 = 40;
/// Code is read this much at a time.
const CHUNK: u64 = 1 << 20;

pub(crate) fn propose<R: ReadAt + ?Sized>(
    elf: &Elf,
    source: &R,
    covered: &Coverage,
    limits: &Limits,
    rules: &mut Rules,
) -> Proposal {
    let mut proposal = Proposal::default();
    let signal = rules.packed(Packed::SIGNAL);
    let mut budget = limits.max_decoded;
    for gap in &covered.gaps {
        let mut start = gap.start;
        while start < gap.end && budget > 0 {
            let size = (gap.end - start).min(CHUNK).min(budget);
            budget -= size;
            let bytes = elf.read_address(source, start, size as usize).unwrap_or_default();
            for (offset, window) in bytes.windows(RESTORER.len()).enumerate() {
                if window == RESTORER {
                    let at = start + offset as u64;
                    // The return address into a restorer is its first byte, and callers are
                    // looked up by the byte before.
                    let end = at + RESTORER.len() as u64;
                    proposal.single(at.saturating_sub(1), end, signal);
                }
            }
            // Chunks overlap, so that none of them splits the pattern.
            start += if size == CHUNK { size - RESTORER.len() as u64 } else { size };
        }
    }
    if elf.entry != 0 {
        let end = elf.entry.saturating_add(ENTRY_BYTES);
        proposal.single(elf.entry, end, rules.packed(Packed::END));
    }
    proposal
}
