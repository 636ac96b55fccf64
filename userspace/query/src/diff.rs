//! The baseline of a comparison: another window, service or label.

use super::when::When;
use super::{Result, Whose, Window};

/// The baseline, as far as it differs from the query.
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

impl Baseline {
    pub fn whose(&self, after: &Whose) -> Whose {
        let mut whose = after.clone();
        if let Some(service) = &self.service {
            whose.service = Some(service.clone());
        }
        whose.labels.retain(|(name, _)| self.labels.iter().all(|(other, _)| other != name));
        whose.labels.extend(self.labels.iter().cloned());
        whose
    }

    /// The default: the same window for another service or label, else the window before.
    pub fn window(&self, after: Window, now: i64) -> Result<Window> {
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
