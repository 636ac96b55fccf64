//! Whatever a target writes, an identity stays within its bounds.

use proptest::collection::vec;
use proptest::prelude::*;
use strata_kinds::Kinds;
use strata_metadata::control_group;
use strata_metadata::destinations::VARIABLES;
use strata_metadata::identity::RESERVED;
use strata_metadata::text::Limits;
use strata_metadata::types;
use strata_metadata::{Choice, Environment, Facts, Identity, Source, identify};

fn who(block: &[u8]) -> Identity {
    let facts = Facts { environment: Environment::new(block), comm: "comm", ..Facts::default() };
    identify(&facts, &Choice::default(), Kinds::NONE)
}

fn assert_within_bounds(who: &Identity) {
    assert!(!who.service.value.is_empty());
    let named = [Some(&who.service), who.env.as_ref(), who.version.as_ref()];
    for value in named.into_iter().flatten() {
        assert!(value.value.len() <= Limits::NAME);
        assert!(!value.value.chars().any(char::is_control));
    }
    assert!(who.labels.len() <= Limits::LABELS + RESERVED.len());
    assert!(who.labels.is_sorted_by(|a, b| a.name < b.name));
    for label in &who.labels {
        assert!((1..=Limits::LABEL_NAME + 1).contains(&label.name.len()));
        assert!((1..=Limits::LABEL_VALUE).contains(&label.value.len()));
        assert!(!label.value.chars().any(char::is_control));
        assert!(!label.name.starts_with("__"));
        assert!(!RESERVED.contains(&label.name.as_str()));
    }
}

fn variable() -> impl Strategy<Value = Vec<u8>> {
    let names: Vec<&str> = types::variables()
        .chain(VARIABLES.iter().copied())
        .chain(["DD_TAGS", "DD_SERVICE", "PYROSCOPE_LABELS", "OTEL_RESOURCE_ATTRIBUTES"])
        .collect();
    let value = prop_oneof![
        vec(any::<u8>(), 0..200),
        "[a-z_.:=,% \\u{202e}{}]{0,400}".prop_map(String::into_bytes),
        "([a-z]{1,3}[:=][a-z0-9]{0,3}[ ,]){0,100}".prop_map(String::into_bytes),
    ];
    (proptest::sample::select(names), value)
        .prop_map(|(name, value)| [name.as_bytes(), b"=", &value, b"\0"].concat())
}

proptest! {
    #[test]
    fn random_bytes_make_a_bounded_identity(block in vec(any::<u8>(), 0..4096)) {
        assert_within_bounds(&who(&block));
    }

    #[test]
    fn random_values_of_known_variables_make_a_bounded_identity(
        variables in vec(variable(), 0..20)
    ) {
        let block = variables.concat();
        let who = who(&block);
        assert_within_bounds(&who);
        prop_assert!(who.wishes.is_empty());
        prop_assert_eq!(who.clone(), self::who(&block));
    }

    #[test]
    fn any_control_group_is_read(text in "([0-9]{1,2}:[a-z=]{0,9}:(/[a-z0-9.@:_\\\\x-]{0,70}){0,5}\n|.*\n){0,9}") {
        let group = control_group::parse(&text);
        if let Some(id) = &group.container {
            prop_assert!(matches!(id.len(), 32 | 64));
        }
        if let Some(unit) = &group.unit {
            prop_assert!(unit.ends_with(".service"));
            control_group::unit_service(unit);
        }
    }

    #[test]
    fn any_names_of_process_and_assembly_are_taken(exe in ".*", assembly in ".*", comm in ".*") {
        let facts = Facts {
            exe: Some(&exe),
            entry_assembly: Some(&assembly),
            comm: &comm,
            ..Facts::default()
        };
        assert_within_bounds(&identify(&facts, &Choice::default(), Kinds::NONE));
    }
}

#[test]
fn what_is_over_a_limit_is_cut_and_counted() {
    let tags: Vec<String> = (0..30).map(|number| format!("k{number}:v")).collect();
    let block = format!(
        "DD_SERVICE={}\0DD_TAGS={},long:{}\0OTEL_RESOURCE_ATTRIBUTES=novalue\0",
        "s".repeat(300),
        tags.join(","),
        "v".repeat(600)
    );
    let who = who(block.as_bytes());
    assert_within_bounds(&who);
    assert_eq!(who.service.value.len(), Limits::NAME);
    assert_eq!(who.service.source, Source::DdService);
    assert_eq!(who.labels.len(), Limits::LABELS);
    assert_eq!(who.refused.cut, 2);
    assert_eq!(who.refused.over_limit, 11);
    assert_eq!(who.refused.malformed, 1);
}
