//! Reads and merges the chosen sources, on several threads for large queries.
//!
//! Each service is handled by one thread, so no two threads look up the same stacks, and their
//! results are joined without any lookup ([`ProfileBuilder::append`]).
//!
//! In memory are the answer, for each thread the records of one service in one file, and while two
//! threads' profiles are put together the second one twice.

use std::io::ErrorKind;

use strata_kinds::find_column;
use strata_profile::ProfileBuilder;

use super::sources::{Read, Source, Troubles, read_source};
use super::{Answer, Reader};
use crate::error::StoreError;
use crate::late::LateSymbols;
use crate::parallel;
use crate::selection::Selection;
use crate::series::{Pair, Series};
use crate::tables::Replay;

/// How much is read at once.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    most: usize,
    /// Bytes of records that are worth a thread.
    worth: u64,
}

impl Threads {
    pub(super) fn of_this_host() -> Self {
        // It takes a few milliseconds to read as much.
        Self { most: parallel::threads(), worth: 512 << 10 }
    }
}

/// How often a store that changes is looked at again: files are dropped and replaced now and then,
/// and few of them between being found and being opened.
const MOST_TRIES: usize = 5;

/// Answers a question.
pub(super) fn answer(
    reader: &Reader,
    selection: &Selection,
    threads: Threads,
) -> Result<Answer, StoreError> {
    for _ in 1..MOST_TRIES {
        let plan = Plan::new(reader, selection)?;
        if plan.troubles.is_gone {
            continue;
        }
        match plan.answer(reader, selection, threads, Gone::Stops) {
            Err(error) if error.is_gone() => {}
            done => return done,
        }
    }
    Plan::new(reader, selection)?.answer(reader, selection, threads, Gone::IsLeftOut)
}

/// What to do when a planned file is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// Nothing: another look at the directory knows better.
    Stops,
    /// Read the sources that it replaced; a segment replaces itself.
    IsLeftOut,
}

/// The sources of a query, in the directory's state at one time.
struct Plan {
    sources: Vec<Source>,
    troubles: Troubles,
}

impl Plan {
    fn new(reader: &Reader, selection: &Selection) -> Result<Self, StoreError> {
        let mut troubles = Troubles::default();
        let mut sources = reader.sources(selection, &mut troubles)?;
        // Data shared within a service is then still in the CPU's caches.
        sources.sort_by(|one, other| one.service.cmp(&other.service));
        Ok(Self { sources, troubles })
    }

    fn answer(
        self,
        reader: &Reader,
        selection: &Selection,
        threads: Threads,
        gone: Gone,
    ) -> Result<Answer, StoreError> {
        let question = Question::new(reader, selection, &self.sources, gone);
        let mut merge = question.merge(self.sources, threads)?;
        merge.answer.take_troubles(&self.troubles);
        Ok(merge.finish())
    }
}

/// What all threads know.
struct Question<'q> {
    reader: &'q Reader,
    selection: &'q Selection,
    /// Of all series there are.
    sample_types: Vec<Pair>,
    /// Whose period and usual sample type the answer has.
    first: Option<Series>,
    /// What times in the timeline count from.
    origin: i64,
    gone: Gone,
    late: LateSymbols,
}

impl<'q> Question<'q> {
    fn new(reader: &'q Reader, selection: &'q Selection, sources: &[Source], gone: Gone) -> Self {
        let (sample_types, first, origin) = (Vec::new(), None, i64::MAX);
        let late = LateSymbols::of(&reader.directory);
        let mut question = Self { reader, selection, sample_types, first, origin, gone, late };
        for source in sources {
            for (_, series) in source.series.iter().filter(|(_, series)| selection.fits(series)) {
                question.first.get_or_insert_with(|| series.clone());
                for pair in &series.sample_types {
                    if !question.sample_types.contains(pair) {
                        question.sample_types.push(pair.clone());
                    }
                }
            }
            let starts = source.entries.iter().filter(|(_, is_wanted)| *is_wanted);
            question.origin = starts.map(|(entry, _)| entry.start).fold(question.origin, i64::min);
        }
        question
    }

