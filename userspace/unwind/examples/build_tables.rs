//! Builds the unwind tables of files and prints their size and cost:
//! `cargo run --release -p strata-unwind --example build_tables FILE…`

use std::time::Instant;

use strata_unwind::FileAt;
use strata_unwind::{Limits, build, bytes};

const RUNS: usize = 5;

fn main() {
    println!("     rows  rules      bytes  build ms  write ms   read ms  file");
    for path in std::env::args().skip(1) {
        match measure(&path) {
            Ok(line) => println!("{line}  {path}"),
            Err(error) => println!("{path}: {error}"),
        }
    }
}

fn measure(path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let (mut build_ms, mut write_ms, mut read_ms) = (f64::MAX, f64::MAX, f64::MAX);
    let mut line = String::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        let source = FileAt::new(std::fs::File::open(path)?)?;
        let table = build(&source, &Limits::default())?;
        build_ms = build_ms.min(started.elapsed().as_secs_f64() * 1e3);
        let started = Instant::now();
        let written = bytes::to_bytes(&table);
        write_ms = write_ms.min(started.elapsed().as_secs_f64() * 1e3);
        let started = Instant::now();
        bytes::from_bytes(&written)?;
        read_ms = read_ms.min(started.elapsed().as_secs_f64() * 1e3);
        line = format!(
            "{:9} {:6} {:10} {build_ms:9.2} {write_ms:9.2} {read_ms:9.2}  pieces {} {:?}",
            table.row_count(),
            table.rules.len(),
            table.kernel_bytes(),
            table.pieces.len(),
            table.statistics,
        );
    }
    Ok(line)
}
