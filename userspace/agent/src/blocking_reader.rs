//! Runs work that may hang on a thread beside the event loop; results are collected when ready.
//!
//! Reading a process's memory or files may never end: the holder of its memory's lock may wait for
//! a file system that does not answer, or its pages lie in a file of one. A thread blocked so in
//! the kernel cannot be woken. So one thread answers questions; when a question takes too long, and its
//! thread neither runs nor waits for a processor, the thread is abandoned and another continues. At the
//! limit of abandoned threads, new questions are refused until one of them returns. A question may also be
//! slow and answered just in time: users take turns, and the one whose questions took the least time lately
//! is next.
//!
//! Invariant: the questions about one user's processes are answered in order, and none of another
//! user waits for more than the one that is being answered.
//!
//! Invariant: no call waits longer than the limit it is given. Every question is answered, given up
//! or refused, and the last two are counted.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_sandbox::waiting;

use crate::proc_file;

/// The most questions that wait, and of them about processes of one user other than root.
pub const MOST_WAITING: usize = 16_384;
const MOST_WAITING_OF_ONE: usize = MOST_WAITING / 4;

/// Limits on the cost of work that hangs.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The time that one question may take; [`MOST_SLOW`] times as much where its thread runs or waits for
    /// a processor.
    pub limit: Duration,
    /// The most threads that may be abandoned.
    pub threads: usize,
    /// Of them, with questions about processes of one user other than root, so that one user's
    /// processes cannot block the others'.
    pub of_one: usize,
}

/// A thread that waits for a processor is given up after so many times the limit.
const MOST_SLOW: u32 = 8;

/// The user of the process that a question is about.
pub type Owner = u32;
/// Root, also for processes without a known user.
pub const ROOT: Owner = 0;

/// The real user of a process, which a process cannot hide as it can hide its files.
pub fn owner_of(pid: u32) -> Owner {
    let status = proc_file::text(pid, "status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    uids.split_ascii_whitespace().next().and_then(|uid| uid.parse().ok()).unwrap_or(ROOT)
}

/// A question's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Counts of outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Questions whose thread was abandoned, or whose work failed.
    pub given_up: u64,
    /// Questions refused because every thread was busy.
    pub refused: u64,
    /// Threads that are abandoned now.
    pub stuck: usize,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It took too long, or failed.
    GivenUp,
    /// Every thread was busy: it may be asked again.
    Refused,
}

type Work<Q, A> = dyn Fn(Q) -> A + Send + Sync;

pub struct BlockingReader<Q, A> {
    name: &'static str,
    patience: Patience,
    work: Arc<Work<Q, A>>,
    shared: Arc<Shared<Q, A>>,
    tickets: u64,
    refused: u64,
}

struct Shared<Q, A> {
    state: Mutex<State<Q, A>>,
    /// The number of the last thread that had an answer, and one: it may wait for the lock.
    has_answer: AtomicU64,
    asked: Condvar,
    answered: Condvar,
}

/// Questions that wait, by user.
struct Waiting<Q> {
    queues: HashMap<Owner, Queue<Q>>,
    count: usize,
    turns: u64,
}

struct Queue<Q> {
    questions: VecDeque<(Ticket, Q)>,
    /// Seconds that the user's questions took, weighted by their age.
    used: f64,
    since: Instant,
    /// When it had its last turn.
    turn: u64,
}

/// Time used loses half of its weight in this time.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Users whose use differs by less than this, in seconds, take turns.
const SAME: f64 = 0.02;
/// Users that are remembered without questions.
const MOST_USERS: usize = 1024;

impl<Q> Queue<Q> {
    fn used(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.since).as_secs_f64();
        self.used * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
    }
}

impl<Q> Default for Waiting<Q> {
    fn default() -> Self {
        Self { queues: HashMap::new(), count: 0, turns: 0 }
    }
}

impl<Q> Waiting<Q> {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn has_room_for(&self, owner: Owner) -> bool {
        let own = self.queues.get(&owner).map_or(0, |queue| queue.questions.len());
        self.count < MOST_WAITING && (owner == ROOT || own < MOST_WAITING_OF_ONE)
    }

    fn queue(&mut self, owner: Owner) -> &mut Queue<Q> {
        if self.queues.len() >= MOST_USERS && !self.queues.contains_key(&owner) {
            self.queues.retain(|_, queue| !queue.questions.is_empty());
        }
        self.queues.entry(owner).or_insert_with(|| Queue {
            questions: VecDeque::new(),
            used: 0.0,
            since: Instant::now(),
            turn: 0,
        })
    }

