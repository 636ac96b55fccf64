use std::collections::BTreeMap;

use strata_kinds::Kinds;

use super::*;
use crate::code_address::CodeAddress;
use crate::image_id::ImageId;

fn whole(address: u64) -> Arc<Whole> {
    let stack =
        Stack { user: [address].into(), end: End::Complete, era: 0, space: Space::default() };
    Arc::new(Whole { kernel: Box::default(), flags: 0, stack })
}

/// A thread that is new at 1,000.
fn account() -> Account {
    let thread = ThreadKey { image: ImageId(1), tid: 7, comm: [0; 16], domain: 0 };
    let state = STATE_RUNNABLE;
    let account = Account::unsent(thread, 7);
    Account { start: 1_000, until: 1_000, involuntary: u64::MAX, state, ..account }
}

/// A record: the state, the switches, and what it has run and waited for a CPU.
fn activity(state: u64, voluntary: u64, run: u64, delay: u64, previous: u64) -> Activity {
    let (syscall, involuntary, start) = (NO_SYSCALL, 0, 1_000);
    Activity { state, syscall, voluntary, involuntary, run, delay, start, previous }
}

fn times(aggregate: &Aggregate) -> BTreeMap<String, u64> {
    let mut times = BTreeMap::new();
    for row in aggregate.rows() {
        let labels = aggregate.labels_of(row.labels);
        let state = labels.iter().find(|(name, _)| &**name == "state");
        let state = state.map_or_else(String::new, |(_, value)| value.to_string());
        *times.entry(state).or_insert(0) += row.value;
    }
    times
}

fn expected(times: &[(&str, u64)]) -> BTreeMap<String, u64> {
    times.iter().map(|&(state, time)| (state.to_owned(), time)).collect()
}

#[test]
fn what_is_neither_run_nor_waited_for_a_cpu_was_blocked() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    one.take(2_000, &activity(1, 3, 200, 100, 500), Some(whole(16)), &mut to);
    // It does not move any more.
    one.count(10_000, &mut to);
    assert_eq!(times(&to), expected(&[("blocked", 8_700), ("runnable", 100), ("running", 200)]));
}

#[test]
fn a_thread_that_is_woken_waits_for_a_cpu_as_long_as_the_scheduler_says() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    one.take(2_000, &activity(1, 1, 0, 0, 500), Some(whole(16)), &mut to);
    // Found runnable at 4,000 and 5,000; it had been woken at 3,500 and ran from 5,400 to 5,500.
    one.take(4_000, &activity(STATE_RUNNABLE, 1, 0, 0, 3_000), Some(whole(16)), &mut to);
    one.take(5_000, &activity(STATE_RUNNABLE, 1, 0, 0, 4_000), Some(whole(16)), &mut to);
    one.take(6_000, &activity(1, 2, 100, 1_900, 5_000), Some(whole(32)), &mut to);
    one.count(6_000, &mut to);
    assert_eq!(times(&to), expected(&[("blocked", 3_000), ("runnable", 1_900), ("running", 100)]));
}

#[test]
fn a_thread_that_never_waited_was_never_blocked() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    let millisecond = 1_000_000;
    one.take(100 * millisecond, &activity(STATE_RUNNING, 0, 40, 0, 500), None, &mut to);
    // Another system had its CPU most of the time.
    one.running.push(whole(16));
    one.take(200 * millisecond, &activity(STATE_RUNNING, 0, 80, 0, 500), None, &mut to);
    one.count(200 * millisecond, &mut to);
    assert_eq!(times(&to), expected(&[("running", 200 * millisecond - 1_000)]));
}

