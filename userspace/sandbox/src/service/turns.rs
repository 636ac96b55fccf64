//! Waiting requests, served round-robin: one of each process, then the next of each.
//!
//! A process that maps thousands of files queues all of them at once. Requests of a process that
//! has just started must not wait behind them, because its first samples wait too.

use std::collections::{HashMap, VecDeque};

use super::lane::PendingOpen;
use super::shares::Owner;
use crate::protocol::ProcessRef;

#[derive(Debug, Default)]
pub struct Turns {
    waiting: HashMap<Owner, VecDeque<PendingOpen>>,
    /// The order of turns: every waiting process once.
    order: VecDeque<Owner>,
    count: usize,
}

impl Turns {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn push(&mut self, open: PendingOpen) {
        let owner = open.owner();
        let own = self.waiting.entry(owner).or_default();
        if own.is_empty() {
            self.order.push_back(owner);
        }
        own.push_back(open);
        self.count += 1;
    }

    /// Puts back a request that was taken and not answered, as the next one.
    pub fn give_back(&mut self, open: PendingOpen) {
        let owner = open.owner();
        self.order.retain(|other| *other != owner);
        self.order.push_front(owner);
        self.waiting.entry(owner).or_default().push_front(open);
        self.count += 1;
    }

    /// The next request, of an owner that has not its share yet.
    pub fn take(&mut self, has_its_share: impl Fn(Owner) -> bool) -> Option<PendingOpen> {
        let at = self.order.iter().position(|owner| !has_its_share(*owner))?;
        let owner = self.order.remove(at)?;
        let own = self.waiting.get_mut(&owner)?;
        let open = own.pop_front()?;
        if own.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.order.push_back(owner);
        }
        self.count -= 1;
        Some(open)
    }

    /// All others come first.
    pub fn put_last(&mut self, process: ProcessRef) {
        if let Some(at) = self.order.iter().position(|owner| owner.process == Some(process)) {
            let owner = self.order.remove(at);
            self.order.extend(owner);
        }
    }

    /// Removes waiting requests for files of a process.
    pub fn withdraw(&mut self, process: ProcessRef) -> Vec<PendingOpen> {
        let is_its = |owner: &Owner| owner.process == Some(process);
        let withdrawn = self.waiting.extract_if(|owner, _| is_its(owner));
        let withdrawn: Vec<PendingOpen> = withdrawn.flat_map(|(_, opens)| opens).collect();
        self.order.retain(|owner| !is_its(owner));
        self.count -= withdrawn.len();
        withdrawn
    }

    pub fn take_all(&mut self) -> Vec<PendingOpen> {
        std::iter::from_fn(|| self.take(|_| false)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Locator;

    fn open(pid: u32, id: u64) -> PendingOpen {
        let process = ProcessRef { pid, start_time: None };
        PendingOpen::new(id, Locator::Mapped { process, start: id, end: id + 1 })
    }

    fn ids(turns: &mut Turns) -> Vec<u64> {
        turns.take_all().into_iter().map(|open| open.id).collect()
    }

    #[test]
    fn a_process_with_thousands_of_files_holds_up_none_with_one() {
        let mut turns = Turns::default();
        (0..5000).for_each(|id| turns.push(open(1, id)));
        turns.push(open(2, 9000));
        turns.push(open(3, 9001));
        turns.push(open(2, 9002));
        assert_eq!(turns.len(), 5003);
        let first = ids(&mut turns);
        assert_eq!(first.get(..6), Some([0, 9000, 9001, 1, 9002, 2].as_slice()));
        assert!(first.len() == 5003 && turns.is_empty());
    }

    fn of_user(user: u32, pid: u32, id: u64) -> PendingOpen {
        PendingOpen { user, ..open(pid, id) }
    }

    #[test]
    fn an_owner_with_a_request_under_way_is_passed_over_and_so_is_its_user() {
        let mut turns = Turns::default();
        (0..512).for_each(|id| turns.push(of_user(1000, 1 + id as u32, id)));
        let first = turns.take(|_| false).expect("one");
        let under_way = first.owner();
        assert_eq!(first.id, 0);
        assert!(turns.take(|owner| owner.shares_with(under_way)).is_none() && turns.len() == 511);
        turns.push(of_user(1001, 9000, 9000));
        let next = turns.take(|owner| owner.shares_with(under_way)).expect("another user's");
        assert_eq!(next.id, 9000);
        assert_eq!(
            turns.take(|owner| owner.shares_with(next.owner())).map(|open| open.id),
            Some(1)
        );
        // Processes of root are many users' in truth.
        turns.push(open(9001, 9001));
        let root = Owner { process: open(9002, 0).owner().process, ..Owner::HOST };
        let of_root = |owner: Owner| owner.user != 0 || owner.shares_with(root);
        assert_eq!(turns.take(of_root).map(|open| open.id), Some(9001));
    }

    #[test]
    fn what_is_given_back_is_next_and_what_hangs_is_last() {
        let mut turns = Turns::default();
        [open(1, 1), open(1, 2), open(2, 3)].into_iter().for_each(|open| turns.push(open));
        let taken = turns.take(|_| false).expect("one");
        turns.give_back(taken);
        turns.put_last(ProcessRef { pid: 1, start_time: None });
        assert_eq!(ids(&mut turns), [3, 1, 2]);
    }

    #[test]
    fn what_is_withdrawn_is_of_one_process() {
        let mut turns = Turns::default();
        [open(1, 1), open(2, 2), open(1, 3)].into_iter().for_each(|open| turns.push(open));
        let withdrawn = turns.withdraw(ProcessRef { pid: 1, start_time: None });
        assert_eq!(withdrawn.iter().map(|open| open.id).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((turns.len(), ids(&mut turns)), (1, vec![2]));
    }
}
