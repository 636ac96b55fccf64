use std::collections::BTreeMap;

use super::unsampled::{MOST, TICK};
use super::*;
use crate::random::Random;

fn aggregate() -> Aggregate {
    Aggregate::new(strata_kinds::Kinds::NONE)
}

/// Where waits are counted of whose threads nothing is kept.
fn alone(aggregate: &mut Aggregate) -> Counts<'_> {
    Counts { aggregate, others: Box::leak(Box::default()) }
}

fn wait(state: u64, began: u64, stack: Option<Stack>) -> Wait {
    Wait {
        thread: ThreadKey { image: ImageId(1), tid: 7, comm: [0; 16], domain: 0 },
        pid: 7,
        began,
        counted: began,
        weight: 4,
        before: u64::MAX,
        state,
        syscall: NO_SYSCALL,
        kernel: Box::new([0xffff_ffff_8100_0000]),
        flags: 0,
        stack,
        later: Vec::new(),
    }
}

fn stack() -> Stack {
    Stack { user: Box::default(), end: End::KernelOnly, era: 0, space: Space::default() }
}

/// Nanoseconds by state.
fn counted(aggregate: &Aggregate) -> Vec<(String, u64)> {
    let rows = aggregate.rows().map(|row| {
        let labels = aggregate.labels_of(row.labels);
        let state = labels.iter().find(|(name, _)| &**name == "state");
        (state.map_or_else(String::new, |(_, value)| value.to_string()), row.value)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

#[test]
fn a_wait_is_blocked_until_it_is_woken_and_runnable_from_then_on() {
    let mut aggregate = aggregate();
    wait(1, 100, Some(stack())).count(200, 180, &mut alone(&mut aggregate));
    let expected = [("blocked".to_owned(), 80 * 4), ("runnable".to_owned(), 20 * 4)];
    assert_eq!(counted(&aggregate), expected);
}

#[test]
fn a_preempted_thread_is_runnable_all_the_time() {
    let mut aggregate = aggregate();
    wait(STATE_RUNNABLE, 100, Some(stack())).count(150, 0, &mut alone(&mut aggregate));
    assert_eq!(counted(&aggregate), [("runnable".to_owned(), 50 * 4)]);
}

/// A thread with one sampled wait after the other.
#[derive(Default)]
struct Sampled {
    waits: Waits,
    to: Option<Aggregate>,
}

impl Sampled {
    /// `ran`: for how long the thread has run when the wait begins.
    fn wait(&mut self, (began, ended): (u64, u64), ran: u64, weight: u32, state: u64) {
        let to = self.to.get_or_insert_with(aggregate);
        self.waits.begin(Wait { weight, ..wait(state, began, Some(stack())) }, ran, 0);
        let mut wait = self.waits.take(7).expect("it waits");
        wait.end(ended, 0, 0, &mut Counts { aggregate: to, others: &mut self.waits.others });
        self.waits.note_ended(wait);
    }

    /// Nanoseconds by state, when a period ends.
    fn period(&mut self, until: u64) -> BTreeMap<String, u64> {
        let mut to = self.to.take().unwrap_or_else(aggregate);
        self.waits.count(until, &mut to);
        counted(&to).into_iter().collect()
    }

    fn sum(&mut self, until: u64) -> u64 {
        self.period(until).values().sum()
    }
}

#[test]
fn the_waits_of_a_long_recording_are_not_cut() {
    let mut thread = Sampled::default();
    let turns = 40;
    for turn in 0..=turns {
        let began = 1_000 + turn * (MOST / 2);
        thread.wait((began, began + 10), 0, 16, 1);
    }
    let passed = turns * (MOST / 2);
    let sum = thread.sum(1_000 + passed + 10);
    assert!((passed..=passed + 2_000).contains(&sum), "{sum} of {passed}");
}

#[test]
fn a_thread_waits_no_longer_than_time_passes() {
    let mut thread = Sampled::default();
    thread.wait((1_000, 1_010), 0, 16, 1);
    assert_eq!(thread.sum(1_010), 160, "of 1,000 since sampling started");
    thread.wait((1_200, 9_200), 0, 16, 1);
    assert_eq!(thread.sum(9_200), 8_000 + 190, "with what has passed");
    // What was spent on the CPU is no wait.
    thread.wait((9_300, 9_400), 80, 4, 1);
    assert_eq!(thread.sum(9_400), 100 + 20);
    // Nor is what has passed where each wait is sampled.
    thread.wait((9_500, 9_600), 80, 1, 1);
    assert_eq!(thread.sum(9_600), 100);
    // And one that has not waited for long.
    thread.wait((90 * MOST, 100 * MOST), 80, 4, 1);
    assert_eq!(thread.sum(100 * MOST), 11 * MOST);
    thread.waits.retain(|_, _| true);
    assert_eq!(thread.waits.others.count(), 1);
    thread.waits.others.begin((8, ImageId(1)), 8, 101 * MOST, 0, 0);
    thread.waits.retain(|_, _| true);
    assert_eq!(thread.waits.others.count(), 1, "of the other");
    thread.waits.retain(|_, _| false);
    assert_eq!(thread.waits.others.count(), 0);
}

#[test]
fn what_is_not_known_of_one_period_is_of_no_wait_of_the_next() {
    let mut thread = Sampled::default();
    thread.wait((1_000, 1_010), 0, 1, 1);
    // Between them waits were lost, or interrupts took the time.
    thread.wait((6_010, 6_020), 0, 1, 1);
    assert_eq!(thread.sum(6_020), 20);
    thread.wait((6_030, 6_040), 0, 2, 1);
    assert_eq!(thread.sum(6_040), 10 + 10);
}

#[test]
fn a_thread_with_the_number_of_one_that_has_ended_did_not_wait_before_it_began() {
    let mut thread = Sampled::default();
    thread.wait((1_000, 1_010), 3 * TICK, 1, 1);
    thread.wait((900_000_000, 900_000_100), TICK, 2, 1);
    assert_eq!(thread.sum(900_000_100), 10 + 100);
}

#[test]
fn the_sum_of_sampled_waits_is_the_time_off_the_cpu() {
    let mut thread = Sampled::default();
    let mut random = Random::default();
    let (mut now, mut ran) = (0, 0);
    // Short waits and long ones in turn, with a pause on the CPU before each; of eight some are sampled.
    for number in 0..40_000 {
        now += 5_000;
        ran += 5_000;
        let (state, lasts) = if number % 2 == 0 { (1, 1_000) } else { (2, 20_000) };
        if number == 0 || random.below(8) == 0 {
            thread.wait((now, now + lasts), ran, 8, state);
        }
        now += lasts;
    }
    // Its account is read a moment later.
    thread
        .waits
        .others
        .pass_last(now, |pid, tid| (pid, tid).eq(&(7, 7)).then_some((ran + 500, now + 500)));
    let sums = thread.period(now);
    let all: u64 = sums.values().sum();
    assert!(all.abs_diff(20_000 * 21_000) <= 5_000, "before the first one: {sums:?}");
    let share = sums["blocked"] as f64 / all as f64 * 21.0;
    assert!((0.8..1.25).contains(&share), "{share}");
}

#[test]
fn a_wait_stands_for_others_in_its_own_states() {
    let mut waits = Waits { started: 1_000, ..Waits::default() };
    let mut to = aggregate();
    waits.begin(Wait { weight: 11, ..wait(1, 1_000, Some(stack())) }, 0, 0);
    let mut wait = waits.take(7).expect("it waits");
    wait.end(1_100, 1_090, 0, &mut Counts { aggregate: &mut to, others: &mut waits.others });
    waits.note_ended(wait);
    waits.others.pass_last(3_100, |_, _| Some((1_000, 3_100)));
    waits.count(3_100, &mut to);
    let expected = [("blocked".to_owned(), 90 + 900), ("runnable".to_owned(), 10 + 100)];
    assert_eq!(counted(&to), expected);
}

#[test]
fn a_program_that_ends_within_a_period_has_its_waits() {
    let mut thread = Sampled::default();
    for began in (1_000..9_000).step_by(1_000) {
        thread.wait((began, began + 100), 0, 10, 1);
    }
    thread.waits.retain(|_, _| false);
    assert_eq!(thread.sum(9_000), 7_100 + 900, "and before the first one, as many as it claims");
    thread.waits.retain(|_, _| false);
    assert_eq!(thread.waits.others.count(), 0);
}

#[test]
fn what_a_long_wait_has_counted_is_not_claimed_by_the_next() {
    let mut waits = Waits::default();
    let mut to = aggregate();
    waits.begin(Wait { weight: 1, ..wait(1, 1_000, Some(stack())) }, 0, 0);
    // Others go on meanwhile.
    waits.others.begin((8, ImageId(1)), 8, 3 * MOST, 0, 0);
    waits.retain(|_, _| true);
    let mut long = waits.take(7).expect("it waits");
    long.end(3 * MOST, 0, 0, &mut Counts { aggregate: &mut to, others: &mut waits.others });
    waits.begin(Wait { weight: 4, ..wait(1, 3 * MOST + 10, Some(stack())) }, 0, 0);
    let next = waits.take(7).expect("it waits");
    assert_eq!(next.before, 0);
}

#[test]
fn what_passes_in_a_pause_of_sampling_is_no_wait() {
    let mut thread = Sampled::default();
    thread.wait((1_000, 1_010), 0, 2, 1);
    thread.sum(1_010);
    thread.waits.interrupt();
    thread.wait((900_000, 900_010), 0, 2, 1);
    assert_eq!(thread.sum(900_010), 20, "what may have passed is claimed by the next one only");
    thread.wait((900_020, 900_030), 0, 1_000, 1);
    assert_eq!(thread.sum(900_030), 20);
}

#[test]
fn what_walking_a_thread_adds_to_its_wait_is_not_counted() {
    let ended = |state, woken, walk| {
        let mut aggregate = aggregate();
        wait(state, 100, Some(stack())).end(200, woken, walk, &mut alone(&mut aggregate));
        counted(&aggregate).into_iter().map(|(_, value)| value / 4).collect::<Vec<_>>()
    };
    let own = WOKEN_BY_OWN_CPU;
    assert_eq!(ended(1, 180, 30), [80, 20], "another CPU has gone on meanwhile");
    assert_eq!(ended(1, 180, 30 | own), [50, 20], "its own could not");
    assert_eq!(ended(1, 110, 30), [10, 70], "it was woken during the walk");
    assert_eq!(ended(1, 110, 30 | own), [10, 70], "by an interrupt");
    assert_eq!(ended(1, 0, 30), [100], "it is not known when it was woken");
    assert_eq!(ended(STATE_RUNNABLE, 0, 30), [70]);
    assert!(ended(STATE_RUNNABLE, 0, 300).is_empty());
    // A part of it has been counted.
    let mut aggregate = aggregate();
    let mut wait = wait(1, 100, Some(stack()));
    wait.count(150, 0, &mut alone(&mut aggregate));
    wait.end(200, 180, 30 | own, &mut alone(&mut aggregate));
    let expected = [("blocked".to_owned(), 80 * 4), ("runnable".to_owned(), 20 * 4)];
    assert_eq!(counted(&aggregate), expected);
}

#[test]
fn every_nanosecond_of_a_long_wait_is_in_one_period() {
    let [mut first, mut second] = [(); 2].map(|()| aggregate());
    let mut wait = wait(2, 100, Some(stack()));
    wait.count(1_000, 0, &mut alone(&mut first));
    // A clock that two CPUs read may seem to go back.
    wait.count(990, 0, &mut alone(&mut second));
    wait.count(1_500, 1_400, &mut alone(&mut second));
    assert_eq!(counted(&first), [("uninterruptible".to_owned(), 900 * 4)]);
    let expected = [("runnable".to_owned(), 100 * 4), ("uninterruptible".to_owned(), 400 * 4)];
    assert_eq!(counted(&second), expected);
}

#[test]
fn what_passes_before_the_stack_is_known_is_counted_with_it() {
    let mut aggregate = aggregate();
    let mut wait = wait(1, 100, None);
    wait.count(200, 0, &mut alone(&mut aggregate));
    wait.count(350, 0, &mut alone(&mut aggregate));
    assert_eq!(counted(&aggregate), []);
    wait.settle(stack(), &mut alone(&mut aggregate));
    assert_eq!(counted(&aggregate), [("blocked".to_owned(), 250 * 4)]);
}

#[test]
fn a_wait_that_goes_with_its_program_is_counted_as_one_without_an_end() {
    let mut waits = Waits::default();
    waits.begin(wait(1, 100, Some(stack())), 0, 0);
    waits.retain(|pid, image| (pid, image) == (7, ImageId(1)));
    assert_eq!((waits.threads.len(), waits.endless), (1, 0));
    waits.retain(|_, image| image == ImageId(2));
    assert_eq!((waits.threads.len(), waits.endless, waits.memory.used()), (0, 1, 0));
}

#[test]
fn a_wait_from_before_a_pause_is_not_counted_after_it() {
    let (mut waits, mut to) = (Waits::default(), aggregate());
    waits.begin(wait(1, 1_000, Some(stack())), 0, 0);
    waits.count(1_050, &mut to);
    waits.interrupt();
    assert_eq!((waits.threads.len(), waits.endless, waits.memory.used()), (0, 1, 0));
    waits.count(2_000, &mut to);
    assert_eq!(counted(&to), [("blocked".to_owned(), 50 * 4)]);
}

/// A wait of a thread of a process, in a deep stack.
fn deep(pid: u32, tid: u32) -> Wait {
    let stack = Stack { user: vec![0; 1024].into(), ..stack() };
    let wait = wait(1, 100, Some(stack));
    Wait { pid, thread: ThreadKey { image: ImageId(pid), tid, ..wait.thread }, ..wait }
}

#[test]
fn a_process_with_threads_without_end_leaves_others_their_waits() {
    let mut waits = Waits::default();
    for tid in 0..10_000 {
        waits.begin(deep(7, tid), 0, 0);
    }
    let alone = waits.memory.of(7);
    assert!(alone > MOST_BYTES / 2 && alone <= MOST_BYTES - MOST_BYTES / 4, "{alone}");
    let refused = waits.refused;
    assert!(refused > 0);
    // Others need more than it has left.
    for tid in 10_000..11_500 {
        let pid = 8 + tid % 3;
        waits.begin(deep(pid, tid), 0, 0);
        waits.begin(deep(7, tid + 10_000), 0, 0);
    }
    let kept = |pid: u32| waits.threads.values().filter(|wait| wait.pid == pid).count();
    assert_eq!([8, 9, 10].map(kept), [500; 3]);
    assert_eq!(kept(7) as u64 + 3 * 500 + waits.refused, 10_000 + 2 * 1_500);
    assert!(waits.refused > refused);
    for tid in 20_000..30_000 {
        waits.begin(deep(7, tid), 0, 0);
        waits.begin(deep(8 + tid % 3, tid + 20_000), 0, 0);
    }
    // One that began within the share may end above it.
    let most = MOST_BYTES / 4 + deep(7, 1).bytes();
    assert!(waits.memory.of(7) <= most, "{} of {most}", waits.memory.of(7));
    assert!(waits.memory.used() <= MOST_BYTES);
}

#[test]
fn a_stack_that_finds_no_room_when_it_is_known_is_counted_up_to_then() {
    let (mut waits, mut to) = (Waits::default(), aggregate());
    for tid in 0..10_000 {
        waits.begin(deep(7, tid), 0, 0);
    }
    let mut shallow = Wait { pid: 7, ..wait(1, 100, None) };
    shallow.thread.tid = 50_000;
    shallow.count(200, 0, &mut alone(&mut to));
    waits.memory.take(7, shallow.bytes());
    waits.threads.insert(50_000, shallow);
    let (used, refused) = (waits.memory.used(), waits.refused);
    let Some(Stack { user, .. }) = deep(7, 1).stack else { panic!("it has a stack") };
    waits.settle(50_000, 100, Stack { user, ..stack() }, &mut to);
    assert_eq!(counted(&to), [("blocked".to_owned(), 100 * 4)]);
    assert!(waits.memory.used() < used && waits.refused == refused + 1);
}

#[test]
fn the_samplers_own_frames_are_left_out() {
    let waits = Waits { switch: Some(100..200), ..Waits::default() };
    assert_eq!(waits.below_the_switch(&[1, 2, 150, 300]), [150, 300]);
    assert_eq!(waits.below_the_switch(&[1, 2, 300]), [1, 2, 300]);
    assert_eq!(Waits::default().below_the_switch(&[1, 150]), [1, 150]);
}
