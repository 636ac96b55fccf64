//! Pauses for garbage collections, in the report of a recording.

use std::io::Write;
use std::time::Duration;

use strata_profile::pauses::{OfCollections, OfFunction, Pauses, Sum};
use strata_profile::text::{sanitize_for_terminal, shortened};

use crate::printing::grouped;
use crate::terminal::{cut, print_more};

/// The `gc type` of a pause in which the server collector changes its number of heaps.
const HEAP_COUNT_CHANGE: &str = "HeapCountChange";

/// The share of the time, the longest, then a list by collection and one by function. `length`: of
/// the recording, if the pauses are of one process.
pub fn print(
    pauses: &Pauses,
    length: Option<Duration>,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if pauses.collections.is_empty() {
        return Ok(());
    }
    let longest = format!("the longest took {}", milliseconds(pauses.all.longest));
    match length {
        Some(length) => {
            let percent = 100.0 * pauses.all.time as f64 / length.as_nanos().max(1) as f64;
            writeln!(out, "the process was paused {percent:.1} % of the time; {longest}")?;
        }
        None => writeln!(out, "{longest}")?,
    }
    writeln!(out, "\n  time  pauses       mean    longest  collections")?;
    for one in &pauses.collections {
        writeln!(out, "{}", cut(&line(one.percent, &one.sum, &described(one)), width))?;
    }
    print_more(38, pauses.more_collections, out)?;
    writeln!(out, "\n  time  pauses       mean    longest  function")?;
    for one in &pauses.functions {
        writeln!(out, "{}", cut(&line(one.percent, &one.sum, &named(one)), width))?;
    }
    print_more(38, pauses.more_functions, out)
}

fn line(percent: f64, sum: &Sum, what: &str) -> String {
    let pauses = grouped(u64::try_from(sum.pauses).unwrap_or(0));
    let (mean, longest) = (milliseconds(sum.mean()), milliseconds(sum.longest));
    format!("{percent:5.1}% {pauses:>7} {mean:>10} {longest:>10}  {what}")
}

fn milliseconds(nanoseconds: i64) -> String {
    format!("{:.2} ms", nanoseconds as f64 / 1e6)
}

fn described(one: &OfCollections) -> String {
    if one.generation.is_empty() && one.kind == HEAP_COUNT_CHANGE {
        return "heap count change (no collection)".to_owned();
    }
    let generation = match one.generation.as_str() {
        "" => "generation unknown".to_owned(),
        generation => format!("generation {generation}"),
    };
    let mut text = generation;
    for more in [&one.reason, &one.kind].into_iter().filter(|more| !more.is_empty()) {
        text = format!("{text}, {}", sanitize_for_terminal(more));
    }
    text
}

fn named(one: &OfFunction) -> String {
    let module = match one.module.as_str() {
        "" => String::new(),
        module => format!("  ({})", sanitize_for_terminal(module)),
    };
    let name = if one.name.is_empty() { "(unknown)" } else { &one.name };
    format!("{}{module}", shortened(&sanitize_for_terminal(name), 90))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_without_a_collection_is_described_as_such() {
        let of = |generation: &str, kind: &str| OfCollections {
            generation: generation.to_owned(),
            reason: String::new(),
            kind: kind.to_owned(),
            sum: Sum::default(),
            percent: 0.0,
        };
        assert_eq!(described(&of("", HEAP_COUNT_CHANGE)), "heap count change (no collection)");
        assert_eq!(described(&of("2", "BackgroundGC")), "generation 2, BackgroundGC");
        assert_eq!(described(&of("", "")), "generation unknown");
    }
}