    fn push(&mut self, ticket: Ticket, owner: Owner, question: Q) {
        self.queue(owner).questions.push_back((ticket, question));
        self.count += 1;
    }

    /// The first question of the user whose turn it is.
    fn take(&mut self) -> Option<(Ticket, Owner, Q)> {
        let now = Instant::now();
        let waiting = self.queues.iter().filter(|(_, queue)| !queue.questions.is_empty());
        let rank = |queue: &Queue<Q>| ((queue.used(now) / SAME) as u64, queue.turn);
        let owner = *waiting.min_by_key(|(_, queue)| rank(queue))?.0;
        self.turns += 1;
        let turn = self.turns;
        let queue = self.queue(owner);
        queue.turn = turn;
        let (ticket, question) = queue.questions.pop_front()?;
        self.count -= 1;
        Some((ticket, owner, question))
    }

    /// A user's question took so long.
    fn took(&mut self, owner: Owner, took: Duration) {
        let now = Instant::now();
        let queue = self.queue(owner);
        queue.used = queue.used(now) + took.as_secs_f64();
        queue.since = now;
    }

    fn take_all_of(&mut self, owner: Owner) -> Vec<Ticket> {
        let questions = std::mem::take(&mut self.queue(owner).questions);
        self.count -= questions.len();
        questions.into_iter().map(|(ticket, _)| ticket).collect()
    }

    fn take_all(&mut self) -> Vec<Ticket> {
        let owners: Vec<Owner> = self.queues.keys().copied().collect();
        owners.into_iter().flat_map(|owner| self.take_all_of(owner)).collect()
    }
}

struct State<Q, A> {
    waiting: Waiting<Q>,
    /// The question being worked on, its user, and since when.
    current: Option<(Ticket, Owner, Instant)>,
    /// The active thread, in `/proc`.
    thread: String,
    /// By abandoned thread: the user of its question.
    left_behind: HashMap<u64, Owner>,
    answers: Vec<(Ticket, Result<A, Missing>)>,
    /// The number of the active thread; others are abandoned.
    worker: u64,
    is_running: bool,
    given_up: u64,
    stuck: usize,
    is_over: bool,
}

impl<Q, A> State<Q, A> {
    /// Whether the limit of hanging threads for one user's processes is reached.
    fn has_enough_of(&self, owner: Owner, patience: Patience) -> bool {
        let own = || self.left_behind.values().filter(|other| **other == owner).count();
        owner != ROOT && own() >= patience.of_one
    }
}

