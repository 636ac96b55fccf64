//! Builds a profile of symbolized samples: of a whole aggregate, or of a part of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strata_kinds::{Frequencies, Kind, Kinds, Measure, Shape};
use strata_profile::{
    FrameKind, Label, LabelValue, LabelsId as Labels, LocationId, MappingId, Profile,
    ProfileBuilder, StackId as Built, ThreadId as Owner, idle,
};

use crate::known_symbols::KnownSymbols;
use crate::{ModuleInfo, NamedFrame};
use strata_agent::aggregate::{Aggregate, LabelsId, Row, StackId, ThreadId, Tick};
use strata_agent::code_address::CodeAddress;
use strata_agent::engine::samples::comm_text;
use strata_agent::managed::names::folds;
use strata_agent::processes::container::Groups;
use strata_agent::processes::table::ProcessTable;

/// When and how the samples were taken.
pub struct Circumstances {
    pub started: SystemTime,
    pub length: Duration,
    /// How often each kind was sampled.
    pub frequencies: Frequencies,
    /// The kinds whose columns the profile has.
    pub kinds: Kinds,
    /// The host's name.
    pub host: String,
}

/// A profile of some of an aggregate's samples.
pub struct Build<'a> {
    table: &'a ProcessTable,
    groups: &'a Groups,
    aggregate: &'a Aggregate,
    symbols: &'a KnownSymbols,
    builder: ProfileBuilder,
    frequencies: Frequencies,
    /// The values of one row.
    values: Vec<i64>,
    modules: HashMap<*const ModuleInfo, MappingId>,
    locations: HashMap<u32, LocationId>,
    by_caller: HashMap<(u32, u32), LocationId>,
    stacks: HashMap<u32, Built>,
    threads: HashMap<u32, Owner>,
    /// Of threads with labels of samples, and whether the thread is idle.
    labels: HashMap<(u32, LabelsId, Option<&'static str>), Labels>,
    /// The kind of idle thread that a stack is of, with the thread's name.
    idle: HashMap<(u32, [u8; 16]), Option<&'static str>>,
    /// Places without a symbol that may get one later.
    late: Vec<CodeAddress>,
}

impl<'a> Build<'a> {
    pub fn new(
        (table, groups): (&'a ProcessTable, &'a Groups),
        aggregate: &'a Aggregate,
        symbols: &'a KnownSymbols,
        circumstances: &Circumstances,
    ) -> Self {
        let mut builder = ProfileBuilder::of_kinds(circumstances.kinds);
        for kind in circumstances.kinds.iter() {
            builder.set_period_of(kind, circumstances.frequencies.period(kind));
        }
        let start = circumstances.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = i64::try_from(start.as_nanos()).unwrap_or(i64::MAX);
        builder.set_start(start);
        let length = i64::try_from(circumstances.length.as_nanos()).unwrap_or(i64::MAX);
        builder.set_duration(length);
        builder.set_host(&circumstances.host);
        Self {
            table,
            groups,
            aggregate,
            symbols,
            builder,
            frequencies: circumstances.frequencies,
            values: Vec::new(),
            modules: HashMap::new(),
            locations: HashMap::new(),
            by_caller: HashMap::new(),
            stacks: HashMap::new(),
            threads: HashMap::new(),
            labels: HashMap::new(),
            idle: HashMap::new(),
            late: Vec::new(),
        }
    }

    /// The samples of a thread in a stack.
    pub fn add(&mut self, row: &Row) {
        let stack = self.stack(row.stack);
        let idle = self.idle(row.kind, row.stack, row.thread, row.labels);
        let Some(labels) = self.labels(row.thread, row.labels, idle) else { return };
        let period = self.frequencies.period(row.kind);
        self.values.clear();
        self.values.extend(row.kind.info().values(row.weight, row.value, period));
        self.builder.add_of(row.kind, stack, labels, &self.values);
    }

    /// Samples in time; the profile begins at `start`, by the records' clock. A sample that had to
    /// wait for its tables may be of before that, and counts as of the start.
    pub fn add_ticks(&mut self, ticks: impl IntoIterator<Item = Tick>, start: u64) {
        self.builder.keep_timeline();
        for tick in ticks {
            let stack = self.stack(tick.stack);
            let idle = self.idle(tick.kind, tick.stack, tick.thread, tick.labels);
            let Some(labels) = self.labels(tick.thread, tick.labels, idle) else { continue };
            let period = self.frequencies.period(tick.kind);
            let info = tick.kind.info();
            let values =
                info.columns.iter().zip(info.values(tick.weight.into(), tick.value, period));
            let value = values.filter(|(column, _)| column.measure != Measure::Count);
            let value = value.map(|(_, value)| value).next().unwrap_or(0);
            self.builder.tick(strata_profile::Tick {
                kind: tick.kind,
                labels,
                stack,
                time: tick.time.saturating_sub(start),
                weight: tick.weight,
                value: u64::try_from(value).unwrap_or(0),
            });
        }
    }

    /// The places whose frames have keys instead of symbols.
    pub fn take_late(&mut self) -> Vec<CodeAddress> {
        std::mem::take(&mut self.late)
    }

    pub fn finish(self) -> Profile {
        self.builder.finish()
    }

