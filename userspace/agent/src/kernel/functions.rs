//! Where functions of the running kernel lie.

use std::io::{self, BufRead, BufReader};
use std::ops::Range;

const PATH: &str = "/proc/kallsyms";

/// The addresses of a function of the kernel itself (not of a module): up to the next symbol.
/// `None` when the kernel does not show its addresses.
pub fn range_of(name: &str) -> Option<Range<u64>> {
    let symbols = BufReader::with_capacity(1 << 16, std::fs::File::open(PATH).ok()?);
    find(symbols, name).ok().flatten()
}

fn find(symbols: impl BufRead, name: &str) -> io::Result<Option<Range<u64>>> {
    let mut addresses = Vec::new();
    let mut start = None;
    for line in symbols.lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(_kind), Some(symbol)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        // What follows are modules.
        if words.next().is_some() {
            break;
        }
        let Ok(address @ 1..) = u64::from_str_radix(address, 16) else { continue };
        if symbol == name {
            start = Some(address);
        }
        addresses.push(address);
    }
    let Some(start) = start else { return Ok(None) };
    let next = addresses.into_iter().filter(|address| *address > start).min();
    Ok(next.map(|next| start..next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_goes_up_to_the_next_symbol() {
        let text = b"ffffffff81000300 T c\nffffffff81000100 T a\nffffffff81000100 t alias\n\
            ffffffff81000200 t b\nffffffffc0000000 t b\t[module]\n";
        let a = find(&text[..], "a").expect("text");
        assert_eq!(a, Some(0xffff_ffff_8100_0100..0xffff_ffff_8100_0200));
        assert_eq!(find(&text[..], "nosuch").expect("text"), None);
        let hidden = b"0000000000000000 T a\n0000000000000000 T b\n";
        assert_eq!(find(&hidden[..], "a").expect("text"), None);
    }

    #[test]
    fn the_scheduler_is_found() {
        let range = range_of("__schedule").expect("root sees the kernel's addresses");
        assert!(range.end - range.start > 100);
    }
}
