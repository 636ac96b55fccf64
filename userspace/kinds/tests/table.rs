//! The guarantees of the table to its readers.

use std::collections::BTreeSet;

use strata_kinds::{Aggregation, Frequencies, Kind, Kinds, Measure, find_column, labels};

#[test]
fn the_ids_are_those_that_dashboards_know() {
    for (name, unit, id) in [
        ("cpu", "nanoseconds", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        ("samples", "count", "process_cpu:cpu_samples:count:cpu:nanoseconds"),
        ("wall", "nanoseconds", "wall:wall:nanoseconds:cpu:nanoseconds"),
        ("alloc_samples", "count", "memory:alloc_samples:count:space:bytes"),
        ("alloc_size", "bytes", "memory:alloc_size:bytes:space:bytes"),
        ("inuse_objects", "count", "memory:inuse_objects:count:space:bytes"),
        ("inuse_space", "bytes", "memory:inuse_space:bytes:space:bytes"),
        ("lock_count", "count", "lock:lock_count:count:cpu:nanoseconds"),
        ("lock_time", "nanoseconds", "lock:lock_time:nanoseconds:cpu:nanoseconds"),
        ("exceptions", "count", "exception:exception:count:cpu:nanoseconds"),
    ] {
        let column = find_column(name, unit).and_then(|(_, column)| column.pyroscope);
        assert_eq!(column.map(|column| column.to_string()).as_deref(), Some(id));
    }
}

#[test]
fn every_name_alias_and_column_belongs_to_one_kind() {
    let mut names = BTreeSet::new();
    let mut columns = BTreeSet::new();
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        let info = kind.info();
        assert_eq!((info.kind, Kind::from_number(number as u8)), (kind, Some(kind)));
        for name in std::iter::once(&info.name).chain(info.aliases) {
            assert!(names.insert(*name), "{name} twice");
            assert_eq!(Kind::find(name), Some(kind));
        }
        for column in info.columns {
            assert!(columns.insert((column.own.name, column.own.unit)), "{column:?} twice");
            assert_eq!(find_column(column.own.name, column.own.unit), Some((kind, column)));
        }
        assert!(info.default_column < info.columns.len(), "{kind}");
        let counts = info.columns.iter().filter(|column| column.measure == Measure::Count).count();
        // A record has one measured value, and a kind's columns are all of one aggregation.
        assert!(info.measured_columns() <= 1, "{kind}");
        let snapshots = info.columns.iter().map(|column| column.aggregation);
        assert!(snapshots.clone().all(|one| Some(one) == snapshots.clone().next()), "{kind}");
        assert_eq!(
            info.rate.is_some(),
            info.columns.iter().any(|column| column.measure == Measure::Period)
                || kind == Kind::Wall
        );
        assert!(counts <= 1 && !info.help.is_empty() && !info.title.is_empty(), "{kind}");
    }
}

#[test]
fn aliases_are_understood_in_any_case_and_with_either_dash() {
    for (text, kind) in [
        ("off-cpu", Kind::OffCpu),
        ("OFFCPU", Kind::OffCpu),
        ("alloc", Kind::Allocations),
        ("ex", Kind::Exceptions),
        ("Lock", Kind::Locks),
        ("live-heap", Kind::Heap),
    ] {
        assert_eq!(Kind::find(text), Some(kind), "{text}");
    }
    let both = Kinds::parse("cpu, exceptions,off-cpu").unwrap();
    assert!(both.iter().eq([Kind::Cpu, Kind::OffCpu, Kind::Exceptions]));
    assert_eq!(both.to_string(), "cpu, off_cpu, exceptions");
}

#[test]
fn the_error_of_an_unknown_kind_lists_the_kinds() {
    let error = Kinds::parse("cpu,cycles").unwrap_err().to_string();
    assert!(error.starts_with("\"cycles\" is no kind of sample; there are cpu, wall"), "{error}");
    assert!(Kind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
}

#[test]
fn only_what_is_in_use_is_a_snapshot() {
    let snapshots = Kind::ALL.into_iter().flat_map(Kind::columns);
    let snapshots = snapshots.filter(|column| column.aggregation == Aggregation::Snapshot);
    let names: Vec<&str> = snapshots.map(|column| column.own.name).collect();
    assert_eq!(names, ["inuse_objects", "inuse_space"]);
}

#[test]
fn labels_of_many_values_and_those_of_users_are_separable() {
    assert!(labels::is_separable("exception message") && labels::is_separable("trace_id"));
    assert!(labels::is_separable("customer") && !labels::is_separable("exception type"));
    assert!(!labels::is_separable("tid"));
}

#[test]
fn the_values_of_a_row_follow_from_what_its_columns_measure() {
    let values = |kind: Kind, period| kind.info().values(3, 70, period).collect::<Vec<_>>();
    assert_eq!(values(Kind::Cpu, 10), [3, 30]);
    assert_eq!(values(Kind::Wall, 10), [70]);
    assert_eq!(values(Kind::Exceptions, 1), [3]);
    assert_eq!(values(Kind::Locks, 1), [3, 70]);
    assert!(Kind::Heap.info().is_snapshot() && !Kind::Allocations.info().is_snapshot());
    let lasts = |kind: Kind| kind.info().duration_column();
    assert_eq!(
        [Kind::Cpu, Kind::Locks, Kind::Exceptions, Kind::Allocations].map(lasts),
        [Some(1), Some(1), None, None]
    );
}

#[test]
fn a_kind_of_a_clock_has_the_period_of_its_rate() {
    let of_recording = Frequencies::of_recording();
    assert_eq!((of_recording.of(Kind::Cpu), of_recording.period(Kind::Exceptions)), (97, 1));
    assert_eq!(of_recording.with(Kind::Cpu, 100).period(Kind::Cpu), 10_000_000);
    assert_eq!(Frequencies::of_daemon().of(Kind::Cpu), 19);
}
