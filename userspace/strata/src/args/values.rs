//! Values of options as text: durations, kinds of samples, labels.

use std::time::Duration;

use strata_kinds::{Kind, Kinds, UnknownKind};

/// The kinds, one a line, from the table.
fn kinds_help(intro: &str) -> String {
    let mut text = intro.to_owned();
    for kind in Kind::ALL {
        let info = kind.info();
        let aliases = match info.aliases {
            [] => String::new(),
            aliases => format!(" [{}]", aliases.join(", ")),
        };
        text.push_str(&format!("\n  {}{aliases}: {}", info.name, info.help));
    }
    text
}

pub(super) fn events_help() -> String {
    kinds_help("What to sample, with commas between kinds:")
}

pub(super) fn type_help() -> String {
    kinds_help(
        "The kind of sample: a name, an alias or a pattern; several with commas between them [cpu, \
         or the only one there is]:",
    )
}

/// What is to be sampled.
pub(super) fn parse_events(text: &str) -> Result<Kinds, String> {
    let kinds = Kinds::parse(text).map_err(|error| error.to_string())?;
    if kinds.is_empty() {
        return Err(format!("no kind is named; there are {}", Kinds::all()));
    }
    Ok(kinds)
}

/// Kinds of stored profiles: names and aliases become names, patterns stay.
pub(super) fn parse_kind_patterns(text: &str) -> Result<String, String> {
    let one = |item: &str| match Kind::find(item) {
        Some(kind) => Ok(kind.name().to_owned()),
        None if item.contains(['*', '?']) => Ok(item.to_owned()),
        None => Err(UnknownKind(item).to_string()),
    };
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Ok(items.map(one).collect::<Result<Vec<String>, String>>()?.join(","))
}

pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write a label as NAME=VALUE, such as env=prod".into()),
    }
}

/// `90`, `1.5`, `500ms`, `30s`, `5m`, `2h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time: use ms, s, m or h")),
    };
    let seconds: f64 = number.trim().parse().map_err(|_| format!("`{number}` is no number"))?;
    let seconds = seconds * scale;
    if !(0.001..=31_536_000.0).contains(&seconds) {
        return Err("a recording lasts between a millisecond and a year".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_by_the_table_and_others_are_refused() {
        assert_eq!(parse_events("cpu"), Ok(Kinds::NONE.with(Kind::Cpu, true)));
        let unknown = parse_events("cycles").expect_err("no kind");
        assert!(unknown.contains("exceptions, locks"), "{unknown}");
        assert_eq!(parse_kind_patterns("alloc,off-cpu"), Ok("allocations,off_cpu".to_owned()));
        assert_eq!(parse_kind_patterns("*"), Ok("*".to_owned()));
        assert!(parse_kind_patterns("cycles").is_err());
        assert!(events_help().contains("live_heap"));
    }

    #[test]
    fn a_label_has_a_name() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_label("env=prod"), pair("env", "prod"));
        assert_eq!(parse_label("flags=a=b"), pair("flags", "a=b"));
        assert!(parse_label("env").is_err());
        assert!(parse_label("=prod").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("5 parsecs").is_err());
        assert!(parse_duration("-1").is_err());
        assert!(parse_duration("0").is_err());
    }
}
