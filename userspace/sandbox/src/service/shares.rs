//! Waiting jobs, and whose turn it is: workers' time is shared by users, and within a user by
//! processes.
//!
//! A process maps files that are slow to parse as cheaply as others. So the next job is one of the
//! user, and then of the process, with the least time of workers lately; jobs that samples wait for
//! come first. One user other than root, and one process, never hold the last worker, if others
//! have jobs, too. A process, or
//! such a user, whose jobs that samples wait for took more time than [`CREDIT`] gets none done until
//! some of it is regained: its requests are refused, and may be made again.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::workers::PendingJob;
use crate::protocol::ProcessRef;

/// Root's id, and that of files which only root can have made.
pub const ROOT: u32 = 0;

/// Whose file a job is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    pub user: u32,
    pub process: Option<ProcessRef>,
}

impl Owner {
    pub const HOST: Self = Self { user: ROOT, process: None };

    /// Whether both are limited together.
    pub fn shares_with(self, other: Self) -> bool {
        let same_user = self.user == other.user;
        same_user && (self.user != ROOT || self.process.is_some() && self.process == other.process)
    }
}

/// Time of workers that a process may use up at once, and one part in so many of the elapsed time.
const CREDIT: Duration = Duration::from_secs(30);
const CREDIT_PART: u32 = 10;
/// The processes of one user together: so many times that.
const USER_FACTOR: u32 = 2;
/// What must be regained before the next job.
const REGAINED: Duration = Duration::from_secs(5);
/// Time used loses half of its weight in this time.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Differences smaller than this do not count: owners take turns.
const SAME: f64 = 0.05;
/// The most owners remembered.
const MOST_OWNERS: usize = 4096;

/// The time that an owner has used.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// Seconds, weighted by their age.
    lately: f64,
    since: Instant,
    /// Of [`CREDIT`]: what is used up.
    debt: Duration,
    is_refused: bool,
    /// When it had its last turn.
    turn: u64,
}

impl Used {
    fn new(now: Instant) -> Self {
        Self { lately: 0.0, since: now, debt: Duration::ZERO, is_refused: false, turn: 0 }
    }

    fn age(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        self.lately *= 0.5_f64.powf(elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.debt = self.debt.saturating_sub(elapsed / CREDIT_PART);
        self.since = now;
    }

    fn add(&mut self, took: Duration, most: Option<Duration>) {
        self.lately += took.as_secs_f64();
        if let Some(most) = most {
            self.debt = (self.debt + took).min(most);
            self.is_refused |= self.debt >= most;
        }
    }

    fn is_refused(&mut self, now: Instant, most: Duration) -> bool {
        self.age(now);
        if self.debt + REGAINED <= most {
            self.is_refused = false;
        }
        self.is_refused
    }

    /// The order of turns: the least comes first.
    fn rank(&self) -> (u64, u64) {
        // Never negative, and far below the limit.
        ((self.lately / SAME) as u64, self.turn)
    }
}

#[derive(Debug, Default)]
struct Queue {
    urgent: VecDeque<PendingJob>,
    patient: VecDeque<PendingJob>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Shares {
    waiting: HashMap<Owner, Queue>,
    count: usize,
    users: HashMap<u32, Used>,
    processes: HashMap<Owner, Used>,
    turns: u64,
}

impl Shares {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn push(&mut self, job: PendingJob) {
        let queue = self.waiting.entry(job.owner).or_default();
        if job.urgent {
            queue.urgent.push_back(job)
        } else {
            queue.patient.push_back(job)
        }
        self.count += 1;
    }

    /// Puts back a job that was taken and not begun, as its owner's next one.
    pub fn give_back(&mut self, job: PendingJob) {
        let queue = self.waiting.entry(job.owner).or_default();
        if job.urgent {
            queue.urgent.push_front(job)
        } else {
            queue.patient.push_front(job)
        }
        self.count += 1;
    }