#[test]
fn each_period_has_its_part_and_no_time_is_in_two() {
    let mut one = account();
    let [mut first, mut second] = [(); 2].map(|()| Aggregate::new(Kinds::NONE));
    one.take(2_000, &activity(STATE_RUNNING, 1, 900, 100, 500), None, &mut first);
    one.count(3_000, &mut first);
    // It had stopped running at 2,500.
    one.take(4_000, &activity(1, 2, 1_400, 100, 2_000), Some(whole(16)), &mut second);
    one.count(5_000, &mut second);
    let sums = [&first, &second].map(|to| times(to).values().sum::<u64>());
    assert_eq!(sums, [2_000, 2_000]);
    // What the first period counted too much of is not counted again.
    assert_eq!(times(&second), expected(&[("blocked", 2_000)]));
}

#[test]
fn time_at_a_place_without_tables_is_that_of_its_whole_stack() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    let cut = || {
        let mut whole = Arc::into_inner(whole(16)).expect("one owner");
        whole.stack.end = End::NoProcess;
        Arc::new(whole)
    };
    let waits = activity(1, 3, 0, 0, 500);
    one.take(2_000, &waits, Some(cut()), &mut to);
    one.take(3_000, &Activity { previous: 2_000, ..waits }, Some(cut()), &mut to);
    one.take(4_000, &Activity { previous: 3_000, ..waits }, Some(whole(32)), &mut to);
    one.count(10_000, &mut to);
    let mut times: Vec<u64> = to.rows().map(|row| row.value).collect();
    times.sort_unstable();
    assert_eq!(times, [1_000, 8_000]);
}

#[test]
fn what_a_thread_did_between_two_records_follows_each_other_in_time() {
    let kinds = Kinds::NONE.with(Kind::Wall, true);
    let (mut one, mut to) = (account(), Aggregate::new(kinds));
    one.running.push(whole(16));
    one.take(1_500, &activity(STATE_RUNNING, 1, 300, 200, 500), None, &mut to);
    one.running.extend([whole(16), whole(32), whole(48)]);
    one.take(2_500, &activity(1, 2, 903, 400, 1_500), Some(whole(64)), &mut to);
    one.count(3_000, &mut to);
    let mut spans: Vec<(u64, u64)> =
        to.ticks().map(|tick| (tick.time - tick.value, tick.time)).collect();
    spans.sort_unstable();
    println!("{spans:?}");
    assert!(spans.windows(2).all(|pair| matches!(pair, [one, next] if one.1 <= next.0)));
    assert_eq!(spans.last().map(|span| span.1), Some(3_000));
}

#[test]
fn a_thread_that_runs_again_was_blocked_before_it_ran() {
    let kinds = Kinds::NONE.with(Kind::Wall, true);
    let (mut one, mut to) = (account(), Aggregate::new(kinds));
    let millis = |count: u64| count * 1_000_000;
    one.take(millis(50), &activity(1, 1, 0, 0, 500), Some(whole(16)), &mut to);
    one.running.push(whole(32));
    let runs = activity(STATE_RUNNING, 1, millis(20), millis(1), millis(60));
    one.take(millis(100), &runs, None, &mut to);
    let mut spans: Vec<(u64, u64, String)> = to
        .ticks()
        .map(|tick| {
            let state = &to.labels_of(tick.labels)[0].1;
            (tick.time - tick.value, tick.time, state.to_string())
        })
        .collect();
    spans.sort();
    let states: Vec<&str> = spans.iter().map(|span| &*span.2).collect();
    assert_eq!(states, ["blocked", "blocked", "blocked", "running", "runnable"], "{spans:?}");
    assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "{spans:?}");
}

/// The time that a thread was runnable, by the address of its stack's one frame.
fn runnable(to: &Aggregate) -> Vec<(u64, u64)> {
    let mut sums = BTreeMap::new();
    for row in to.rows().filter(|row| &*to.labels_of(row.labels)[0].1 == "runnable") {
        match to.code_address(to.stack_of(row.stack)[0] as usize) {
            // In the calls before these return addresses.
            Some(CodeAddress::Unknown { address, .. }) => {
                *sums.entry(address + 1).or_insert(0) += row.value;
            }
            place => panic!("{place:?}"),
        }
    }
    sums.into_iter().collect()
}

