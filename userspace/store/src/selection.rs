//! The selection of a query: which profiles it covers.

use crate::segment::Member;
use crate::series::Series;
use crate::tables::Detail;

/// A name, or a pattern of names: `*` stands for any characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

impl Pattern {
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(vec![text.to_owned()])
    }

    /// Any of these names or patterns, such as several kinds.
    #[must_use]
    pub fn any_of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        Self(texts.into_iter().map(str::to_owned).collect())
    }

    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, name))
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut place) = (0_usize, 0_usize);
    // Where to go on when the characters after the last `*` do not fit.
    let mut again: Option<(usize, usize)> = None;
    while let Some(&character) = name.get(place) {
        match pattern.get(at) {
            Some('*') => {
                again = Some((at, place));
                at += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == character => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((star, from)) = again else { return false };
                again = Some((star, from + 1));
                at = star + 1;
                place = from + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|&left| left == '*')
}

/// A condition on profiles in which no character stands for others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exactly {
    Service(String),
    /// These labels and no other.
    Labels(Vec<(String, String)>),
    /// This label with this value; `None`: profiles that lack it.
    Label(String, Option<String>),
}

impl Exactly {
    fn fits(&self, series: &Series) -> bool {
        match self {
            Self::Service(name) => series.service == *name,
            Self::Labels(labels) => {
                labels.len() == series.labels.len()
                    && labels.iter().all(|label| series.labels.contains(label))
            }
            Self::Label(name, wanted) => {
                let mut values = series.labels.iter().filter(|(key, _)| key == name);
                match wanted {
                    Some(wanted) => values.any(|(_, value)| value == wanted),
                    None => values.next().is_none(),
                }
            }
        }
    }
}

/// The conditions, all of which must match.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub service: Option<Pattern>,
    pub kind: Option<Pattern>,
    /// Each of these labels must be present and match.
    pub labels: Vec<(String, Pattern)>,
    pub exactly: Option<Exactly>,
    pub runtime_id: Option<String>,
    /// Samples of this process only.
    pub pid: Option<u32>,
    /// Profiles that start at this time or later, in nanoseconds since 1970.
    pub from_nanos: Option<i64>,
    /// Profiles that start before this time.
    pub to_nanos: Option<i64>,
    pub detail: Detail,
    /// Whether the answer has the samples in time that were kept.
    pub timeline: bool,
}

impl Selection {
    #[must_use]
    pub fn of_service(service: &str, kind: &str) -> Self {
        Self {
            service: Some(Pattern::new(service)),
            kind: Some(Pattern::new(kind)),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn between(self, from_nanos: i64, to_nanos: i64) -> Self {
        Self { from_nanos: Some(from_nanos), to_nanos: Some(to_nanos), ..self }
    }

    #[must_use]
    pub fn with_label(mut self, name: &str, value: &str) -> Self {
        self.labels.push((name.to_owned(), Pattern::new(value)));
        self
    }

    pub(crate) fn range(&self) -> Range {
        Range { from: self.from_nanos.unwrap_or(i64::MIN), to: self.to_nanos.unwrap_or(i64::MAX) }
    }

    /// Whether merges over time can answer: they know neither processes nor threads.
    pub(crate) fn can_use_merges(&self) -> bool {
        self.runtime_id.is_none()
            && self.pid.is_none()
            && self.detail == Detail::Lasting
            && !self.timeline
    }

    pub(crate) fn fits(&self, series: &Series) -> bool {
        let fits = |pattern: &Option<Pattern>, name: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
        };
        let has = |(name, pattern): &(String, Pattern)| {
            series.labels.iter().any(|(key, value)| key == name && pattern.matches(value))
        };
        fits(&self.service, &series.service)
            && fits(&self.kind, &series.kind)
            && self.labels.iter().all(has)
            && self.exactly.as_ref().is_none_or(|exactly| exactly.fits(series))
    }
}

/// Starts from `from` on, before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Range {
    pub(crate) fn has(self, start: i64) -> bool {
        (self.from..self.to).contains(&start)
    }

    /// Whether any profile of a roll-up's member can start in it.
    pub(crate) fn overlaps(self, member: Member) -> bool {
        member.first < self.to && member.last >= self.from
    }

    fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// The steps of merges over time, in seconds: each is a multiple of the one before.
pub(crate) const STEPS: [u32; 2] = [300, 3_600];
pub(crate) const NANOS: i64 = 1_000_000_000;

/// Splits a range into parts covered by whole steps, the coarsest in the middle, and the remainders
/// at its ends, which only unmerged profiles (step 0) cover.
pub(crate) fn cover(range: Range) -> Vec<(u32, Range)> {
    let mut parts = Vec::new();
    let mut inner = range;
    let mut step_before = 0;
    for step in STEPS {
        let nanos = i64::from(step) * NANOS;
        let from = match inner.from.checked_add(nanos - 1) {
            Some(late) => late.div_euclid(nanos) * nanos,
            None => inner.to,
        };
        // Nothing starts in the part of a step at the beginning of all time.
        let to = inner.to.div_euclid(nanos).saturating_mul(nanos);
        let from = from.min(inner.to);
        let next = Range { from, to: to.clamp(from, inner.to) };
        if next.is_empty() {
            break;
        }
        parts.push((step_before, Range { from: inner.from, to: next.from }));
        parts.push((step_before, Range { from: next.to, to: inner.to }));
        inner = next;
        step_before = step;
    }
    parts.push((step_before, inner));
    parts.retain(|(_, range)| !range.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::{NANOS, Pattern, Range, cover};

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        for (pattern, name, fits) in [
            ("shop", "shop", true),
            ("shop", "shops", false),
            ("shop*", "shop-api", true),
            ("*api", "shop-api-api", true),
            ("s?op", "shop", true),
            ("s?op", "sop", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbx", false),
            ("*", "", true),
            ("", "", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn every_start_is_in_exactly_one_part_of_its_range() {
        let minute = 60 * NANOS;
        let ends = [i64::MIN, -7 * minute, 0, minute, 59 * minute, 305 * minute, i64::MAX];
        for from in ends {
            for to in ends {
                let parts = cover(Range { from, to });
                for start in (-400..400).map(|at| at * minute + 7).chain([i64::MIN, i64::MAX - 1]) {
                    let hits = parts.iter().filter(|(_, range)| range.has(start)).count();
                    let expected = usize::from(Range { from, to }.has(start));
                    assert_eq!(hits, expected, "{from} {to} {start} {parts:?}");
                }
                for (step, range) in parts {
                    let nanos = i64::from(step.max(1)) * NANOS;
                    let is_whole = |at: i64| at % nanos == 0 || at == from || at == to;
                    assert!(step == 0 || is_whole(range.from) && is_whole(range.to));
                }
            }
        }
    }
}
