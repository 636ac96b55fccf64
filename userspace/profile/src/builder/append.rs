//! Appends a whole profile to another builder, to join the results of two threads.
//!
//! Every name, location and set of labels is looked up once. Stacks and samples are not looked up
//! at all: they are a part of their own, see [`ProfileBuilder::begin_part`].
//!
//! Invariant: no value is lost; what a full table has no room for is counted, as everywhere.

use super::ProfileBuilder;
use super::translation::Translation;
use crate::model::{Profile, StackId, Tick};

impl ProfileBuilder {
    /// Adds the samples of a profile that has the same sample types, in the same order, and its
    /// samples in time, if both keep these. Its own description is not copied, except how often its
    /// tables were full.
    pub fn append(&mut self, other: &Profile) {
        self.count_overflows(other.overflows);
        self.begin_part();
        let mut known = Translation::new(other);
        let stacks = self.append_stacks(other, &mut known);
        for sample in other.samples() {
            let stack = at(&stacks, sample.stack.position());
            let labels = known.labels(self, sample.labels);
            match self.without_stale(sample.values) {
                None => self.push_sample(stack, labels, sample.values),
                Some(values) => self.push_sample(stack, labels, &values),
            }
        }
        for thread in &other.threads {
            let [comm, process, container] =
                [thread.comm, thread.process, thread.container].map(|id| other.string(id));
            self.thread(thread.pid, thread.tid, comm, process, container);
        }
        for tick in other.timeline().into_iter().flatten() {
            let stack = at(&stacks, tick.stack.position());
            let labels = known.labels(self, tick.labels);
            self.tick(Tick { labels, stack, ..tick });
        }
        // None of what came is in an index.
        self.begin_part();
    }

    fn append_stacks(&mut self, other: &Profile, known: &mut Translation<'_>) -> Vec<StackId> {
        let mut stacks = Vec::with_capacity(other.stack_count());
        stacks.push(StackId::default());
        for (location, caller) in other.leaves() {
            let location = known.location(self, location);
            let caller = at(&stacks, caller.position());
            let stack = self.profile.stacks.push_new(caller.0, location.0);
            stacks.push(StackId(self.or_overflow(stack)));
        }
        stacks
    }
}

fn at<T: Copy + Default>(list: &[T], position: usize) -> T {
    list.get(position).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use strata_kinds::Kind;

    use super::*;
    use crate::{FrameKind, Label, LabelValue, Thread};

    /// A stack's functions, a thread and a count.
    type Row = (Vec<u8>, u8, i64);

    /// Whether a sample stands for two events.
    fn stands_for_two(count: i64) -> bool {
        count % 7 == 3
    }

    fn add(builder: &mut ProfileBuilder, (functions, thread, count): &Row) {
        let mapping = builder.mapping(0x1000, 0x9000, 0, "/app/Shop.dll", "abcd");
        let mut stack = StackId::default();
        for function in functions {
            let name = format!("function {function}");
            let frame = builder.frame(FrameKind::Managed, &name, "", "Shop.cs", 7);
            let location = builder.location(u64::from(*function), Some(mapping), &[frame]);
            stack = builder.called_from(stack, location);
        }
        let (key, worker) = (builder.string("comm"), format!("worker {thread}"));
        let value = LabelValue::Text(builder.string(&worker));
        let labels = builder.labels(&[Label { key, value }]);
        builder.add(stack, labels, &[*count, count.saturating_mul(10)]);
        builder.thread(1, u32::from(*thread), &worker, "shop", "");
        let (time, weight) = (count.unsigned_abs(), 1 + u32::from(stands_for_two(*count)));
        builder.tick(Tick { kind: Kind::Cpu, labels, stack, time, weight, value: 3 });
    }

    fn built(rows: &[Row]) -> ProfileBuilder {
        let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
        builder.keep_timeline();
        rows.iter().for_each(|row| add(&mut builder, row));
        builder
    }

    fn path(profile: &Profile, stack: StackId) -> Vec<String> {
        let frames = profile.stack(stack).map(|location| {
            let location = profile.location(location);
            let frame = profile.frames(location)[0];
            format!("{}!{}", profile.path_of(location), profile.string(frame.name))
        });
        frames.collect()
    }

    fn sums(profile: &Profile) -> BTreeMap<(Vec<String>, String), Vec<i64>> {
        let mut sums = BTreeMap::new();
        for sample in profile.samples() {
            let comm = profile.string(profile.identity(sample.labels).comm).to_owned();
            let sum = sums.entry((path(profile, sample.stack), comm)).or_insert(vec![0, 0]);
            sum.iter_mut().zip(sample.values).for_each(|(sum, value)| *sum += value);
        }
        sums
    }

    fn ticks(profile: &Profile) -> Vec<(String, u64, u32, Vec<String>)> {
        let ticks = profile.timeline().into_iter().flatten();
        let one = |tick: Tick| {
            let comm = profile.string(profile.identity(tick.labels).comm).to_owned();
            (comm, tick.time, tick.weight, path(profile, tick.stack))
        };
        ticks.map(one).collect()
    }

    /// Ids may differ: a name that nothing refers to is not taken over.
    fn threads(profile: &Profile) -> Vec<(u32, u32, [&str; 3])> {
        let texts = |thread: &Thread| {
            let ids = [thread.comm, thread.process, thread.container];
            (thread.pid, thread.tid, ids.map(|id| profile.string(id)))
        };
        profile.threads().iter().map(texts).collect()
    }

    proptest! {
        #[test]
        fn two_halves_appended_say_what_one_builder_says(
            before in prop::collection::vec(
                (prop::collection::vec(0_u8..60, 0..6), 0_u8..3, 0_i64..1000), 0..60),
            after in prop::collection::vec(
                (prop::collection::vec(0_u8..60, 0..6), 0_u8..3, 0_i64..1000), 0..60),
            later in prop::collection::vec(
                (prop::collection::vec(0_u8..60, 0..6), 0_u8..3, 0_i64..1000), 0..10),
        ) {
            let all = [before.clone(), after.clone(), later.clone()].concat();
            let one = built(&all).finish();
            let mut appended = built(&before);
            appended.append(&built(&after).finish());
            later.iter().for_each(|row| add(&mut appended, row));
            let appended = appended.finish();
            prop_assert_eq!(sums(&appended), sums(&one));
            prop_assert_eq!(ticks(&appended), ticks(&one));
            prop_assert_eq!(appended.locations().len(), one.locations().len());
            prop_assert_eq!(threads(&appended), threads(&one));
        }
    }

    #[test]
    fn tables_that_were_full_are_counted_on() {
        let mut other = built(&[]);
        other.count_overflows(3);
        let mut builder = built(&[]);
        builder.append(&other.finish());
        assert_eq!(builder.finish().overflows, 3);
    }
}
