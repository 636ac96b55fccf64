use std::collections::BTreeMap;

use strata_abi::record::{End, NO_SYSCALL, STATE_RUNNING};
use strata_kinds::Kinds;

use super::*;
use crate::code_address::CodeAddress;
use crate::engine::samples::tests::header;
use crate::engine::waits::Stack;

const SECOND: u64 = 1_000_000_000;
const PERIOD: u64 = SECOND / 100;

fn thread(image: u32, tid: u32) -> ThreadKey {
    ThreadKey { image: ImageId(image), tid, comm: [0; 16], domain: 0 }
}

/// A stack of one frame.
fn at(address: u64) -> Whole {
    let stack =
        Stack { user: [address].into(), end: End::Complete, era: 0, space: Space::default() };
    Whole { kernel: Box::default(), flags: 0, stack }
}

fn wall() -> Wall {
    Wall { started: SECOND, ..Wall::new(PERIOD) }
}

/// A record of a thread of process 7 at a time, in seconds.
fn taken(wall: &mut Wall, image: u32, tid: u32, seconds: u64, now: Activity, to: &mut Aggregate) {
    let header = Header { pid: 7, tid, time: seconds * SECOND, ..header(0) };
    wall.take(&header, thread(image, tid), &now, at(u64::from(image)), to);
}

/// A thread that started at a time, and has been switched so often.
fn activity(state: u64, start: u64, switches: u64, run: u64) -> Activity {
    Activity {
        state,
        syscall: NO_SYSCALL,
        voluntary: switches,
        involuntary: 0,
        run,
        delay: 0,
        start,
        previous: 0,
    }
}

/// Seconds by image and thread.
fn seconds(aggregate: &Aggregate) -> BTreeMap<(u32, u32), f64> {
    let mut sums = BTreeMap::new();
    for row in aggregate.rows() {
        let thread = aggregate.thread(row.thread).expect("a thread");
        *sums.entry((thread.image.0, thread.tid)).or_insert(0.0) += row.value as f64 / 1e9;
    }
    sums
}

#[test]
fn what_a_thread_did_before_it_executes_a_program_is_of_the_program_before() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    let waits = activity(1, 5, 3, 1_000);
    taken(&mut wall, 1, 7, 2, waits, &mut to);
    // It waits for eight seconds, executes another program, and is met by the next pass.
    assert!(wall.executed(thread(2, 7), 10 * SECOND, &mut to), "its time goes on");
    let again = Activity { voluntary: 4, previous: 10 * SECOND - 1, ..waits };
    taken(&mut wall, 2, 7, 11, again, &mut to);
    wall.count(12 * SECOND, false, &mut to);
    let expected = BTreeMap::from([((1, 7), 9.0), ((2, 7), 2.0)]);
    assert_eq!(seconds(&to), expected);
    // No stack of the new program is one of the old one's.
    let stacks: Vec<_> = to.rows().map(|row| row.stack).collect();
    assert!(matches!(*stacks, [before, now] if before != now), "{stacks:?}");
}

#[test]
fn a_thread_that_executes_a_program_goes_on_under_its_leaders_number() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    taken(&mut wall, 1, 7, 2, activity(1, 5, 3, 1_000), &mut to);
    taken(&mut wall, 1, 8, 2, activity(1, 6, 9, 4_000), &mut to);
    // The kernel reports the leader's end, and no end of the thread's number.
    wall.end(7, 10 * SECOND, &mut to);
    wall.executed(thread(2, 7), 10 * SECOND, &mut to);
    assert_eq!(wall.count_of_threads(), 1);
    // It has its leader's start now, and what it has done itself.
    let goes_on = Activity { previous: 10 * SECOND - 1, ..activity(1, 5, 10, 4_000) };
    taken(&mut wall, 2, 7, 11, goes_on, &mut to);
    wall.count(20 * SECOND, false, &mut to);
    let expected = BTreeMap::from([((1, 7), 9.0), ((1, 8), 9.0), ((2, 7), 10.0)]);
    assert_eq!(seconds(&to), expected);
}