impl<Q, A> Shared<Q, A> {
    fn lock(&self) -> MutexGuard<'_, State<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Send + 'static, A: Send + 'static> BlockingReader<Q, A> {
    pub fn new(
        name: &'static str,
        patience: Patience,
        work: impl Fn(Q) -> A + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            waiting: Waiting::default(),
            current: None,
            thread: String::new(),
            left_behind: HashMap::new(),
            answers: Vec::new(),
            worker: 0,
            is_running: false,
            given_up: 0,
            stuck: 0,
            is_over: false,
        };
        Self {
            name,
            patience,
            work: Arc::new(work),
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                has_answer: AtomicU64::new(0),
                asked: Condvar::new(),
                answered: Condvar::new(),
            }),
            tickets: 0,
            refused: 0,
        }
    }

    /// Asks; `None` when it is refused.
    pub fn ask(&mut self, question: Q) -> Option<Ticket> {
        self.ask_of(ROOT, question)
    }

    /// Asks about a process of this user; `None` when it is refused.
    pub fn ask_of(&mut self, owner: Owner, question: Q) -> Option<Ticket> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let ticket = Ticket(self.tickets);
        if state.stuck >= self.patience.threads
            || state.has_enough_of(owner, self.patience)
            || !state.waiting.has_room_for(owner)
            || !self.start_worker(&mut state)
        {
            self.refused += 1;
            return None;
        }
        self.tickets += 1;
        state.waiting.push(ticket, owner, question);
        shared.asked.notify_one();
        Some(ticket)
    }

    /// The answers since the last call.
    pub fn answers(&mut self) -> Vec<(Ticket, Result<A, Missing>)> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        self.look_after(&mut state);
        std::mem::take(&mut state.answers)
    }

    /// Waits until every question has an answer, but no longer than this.
    pub fn settle(&mut self, at_most: Duration) {
        let end = Instant::now() + at_most;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        loop {
            self.look_after(&mut state);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || state.waiting.is_empty() && state.current.is_none() {
                return;
            }
            // Work not begun yet may hang as well.
            let begun = state.current.map_or(Duration::ZERO, |(_, _, since)| since.elapsed());
            let wait =
                left.min(self.patience.limit.saturating_sub(begun)).max(Duration::from_millis(1));
            let waited = shared.answered.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn figures(&self) -> Figures {
        let state = self.shared.lock();
        Figures { given_up: state.given_up, refused: self.refused, stuck: state.stuck }
    }

    /// Abandons a thread that takes too long, and lets another continue.
    fn look_after(&mut self, state: &mut State<Q, A>) {
        if let Some((ticket, owner, since)) = state.current
            && since.elapsed() >= self.patience.limit
            && !self.is_only_slow(state, since.elapsed())
        {
            state.current = None;
            let thread = state.worker;
            state.left_behind.insert(thread, owner);
            state.waiting.took(owner, since.elapsed());
            if state.has_enough_of(owner, self.patience) {
                let refused = state.waiting.take_all_of(owner);
                self.refuse(state, refused);
            }
            state.answers.push((ticket, Err(Missing::GivenUp)));
            state.worker += 1;
            state.is_running = false;
            state.stuck += 1;
            state.given_up += 1;
        }
        if state.waiting.is_empty() {
            return;
        }
        if state.stuck >= self.patience.threads || !self.start_worker(state) {
            let refused = state.waiting.take_all();
            self.refuse(state, refused);
        }
    }

    /// On a busy host a thread may wait for a processor for longer than its work takes.
    fn is_only_slow(&self, state: &State<Q, A>, elapsed: Duration) -> bool {
        let has_answer = self.shared.has_answer.load(Ordering::Acquire) == state.worker + 1;
        let may_be = elapsed < self.patience.limit * MOST_SLOW;
        may_be && (has_answer || waiting::is_runnable(&state.thread))
    }

    fn refuse(&mut self, state: &mut State<Q, A>, refused: Vec<Ticket>) {
        self.refused += refused.len() as u64;
        state.answers.extend(refused.into_iter().map(|ticket| (ticket, Err(Missing::Refused))));
    }

    /// Whether a thread takes questions.
    fn start_worker(&self, state: &mut State<Q, A>) -> bool {
        if state.is_running {
            return true;
        }
        let (shared, work, number) = (self.shared.clone(), self.work.clone(), state.worker);
        let started = std::thread::Builder::new()
            .name(self.name.into())
            .spawn(move || answer_all(&shared, &*work, number));
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread can be started to read processes with");
        }
        state.is_running = started.is_ok();
        state.is_running
    }
}

impl<Q, A> Drop for BlockingReader<Q, A> {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.asked.notify_all();
    }
}

