//! Folded stacks and perf-script text, against the reader of another tool.

mod support;

use std::collections::BTreeMap;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};
use strata_kinds::{Kind, Kinds};
use strata_profile::{
    Format, Profile, ProfileBuilder, ReadError, WriteOptions, pprof, read, write,
};
use support::{HOSTILE_NAMES, PERIOD, everything, hostile, recording};

fn written(profile: &Profile, format: Format) -> String {
    let mut bytes = Vec::new();
    write(profile, format, &WriteOptions::default(), &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn counts(folded: &str) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for line in folded.lines() {
        let (names, count) = line.rsplit_once(' ').unwrap();
        *counts.entry(names.to_owned()).or_default() += count.parse::<i64>().unwrap();
    }
    counts
}

/// inferno weighs an event with its period; other readers count events.
fn collapsed_by_inferno(perf_script: &str) -> BTreeMap<String, i64> {
    let mut options = Options::default();
    options.nthreads = 1;
    let mut folded = Vec::new();
    Folder::from(options).collapse(perf_script.as_bytes(), &mut folded).unwrap();
    let weights = counts(&String::from_utf8(folded).unwrap());
    weights.into_iter().map(|(names, weight)| (names, weight / PERIOD)).collect()
}

/// What strata and inferno should agree on: perf's text names the thread alone, and inferno writes
/// `_` for spaces in its name.
fn as_inferno_has_it(folded: &str) -> BTreeMap<String, i64> {
    counts(folded)
        .into_iter()
        .map(|(names, count)| (names.replace("app;worker 1", "worker_1"), count))
        .collect()
}

fn without_timeline(profile: &Profile) -> Profile {
    let mut bytes = Vec::new();
    pprof::encode(profile, &mut bytes).unwrap();
    pprof::decode(&bytes).unwrap()
}

#[test]
fn counts_stand_for_cpu_time_only_where_all_samples_have_one_rate() {
    const SECOND: i64 = 1_000_000_000;
    let of = |rates: [i64; 2]| {
        let mut builder = ProfileBuilder::of_kinds(Kinds::NONE.with(Kind::Cpu, true));
        for (pid, rate) in (1_u32..).zip(rates) {
            builder.set_period_of(Kind::Cpu, SECOND / rates[0]);
            let thread = builder.thread(pid, pid, &format!("of_{rate}"), "main", "");
            let labels = builder.thread_labels(thread);
            let stack = builder.stack(&[]);
            builder.add(stack, labels, &[rate, rate * (SECOND / rate)]);
        }
        let folded = written(&builder.finish(), Format::Folded);
        folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let counted: Vec<i64> = of([19, 19]);
    assert_eq!(counted, [38]);
    let timed: Vec<i64> = of([19, 99]);
    assert!(timed.iter().all(|time| (SECOND - 200..=SECOND).contains(time)), "{timed:?}");
}

#[test]
fn folded_stacks_have_the_process_and_the_thread_first_and_the_leaf_last() {
    let folded = written(&everything(), Format::Folded);
    let counts = counts(&folded);
    assert_eq!(counts.get("app;app::outer;app::inner;read;vfs_read"), Some(&500), "{folded}");
    assert_eq!(
        counts.get("app;worker 1;app::outer;app::inner;*render view.js:3;Shop.Order.Pay"),
        Some(&50)
    );
    assert_eq!(counts.get("other;[truncated];[unknown];libc.so.6!0x29234"), Some(&25), "{folded}");
    assert_eq!(counts.values().sum::<i64>(), 1000);
}

#[test]
fn folded_stacks_are_read_back_as_they_were() {
    for profile in [everything(), hostile()] {
        let folded = written(&profile, Format::Folded);
        let again = read(folded.as_bytes()).unwrap();
        assert_eq!(counts(&written(&again, Format::Folded)), counts(&folded));
    }
    let again = read(written(&hostile(), Format::Folded).as_bytes()).unwrap();
    for name in HOSTILE_NAMES {
        let kept = again.samples().any(|sample| {
            let leaf = again.stack(sample.stack).next().map(|id| again.location(id));
            leaf.is_some_and(|leaf| again.string(again.frames(leaf)[0].name) == name)
        });
        assert!(kept, "{name:?}");
    }
}

#[test]
fn folded_stacks_of_other_tools_keep_their_kinds() {
    let profile = read(b"java;main;work_[j];sys_read_[k] 3\r\n\njava;main 1.0\n").unwrap();
    let text = written(&profile, Format::Svg);
    assert!(text.contains("Kernel 75.0 %"), "{text}");
    assert_eq!(profile.total(0), 4);
}

#[test]
fn control_bytes_in_folded_stacks_of_other_tools_are_read_as_names() {
    let profile = read(b"app;main;\x1b[31mred 3\n").unwrap();
    assert_eq!(written(&profile, Format::Folded), "app;main;\\x1b[31mred 3\n");
}

#[test]
fn text_that_is_no_profile_says_where() {
    assert!(matches!(read(b"a;b 1\nnonsense\n"), Err(ReadError::NotFolded { line: 2 })));
    assert!(matches!(read(b"{\"meta\":{}}"), Err(ReadError::WriteOnly(_))));
    assert!(matches!(read(b"<?xml version"), Err(ReadError::WriteOnly(_))));
    assert!(matches!(read(b""), Err(ReadError::Empty)));
}

#[test]
fn another_tool_reads_the_same_stacks_from_the_perf_text() {
    let profile = everything();
    let expected = as_inferno_has_it(&written(&profile, Format::Folded));
    // inferno leaves out the module of a name it has, and writes unnamed code its own way.
    let named = |counts: BTreeMap<String, i64>| {
        counts
            .into_iter()
            .filter(|(names, _)| !names.starts_with("other"))
            .collect::<BTreeMap<_, _>>()
    };
    let from_timeline = collapsed_by_inferno(&written(&profile, Format::PerfScript));
    assert_eq!(named(from_timeline), named(expected.clone()));
    let repeated = collapsed_by_inferno(&written(&without_timeline(&profile), Format::PerfScript));
    assert_eq!(named(repeated), named(expected));
}

#[test]
fn perf_text_looks_as_perf_prints_it() {
    let text = written(&everything(), Format::PerfScript);
    let first: Vec<&str> = text.lines().take(5).collect();
    assert_eq!(
        first,
        [
            "app 41/41 [000] 0.000000: 10309278 cpu-clock: ",
            "\tffffffff81234567 vfs_read ([kernel.kallsyms])",
            "\t    7f0000100000 read (/usr/lib/libc.so.6)",
            "\t          551234 app::inner (/srv/app__deleted_)",
            "\t          551234 app::outer (/srv/app__deleted_)",
        ]
    );
}

#[test]
fn hostile_names_do_not_break_lines() {
    let profile = hostile();
    let events: i64 = profile.total(0);
    let text = written(&profile, Format::PerfScript);
    assert_eq!(text.matches("cpu-clock: \n").count() as i64, events);
    assert_eq!(text.lines().filter(|line| line.is_empty()).count() as i64, events);
    for text in [text, written(&profile, Format::Folded)] {
        assert!(
            !text.chars().any(|character| character.is_control() && !"\n\t".contains(character))
        );
    }
}

#[test]
fn a_profile_without_samples_is_an_empty_text() {
    let empty = recording().finish();
    assert_eq!(written(&empty, Format::Folded), "");
    assert_eq!(written(&empty, Format::PerfScript), "");
}
