//! The example contains every setting, and no other.

use strata_config::{EXAMPLE, Inputs, Loaded, Origin, load};

fn loaded(text: &str) -> Loaded {
    let inputs = Inputs { file: Some(("strata.toml", text)), ..Inputs::default() };
    load(&inputs).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

/// The example with what is off in it switched on.
fn all_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(example) if !example.is_empty() && !example.starts_with(' ') => format!("{example}\n"),
        _ => format!("{line}\n"),
    };
    EXAMPLE.lines().map(on).collect()
}

fn values(loaded: &Loaded) -> Vec<(String, String)> {
    loaded.shown.iter().map(|shown| (shown.key.clone(), shown.value.clone())).collect()
}

#[test]
fn the_example_equals_the_defaults() {
    let defaults = load(&Inputs::default()).expect("nothing is a configuration");
    let example = loaded(EXAMPLE);
    assert_eq!(values(&example), values(&defaults));
    assert!(example.configuration.exporters.is_empty() && example.configuration.rules.is_empty());
}

#[test]
fn the_example_writes_every_setting_out() {
    for shown in loaded(EXAMPLE).shown {
        assert!(matches!(shown.origin, Origin::File { .. }), "{} is not in the example", shown.key);
    }
}

#[test]
fn the_examples_exporters_and_rules_can_be_switched_on() {
    let all = loaded(&all_on());
    assert_eq!(all.configuration.exporters.len(), 4);
    assert_eq!(all.configuration.rules.len(), 1);
    for shown in &all.shown {
        let in_first =
            shown.key.starts_with("exporter.pyroscope.") || shown.key.starts_with("rule.");
        // What only some kinds use stands there.
        let is_of_others = [".protocol", ".timestamps"].iter().any(|end| shown.key.ends_with(end));
        if in_first && !is_of_others {
            assert!(
                matches!(shown.origin, Origin::File { .. }),
                "{} is not in the example",
                shown.key
            );
        }
    }
}

#[test]
fn the_examples_exporters_equal_what_a_exporter_has_by_itself() {
    let bare = loaded(
        "[exporter.pyroscope]\nkind='pyroscope'\n[exporter.datadog]\nkind='datadog'\n[exporter.otlp]\nkind='otlp'\n[exporter.file]\nkind='file'\n",
    );
    let bare = values(&bare);
    for (key, value) in values(&loaded(&all_on())) {
        let chosen = key.contains(".headers.") || key.ends_with(".kind");
        if key.starts_with("exporter.") && !chosen {
            assert!(bare.contains(&(key.clone(), value.clone())), "{key} = {value}");
        }
    }
}
