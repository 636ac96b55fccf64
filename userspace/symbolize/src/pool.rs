//! Threads that symbolize, so that one process's slow files delay no other process's symbols.
//!
//! A task begins on a fast thread. After [`Limits::fast`] its thread counts as slow and another
//! fast one takes its place. The number of slow threads is bounded, with one for each owner of
//! files; a task that finds none free ends, and is retried on a slow thread, owners in turn. An
//! owner that used up its share of a flush continues there too, and one that was slow starts there
//! for a while. Owners that have cost little in the last flushes, new ones above all, go first.
//!
//! Invariant: no caller waits for a pool. Outcomes arrive as messages, and every task ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use strata_sandbox::{FileError, Reply, Request};
use strata_symbols::Options;

use crate::costs::Costs;
use crate::file_client::{Ask, FileClient};
use crate::task::{Context, Outcome, Owner, Symbol, Task, TaskKey};
use crate::worker_memory::WorkerMemory;

/// How long a task may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// On a fast thread.
    pub fast: Duration,
    /// On a slow one.
    pub slow: Duration,
    /// All tasks of one owner together on fast threads, in a flush.
    pub share: Duration,
    /// An owner whose task took so long begins on slow threads for a while. More than [`Self::fast`]:
    /// on a busy machine every task takes longer, and slow threads are where hostile files wait.
    pub slow_owner: Duration,
    /// Tasks of one owner that wait for a slow thread.
    pub waiting: usize,
}

/// Threads that take new tasks.
const FAST: usize = 2;
/// Threads whose task turned out slow.
const MOST_SLOW: usize = 4;
/// How long an owner that was slow begins on slow threads; doubled each time.
const SLOW_FOR: Duration = Duration::from_secs(60);
const SLOW_FOR_MOST: Duration = Duration::from_secs(960);

/// What a thread reports.
pub enum Report {
    /// Symbols of a task that goes on.
    Some(Vec<Symbol>),
    /// The end of a task.
    Done(Box<Outcome>),
}

struct SlowOwner {
    until: Instant,
    times: u32,
}

#[derive(Default)]
struct State {
    fast: VecDeque<Task>,
    /// By owner, which take turns.
    slow: HashMap<Owner, VecDeque<Task>>,
    slow_turns: VecDeque<Owner>,
    /// Owners that have a slow thread.
    busy: HashSet<Owner>,
    fast_threads: usize,
    slow_threads: usize,
    /// On fast threads, in this flush.
    used: HashMap<Owner, Duration>,
    /// On any thread, in the last flushes.
    costs: Costs,
    known_slow: HashMap<Owner, SlowOwner>,
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    limits: Limits,
    files: FileClient,
    memory: WorkerMemory,
    reports: Sender<Report>,
    wake: Box<dyn Fn() + Send + Sync>,
}

pub struct Pool {
    shared: Arc<Shared>,
    reports: Receiver<Report>,
}

impl Pool {
    /// `wake` is called when there is a report.
    pub fn start(files: FileClient, limits: Limits, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let (sender, reports) = channel();
        let state = Mutex::default();
        let work = Condvar::new();
        let memory = WorkerMemory::default();
        let shared = Arc::new(Shared { state, work, limits, files, memory, reports: sender, wake });
        Self { shared, reports }
    }

    /// Tasks of a flush. Those that there is no room for are returned.
    pub fn submit(&self, mut tasks: Vec<Task>) -> Vec<TaskKey> {
        let mut refused = Vec::new();
        let mut state = self.shared.lock();
        state.used.clear();
        state.costs.age();
        state.costs.order(&mut tasks);
        let now = Instant::now();
        state.known_slow.retain(|_, slow| slow.until + SLOW_FOR_MOST > now);
        for task in tasks {
            let is_slow = state.known_slow.get(&task.owner).is_some_and(|slow| slow.until > now);
            if is_slow {
                let key = task.key;
                if !state.wait_for_slow(task, self.shared.limits.waiting) {
                    refused.push(key);
                }
            } else {
                state.fast.push_back(task);
            }
        }
        self.shared.start_threads(&mut state);
        drop(state);
        self.shared.work.notify_all();
        refused
    }

    /// What the workers may use from now on, in bytes.
    pub fn set_worker_memory(&self, bytes: u64) {
        self.shared.memory.set(bytes);
    }

    pub fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Waits for a report, for so long.
    pub fn wait(&self, most: Duration) -> Option<Report> {
        self.reports.recv_timeout(most).ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.work.notify_all();
    }
}

impl State {
    /// False when its owner has enough tasks waiting.
    fn wait_for_slow(&mut self, task: Task, most: usize) -> bool {
        let owner = task.owner;
        let waiting = self.slow.entry(owner).or_default();
        if waiting.len() >= most {
            return false;
        }
        waiting.push_back(task);
        if waiting.len() == 1 {
            self.slow_turns.push_back(owner);
        }
        true
    }

