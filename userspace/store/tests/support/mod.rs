//! Profiles to store, and what is compared of an answer.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::time::Duration;

use strata_profile::{FrameKind, Label, LabelValue, LateKey, Profile, ProfileBuilder};
use strata_store::{Answer, Head, LateFrame, LateSymbol, Options, Store};

pub const SECOND: i64 = 1_000_000_000;
pub const HOUR: i64 = 3600 * SECOND;
/// A whole hour.
pub const START: i64 = 500_000 * HOUR;

pub fn head(service: &str, start: i64) -> Head {
    Head {
        service: service.to_owned(),
        kind: "cpu".to_owned(),
        labels: vec![("env".to_owned(), "prod".to_owned())],
        runtime_id: format!("{service}-1"),
        start_nanos: start,
        end_nanos: start + 15 * SECOND,
    }
}

/// A profile of `(stack, samples)`, a stack being its functions, root first.
pub fn profile(stacks: &[(&str, i64)]) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", 10_101_010);
    builder.set_host("node-1");
    let mapping = builder.mapping(0x1000, 0x9000, 0, "/app/Shop.dll", "abcd");
    for (at, (stack, count)) in stacks.iter().enumerate() {
        let mut id = strata_profile::StackId::default();
        for name in stack.split(';') {
            let frame = builder.frame(FrameKind::Managed, name, "", "Shop.cs", 7);
            let address = 0x1000 + at as u64 * 16;
            let location = builder.location(address, Some(mapping), &[frame]);
            id = builder.called_from(id, location);
        }
        let (comm, pid, worker) =
            (builder.string("comm"), builder.string("pid"), builder.string("worker"));
        let unit = strata_profile::StringId::default();
        let labels = builder.labels(&[
            Label { key: comm, value: LabelValue::Text(worker) },
            Label { key: pid, value: LabelValue::Number { value: 1 + at as i64, unit } },
        ]);
        builder.add(id, labels, &[*count, *count * 10_101_010]);
    }
    builder.finish()
}

/// A profile whose only frame lacks its symbol, and the symbol: `late7`.
pub fn late(key: u64, last_nanos: i64) -> (Profile, LateSymbol) {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let mapping = Some(builder.mapping(0, u64::MAX, 0, "/lib/slow.so", ""));
    let location = builder.late_location(0x14b0, mapping, LateKey(key));
    let stack = builder.stack(&[location]);
    let labels = builder.labels(&[]);
    builder.add(stack, labels, &[1, 10_101_010]);
    let frame = LateFrame {
        kind: FrameKind::Native,
        name: format!("late{key}").into(),
        system_name: "".into(),
        file: "slow.c".into(),
        line: 7,
    };
    let symbol = LateSymbol {
        key: LateKey(key),
        path: "/lib/slow.so".into(),
        build_id: "c0ffee".into(),
        frames: vec![frame],
        last_nanos,
    };
    (builder.finish(), symbol)
}

pub fn options() -> Options {
    Options { max_age: Duration::from_secs(30 * 24 * 3600), ..Options::default() }
}

pub fn store(directory: &std::path::Path) -> Store {
    Store::open(directory, options()).expect("the store opens")
}

/// Values by stack, root first.
pub fn stacks(profile: &Profile) -> BTreeMap<String, Vec<i64>> {
    let mut found: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for sample in profile.samples() {
        let mut names: Vec<_> = profile
            .stack(sample.stack)
            .flat_map(|location| profile.frames(profile.location(location)))
            .map(|frame| profile.string(frame.name))
            .collect();
        names.reverse();
        let sums = found.entry(names.join(";")).or_insert_with(|| vec![0; sample.values.len()]);
        for (sum, value) in sums.iter_mut().zip(sample.values) {
            *sum += value;
        }
    }
    found
}

pub fn counts(answer: &Answer) -> BTreeMap<String, i64> {
    stacks(&answer.profile).into_iter().map(|(stack, values)| (stack, values[0])).collect()
}
