//! Userspace's search in the kernel's tables: deferred samples are unwound with the same memory
//! that the programs use, so no second copy of any table is kept.

use strata_abi::rule::Packed;
use strata_abi::tables::{Extent, ExtentKind, PAGE_SHIFT, row_rule};
use strata_unwind::unwinder::Lookup;

use super::rule_set::RuleSet;
use super::segments::Segments;

/// Looks up the rule of the code at `address`.
pub fn lookup(extents: &[Extent], segments: &Segments, rules: &RuleSet, address: u64) -> Lookup {
    let after = extents.partition_point(|extent| extent.end <= address);
    let Some(extent) = extents.get(after).filter(|extent| address >= extent.start) else {
        return Lookup::NoMapping;
    };
    if extent.kind == ExtentKind::Unannounced as u32 {
        return Lookup::Rule(strata_abi::rule::Rule::simple(Packed::UNANNOUNCED));
    }
    if extent.kind != ExtentKind::Rows as u32 {
        return Lookup::FramePointer;
    }
    let number = row_of(extent, segments, address.wrapping_sub(extent.bias));
    Lookup::Rule(match number {
        Some(number) => rules.whole(number),
        None => strata_abi::rule::Rule::simple(Packed::NONE),
    })
}

fn row_of(extent: &Extent, segments: &Segments, address: u64) -> Option<u16> {
    let table = segments.memory(extent.segment)?;
    let page = (address >> PAGE_SHIFT).checked_sub(extent.first_page)?;
    if page >= u64::from(extent.pages) {
        return None;
    }
    let entry = extent.index as usize + page as usize;
    let (mut low, mut high) = (table.read(entry)?, table.read(entry + 1)?);
    let low_byte = address as u32 & 0xff;
    while low < high {
        let middle = low + (high - low) / 2;
        if table.read(extent.rows as usize + middle as usize)? & 0xff <= low_byte {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let row = (extent.rows as usize + low as usize).checked_sub(1)?;
    table.read(row).map(row_rule)
}