/// The loop of a thread until it is abandoned.
fn answer_all<Q, A>(shared: &Shared<Q, A>, work: &Work<Q, A>, number: u64) {
    let thread = format!("self/task/{}", rustix::thread::gettid().as_raw_nonzero());
    let mut state = shared.lock();
    if state.worker == number {
        state.thread = thread;
    }
    loop {
        if state.worker != number {
            state.stuck -= 1;
            state.left_behind.remove(&number);
            return;
        }
        if state.is_over {
            return;
        }
        let Some((ticket, owner, question)) = state.waiting.take() else {
            state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let since = Instant::now();
        state.current = Some((ticket, owner, since));
        let (own, none) = (number + 1, 0);
        let _ = shared.has_answer.compare_exchange(own, none, Ordering::AcqRel, Ordering::Relaxed);
        drop(state);
        let answer = catch_unwind(AssertUnwindSafe(|| work(question)));
        let answer = answer.map_err(|_| Missing::GivenUp);
        // An abandoned thread takes nothing from the active one.
        shared.has_answer.fetch_max(own, Ordering::Release);
        state = shared.lock();
        if state.worker == number {
            state.current = None;
            state.waiting.took(owner, since.elapsed());
            state.given_up += u64::from(answer.is_err());
            state.answers.push((ticket, answer));
            shared.answered.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SHORT: Patience = Patience { limit: Duration::from_millis(500), threads: 4, of_one: 2 };
    /// Longer than any machine needs.
    const LONG: Patience = Patience { limit: Duration::from_secs(60), threads: 4, of_one: 2 };

    /// Questions that hang until their sender is dropped, and others that do not.
    type Question = Option<mpsc::Receiver<()>>;

    fn hanging(patience: Patience) -> BlockingReader<Question, u32> {
        BlockingReader::new("test-aside", patience, |question: Question| {
            question.map_or(1, |hang| hang.recv().map_or(2, |()| 3))
        })
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let mut aside = BlockingReader::new("test-aside", LONG, |question: u32| question * 2);
        let tickets: Vec<_> = (0..100).map(|n| aside.ask(n).expect("room")).collect();
        aside.settle(LONG.limit);
        let expected: Vec<_> = tickets.into_iter().zip((0..100).map(|n| Ok(n * 2))).collect();
        assert_eq!(aside.answers(), expected);
        assert_eq!(aside.figures(), Figures::default());
    }

    #[test]
    fn what_hangs_is_given_up_and_what_waits_behind_it_is_answered() {
        let mut aside = hanging(SHORT);
        let (let_go, hang) = mpsc::channel();
        let hangs = aside.ask(Some(hang)).expect("room");
        let waits = aside.ask(None).expect("room");
        aside.settle(LONG.limit);
        assert_eq!(aside.answers(), [(hangs, Err(Missing::GivenUp)), (waits, Ok(1))]);
        assert_eq!(aside.figures(), Figures { given_up: 1, refused: 0, stuck: 1 });
        // It comes back: its answer is no longer wanted.
        drop(let_go);
        let end = Instant::now() + LONG.limit;
        while aside.figures().stuck > 0 && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(aside.figures().stuck, 0);
        assert_eq!(aside.answers(), []);
    }

    #[test]
    fn a_thread_that_computes_is_slow_and_does_not_hang() {
        let mut aside = BlockingReader::new("test-aside", SHORT, |most: Duration| {
            let mut budget = crate::processor_time::TimeBudget::new(most);
            while !budget.is_used_up() {
                std::hint::spin_loop();
            }
        });
        let slow = aside.ask(SHORT.limit * 6 / 5).expect("room");
        aside.settle(LONG.limit);
        assert_eq!(aside.answers(), [(slow, Ok(()))]);
        assert_eq!(aside.figures(), Figures::default());
    }

    #[test]
    fn few_threads_are_left_behind_and_then_questions_are_refused_until_one_is_back() {
        let mut aside = hanging(SHORT);
        let mut held = Vec::new();
        for _ in 0..SHORT.threads {
            let (let_go, hang) = mpsc::channel();
            held.push(let_go);
            aside.ask(Some(hang)).expect("room");
        }
        let waits = aside.ask(None).expect("room");
        aside.settle(LONG.limit);
        let answers = aside.answers();
        assert_eq!(answers.len(), SHORT.threads + 1);
        assert_eq!(
            answers.last(),
            Some(&(waits, Err(Missing::Refused))),
            "no thread is left to answer it"
        );
        assert_eq!(aside.ask(None), None);
        let given_up = SHORT.threads as u64;
        assert_eq!(aside.figures(), Figures { given_up, refused: 2, stuck: SHORT.threads });
        held.pop();
        let end = Instant::now() + LONG.limit;
        while aside.figures().stuck == SHORT.threads && Instant::now() < end {
            std::thread::yield_now();
        }
        let again = aside.ask(None).expect("one is back");
        aside.settle(LONG.limit);
        assert_eq!(aside.answers(), [(again, Ok(1))]);
    }

    #[test]
    fn thirty_two_processes_that_hang_for_good_leave_a_thread_to_those_behind_them() {
        // The numbers of a look at what .NET processes have mapped, in less time.
        let patience = Patience { limit: Duration::from_millis(20), threads: 128, of_one: 8 };
        let mut aside = hanging(patience);
        let mut held = Vec::new();
        for owner in [ROOT, 1000] {
            for _ in 0..32 {
                let (let_go, hang) = mpsc::channel();
                held.push(let_go);
                aside.ask_of(owner, Some(hang));
            }
        }
        let waits = aside.ask_of(ROOT, None).expect("room");
        let end = Instant::now() + LONG.limit;
        let mut answers = Vec::new();
        while !answers.iter().any(|(one, _)| *one == waits) && Instant::now() < end {
            aside.settle(patience.limit);
            answers.extend(aside.answers());
        }
        assert_eq!(answers.last(), Some(&(waits, Ok(1))));
        assert_eq!(aside.figures(), Figures { given_up: 40, refused: 24, stuck: 40 });
    }

    #[test]
    fn work_that_panics_is_no_answer() {
        let mut aside = BlockingReader::new("test-aside", LONG, |fails: bool| {
            if fails {
                std::panic::resume_unwind(Box::new("silent"));
            }
        });
        let (fails, works) = (aside.ask(true).expect("room"), aside.ask(false).expect("room"));
        aside.settle(LONG.limit);
        assert_eq!(aside.answers(), [(fails, Err(Missing::GivenUp)), (works, Ok(()))]);
        assert_eq!(aside.figures(), Figures { given_up: 1, ..Figures::default() });
    }

    #[test]
    fn waiting_ends_when_it_is_said_to() {
        let mut aside = hanging(LONG);
        let (_let_go, hang) = mpsc::channel();
        aside.ask(Some(hang)).expect("room");
        aside.settle(SHORT.limit);
        assert_eq!(aside.answers(), []);
        assert_eq!(aside.figures(), Figures::default());
    }

    #[test]
    fn what_one_users_processes_make_hang_is_not_the_others_to_pay() {
        let patience = Patience { threads: 16, ..SHORT };
        let mut aside = hanging(patience);
        let mut hold = Vec::new();
        let mut hang = || {
            let (let_go, hangs) = mpsc::channel();
            hold.push(let_go);
            Some(hangs)
        };
        // More than the limit of hanging threads for one user, and some that wait behind them.
        let tickets: Vec<_> = (0..6).filter_map(|_| aside.ask_of(1000, hang())).collect();
        assert_eq!(tickets.len(), 6);
        aside.settle(patience.limit * 8);
        assert_eq!(aside.figures(), Figures { given_up: 2, refused: 4, stuck: 2 });
        assert_eq!(aside.ask_of(1000, None), None, "not before one has come back");
        for owner in [1001, ROOT] {
            let ticket = aside.ask_of(owner, None).expect("another user's");
            aside.settle(LONG.limit);
            let answers = aside.answers();
            assert!(answers.iter().any(|(one, answer)| *one == ticket && answer.is_ok()));
        }
    }

    #[test]
    fn questions_about_one_users_processes_that_are_slow_hold_up_no_other_user() {
        let (begin, begins) = mpsc::channel::<()>();
        let first = Mutex::new(Some(begins));
        let mut reader = BlockingReader::new("test-aside", LONG, move |question: u32| {
            // All are asked before the first is answered.
            if let Some(begins) = first.lock().ok().and_then(|mut first| first.take()) {
                let _ = begins.recv();
            }
            std::thread::sleep(Duration::from_millis(u64::from(question)));
        });
        let slow: Vec<_> = (0..20).filter_map(|_| reader.ask_of(1000, 50)).collect();
        let others: Vec<_> = (1..4).filter_map(|user| reader.ask_of(user, 0)).collect();
        let root = reader.ask_of(ROOT, 0).expect("room");
        begin.send(()).expect("it waits");
        reader.settle(LONG.limit);
        let order: Vec<Ticket> = reader.answers().into_iter().map(|(ticket, _)| ticket).collect();
        let place = |ticket| order.iter().position(|one| *one == ticket).expect("it is answered");
        for other in others.into_iter().chain([root]) {
            assert!(place(other) < 5, "{order:?}");
        }
        assert!(slow.is_sorted_by_key(|ticket| place(*ticket)), "{order:?}");
    }

    #[test]
    fn one_user_leaves_room_for_the_questions_of_others() {
        let mut aside = hanging(LONG);
        let (_let_go, hang) = mpsc::channel();
        aside.ask_of(1000, Some(hang)).expect("room");
        let asked = (0..2 * MOST_WAITING).filter(|_| aside.ask_of(1000, None).is_some());
        assert!(asked.count() <= MOST_WAITING_OF_ONE + 1);
        assert!(aside.ask_of(1001, None).is_some() && aside.ask_of(ROOT, None).is_some());
    }

    #[test]
    fn the_user_of_a_process_is_known() {
        // SAFETY: no preconditions.
        assert_eq!(owner_of(std::process::id()), unsafe { libc::getuid() });
        assert_eq!(owner_of(u32::MAX), ROOT);
    }
}
