//! Groups a result's value by service, label, process, thread or container.
//!
//! Services and labels are queried one by one, because a merged result does not record the service
//! of a sample; processes, threads and containers are labels of samples.

use std::collections::{BTreeMap, BTreeSet};

use strata_profile::{Identity, LabelsId, Profile};
use strata_store::{Detail, Exactly, Holding, Selection};

use super::{QueryError, Result, Store, Whose, Window, sample_type};

/// The grouping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    Service,
    Pid,
    Thread,
    Container,
    /// A label of profiles; `None`: each set of labels.
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
    fn add(&mut self, profile: &Profile, shown: usize) {
        if let Some(kind) = profile.sample_types.get(shown) {
            profile.string(kind.name).clone_into(&mut self.sample_type);
            profile.string(kind.unit).clone_into(&mut self.unit);
        }
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
            By::Service => self.by_holding(whose, window, value, |holding| {
                (holding.service.clone(), Exactly::Service(holding.service.clone()))
            }),
            By::Label(Some(label)) => self.by_holding(whose, window, value, |holding| {
                let found = holding.labels.iter().find(|(name, _)| name == label);
                let found = found.map(|(_, value)| value.clone());
                let name = found.clone().unwrap_or_else(|| format!("(no {label})"));
                (name, Exactly::Label(label.clone(), found))
            }),
            By::Label(None) => self.by_holding(whose, window, value, |holding| {
                let pairs = holding.labels.iter().map(|(name, value)| format!("{name}={value}"));
                let words: Vec<_> = pairs.collect();
                let name = if words.is_empty() { "(no labels)".into() } else { words.join(" ") };
                (name, Exactly::Labels(holding.labels.clone()))
            }),
            By::Pid | By::Thread | By::Container => self.by_sample(whose, window, by, value),
        }
    }

    fn by_holding(
        &self,
        whose: &Whose,
        window: Window,
        value: Option<&str>,
        key: impl Fn(&Holding) -> (String, Exactly),
    ) -> Result<Table> {
        let times = (Some(window.from), Some(window.to));
        let held = self.list(&whose.with_kind(), times, false)?;
        let parts: BTreeSet<(String, Exactly)> = held.iter().map(key).collect();
        let (mut table, mut sums) = (Table::default(), BTreeMap::<String, i64>::new());
        for (name, part) in parts {
            let exactly = |selection| Selection { exactly: Some(part.clone()), ..selection };
            let answer = match self.ask(&mut whose.clone(), window, exactly) {
                Ok(answer) => answer,
                Err(QueryError::Nothing { damaged, .. }) => {
                    table.damaged = table.damaged.saturating_add(damaged);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let shown = sample_type(&answer.profile, value)?;
            table.add(&answer.profile, shown);
            table.damaged = table.damaged.saturating_add(answer.damaged);
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(answer.profile.total(shown));
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
        let shown = sample_type(profile, value)?;
        let mut names: BTreeMap<LabelsId, String> = BTreeMap::new();
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for sample in profile.samples() {
            let value = sample.values.get(shown).copied().unwrap_or(0);
            let name = names
                .entry(sample.labels)
                .or_insert_with(|| name_of(profile, profile.identity(sample.labels), by));
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(value);
        }
        let mut table = Table { damaged: answer.damaged, ..Table::default() };
        table.add(profile, shown);
        Ok(table.finish(sums))
    }
}

fn name_of(profile: &Profile, identity: Identity, by: &By) -> String {
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
