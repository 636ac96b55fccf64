//! Where threads are that live for less than a pass: those that passes and the CPU sampler meet stand for
//! those that they do not.
//!
//! Of a thread that was not met the states are known (its last record has what it ran and waited for), and not
//! the places. A pass at a random time meets threads where they spend their time, those that live long more
//! often; they have their own time already. So a place is kept, once its thread has ended, as likely as a thread
//! with such a life is not met.
//!
//! Invariant: a thread has only places of its own process and program, and of a thread with its name but for
//! numbers in it. At most [`KEPT`] of each state are kept, the latest ones more likely, and of [`MOST_KIN`] names
//! of a process.

use std::sync::Arc;

use super::account::{Account, Place, Whole};
use crate::aggregate::ThreadKey;
use crate::hash::HashMap;
use crate::image_id::ImageId;
use crate::processes::table::Space;
use crate::random::Random;

/// Places of each state that are kept of a program's threads with a name.
const KEPT: usize = 16;
/// All places together. Beyond that those of some program are forgotten.
const MOST_BYTES: usize = 4 << 20;
/// Names of all programs, and of one process.
const MOST_NAMES: usize = 1024;
const MOST_KIN: usize = 16;

/// The program, and the name with a 0 for each digit: each connection may have a thread with its number.
type Kin = (ImageId, [u8; 16]);

fn kin_of(thread: &ThreadKey) -> Kin {
    (thread.image, thread.comm.map(|byte| if byte.is_ascii_digit() { b'0' } else { byte }))
}

#[derive(Default)]
struct Places {
    pid: u32,
    blocked: Vec<Place>,
    runnable: Vec<Place>,
    running: Vec<Arc<Whole>>,
}

impl Places {
    fn bytes(&self) -> usize {
        let waiting = self.blocked.iter().chain(&self.runnable).map(|place| &place.whole);
        waiting.chain(&self.running).map(|whole| whole.bytes()).sum()
    }
}

#[derive(Default)]
pub(super) struct BriefThreads {
    by_kin: HashMap<Kin, Places>,
    bytes: usize,
}

impl BriefThreads {
    /// A thread has ended at a time, and passes had met it, the first one as [`Account::between_passes`] says.
    pub(super) fn ended(&mut self, account: &Account, time: u64, random: &mut Random) {
        let (life, between) = (time.saturating_sub(account.start), account.between_passes);
        let is_main = account.thread.tid == account.pid;
        let chance = (u64::MAX >> 1) / between.max(1) * between.saturating_sub(life);
        if is_main || random.next() >> 1 >= chance {
            return;
        }
        if let Some(place) = account.place.clone().filter(|place| !place.whole.lacks_tables()) {
            let is_blocked = place.is_blocked();
            let list = |places: &mut Places| match is_blocked {
                true => keep(&mut places.blocked, place, random),
                false => keep(&mut places.runnable, place, random),
            };
            self.change((account.thread, account.pid), list);
        }
    }

    /// The CPU sampler has met a thread that no pass has met so far.
    pub(super) fn ran(
        &mut self,
        (thread, pid): (ThreadKey, u32),
        whole: &Arc<Whole>,
        random: &mut Random,
    ) {
        // A main thread has begun its program, and is not like those that it makes.
        if thread.tid == pid || whole.lacks_tables() {
            return;
        }
        self.change((thread, pid), |places| {
            keep(&mut places.running, Arc::clone(whole), random);
        });
    }

    fn change(&mut self, (thread, pid): (ThreadKey, u32), change: impl FnOnce(&mut Places)) {
        let kin = kin_of(&thread);
        if !self.by_kin.contains_key(&kin) {
            let mut own = self.by_kin.iter().filter(|(_, places)| places.pid == pid);
            let first = own.next().map(|(kin, _)| *kin);
            if own.count() + 1 >= MOST_KIN
                && let Some(first) = first
            {
                self.forget(&first);
            }
        }
        let places = self.by_kin.entry(kin).or_default();
        places.pid = pid;
        let before = places.bytes();
        change(places);
        self.bytes = self.bytes + places.bytes() - before;
        while (self.bytes > MOST_BYTES || self.by_kin.len() > MOST_NAMES)
            && let Some(other) = self.by_kin.keys().find(|other| **other != kin).copied()
        {
            self.forget(&other);
        }
    }

    /// The account of a thread that ended, and that no pass met, gets the places of one that was met.
    pub(super) fn lend(&self, account: &mut Account, random: &mut Random) {
        let Some(places) = self.by_kin.get(&kin_of(&account.thread)) else {
            return;
        };
        account.blocked = one(&places.blocked, random);
        let woken = || account.blocked.as_ref().map(Place::of_woken);
        account.place = one(&places.runnable, random).or_else(woken);
        account.ran = one(&places.running, random);
    }

    pub(super) fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        let gone = self.by_kin.iter().filter(|(_, places)| !is_there(places.pid));
        for kin in gone.map(|(kin, _)| *kin).collect::<Vec<_>>() {
            self.forget(&kin);
        }
    }

    fn forget(&mut self, kin: &Kin) {
        if let Some(places) = self.by_kin.remove(kin) {
            self.bytes -= places.bytes();
        }
    }

    /// Whose they are, and what those had mapped.
    pub(super) fn owners(&self) -> impl Iterator<Item = (ImageId, &Space)> + '_ {
        self.by_kin.iter().flat_map(|((image, _), places)| {
            let waiting = places.blocked.iter().chain(&places.runnable).map(|place| &place.whole);
            let all = waiting.chain(&places.running);
            all.map(|whole| (*image, &whole.stack.space))
        })
    }
}

fn keep<T>(list: &mut Vec<T>, one: T, random: &mut Random) {
    if list.len() < KEPT {
        list.push(one);
    } else if let Some(place) = list.get_mut(random.below(KEPT as u32) as usize) {
        *place = one;
    }
}

fn one<T: Clone>(list: &[T], random: &mut Random) -> Option<T> {
    list.get(random.below(list.len() as u32) as usize).cloned()
}
