//! The summary of a profile of waits: where, in which system call, in which process and state.
//!
//! Every stack of a wait ends in the scheduler, so the functions with the largest self time say
//! nothing. What is summed is the program's own function that waits ([`crate::own_function`]).

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::idle;
use crate::kind::base_name;
use crate::model::{LabelValue, Profile, StringId};
use crate::own_function::{self, Which};
use crate::processes::{MoreProcesses, ProcessShare, ProcessSums};

/// Sums by what waits, each with the largest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    pub functions: Vec<WaitShare>,
    /// Functions beyond those listed; the same of system calls.
    pub more_functions: usize,
    /// Of threads that did not run. Without a name: a page fault, or a thread that was
    /// preempted or stopped.
    pub system_calls: Vec<WaitShare>,
    pub more_system_calls: usize,
    /// The same by process, where a profile has processes.
    pub processes: Vec<ProcessShare>,
    pub more_processes: MoreProcesses,
    pub states: Vec<WaitShare>,
    /// Kinds of threads that waited for work; their waits are in none of the other lists but
    /// `states`.
    pub idle: Vec<WaitShare>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitShare {
    pub name: String,
    /// The file of a function's code, without folders; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    pub value: i64,
    pub percent: f64,
}

/// The state of a thread that waits for nothing.
const RUNNING: &str = "running";

/// The `most` largest of each, by one sample type.
#[must_use]
pub fn summarize(profile: &Profile, sample_type: usize, most: usize) -> Waits {
    let mut functions: HashMap<(StringId, StringId), i64> = HashMap::new();
    let mut processes = ProcessSums::default();
    let [mut calls, mut states, mut idle]: [HashMap<StringId, i64>; 3] = Default::default();
    let mut total = 0_i64;
    let which = Which::of_samples(profile, sample_type);
    let add = |sum: &mut i64, value: i64| *sum = sum.saturating_add(value);
    for sample in profile.samples() {
        let value = sample.values.get(sample_type).copied().unwrap_or(0);
        if value <= 0 {
            continue;
        }
        add(&mut total, value);
        let (mut call, mut state) = (StringId::default(), StringId::default());
        for label in profile.labels(sample.labels) {
            match (profile.string(label.key), label.value) {
                ("syscall", LabelValue::Text(text)) => call = text,
                ("state", LabelValue::Text(text)) => state = text,
                _ => {}
            }
        }
        add(states.entry(state).or_default(), value);
        if let Some((_, kind)) = idle::of_labels(profile, sample.labels) {
            add(idle.entry(kind).or_default(), value);
            continue;
        }
        if profile.string(state) != RUNNING {
            add(calls.entry(call).or_default(), value);
            processes.add(&profile.identity(sample.labels), value);
        }
        let function = own_function::of_stack(profile, sample.stack, which);
        add(functions.entry(function).or_default(), value);
    }
    let percent = |value: i64| 100.0 * value as f64 / total.max(1) as f64;
    let ranked = |sums: Vec<((StringId, StringId), i64)>| {
        let mut shares: Vec<_> = sums
            .into_iter()
            .map(|((name, module), value)| WaitShare {
                name: profile.string(name).to_owned(),
                module: base_name(profile.string(module)).to_owned(),
                value,
                percent: percent(value),
            })
            .collect();
        shares.sort_by(|a, b| Reverse(a.value).cmp(&Reverse(b.value)).then(a.name.cmp(&b.name)));
        shares.truncate(most);
        shares
    };
    let named = |sums: HashMap<StringId, i64>| {
        sums.into_iter().map(|(name, value)| ((name, StringId::default()), value)).collect()
    };
    processes.retain_known();
    let (processes, more_processes) = processes.top(profile, total, most);
    let more = |count: usize| count.saturating_sub(most);
    Waits {
        more_functions: more(functions.len()),
        more_system_calls: more(calls.len()),
        functions: ranked(functions.into_iter().collect()),
        system_calls: ranked(named(calls)),
        processes,
        more_processes,
        states: ranked(named(states)),
        idle: ranked(named(idle)),
    }
}
