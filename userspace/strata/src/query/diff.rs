//! `strata diff`: two answers of the store, compared: windows, services, versions.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use strata_profile::difference::Difference;
use strata_profile::flamegraph;
use strata_store::Selection;

use super::when::{self, When};
use super::{Whose, Window, ask, open, sample_type, show};
use crate::managed::view::Shown;
use crate::printing;
use crate::record::launch::User;
use crate::record::output;

/// What the answer is compared with, as far as it differs from what is asked about.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    pub service: Option<String>,
    /// These take the place of labels of the same name.
    pub labels: Vec<(String, String)>,
    pub from: Option<When>,
    pub to: Option<When>,
    /// The same window so many nanoseconds earlier.
    pub earlier: Option<i64>,
}

#[derive(Debug)]
pub struct Question {
    pub store: PathBuf,
    pub whose: Whose,
    /// Nothing said: an hour before `to`.
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

impl Baseline {
    fn whose(&self, after: &Whose) -> Whose {
        let mut whose = after.clone();
        if let Some(service) = &self.service {
            whose.service = Some(service.clone());
        }
        whose.labels.retain(|(name, _)| self.labels.iter().all(|(other, _)| other != name));
        whose.labels.extend(self.labels.iter().cloned());
        whose
    }

    /// Without a word about time: the same window for another service or label, else the one
    /// before.
    fn window(&self, after: Window, now: i64) -> Result<Window> {
        let is_other = self.service.is_some() || !self.labels.is_empty();
        let length = after.to.saturating_sub(after.from);
        if let Some(earlier) = self.earlier {
            let back = |at: i64| at.saturating_sub(earlier);
            return Window::new(back(after.from), back(after.to));
        }
        match (self.from, self.to) {
            (None, None) if is_other => Ok(after),
            (None, None) => Window::new(after.from.saturating_sub(length), after.from),
            (Some(from), None) => {
                let from = from.at(now);
                Window::new(from, from.saturating_add(length))
            }
            (None, Some(to)) => {
                let to = to.at(now);
                Window::new(to.saturating_sub(length), to)
            }
            (Some(_), Some(_)) => Window::asked(self.from, self.to, now),
        }
    }
}

pub fn run(mut question: Question) -> Result<i32> {
    let reader = open(&question.store)?;
    let now = when::now();
    let window = Window::asked(question.from, question.to, now)?;
    let mut before = question.baseline.whose(&question.whose);
    let before_window = question.baseline.window(window, now)?;
    if before_window == window
        && before.service == question.whose.service
        && before.labels == question.whose.labels
    {
        bail!("this would compare a profile with itself: choose another --baseline");
    }
    let user = User::of_recording(None)?;
    for path in &question.outputs {
        output::check(path, user.as_ref())?;
    }
    let detail = |selection: Selection| selection;
    let after = ask(&reader, &question.store, &mut question.whose, window, detail)?;
    if before.kind.is_none() {
        before.kind.clone_from(&question.whose.kind);
    }
    let earlier = ask(&reader, &question.store, &mut before, before_window, detail)?;
    let shown = sample_type(&after.profile, question.value.as_deref())?;
    let name = after.profile.sample_types.get(shown).map(|kind| after.profile.string(kind.name));
    let difference = Difference::between_shown(
        &earlier.profile,
        &after.profile,
        name.unwrap_or_default(),
        question.shown.hidden(),
    );
    let was = format!("before: {}, {}", before.text(), before_window.text());
    let is = format!("after:  {}, {}", question.whose.text(), window.text());
    for path in &question.outputs {
        let title = format!("{}: what changed", question.whose.text());
        let subtitle = format!("{was}  ·  {}", is.replace("after:  ", "after: "));
        let written = output::write(path, user.as_ref(), |out| {
            Ok(flamegraph::write_difference(&difference, &title, &subtitle, out)?)
        })?;
        show::written(path, written);
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
        show::difference(&format!("{was}\n{is}"), &difference, question.top)?;
    }
    Ok(0)
}

fn side(whose: &Whose, window: Window, profiles: u64) -> serde_json::Value {
    json!({
        "service": whose.service,
        "type": whose.kind.as_deref().unwrap_or(super::USUAL_KIND),
        "labels": whose.labels.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "from_nanos": window.from,
        "to_nanos": window.to,
        "profiles": profiles,
    })
}

#[cfg(test)]
mod tests {
    use super::super::when::When;
    use super::{Baseline, Window};

    const AFTER: Window = Window { from: 1_000, to: 1_600 };

    fn window(baseline: Baseline) -> (i64, i64) {
        let window = baseline.window(AFTER, 1_600).expect("it is a window");
        (window.from, window.to)
    }

    #[test]
    fn a_baseline_is_the_window_before_unless_something_else_is_said() {
        assert_eq!(window(Baseline::default()), (400, 1_000));
        let service = Some("mail".to_owned());
        assert_eq!(window(Baseline { service, ..Baseline::default() }), (1_000, 1_600));
        let labels = vec![("version".to_owned(), "1".to_owned())];
        assert_eq!(window(Baseline { labels, ..Baseline::default() }), (1_000, 1_600));
        assert_eq!(window(Baseline { earlier: Some(900), ..Baseline::default() }), (100, 700));
        let from = Some(When::Ago(1_500));
        assert_eq!(window(Baseline { from, ..Baseline::default() }), (100, 700));
        let to = Some(When::At(650));
        assert_eq!(window(Baseline { to, ..Baseline::default() }), (50, 650));
        assert_eq!(window(Baseline { from, to, ..Baseline::default() }), (100, 650));
        let upside_down = Baseline { from: to, to: from, ..Baseline::default() };
        assert!(upside_down.window(AFTER, 1_600).is_err());
    }
}
