//! Names of kernel addresses, with modules and BPF programs, from `/proc/kallsyms`.
//!
//! The table has some 200,000 lines and a recording wants a few hundred of them: lines are passed
//! by on their addresses alone, and only the nearest below each wanted address are parsed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

use strata_profile::FrameKind;
use strata_symbols::KernelSymbols;
use strata_symbols::kallsyms::Builder;

use super::NamedFrame;

/// The functions that the wanted addresses are in; the error says what to do.
pub fn functions(
    wanted: impl Iterator<Item = u64>,
) -> Result<Vec<(Range<u64>, NamedFrame)>, String> {
    let mut wanted: Vec<u64> = wanted.collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    wanted.sort_unstable();
    wanted.dedup();
    let failed = |error| format!("/proc/kallsyms cannot be read: {error}");
    let file = File::open("/proc/kallsyms").map_err(failed)?;
    let found = nearest(BufReader::with_capacity(256 << 10, file), &wanted).map_err(failed)?;
    let symbols = found.builder.finish().map_err(|error| error.to_string())?;
    let functions = wanted
        .iter()
        .zip(found.ranges)
        .filter_map(|(address, range)| Some((range, name(&symbols, *address)?)));
    Ok(functions.collect())
}

/// Lines of one address below a wanted one.
#[derive(Default)]
struct Nearest {
    address: u64,
    lines: Vec<u8>,
}

struct Found {
    builder: Builder,
    /// For each wanted address: from the nearest symbol below it to the next above.
    ranges: Vec<Range<u64>>,
}

/// `wanted` is sorted.
fn nearest(mut table: impl BufRead, wanted: &[u64]) -> std::io::Result<Found> {
    let mut found: Vec<Nearest> = wanted.iter().map(|_| Nearest::default()).collect();
    // The lowest symbol in each gap between wanted addresses, and above the last.
    let mut lowest = vec![u64::MAX; wanted.len() + 1];
    let mut line = Vec::new();
    let mut any = Vec::new();
    loop {
        line.clear();
        if table.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let Some(address) = address_of(&line) else { continue };
        if any.is_empty() {
            any.clone_from(&line);
        }
        // The first wanted address from here on; what lies beyond it is settled at the end.
        let next = wanted.partition_point(|wanted| *wanted < address);
        if let Some(lowest) = lowest.get_mut(next) {
            *lowest = address.min(*lowest);
        }
        let Some(best) = found.get_mut(next) else { continue };
        if address > best.address {
            best.address = address;
            best.lines.clear();
        }
        if address == best.address {
            best.lines.extend_from_slice(&line);
        }
    }
    let mut builder = Builder::default();
    // Without wanted lines the table's first line still tells whether addresses are hidden.
    builder.feed(&any);
    for nearest in &found {
        builder.feed(&nearest.lines);
    }
    // The nearest of all below, and of all above: gaps without a symbol have that of others.
    let mut below = 0;
    let starts: Vec<u64> = found
        .iter()
        .map(|nearest| {
            below = below.max(nearest.address);
            below
        })
        .collect();
    let mut above = u64::MAX;
    let mut ends: Vec<u64> = (1..=wanted.len())
        .rev()
        .map(|gap| {
            above = lowest.get(gap).copied().unwrap_or(u64::MAX).min(above);
            above
        })
        .collect();
    ends.reverse();
    let ranges = starts.into_iter().zip(ends).map(|(start, end)| start..end).collect();
    Ok(Found { builder, ranges })
}

/// The address of a line that names code.
fn address_of(line: &[u8]) -> Option<u64> {
    let (digits, rest) = line.split_at_checked(16)?;
    if !matches!(rest, [b' ', b't' | b'T' | b'w' | b'W', b' ', ..]) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

fn name(symbols: &KernelSymbols, address: u64) -> Option<NamedFrame> {
    let symbol = symbols.lookup(address)?;
    let mut frame = NamedFrame::plain(FrameKind::Kernel, &symbol.frame_name());
    if symbol.raw_name != &*frame.name {
        frame.system_name = symbol.raw_name.into();
    }
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ffffffff81000000 T _stext\n\
        ffffffff81000100 t helper\n\
        ffffffff81000100 T do_work\n\
        ffffffff81000180 d some_data\n\
        ffffffff81000200 T later\n\
        ffffffffc0000000 t in_module\t[mod]\n\
        ffffffff81000150 t out_of_order\n";

    #[test]
    fn the_nearest_symbol_below_an_address_is_found_in_any_order() {
        let wanted = [0xffff_ffff_8100_0160, 0xffff_ffff_8100_01ff, 0xffff_ffff_c000_0010];
        let found = nearest(TABLE.as_bytes(), &wanted).expect("readable");
        let out_of_order = 0xffff_ffff_8100_0150..0xffff_ffff_8100_0200;
        let in_module = 0xffff_ffff_c000_0000..u64::MAX;
        assert_eq!(found.ranges, [out_of_order.clone(), out_of_order, in_module]);
        let symbols = found.builder.finish().expect("addresses are shown");
        let name_at = |address| name(&symbols, address).map(|frame| frame.name.to_string());
        assert_eq!(name_at(wanted[0]).as_deref(), Some("out_of_order"));
        assert_eq!(name_at(wanted[1]).as_deref(), Some("out_of_order"));
        assert_eq!(name_at(wanted[2]).as_deref(), Some("in_module [mod]"));
    }

    #[test]
    fn the_kernels_own_table_gives_the_same_names_as_when_it_is_read_whole() {
        let text = std::fs::read("/proc/kallsyms").expect("every Linux has it");
        let Ok(whole) = KernelSymbols::parse(&text) else {
            eprintln!("skipped: addresses are hidden from this user (kernel.kptr_restrict)");
            return;
        };
        let addresses: Vec<u64> = text
            .split(|byte| *byte == b'\n')
            .filter_map(address_of)
            .step_by(97)
            .map(|address| address + 3)
            .collect();
        let mut addresses = addresses;
        addresses.sort_unstable();
        let some = nearest(text.as_slice(), &addresses).expect("readable");
        let some = some.builder.finish().expect("addresses are shown");
        for address in addresses {
            assert_eq!(name(&some, address), name(&whole, address), "{address:x}");
        }
    }
}
