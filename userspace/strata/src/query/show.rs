//! Prints tables. Names belong to the profiled programs and are made harmless here.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use strata_kinds::{Kind, Shape};
use strata_profile::difference::{Change, Difference};
use strata_profile::text::{duration, grouped, quantity, sanitize_for_terminal, shortened};
use strata_profile::{FrameKind, Profile, Tick};
use strata_profile::{by_label, own_function, summary};
use strata_store::{Answer, Holding};

use crate::printing::{message, print};
use crate::terminal::{columns, counted, cut};
use crate::{shares, waits};
use strata_query::by::{By, Row, Table};
use strata_query::{DEFAULT_TYPE, Window, when};

/// Characters of a function's name.
const LONGEST: usize = 1_000;

/// For outputs in time: reports how many samples of a column's kind have no time.
pub fn note_missing_times(profile: &Profile, column: usize) {
    let is_timeless = |kind: &Kind| !kind.info().keeps_times;
    let shown = profile.kind_of(column);
    if let Some(kind) = shown.filter(is_timeless) {
        message!("note: the store keeps no times of {kind} samples, so they are made up");
        return;
    }
    let counting = profile.counting_sample_type();
    let Some(counting) = counting.filter(|&at| profile.kind_of(at) == shown) else { return };
    let all = u64::try_from(profile.total(counting)).unwrap_or(0);
    let is_shown = |tick: &Tick| Some(tick.kind) == shown;
    let timed = profile.timeline().map_or(0, |ticks| ticks.filter(is_shown).count() as u64);
    let keeps = "`store.timestamps = true`, for all or in a rule, keeps them from then on";
    if timed == 0 {
        message!("note: the store has no times of these samples, so they are made up; {keeps}");
    } else if timed < all {
        let (timed, all) = (grouped_u64(timed), grouped_u64(all));
        message!("note: {timed} of {all} samples have a time and are shown; {keeps}");
    }
}

/// The top functions of an answer, by one column, or in a table for each column of several kinds.
pub fn functions(title: &str, answer: &Answer, shown: &[usize], most: usize) -> Result<i32> {
    if let [column] = shown {
        return print(&table(title, answer, *column, Some(answer.profiles), most)?);
    }
    let of_kind = |&column: &usize| {
        let kind = answer.profile.kind_of(column).map_or("", Kind::name);
        // How many of the profiles are of this kind is not known.
        table(&format!("{title}, {kind}"), answer, column, None, most)
    };
    print(&shown.iter().map(of_kind).collect::<Result<Vec<_>>>()?.join("\n"))
}

fn table(
    title: &str,
    answer: &Answer,
    shown: usize,
    profiles: Option<u64>,
    most: usize,
) -> Result<String> {
    let summary = summary::summarize(&answer.profile, shown, most);
    let width = columns(&std::io::stdout());
    let mut text = format!("{}\n", sanitize_for_terminal(title));
    let mut facts =
        vec![format!("{} {}", quantity(summary.total, &summary.unit), summary.sample_type)];
    if let Some(samples) = summary.samples {
        facts.push(counted(u64::try_from(samples).unwrap_or(0), "sample"));
    }
    facts.extend(profiles.map(|profiles| counted(profiles, "profile")));
    facts.push(counted(summary.functions as u64, "function"));
    facts.push(duration(summary.duration_nanos));
    text += &format!("{}\n", facts.join(", "));
    // Every wait ends in the scheduler: which function that is says nothing.
    if let Some((kind, waits)) = waits::of_type(&answer.profile, shown, most) {
        let mut lists = Vec::new();
        waits::print(&waits, kind, width, &mut lists)?;
        text += &String::from_utf8_lossy(&lists);
        return Ok(text);
    }
    // An event is reported by the runtime: its innermost functions are the same in all.
    let kind = answer.profile.kind_of(shown).map(Kind::info);
    if let Some(info) = kind.filter(|info| matches!(info.shape, Shape::Event | Shape::Collection)) {
        let (sample_type, unit) = (&summary.sample_type, &summary.unit);
        let functions = own_function::summarize(&answer.profile, shown, most);
        let mut lists = Vec::new();
        shares::functions(&functions, sample_type, unit, width, &mut lists)?;
        if let Some(label) = info.telling_label {
            let values = by_label::summarize(&answer.profile, shown, label, most);
            shares::values(&values, label, sample_type, unit, width, &mut lists)?;
        }
        text += &String::from_utf8_lossy(&lists);
        return Ok(text);
    }
    text += "\n   self   total  function\n";
    for function in &summary.top_functions {
        let module = match function.kind {
            FrameKind::Kernel | FrameKind::Marker => String::new(),
            _ if function.module.is_empty() => String::new(),
            _ => format!("  ({})", sanitize_for_terminal(&function.module)),
        };
        let line = format!(
            "{:6.2}% {:6.2}%  {}{module}",
            function.self_percent,
            function.total_percent,
            name(&function.name)
        );
        text += &(cut(&line, width) + "\n");
    }
    let more = summary.functions.saturating_sub(summary.top_functions.len());
    if more > 0 {
        text += &format!("                 and {more} more (--top N)\n");
    }
    Ok(text)
}

