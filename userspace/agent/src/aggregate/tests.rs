//! Samples of several kinds through one aggregate.

use super::*;

fn key(tid: u32) -> ThreadKey {
    ThreadKey { image: ImageId(0), tid, comm: *b"test\0\0\0\0\0\0\0\0\0\0\0\0", domain: 0 }
}

const WORDS: Words<'static> =
    Words { kernel: &[1, 2], user: &[3, 4], end: End::Complete, flags: 0, era: 0 };

/// A sample of thread 1.
fn sample<'a>(kind: Kind, stack: Words<'a>, space: &'a Space) -> Sample<'a> {
    let labels = LabelsId::NONE;
    Sample { kind, time: 0, thread: key(1), labels, weight: 1, value: 0, stack, space }
}

fn sums(aggregate: &Aggregate) -> Vec<(Kind, u64, u64)> {
    let mut sums: Vec<(Kind, u64, u64)> = Vec::new();
    for row in aggregate.rows() {
        match sums.last_mut().filter(|(kind, ..)| *kind == row.kind) {
            Some((_, weight, value)) => {
                *weight += row.weight;
                *value += row.value;
            }
            None => sums.push((row.kind, row.weight, row.value)),
        }
    }
    sums
}

#[test]
fn the_same_stack_is_kept_once() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kinds::NONE);
    for tid in 0..3 {
        for time in 0..2 {
            let thread = key(tid);
            aggregate.add(&Sample { time, thread, ..sample(Kind::Cpu, WORDS, &space) });
        }
    }
    assert_eq!(aggregate.stacks(), 1);
    assert_eq!(aggregate.rows().count(), 3);
    assert_eq!(sums(&aggregate), [(Kind::Cpu, 6, 0)]);
}

#[test]
fn kinds_share_stacks_and_never_a_count() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kinds::NONE);
    for kind in [Kind::Cpu, Kind::Locks, Kind::Cpu, Kind::Exceptions, Kind::Locks] {
        let value = if kind == Kind::Locks { 700 } else { 0 };
        aggregate.add(&Sample { weight: 3, value, ..sample(kind, WORDS, &space) });
    }
    assert_eq!((aggregate.stacks(), aggregate.threads().len()), (1, 1));
    let expected = [(Kind::Cpu, 6, 0), (Kind::Exceptions, 3, 0), (Kind::Locks, 6, 1400)];
    assert_eq!(sums(&aggregate), expected);
    assert_eq!(aggregate.samples(), 5);
    assert_eq!([Kind::Cpu, Kind::Wall].map(|kind| aggregate.samples_of(kind)), [2, 0]);
    assert_eq!(aggregate.ends_of(Kind::Locks)[End::Complete as usize], 2);
    assert_eq!(aggregate.ends()[End::Complete as usize], 5);
}

#[test]
fn samples_with_other_labels_are_other_rows() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kinds::NONE);
    for name in ["Sold", "Missing", "Sold"] {
        let labels = aggregate.labels(&[("exception type", name)]);
        aggregate.add(&Sample { labels, ..sample(Kind::Exceptions, WORDS, &space) });
    }
    let mut rows: Vec<_> = aggregate
        .rows()
        .map(|row| (aggregate.labels_of(row.labels)[0].1.to_string(), row.weight))
        .collect();
    rows.sort();
    assert_eq!(rows, [("Missing".to_owned(), 1), ("Sold".to_owned(), 2)]);
}

#[test]
fn a_row_has_as_many_samples_as_were_added_whatever_they_stand_for() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kinds::NONE);
    for kind in [Kind::Cpu, Kind::OffCpu, Kind::Exceptions] {
        let labels = match kind {
            Kind::Exceptions => aggregate.labels(&[("exception type", "Sold")]),
            _ => LabelsId::NONE,
        };
        let weight = if kind == Kind::Cpu { 1 } else { 50 };
        for _ in 0..3 {
            aggregate.add(&Sample { labels, weight, ..sample(kind, WORDS, &space) });
        }
    }
    let rows = aggregate.rows().map(|row| (row.kind, row.samples, row.weight));
    let expected = [(Kind::Cpu, 3, 3), (Kind::OffCpu, 3, 150), (Kind::Exceptions, 3, 150)];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn a_snapshot_replaces_the_one_before_of_its_process_alone() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kind::ALL.into_iter().collect());
    let of = |image: u32| ThreadKey { image: ImageId(image), ..key(1) };
    for (image, objects) in [(1, 5), (2, 7), (1, 6)] {
        aggregate.begin_snapshot(Kind::Heap, ImageId(image), 0);
        for _ in 0..2 {
            let thread = of(image);
            let of_heap = sample(Kind::Heap, WORDS, &space);
            aggregate.add(&Sample { thread, weight: objects, value: 100, ..of_heap });
        }
        // What happened is not undone by it.
        aggregate.begin_snapshot(Kind::Cpu, ImageId(image), 0);
        aggregate.add(&Sample { thread: of(image), ..sample(Kind::Cpu, WORDS, &space) });
    }
    assert_eq!(sums(&aggregate), [(Kind::Cpu, 3, 0), (Kind::Heap, 26, 400)]);
    assert!(!aggregate.times_kept().contains(Kind::Heap), "a snapshot is of one time");
}

