//! `strata query` and `strata diff`: print and write results of the store ([`strata_query`]).
//!
//! - [`diff`]: compares two results. [`show`]: the tables that are printed, [`show_tree`]: the
//!   trees.

pub mod diff;
mod show;
mod show_tree;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use strata_profile::text::sanitize_for_terminal;
use strata_profile::{Format, Profile, WriteOptions};
use strata_query::by::{By, Row};
use strata_query::tree::{self, Node};
use strata_query::when::{self, When};
use strata_query::{DEFAULT_TYPE, QueryError, Store, Whose, Window, sample_type};
use strata_store::{Answer, Detail, Holding, Selection};

use crate::output;
use crate::printing::{self, message};
use crate::user::User;
use crate::view::Shown;
use crate::waits;

/// A file to write, in which format.
pub type Output = (PathBuf, Format);

/// The form in which a result is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    Functions,
    /// Values by group.
    By(By),
    /// The callers of a function.
    Callers(String),
    /// The calls from processes down.
    Tree,
}

#[derive(Debug)]
pub struct Question {
    pub store: PathBuf,
    pub whose: Whose,
    /// Default: an hour before `to`, or for a list the beginning.
    pub from: Option<When>,
    pub to: Option<When>,
    /// The sample type to show.
    pub value: Option<String>,
    pub outputs: Vec<Output>,
    pub shown: Shown,
    /// Whether labels of processes, threads and requests are kept.
    pub all_labels: bool,
    /// Whether processes of one name stand apart in a flame graph.
    pub split_by_pid: bool,
    pub view: View,
    pub top: usize,
    pub json: bool,
}

/// Queries the store; damaged records are reported whether it answers or not.
fn ask(
    store: &Store,
    whose: &mut Whose,
    window: Window,
    adapt: impl Fn(Selection) -> Selection,
) -> Result<Answer> {
    let answer = store.ask(whose, window, adapt);
    match &answer {
        Ok(answer) => warn_of_damage(answer.damaged),
        Err(QueryError::Nothing { damaged, .. }) => warn_of_damage(*damaged),
        Err(_) => {}
    }
    Ok(answer?)
}

fn warn_of_damage(damaged: u64) {
    if damaged > 0 {
        message!(
            "strata: {damaged} records of the store are damaged; what they held is not in the answer"
        );
    }
}

pub fn run(mut question: Question) -> Result<i32> {
    let store = Store::open(&question.store)?;
    if let View::By(by) = &question.view {
        if !question.outputs.is_empty() {
            bail!("--by prints a table: leave --output out, or write the profile without --by");
        }
        return by_table(&store, &question, by);
    }
    if matches!(question.view, View::Callers(_) | View::Tree) {
        question.whose.service.get_or_insert_with(|| "*".to_owned());
    }
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
        return list(&store, &question);
    }
    let user = User::of_recording(None)?;
    output::check(question.outputs.iter().map(|(path, _)| path.as_path()), user.as_ref())?;
    let now = when::now();
    let window = Window::asked(question.from, question.to, now)?;
    let has_times = |(_, format): &Output| matches!(format, Format::Firefox | Format::PerfScript);
    let timeline = question.outputs.iter().any(has_times);
    let keeps_pids = question.all_labels || question.split_by_pid;
    let detail = match keeps_pids || timeline || question.whose.pid.is_some() {
        true => Detail::All,
        false => Detail::Lasting,
    };
    let answer = ask(&store, &mut question.whose, window, |selection| Selection {
        detail,
        timeline,
        ..selection
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
            view: question.shown.view(),
            split_processes: question.split_by_pid,
            ..WriteOptions::for_path(path)
        };
        let written = output::write(path, user.as_ref(), |out| {
            Ok(strata_profile::write(profile, *format, &options, out)?)
        })?;
        show::written(path, written);
    }
    if question.outputs.is_empty()
        && let Some(tree) = tree(&question.view, profile, shown)?
    {
        return match question.json {
            true => printing::json(&show_tree::json(&tree)),
            false => show_tree::print(&title, &tree, profile, shown, question.top),
        };
    }
    if question.json {
        let summary = strata_profile::summary::summarize(profile, shown, question.top);
        return printing::json(&json!({
            "service": question.whose.service,
            "type": question.whose.kind.as_deref().unwrap_or(DEFAULT_TYPE),
            "from_nanos": window.from,
            "to_nanos": window.to,
            "profiles": answer.profiles,
            "damaged": answer.damaged,
            "summary": summary,
            "waits": waits::of_type(profile, shown, question.top).map(|(_, waits)| waits),
        }));
    }
    if question.outputs.is_empty() {
        show::functions(&title, &answer, shown, question.top)?;
    }
    Ok(0)
}

/// The tree that is asked for; `None` where a table is.
fn tree(view: &View, profile: &Profile, shown: usize) -> Result<Option<Node>> {
    Ok(match view {
        View::Functions | View::By(_) => None,
        View::Tree => Some(tree::calls(profile, shown)),
        View::Callers(function) => match tree::callers(profile, shown, function) {
            Some(tree) => Some(tree),
            None => {
                bail!("no function that was sampled is named `{}`", sanitize_for_terminal(function))
            }
        },
    })
}

fn by_table(store: &Store, question: &Question, by: &By) -> Result<i32> {
    let window = Window::asked(question.from, question.to, when::now())?;
    let table = store.by(&question.whose, window, by, question.value.as_deref())?;
    warn_of_damage(table.damaged);
    if question.json {
        let row = |row: &Row| json!({ "name": row.name, "value": row.value });
        return printing::json(&json!({
            "by": by.heading(),
            "from_nanos": window.from,
            "to_nanos": window.to,
            "sample_type": table.sample_type,
            "unit": table.unit,
            "total": table.total,
            "rows": table.rows.iter().map(row).collect::<Vec<_>>(),
        }));
    }
    let title = format!("{}: {}", question.whose.text(), window.text());
    show::by(&title, by, &table, question.top)
}

fn list(store: &Store, question: &Question) -> Result<i32> {
    let now = when::now();
    let times = (question.from.map(|from| from.at(now)), question.to.map(|to| to.at(now)));
    let mut held = store.list(&question.whose, times, question.json)?;
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
    let window = Window::asked(question.from, question.to, now)?;
    // The services that used most come first; where the window holds none, names decide.
    let by = store.by(&Whose { kind: None, ..question.whose.clone() }, window, &By::Service, None);
    let used = by.map(|table| table.rows).unwrap_or_default();
    show::holdings(&question.store, &mut held, &used, window)
}