    /// Sources sorted by service.
    fn merge(&self, sources: Vec<Source>, threads: Threads) -> Result<Merge<'_>, StoreError> {
        let (left, right) = divided(sources, threads);
        if right.is_empty() {
            return self.merge_in_turn(left);
        }
        let half = threads.most / 2;
        let of = |most| Threads { most, ..threads };
        let left = || self.merge(left, of(threads.most.saturating_sub(half)));
        let mut merged: Option<Merge<'_>> = None;
        for part in parallel::both(left, || self.merge(right, of(half))) {
            match &mut merged {
                None => merged = Some(part?),
                Some(merged) => merged.append(part?),
            }
        }
        Ok(merged.unwrap_or_else(|| Merge::new(self)))
    }

    fn merge_in_turn(&self, sources: Vec<Source>) -> Result<Merge<'_>, StoreError> {
        let mut merge = Merge::new(self);
        let mut waiting: Vec<Source> = sources.into_iter().rev().collect();
        while let Some(source) = waiting.pop() {
            let read = match read_source(&source, &mut merge.answer) {
                Err(error) if error.is_gone() && self.gone == Gone::IsLeftOut => None,
                other => Some(other?),
            };
            let damaged = read.as_ref().map_or(0, |read| read.damaged);
            match read {
                // Damaged merges are not needed: their sources are present.
                Some(read) if damaged == 0 || source.replaced_by.is_empty() => {
                    merge.add(&source, read);
                }
                _ => {
                    merge.answer.replaced = merge.answer.replaced.saturating_add(damaged);
                    waiting.append(&mut self.instead_of(&source, &mut merge.answer)?);
                }
            }
        }
        Ok(merge)
    }

    /// The replacement of an unreadable source.
    fn instead_of(&self, source: &Source, answer: &mut Answer) -> Result<Vec<Source>, StoreError> {
        let mut troubles = Troubles::default();
        let mut instead = Vec::new();
        for replacement in &source.replaced_by {
            let mut found =
                self.reader.instead(replacement, source, self.selection, &mut troubles)?;
            instead.append(&mut found);
        }
        if troubles.is_gone && self.gone == Gone::Stops {
            return Err(StoreError::io("open", &source.path)(ErrorKind::NotFound.into()));
        }
        answer.take_troubles(&troubles);
        Ok(instead)
    }
}

impl Answer {
    fn take_troubles(&mut self, troubles: &Troubles) {
        self.damaged = self.damaged.saturating_add(troubles.damaged);
        self.replaced = self.replaced.saturating_add(troubles.replaced);
    }
}

/// Splits sources that are sorted by service in two, between services, so that the first part is as
/// large as its part of the threads is. The second is empty if there is too little to share.
fn divided(mut sources: Vec<Source>, threads: Threads) -> (Vec<Source>, Vec<Source>) {
    let bytes = |sources: &[Source]| sources.iter().map(Source::bytes).fold(0, u64::saturating_add);
    let all = bytes(&sources);
    if threads.most < 2 || all < threads.worth.saturating_mul(2) {
        return (sources, Vec::new());
    }
    let threads = threads.most as u64;
    let wanted = (all / threads).saturating_mul(threads.saturating_sub(threads / 2));
    let (mut before, mut best) = (0_u64, None);
    for (at, pair) in (1..).zip(sources.windows(2)) {
        let [one, other] = pair else { continue };
        before = before.saturating_add(one.bytes());
        if one.service != other.service {
            let away = before.abs_diff(wanted);
            best = best.into_iter().chain([(away, at)]).min();
        }
    }
    let right = best.map_or_else(Vec::new, |(_, at)| sources.split_off(at));
    (sources, right)
}

/// An answer in the making.
struct Merge<'q> {
    question: &'q Question<'q>,
    builder: ProfileBuilder,
    answer: Answer,
    /// Whose records came last.
    service: String,
    times: Option<(i64, i64)>,
}

impl<'q> Merge<'q> {
    fn new(question: &'q Question<'q>) -> Self {
        let types = question.sample_types.iter();
        let types: Vec<_> = types.map(|(name, unit)| (name.as_str(), unit.as_str())).collect();
        let mut builder = ProfileBuilder::new(&types);
        if let Some(series) = &question.first {
            let (name, unit) = &series.period_type;
            builder.set_period(name, unit, series.period);
            builder.set_default_sample_type(&series.default_sample_type);
        }
        if question.selection.timeline {
            builder.keep_timeline();
        }
        let (answer, service) = (Answer::default(), String::new());
        Self { question, builder, answer, service, times: None }
    }