    /// The next task of an owner that has no slow thread.
    fn next_slow(&mut self) -> Option<Task> {
        let turn = self.slow_turns.iter().position(|owner| !self.busy.contains(owner))?;
        let owner = self.slow_turns.remove(turn)?;
        let waiting = self.slow.get_mut(&owner)?;
        let task = waiting.pop_front();
        if waiting.is_empty() {
            self.slow.remove(&owner);
        } else {
            self.slow_turns.push_back(owner);
        }
        self.busy.insert(owner);
        task
    }

    fn remember_slow(&mut self, owner: Owner, now: Instant) {
        if owner == Owner::Host {
            return;
        }
        let slow = self.known_slow.entry(owner).or_insert(SlowOwner { until: now, times: 0 });
        let pause = SLOW_FOR.saturating_mul(1 << slow.times.min(4)).min(SLOW_FOR_MOST);
        slow.until = now + pause;
        slow.times += 1;
    }
}

/// What kind of thread runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Fast,
    Slow,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: Report) {
        // Without a pool it has no reader.
        let _ = self.reports.send(report);
        (self.wake)();
    }

    fn start_threads(self: &Arc<Self>, state: &mut State) {
        while !state.fast.is_empty() && state.fast_threads < FAST {
            let shared = self.clone();
            let started =
                thread::Builder::new().name("symbolize".into()).spawn(move || shared.run_fast());
            if let Err(error) = started {
                tracing::warn!(%error, "a thread for symbols cannot be started");
                break;
            }
            state.fast_threads += 1;
        }
        while state.slow_threads < MOST_SLOW {
            let Some(task) = state.next_slow() else { break };
            let shared = self.clone();
            state.slow_threads += 1;
            let owner = task.owner;
            let key = task.key;
            let started = thread::Builder::new()
                .name("symbolize-slow".into())
                .spawn(move || shared.run_slow(task));
            if let Err(error) = started {
                tracing::warn!(%error, "a thread for symbols cannot be started");
                state.slow_threads -= 1;
                state.busy.remove(&owner);
                self.report(Report::Done(Box::new(Outcome::nothing(key))));
            }
        }
    }

    fn run_fast(self: Arc<Self>) {
        loop {
            let task = {
                let mut state = self.lock();
                loop {
                    if state.ended {
                        return;
                    }
                    if let Some(task) = state.fast.pop_front() {
                        break task;
                    }
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let owner = task.owner;
            {
                let mut state = self.lock();
                let used = state.used.get(&owner).copied().unwrap_or_default();
                if owner != Owner::Host && used > self.limits.share {
                    let key = task.key;
                    let waits = state.wait_for_slow(task, self.limits.waiting);
                    self.start_threads(&mut state);
                    drop(state);
                    if !waits {
                        self.report(Report::Done(Box::new(Outcome::nothing(key))));
                    }
                    continue;
                }
            }
            if self.run(task, Lane::Fast) == Lane::Slow {
                self.end_slow(owner);
                return;
            }
        }
    }

    fn run_slow(self: Arc<Self>, task: Task) {
        let owner = task.owner;
        self.run(task, Lane::Slow);
        self.end_slow(owner);
    }

    /// A thread that was slow ends; another task may begin.
    fn end_slow(self: &Arc<Self>, owner: Owner) {
        let mut state = self.lock();
        state.slow_threads -= 1;
        state.busy.remove(&owner);
        if !state.ended {
            self.start_threads(&mut state);
        }
    }

    /// Runs a task to its end; returns the kind of this thread afterwards.
    fn run(self: &Arc<Self>, mut task: Task, lane: Lane) -> Lane {
        let started = Instant::now();
        let most = if lane == Lane::Fast { self.limits.fast } else { self.limits.slow };
        let mut context = Running {
            shared: self.clone(),
            owner: task.owner,
            lane,
            until: started + most,
            is_late: false,
            lacks_answers: false,
        };
        let run = AssertUnwindSafe(|| task.work.run(task.key, &mut context));
        // A fault costs the symbols of its task.
        let mut outcome = catch_unwind(run).unwrap_or_else(|_| Outcome::nothing(task.key));
        let took = started.elapsed();
        let Running { lane: after, is_late, lacks_answers, .. } = context;
        let mut state = self.lock();
        if after == Lane::Fast {
            *state.used.entry(task.owner).or_default() += took;
        }
        state.costs.add(task.owner, took);
        if after == Lane::Slow && (is_late || took >= self.limits.slow_owner) {
            state.remember_slow(task.owner, started + took);
        }
        if is_late && after == Lane::Fast {
            // No slow thread was free: it is tried again when one is.
            let symbols = std::mem::take(&mut outcome.symbols);
            let key = task.key;
            task.work.take_back(outcome);
            let waits = state.wait_for_slow(task, self.limits.waiting);
            self.start_threads(&mut state);
            drop(state);
            self.report(Report::Some(symbols));
            if !waits {
                self.report(Report::Done(Box::new(Outcome::nothing(key))));
            }
            return after;
        }
        drop(state);
        outcome.is_late = is_late;
        outcome.lacks_answers = lacks_answers;
        self.report(Report::Done(Box::new(outcome)));
        after
    }
}

/// A task that is run.
struct Running {
    shared: Arc<Shared>,
    owner: Owner,
    lane: Lane,
    until: Instant,
    is_late: bool,
    /// A file was not read, and may be later.
    lacks_answers: bool,
}

impl Running {
    /// Until when to wait; a task on a fast thread makes it slow, if it may.
    fn deadline(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if now < self.until {
            return Some(self.until);
        }
        if self.lane == Lane::Fast && !self.is_late {
            let mut state = self.shared.lock();
            if state.slow_threads < MOST_SLOW && !state.busy.contains(&self.owner) {
                state.busy.insert(self.owner);
                state.slow_threads += 1;
                state.fast_threads -= 1;
                self.shared.start_threads(&mut state);
                drop(state);
                self.lane = Lane::Slow;
                self.until = now + self.shared.limits.slow;
                return Some(self.until);
            }
        }
        self.is_late = true;
        None
    }
}

impl Context for Running {
    fn emit(&self, symbols: Vec<Symbol>) {
        self.shared.report(Report::Some(symbols));
    }
}

impl Ask for Running {
    fn is_late(&self) -> bool {
        self.is_late
    }

    fn options(&self) -> Options {
        self.shared.memory.options()
    }

    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Result<Reply, FileError>> {
        if self.is_late {
            return requests.iter().map(|_| Err(FileError::Late)).collect();
        }
        let shared = self.shared.clone();
        let answers = shared.files.call(requests, &mut || self.deadline());
        let is_missing =
            |answer: &Result<Reply, FileError>| answer.as_ref().is_err_and(FileError::is_no_answer);
        self.lacks_answers |= answers.iter().any(is_missing);
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{KernelWork, Work};

    const MOST_WAITING: usize = 64;

    const LIMITS: Limits = Limits {
        fast: Duration::from_secs(60),
        slow: Duration::from_secs(60),
        share: Duration::from_secs(60),
        slow_owner: Duration::from_secs(60),
        waiting: MOST_WAITING,
    };
    const SLOW: Owner = Owner::Process(1);
    const OTHER: Owner = Owner::Process(2);

    fn key(task: &Task) -> u32 {
        match task.key {
            TaskKey::Related(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// A task that is over at once.
    fn task(owner: Owner, number: u32) -> Task {
        let work = KernelWork { addresses: Vec::new(), vdso: Vec::new(), names: None, table: None };
        // Those submitted together are begun in the order of their numbers.
        let weight = u64::from(u32::MAX - number);
        Task { key: TaskKey::Related(number), owner, weight, work: Work::Kernel(work) }
    }

    fn tasks(owner: Owner, numbers: std::ops::Range<u32>) -> Vec<Task> {
        numbers.map(|number| task(owner, number)).collect()
    }

    fn pool(limits: Limits) -> Pool {
        let files = FileClient::start().expect("a thread for files");
        Pool::start(files, limits, Box::new(|| {}))
    }

    /// As if so many threads had other tasks.
    fn occupy(pool: &Pool, fast: usize, slow: usize) {
        let mut state = pool.shared.lock();
        (state.fast_threads, state.slow_threads) = (fast, slow);
    }

    fn context(pool: &Pool, owner: Owner, until: Instant) -> Running {
        let shared = pool.shared.clone();
        let (is_late, lacks_answers) = (false, false);
        Running { shared, owner, lane: Lane::Fast, until, is_late, lacks_answers }
    }

    fn next(state: &mut State) -> Option<u32> {
        state.next_slow().as_ref().map(key)
    }

    #[test]
    fn an_owner_has_one_slow_thread_and_owners_take_turns() {
        let mut state = State::default();
        for task in tasks(SLOW, 10..13).into_iter().chain(tasks(OTHER, 20..22)) {
            assert!(state.wait_for_slow(task, usize::MAX));
        }
        assert_eq!([next(&mut state), next(&mut state)], [Some(10), Some(20)]);
        assert_eq!(next(&mut state), None, "both have a thread");
        state.busy.remove(&SLOW);
        assert_eq!(next(&mut state), Some(11));
        state.busy.clear();
        assert_eq!(next(&mut state), Some(21), "the other's turn");
        state.busy.clear();
        assert_eq!(next(&mut state), Some(12));
        state.busy.clear();
        assert_eq!(next(&mut state), None);
        assert!(state.slow.is_empty() && state.slow_turns.is_empty());
    }

    #[test]
    fn an_owner_that_was_slow_leaves_the_fast_threads_to_others() {
        let pool = pool(LIMITS);
        occupy(&pool, FAST, MOST_SLOW);
        pool.shared.lock().remember_slow(SLOW, Instant::now());
        let mut all = tasks(SLOW, 0..MOST_WAITING as u32 + 2);
        all.extend(tasks(OTHER, 1000..1000 + MOST_WAITING as u32 + 2));
        let refused = pool.submit(all);
        let beyond = [MOST_WAITING as u32, MOST_WAITING as u32 + 1].map(TaskKey::Related);
        assert_eq!(refused, beyond, "as many as may wait");
        let state = pool.shared.lock();
        assert_eq!(state.fast.len(), MOST_WAITING + 2);
        assert!(state.fast.iter().all(|task| task.owner == OTHER));
        assert_eq!(state.slow.get(&SLOW).map(VecDeque::len), Some(MOST_WAITING));
    }

    #[test]
    fn an_owner_is_remembered_as_slow_for_ever_longer_and_not_for_good() {
        let pool = pool(LIMITS);
        occupy(&pool, FAST, MOST_SLOW);
        let now = Instant::now();
        // On Linux a time before the host's start has a value too.
        let before = |age| now.checked_sub(age).expect("a time");
        let mut pauses = Vec::new();
        {
            let mut state = pool.shared.lock();
            for _ in 0..6 {
                state.remember_slow(SLOW, now);
                pauses.push((state.known_slow[&SLOW].until - now).as_secs());
            }
            state.remember_slow(Owner::Host, now);
            assert!(!state.known_slow.contains_key(&Owner::Host), "the host's files are trusted");
            let slow = |until| SlowOwner { until, times: 3 };
            state.known_slow.insert(OTHER, slow(before(SLOW_FOR)));
            state.known_slow.insert(Owner::Process(3), slow(before(SLOW_FOR_MOST * 2)));
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 960]);
        pool.submit(vec![task(SLOW, 1), task(OTHER, 2)]);
        let mut state = pool.shared.lock();
        assert_eq!(state.fast.iter().map(key).collect::<Vec<_>>(), [2], "its time is over");
        assert!(!state.known_slow.contains_key(&Owner::Process(3)));
        state.remember_slow(OTHER, now);
        assert_eq!(state.known_slow[&OTHER].until, now + SLOW_FOR * 8, "it was slow before");
    }

    #[test]
    fn an_owner_that_used_up_its_share_of_a_flush_goes_last() {
        let pool = pool(Limits { share: Duration::ZERO, ..LIMITS });
        // One fast thread is left, and no slow one.
        occupy(&pool, FAST - 1, MOST_SLOW);
        let tasks = vec![task(SLOW, 1), task(SLOW, 2), task(OTHER, 3), task(Owner::Host, 4)];
        assert!(pool.submit(tasks).is_empty());
        let done = || match pool.wait(Duration::from_secs(60)) {
            Some(Report::Done(outcome)) => outcome.key,
            _ => panic!("no task has ended"),
        };
        let others = [done(), done(), done()];
        assert_eq!(others, [1, 3, 4].map(TaskKey::Related));
        // A slow thread is free.
        {
            let mut state = pool.shared.lock();
            state.slow_threads = MOST_SLOW - 1;
            pool.shared.start_threads(&mut state);
        }
        assert_eq!(done(), TaskKey::Related(2));
    }

    #[test]
    fn a_task_that_takes_long_gets_its_owners_slow_thread_or_ends() {
        let pool = pool(LIMITS);
        occupy(&pool, 1, 0);
        let now = Instant::now();
        let mut first = context(&pool, SLOW, now);
        assert!(first.deadline().is_some_and(|until| until > now));
        assert_eq!((first.lane, first.is_late), (Lane::Slow, false));
        {
            let state = pool.shared.lock();
            assert_eq!((state.fast_threads, state.slow_threads), (0, 1), "another takes its place");
        }
        let mut second = context(&pool, SLOW, now);
        assert_eq!(second.deadline(), None, "its owner has a slow thread");
        assert_eq!((second.lane, second.is_late), (Lane::Fast, true));
        occupy(&pool, 1, MOST_SLOW);
        let mut third = context(&pool, OTHER, now);
        assert_eq!(third.deadline(), None, "there is no slow thread");
        let answers = third.ask_all(Vec::new());
        assert!(third.is_late && answers.is_empty());
        // No time is left on the slow thread either.
        first.until = now;
        assert_eq!(first.deadline(), None);
        assert!(first.is_late);
    }
}
