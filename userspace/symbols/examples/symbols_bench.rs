//! Measures symbolisation of one file: `symbols_bench FILE [--no-lines] [--count N] [--print]`.
//!
//! Cold is a new resolver that reads and parses all it needs; warm is the same addresses again.

use std::fs::File;
use std::time::Instant;
use strata_symbols::{FileAt, Options, Resolver};

fn peak_kib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or("VmHWM: ?").to_owned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("which file?")?;
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let count: u64 = after("--count").map_or(Ok(10_000), |count| count.parse())?;
    let options = Options {
        lines: !arguments.iter().any(|argument| argument == "--no-lines"),
        ..Options::default()
    };
    let file = FileAt::new(File::open(path)?)?;
    let started = Instant::now();
    let mut resolver = Resolver::new(&file, None, options)?;
    let code = resolver.elf().code_ranges();
    let total: u64 = code.iter().map(|(start, end)| end - start).sum();
    let mut number = 0x9e37_79b9_7f4a_7c15_u64;
    let mut addresses: Vec<u64> = (0..count)
        .map(|_| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            let mut offset = number % total.max(1);
            for (start, end) in &code {
                if offset < end - start {
                    return start + offset;
                }
                offset -= end - start;
            }
            0
        })
        .collect();
    addresses.sort_unstable();
    let first = resolver.resolve(addresses.get(..1).unwrap_or_default());
    let loaded = started.elapsed();
    let found = resolver.resolve(&addresses);
    let cold = started.elapsed();
    let again = Instant::now();
    let warm_found = resolver.resolve(&addresses);
    let warm = again.elapsed();
    assert_eq!(found, warm_found);
    let frames: usize = found.iter().map(|found| found.frames.len()).sum();
    let known = found.iter().filter(|found| !found.frames.is_empty()).count();
    let lines = found
        .iter()
        .filter(|found| found.frames.first().is_some_and(|frame| frame.line.is_some()))
        .count();
    let rate = |duration: std::time::Duration| count as f64 / duration.as_secs_f64();
    println!(
        "{path}: {count} addresses, {known} named, {lines} with a line, {frames} frames\n\
         first address {loaded:?}; cold {:.0}/s, warm {:.0}/s; {}\n{:?}",
        rate(cold),
        rate(warm),
        peak_kib(),
        resolver.report()
    );
    if arguments.iter().any(|argument| argument == "--print") {
        for (address, found) in addresses.iter().zip(&found).take(40) {
            let names: Vec<String> = found
                .frames
                .iter()
                .map(|frame| {
                    let line = frame.line.unwrap_or(0);
                    format!("{} ({}:{line})", frame.name, frame.file.as_deref().unwrap_or("?"))
                })
                .collect();
            println!("{address:#x} {}", names.join(" < "));
        }
    }
    drop(first);
    Ok(())
}
