//! The Firefox profiler's JSON, read back.

mod support;

use std::io::Read;

use serde_json::Value;
use strata_kinds::Kind;
use strata_profile::{
    Format, FrameKind, Label, LabelValue, Profile, ProfileBuilder, Tick, WriteOptions, pprof, write,
};
use support::{PERIOD, everything, hostile, on_cpu, recording};

fn json(profile: &Profile) -> Value {
    let mut bytes = Vec::new();
    write(profile, Format::Firefox, &WriteOptions::default(), &mut bytes).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn thread<'j>(profile: &'j Value, name: &str) -> &'j Value {
    let threads = profile["threads"].as_array().unwrap();
    threads.iter().find(|thread| thread["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

fn weight(thread: &Value) -> i64 {
    thread["samples"]["weight"]
        .as_array()
        .unwrap()
        .iter()
        .map(|weight| weight.as_i64().unwrap())
        .sum()
}

/// The names of the stack of a thread's sample, leaf first, with their categories.
fn stack(profile: &Value, thread: &Value, sample: usize) -> Vec<(String, String)> {
    let at = |table: &Value, column: &str, row: u64| table[column][row as usize].clone();
    let mut names = Vec::new();
    let mut stack = thread["samples"]["stack"][sample].as_u64();
    while let Some(row) = stack {
        let frame = at(&thread["stackTable"], "frame", row).as_u64().unwrap();
        let function = at(&thread["frameTable"], "func", frame).as_u64().unwrap();
        let name = at(&thread["funcTable"], "name", function).as_u64().unwrap();
        let category = at(&thread["frameTable"], "category", frame).as_u64().unwrap();
        let strings = if thread["stringArray"].is_array() {
            &thread["stringArray"]
        } else {
            &profile["shared"]["stringArray"]
        };
        names.push((
            strings[name as usize].as_str().unwrap().to_owned(),
            profile["meta"]["categories"][category as usize]["name"].as_str().unwrap().to_owned(),
        ));
        stack = at(&thread["stackTable"], "prefix", row).as_u64();
    }
    names
}

#[test]
fn threads_have_their_names_processes_times_and_cpu_use() {
    let profile = json(&everything());
    let worker = thread(&profile, "worker 1");
    assert_eq!(worker["processName"], "app");
    assert_eq!(worker["pid"], "41");
    assert_eq!(worker["isMainThread"], false);
    assert_eq!(thread(&profile, "app")["isMainThread"], true);
    assert_eq!(weight(worker), 170);
    let deltas = worker["samples"]["timeDeltas"].as_array().unwrap();
    assert_eq!(deltas[0].as_f64(), Some(8000.0));
    assert_eq!(deltas[1].as_f64(), Some(10.0));
    assert_eq!(worker["samples"]["threadCPUDelta"][0].as_i64(), Some(PERIOD / 1000));
    assert_eq!(profile["meta"]["startTime"].as_f64(), Some(1_763_712_550_000.0));
    assert_eq!(profile["meta"]["product"], "Flame graph (web-1)");
}

#[test]
fn stacks_have_their_names_and_kinds() {
    let profile = json(&everything());
    let kinds = |list: &[(&str, &str)]| {
        list.iter().map(|&(name, kind)| (name.to_owned(), kind.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(
        stack(&profile, thread(&profile, "app"), 0),
        kinds(&[
            ("vfs_read", "Kernel"),
            ("read", "Native"),
            ("app::inner", "Native"),
            ("app::outer", "Native")
        ])
    );
    assert_eq!(
        stack(&profile, thread(&profile, "worker 1"), 169)[..2],
        kinds(&[("Shop.Order.Pay", "Managed"), ("*render view.js:3", "JIT")])
    );
}

#[test]
fn a_profile_without_a_timeline_keeps_its_shares() {
    let mut bytes = Vec::new();
    pprof::encode(&everything(), &mut bytes).unwrap();
    let profile = json(&pprof::decode(&bytes).unwrap());
    assert_eq!(weight(thread(&profile, "app")), 800);
    assert_eq!(weight(thread(&profile, "worker 1")), 170);
    assert_eq!(weight(thread(&profile, "other")), 30);
    let deltas = thread(&profile, "app")["samples"]["timeDeltas"].as_array().unwrap();
    assert!(deltas.iter().all(|delta| delta.as_f64().unwrap() >= 0.0));
}

#[test]
fn hostile_and_empty_profiles_are_valid() {
    let profile = json(&hostile());
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.iter().map(weight).sum::<i64>(), 105);
    assert_eq!(threads[0]["processName"], "\\x1b]0;owned\\x07\"'&");
    assert_eq!(json(&recording().finish())["threads"].as_array().map(Vec::len), Some(0));
}

#[test]
fn waits_and_events_are_markers_of_their_thread_for_as_long_as_they_lasted() {
    let kinds = [Kind::Cpu, Kind::Exceptions, Kind::Locks, Kind::Gc].into_iter().collect();
    let mut builder = ProfileBuilder::of_kinds(kinds);
    builder.keep_timeline();
    let of = builder.thread(41, 42, "worker", "app", "");
    let labels = builder.thread_labels(of);
    let frame = builder.frame(FrameKind::Managed, "Shop.Pay", "", "", 0);
    let location = builder.location(1, None, &[frame]);
    let stack = builder.stack(&[location]);
    let key = builder.string("exception type");
    let value = LabelValue::Text(builder.string("Sold"));
    let mut thrown = builder.so_far().labels(labels).to_vec();
    thrown.push(Label { key, value });
    let thrown = builder.labels(&thrown);
    builder.tick(on_cpu(labels, stack, 20_000_000));
    for (kind, labels, value) in [
        (Kind::Locks, labels, 8_000_000),
        (Kind::Gc, labels, 3_000_000),
        (Kind::Exceptions, thrown, 0),
    ] {
        builder.tick(Tick { kind, labels, stack, time: 30_000_000, weight: 1, value });
    }
    let profile = json(&builder.finish());
    let worker = thread(&profile, "worker");
    assert_eq!(weight(worker), 1, "only a slice of a CPU is a sample");
    let strings = match &worker["stringArray"] {
        Value::Array(_) => &worker["stringArray"],
        _ => &profile["shared"]["stringArray"],
    };
    let markers = &worker["markers"];
    let named: Vec<(&str, Option<f64>, Option<f64>)> = markers["name"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let name = strings[name.as_u64().unwrap() as usize].as_str().unwrap();
            (name, markers["startTime"][at].as_f64(), markers["endTime"][at].as_f64())
        })
        .collect();
    assert_eq!(named[0], ("Lock contention", Some(22.0), Some(30.0)));
    assert_eq!(named[1], ("GC pauses", Some(27.0), Some(30.0)));
    assert_eq!((named[2].0, named[2].1), ("Exceptions", Some(30.0)));
    assert!(
        markers["data"].to_string().contains("exception type: Sold") || {
            let details = markers["data"][2]["details"].as_u64().unwrap();
            strings[details as usize] == "exception type: Sold"
        }
    );
}
