//! Parts of the product by themselves: how fast unwind tables are built, and addresses symbolized.
//!
//! The only module of this crate that calls the product's libraries.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use object::{Object, ObjectSection, SectionKind};
use serde::Serialize;
use strata_symbols::{FileAt, Options, Resolver};
use strata_unwind::Limits;

use crate::places;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Component {
    pub name: String,
    pub input: String,
    pub figure: String,
    /// The same as a number, in the unit the figure names.
    pub value: f64,
}

/// Measures all of them.
pub fn measure() -> Result<Vec<Component>> {
    let mut found = Vec::new();
    for path in inputs() {
        eprintln!("{} …", path.display());
        found.extend(unwind_table(&path).with_context(|| format!("tables of {}", path.display()))?);
        found.extend(symbols(&path).with_context(|| format!("symbols of {}", path.display()))?);
    }
    Ok(found)
}

/// A small library, a runtime's, and a program of 90 MB and more.
fn inputs() -> Vec<PathBuf> {
    let mut candidates = vec![PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6")];
    if let Ok(cache) = places::cache("dotnet") {
        candidates.push(cache.join("9/shared/Microsoft.NETCore.App/9.0.7/libcoreclr.so"));
    }
    candidates.extend(places::program(&["node"]));
    if let Ok(done) = std::process::Command::new("rustc").args(["--print", "sysroot"]).output() {
        let folder = PathBuf::from(String::from_utf8_lossy(&done.stdout).trim()).join("lib");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        candidates.extend(entries.filter(|p| p.to_string_lossy().contains("librustc_driver")));
    }
    candidates.into_iter().filter(|p| p.is_file()).collect()
}

fn best_of<T>(times: u32, mut work: impl FnMut() -> Result<T>) -> Result<(Duration, T)> {
    let mut best: Option<(Duration, T)> = None;
    for _ in 0..times {
        let start = Instant::now();
        let result = work()?;
        let elapsed = start.elapsed();
        if best.as_ref().is_none_or(|(time, _)| elapsed < *time) {
            best = Some((elapsed, result));
        }
    }
    best.context("at least one try")
}

fn unwind_table(path: &std::path::Path) -> Result<Vec<Component>> {
    let (time, table) = best_of(3, || {
        let reader = FileAt::new(File::open(path)?)?;
        Ok(strata_unwind::build(&reader, &Limits::default())?)
    })?;
    let (rows, bytes) = (table.row_count(), table.kernel_bytes());
    let milliseconds = time.as_secs_f64() * 1e3;
    let per_row = bytes as f64 / rows.max(1) as f64;
    let rules = table.rules.len();
    Ok(vec![
        component(
            path,
            "unwind table",
            milliseconds,
            format!("{milliseconds:.1} ms, {rows} rows, {rules} rules"),
        ),
        component(
            path,
            "unwind table size",
            per_row,
            format!("{per_row:.2} bytes a row, {:.2} MB", bytes as f64 / 1e6),
        ),
    ])
}

const ADDRESSES: u64 = 20_000;

fn symbols(path: &std::path::Path) -> Result<Vec<Component>> {
    let addresses = addresses(path)?;
    let file = FileAt::new(File::open(path)?)?;
    let start = Instant::now();
    let mut resolver = Resolver::new(&file, None, Options::default())?;
    let cold = resolver.resolve(&addresses);
    let cold_time = start.elapsed();
    let (warm_time, _) = best_of(3, || Ok(resolver.resolve(&addresses)))?;
    let named = cold.iter().filter(|r| !r.frames.is_empty()).count();
    let rate = |time: Duration| addresses.len() as f64 / time.as_secs_f64();
    let text = format!("{:.0} addresses/s, {named} of {} named", rate(cold_time), addresses.len());
    Ok(vec![
        component(path, "symbols, cold", rate(cold_time), text),
        component(
            path,
            "symbols, warm",
            rate(warm_time),
            format!("{:.0} addresses/s", rate(warm_time)),
        ),
    ])
}

/// Addresses spread over the text, the same in every run.
fn addresses(path: &std::path::Path) -> Result<Vec<u64>> {
    let bytes = std::fs::read(path)?;
    let elf = object::File::parse(bytes.as_slice())?;
    let texts = elf.sections().filter(|s| s.kind() == SectionKind::Text);
    let text = texts.max_by_key(|s| s.size()).context("a text section")?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.address() + state % text.size().max(1)
    };
    Ok((0..ADDRESSES).map(|_| next()).collect())
}

fn component(path: &std::path::Path, name: &str, value: f64, figure: String) -> Component {
    let megabytes = std::fs::metadata(path).map_or(0, |m| m.len()) as f64 / 1e6;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Component {
        name: name.to_string(),
        input: format!("{file} ({megabytes:.0} MB)"),
        figure,
        value,
    }
}