    fn add(&mut self, source: &Source, read: Read) {
        self.answer.damaged = self.answer.damaged.saturating_add(read.damaged);
        if self.service != source.service {
            // Services share few stacks, and samples of two services are cheaper to keep apart than
            // to look up.
            self.builder.begin_part();
            self.service.clone_from(&source.service);
        }
        let Selection { detail, pid, .. } = *self.question.selection;
        let mut replay = Replay::naming(detail, pid, &self.question.late);
        for (entry, body) in &read.bodies {
            let runtime_id = read.tables.string(body.runtime_id);
            if self
                .question
                .selection
                .runtime_id
                .as_ref()
                .is_some_and(|wanted| wanted != runtime_id)
            {
                continue;
            }
            let Some(series) = source.series_of(entry) else { continue };
            let place = |pair| self.question.sample_types.iter().position(|known| known == pair);
            let columns: Vec<_> = series.sample_types.iter().filter_map(place).collect();
            if columns.len() != body.width {
                self.answer.damaged = self.answer.damaged.saturating_add(1);
                continue;
            }
            let kind = series.sample_types.iter().find_map(|(name, unit)| find_column(name, unit));
            let kind = kind.map(|(kind, _)| kind);
            let kind = kind.filter(|_| self.question.selection.timeline);
            // What another process has in use replaces nothing of this one's.
            if !replay.wants_some(&read.tables, body) {
                continue;
            }
            self.builder.begin_period(entry.end, &columns);
            let shift = entry.start.saturating_sub(self.question.origin);
            let shift = u64::try_from(shift).unwrap_or(0);
            let added =
                replay.samples(&read.tables, &mut self.builder, body, &columns).and_then(|()| {
                    match kind {
                        Some(kind) => {
                            replay.ticks(&read.tables, &mut self.builder, body, kind, shift)
                        }
                        None => Ok(()),
                    }
                });
            if added.is_err() {
                self.answer.damaged = self.answer.damaged.saturating_add(1);
                continue;
            }
            let host = read.tables.string(body.host);
            if !host.is_empty() {
                self.builder.set_host(host);
            }
            self.answer.profiles = self.answer.profiles.saturating_add(body.profiles);
            let times = self.times.get_or_insert((entry.start, entry.end));
            *times = (times.0.min(entry.start), times.1.max(entry.end));
            self.builder.count_overflows(body.overflows);
        }
    }

    /// Takes in what another thread has, which has no service in common with this.
    fn append(&mut self, other: Self) {
        let Answer { profiles, records_read, bytes_read, damaged, replaced, .. } = other.answer;
        let answer = &mut self.answer;
        answer.profiles = answer.profiles.saturating_add(profiles);
        answer.records_read = answer.records_read.saturating_add(records_read);
        answer.bytes_read = answer.bytes_read.saturating_add(bytes_read);
        answer.damaged = answer.damaged.saturating_add(damaged);
        answer.replaced = answer.replaced.saturating_add(replaced);
        if let Some((start, end)) = other.times {
            let times = self.times.get_or_insert((start, end));
            *times = (times.0.min(start), times.1.max(end));
        }
        let snapshot_end = other.builder.snapshot_end();
        let profile = other.builder.finish();
        if let Some(end) = snapshot_end {
            let all: Vec<usize> = (0..profile.sample_types.len()).collect();
            self.builder.begin_period(end, &all);
        }
        let host = profile.string(profile.host);
        if !host.is_empty() {
            self.builder.set_host(host);
        }
        self.builder.append(&profile);
    }

