//! Rules: settings for some processes.
//!
//! Every rule whose conditions all hold applies. If several set the same setting, the first rule in
//! the file wins; labels are merged, and the first rule wins a name.

use strata_kinds::{Kind, Kinds};
use strata_metadata::{Choice, Facts};

use crate::frequencies::{check_frequency, sampled_by_clocks};
use crate::layers::Layers;
use crate::origin::Sourced;
use crate::value::words;

words! {
    /// When strata loads its bridge into a .NET process.
    BridgePolicy { Attach = "attach", Environment = "environment", Off = "off" }
}

/// Conditions hold patterns: `*` is any characters, `?` is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The path of the executable.
    pub exe: Option<String>,
    pub comm: Option<String>,
    /// The container's name or id, or its name in the pod.
    pub container: Option<String>,
    /// Labels of the pod.
    pub labels: Vec<(String, String)>,
    /// The process's own claims, as is `comm`: a rule that grants something must not rely on them alone.
    pub env: Vec<(String, String)>,
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: Sourced<Option<String>>,
    pub conditions: Conditions,
    pub enable: Sourced<Option<bool>>,
    pub types: Sourced<Option<Kinds>>,
    /// Of each kind that a clock samples.
    pub frequencies: Vec<(Kind, Sourced<Option<u32>>)>,
    pub timestamps: Sourced<Option<bool>>,
    pub service: Sourced<Option<String>>,
    pub env: Sourced<Option<String>>,
    pub version: Sourced<Option<String>>,
    pub labels: Vec<(String, String)>,
    pub bridge: Sourced<Option<BridgePolicy>>,
    pub own_destination: Sourced<Option<bool>>,
}

/// The result of the rules for one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub choice: Choice,
    /// Of kinds that a rule samples more or less often.
    pub frequencies: Vec<(Kind, u32)>,
    /// Whether the store keeps the time of every sample.
    pub timestamps: Option<bool>,
    pub bridge: Option<BridgePolicy>,
}

impl Decision {
    /// How often a rule wants this kind to be sampled.
    #[must_use]
    pub fn frequency(&self, kind: Kind) -> Option<u32> {
        let mut of_rules = self.frequencies.iter();
        of_rules.find(|(known, _)| *known == kind).map(|(_, frequency)| *frequency)
    }
}

pub(crate) fn read(layers: &mut Layers<'_>) -> Vec<Rule> {
    let mut numbers = layers.below(&["rule"]);
    // By their numbers, whichever of them a flag names.
    numbers.sort_by_key(|number| number.parse().unwrap_or(usize::MAX));
    if numbers.iter().any(|number| number.parse::<usize>().is_err()) {
        let message = "rules are a list: write `[[rule]]` instead of `[rule]`";
        layers.refuse_below("rule", message);
        return Vec::new();
    }
    numbers.iter().map(|number| rule(layers, number)).collect()
}

fn rule(layers: &mut Layers<'_>, number: &str) -> Rule {
    let path = |key: &'static str| ["rule", number, key];
    let condition = |layers: &mut Layers<'_>, key: &'static str| {
        layers.get::<Option<String>>(&["rule", number, "match", key], None).value
    };
    let name = layers.get(&path("name"), None);
    let conditions = Conditions {
        exe: condition(layers, "exe"),
        comm: condition(layers, "comm"),
        container: condition(layers, "container"),
        labels: texts(layers, &["rule", number, "match", "labels"]),
        env: variables(layers, number),
    };
    let own_destination = layers.get::<Option<bool>>(&path("own_destination"), None);
    if conditions == Conditions::default() {
        let place = Sourced { value: (), origin: layers.origin_below(&["rule", number]) };
        let hint = Some("for all processes: match = { exe = \"*\" }");
        layers.refuse(&path("match"), &place, "a rule says which processes it is for", hint);
    } else if own_destination.value == Some(true) && only_claims(&conditions) {
        let hint = Some("match on exe, container or labels as well");
        let message = "any process can set a variable or its comm, and so send data elsewhere";
        layers.refuse(&path("own_destination"), &own_destination, message, hint);
    }
    let frequencies = sampled_by_clocks().map(|(kind, rate)| {
        let path = path(rate.setting);
        let frequency = layers.get::<Option<u32>>(&path, None);
        if let Sourced { value: Some(value), origin } = &frequency {
            let frequency = Sourced { value: *value, origin: origin.clone() };
            check_frequency(layers, &path, &frequency);
        }
        (kind, frequency)
    });
    let frequencies = frequencies.collect();
    Rule {
        name,
        conditions,
        enable: layers.get(&path("enable"), None),
        types: layers.get(&path("types"), None),
        frequencies,
        timestamps: layers.get(&path("timestamps"), None),
        service: layers.get(&path("service"), None),
        env: layers.get(&path("env"), None),
        version: layers.get(&path("version"), None),
        labels: texts(layers, &path("labels")),
        bridge: layers.get(&path("bridge"), None),
        own_destination,
    }
}

