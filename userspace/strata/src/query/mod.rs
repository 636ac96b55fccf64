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
use strata_kinds::{Kind, Kinds};
use strata_profile::text::sanitize_for_terminal;
use strata_profile::{Format, Profile, WriteOptions};
use strata_query::by::{By, Row};
use strata_query::tree::{self, Node};
use strata_query::when::{self, When};
use strata_query::{DEFAULT_TYPE, QueryError, Store, Whose, Window, sample_type};
use strata_store::{Answer, Detail, Holding, Selection};

use crate::kind_files;
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
        Ok(answer) => {
            warn_of_damage(answer.damaged);
            if answer.replaced > 0 {
                message!(
                    "strata: {} merged records of the store are damaged; the profiles that they were \
                     made of were read instead",
                    answer.replaced
                );
            }
        }
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
    if let View::Callers(_) | View::Tree = &question.view {
        if !question.outputs.is_empty() {
            let name = if question.view == View::Tree { "--tree" } else { "--callers" };
            bail!("{name} prints a tree: leave --output out, or write the profile without {name}");
        }
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
    let kinds = match question.value {
        Some(_) => Kinds::NONE,
        None => kind_files::kinds_of(profile),
    };
    // Of several kinds the main column of each.
    let shown: Vec<usize> = match kinds.iter().count() {
        0 | 1 => vec![sample_type(profile, question.value.as_deref())?],
        _ => kinds.iter().filter_map(|kind| kind_files::column_of(profile, kind)).collect(),
    };
    if timeline {
        shown.iter().for_each(|&column| show::note_missing_times(profile, column));
    }
    let title = format!("{}: {}", question.whose.text(), window.text());
    write_files(&question, profile, kinds, &title, user.as_ref())?;
    let trees = trees(&question.view, profile, &shown)?;
    if !trees.is_empty() {
        return print_trees(&question, &trees, shown.len() > 1, profile, &title);
    }
    if question.json {
        let of_column = |&column: &usize| {
            let summary = strata_profile::summary::summarize(profile, column, question.top);
            let waits = waits::of_type(profile, column, question.top).map(|(_, waits)| waits);
            (profile.kind_of(column).map(Kind::name), summary, waits)
        };
        let columns: Vec<_> = shown.iter().map(of_column).collect();
        let first = columns.first();
        let mut value = json!({
            "service": question.whose.service,
            "type": question.whose.kind.as_deref().unwrap_or(DEFAULT_TYPE),
            "from_nanos": window.from,
            "to_nanos": window.to,
            "profiles": answer.profiles,
            "damaged": answer.damaged,
            "summary": first.map(|(_, summary, _)| summary),
            "waits": first.map(|(_, _, waits)| waits),
        });
        if columns.len() > 1 {
            let of_kind = columns.iter().map(|(kind, summary, waits)| {
                json!({ "type": kind, "summary": summary, "waits": waits })
            });
            value["kinds"] = of_kind.collect();
        }
        return printing::json(&value);
    }
    if question.outputs.is_empty() {
        show::functions(&title, &answer, &shown, question.top)?;
    }
    Ok(0)
}

/// Writes the outputs; of several kinds, each has its own file where a format shows one.
fn write_files(
    question: &Question,
    profile: &Profile,
    kinds: Kinds,
    title: &str,
    user: Option<&User>,
) -> Result<()> {
    let takes_all = |format| kind_files::takes_all(profile, format);
    let files = kind_files::of_outputs(&question.outputs, kinds, takes_all, "--type")?;
    output::check(files.iter().map(|file| file.path.as_path()), user)?;
    for file in &files {
        let options = WriteOptions {
            title: file.titled(title),
            sample_type: question.value.clone(),
            view: question.shown.view(),
            split_processes: question.split_by_pid,
            ..WriteOptions::for_path(&file.path)
        };
        let written = file.write(profile, options, user)?;
        printing::written(&file.path, written);
    }
    Ok(())
}

/// The trees that are asked for, with their columns; none where a table is.
fn trees(view: &View, profile: &Profile, shown: &[usize]) -> Result<Vec<(usize, Node)>> {
    let tree = |&column: &usize| {
        let tree = match view {
            View::Functions | View::By(_) => None,
            View::Tree => Some(tree::calls(profile, column)),
            View::Callers(function) => tree::callers(profile, column, function),
        };
        tree.map(|tree| (column, tree))
    };
    let trees: Vec<_> = shown.iter().filter_map(tree).collect();
    match view {
        View::Callers(function) if trees.is_empty() => {
            bail!(
                "no sampled function matches `{}` (a name, a part of one, or a pattern with *): `--top 100` lists more functions",
                sanitize_for_terminal(function)
            )
        }
        _ => Ok(trees),
    }
}

/// `several`: the answer has several kinds, which each tree then names.
fn print_trees(
    question: &Question,
    trees: &[(usize, Node)],
    several: bool,
    profile: &Profile,
    title: &str,
) -> Result<i32> {
    let kind = |column| profile.kind_of(column).map(Kind::name);
    if question.json {
        let mut values = trees.iter().map(|(column, tree)| match several {
            true => json!({ "type": kind(*column), "tree": show_tree::json(tree) }),
            false => show_tree::json(tree),
        });
        return match several {
            true => printing::json(&json!({ "kinds": values.collect::<Vec<_>>() })),
            false => printing::json(&values.next()),
        };
    }
    let text = |(column, tree): &(usize, Node)| {
        let title = match kind(*column).filter(|_| several) {
            Some(kind) => format!("{title}, {kind}"),
            None => title.to_owned(),
        };
        show_tree::text(&title, tree, profile, *column, question.top)
    };
    printing::print(&trees.iter().map(text).collect::<Vec<_>>().join("\n"))
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
    let window = Window::asked(question.from, question.to, now)?;
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
    // The services that used most come first; where the window holds none, names decide.
    let by = store.by(&Whose { kind: None, ..question.whose.clone() }, window, &By::Service, None);
    let used = by.map(|table| table.rows).unwrap_or_default();
    show::holdings(&question.store, &mut held, &used, window)
}
