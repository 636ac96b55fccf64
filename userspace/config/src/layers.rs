//! The sources of a setting's value, in order of precedence: flags, the environment, the file,
//! defaults.
//!
//! A setting is known because code reads it: a key that was never read is unknown.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::origin::{Origin, Sourced};
use crate::problem::{Problem, excerpt, excerpt_of_broken, nearest, position};
use crate::value::{Raw, Switchable, Value, Wrong};

/// The inputs of a configuration.
#[derive(Clone, Copy, Default)]
pub struct Inputs<'a> {
    /// Name and text of the file.
    pub file: Option<(&'a str, &'a str)>,
    /// The daemon's own environment.
    pub environment: &'a [(String, String)],
    pub flags: &'a [Flag],
    /// The socket where a Datadog agent listens on this host, if there is one.
    pub agent_socket: Option<&'a str>,
}

/// A flag of the command line that sets a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Flag {
    /// As the user wrote it: `--frequency`.
    pub name: String,
    /// What it sets: `sampling.frequency`.
    pub key: String,
    pub value: String,
}

/// One value as `strata config show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub key: String,
    /// As TOML; `***` for a secret.
    pub value: String,
    pub origin: Origin,
}

pub(crate) struct Entry {
    pub path: Vec<String>,
    pub raw: Raw,
    pub origin: Origin,
    /// Of the key in the file.
    pub offset: usize,
    pub used: bool,
}

pub(crate) struct Layers<'a> {
    /// Flags, variables of agents, the file: the first wins.
    entries: Vec<Entry>,
    environment: &'a [(String, String)],
    asked_variables: BTreeSet<String>,
    pub agent_socket: Option<&'a str>,
    text: &'a str,
    known: Vec<Vec<String>>,
    pub shown: Vec<Shown>,
    pub problems: Vec<Problem>,
    notices: Vec<String>,
}

/// The largest file that is read.
const MAX_FILE: usize = 1 << 20;

impl<'a> Layers<'a> {
    pub fn new(inputs: &Inputs<'a>, of_agents: Vec<Entry>) -> Self {
        let (name, text) = inputs.file.unwrap_or_default();
        let mut layers = Self {
            entries: Vec::new(),
            environment: inputs.environment,
            asked_variables: BTreeSet::new(),
            agent_socket: inputs.agent_socket,
            text,
            known: Vec::new(),
            shown: Vec::new(),
            problems: Vec::new(),
            notices: Vec::new(),
        };
        // The first entry of a key counts, and of flags the last one, as everywhere.
        for flag in inputs.flags.iter().rev() {
            layers.entries.push(Entry {
                path: flag.key.split('.').map(str::to_owned).collect(),
                raw: Raw::Words(flag.value.clone()),
                origin: Origin::Flag(flag.name.clone()),
                offset: 0,
                used: false,
            });
        }
        layers.entries.extend(of_agents);
        layers.parse(&Arc::from(name));
        layers
    }