fn texts(layers: &mut Layers<'_>, path: &[&str]) -> Vec<(String, String)> {
    let map = layers.map::<String>(path);
    map.into_iter().map(|(name, value)| (name, value.value.unwrap_or_default())).collect()
}

/// Patterns for the values of a process's variables.
fn variables(layers: &mut Layers<'_>, number: &str) -> Vec<(String, String)> {
    let names = layers.below(&["rule", number, "match", "env"]);
    let pattern = |name: String| {
        let path = ["rule", number, "match", "env", &name];
        let problems = layers.problems.len();
        let pattern = layers.get(&path, String::new());
        if pattern.value.is_empty() && layers.problems.len() == problems {
            let message = "an empty variable counts as not set, so this never matches";
            layers.refuse(&path, &pattern, message, Some("for any value: \"*\""));
        }
        (name, pattern.value)
    };
    names.into_iter().map(pattern).collect()
}

fn only_claims(conditions: &Conditions) -> bool {
    conditions.exe.is_none() && conditions.container.is_none() && conditions.labels.is_empty()
}

impl Conditions {
    /// Whether they may grant something: in a mount namespace of its own a process has any path.
    fn are_no_claims(&self, facts: &Facts<'_>) -> bool {
        self.container.is_some() || !self.labels.is_empty() || facts.is_exe_of_host
    }

    pub fn hold(&self, facts: &Facts<'_>) -> bool {
        let one = |pattern: &Option<String>, known: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| known.is_some_and(|text| matches(pattern, text)))
        };
        let container = self.container.as_ref().is_none_or(|pattern| {
            let name = facts.container.and_then(|container| container.name.as_deref());
            let in_pod = facts.pod.map(|pod| pod.container.as_str());
            let id = facts.group.and_then(|group| group.container.as_deref());
            [name, in_pod, id].into_iter().flatten().any(|text| matches(pattern, text))
        });
        let label = |(name, pattern): &(String, String)| {
            facts.pod.and_then(|pod| pod.label(name)).is_some_and(|text| matches(pattern, text))
        };
        let variable = |(name, pattern): &(String, String)| {
            let value = facts.environment.get(name).map(String::from_utf8_lossy);
            value.is_some_and(|text| matches(pattern, &text))
        };
        one(&self.exe, facts.exe)
            && one(&self.comm, Some(facts.comm))
            && container
            && self.labels.iter().all(label)
            && self.env.iter().all(variable)
    }
}

/// Applies the rules to a process.
pub fn decide(rules: &[Rule], facts: &Facts<'_>) -> Decision {
    let mut decision = Decision::default();
    for rule in rules.iter().filter(|rule| rule.conditions.hold(facts)) {
        let choice = &mut decision.choice;
        choice.enabled = choice.enabled.or(rule.enable.value);
        choice.types = choice.types.or(rule.types.value);
        first(&mut choice.service, &rule.service.value);
        first(&mut choice.env, &rule.env.value);
        first(&mut choice.version, &rule.version.value);
        for (name, value) in &rule.labels {
            if choice.labels.iter().all(|(known, _)| known != name) {
                choice.labels.push((name.clone(), value.clone()));
            }
        }
        for (kind, frequency) in &rule.frequencies {
            if let Some(frequency) = frequency.value.filter(|_| decision.frequency(*kind).is_none())
            {
                decision.frequencies.push((*kind, frequency));
            }
        }
        decision.timestamps = decision.timestamps.or(rule.timestamps.value);
        decision.bridge = decision.bridge.or(rule.bridge.value);
    }
    let own = rules.iter().filter(|rule| rule.conditions.hold(facts));
    let granted = |rule: &Rule| {
        let is_granted = rule.own_destination.value?;
        Some(is_granted && rule.conditions.are_no_claims(facts))
    };
    decision.choice.own_destination = own.filter_map(granted).next().unwrap_or(false);
    decision
}

fn first(chosen: &mut Option<String>, value: &Option<String>) {
    if chosen.is_none() {
        chosen.clone_from(value);
    }
}

/// `*` is any characters, `?` is one. At most length of pattern times length of text steps.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let before = (pattern.clone(), text.clone());
        match (pattern.next(), text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                // The star takes nothing first.
                text = before.1;
                star = Some((pattern.clone(), text.clone()));
            }
            (Some('?'), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => {
                // The last star takes one more.
                let Some((after, from)) = &mut star else { return false };
                if from.next().is_none() {
                    return false;
                }
                pattern = after.clone();
                text = from.clone();
            }
        }
    }
}