#[test]
fn a_thread_waits_for_a_cpu_that_was_taken_away_where_it_ran() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    one.take(2_000, &activity(1, 1, 0, 0, 500), Some(whole(16)), &mut to);
    // It was woken once, and its CPU was taken away three times.
    one.running.extend([whole(32), whole(48)]);
    let runs = Activity { involuntary: 3, ..activity(STATE_RUNNING, 2, 200, 400, 1_500) };
    one.take(3_000, &runs, None, &mut to);
    assert_eq!(runnable(&to), [(16, 100), (32, 150), (48, 150)]);
}

/// Two functions: most samples are in one of them, and the CPU is taken away in the other.
#[test]
fn a_thread_waits_where_passes_have_met_it_without_its_cpu() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    let preempted = |state, involuntary, run, delay, previous| Activity {
        involuntary,
        ..activity(state, 0, run, delay, previous)
    };
    one.involuntary = 0;
    one.running.extend([whole(32), whole(32), whole(48)]);
    // Not met in such a wait yet.
    one.take(2_000, &preempted(STATE_RUNNING, 1, 700, 300, 500), None, &mut to);
    one.running.extend([whole(32), whole(32), whole(48)]);
    let waits = preempted(STATE_RUNNABLE, 2, 1_200, 800, 2_000);
    one.take(3_000, &waits, Some(whole(48)), &mut to);
    one.running.extend([whole(32), whole(32), whole(48)]);
    one.take(4_000, &preempted(STATE_RUNNING, 3, 1_600, 1_400, 3_000), None, &mut to);
    assert_eq!(runnable(&to), [(32, 200), (48, 100 + 500 + 600)]);
    // What it was met in before all was counted says nothing of a later minute.
    one.count(4_000, &mut to);
    one.running.extend([whole(32)]);
    one.take(5_000, &preempted(STATE_RUNNING, 4, 2_500, 1_500, 4_000), None, &mut to);
    assert_eq!(runnable(&to), [(32, 300), (48, 1_200)]);
}

#[test]
fn a_thread_that_is_met_after_it_was_woken_has_not_lost_its_cpu_there() {
    // It has been preempted once, has blocked again, where it had before or elsewhere, and was woken.
    for place in [16, 48] {
        let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
        one.involuntary = 0;
        one.take(2_000, &activity(1, 1, 0, 0, 500), Some(whole(16)), &mut to);
        one.running.extend([whole(32)]);
        let woken = Activity { involuntary: 1, ..activity(STATE_RUNNABLE, 2, 500, 200, 1_500) };
        one.take(3_000, &woken, Some(whole(place)), &mut to);
        let mut expected = [(place, 100), (32, 100)];
        expected.sort_unstable();
        assert_eq!(runnable(&to), expected);
    }
}

/// Where its CPU was taken away is walked again once there are tables.
#[test]
fn a_place_without_tables_has_no_time_of_a_thread_that_lost_its_cpu() {
    let (mut one, mut to) = (account(), Aggregate::new(Kinds::NONE));
    one.involuntary = 0;
    let mut cut = Arc::into_inner(whole(48)).expect("one owner");
    cut.stack.end = End::NoProcess;
    let preempted = |state, involuntary, run, delay| Activity {
        involuntary,
        ..activity(state, 0, run, delay, 500)
    };
    one.running.extend([whole(32)]);
    one.take(2_000, &preempted(STATE_RUNNABLE, 1, 700, 300), Some(Arc::new(cut)), &mut to);
    assert_eq!(runnable(&to), [(32, 300)]);
    one.take(2_500, &preempted(STATE_RUNNABLE, 1, 700, 300), Some(whole(64)), &mut to);
    one.running.extend([whole(32)]);
    one.take(3_500, &preempted(STATE_RUNNING, 2, 1_200, 1_300), None, &mut to);
    assert_eq!(runnable(&to), [(32, 300), (64, 1_000)]);
}
