//! Groups a result's value by service, label, process, thread or container.
//!
//! Services and labels of profiles are queried one by one, because a merged result does not record
//! the service of a sample; processes, threads, containers and further labels are labels of samples.

use std::collections::{BTreeMap, BTreeSet};

use strata_profile::{LabelValue, LabelsId, Profile};
use strata_store::{Detail, Exactly, Holding, Selection};

use super::{QueryError, Result, Store, Whose, Window, hints, sample_type};

/// The grouping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    Service,
    Pid,
    Thread,
    Container,
    /// A label of profiles, or of the samples of those that lack it; `None`: each set of labels of
    /// profiles.
    Label(Option<String>),
}

impl By {
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        Ok(match text.split_once([':', '=']) {
            None => match text {
                "service" => Self::Service,
                "pid" | "process" => Self::Pid,
                "thread" | "tid" => Self::Thread,
                "container" => Self::Container,
                "label" => Self::Label(None),
                _ => return Err("use service, pid, thread, container, label or label:NAME".into()),
            },
            Some(("label", name)) if !name.is_empty() => Self::Label(Some(name.to_owned())),
            Some(_) => return Err("a label is written label:NAME, such as label:version".into()),
        })
    }

    /// The heading of its column.
    pub fn heading(&self) -> &str {
        match self {
            Self::Service => "service",
            Self::Pid => "process",
            Self::Thread => "thread",
            Self::Container => "container",
            Self::Label(None) => "labels",
            Self::Label(Some(name)) => name,
        }
    }
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub value: i64,
}

/// All of them, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub sample_type: String,
    pub unit: String,
    pub total: i64,
    pub rows: Vec<Row>,
    pub damaged: u64,
}

impl Table {
    /// Notes the sample type of a part: values of several do not add up.
    fn add(&mut self, profile: &Profile, shown: usize) -> Result<()> {
        let Some(kind) = profile.sample_types.get(shown) else { return Ok(()) };
        let (name, unit) = (profile.string(kind.name), profile.string(kind.unit));
        if !self.sample_type.is_empty() && (&*self.sample_type, &*self.unit) != (name, unit) {
            let known = format!("{}, {name}", self.sample_type);
            return Err(QueryError::SeveralKinds { known });
        }
        (self.sample_type, self.unit) = (name.to_owned(), unit.to_owned());
        Ok(())
    }

    fn finish(mut self, sums: BTreeMap<String, i64>) -> Self {
        self.rows = sums.into_iter().map(|(name, value)| Row { name, value }).collect();
        self.rows.retain(|row| row.value > 0);
        // Names are in order already, and stay so among equals.
        self.rows.sort_by_key(|row| std::cmp::Reverse(row.value));
        self.total = self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.value));
        self
    }
}

impl Store {
    /// The value of a window, grouped by `by`.
    pub fn by(&self, whose: &Whose, window: Window, by: &By, value: Option<&str>) -> Result<Table> {
        match by {
            By::Service => self.by_holding(whose, window, by, value, |holding| {
                (Some(holding.service.clone()), Exactly::Service(holding.service.clone()))
            }),
            By::Label(Some(label)) => self.by_holding(whose, window, by, value, |holding| {
                let found = holding.labels.iter().find(|(name, _)| name == label);
                let found = found.map(|(_, value)| value.clone());
                (found.clone(), Exactly::Label(label.clone(), found))
            }),
            By::Label(None) => self.by_holding(whose, window, by, value, |holding| {
                let pairs = holding.labels.iter().map(|(name, value)| format!("{name}={value}"));
                let words: Vec<_> = pairs.collect();
                let name = if words.is_empty() { "(no labels)".into() } else { words.join(" ") };
                (Some(name), Exactly::Labels(holding.labels.clone()))
            }),
            By::Pid | By::Thread | By::Container => self.by_sample(whose, window, by, value),
        }
    }

