//! `strata query` and `strata diff`: questions to the local store.
//!
//! - [`when`]: times as people write them.
//! - [`hints`]: what the store holds, and why a question found nothing.
//! - [`diff`]: two answers compared. [`show`]: what is printed.
//!
//! A question asks first and explains afterwards: what the store holds is only listed when the
//! answer is empty, so that the usual question reads nothing but its answer.

pub mod diff;
mod hints;
mod show;
pub mod when;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use strata_profile::{Format, Profile, WriteOptions};
use strata_store::{Answer, Detail, Holding, Pattern, Reader, Selection, StoreError};

use crate::managed::view::Shown;
use crate::printing;
use crate::record::launch::User;
use crate::record::output;
use when::When;

/// What is asked for when nobody says: what every host has.
const USUAL_KIND: &str = "cpu";
/// And for how long: an hour.
const USUAL_NANOS: i64 = 3_600_000_000_000;

/// Whose profiles.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    pub service: Option<String>,
    pub kind: Option<String>,
    pub labels: Vec<(String, String)>,
    pub pid: Option<u32>,
    pub runtime_id: Option<String>,
}

/// A file to write, in which format.
pub type Output = (PathBuf, Format);

#[derive(Debug)]
pub struct Question {
    pub store: PathBuf,
    pub whose: Whose,
    /// Nothing said: an hour before `to`, or for a list the beginning.
    pub from: Option<When>,
    pub to: Option<When>,
    /// The sample type to show.
    pub value: Option<String>,
    pub outputs: Vec<Output>,
    pub shown: Shown,
    /// Whether labels of processes, threads and requests are kept.
    pub all_labels: bool,
    pub top: usize,
    pub json: bool,
}

/// From a time on, to before another, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: i64,
    pub to: i64,
}

impl Window {
    fn new(from: i64, to: i64) -> Result<Self> {
        if from >= to {
            bail!(
                "the time asked about is empty: it begins at {} and ends at {}",
                when::show(from),
                when::show(to)
            );
        }
        Ok(Self { from, to })
    }

    /// What somebody asked for: an hour if they do not say when it begins, up to now if they do not
    /// say when it ends.
    fn asked(from: Option<When>, to: Option<When>, now: i64) -> Result<Self> {
        let end = to.map_or(now, |to| to.at(now));
        let begin = from.map_or(end.saturating_sub(USUAL_NANOS), |from| from.at(now));
        let is_of_today = |when: Option<When>| matches!(when, Some(When::Today(_)));
        let hint = if is_of_today(from) || is_of_today(to) {
            "a clock time is of today: write the day too, as in `2026-01-31 14:30`"
        } else if to.is_none() {
            "it begins in the future, and nothing is said of its end"
        } else {
            "write the earlier time first"
        };
        Self::new(begin, end).map_err(|error| anyhow!("{error}; {hint}"))
    }

    fn text(self) -> String {
        format!("{} to {}", when::show(self.from), when::show(self.to))
    }
}

impl Whose {
    fn selection(&self, window: Window) -> Selection {
        let labels = self.labels.iter();
        Selection {
            service: self.service.as_deref().map(Pattern::new),
            kind: Some(Pattern::new(self.kind.as_deref().unwrap_or(USUAL_KIND))),
            labels: labels.map(|(name, value)| (name.clone(), Pattern::new(value))).collect(),
            runtime_id: self.runtime_id.clone(),
            pid: self.pid,
            ..Selection::default()
        }
        .between(window.from, window.to)
    }

