//! Rules for procedure linkage tables that have no call frame information (lld writes none, and
//! no linker writes any for some of the tables).
//!
//! Entries are recognised by their instructions. Invariant: sixteen bytes at a time, nothing else.

use strata_abi::rule::{Kind, Packed};

use crate::coverage::Proposal;
use crate::elf::{Elf, Section, read_exact};
use crate::limits::Limits;
use crate::rules::Rules;
use strata_bytes::ReadAt;

const NAMES: [&str; 5] = [".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt"];
const ENTRY: u64 = 16;

pub(crate) fn propose<R: ReadAt + ?Sized>(
    elf: &Elf,
    source: &R,
    limits: &Limits,
    rules: &mut Rules,
) -> Proposal {
    let mut proposal = Proposal::default();
    // Of all together: headers of many may lie over the same bytes.
    let mut left = limits.max_decoded;
    for name in NAMES {
        for section in elf.sections.iter().filter(|section| section.is_code()) {
            if section.size <= left && elf.name(section) == name.as_bytes() {
                left -= section.size;
                table(section, source, rules, &mut proposal);
            }
        }
    }
    proposal
}

fn table<R: ReadAt + ?Sized>(
    section: &Section,
    source: &R,
    rules: &mut Rules,
    proposal: &mut Proposal,
) {
    let Ok(bytes) = read_exact(source, section.offset, section.size as usize) else { return };
    let after_call = rules.packed(frame(8));
    let first = proposal.rows.len();
    for (entry, address) in bytes.chunks(ENTRY as usize).zip((section.address..).step_by(16)) {
        let mut add = |offset: u64, rule: u16| {
            let pc = address.saturating_add(offset);
            match proposal.rows.last() {
                Some((_, last)) if proposal.rows.len() > first && *last == rule => {}
                _ => proposal.rows.push((pc, rule)),
            }
        };
        match entry {
            // push link_map(%rip); jmp *resolver: the index is on the stack already.
            [0xff, 0x35, ..] => {
                add(0, rules.packed(frame(16)));
                add(6, rules.packed(frame(24)));
            }
            // jmp *got; push index; jmp first entry
            [0xff, 0x25, _, _, _, _, 0x68, ..] => add(0, rules.packed(Packed::plt(11))),
            // endbr64; push index; (bnd) jmp first entry
            [0xf3, 0x0f, 0x1e, 0xfa, 0x68, ..] => add(0, rules.packed(Packed::plt(9))),
            // push index; (bnd) jmp first entry
            [0x68, ..] => add(0, rules.packed(Packed::plt(5))),
            _ => add(0, after_call),
        }
    }
    proposal.close(section.address, section.end(), first);
}

fn frame(cfa: u32) -> Packed {
    Packed::frame(Kind::Sp, cfa, 0, 0).unwrap_or(Packed::NONE)
}