    /// Of a part without a name the samples have names of their own.
    fn by_holding(
        &self,
        whose: &Whose,
        window: Window,
        by: &By,
        value: Option<&str>,
        key: impl Fn(&Holding) -> (Option<String>, Exactly),
    ) -> Result<Table> {
        let times = (Some(window.from), Some(window.to));
        let mut whose = whose.clone();
        let mut held = self.list(&whose.with_kind(), times, true)?;
        if held.is_empty() {
            let all = self.all()?;
            let only = hints::only_kind(&all, &whose).filter(|_| whose.kind.is_none());
            if only.is_some() {
                whose.kind = only;
                held = self.list(&whose, times, true)?;
            }
            if held.is_empty() {
                let why = hints::why_nothing(&all, &whose, window, &self.directory);
                return Err(QueryError::Nothing { why, damaged: 0 });
            }
        }
        let parts: BTreeSet<(Option<String>, Exactly)> = held.iter().map(key).collect();
        let (mut table, mut sums) = (Table::default(), BTreeMap::<String, i64>::new());
        for (name, part) in parts {
            let detail = if name.is_some() { Detail::Lasting } else { Detail::All };
            let exactly =
                |selection| Selection { exactly: Some(part.clone()), detail, ..selection };
            let answer = match self.ask(&mut whose.clone(), window, exactly) {
                Ok(answer) => answer,
                Err(QueryError::Nothing { damaged, .. }) => {
                    table.damaged = table.damaged.saturating_add(damaged);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let shown = one_sample_type(&answer.profile, value)?;
            table.add(&answer.profile, shown)?;
            table.damaged = table.damaged.saturating_add(answer.damaged);
            match name {
                Some(name) => {
                    let sum = sums.entry(name).or_default();
                    *sum = sum.saturating_add(answer.profile.total(shown));
                }
                None => add_samples(&mut sums, &answer.profile, shown, by),
            }
        }
        Ok(table.finish(sums))
    }

    fn by_sample(
        &self,
        whose: &Whose,
        window: Window,
        by: &By,
        value: Option<&str>,
    ) -> Result<Table> {
        let mut whose = whose.clone();
        whose.service.get_or_insert_with(|| "*".to_owned());
        let all = |selection| Selection { detail: Detail::All, ..selection };
        let answer = self.ask(&mut whose, window, all)?;
        let profile = &answer.profile;
        let shown = one_sample_type(profile, value)?;
        let mut sums = BTreeMap::new();
        add_samples(&mut sums, profile, shown, by);
        let mut table = Table { damaged: answer.damaged, ..Table::default() };
        table.add(profile, shown)?;
        Ok(table.finish(sums))
    }
}

/// The column to add up: of several kinds it must be chosen.
fn one_sample_type(profile: &Profile, value: Option<&str>) -> Result<usize> {
    let kinds = profile.kinds();
    match value {
        None if kinds.iter().count() > 1 => {
            Err(QueryError::SeveralKinds { known: kinds.to_string() })
        }
        value => sample_type(profile, value),
    }
}

/// Adds every sample's value to the sum of its name.
fn add_samples(sums: &mut BTreeMap<String, i64>, profile: &Profile, shown: usize, by: &By) {
    let mut names: BTreeMap<LabelsId, String> = BTreeMap::new();
    for sample in profile.samples() {
        let value = sample.values.get(shown).copied().unwrap_or(0);
        let name =
            names.entry(sample.labels).or_insert_with(|| name_of(profile, sample.labels, by));
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(value);
    }
}

fn name_of(profile: &Profile, labels: LabelsId, by: &By) -> String {
    if let By::Label(Some(label)) = by {
        let mut found = profile.labels(labels).iter();
        let found = found.find(|found| profile.string(found.key) == label);
        return match found.map(|found| found.value) {
            Some(LabelValue::Text(text)) => profile.string(text).to_owned(),
            Some(LabelValue::Number { value, .. }) => value.to_string(),
            None => format!("(no {label})"),
        };
    }
    let identity = profile.identity(labels);
    let number = |id: Option<u32>| id.map_or("?".to_owned(), |id| id.to_string());
    let (process, thread) = (profile.string(identity.process), profile.string(identity.comm));
    match by {
        By::Container => match profile.string(identity.container) {
            "" => "(no container)".to_owned(),
            id => id.to_owned(),
        },
        By::Thread => {
            format!("{process} [{}]  {thread} [{}]", number(identity.pid), number(identity.tid))
        }
        _ => format!("{process} [{}]", number(identity.pid)).trim_start().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::By;

    #[test]
    fn what_is_distinguished_has_a_name() {
        assert_eq!(By::parse("pid"), Ok(By::Pid));
        assert_eq!(By::parse("label:env"), Ok(By::Label(Some("env".to_owned()))));
        assert_eq!(By::parse("label"), Ok(By::Label(None)));
        assert!(By::parse("colour").is_err() && By::parse("label:").is_err());
    }
}