    /// The next job, when workers are busy with those of `busy`; of the owners that share with one
    /// of them none when only the last worker is left.
    pub fn take(&mut self, busy: &[Owner], is_last_worker: bool) -> Option<PendingJob> {
        let owner = self.next(busy, is_last_worker)?;
        let queue = self.waiting.get_mut(&owner)?;
        let job = queue.urgent.pop_front().or_else(|| queue.patient.pop_front())?;
        if queue.urgent.is_empty() && queue.patient.is_empty() {
            self.waiting.remove(&owner);
        }
        self.count -= 1;
        self.turns += 1;
        let (now, turn) = (Instant::now(), self.turns);
        self.users.entry(owner.user).or_insert_with(|| Used::new(now)).turn = turn;
        self.processes.entry(owner).or_insert_with(|| Used::new(now)).turn = turn;
        Some(job)
    }

    /// Whether there is a job that may be begun.
    pub fn has_next(&self, busy: &[Owner], is_last_worker: bool) -> bool {
        self.next(busy, is_last_worker).is_some()
    }

    fn next(&self, busy: &[Owner], is_last_worker: bool) -> Option<Owner> {
        let is_held = |owner: Owner| {
            busy.iter().any(|other| owner.shares_with(*other)) && self.has_others_than(owner)
        };
        let may = |owner: &Owner| !is_last_worker || !is_held(*owner);
        let rank = |used: Option<&Used>| used.map_or((0, 0), Used::rank);
        let ranked = self.waiting.iter().filter(|(owner, _)| may(owner)).map(|(owner, queue)| {
            let of_user = rank(self.users.get(&owner.user));
            let of_process = rank(self.processes.get(owner));
            // Of those with the same rank, what was asked first.
            let first = queue.urgent.front().or_else(|| queue.patient.front());
            let asked = first.map_or(u64::MAX, |job| job.id);
            ((queue.urgent.is_empty(), of_user, of_process, asked), *owner)
        });
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, owner)| owner)
    }

    /// Whether there were jobs lately that do not share with these.
    fn has_others_than(&self, owner: Owner) -> bool {
        self.processes.keys().chain(self.waiting.keys()).any(|other| !owner.shares_with(*other))
    }

    /// A job of this owner took so long; `counts` if samples waited for it. Returns the jobs that
    /// are refused when that was too long.
    pub fn took(
        &mut self,
        owner: Owner,
        counts: bool,
        took: Duration,
        now: Instant,
    ) -> Vec<PendingJob> {
        self.forget_some(now);
        for (used, most) in [
            (self.users.entry(owner.user).or_insert_with(|| Used::new(now)), credit_of_user(owner)),
            (self.processes.entry(owner).or_insert_with(|| Used::new(now)), credit(owner)),
        ] {
            used.age(now);
            used.add(took, most.filter(|_| counts));
        }
        let refused: Vec<Owner> = self.waiting.keys().copied().collect();
        let refused = refused.into_iter().filter(|waiting| {
            (waiting.user == owner.user || *waiting == owner) && self.is_refused(*waiting, now)
        });
        let refused: Vec<Owner> = refused.collect();
        let mut jobs = Vec::new();
        for owner in refused {
            let Some(queue) = self.waiting.get_mut(&owner) else { continue };
            jobs.extend(std::mem::take(&mut queue.urgent));
            if queue.patient.is_empty() {
                self.waiting.remove(&owner);
            }
        }
        self.count -= jobs.len();
        jobs
    }

    /// Whether jobs of an owner that samples wait for are not done now.
    pub fn is_refused(&mut self, owner: Owner, now: Instant) -> bool {
        let user = credit_of_user(owner).is_some_and(|most| {
            self.users.get_mut(&owner.user).is_some_and(|used| used.is_refused(now, most))
        });
        let process = credit(owner).is_some_and(|most| {
            self.processes.get_mut(&owner).is_some_and(|used| used.is_refused(now, most))
        });
        user || process
    }

    fn forget_some(&mut self, now: Instant) {
        let is_used = |used: &mut Used| {
            used.age(now);
            used.lately >= SAME || !used.debt.is_zero()
        };
        if self.users.len() >= MOST_OWNERS {
            self.users.retain(|_, used| is_used(used));
        }
        if self.processes.len() >= MOST_OWNERS {
            self.processes.retain(|_, used| is_used(used));
        }
        // All in use: what they have used is forgotten, and counted from now on.
        if self.processes.len() >= 4 * MOST_OWNERS {
            self.processes.clear();
        }
    }
}

