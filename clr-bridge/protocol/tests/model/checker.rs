//! A model checker: runs a small concurrent program in every order of its memory accesses, and with
//! every old value that a load may still return, up to a bound.
//!
//! loom was tried first. It remembers one last access for each word, so that a thread that loads a
//! word before it changes it hides from it that another thread had loaded the word before, and that
//! order is never tried: it ran the log's append beside a reader without ever letting the reader
//! see a record.
//!
//! The memory is the usual operational model of release and acquire. A word is the list of all
//! values that were stored, oldest first. A thread has a view: which value of each word it knows
//! of, and it never sees an older one. A releasing store carries its thread's view; an acquiring
//! load of it takes that view over. A relaxed load keeps it aside until an acquiring fence; a
//! relaxed store carries what the thread knew at its last releasing fence. A read-modify-write
//! takes the newest value and hands on the view that it carried. (Not modelled: stores that go
//! before older ones of the same word, and loads that see the future.)
//!
//! Threads are real threads, of which one runs at a time. Before every access the checker chooses
//! the thread that runs on; after a run it goes back to the last choice with something left to try.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use strata_bridge_protocol::memory::{Memory, Word};

/// What is tried.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Times that a thread is interrupted which could run on.
    pub preemptions: usize,
    /// Loads that return an old value.
    pub stale: usize,
}

/// Which value of each word is known.
#[derive(Clone, Default)]
struct View(Vec<usize>);

impl View {
    fn of(&self, word: usize) -> usize {
        self.0.get(word).copied().unwrap_or(0)
    }

    fn set(&mut self, word: usize, index: usize) {
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] = self.0[word].max(index);
    }

    fn join(&mut self, other: &Self) {
        for (word, index) in other.0.iter().enumerate() {
            self.set(word, *index);
        }
    }
}

struct Stored {
    value: u64,
    view: View,
}

#[derive(Default)]
struct Thread {
    view: View,
    /// What relaxed loads have met.
    met: View,
    /// The view at the last releasing fence.
    released: View,
    waits_for: Option<usize>,
    finished: bool,
}

#[derive(Default)]
struct State {
    words: Vec<Vec<Stored>>,
    threads: Vec<Thread>,
    running: usize,
    preemptions: usize,
    stale: usize,
    /// What was chosen, of how many.
    choices: Vec<(usize, usize)>,
    chosen: usize,
    failed: bool,
}

impl State {
    /// The next choice: as in the run before, or the first.
    fn choose(&mut self, of: usize) -> usize {
        if of <= 1 {
            return 0;
        }
        if self.chosen == self.choices.len() {
            self.choices.push((0, of));
        }
        let (choice, before) = self.choices[self.chosen];
        assert_eq!(before, of, "the model must do the same when the same is chosen");
        self.chosen += 1;
        choice
    }

    fn can_run(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        !thread.finished && thread.waits_for.is_none_or(|other| self.threads[other].finished)
    }
}

/// One run of the program.
pub struct World {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

thread_local! {
    static ME: Cell<usize> = const { Cell::new(0) };
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the next thread, and returns when it is this one.
    fn turn(&self) -> MutexGuard<'_, State> {
        let me = ME.get();
        let mut state = self.lock();
        self.pass_on(&mut state, me);
        self.wait(state, me)
    }

    fn pass_on(&self, state: &mut State, me: usize) {
        let may_stay = state.can_run(me);
        let others = (0..state.threads.len()).filter(|other| *other != me);
        let mut candidates: Vec<usize> = others.filter(|other| state.can_run(*other)).collect();
        if may_stay {
            candidates.insert(0, me);
            if state.preemptions >= self.bounds.preemptions {
                candidates.truncate(1);
            }
        }
        if candidates.is_empty() {
            return;
        }
        let choice = state.choose(candidates.len());
        state.preemptions += usize::from(may_stay && choice > 0);
        state.running = candidates[choice];
        if state.running != me {
            self.changed.notify_all();
        }
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        while state.running != me && !state.failed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.failed {
            drop(state);
            std::panic::resume_unwind(Box::new("another thread failed"));
        }
        state
    }

    fn load(&self, word: usize, order: Ordering) -> u64 {
        let mut state = self.turn();
        let oldest = state.threads[ME.get()].view.of(word);
        let newest = state.words[word].len() - 1;
        let visible = if state.stale < self.bounds.stale { newest - oldest + 1 } else { 1 };
        let back = state.choose(visible);
        state.stale += usize::from(back > 0);
        self.take(&mut state, word, newest - back, order)
    }

    fn take(&self, state: &mut State, word: usize, index: usize, order: Ordering) -> u64 {
        let State { words, threads, .. } = state;
        let Stored { value, view } = &words[word][index];
        let thread = &mut threads[ME.get()];
        thread.view.set(word, index);
        if matches!(order, Ordering::Relaxed | Ordering::Release) {
            thread.met.join(view);
        } else {
            thread.view.join(view);
        }
        *value
    }

    fn put(&self, state: &mut State, word: usize, value: u64, order: Ordering, carried: View) {
        let index = state.words[word].len();
        let thread = &mut state.threads[ME.get()];
        thread.view.set(word, index);
        let mut view = carried;
        view.join(match order {
            Ordering::Relaxed | Ordering::Acquire => &thread.released,
            _ => &thread.view,
        });
        view.set(word, index);
        state.words[word].push(Stored { value, view });
    }

