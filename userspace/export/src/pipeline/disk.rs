//! Work on a disk, on a thread of its own: a disk that does not answer holds up that work alone.
//!
//! Invariant: only [`Disk::wait`] waits, for a bounded time. Work beyond the limit is handed back, to
//! be counted as lost by the caller.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::disks::{Disks, PATIENCE};

/// What every message takes at least.
const MESSAGE_BYTES: usize = 1 << 10;

struct State<M> {
    waiting: VecDeque<(M, usize)>,
    bytes: usize,
    /// Since when the thread is at a piece of work.
    busy: Option<Instant>,
    path: PathBuf,
    /// Nothing follows.
    is_over: bool,
    has_ended: bool,
}

struct Shared<M> {
    state: Mutex<State<M>>,
    changed: Condvar,
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of the pipeline that such a thread needs.
#[derive(Clone)]
pub struct Surroundings {
    pub disks: Arc<Disks>,
    /// Called once, in the thread.
    pub started: fn(),
}

/// See the module. When it is dropped, the thread ends after what it was given.
pub struct Disk<M> {
    shared: Arc<Shared<M>>,
    limit: usize,
}

impl<M: Send + 'static> Disk<M> {
    /// `work` is called in the thread, with one message after the other; `limit` is in bytes of
    /// messages that are not done.
    pub fn start(
        path: &Path,
        limit: usize,
        surroundings: &Surroundings,
        work: impl FnMut(M) + Send + 'static,
    ) -> io::Result<Self> {
        let state = State {
            waiting: VecDeque::new(),
            bytes: 0,
            busy: None,
            path: path.to_owned(),
            is_over: false,
            has_ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (served, surroundings) = (shared.clone(), surroundings.clone());
        std::thread::Builder::new().name("disk".into()).spawn(move || {
            (surroundings.started)();
            serve(&served, &surroundings.disks, work);
        })?;
        Ok(Self { shared, limit })
    }

    /// Later work is for another path.
    pub fn set_path(&self, path: &Path) {
        path.clone_into(&mut self.shared.lock().path);
    }

    /// A message that takes so many bytes while it waits; handed back when there is no room.
    pub fn give(&self, message: M, bytes: usize) -> Result<(), M> {
        let bytes = bytes.saturating_add(MESSAGE_BYTES);
        let mut state = self.shared.lock();
        let after = state.bytes.saturating_add(bytes);
        // One that alone is too large is taken.
        if state.bytes > 0 && after > self.limit {
            return Err(message);
        }
        state.bytes = after;
        state.waiting.push_back((message, bytes));
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting() == 0
    }

    /// How much is not done.
    pub fn waiting(&self) -> usize {
        let state = self.shared.lock();
        state.waiting.len() + usize::from(state.busy.is_some())
    }

    /// Waits until all that was given is done, but not for a piece of work that takes longer than
    /// [`PATIENCE`]. False if it is not done.
    pub fn wait(&self, until: Instant) -> bool {
        self.wait_for(until, |state| state.busy.is_none() && state.waiting.is_empty())
    }

    /// Ends the thread, and with it all that its work holds. Waits as [`Self::wait`].
    pub fn end(self, until: Instant) -> bool {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        self.wait_for(until, |state| state.has_ended)
    }

    fn wait_for(&self, until: Instant, is_done: impl Fn(&State<M>) -> bool) -> bool {
        let mut state = self.shared.lock();
        while !is_done(&state) {
            let now = Instant::now();
            let given_up = state.busy.map_or(until, |since| until.min(since + PATIENCE));
            let Some(left) = given_up.checked_duration_since(now).filter(|left| !left.is_zero())
            else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl<M> Drop for Disk<M> {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

fn serve<M>(shared: &Shared<M>, disks: &Arc<Disks>, mut work: impl FnMut(M)) {
    let mut state = shared.lock();
    loop {
        if let Some((message, bytes)) = state.waiting.pop_front() {
            state.busy = Some(Instant::now());
            let busy = disks.begin(&state.path);
            drop(state);
            // Who waits does so for this piece of work from now on.
            shared.changed.notify_all();
            work(message);
            drop(busy);
            state = shared.lock();
            state.bytes = state.bytes.saturating_sub(bytes);
            state.busy = None;
            shared.changed.notify_all();
        } else if state.is_over {
            break;
        } else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    drop(state);
    drop(work);
    shared.lock().has_ended = true;
    shared.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    const LIMIT: usize = 10 * MESSAGE_BYTES;

    /// A disk that answers each time the sender is used, and what it has done.
    fn slow() -> (Disk<u32>, Sender<()>, Receiver<u32>) {
        let (answer, answers) = channel();
        let (done, all) = channel();
        let work = move |message| {
            // Without a sender it answers at once.
            let _ = answers.recv();
            let _ = done.send(message);
        };
        let surroundings = Surroundings { disks: Arc::default(), started: || () };
        let disk = Disk::start(Path::new("/test"), LIMIT, &surroundings, work);
        (disk.expect("a thread"), answer, all)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(1)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn what_has_no_room_is_handed_back_while_the_disk_is_busy() {
        let (disk, answer, done) = slow();
        assert_eq!(disk.give(1, 2 * LIMIT), Ok(()), "one alone is taken");
        assert_eq!(disk.give(2, 0), Err(2));
        assert!(!disk.is_idle() && !disk.wait(soon()));
        drop(answer);
        assert!(disk.wait(late()) && disk.is_idle());
        assert_eq!(disk.give(3, 0), Ok(()));
        assert!(disk.end(late()));
        assert_eq!(done.try_iter().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn what_was_given_is_done_when_it_is_dropped() {
        let (disk, answer, done) = slow();
        for message in [1, 2] {
            assert_eq!(disk.give(message, 10), Ok(()));
        }
        drop((disk, answer));
        assert_eq!(done.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
