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

/// A thread of 41 with samples of elapsed time: kind, state, start and end in milliseconds.
fn elapsed(kinds: &[Kind], spans: &[(Kind, &str, u64, u64)]) -> ProfileBuilder {
    let mut builder = ProfileBuilder::of_kinds(kinds.iter().copied().collect());
    builder.keep_timeline();
    let of = builder.thread(41, 42, "worker", "app", "");
    let own = builder.thread_labels(of);
    let location = support::native(&mut builder, "Shop.Pay");
    let stack = builder.stack(&[location]);
    for &(kind, state, start, end) in spans {
        let mut labels = builder.so_far().labels(own).to_vec();
        let texts = [("state", state), ("syscall", "futex")];
        for (key, text) in texts.into_iter().take(1 + usize::from(state == "blocked")) {
            let value = LabelValue::Text(builder.string(text));
            labels.push(Label { key: builder.string(key), value });
        }
        let labels = builder.labels(&labels);
        let value = (end - start) * 1_000_000;
        builder.tick(Tick { kind, labels, stack, time: end * 1_000_000, weight: 1, value });
        let value = i64::try_from(value).unwrap();
        let mut values = vec![value];
        if kind == Kind::Cpu {
            values.insert(0, 1);
        }
        builder.add_of(kind, stack, labels, &values);
    }
    builder
}

fn markers_of<'j>(profile: &'j Value, thread: &'j Value) -> Vec<(String, f64, f64, String)> {
    let strings = match &thread["stringArray"] {
        Value::Array(_) => &thread["stringArray"],
        _ => &profile["shared"]["stringArray"],
    };
    let text =
        |value: &Value| strings[value.as_u64().unwrap() as usize].as_str().unwrap().to_owned();
    let markers = &thread["markers"];
    let names = markers["name"].as_array().unwrap().iter().enumerate();
    let marker = |(at, name): (usize, &Value)| {
        let [start, end] = ["startTime", "endTime"].map(|time| markers[time][at].as_f64().unwrap());
        (text(name), start, end, text(&markers["data"][at]["details"]))
    };
    names.map(marker).collect()
}

#[test]
fn each_state_of_a_thread_is_a_lane_of_markers_that_last_as_long_as_it() {
    let spans = [
        (Kind::Wall, "running", 0, 100),
        (Kind::Wall, "blocked", 100, 150),
        (Kind::Wall, "blocked", 150, 200),
        (Kind::OffCpu, "blocked", 100, 200),
        (Kind::Wall, "running", 200, 300),
        (Kind::Wall, "blocked", 300, 400),
    ];
    let builder = elapsed(&[Kind::Wall, Kind::OffCpu], &spans);
    let profile = json(&builder.finish());
    let worker = thread(&profile, "worker");
    let mut markers = markers_of(&profile, worker);
    markers.sort_by(|one, other| (&one.0, one.1 as i64).cmp(&(&other.0, other.1 as i64)));
    let expected = |name: &str, start, end, details: &str| {
        (name.to_owned(), f64::from(start), f64::from(end), details.to_owned())
    };
    let waits = "in Shop.Pay, syscall: futex";
    assert_eq!(
        markers,
        [
            expected("Off-CPU time: blocked", 100, 200, waits),
            expected("Wall-clock time: blocked", 100, 200, waits),
            expected("Wall-clock time: blocked", 300, 400, waits),
            expected("Wall-clock time: running", 0, 100, "in Shop.Pay"),
            expected("Wall-clock time: running", 200, 300, "in Shop.Pay"),
        ]
    );
    let categories = profile["meta"]["categories"].as_array().unwrap();
    let colors: Vec<_> = worker["markers"]["category"].as_array().unwrap().iter().collect();
    let is_colored =
        |index: &&Value| categories[index.as_u64().unwrap() as usize]["color"] != "grey";
    assert!(colors.iter().all(is_colored));
}

#[test]
fn without_samples_of_a_cpu_elapsed_time_is_samples_by_its_length() {
    let spans = [(Kind::Wall, "running", 0, 3_000), (Kind::Wall, "blocked", 3_000, 10_000)];
    let builder = elapsed(&[Kind::Wall], &spans);
    let profile = json(&builder.finish());
    let worker = thread(&profile, "worker");
    assert_eq!(worker["samples"]["weightType"], "tracing-ms");
    assert_eq!(weight(worker), 10_000);
    let cpu: Vec<_> = worker["samples"]["threadCPUDelta"].as_array().unwrap().iter().collect();
    assert_eq!(cpu, [3_000_000, 0]);
}

#[test]
fn a_wait_that_stands_for_several_is_as_long_as_one_of_them() {
    let mut builder = elapsed(&[Kind::Cpu, Kind::OffCpu], &[(Kind::Cpu, "running", 0, 10)]);
    let tick = builder.so_far().timeline().unwrap().next().unwrap();
    let (kind, time) = (Kind::OffCpu, 100_000_000);
    builder.tick(Tick { kind, time, weight: 4, value: 80_000_000, ..tick });
    let profile = json(&builder.finish());
    let markers = markers_of(&profile, thread(&profile, "worker"));
    assert_eq!((markers[0].1, markers[0].2), (80.0, 100.0));
}

/// Seconds that a pprof holds of a kind, each beyond what a weight in nanoseconds can say.
#[test]
fn long_waits_keep_their_shares_without_a_timeline() {
    let spans = [(Kind::Wall, "running", 0, 10_000), (Kind::Wall, "blocked", 10_000, 100_000)];
    let builder = elapsed(&[Kind::Wall], &spans);
    let mut bytes = Vec::new();
    pprof::encode(&builder.finish(), &mut bytes).unwrap();
    let profile = json(&pprof::decode(&bytes).unwrap());
    let worker = thread(&profile, "worker");
    let weights: Vec<_> = worker["samples"]["weight"].as_array().unwrap().iter().collect();
    assert_eq!(weights, [10_000, 90_000]);
    let cpu: Vec<_> = worker["samples"]["threadCPUDelta"].as_array().unwrap().iter().collect();
    assert_eq!(cpu, [10_000_000, 0], "a thread that waits uses no CPU");
}