#[test]
fn times_are_kept_for_the_kinds_that_were_asked_for() {
    let space = Space::default();
    let mut aggregate = Aggregate::new([Kind::Cpu, Kind::Locks].into_iter().collect());
    for (time, kind) in (10..).zip([Kind::Cpu, Kind::Locks, Kind::Exceptions, Kind::Cpu]) {
        let (weight, value) = if kind == Kind::Locks { (2, 500) } else { (1, 0) };
        aggregate.add(&Sample { time, weight, value, ..sample(kind, WORDS, &space) });
    }
    let ticks: Vec<_> =
        aggregate.ticks().map(|tick| (tick.kind, tick.time, tick.weight, tick.value)).collect();
    assert_eq!(ticks, [(Kind::Cpu, 10, 1, 0), (Kind::Cpu, 13, 1, 0), (Kind::Locks, 11, 2, 500)]);
    let before = aggregate.bytes();
    aggregate.keep_times(Kinds::NONE);
    assert!(aggregate.ticks().next().is_none() && aggregate.bytes() < before);
}

#[test]
fn a_stack_that_looks_like_what_is_hashed_with_it_is_a_stack_of_its_own() {
    let aggregate = Aggregate::new(Kinds::NONE);
    let hash = |era: u32| {
        // The words that say what those of the user mean.
        let user = [u64::from(era) << 32, 0, u64::from(End::Complete as u8)];
        let words = Words { kernel: &[], user: &user, end: End::Complete, flags: 0, era };
        aggregate.hash_of_words(ImageId(0), &words, &Space::default())
    };
    assert_ne!(hash(1), hash(2));
}

#[test]
fn a_cut_stack_is_another_stack_and_is_marked() {
    let space = Space::default();
    let mut aggregate = Aggregate::new(Kinds::NONE);
    let whole = Words { kernel: &[], ..WORDS };
    aggregate.add(&sample(Kind::Cpu, whole, &space));
    let cut = Words { end: End::FrameLimit, ..whole };
    aggregate.add(&sample(Kind::Cpu, cut, &space));
    assert_eq!(aggregate.stacks(), 2);
    let places: Vec<_> = aggregate.code_addresses().collect();
    let last = aggregate.stack_of(StackId(1)).last().map(|&place| places[place as usize]);
    assert_eq!(last, Some(CodeAddress::Marker(Marker::Truncated)));
}

#[test]
fn a_stack_that_was_larger_than_its_copy_is_incomplete_and_not_truncated() {
    let end = End::CaptureLimit;
    let incomplete = CodeAddress::Marker(Marker::Incomplete(end as u8));
    assert_eq!(CodeAddress::of_end(end), Some(incomplete));
}

#[test]
fn what_rows_and_times_refer_to_stays_when_they_are_taken_out() {
    let space = Space::default();
    let mut aggregate = Aggregate::new([Kind::Cpu].into_iter().collect());
    let labels = aggregate.labels(&[("color", "red")]);
    aggregate.add(&Sample { labels, ..sample(Kind::Cpu, WORDS, &space) });
    let (rows, ticks): (Vec<_>, Vec<_>) = (aggregate.rows().collect(), aggregate.ticks().collect());
    let places = |aggregate: &Aggregate| {
        let stack = aggregate.stack_of(rows[0].stack).to_vec();
        stack.iter().map(|place| aggregate.code_address(*place as usize)).collect::<Vec<_>>()
    };
    let (before, bytes) = (places(&aggregate), aggregate.bytes());
    aggregate.keep_what_is_referred_to();
    assert_eq!((aggregate.rows().count(), aggregate.ticks().count()), (0, 0));
    assert!(aggregate.bytes() < bytes);
    assert_eq!(places(&aggregate), before);
    assert_eq!(before.len(), 4);
    assert_eq!(aggregate.thread(ticks[0].thread), Some(key(1)));
    assert_eq!(aggregate.labels_of(rows[0].labels).len(), 1);
    assert_eq!((aggregate.samples(), aggregate.ends()[End::Complete as usize]), (1, 1));
}

#[test]
fn truncated_kernel_stacks_are_counted() {
    let (mut aggregate, space) = (Aggregate::new(Kinds::NONE), Space::default());
    let truncated = Words { flags: FLAG_KERNEL_CUT, ..WORDS };
    for stack in [WORDS, truncated, truncated] {
        aggregate.add(&sample(Kind::Cpu, stack, &space));
    }
    let shortfalls = Shortfalls { kernel_stacks_truncated: 2, ..Shortfalls::default() };
    assert_eq!(aggregate.shortfalls(), shortfalls);
    assert_eq!((shortfalls + shortfalls).kernel_stacks_truncated, 4);
}