    fn finish(mut self) -> Answer {
        if let Some((first, end)) = self.times {
            // Samples in time say how long after the origin they were taken, also when what lies
            // there is not wanted.
            let start = if self.question.selection.timeline { self.question.origin } else { first };
            self.builder.set_start(start);
            self.builder.set_duration(end.saturating_sub(start));
        }
        self.answer.profile = self.builder.finish();
        self.answer
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use strata_kinds::Kind;
    use strata_profile::{FrameKind, Label, LabelValue, Profile, StackId, Tick};

    use super::*;
    use crate::directory::Identity;
    use crate::{Detail, Head, Options, Store};

    const SECOND: i64 = 1_000_000_000;
    const START: i64 = 500_000 * 3_600 * SECOND;

    /// A service's profile of a period: its stacks, and how often each was sampled.
    type Written = (u8, u8, Vec<(Vec<u8>, u8)>);

    fn profile(service: u8, stacks: &[(Vec<u8>, u8)]) -> Profile {
        let types = [("samples", "count"), ("cpu", "nanoseconds")];
        let mut builder = ProfileBuilder::new(&types[..1 + usize::from(service % 2)]);
        builder.set_host(&format!("node-{service}"));
        builder.keep_timeline();
        for (functions, count) in stacks {
            let mut stack = StackId::default();
            for function in functions {
                let frame =
                    builder.frame(FrameKind::Managed, &format!("f{function}"), "", "Shop.cs", 7);
                let location = builder.location(0, None, &[frame]);
                stack = builder.called_from(stack, location);
            }
            let key = builder.string("comm");
            let value = LabelValue::Text(builder.string(&format!("worker {}", count % 2)));
            let labels = builder.labels(&[Label { key, value }]);
            builder.add(stack, labels, &[i64::from(*count), i64::from(*count) * 10]);
            let thread = builder.thread(u32::from(service), 1, "worker", "", "");
            let (kind, labels) = (Kind::Cpu, builder.thread_labels(thread));
            let time = u64::from(*count);
            builder.tick(Tick { kind, labels, stack, time, weight: 1, value: 1 });
        }
        builder.finish()
    }

    fn path(profile: &Profile, stack: StackId) -> Vec<&str> {
        let frames = profile
            .stack(stack)
            .map(|location| profile.string(profile.frames(profile.location(location))[0].name));
        frames.collect()
    }

    /// Everything in a result, in an order that does not depend on how it was made.
    fn output(answer: &Answer) -> String {
        let profile = &answer.profile;
        let mut sums: BTreeMap<_, Vec<i64>> = BTreeMap::new();
        for sample in profile.samples() {
            let comm = profile.string(profile.identity(sample.labels).comm);
            let sum = sums.entry((path(profile, sample.stack), comm));
            let sum = sum.or_insert_with(|| vec![0; sample.values.len()]);
            sum.iter_mut().zip(sample.values).for_each(|(sum, value)| *sum += value);
        }
        let ticks = profile.timeline().into_iter().flatten();
        let ticks: Vec<_> = ticks
            .map(|tick| (profile.identity(tick.labels).pid, tick.time, path(profile, tick.stack)))
            .collect();
        let types = profile.sample_types.iter().map(|kind| profile.string(kind.name));
        format!(
            "{:?}\n{sums:?}\n{ticks:?}\n{:?}",
            types.collect::<Vec<_>>(),
            (
                (answer.profiles, answer.records_read, answer.bytes_read, answer.damaged),
                (profile.start_nanos, profile.duration_nanos, profile.string(profile.host)),
                profile.sample_count(),
            )
        )
    }

    fn written() -> impl Strategy<Value = Vec<Written>> {
        let stacks = prop::collection::vec((prop::collection::vec(0_u8..12, 0..6), 1_u8..9), 0..8);
        prop::collection::vec((0_u8..7, 0_u8..40, stacks), 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn several_threads_say_what_one_says(
            written in written(), cut in 0_u64..4_000, is_damaged: bool,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let options = Options { dictionary_bytes: 32 << 10, ..Options::default() };
            let mut store = Store::open(directory.path(), options).unwrap();
            for (service, minutes, stacks) in &written {
                let start = START + i64::from(*minutes) * 60 * SECOND;
                let head = Head {
                    service: format!("service-{service}"),
                    kind: "cpu".to_owned(),
                    start_nanos: start,
                    end_nanos: start + 15 * SECOND,
                    ..Head::default()
                };
                store.append(&head, &profile(*service, stacks), start).unwrap();
            }
            store.tend(START + 3 * 3_600 * SECOND).unwrap();
            if is_damaged {
                for file in std::fs::read_dir(directory.path()).unwrap().flatten() {
                    let mut bytes = std::fs::read(file.path()).unwrap();
                    if let Some(byte) = bytes.get_mut(cut as usize) {
                        *byte ^= 0x55;
                        std::fs::write(file.path(), bytes).unwrap();
                    }
                }
            }
            let reader = Reader::new(directory.path());
            let lasting = Selection::default();
            let window = lasting.clone().between(START, START + 1_800 * SECOND);
            let all = Selection { detail: Detail::All, timeline: true, ..lasting.clone() };
            for selection in [lasting, window, all] {
                let ask = |most| answer(&reader, &selection, Threads { most, worth: 0 }).unwrap();
                let one = output(&ask(1));
                for most in 2..5 {
                    prop_assert_eq!(output(&ask(most)), one.clone());
                }
            }
        }
    }

    /// Writes an hour of two services, merges it and rolls it up.
    fn write_hour(store: &mut Store, hour: i64) {
        for period in 0..60 {
            let start = START + (hour * 60 + period) * 60 * SECOND;
            for service in 0..2_u8 {
                let head = Head {
                    service: format!("service {service}"),
                    kind: "cpu".to_owned(),
                    start_nanos: start,
                    end_nanos: start + SECOND,
                    ..Head::default()
                };
                let written = profile(service, &[(vec![service, hour as u8], 1)]);
                store.append(&head, &written, start).unwrap();
            }
        }
        store.seal().unwrap();
        store.tend(START + (hour + 1) * 3_600 * SECOND).unwrap();
    }

    fn answer_of(plan: Plan, reader: &Reader, gone: Gone) -> Result<Answer, StoreError> {
        plan.answer(reader, &Selection::default(), Threads { most: 2, worth: 0 }, gone)
    }

    /// A question, planned three times: with its files held open, and twice without.
    fn plans(reader: &Reader, selection: &Selection) -> [Plan; 3] {
        let mut plans = [(); 3].map(|()| Plan::new(reader, selection).unwrap());
        let [_, without @ ..] = &mut plans;
        let sources = without.iter_mut().flat_map(|plan| &mut plan.sources);
        sources.for_each(|source| source.file = None);
        plans
    }

    #[test]
    fn a_roll_up_replaced_while_a_question_is_answered_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(directory.path(), Options::default()).unwrap();
        (0..2).for_each(|hour| write_hour(&mut store, hour));
        assert_eq!(store.counters().rollups_made, 2);
        let reader = store.reader();
        let [held, first, last] = plans(&reader, &Selection::default());
        write_hour(&mut store, 2);
        assert_eq!(store.counters().rollups_made, 3);
        let planned = answer_of(held, &reader, Gone::Stops).unwrap();
        assert_eq!((planned.profiles, planned.damaged), (2 * 2 * 60, 0));
        // A retry uses the files present now; the last try, the replaced sources.
        assert!(answer_of(first, &reader, Gone::Stops).unwrap_err().is_gone());
        let planned = answer_of(last, &reader, Gone::IsLeftOut).unwrap();
        assert_eq!((planned.profiles, planned.damaged), (2 * 2 * 60, 0));
        let now = reader.query(&Selection::default()).unwrap();
        assert_eq!((now.profiles, now.damaged), (3 * 2 * 60, 0));
    }

    #[test]
    fn a_segment_dropped_while_a_question_is_answered_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let max_age = std::time::Duration::from_secs(24 * 3_600);
        let options = Options { max_age, ..Options::default() };
        let mut store = Store::open(directory.path(), options).unwrap();
        (0..2).for_each(|hour| write_hour(&mut store, 12 * hour));
        let reader = store.reader();
        let all = Selection { detail: Detail::All, ..Selection::default() };
        let [held, first, last] = plans(&reader, &all);
        store.tend(START + 25 * 3_600 * SECOND).unwrap();
        assert_eq!(store.counters().dropped_by_age, 1);
        let one = Threads { most: 1, worth: 0 };
        let planned = held.answer(&reader, &all, one, Gone::Stops).unwrap();
        assert_eq!((planned.profiles, planned.damaged), (2 * 2 * 60, 0));
        assert!(first.answer(&reader, &all, one, Gone::Stops).unwrap_err().is_gone());
        let left = last.answer(&reader, &all, one, Gone::IsLeftOut).unwrap();
        assert_eq!((left.profiles, left.damaged), (2 * 60, 0));
        assert_eq!(reader.query(&all).unwrap().profiles, 2 * 60);
    }

    #[test]
    fn a_service_is_not_divided_and_shares_are_as_large_as_threads_are() {
        let nowhere = tempfile::tempfile().unwrap();
        let source = |service: &str, length: u32| {
            let entry = crate::segment::Entry {
                series: 0,
                step: 0,
                member: 0,
                start: 0,
                end: 0,
                offset: 0,
                length,
            };
            Source {
                path: "nowhere".into(),
                file: None,
                identity: Identity::of(&nowhere, "nowhere".as_ref()).unwrap(),
                service: service.to_owned(),
                entries: vec![(entry, true)],
                series: Vec::new(),
                replaced_by: Vec::new(),
            }
        };
        let of = |most| {
            let sources = [("a", 5), ("a", 5), ("a", 20), ("b", 25), ("c", 5), ("d", 30)];
            let sources = sources.map(|(service, length)| source(service, length)).into();
            let (left, right) = divided(sources, Threads { most, worth: 1 });
            (left.len(), right.len())
        };
        assert_eq!([of(1), of(2), of(3)], [(6, 0), (4, 2), (5, 1)]);
        let one = vec![source("a", 50), source("a", 50)];
        assert_eq!(divided(one, Threads { most: 4, worth: 1 }).1.len(), 0);
    }
}
