//! What is printed for people: tables. Names belong to the profiled programs and are made harmless
//! here.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use strata_profile::difference::{Change, Difference};
use strata_profile::summary;
use strata_profile::text::{duration, grouped, quantity, sanitize_for_terminal, shortened};
use strata_profile::{FrameKind, Profile};
use strata_store::{Answer, Holding};

use crate::printing::print;
use strata_query::when;

/// Characters of a function's name.
const LONGEST: usize = 100;

pub fn written(path: &Path, bytes: u64) {
    if path != Path::new("-") {
        eprintln!("{}  ({} KiB)", path.display(), bytes.div_ceil(1024));
    }
}

/// Of outputs in time: says how many samples have none.
pub fn note_missing_times(profile: &Profile) {
    let Some(counting) = profile.counting_sample_type() else { return };
    let all = u64::try_from(profile.total(counting)).unwrap_or(0);
    let timed = profile.timeline().map_or(0, |ticks| ticks.count() as u64);
    let keeps = "`store.timestamps = true`, for all or in a rule, keeps them from then on";
    if timed == 0 {
        eprintln!("note: the store has no times of these samples, so they are made up; {keeps}");
    } else if timed < all {
        let (timed, all) = (grouped_u64(timed), grouped_u64(all));
        eprintln!("note: {timed} of {all} samples have a time and are shown; {keeps}");
    }
}

/// The top functions of an answer.
pub fn functions(title: &str, answer: &Answer, shown: usize, most: usize) -> Result<i32> {
    let summary = summary::summarize(&answer.profile, shown, most);
    let mut text = format!("{}\n", sanitize_for_terminal(title));
    let mut facts =
        vec![format!("{} {}", quantity(summary.total, &summary.unit), summary.sample_type)];
    if let Some(samples) = summary.samples {
        facts.push(format!("{} samples", grouped(samples)));
    }
    facts.push(format!("{} profiles", grouped_u64(answer.profiles)));
    facts.push(format!("{} functions", summary.functions));
    facts.push(duration(summary.duration_nanos));
    text += &format!("{}\n\n   self   total  function\n", facts.join(", "));
    for function in &summary.top_functions {
        let module = match function.kind {
            FrameKind::Kernel | FrameKind::Marker => String::new(),
            _ if function.module.is_empty() => String::new(),
            _ => format!("  ({})", sanitize_for_terminal(&function.module)),
        };
        text += &format!(
            "{:6.2}% {:6.2}%  {}{module}\n",
            function.self_percent,
            function.total_percent,
            name(&function.name)
        );
    }
    let more = summary.functions.saturating_sub(summary.top_functions.len());
    if more > 0 {
        text += &format!("                 and {more} more (--top N)\n");
    }
    print(&text)
}

/// What a store holds, a line for each service, type and set of labels.
pub fn holdings(store: &Path, held: &[Holding]) -> Result<i32> {
    let mut lines: Vec<[String; 6]> =
        vec![["service", "type", "from", "to", "profiles", "size"].map(str::to_owned)];
    let mut labels = vec!["labels".to_owned()];
    let mut services: BTreeMap<&str, ()> = BTreeMap::new();
    for holding in held {
        services.insert(&holding.service, ());
        lines.push([
            sanitize_for_terminal(&shortened(&holding.service, 60)).into_owned(),
            sanitize_for_terminal(&shortened(&holding.kind, 30)).into_owned(),
            when::show(holding.first_nanos),
            when::show(holding.last_nanos),
            grouped_u64(holding.profiles),
            size(holding.bytes),
        ]);
        let of_one = holding.labels.iter().map(|(name, value)| format!("{name}={value}"));
        let of_one = of_one.collect::<Vec<_>>().join(" ");
        labels.push(sanitize_for_terminal(&shortened(&of_one, 120)).into_owned());
    }
    let mut widths = [0_usize; 6];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (line, labels) in lines.iter().zip(&labels) {
        for (at, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Numbers end in one column, words begin in one.
            text += &match at < 4 {
                true => format!("{cell:width$}  "),
                false => format!("{cell:>width$}  "),
            };
        }
        text += labels;
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    let bytes = held.iter().fold(0, |sum: u64, holding| sum.saturating_add(holding.bytes));
    let profiles = held.iter().fold(0, |sum: u64, holding| sum.saturating_add(holding.profiles));
    text += &format!(
        "\n{}: {} services, {} profiles, {}\n",
        store.display(),
        services.len(),
        grouped_u64(profiles),
        size(bytes)
    );
    print(&text)
}

/// Which functions changed, by their share of all.
pub fn difference(heading: &[String], difference: &Difference, most: usize) -> Result<i32> {
    let total = difference.total;
    let heading: Vec<_> = heading.iter().map(|line| sanitize_for_terminal(line)).collect();
    let quantity = |value| quantity(value, &difference.unit);
    let mut text = format!(
        "{}\n{} {} before, {} after; shares are of these\n\n",
        heading.join("\n"),
        quantity(total.before),
        difference.sample_type,
        quantity(total.after)
    );
    text += "         self                     total\n";
    text += " before   after  change   before   after  change  function\n";
    let changed = |change: f64| change.abs() >= 0.000_05;
    let is_changed = |function: &&strata_profile::difference::FunctionDifference| {
        changed(function.own_share_change) || changed(function.share_change)
    };
    let rows: Vec<_> = difference.functions.iter().filter(is_changed).collect();
    for function in rows.iter().take(most) {
        text += &format!(
            "{}  {}  {}\n",
            shares(function.own, total),
            shares(function.value, total),
            name(&function.name)
        );
    }
    match rows.len().saturating_sub(most) {
        0 if rows.is_empty() => text += "nothing changed\n",
        0 => {}
        more => text += &format!("and {more} more that changed (--top N)\n"),
    }
    print(&text)
}

/// ` 12.34%  15.00%   +2.66`
fn shares(change: Change, total: Change) -> String {
    let (before, after) = change.shares(total);
    let (before, after) = (100.0 * before, 100.0 * after);
    format!("{before:6.2}% {after:6.2}% {:+7.2}", after - before)
}

fn name(name: &str) -> String {
    shortened(&sanitize_for_terminal(name), LONGEST).into_owned()
}

fn grouped_u64(number: u64) -> String {
    grouped(i64::try_from(number).unwrap_or(i64::MAX))
}

fn size(bytes: u64) -> String {
    quantity(i64::try_from(bytes).unwrap_or(i64::MAX), "bytes")
}
