//! Prints findings as text (aligned, in colour on a terminal) and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::line::{Line, State};

/// Text in a colour of the terminal's own palette.
pub fn coloured(text: &str, state: State, colour: bool) -> String {
    if !colour {
        return text.to_owned();
    }
    let code = match state {
        State::Ok => "32",
        State::Degraded => "33",
        State::Missing => "31",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

pub fn bold(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Grouped lines; below each that is not ok, what to do.
pub fn lines_as_text(lines: &[&Line], colour: bool) -> String {
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut group = None;
    let mut sorted = lines.to_vec();
    sorted.sort_by_key(|line| line.group);
    for line in sorted {
        if group != Some(line.group) {
            group = Some(line.group);
            text += &bold(line.group.name(), colour);
            text.push('\n');
        }
        let state = line.state();
        let padded = coloured(&format!("{:<8}", state.name()), state, colour);
        // Writing to a string cannot fail.
        let _ = write!(text, "  {padded}  {:<width$}  {}", line.name, line.detail);
        if let Some(lost) = line.lost() {
            let _ = write!(text, " (lost: {lost})");
        }
        text.push('\n');
        for (number, fix) in line.fix().into_iter().flat_map(str::lines).enumerate() {
            let arrow = if number == 0 { "->" } else { "  " };
            let _ = writeln!(text, "  {:8}  {arrow} {fix}", "");
        }
    }
    text
}

/// The last line: can this host be recorded?
pub fn verdict(lines: &[Line], colour: bool) -> String {
    let count = |state| lines.iter().filter(|line| line.state() == state).count();
    let (missing, degraded) = (count(State::Missing), count(State::Degraded));
    let (state, text) = match (missing, degraded) {
        (0, 0) => (State::Ok, "recording works".to_owned()),
        (0, _) => (State::Degraded, format!("recording works; {degraded} degraded")),
        _ => (State::Missing, format!("recording cannot work: {missing} missing")),
    };
    format!("{}\n", coloured(&text, state, colour))
}

pub fn lines_as_json(lines: &[Line]) -> Value {
    let worst = lines.iter().map(Line::state).max().unwrap_or(State::Ok);
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({
                "group": line.group.name(),
                "name": line.name,
                "state": line.state().name(),
                "detail": line.detail,
                "lost": line.lost(),
                "fix": line.fix(),
            })
        })
        .collect();
    json!({ "state": worst.name(), "recording_works": worst != State::Missing, "lines": lines })
}

pub fn json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::line::Group;

    fn lines() -> Vec<Line> {
        vec![
            Line::ok(Group::Kernel, "version", "6.1"),
            Line::missing(Group::Kernel, "BTF", "none", "boot another\nand another"),
            Line::degraded(Group::Symbols, "debug files", "none", "lines", "apt-get install"),
        ]
    }

    #[test]
    fn every_line_that_is_not_ok_has_its_fix_below() {
        let lines = lines();
        let text = lines_as_text(&lines.iter().collect::<Vec<_>>(), false);
        assert_eq!(
            text,
            "kernel\n\
             \x20 ok        version      6.1\n\
             \x20 missing   BTF          none\n\
             \x20           -> boot another\n\
             \x20              and another\n\
             symbols\n\
             \x20 degraded  debug files  none (lost: lines)\n\
             \x20           -> apt-get install\n"
        );
        assert_eq!(verdict(&lines, false), "recording cannot work: 1 missing\n");
    }

    #[test]
    fn without_colour_there_are_no_escapes() {
        let lines = lines();
        let shown: Vec<&Line> = lines.iter().collect();
        assert!(!lines_as_text(&shown, false).contains('\x1b'));
        assert!(lines_as_text(&shown, true).contains("\x1b[31m"));
    }

    #[test]
    fn json_says_the_same() {
        let value = lines_as_json(&lines());
        assert_eq!(value["recording_works"], false);
        assert_eq!(value["lines"][2]["lost"], "lines");
        assert_eq!(value["lines"][0]["fix"], Value::Null);
    }
}
