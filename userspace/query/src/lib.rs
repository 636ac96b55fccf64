//! Queries of the local store: time windows, selection of profiles, and hints when a query finds
//! nothing.
//!
//! - [`when`]: times as users write them.
//! - [`hints`]: why a query found nothing, from the store's contents.
//! - [`diff`]: the baseline of a comparison.
//! - [`by`]: a result's value by service, process, label. [`tree`]: its calls as a tree.
//!
//! The store's contents are listed only after an empty result, so that the usual query reads
//! nothing but its result.
//!
//! Invariant: nothing here prints or writes; the commands do.

pub mod by;
pub mod diff;
mod error;
mod hints;
pub mod tree;
pub mod when;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use strata_profile::Profile;
use strata_store::{Answer, Holding, Pattern, Reader, Selection};

pub use error::{QueryError, Result};
use when::When;

/// The default type of a query: one that every host has.
pub const DEFAULT_TYPE: &str = "cpu";
/// The default window: an hour.
const DEFAULT_WINDOW: i64 = 3_600_000_000_000;

/// The selection of profiles.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    pub service: Option<String>,
    pub kind: Option<String>,
    pub labels: Vec<(String, String)>,
    pub pid: Option<u32>,
    pub runtime_id: Option<String>,
}

/// From a time on, to before another, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: i64,
    pub to: i64,
}

impl Window {
    pub fn new(from: i64, to: i64) -> Result<Self> {
        if from >= to {
            return Err(QueryError::EmptyWindow {
                from: when::show(from),
                to: when::show(to),
                hint: None,
            });
        }
        Ok(Self { from, to })
    }

    /// The requested time range: the last hour without a start, up to now without an end.
    pub fn asked(from: Option<When>, to: Option<When>, now: i64) -> Result<Self> {
        let end = to.map_or(now, |to| to.at(now));
        let begin = from.map_or(end.saturating_sub(DEFAULT_WINDOW), |from| from.at(now));
        let is_of_today =
            |when: Option<When>| matches!(when, Some(When::Today(_) | When::Yesterday(_)));
        let hint = if is_of_today(from) || is_of_today(to) {
            "a clock time is of today: write the day too, as in `2026-01-31 14:30`"
        } else if to.is_none() {
            "it begins in the future, and its end is not given"
        } else if begin == end {
            "--from and --to are the same time"
        } else {
            "--from is later than --to: write the earlier time first"
        };
        Self::new(begin, end).map_err(|error| error.with_hint(hint))
    }

    pub fn text(self) -> String {
        let (from, to) = (when::show(self.from), when::show(self.to));
        // A day is shown once.
        let to = match (from.split_once(' '), to.split_once(' ')) {
            (Some((day, _)), Some((other, time))) if day == other => time,
            _ => &to,
        };
        format!("{from} to {to} {}", when::zone(self.to))
    }
}

/// Kinds with commas between them.
pub(crate) fn kinds_of(text: &str) -> Pattern {
    Pattern::any_of(text.split(','))
}

impl Whose {
    fn selection(&self, window: Window) -> Selection {
        let labels = self.labels.iter();
        Selection {
            service: self.service.as_deref().map(Pattern::new),
            kind: Some(kinds_of(self.kind.as_deref().unwrap_or(DEFAULT_TYPE))),
            labels: labels.map(|(name, value)| (name.clone(), Pattern::new(value))).collect(),
            runtime_id: self.runtime_id.clone(),
            pid: self.pid,
            ..Selection::default()
        }
        .between(window.from, window.to)
    }

    /// The same, with the default kind if none is given.
    pub(crate) fn with_kind(&self) -> Self {
        let kind = self.kind.clone().or_else(|| Some(DEFAULT_TYPE.to_owned()));
        Self { kind, ..self.clone() }
    }

    pub fn text(&self) -> String {
        let mut text = self.service.clone().unwrap_or_else(|| "all services".to_owned());
        for (name, value) in &self.labels {
            text += &format!(" {name}={value}");
        }
        if let Some(pid) = self.pid {
            text += &format!(" [{pid}]");
        }
        text
    }
}

/// An existing store.
pub struct Store {
    reader: Reader,
    directory: PathBuf,
}

