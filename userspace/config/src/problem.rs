//! Errors in a configuration, with their location.

use std::fmt;

use toml::de::DeTable;

use crate::origin::Origin;

/// One error. Never holds a secret: lines that may carry one are truncated after the `=`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub message: String,
    pub origin: Origin,
    /// The line of the file, if it is one's.
    pub excerpt: Option<String>,
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { file, line, column } => {
                write!(formatter, "{file}:{line}:{column}: {}", self.message)?;
            }
            origin => write!(formatter, "{origin}: {}", self.message)?,
        }
        if let (Some(excerpt), Origin::File { line, column, .. }) = (&self.excerpt, &self.origin) {
            let number = line.to_string();
            let margin = " ".repeat(number.len());
            write!(formatter, "\n{number} | {excerpt}")?;
            if *column <= excerpt.chars().count() + 1 {
                write!(formatter, "\n{margin} | {}^", " ".repeat(column.saturating_sub(1)))?;
            }
        }
        match &self.hint {
            Some(hint) => write!(formatter, "\n-> {hint}"),
            None => Ok(()),
        }
    }
}

/// Words in keys whose values are secret.
const TELLING: [&str; 6] = ["token", "password", "header", "auth", "secret", "key"];
const LONGEST: usize = 160;

/// The line of `text` at `offset` as it may be shown. `hide`: whatever its key is called.
pub(crate) fn excerpt(text: &str, offset: usize, hide: bool) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(start..).unwrap_or_default().lines().next().unwrap_or_default();
    let telling = |line: &str| {
        let line = line.to_ascii_lowercase();
        TELLING.iter().any(|word| line.contains(word))
    };
    // The line may be in a table of HTTP headers.
    let table = before.lines().rev().find(|line| line.trim_start().starts_with('['));
    let hide = hide || telling(line) || table.is_some_and(telling);
    // Text of several lines may be a secret of which this line shows no key.
    let within = before.contains("\"\"\"") || before.contains("'''");
    let shown = match line.split_once('=') {
        _ if within => "…".to_owned(),
        Some((key, _)) if hide => format!("{key}= …"),
        // A line without a key may be the middle of a value.
        None if !line.trim_start().starts_with('[') => "…".to_owned(),
        _ => line.to_owned(),
    };
    shown
        .chars()
        .take(LONGEST)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

/// The line of `text` at `offset`, where the parser has an error; its first one is at `first`. A line
/// may be the rest of a secret, unless all before it is complete and it starts with a key of the
/// example.
pub(crate) fn excerpt_of_broken(text: &str, offset: usize, first: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let before = text.get(..start).unwrap_or_default();
    let line = text.get(start..).unwrap_or_default().lines().next().unwrap_or_default();
    let key = line.split_once('=').and_then(|(keys, _)| keys.rsplit('.').next()).map(str::trim);
    let mut known = crate::EXAMPLE.lines().filter_map(|line| line.split_once(" = "));
    let is_known =
        key.is_none_or(|key| known.any(|(known, _)| known.trim_start_matches('#') == key));
    // A value that goes on in this line is not closed in the text before it.
    let is_complete = first >= start && DeTable::parse_recoverable(before).1.is_empty();
    if is_known && is_complete {
        excerpt(text, offset, key == Some("url"))
    } else {
        "…".to_owned()
    }
}

/// Line and column of an offset, from one.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (line, before.get(start..).unwrap_or_default().chars().count() + 1)
}

/// The most similar of `known`, if one is similar.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}
