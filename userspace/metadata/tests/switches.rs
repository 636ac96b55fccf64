//! Which types are sampled: variables of both families, rules, and strata's default.

use std::time::Duration;

use strata_kinds::{Kind, Kinds};
use strata_metadata::types::{AUTO_AGE, Because, Switched};
use strata_metadata::{Choice, Environment, Facts, identify};

fn switched(variables: &[&str], choice: &Choice) -> Switched {
    let block: Vec<u8> = variables.join("\0").into_bytes();
    let facts = Facts { environment: Environment::new(&block), ..Facts::default() };
    identify(&facts, choice, types(&[Kind::Cpu, Kind::Exceptions])).types
}

fn types(kinds: &[Kind]) -> Kinds {
    kinds.iter().copied().collect()
}

fn on(variables: &[&str]) -> Vec<&'static str> {
    switched(variables, &Choice::default()).on.iter().map(Kind::name).collect()
}

#[test]
fn unset_means_the_hosts_own_choice() {
    assert_eq!(on(&[]), ["cpu", "exceptions"]);
    assert_eq!(
        on(&["PYROSCOPE_PROFILING_CPU_ENABLED=", "DD_PROFILING_ENABLED=perhaps"]),
        ["cpu", "exceptions"]
    );
}

#[test]
fn a_switch_of_either_family_switches_its_type() {
    assert_eq!(on(&["PYROSCOPE_PROFILING_LOCK_ENABLED=true"]), ["cpu", "exceptions", "locks"]);
    assert_eq!(on(&["DD_PROFILING_EXCEPTION_ENABLED=0"]), ["cpu"]);
    assert_eq!(
        on(&["DD_PROFILING_WALLTIME_ENABLED=1", "DD_PROFILING_CPU_ENABLED=no"]),
        ["wall", "exceptions"]
    );
}

#[test]
fn a_master_switch_that_is_off_switches_everything_off() {
    assert!(on(&["DD_PROFILING_ENABLED=false", "DD_PROFILING_HEAP_ENABLED=true"]).is_empty());
    assert!(on(&["PYROSCOPE_PROFILING_ENABLED=False", "DD_PROFILING_CPU_ENABLED=true"]).is_empty());
}

#[test]
fn a_master_switch_decides_on_kinds_without_a_variable_of_their_own_only_where_it_is_off() {
    let own = types(&[Kind::OffCpu, Kind::WaitHandles]);
    let of = |variable: &str, defaults| {
        let facts =
            Facts { environment: Environment::new(variable.as_bytes()), ..Facts::default() };
        identify(&facts, &Choice::default(), defaults).types
    };
    for master in ["DD_PROFILING_ENABLED", "PYROSCOPE_PROFILING_ENABLED"] {
        let off = of(&format!("{master}=false"), own);
        assert!(off.on.is_empty(), "{master}: {:?}", off.on);
        assert_eq!(off.because(Kind::OffCpu), Because::Variable(master));
        for value in ["true", "auto"] {
            let variable = format!("{master}={value}");
            assert_eq!(of(&variable, own).on, own, "{variable}");
            assert!(of(&variable, Kinds::NONE).on.is_empty(), "{variable}");
        }
    }
}

#[test]
fn a_master_switch_that_is_on_leaves_the_types_as_they_are() {
    assert_eq!(on(&["DD_PROFILING_ENABLED=true"]), ["cpu", "exceptions"]);
    assert_eq!(
        on(&["DD_PROFILING_ENABLED=1", "DD_PROFILING_HEAP_ENABLED=1"]),
        ["cpu", "exceptions", "heap"]
    );
}

#[test]
fn the_narrower_of_two_families_wins_whichever_it_is() {
    for (pyroscope, datadog) in [("true", "false"), ("false", "true"), ("false", "false")] {
        let variables = [
            format!("PYROSCOPE_PROFILING_CPU_ENABLED={pyroscope}"),
            format!("DD_PROFILING_CPU_ENABLED={datadog}"),
        ];
        let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        assert_eq!(on(&variables), ["exceptions"], "{variables:?}");
    }
    assert_eq!(
        on(&["PYROSCOPE_PROFILING_GC_ENABLED=true", "DD_PROFILING_GC_ENABLED=true"]),
        ["cpu", "exceptions", "gc"]
    );
}

#[test]
fn auto_waits_and_is_narrower_than_on_and_wider_than_off() {
    let auto = switched(
        &["PYROSCOPE_PROFILING_ENABLED=true", "DD_PROFILING_ENABLED=auto"],
        &Choice::default(),
    );
    assert_eq!(auto.from_age, AUTO_AGE);
    assert_eq!(auto.age_because, Because::Variable("DD_PROFILING_ENABLED"));
    assert!(auto.on.contains(Kind::Cpu));
    assert!(on(&["PYROSCOPE_PROFILING_ENABLED=false", "DD_PROFILING_ENABLED=auto"]).is_empty());
    assert_eq!(
        switched(&["DD_PROFILING_ENABLED=true"], &Choice::default()).from_age,
        Duration::ZERO
    );
}

#[test]
fn auto_for_one_type_says_nothing() {
    assert_eq!(on(&["DD_PROFILING_HEAP_ENABLED=auto"]), ["cpu", "exceptions"]);
}

#[test]
fn a_new_name_counts_before_its_old_one() {
    let old = "DD_PROFILING_CONTENTION_ENABLED=true";
    assert_eq!(on(&[old]), ["cpu", "exceptions", "locks"]);
    assert_eq!(on(&[old, "DD_PROFILING_LOCK_ENABLED=false"]), ["cpu", "exceptions"]);
}

#[test]
fn a_rules_choice_comes_before_every_variable() {
    let variables = ["DD_PROFILING_ENABLED=false", "PYROSCOPE_PROFILING_WALLTIME_ENABLED=true"];
    let rule = Choice { types: Some(types(&[Kind::Heap])), ..Choice::default() };
    let by_rule = switched(&variables, &rule);
    assert_eq!(by_rule.on, types(&[Kind::Heap]));
    assert_eq!(by_rule.because(Kind::Cpu), Because::Rule);

    let off = Choice { enabled: Some(false), ..rule };
    assert!(switched(&variables, &off).on.is_empty());

    let on = Choice { enabled: Some(true), ..Choice::default() };
    let by_rule = switched(&variables, &on);
    assert_eq!(by_rule.on, types(&[Kind::Cpu, Kind::Wall, Kind::Exceptions]));
    let auto = switched(&["DD_PROFILING_ENABLED=auto"], &on);
    assert_eq!(auto.from_age, Duration::ZERO);
}

#[test]
fn every_type_says_why_it_is_on_or_off() {
    let switched = switched(
        &["PYROSCOPE_PROFILING_CPU_ENABLED=true", "DD_PROFILING_CPU_ENABLED=false"],
        &Choice::default(),
    );
    assert_eq!(switched.because(Kind::Cpu), Because::Variable("DD_PROFILING_CPU_ENABLED"));
    assert_eq!(switched.because(Kind::Exceptions), Because::Default);
}