impl Store {
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.to_owned();
        match std::fs::read_dir(directory) {
            Ok(_) => Ok(Self { reader: Reader::new(directory), directory: path }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(QueryError::NoStore { path }),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(QueryError::Denied { path, source: None })
            }
            Err(source) => Err(QueryError::Unreadable { path, source }),
        }
    }

    /// Runs the query; without a requested type, a store with a single type uses that one.
    pub fn ask(
        &self,
        whose: &mut Whose,
        window: Window,
        adapt: impl Fn(Selection) -> Selection,
    ) -> Result<Answer> {
        let asked = |whose: &Whose| {
            let answer = self.reader.query(&adapt(whose.selection(window)));
            answer.map_err(|error| QueryError::of_store(error, &self.directory))
        };
        let mut answer = asked(whose)?;
        if is_empty(&answer) {
            let held = self.all()?;
            match hints::only_kind(&held, whose).filter(|_| whose.kind.is_none()) {
                Some(kind) => {
                    whose.kind = Some(kind);
                    answer = asked(whose)?;
                }
                None if whose.kind.is_none() => whose.kind = Some(DEFAULT_TYPE.to_owned()),
                None => {}
            }
            if is_empty(&answer) {
                let why = hints::why_nothing(&held, whose, window, &self.directory);
                return Err(QueryError::Nothing { why, damaged: answer.damaged });
            }
        }
        Ok(answer)
    }

    /// The store's contents for these profiles between two times; an empty list is an error with
    /// the reason, unless `may_be_empty`.
    pub fn list(
        &self,
        whose: &Whose,
        (from, to): (Option<i64>, Option<i64>),
        may_be_empty: bool,
    ) -> Result<Vec<Holding>> {
        let mut selection = Selection {
            kind: whose.kind.as_deref().map(kinds_of),
            ..whose.selection(Window { from: 0, to: 0 })
        };
        selection.from_nanos = from;
        selection.to_nanos = to;
        let held = self.holdings(&selection)?;
        if held.is_empty() && !may_be_empty {
            let why = match self.all()?.is_empty() {
                true => hints::nothing_yet(&self.directory),
                false => format!(
                    "the store in `{}` holds nothing of that; `strata query` alone lists all of it",
                    self.directory.display()
                ),
            };
            return Err(QueryError::Nothing { why, damaged: 0 });
        }
        Ok(held)
    }

    fn all(&self) -> Result<Vec<Holding>> {
        self.holdings(&Selection::default())
    }

    fn holdings(&self, selection: &Selection) -> Result<Vec<Holding>> {
        let held = self.reader.holdings(selection);
        held.map_err(|error| QueryError::of_store(error, &self.directory))
    }
}

fn is_empty(answer: &Answer) -> bool {
    answer.profiles == 0 || answer.profile.sample_count() == 0
}

/// The position of the sample type asked for, or of the default one.
pub fn sample_type(profile: &Profile, asked: Option<&str>) -> Result<usize> {
    let Some(asked) = asked else { return Ok(profile.shown_sample_type()) };
    profile.sample_type(asked).ok_or_else(|| {
        let names = profile.sample_types.iter().map(|kind| profile.string(kind.name));
        let known = names.collect::<Vec<_>>().join(", ");
        QueryError::NoSuchValue { asked: asked.to_owned(), known }
    })
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_WINDOW, When, Window};

    /// A noon.
    const NOW: i64 = 1_769_860_800_000_000_000;

    #[test]
    fn an_hour_is_asked_about_unless_more_is_said() {
        let asked = |from, to| {
            let window = Window::asked(from, to, NOW).expect("it is a window");
            (window.from, window.to)
        };
        assert_eq!(asked(None, None), (NOW - DEFAULT_WINDOW, NOW));
        let two_hours_ago = When::Ago(2 * DEFAULT_WINDOW);
        assert_eq!(asked(Some(two_hours_ago), None), (NOW - 2 * DEFAULT_WINDOW, NOW));
        let expected = (NOW - 3 * DEFAULT_WINDOW, NOW - 2 * DEFAULT_WINDOW);
        assert_eq!(asked(None, Some(two_hours_ago)), expected);
        let both = (Some(When::At(7)), Some(When::At(9)));
        assert_eq!(asked(both.0, both.1), (7, 9));
    }

    #[test]
    fn an_empty_time_says_what_is_wrong_with_it() {
        for (from, to, words) in [
            (Some(When::At(9)), Some(When::At(7)), "--from is later than --to: "),
            (Some(When::At(9)), Some(When::At(9)), "are the same time"),
            (Some(When::At(NOW + 1)), None, "in the future"),
            (Some(When::Today(0)), Some(When::Ago(9 * 24 * DEFAULT_WINDOW)), "is of today"),
        ] {
            let error = Window::asked(from, to, NOW).expect_err("it is empty").to_string();
            assert!(error.starts_with("the window is empty"), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
