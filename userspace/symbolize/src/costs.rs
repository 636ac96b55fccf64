//! What the owners of files have cost lately, and the order of tasks that follows: a program whose
//! symbols are cheap never waits for one whose files are slow.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use crate::task::{Owner, Task};

/// Owners whose costs differ by less are equally cheap: then weight decides.
const SAME: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct Costs {
    spent: HashMap<Owner, Duration>,
}

impl Costs {
    pub fn add(&mut self, owner: Owner, took: Duration) {
        let spent = self.spent.entry(owner).or_default();
        *spent = spent.saturating_add(took);
    }

    /// A flush begins: the last one counts twice as much as the one before.
    pub fn age(&mut self) {
        self.spent.retain(|_, spent| {
            *spent /= 2;
            *spent >= SAME
        });
    }

    /// The cheapest owners first, new ones among them; of those, the tasks with most samples.
    pub fn order(&self, tasks: &mut [Task]) {
        tasks.sort_by_key(|task| (self.steps(task.owner), Reverse(task.weight)));
    }

    fn steps(&self, owner: Owner) -> u128 {
        let spent = self.spent.get(&owner).copied().unwrap_or_default();
        spent.as_millis() / SAME.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{KernelWork, TaskKey, Work};

    fn task(pid: u32, weight: u64) -> Task {
        let work = KernelWork { addresses: Vec::new(), vdso: Vec::new(), names: None, table: None };
        Task {
            key: TaskKey::Related(pid),
            owner: Owner::Process(pid),
            weight,
            work: Work::Kernel(work),
        }
    }

    fn ordered(costs: &Costs, mut tasks: Vec<Task>) -> Vec<u64> {
        costs.order(&mut tasks);
        tasks.iter().map(|task| task.weight).collect()
    }

    #[test]
    fn a_new_program_goes_before_a_busier_one_whose_files_were_slow() {
        let mut costs = Costs::default();
        let tasks = || vec![task(1, 900), task(2, 5), task(3, 20)];
        assert_eq!(ordered(&costs, tasks()), [900, 20, 5], "before anything is known");
        costs.add(Owner::Process(1), Duration::from_secs(5));
        costs.add(Owner::Process(2), Duration::from_millis(30));
        costs.age();
        assert_eq!(ordered(&costs, tasks()), [20, 5, 900]);
    }

    #[test]
    fn what_was_slow_once_is_forgotten() {
        let mut costs = Costs::default();
        costs.add(Owner::Process(1), Duration::from_secs(15));
        for _ in 0..8 {
            costs.age();
        }
        assert!(costs.spent.is_empty());
        assert_eq!(ordered(&costs, vec![task(2, 5), task(1, 900)]), [900, 5]);
    }
}