    fn change(&self, word: usize, order: Ordering, to: impl Fn(u64) -> Option<u64>) -> (u64, bool) {
        let mut state = self.turn();
        let newest = state.words[word].len() - 1;
        let found = state.words[word][newest].value;
        let Some(new) = to(found) else {
            return (self.take(&mut state, word, newest, Ordering::Relaxed), false);
        };
        self.take(&mut state, word, newest, order);
        let carried = state.words[word][newest].view.clone();
        self.put(&mut state, word, new, order, carried);
        (found, true)
    }

    pub fn fence(&self, order: Ordering) {
        let mut state = self.lock();
        let thread = &mut state.threads[ME.get()];
        if order != Ordering::Release {
            let met = thread.met.clone();
            thread.view.join(&met);
        }
        if order != Ordering::Acquire {
            thread.released = thread.view.clone();
        }
    }
}

/// A thread of the program.
pub struct Handle<T> {
    world: Arc<World>,
    thread: JoinHandle<Option<T>>,
    number: usize,
}

pub fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    program: impl FnOnce() -> T + Send + 'static,
) -> Handle<T> {
    let mut state = world.lock();
    let number = state.threads.len();
    let view = state.threads[ME.get()].view.clone();
    state.threads.push(Thread { view, ..Thread::default() });
    drop(state);
    let of_thread = Arc::clone(world);
    let thread = std::thread::spawn(move || {
        ME.set(number);
        run(&of_thread, number, program)
    });
    Handle { world: Arc::clone(world), thread, number }
}

/// Runs a thread's program from its first turn on.
fn run<T>(world: &World, number: usize, program: impl FnOnce() -> T) -> Option<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(world.wait(world.lock(), number));
        program()
    }));
    let mut state = world.lock();
    state.threads[number].finished = true;
    state.failed |= result.is_err();
    if state.running == number {
        world.pass_on(&mut state, number);
    }
    drop(state);
    world.changed.notify_all();
    result.ok()
}

impl<T> Handle<T> {
    pub fn join(self) -> T {
        let me = ME.get();
        self.world.lock().threads[me].waits_for = Some(self.number);
        let mut state = self.world.turn();
        state.threads[me].waits_for = None;
        let view = state.threads[self.number].view.clone();
        state.threads[me].view.join(&view);
        drop(state);
        self.thread.join().ok().flatten().expect("the thread finished")
    }
}

/// Runs a program in all orders within the bounds; how many there were.
pub fn check(bounds: Bounds, program: impl Fn(&Arc<World>)) -> usize {
    let mut choices = Vec::new();
    for runs in 1.. {
        let state = State { choices, threads: vec![Thread::default()], ..State::default() };
        let state = Mutex::new(state);
        let world = Arc::new(World { bounds, state, changed: Condvar::new() });
        ME.set(0);
        if run(&world, 0, || program(&world)).is_none() {
            panic!("failed in run {runs}, by {:?}", world.lock().choices);
        }
        choices = std::mem::take(&mut world.lock().choices);
        while let Some((choice, of)) = choices.pop() {
            if choice + 1 < of {
                choices.push((choice + 1, of));
                break;
            }
        }
        if choices.is_empty() {
            return runs;
        }
    }
    unreachable!("the loop has no end of its own")
}

pub struct ModelWord {
    world: Arc<World>,
    number: usize,
}

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.world.load(self.number, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        let mut state = self.world.turn();
        self.world.put(&mut state, self.number, value, order, View::default());
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        let to = |found| (found == current).then_some(new);
        self.world.change(self.number, Ordering::AcqRel, to).1
    }

    fn add(&self, value: u64, order: Ordering) -> u64 {
        self.world.change(self.number, order, |found| Some(found.wrapping_add(value))).0
    }
}

/// A few words of memory, from an offset on.
pub struct ModelMemory {
    world: Arc<World>,
    start: usize,
    words: Vec<ModelWord>,
}

impl ModelMemory {
    pub fn new(world: &Arc<World>, start: usize, content: &[u8], words: usize) -> Arc<Self> {
        let mut state = world.lock();
        let first = state.words.len();
        for number in 0..words {
            let bytes = content.get(8 * number..).and_then(<[u8]>::first_chunk);
            let value = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
            state.words.push(vec![Stored { value, view: View::default() }]);
        }
        drop(state);
        let word = |number| ModelWord { world: Arc::clone(world), number };
        let words = (first..first + words).map(word).collect();
        Arc::new(Self { world: Arc::clone(world), start, words })
    }
}

impl Memory for ModelMemory {
    type Word = ModelWord;

    fn word(&self, offset: usize) -> Option<&ModelWord> {
        assert!(offset.is_multiple_of(8));
        self.words.get(offset.checked_sub(self.start)? / 8)
    }

    /// Relaxed stores: as little order as a plain copy has.
    fn write(&self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "the model writes whole words");
        for (number, value) in words.iter().enumerate() {
            let word = self.word(offset + 8 * number).expect("writes stay inside");
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
    }

    fn fence(&self, order: Ordering) {
        self.world.fence(order);
    }
}