/// The credit of a process; files that belong to none have no limit.
fn credit(owner: Owner) -> Option<Duration> {
    owner.process.map(|_| CREDIT)
}

fn credit_of_user(owner: Owner) -> Option<Duration> {
    (owner.user != ROOT).then_some(CREDIT * USER_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(4900);

    fn owner(user: u32, pid: u32) -> Owner {
        Owner { user, process: Some(ProcessRef { pid, start_time: None }) }
    }

    fn job(owner: Owner, id: u64) -> PendingJob {
        PendingJob {
            id,
            kind: 0,
            body: Vec::new(),
            files: Vec::new(),
            timeout: Duration::from_secs(5),
            reply_limit: 0,
            urgent: true,
            owner,
        }
    }

    fn ids(shares: &mut Shares) -> Vec<u64> {
        std::iter::from_fn(|| shares.take(&[], false)).map(|job| job.id).collect()
    }

    #[test]
    fn a_process_with_hundreds_of_slow_files_holds_up_no_other() {
        let mut shares = Shares::default();
        let (hostile, other) = (owner(1000, 1), owner(1001, 2));
        (0..512).for_each(|id| shares.push(job(hostile, id)));
        let first = shares.take(&[], false).expect("one");
        assert_eq!(first.id, 0);
        assert!(shares.has_next(&[hostile], true), "there is no other");
        shares.push(job(other, 1000));
        assert_eq!(shares.take(&[hostile], true).map(|job| job.id), Some(1000));
        assert!(shares.take(&[hostile], true).is_none(), "the last worker is for others");
        assert!(shares.took(hostile, true, SLOW, Instant::now()).is_empty());
        shares.push(job(other, 1001));
        shares.push(job(other, 1002));
        assert_eq!(ids(&mut shares).get(..3), Some([1001, 1002, 1].as_slice()));
    }

    #[test]
    fn processes_of_one_user_share_its_time_and_those_of_root_do_not() {
        let mut shares = Shares::default();
        shares.push(job(owner(1000, 2), 1));
        shares.processes.insert(owner(1001, 9), Used::new(Instant::now()));
        assert!(!shares.has_next(&[owner(1000, 1)], true));
        assert!(shares.has_next(&[owner(1000, 1)], false));
        shares.push(job(owner(ROOT, 4), 2));
        assert_eq!(shares.take(&[owner(ROOT, 3)], true).map(|job| job.id), Some(1));
        assert_eq!(shares.take(&[owner(ROOT, 3)], true).map(|job| job.id), Some(2));
    }

    #[test]
    fn owners_take_turns_and_what_samples_wait_for_comes_first() {
        let mut shares = Shares::default();
        (0..3).for_each(|id| shares.push(job(owner(1, 1), id)));
        (10..12).for_each(|id| shares.push(job(owner(2, 2), id)));
        shares.push(PendingJob { urgent: false, ..job(owner(3, 3), 99) });
        let order = ids(&mut shares);
        assert_eq!(order.last(), Some(&99));
        let of_second: Vec<usize> =
            order.iter().enumerate().filter(|(_, id)| **id >= 10).map(|(at, _)| at).collect();
        assert!(of_second.first().is_some_and(|at| *at <= 1), "{order:?}");
    }

    #[test]
    fn what_has_used_up_its_credit_is_refused_until_some_is_regained() {
        let mut shares = Shares::default();
        let (hostile, now) = (owner(1000, 1), Instant::now());
        (0..512).for_each(|id| shares.push(job(hostile, id)));
        let mut refused = Vec::new();
        let mut done = 0;
        while refused.is_empty() {
            shares.take(&[], false).expect("there are many");
            refused = shares.took(hostile, true, SLOW, now);
            done += 1;
        }
        assert_eq!((done, refused.len()), (7, 512 - 7));
        assert!(shares.is_empty() && shares.is_refused(hostile, now));
        assert!(!shares.is_refused(owner(1001, 2), now));
        assert!(shares.is_refused(hostile, now + Duration::from_secs(40)));
        assert!(!shares.is_refused(hostile, now + Duration::from_secs(60)));
    }
}