    /// The kind of idle thread that a wait is of.
    fn idle(
        &mut self,
        kind: Kind,
        stack: StackId,
        thread: ThreadId,
        labels: LabelsId,
    ) -> Option<&'static str> {
        let is_blocked =
            |(name, value): &(Box<str>, Box<str>)| &**name == "state" && &**value == "blocked";
        // A thread that waits for a handle is blocked, and its samples do not say so.
        let waits =
            kind == Kind::WaitHandles || self.aggregate.labels_of(labels).iter().any(is_blocked);
        if kind.info().shape != Shape::Blocked || !waits {
            return None;
        }
        let built = self.stack(stack);
        let profile = self.builder.so_far();
        let comm = self.aggregate.thread(thread)?.comm;
        let find = || idle::of_stack(profile, built, &comm_text(&comm));
        *self.idle.entry((stack.0, comm)).or_insert_with(find)
    }

    /// The labels of a thread, and those of its sample.
    fn labels(
        &mut self,
        thread: ThreadId,
        labels: LabelsId,
        idle: Option<&'static str>,
    ) -> Option<Labels> {
        if let Some(known) = self.labels.get(&(thread.0, labels, idle)) {
            return Some(*known);
        }
        let owner = self.thread(thread)?;
        let mut built = self.builder.thread_labels(owner);
        if labels != LabelsId::NONE {
            let mut all = self.builder.so_far().labels(built).to_vec();
            for (name, value) in self.aggregate.labels_of(labels) {
                let key = self.builder.string(name);
                all.push(Label { key, value: LabelValue::Text(self.builder.string(value)) });
            }
            if let Some(idle) = idle {
                let key = self.builder.string(idle::LABEL);
                all.push(Label { key, value: LabelValue::Text(self.builder.string(idle)) });
            }
            built = self.builder.labels(&all);
        }
        self.labels.insert((thread.0, labels, idle), built);
        Some(built)
    }

    fn thread(&mut self, thread: ThreadId) -> Option<Owner> {
        if let Some(known) = self.threads.get(&thread.0) {
            return Some(*known);
        }
        let key = self.aggregate.thread(thread)?;
        let image = self.table.image(key.image);
        let pid = image.map_or(0, |image| image.pid);
        let process = image.map(|image| image.comm.clone()).unwrap_or_default();
        let group = self.groups.known(key.image);
        let container = group.and_then(|group| group.container.as_deref()).unwrap_or("");
        let comm = comm_text(&key.comm);
        let built = self.builder.thread(pid, key.tid, &comm, &process, container);
        self.threads.insert(thread.0, built);
        Some(built)
    }

    fn stack(&mut self, id: StackId) -> Built {
        if let Some(known) = self.stacks.get(&id.0) {
            return *known;
        }
        let aggregate = self.aggregate;
        let symbols = self.symbols;
        let places = aggregate.stack_of(id);
        let named = |number: u32| {
            let place = aggregate.code_address(number as usize)?;
            symbols.get(place)?.frames.first()
        };
        let mut stack: Vec<LocationId> = Vec::with_capacity(places.len());
        let mut callee: Option<&NamedFrame> = None;
        for (at, &number) in places.iter().enumerate() {
            let frame = named(number);
            let folded =
                matches!((callee, frame), (Some(callee), Some(caller)) if folds(callee, caller));
            callee = frame.filter(|frame| frame.kind == FrameKind::Managed);
            if folded {
                continue;
            }
            let caller = places.get(at + 1).copied();
            let own = caller.and_then(|caller| self.location_by_caller(number, caller));
            stack.extend(own.or_else(|| self.location(number)));
        }
        let built = self.builder.stack(&stack);
        self.stacks.insert(id.0, built);
        built
    }

    fn location(&mut self, number: u32) -> Option<LocationId> {
        if let Some(known) = self.locations.get(&number) {
            return Some(*known);
        }
        let symbols = self.symbols;
        let place = self.aggregate.code_address(number as usize)?;
        let named = symbols.get(place);
        let late = named.filter(|named| named.frames.is_empty());
        let location = match (named, late.and_then(|_| symbols.late_key(place))) {
            (Some(late), Some(key)) => {
                self.late.push(place);
                let module = self.mapping(late.module.as_ref());
                self.builder.late_location(late.address, module, key)
            }
            (Some(named), None) => self.built(named.address, named.module.as_ref(), &named.frames),
            (None, _) => self.built(0, None, &[]),
        };
        self.locations.insert(number, location);
        Some(location)
    }

    fn location_by_caller(&mut self, number: u32, caller: u32) -> Option<LocationId> {
        let symbols = self.symbols;
        let place = self.aggregate.code_address(number as usize)?;
        // Few places have such names.
        if !matches!(place, CodeAddress::Generated { .. }) {
            return None;
        }
        if let Some(known) = self.by_caller.get(&(number, caller)) {
            return Some(*known);
        }
        let frame = symbols.called_by(place, self.aggregate.code_address(caller as usize)?)?;
        let named = symbols.get(place)?;
        let location =
            self.built(named.address, named.module.as_ref(), std::slice::from_ref(frame));
        self.by_caller.insert((number, caller), location);
        Some(location)
    }

    fn mapping(&mut self, module: Option<&Arc<ModuleInfo>>) -> Option<MappingId> {
        let builder = &mut self.builder;
        module.map(|module| {
            *self.modules.entry(Arc::as_ptr(module)).or_insert_with(|| {
                let ModuleInfo { path, build_id, start, limit, offset } = &**module;
                builder.mapping(*start, *limit, *offset, path, build_id)
            })
        })
    }

    fn built(
        &mut self,
        address: u64,
        module: Option<&Arc<ModuleInfo>>,
        frames: &[NamedFrame],
    ) -> LocationId {
        let mapping = self.mapping(module);
        let builder = &mut self.builder;
        let mut frames: Vec<_> = frames
            .iter()
            .map(|f| builder.frame(f.kind, &f.name, &f.system_name, &f.file, f.line))
            .collect();
        if let Some(module) = module.filter(|_| frames.is_empty()) {
            let (kind, name) = (
                FrameKind::of_mapping(&module.path),
                strata_profile::unnamed(&module.path, address),
            );
            frames.push(builder.frame(kind, &name, "", "", 0));
        }
        builder.location(address, mapping, &frames)
    }
}
