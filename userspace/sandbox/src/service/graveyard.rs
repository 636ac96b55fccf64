//! Children that were killed, until they can be reaped.
//!
//! Most end within a millisecond. One that is blocked in the kernel on a file that never answers
//! stays until that file's server ends: it is counted as stuck, and the number of such children is
//! bounded by the code that starts new ones.

use std::time::{Duration, Instant};

use super::statistics::Statistics;
use crate::child::Child;
use crate::error::ChildKind;

/// Longer than a killed process takes to end on a busy machine.
const STUCK_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Graveyard {
    dying: Vec<(Child, Instant)>,
}

impl Graveyard {
    /// Kills `child` and takes it over.
    pub fn kill(&mut self, child: Child) {
        child.kill();
        self.dying.push((child, Instant::now()));
    }

    /// Takes over a child that ends by itself, its channel being closed; it is killed if it does
    /// not.
    pub fn let_end(&mut self, child: Child) {
        self.dying.push((child, Instant::now()));
    }

    pub fn reap(&mut self, now: Instant, statistics: &mut Statistics) {
        self.dying.retain(|(child, since)| match child.try_reap() {
            Some((_, processor_time)) => {
                statistics.ended_processor_time += processor_time;
                false
            }
            None => {
                if now.saturating_duration_since(*since) > STUCK_AFTER {
                    child.kill();
                }
                true
            }
        });
        statistics.stuck_children = self.stuck(now, |_| true) as u64;
    }

    /// How many of a kind do not end.
    pub fn stuck(&self, now: Instant, of_kind: impl Fn(ChildKind) -> bool) -> usize {
        let is_stuck = |since: &Instant| now.saturating_duration_since(*since) > STUCK_AFTER;
        self.dying.iter().filter(|(child, since)| of_kind(child.kind) && is_stuck(since)).count()
    }

    /// When to look again whether a child that should end by itself has to be killed.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.dying
            .iter()
            .filter_map(|(_, since)| since.checked_add(STUCK_AFTER))
            .filter(|due| *due > now)
            .min()
    }

    pub fn children(&self) -> impl Iterator<Item = &Child> {
        self.dying.iter().map(|(child, _)| child)
    }
}