    fn text(&self) -> String {
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

/// The reader of a store that is there.
fn open(directory: &Path) -> Result<Reader> {
    match std::fs::read_dir(directory) {
        Ok(_) => Ok(Reader::new(directory)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(anyhow!(
            "there is no store in `{}`: `strata daemon` keeps one; --store names another place",
            directory.display()
        )),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(anyhow!(
            "the store in `{}` may not be read by this user: run the same with `sudo`",
            directory.display()
        )),
        Err(error) => Err(error)
            .with_context(|| format!("the store in `{}` cannot be read", directory.display())),
    }
}

fn readable(error: StoreError, directory: &Path) -> anyhow::Error {
    let denied = matches!(&error, StoreError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied);
    let error = anyhow!(error);
    match denied {
        true => error.context(format!(
            "the store in `{}` may not be read by this user: run the same with `sudo`",
            directory.display()
        )),
        false => error.context("the store cannot be asked"),
    }
}

/// Asks; a kind that nobody named and that is not there is another one, if there is only one.
fn ask(
    reader: &Reader,
    store: &Path,
    whose: &mut Whose,
    window: Window,
    adapt: impl Fn(Selection) -> Selection,
) -> Result<Answer> {
    let asked = |whose: &Whose| {
        let answer = reader.query(&adapt(whose.selection(window)));
        answer.map_err(|error| readable(error, store))
    };
    let mut answer = asked(whose)?;
    if is_empty(&answer) {
        let held = reader.holdings(&Selection::default());
        let held = held.map_err(|error| readable(error, store))?;
        match hints::only_kind(&held, whose).filter(|_| whose.kind.is_none()) {
            Some(kind) => {
                whose.kind = Some(kind);
                answer = asked(whose)?;
            }
            None if whose.kind.is_none() => whose.kind = Some(USUAL_KIND.to_owned()),
            None => {}
        }
        if is_empty(&answer) {
            warn_of_damage(answer.damaged);
            return Err(hints::why_nothing(&held, whose, window, store));
        }
    }
    warn_of_damage(answer.damaged);
    Ok(answer)
}

fn is_empty(answer: &Answer) -> bool {
    answer.profiles == 0 || answer.profile.sample_count() == 0
}

fn warn_of_damage(damaged: u64) {
    if damaged > 0 {
        eprintln!(
            "strata: {damaged} records of the store are damaged; what they held is not in the answer"
        );
    }
}

pub fn run(mut question: Question) -> Result<i32> {
    let reader = open(&question.store)?;
    if question.whose.service.is_none() {
        if !question.outputs.is_empty() {
            bail!("say whose profiles to write: --service NAME, or --service '*' for all");
        }
        if question.whose.pid.is_some() || question.whose.runtime_id.is_some() {
            bail!(
                "a list of the store does not tell processes apart: say whose profiles to show, \
                 --service NAME, or --service '*' for all"
            );
        }
        return list(&reader, &question);
    }
    let user = User::of_recording(None)?;
    for (path, _) in &question.outputs {
        output::check(path, user.as_ref())?;
    }
    let now = when::now();
    let window = Window::asked(question.from, question.to, now)?;
    let has_times = |(_, format): &Output| matches!(format, Format::Firefox | Format::PerfScript);
    let timeline = question.outputs.iter().any(has_times);
    let detail = match question.all_labels || timeline || question.whose.pid.is_some() {
        true => Detail::All,
        false => Detail::Lasting,
    };
    let answer = ask(&reader, &question.store, &mut question.whose, window, |selection| {
        Selection { detail, timeline, ..selection }
    })?;
    let profile = &answer.profile;
    if timeline {
        show::note_missing_times(profile);
    }
    let shown = sample_type(profile, question.value.as_deref())?;
    let title = format!("{}: {}", question.whose.text(), window.text());
    for (path, format) in &question.outputs {
        let options = WriteOptions {
            title: title.clone(),
            sample_type: question.value.clone(),
            hidden: question.shown.hidden(),
            ..WriteOptions::for_path(path)
        };
        let written = output::write(path, user.as_ref(), |out| {
            Ok(strata_profile::write(profile, *format, &options, out)?)
        })?;
        show::written(path, written);
    }
    if question.json {
        let summary = strata_profile::summary::summarize(profile, shown, question.top);
        return printing::json(&json!({
            "service": question.whose.service,
            "type": question.whose.kind.as_deref().unwrap_or(USUAL_KIND),
            "from_nanos": window.from,
            "to_nanos": window.to,
            "profiles": answer.profiles,
            "damaged": answer.damaged,
            "summary": summary,
        }));
    }
    if question.outputs.is_empty() {
        show::functions(&title, &answer, shown, question.top)?;
    }
    Ok(0)
}

fn list(reader: &Reader, question: &Question) -> Result<i32> {
    let now = when::now();
    let mut selection = Selection {
        kind: question.whose.kind.as_deref().map(Pattern::new),
        ..question.whose.selection(Window { from: 0, to: 0 })
    };
    selection.from_nanos = question.from.map(|from| from.at(now));
    selection.to_nanos = question.to.map(|to| to.at(now));
    let held = reader.holdings(&selection).map_err(|error| readable(error, &question.store))?;
    if question.json {
        let one = |holding: &Holding| {
            json!({
                "service": holding.service,
                "type": holding.kind,
                "labels": holding.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
                "first_nanos": holding.first_nanos,
                "last_nanos": holding.last_nanos,
                "profiles": holding.profiles,
                "bytes": holding.bytes,
            })
        };
        return printing::json(&json!({ "holdings": held.iter().map(one).collect::<Vec<_>>() }));
    }
    if held.is_empty() {
        let all = reader.holdings(&Selection::default());
        let all = all.map_err(|error| readable(error, &question.store))?;
        return Err(match all.is_empty() {
            true => hints::nothing_yet(&question.store),
            false => anyhow!(
                "the store in `{}` holds nothing of that; `strata query` alone lists all of it",
                question.store.display()
            ),
        });
    }
    show::holdings(&question.store, &held)
}

/// The position of the sample type asked for, or of the usual one.
fn sample_type(profile: &Profile, asked: Option<&str>) -> Result<usize> {
    let Some(asked) = asked else { return Ok(profile.shown_sample_type()) };
    profile.sample_type(asked).with_context(|| {
        let names = profile.sample_types.iter().map(|kind| profile.string(kind.name));
        let known = names.collect::<Vec<_>>().join(", ");
        format!("these profiles do not count `{asked}`; --value takes one of: {known}")
    })
}

#[cfg(test)]
mod tests {
    use super::{USUAL_NANOS, When, Window};

    /// A noon.
    const NOW: i64 = 1_769_860_800_000_000_000;

    #[test]
    fn an_hour_is_asked_about_unless_more_is_said() {
        let asked = |from, to| {
            let window = Window::asked(from, to, NOW).expect("it is a window");
            (window.from, window.to)
        };
        assert_eq!(asked(None, None), (NOW - USUAL_NANOS, NOW));
        let two_hours_ago = When::Ago(2 * USUAL_NANOS);
        assert_eq!(asked(Some(two_hours_ago), None), (NOW - 2 * USUAL_NANOS, NOW));
        let expected = (NOW - 3 * USUAL_NANOS, NOW - 2 * USUAL_NANOS);
        assert_eq!(asked(None, Some(two_hours_ago)), expected);
        let both = (Some(When::At(7)), Some(When::At(9)));
        assert_eq!(asked(both.0, both.1), (7, 9));
    }

    #[test]
    fn an_empty_time_says_what_is_wrong_with_it() {
        for (from, to, words) in [
            (Some(When::At(9)), Some(When::At(7)), "the earlier time first"),
            (Some(When::At(NOW + 1)), None, "in the future"),
            (Some(When::Today(0)), Some(When::Ago(9 * 24 * USUAL_NANOS)), "is of today"),
        ] {
            let error = Window::asked(from, to, NOW).expect_err("it is empty").to_string();
            assert!(error.starts_with("the time asked about is empty"), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