#[test]
fn of_several_threads_whose_ends_were_lost_none_goes_on() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    for tid in [8, 9] {
        taken(&mut wall, 1, tid, 2, activity(1, 6, 9, 4_000), &mut to);
    }
    assert!(!wall.executed(thread(2, 7), 10 * SECOND, &mut to));
    let goes_on = Activity { previous: 9 * SECOND, ..activity(1, 5, 10, 4_000) };
    taken(&mut wall, 2, 7, 11, goes_on, &mut to);
    wall.count(12 * SECOND, false, &mut to);
    let expected = BTreeMap::from([((1, 8), 9.0), ((1, 9), 9.0), ((2, 7), 2.0)]);
    assert_eq!(seconds(&to), expected);
}

#[test]
fn a_thread_whose_end_was_lost_gains_no_time_once_it_is_looked_for() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    for tid in 7..2_007 {
        taken(&mut wall, 1, tid, 2, activity(1, 5, 3, 1_000), &mut to);
    }
    let is_there = |pid: u32, tid: u32| pid == 7 && tid != 1_500;
    for _ in 0..2 {
        wall.look_for_threads(is_there);
    }
    assert_eq!(wall.count_of_threads(), 2_000, "not all are looked for at once");
    wall.events_were_lost();
    wall.look_for_threads(is_there);
    // Its last record may arrive now.
    assert_eq!(wall.count_of_threads(), 2_000);
    wall.look_for_threads(is_there);
    assert_eq!(wall.count_of_threads(), 1_999);
    // They are looked for again and again.
    for _ in 0..2_000_usize.div_ceil(LOOKS) + 2 {
        wall.look_for_threads(|_, tid| tid != 8);
    }
    assert_eq!(wall.count_of_threads(), 1_998);
}

#[test]
fn a_process_that_is_left_out_has_no_time_until_it_is_sampled_again() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    let waits = activity(1, 5, 3, 1_000);
    taken(&mut wall, 1, 7, 2, waits, &mut to);
    wall.leave_out(7);
    wall.count(50 * SECOND, false, &mut to);
    let before = seconds(&to).get(&(1, 7)).copied().unwrap_or_default();
    taken(&mut wall, 1, 7, 101, Activity { previous: 100 * SECOND, ..waits }, &mut to);
    wall.count(103 * SECOND, false, &mut to);
    assert_eq!(seconds(&to).get(&(1, 7)), Some(&(before + 3.0)));
}

#[test]
fn every_sample_between_two_passes_is_as_likely_to_be_kept() {
    const SAMPLES: u64 = 1_000;
    let (mut sums, mut count) = (0.0, 0.0);
    for round in 0..50 {
        let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
        wall.random = Random::of(round + 1);
        let runs = activity(STATE_RUNNING, 2 * SECOND, 0, 0);
        taken(&mut wall, 1, 7, 2, runs, &mut to);
        for number in 0..SAMPLES {
            let header = Header { pid: 7, tid: 7, ..header(0) };
            wall.note_running(&header, thread(1, 7), at(0x1000 + number), false);
        }
        let account = wall.threads.get(&7).expect("an account");
        let kept: Vec<u64> = account.running.iter().map(|whole| whole.stack.user[0]).collect();
        assert_eq!(kept.len(), MOST_RUNNING);
        assert!(kept.is_sorted(), "in the order of time");
        sums += kept.iter().map(|address| (address - 0x1000) as f64).sum::<f64>();
        count += kept.len() as f64;
        // What is left when they have been placed.
        taken(&mut wall, 1, 7, 12, Activity { run: 9 * SECOND, ..runs }, &mut to);
        let bytes: usize = wall.threads.values().map(Account::bytes).sum();
        assert_eq!(wall.memory.used(), bytes);
    }
    // The mean of 3,200 numbers below 1,000 has a standard error of 5.
    let mean = sums / count;
    assert!((mean - SAMPLES as f64 / 2.0).abs() < 30.0, "{mean}");
}

