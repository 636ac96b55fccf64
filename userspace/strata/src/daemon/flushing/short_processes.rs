//! The samples of short processes, until all of a flush are known: a host may start hundreds a
//! second, and a profile costs an exporter, the store and a query more than its samples do.
//!
//! Invariant: processes are alike only if every fact of their profiles is equal, except what tells
//! two runs of a program apart: pid and runtime id. Samples keep their pids.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use strata_agent::engine::Engine;
use strata_agent::image_id::ImageId;
use strata_export::origin::Origin;
use strata_kinds::{Frequencies, Kinds};
use strata_metadata::Source;
use strata_metadata::destinations::Wish;

use super::super::process_metadata::ResolvedProcess;
use super::{Flush, Group};

/// How the samples of a process are to be taken into a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Treatment {
    pub kinds: Kinds,
    pub frequencies: Frequencies,
    pub stores_times: bool,
}

/// What processes must have in common to share a profile.
#[derive(PartialEq, Eq, Hash)]
struct Likeness {
    /// Without pid and runtime id.
    origin: Origin,
    labels: Vec<(String, String)>,
    own_settings: Vec<Wish>,
    named_by: Source,
    treatment: Treatment,
}

impl Likeness {
    fn of(who: &ResolvedProcess, treatment: Treatment) -> Self {
        Self {
            origin: Origin { pid: None, runtime_id: String::new(), ..(*who.origin).clone() },
            labels: who.labels.clone(),
            own_settings: who.identity.wishes.clone(),
            named_by: who.identity.service.source,
            treatment,
        }
    }
}

/// Processes with samples for one profile.
pub(super) struct Alike {
    /// One of them.
    pub image: ImageId,
    pub who: Arc<ResolvedProcess>,
    pub treatment: Treatment,
    pub group: Group,
    /// How many they are.
    count: usize,
}

impl Alike {
    pub(super) fn one(
        image: ImageId,
        who: Arc<ResolvedProcess>,
        treatment: Treatment,
        group: Group,
    ) -> Self {
        Self { image, who, treatment, group, count: 1 }
    }

    /// The origin of their profile: of one process, if there are not several.
    pub(super) fn origin(&self) -> Arc<Origin> {
        match self.count {
            0 | 1 => self.who.origin.clone(),
            _ => Arc::new(self.who.origin.of_several()),
        }
    }
}

/// The short processes of a flush.
#[derive(Default)]
pub(super) struct ShortProcesses(HashMap<Likeness, Alike>);

impl ShortProcesses {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a process. Returns those that it is alike to, if together they have enough samples for
    /// a profile.
    pub(super) fn add(
        &mut self,
        image: ImageId,
        who: Arc<ResolvedProcess>,
        treatment: Treatment,
        group: Group,
    ) -> Option<Alike> {
        match self.0.entry(Likeness::of(&who, treatment)) {
            Entry::Vacant(place) => {
                place.insert(Alike::one(image, who, treatment, group));
                None
            }
            Entry::Occupied(mut alike) => {
                let known = alike.get_mut();
                known.count += 1;
                known.group.rows.extend(group.rows);
                known.group.ticks.extend(group.ticks);
                let is_full = known.group.rows.len() >= MOST_ROWS;
                is_full.then(|| alike.remove())
            }
        }
    }

    /// Takes some processes that are alike.
    pub(super) fn take(&mut self) -> Option<Alike> {
        self.0.extract_if(|_, _| true).next().map(|(_, alike)| alike)
    }
}

/// Whether all samples of an image are of its first flush: it began no more than a period before this
/// one, and has ended. What has a profile of its own keeps it.
pub(super) fn is_short(engine: &Engine, flush: &Flush, image: ImageId) -> bool {
    let period = u64::try_from(flush.length.as_nanos()).unwrap_or(u64::MAX);
    let earliest = flush.begun_nanos.saturating_sub(period).max(1);
    engine.table.image(image).is_some_and(|image| image.started >= earliest)
        && engine.table.has_ended(image)
}

/// Rows of one profile: more would be a lot of memory at once.
const MOST_ROWS: usize = 50_000;

#[cfg(test)]
mod tests {
    use strata_agent::aggregate::{LabelsId, Row, StackId, ThreadId};
    use strata_config::rules::Decision;
    use strata_kinds::Kind;
    use strata_metadata::{Choice, Facts, identify};

    use super::*;

    fn who(pid: u32, service: &str) -> Arc<ResolvedProcess> {
        let facts = Facts { comm: service, ..Facts::default() };
        let identity = identify(&facts, &Choice::default(), Kinds::all());
        let origin = Arc::new(Origin {
            service: service.to_owned(),
            pid: Some(pid),
            runtime_id: pid.to_string(),
            ..Origin::default()
        });
        let decision = Decision::default();
        Arc::new(ResolvedProcess { identity, decision, origin, labels: Vec::new() })
    }

    fn group(thread: u32, samples: u64) -> Group {
        let (thread, stack, labels) = (ThreadId(thread), StackId(0), LabelsId::NONE);
        let (kind, weight) = (Kind::Wall, 7 * samples);
        let row = Row { kind, thread, stack, labels, samples, weight, value: 0 };
        Group { rows: vec![row], ticks: Vec::new() }
    }

    #[test]
    fn a_thousand_runs_of_a_program_are_one_profile_and_one_run_stays_what_it_is() {
        let mut short = ShortProcesses::default();
        let treatment = treatment();
        for pid in 1..=1000 {
            assert!(short.add(ImageId(pid), who(pid, "tiny"), treatment, group(pid, 3)).is_none());
        }
        short.add(ImageId(1001), who(1001, "once"), treatment, group(1001, 5));
        let kinds = Kinds::NONE.with(Kind::Wall, true);
        let mut taken: Vec<_> = std::iter::from_fn(|| short.take())
            .map(|alike| {
                let origin = alike.origin();
                (origin.service.clone(), origin.pid, alike.group.samples(kinds))
            })
            .collect();
        taken.sort();
        let expected = [("once".to_owned(), Some(1001), 5), ("tiny".to_owned(), None, 3000)];
        assert_eq!(taken, expected);
        assert!(short.is_empty());
    }

    #[test]
    fn processes_that_are_treated_differently_are_not_alike() {
        let mut short = ShortProcesses::default();
        let other = Treatment { stores_times: true, ..treatment() };
        for (pid, treatment) in [(1, treatment()), (2, other)] {
            short.add(ImageId(pid), who(pid, "tiny"), treatment, group(pid, 1));
        }
        let pids = std::iter::from_fn(|| short.take()).map(|alike| alike.origin().pid);
        assert_eq!(pids.flatten().count(), 2);
    }

    #[test]
    fn so_many_rows_are_passed_on_before_there_are_more() {
        let mut short = ShortProcesses::default();
        let mut add = |pid, rows: usize| {
            let row = group(pid, 1).rows[0];
            let group = Group { rows: vec![row; rows], ticks: Vec::new() };
            short.add(ImageId(pid), who(pid, "tiny"), treatment(), group)
        };
        assert!(add(1, MOST_ROWS - 1).is_none());
        assert!(add(2, 1).is_some_and(|alike| alike.group.rows.len() == MOST_ROWS));
        assert!(add(3, 1).is_none());
    }

    fn treatment() -> Treatment {
        let frequencies = Frequencies::of_daemon();
        Treatment { kinds: Kinds::all(), frequencies, stores_times: false }
    }
}