/// What used how much, the largest first.
pub fn by(title: &str, by: &By, table: &Table, most: usize) -> Result<i32> {
    let width = columns(&std::io::stdout());
    let mut text = format!(
        "{}\n{} {}, {}\n\n",
        sanitize_for_terminal(title),
        quantity(table.total, &table.unit),
        table.sample_type,
        counted(table.rows.len() as u64, "row")
    );
    let amounts: Vec<String> =
        table.rows.iter().take(most).map(|row| quantity(row.value, &table.unit)).collect();
    let wide = amounts.iter().map(|amount| amount.chars().count()).max().unwrap_or(0);
    let wide = wide.max(table.sample_type.chars().count());
    text += &format!("  share  {:>wide$}  {}\n", table.sample_type, by.heading());
    for (row, amount) in table.rows.iter().zip(&amounts) {
        let share = 100.0 * row.value as f64 / table.total.max(1) as f64;
        let line = format!("{share:6.2}%  {amount:>wide$}  {}", name(&row.name));
        text += &(cut(&line, width) + "\n");
    }
    match table.rows.len().saturating_sub(most) {
        0 => {}
        more => text += &format!("and {more} more (--top N)\n"),
    }
    print(&text)
}

/// What a store holds, a line for each service, type and set of labels.
/// `used` has the services of a window by what they used: they come first.
pub fn holdings(store: &Path, held: &mut [Holding], used: &[Row], window: Window) -> Result<i32> {
    let place = |service: &str| used.iter().position(|row| row.name == service);
    held.sort_by_key(|holding| place(&holding.service).unwrap_or(usize::MAX));
    let held = &*held;
    let total = used.iter().fold(0_i64, |sum, row| sum.saturating_add(row.value)).max(1);
    let zone = when::zone(window.to);
    let (from, to) = (format!("from ({zone})"), format!("to ({zone})"));
    let heading = ["service", "type", &from, &to, "profiles", "size", "cpu"];
    let mut lines: Vec<[String; 7]> = vec![heading.map(str::to_owned)];
    let mut labels = vec!["labels".to_owned()];
    let mut services: BTreeMap<&str, ()> = BTreeMap::new();
    for holding in held {
        services.insert(&holding.service, ());
        lines.push([
            sanitize_for_terminal(&shortened(&holding.service, 60)).into_owned(),
            sanitize_for_terminal(&shortened(&holding.kind, 30)).into_owned(),
            when::show(holding.first_nanos),
            end(&when::show(holding.first_nanos), when::show(holding.last_nanos)),
            grouped_u64(holding.profiles),
            size(holding.bytes),
            match place(&holding.service).and_then(|at| used.get(at)) {
                Some(row) if holding.kind == DEFAULT_TYPE => {
                    format!("{:.2} %", 100.0 * row.value as f64 / total as f64)
                }
                _ => String::new(),
            },
        ]);
        let of_one = holding.labels.iter().map(|(name, value)| format!("{name}={value}"));
        let of_one = of_one.collect::<Vec<_>>().join(" ");
        labels.push(sanitize_for_terminal(&shortened(&of_one, 120)).into_owned());
    }
    let mut widths = [0_usize; 7];
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
        "\n{}: {}, {}, {}\n",
        store.display(),
        counted(services.len() as u64, "service"),
        counted(profiles, "profile"),
        size(bytes)
    );
    text += &format!("cpu: share of {}\n", window.text());
    print(&text)
}

/// Without the date where that is the beginning's.
fn end(from: &str, to: String) -> String {
    match (from.split_once(' '), to.split_once(' ')) {
        (Some((first, _)), Some((date, time))) if first == date => time.to_owned(),
        _ => to,
    }
}

/// Which functions changed, by their share of all.
pub fn difference(heading: &[String], difference: &Difference, most: usize) -> Result<i32> {
    let total = difference.total;
    let width = columns(&std::io::stdout());
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
    let is_changed = |function: &&strata_profile::difference::FunctionDifference| {
        function.own_share_change.abs() >= difference.noise(function.own)
            || function.share_change.abs() >= difference.noise(function.value)
    };
    let rows: Vec<_> = difference.functions.iter().filter(is_changed).collect();
    for function in rows.iter().take(most) {
        let line = format!(
            "{}  {}  {}",
            shares(function.own, total),
            shares(function.value, total),
            name(&function.name)
        );
        text += &(cut(&line, width) + "\n");
    }
    match rows.len().saturating_sub(most) {
        0 if rows.is_empty() => {
            text += &format!("nothing changed by more than {}\n", difference.noise_text());
        }
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