#[test]
fn the_stack_of_a_wait_before_the_last_one_is_counted_too() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    taken(&mut wall, 1, 7, 2, activity(1, 5, 3, 1_000), &mut to);
    let one = wall.memory.used();
    // Runnable now, in another place; where it was blocked is kept.
    taken(&mut wall, 1, 7, 3, activity(STATE_RUNNABLE, 5, 3, 1_000), &mut to);
    assert_eq!(wall.memory.used(), one + at(1).bytes());
}

/// A thread whose stack takes much memory.
fn meets_deep(wall: &mut Wall, pid: u32, tid: u32, to: &mut Aggregate) {
    let header = Header { pid, tid, time: 2 * SECOND, ..header(0) };
    let mut deep = at(1);
    deep.stack.user = vec![1; 1024].into();
    wall.take(&header, thread(pid, tid), &activity(1, 5, 3, 1_000), deep, to);
}

#[test]
fn processes_that_keep_just_under_a_quarter_leave_others_their_time() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    let mut met = |wall: &mut Wall, pid, tid| meets_deep(wall, pid, tid, &mut to);
    let one = {
        met(&mut wall, 1, 1);
        wall.memory.of(1)
    };
    // Of four processes of a user, as many as there is room for.
    let each = (MOST_BYTES / 4 / one) as u32;
    for tid in 1..=4 * each {
        let pid = 1 + tid % 4;
        wall.memory.note_user(pid, 1_000);
        met(&mut wall, pid, tid);
    }
    assert_eq!(wall.threads.len(), 4 * each as usize);
    // Others come after them, and the four go on taking what they can.
    for tid in 0..2_000 {
        let pid = 10 + tid % 20;
        wall.memory.note_user(pid, 1_001);
        met(&mut wall, pid, 100_000 + tid);
        met(&mut wall, 1 + tid % 4, 200_000 + tid);
    }
    let kept = |wall: &Wall, pid: u32| wall.count_of(pid);
    assert!((10..30).all(|pid| kept(&wall, pid) == 100));
    assert!((1..=4).all(|pid| kept(&wall, pid) > each as usize / 2));
    assert_eq!(wall.threads.len() as u64 + wall.refused, u64::from(4 * each) + 2 * 2_000);
    assert!(wall.memory.used() <= MOST_BYTES);
}

#[test]
fn a_process_with_threads_without_end_leaves_others_their_time() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    let mut met = |wall: &mut Wall, pid, tid| meets_deep(wall, pid, tid, &mut to);
    for tid in 0..10_000 {
        met(&mut wall, 7, tid);
    }
    let alone = wall.memory.of(7);
    assert!(alone > MOST_BYTES / 2 && alone <= MOST_BYTES - MOST_BYTES / 4, "{alone}");
    let kept = |wall: &Wall, pid: u32| wall.count_of(pid);
    assert_eq!(kept(&wall, 7) as u64 + wall.refused, 10_000);
    for tid in 0..3_000 {
        met(&mut wall, 8 + tid % 3, 10_000 + tid);
        met(&mut wall, 7, 20_000 + tid);
    }
    assert_eq!([8, 9, 10].map(|pid| kept(&wall, pid)), [1_000; 3]);
    assert_eq!(kept(&wall, 7) as u64 + wall.refused, 13_000);
    for tid in 0..10_000 {
        met(&mut wall, 7, 30_000 + tid);
        met(&mut wall, 8 + tid % 3, 50_000 + tid);
    }
    for pid in 8..=10 {
        let (own, other) = (wall.memory.of(7), wall.memory.of(pid));
        assert!(own <= other + MOST_BYTES / 16, "{own} {other}");
    }
    assert!(wall.memory.used() <= MOST_BYTES);
    assert_eq!(wall.threads.len(), wall.by_process.after((0, 0)).count());
    wall.retain(|_| false);
    assert_eq!(wall.memory.used(), 0);
}