    fn parse(&mut self, file: &Arc<str>) {
        if self.text.len() > MAX_FILE {
            let origin = Origin::File { file: file.clone(), line: 1, column: 1 };
            self.problem("the file is larger than 1 MiB".to_owned(), origin, None, None);
            return;
        }
        let (table, errors) = DeTable::parse_recoverable(self.text);
        let offsets = errors.iter().map(|error| error.span().map_or(0, |span| span.start));
        let first = offsets.min().unwrap_or(0);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            let origin = at(self.text, file, offset);
            let line = |origin: &Origin| match origin {
                Origin::File { line, .. } => Some(*line),
                _ => None,
            };
            // Later errors on the same line follow from the first.
            if self.problems.last().is_some_and(|last| line(&last.origin) == line(&origin)) {
                continue;
            }
            let shown = excerpt_of_broken(self.text, offset, first);
            self.problem(error.message().to_owned(), origin, Some(shown), None);
        }
        // The rest after an error is unreliable.
        if self.problems.is_empty() {
            self.flatten(table.get_ref(), file, &mut Vec::new());
        }
    }

    fn flatten(&mut self, table: &DeTable<'_>, file: &Arc<str>, path: &mut Vec<String>) {
        // `[exporter.datadog]` alone: all of its settings have defaults.
        if table.is_empty()
            && path.len() == 2
            && path.first().is_some_and(|name| name == "exporter")
        {
            let origin = Origin::File { file: file.clone(), line: 1, column: 1 };
            let raw = Raw::Other("a table");
            self.entries.push(Entry { path: path.clone(), raw, origin, offset: 0, used: true });
        }
        for (key, value) in table {
            path.push(key.get_ref().clone().into_owned());
            self.flatten_value(value.get_ref(), &key.span(), file, path);
            path.pop();
        }
    }

    fn flatten_value(
        &mut self,
        value: &DeValue<'_>,
        key: &Range<usize>,
        file: &Arc<str>,
        path: &mut Vec<String>,
    ) {
        if let DeValue::Table(table) = value {
            return self.flatten(table, file, path);
        }
        if let DeValue::Array(items) = value
            && items.iter().any(|item| item.get_ref().is_table())
        {
            for (number, item) in items.iter().enumerate() {
                path.push((number + 1).to_string());
                self.flatten_value(item.get_ref(), key, file, path);
                path.pop();
            }
            return;
        }
        self.entries.push(Entry {
            path: path.clone(),
            raw: raw(value),
            origin: at(self.text, file, key.start),
            offset: key.start,
            used: false,
        });
    }

    fn problem(
        &mut self,
        message: String,
        origin: Origin,
        excerpt: Option<String>,
        hint: Option<String>,
    ) {
        self.problems.push(Problem { message, origin, excerpt, hint });
    }

    /// Whether the file has a table here that is empty.
    pub fn has(&self, path: &[&str]) -> bool {
        self.entries.iter().any(|entry| entry.path == path)
    }

    /// The names directly below a path, in the order of the layers and of the file.
    pub fn below(&self, path: &[&str]) -> Vec<String> {
        let mut names = Vec::new();
        for entry in &self.entries {
            if let Some(name) = below(&entry.path, path)
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// The value of a variable that is set and not empty.
    pub fn variable(&mut self, name: &str) -> Option<String> {
        self.asked_variables.insert(name.to_owned());
        let found = self.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    }

    /// The value of a key from the first layer that has it.
    pub fn get<T: Value>(&mut self, path: &[&str], default: T) -> Sourced<T> {
        self.get_or(path, Sourced { value: default, origin: Origin::Default })
    }

    /// The same with a default that comes from somewhere.
    pub fn get_or<T: Value>(&mut self, path: &[&str], default: Sourced<T>) -> Sourced<T> {
        self.known.push(path.iter().map(|part| (*part).to_owned()).collect());
        let variable = variable_name(path);
        let of_variable = self.variable(&variable);
        let mut found: Option<(Raw, Origin, usize)> = None;
        for entry in self.entries.iter_mut().filter(|entry| entry.path == path) {
            entry.used = true;
            let is_flag = matches!(entry.origin, Origin::Flag(_));
            if found.is_none() && (is_flag || of_variable.is_none()) {
                found = Some((entry.raw.clone(), entry.origin.clone(), entry.offset));
            }
        }
        let found =
            found.or_else(|| Some((Raw::Words(of_variable?), Origin::Variable(variable), 0)));
        let sourced = match found {
            None => default,
            Some((raw, origin, offset)) => match T::read(&raw) {
                Ok(value) => Sourced { value, origin },
                Err(Wrong(message, hint)) => {
                    let message = format!("{}: {message}", path.join("."));
                    let shown = matches!(origin, Origin::File { .. })
                        .then(|| excerpt(self.text, offset, T::SECRET));
                    self.problem(message, origin.clone(), shown, hint);
                    Sourced { value: default.value, origin }
                }
            },
        };
        self.shown.push(Shown {
            key: path.join("."),
            value: sourced.value.show(),
            origin: sourced.origin.clone(),
        });
        sourced
    }

    /// The value of a key that can be off.
    pub fn get_switchable<T: Value>(
        &mut self,
        path: &[&str],
        default: Option<T>,
    ) -> Sourced<Option<T>> {
        let Sourced { value: Switchable(value), origin } = self.get(path, Switchable(default));
        let variable = variable_name(path);
        let mut variables = self.environment.iter();
        if value.is_some() && variables.any(|(name, text)| *name == variable && text.is_empty()) {
            let key = path.join(".");
            self.notices.push(format!(
                "{variable} is empty and sets nothing: `{variable}=off` switches {key} off"
            ));
        }
        Sourced { value, origin }
    }

    /// Shows a key as not set, because another key of a higher layer takes its place.
    pub fn supersede(&mut self, path: &[&str], by: &Origin) {
        let key = path.join(".");
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.key == key) {
            shown.value = "\"\"".to_owned();
            shown.origin = by.clone();
        }
    }

    /// A table with names chosen by the user.
    pub fn map<T: Value>(&mut self, path: &[&str]) -> Vec<(String, Sourced<Option<T>>)> {
        let names = self.below(path);
        names
            .into_iter()
            .map(|name| {
                let full: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
                let value = self.get::<Option<T>>(&full, None);
                (name, value)
            })
            .collect()
    }

    /// Notes that a value cannot be used.
    pub fn refuse<T>(
        &mut self,
        path: &[&str],
        value: &Sourced<T>,
        message: &str,
        hint: Option<&str>,
    ) {
        let entry =
            self.entries.iter().find(|entry| entry.path == path && entry.origin == value.origin);
        let shown = entry
            .filter(|entry| matches!(entry.origin, Origin::File { .. }))
            .map(|entry| excerpt(self.text, entry.offset, path.last() == Some(&"url")));
        let message = format!("{}: {message}", path.join("."));
        self.problem(message, value.origin.clone(), shown, hint.map(str::to_owned));
    }

    /// Notes once that nothing in this table can be used.
    pub fn refuse_below(&mut self, table: &str, message: &str) {
        let mut entries: Vec<&mut Entry> = self
            .entries
            .iter_mut()
            .filter(|entry| below(&entry.path, &[table]).is_some())
            .collect();
        entries.iter_mut().for_each(|entry| entry.used = true);
        let Some(first) = entries.iter().min_by_key(|entry| entry.offset) else { return };
        let (origin, offset) = (first.origin.clone(), first.offset);
        let shown = matches!(origin, Origin::File { .. }).then(|| excerpt(self.text, offset, true));
        self.problem(format!("{table}: {message}"), origin, shown, None);
    }

    /// Only variables of agents have values below a path.
    pub fn all_below_are_variables(&self, path: &[&str]) -> bool {
        let mut entries = self.entries.iter().filter(|entry| below(&entry.path, path).is_some());
        entries.all(|entry| matches!(entry.origin, Origin::Variable(_)))
    }

    /// The origin of the first entry below a path.
    pub fn origin_below(&self, path: &[&str]) -> Origin {
        let found = self.entries.iter().find(|entry| below(&entry.path, path).is_some());
        found.map_or(Origin::Default, |entry| entry.origin.clone())
    }

    /// Reports keys that were never read. Unused variables are returned: the environment of a
    /// daemon holds more than what is meant for it.
    pub fn finish(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        for entry in std::mem::take(&mut self.entries) {
            if entry.used {
                continue;
            }
            if let Origin::Variable(name) = &entry.origin {
                let exporter = entry.path.get(1).map_or("", String::as_str);
                notices.push(format!("{name} is ignored: there is no exporter `{exporter}`"));
                continue;
            }
            let key = entry.path.join(".");
            let hint = self.hint(&entry.path);
            let shown = matches!(entry.origin, Origin::File { .. })
                .then(|| excerpt(self.text, entry.offset, true));
            self.problem(format!("unknown key `{key}`"), entry.origin, shown, hint);
        }
        for (name, value) in self.environment {
            if name.starts_with("STRATA_")
                && !value.is_empty()
                && !self.asked_variables.contains(name)
            {
                let hint = nearest(name, self.asked_variables.iter().map(String::as_str));
                let hint = hint.map_or_else(String::new, |hint| format!(": {hint}"));
                notices.push(format!("{name} sets nothing{hint}"));
            }
        }
        notices
    }

    /// The nearest known key: among those of the same table first.
    fn hint(&self, path: &[String]) -> Option<String> {
        // The first unknown part is the wrong one.
        let depth = (0..path.len()).find(|depth| {
            let start = path.get(..=*depth);
            !self.known.iter().any(|known| known.get(..=*depth) == start)
        })?;
        let table = path.get(..depth);
        let siblings = self.known.iter().filter(|known| known.get(..depth) == table);
        let word = path.get(depth)?;
        nearest(word, siblings.filter_map(|known| known.get(depth)).map(String::as_str)).or_else(
            || {
                let last = path.last()?;
                let elsewhere = self.known.iter().find(|known| known.last() == Some(last))?;
                Some(format!("there is `{}`", elsewhere.join(".")))
            },
        )
    }
}

fn below<'p>(path: &'p [String], parent: &[&str]) -> Option<&'p String> {
    let (head, tail) = path.split_at_checked(parent.len())?;
    if head == parent { tail.first() } else { None }
}

fn at(text: &str, file: &Arc<str>, offset: usize) -> Origin {
    let (line, column) = position(text, offset);
    Origin::File { file: file.clone(), line, column }
}

fn variable_name(path: &[&str]) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' => character.to_ascii_uppercase(),
        _ => '_',
    };
    format!("STRATA_{}", path.join("_").chars().map(plain).collect::<String>())
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix()).map_or(Raw::Other("integer"), Raw::Integer)
        }
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Array(items) => Raw::List(items.iter().map(|item| raw(item.get_ref())).collect()),
        other => Raw::Other(other.type_str()),
    }
}
