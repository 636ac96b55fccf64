//! Waiting requests, served round-robin: one of each process, then the next of each.
//!
//! A process that maps thousands of files queues all of them at once. Requests of a process that
//! has just started must not wait behind them, because its first samples wait too.

use std::collections::{HashMap, VecDeque};

use super::lane::PendingOpen;
use crate::protocol::ProcessRef;

/// Files of the host have a turn of their own.
type Owner = Option<ProcessRef>;

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
        let owner = open.locator.process();
        let own = self.waiting.entry(owner).or_default();
        if own.is_empty() {
            self.order.push_back(owner);
        }
        own.push_back(open);
        self.count += 1;
    }

    /// Puts back a request that was taken and not answered, as the next one.
    pub fn give_back(&mut self, open: PendingOpen) {
        let owner = open.locator.process();
        self.order.retain(|other| *other != owner);
        self.order.push_front(owner);
        self.waiting.entry(owner).or_default().push_front(open);
        self.count += 1;
    }

    pub fn take(&mut self) -> Option<PendingOpen> {
        let owner = self.order.pop_front()?;
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
        if let Some(at) = self.order.iter().position(|owner| *owner == Some(process)) {
            self.order.remove(at);
            self.order.push_back(Some(process));
        }
    }

    /// Removes waiting requests for files of a process.
    pub fn withdraw(&mut self, process: ProcessRef) -> Vec<PendingOpen> {
        let withdrawn = self.waiting.remove(&Some(process)).unwrap_or_default();
        self.order.retain(|owner| *owner != Some(process));
        self.count -= withdrawn.len();
        Vec::from(withdrawn)
    }

    pub fn take_all(&mut self) -> Vec<PendingOpen> {
        std::iter::from_fn(|| self.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Locator;

    fn open(pid: u32, id: u64) -> PendingOpen {
        let process = ProcessRef { pid, start_time: None };
        PendingOpen { id, locator: Locator::Mapped { process, start: id, end: id + 1 } }
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

    #[test]
    fn what_is_given_back_is_next_and_what_hangs_is_last() {
        let mut turns = Turns::default();
        [open(1, 1), open(1, 2), open(2, 3)].into_iter().for_each(|open| turns.push(open));
        let taken = turns.take().expect("one");
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