#[test]
fn time_without_callers_is_kept_for_the_next_count_once() {
    let mut wall = wall();
    let counted = |wall: &mut Wall, seconds: u64, is_last: bool| {
        let mut to = Aggregate::new(Kinds::NONE);
        wall.count(seconds * SECOND, is_last, &mut to);
        let sums = self::seconds(&to);
        [8, 9].map(|tid| sums.get(&(1, tid)).copied().unwrap_or_default())
    };
    let mut to = Aggregate::new(Kinds::NONE);
    let without = || {
        let mut whole = at(1);
        whole.stack.end = End::NoProcess;
        whole
    };
    for tid in [8, 9] {
        let header = Header { pid: 7, tid, time: 2 * SECOND, ..header(0) };
        wall.take(&header, thread(1, tid), &activity(1, 1, 0, 0), without(), &mut to);
    }
    assert_eq!(seconds(&to).len(), 0);
    assert_eq!(counted(&mut wall, 10, false), [0.0, 0.0]);
    // One of them is walked again, with tables.
    taken(&mut wall, 1, 8, 12, activity(1, 1, 0, 0), &mut to);
    assert!((seconds(&to).get(&(1, 8)).copied().unwrap_or_default() - 11.0).abs() < 0.01);
    assert_eq!(counted(&mut wall, 20, false), [8.0, 19.0]);
    // The other one waits no longer.
    assert_eq!(counted(&mut wall, 30, false), [10.0, 10.0]);
    let header = Header { pid: 7, tid: 8, time: 31 * SECOND, ..header(0) };
    wall.take(&header, thread(1, 8), &activity(1, 1, 1, 0), without(), &mut to);
    let [one, _] = counted(&mut wall, 40, true);
    assert!(one >= 9.0, "{one}");
}

/// Seconds by state and the address of a stack's one frame; 0: none.
fn seconds_at(aggregate: &Aggregate) -> BTreeMap<(String, u64), f64> {
    let mut sums = BTreeMap::new();
    for row in aggregate.rows() {
        let state = aggregate.labels_of(row.labels)[0].1.to_string();
        let place = aggregate.stack_of(row.stack).first().map(|at| {
            match aggregate.code_address(*at as usize) {
                // In the calls before these return addresses.
                Some(CodeAddress::Unknown { address, .. }) => address + 1,
                Some(CodeAddress::Marker(_)) => 0,
                place => panic!("{place:?}"),
            }
        });
        *sums.entry((state, place.unwrap_or(0))).or_insert(0.0) += row.value as f64 / 1e9;
    }
    sums
}

/// Ten threads of a program live between two passes; others with their name are met by one, and so are some with
/// another name, and of another program.
#[test]
fn threads_that_no_pass_meets_are_where_passes_meet_others_like_them() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    let began = 10 * SECOND;
    let named = |image, tid, name: u8| ThreadKey { comm: [name; 16], ..thread(image, tid) };
    let young =
        |state| Activity { previous: began - 4 * SECOND, ..activity(state, began, 1, SECOND) };
    let header_of = |tid: u32, seconds: u64| Header {
        pid: 7,
        tid,
        time: began + seconds * SECOND,
        ..header(0)
    };
    for (image, name, place) in [(1, 1, 16), (1, 2, 32), (2, 1, 48)] {
        // Of some that live for a third of the time between two passes, the places are kept.
        for tid in 20..30 {
            let key = named(image, tid, name);
            wall.take(&header_of(tid, 2), key, &young(1), at(place), &mut to);
            let last = young(STATE_ENDED);
            wall.take(&header_of(tid, 2), key, &last, at(0), &mut to);
        }
    }
    // The CPU sampler has met one of them.
    wall.note_running(&header_of(30, 1), named(1, 30, 1), at(64), false);
    let mut brief = Aggregate::new(Kinds::NONE);
    for tid in 30..40 {
        let ended = young(STATE_ENDED);
        wall.take(&header_of(tid, 4), named(1, tid, 1), &ended, at(0), &mut brief);
    }
    let expected =
        BTreeMap::from([(("blocked".to_owned(), 16), 30.0), (("running".to_owned(), 64), 10.0)]);
    assert_eq!(seconds_at(&brief), expected);
    // No other thread like this one was met.
    let mut other = Aggregate::new(Kinds::NONE);
    wall.take(&header_of(50, 4), named(2, 50, 2), &young(STATE_ENDED), at(0), &mut other);
    let nowhere =
        BTreeMap::from([(("blocked".to_owned(), 0), 3.0), (("running".to_owned(), 0), 1.0)]);
    assert_eq!(seconds_at(&other), nowhere);
    wall.retain(|_| false);
    assert_eq!(wall.owners().count(), 0);
}

