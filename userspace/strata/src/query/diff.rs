//! `strata diff`: compares two results of the store: windows, services, versions.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use strata_profile::difference::Difference;
use strata_profile::flamegraph;
use strata_query::diff::Baseline;
use strata_query::when::{self, When};
use strata_query::{DEFAULT_TYPE, Store, Whose, Window, sample_type};
use strata_store::Selection;

use super::{ask, show};
use crate::output;
use crate::printing::{self, message};
use crate::user::User;
use crate::view::Shown;

#[derive(Debug)]
pub struct Question {
    pub store: PathBuf,
    pub whose: Whose,
    /// Default: an hour before `to`.
    pub from: Option<When>,
    pub to: Option<When>,
    pub baseline: Baseline,
    pub value: Option<String>,
    /// Flame graphs.
    pub outputs: Vec<PathBuf>,
    pub shown: Shown,
    pub top: usize,
    pub json: bool,
}

pub fn run(mut question: Question) -> Result<i32> {
    let store = Store::open(&question.store)?;
    let now = when::now();
    let window = Window::asked(question.from, question.to, now)?;
    let mut before = question.baseline.whose(&question.whose);
    let before_window = question.baseline.window(window, now)?;
    if before_window == window
        && before.service == question.whose.service
        && before.labels == question.whose.labels
    {
        bail!(
            "this would compare a profile with itself: choose another baseline with --earlier, \
             --baseline-from, --baseline-to, --baseline-service or --baseline-label"
        );
    }
    let user = User::of_recording(None)?;
    output::check(question.outputs.iter().map(PathBuf::as_path), user.as_ref())?;
    let detail = |selection: Selection| selection;
    let after = ask(&store, &mut question.whose, window, detail)?;
    if before.kind.is_none() {
        before.kind.clone_from(&question.whose.kind);
    }
    let earlier = ask(&store, &mut before, before_window, detail)?;
    let shown = sample_type(&after.profile, question.value.as_deref())?;
    if question.value.is_none()
        && let Some(kind) = after.profile.kind_of(shown)
    {
        let others = after.profile.kinds().with(kind, false);
        if !others.is_empty() {
            message!("note: only {kind} is compared; --type compares another kind ({others})");
        }
    }
    let name = after.profile.sample_types.get(shown).map(|kind| after.profile.string(kind.name));
    let difference = Difference::between_shown(
        &earlier.profile,
        &after.profile,
        name.unwrap_or_default(),
        question.shown.view(),
    );
    let was = format!("before: {}, {}", before.text(), before_window.text());
    let is = format!("after:  {}, {}", question.whose.text(), window.text());
    for path in &question.outputs {
        let title = format!("{}: what changed", question.whose.text());
        let subtitle = format!("{was}  ·  {}", is.replace("after:  ", "after: "));
        let written = output::write(path, user.as_ref(), |out| {
            Ok(flamegraph::write_difference(&difference, &title, &subtitle, out)?)
        })?;
        printing::written(path, written);
    }
    if question.json {
        let functions: Vec<_> = difference.functions.iter().take(question.top).collect();
        return printing::json(&json!({
            "before": side(&before, before_window, earlier.profiles),
            "after": side(&question.whose, window, after.profiles),
            "sample_type": difference.sample_type,
            "unit": difference.unit,
            "total": difference.total,
            "functions": functions,
        }));
    }
    if question.outputs.is_empty() {
        show::difference(&[was, is], &difference, question.top)?;
    }
    Ok(0)
}

fn side(whose: &Whose, window: Window, profiles: u64) -> serde_json::Value {
    json!({
        "service": whose.service,
        "type": whose.kind.as_deref().unwrap_or(DEFAULT_TYPE),
        "labels": whose.labels.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "from_nanos": window.from,
        "to_nanos": window.to,
        "profiles": profiles,
    })
}