#[test]
fn places_of_brief_threads_are_bounded() {
    let (mut wall, mut to) = (wall(), Aggregate::new(Kinds::NONE));
    for number in 0..100_000u32 {
        let mut comm = [b'a'; 16];
        let letters = number.to_le_bytes().map(|byte| [b'a' + (byte >> 4), b'a' + (byte & 15)]);
        comm[..8].copy_from_slice(letters.as_flattened());
        let key = ThreadKey { comm, ..thread(1, 20) };
        // Of many processes with some threads each.
        let header = Header { pid: 1_000 + number / 10, tid: 20, time: 12 * SECOND, ..header(0) };
        let now = activity(1, 12 * SECOND, 1, 0);
        let now = Activity { previous: SECOND, ..now };
        wall.take(&header, key, &now, at(16), &mut to);
        let last = Activity { state: STATE_ENDED, ..now };
        wall.take(&header, key, &last, at(16), &mut to);
    }
    assert!((1_000..1_100).contains(&wall.owners().count()));
    // And of one process with many names.
    wall.retain(|pid| pid == 7);
    for number in 0..1_000u32 {
        let mut comm = [b'a'; 16];
        let letters = number.to_le_bytes().map(|byte| [b'a' + (byte >> 4), b'a' + (byte & 15)]);
        comm[..8].copy_from_slice(letters.as_flattened());
        let header = Header { pid: 7, tid: 20, time: 12 * SECOND, ..header(0) };
        wall.note_running(&header, ThreadKey { comm, ..thread(1, 20) }, at(16), true);
    }
    assert_eq!(wall.owners().count(), 16);
    // Names that differ by numbers are one.
    for number in 0..1_000u32 {
        let mut comm = [0; 16];
        comm[..8].copy_from_slice(format!("conn{number:04}").as_bytes());
        let header = Header { pid: 8, tid: 20, time: 12 * SECOND, ..header(0) };
        wall.note_running(&header, ThreadKey { comm, ..thread(2, 20) }, at(16), true);
    }
    assert_eq!(wall.owners().count(), 32);
}

/// Threads of two kinds, of which one lives three times as long: together they are in both places as long as they
/// were, though passes meet the long ones more often.
#[test]
fn threads_that_passes_meet_rarely_have_their_part() {
    const PASS: u64 = SECOND / 20;
    let mut all = Aggregate::new(Kinds::NONE);
    let mut wall = wall();
    wall.random = Random::of(1);
    let (mut next, mut now) = (Random::of(7), 10 * SECOND);
    let (mut before, mut pass) = (now - PASS, now);
    for number in 0..40_000u32 {
        let is_long = number % 2 == 1;
        let life = if is_long { PASS * 3 / 5 } else { PASS / 5 };
        let (began, ends) = (now, now + life);
        let (tid, place) = (100 + number % 2, if is_long { 32 } else { 16 });
        let header_at = |time: u64| Header { pid: 7, tid, time, ..header(0) };
        let state = |state, previous| Activity { previous, ..activity(state, began, 1, 0) };
        while pass < ends {
            if pass >= began {
                let met = state(1, before);
                wall.take(&header_at(pass), thread(1, tid), &met, at(place), &mut all);
            }
            before = pass;
            pass += PASS / 2 + next.next() % PASS;
        }
        wall.take(&header_at(ends), thread(1, tid), &state(STATE_ENDED, before), at(0), &mut all);
        now = ends;
    }
    let sums = seconds_at(&all);
    let of = |place| sums.get(&("blocked".to_owned(), place)).copied().unwrap_or_default();
    println!("{sums:?}");
    let share = of(32) / (of(16) + of(32));
    assert!((share - 0.75).abs() < 0.02, "{share}");
}
