//! The model of a profile: samples over interned stacks, labels, locations and strings.
//!
//! Everything refers to everything else by a 32-bit position. A [`Profile`] is made by a
//! [`crate::ProfileBuilder`] and does not change afterwards.
//!
//! Invariant: every location has at least one frame; an id of another profile finds an empty entry,
//! and never causes a panic.

use strata_kinds::{Kind, Measure, find_column};

use crate::intern::{ListTable, StackTable, StringTable, bytes_of};
use crate::kind::FrameKind;
use crate::late::LateKey;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Its position, which is also its identity within the profile.
            #[must_use]
            pub fn position(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A string; the default is the empty one.
    StringId,
    MappingId,
    LocationId,
    /// A stack; the default is the empty one.
    StackId,
    /// A set of labels; the default is the empty one.
    LabelsId,
    ThreadId,
}

/// What a number in a sample counts, in pprof's terms: `cpu` in `nanoseconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueType {
    pub name: StringId,
    pub unit: StringId,
}

/// A function at a line. Several at one location are inlined into each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The name for display.
    pub name: StringId,
    /// The name as the linker or runtime has it, if it differs.
    pub system_name: StringId,
    pub file: StringId,
    /// 0 if unknown.
    pub line: u32,
    pub kind: FrameKind,
}

/// An address and the functions it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    pub address: u64,
    pub mapping: Option<MappingId>,
    pub(crate) frames: u32,
    /// See [`Profile::late_key`].
    pub(crate) late: StringId,
}

/// A range of addresses that a file fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub start: u64,
    pub limit: u64,
    pub file_offset: u64,
    pub path: StringId,
    /// Hexadecimal; empty if unknown.
    pub build_id: StringId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    pub key: StringId,
    pub value: LabelValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LabelValue {
    Text(StringId),
    Number { value: i64, unit: StringId },
}

/// A thread that was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    /// The thread's own name.
    pub comm: StringId,
    /// Its process's name.
    pub process: StringId,
    /// Empty outside containers.
    pub container: StringId,
}

/// All that was counted for one stack with one set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'p> {
    pub stack: StackId,
    pub labels: LabelsId,
    /// One for each of [`Profile::sample_types`].
    pub values: &'p [i64],
}

/// One sample in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub kind: Kind,
    /// Its process and thread, and the event's own labels.
    pub labels: LabelsId,
    pub stack: StackId,
    /// When it was taken, or ended: nanoseconds since the start of the profile.
    pub time: u64,
    /// How many events it stands for.
    pub weight: u32,
    /// Its part of the kind's column that is not a count: nanoseconds on a CPU or waiting, bytes; 0
    /// where there is no such column.
    pub value: u64,
}

impl Tick {
    /// How many nanoseconds it lasted, until [`Self::time`]; 0 for what happens in a moment. One that
    /// stands for several was as long as each of them; slices of a CPU follow each other.
    #[must_use]
    pub fn duration(&self) -> u64 {
        let info = self.kind.info();
        let column = info.duration_column().and_then(|column| info.columns.get(column));
        match column.map(|column| column.measure) {
            None | Some(Measure::Count) => 0,
            Some(Measure::Period) => self.value,
            Some(Measure::Value) => self.value / u64::from(self.weight.max(1)),
        }
    }

    /// Its part of each of its kind's columns.
    pub fn values(&self) -> impl Iterator<Item = i64> + use<> {
        let value = i64::try_from(self.value).unwrap_or(i64::MAX);
        let weight = i64::from(self.weight);
        self.kind.columns().iter().map(move |column| match column.measure {
            Measure::Count => weight,
            Measure::Period | Measure::Value => value,
        })
    }
}

/// Every sample in time, in columns: 25 bytes each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) labels: Vec<LabelsId>,
    pub(crate) stacks: Vec<StackId>,
    pub(crate) times: Vec<u64>,
    pub(crate) values: Vec<u64>,
    /// Ends with the last that is not 1.
    pub(crate) weights: Vec<u32>,
}

impl Timeline {
    pub(crate) fn push(&mut self, tick: Tick) {
        let Tick { kind, labels, stack, time, weight, value } = tick;
        if weight != 1 {
            self.weights.resize(self.kinds.len(), 1);
            self.weights.push(weight);
        }
        self.kinds.push(kind);
        self.labels.push(labels);
        self.stacks.push(stack);
        self.times.push(time);
        self.values.push(value);
    }

    fn memory(&self) -> usize {
        let columns = [
            bytes_of(&self.kinds),
            bytes_of(&self.labels),
            bytes_of(&self.stacks),
            bytes_of(&self.times),
            bytes_of(&self.values),
            bytes_of(&self.weights),
        ];
        columns.iter().sum()
    }

    fn shrink(&mut self) {
        self.kinds.shrink_to_fit();
        self.labels.shrink_to_fit();
        self.stacks.shrink_to_fit();
        self.times.shrink_to_fit();
        self.values.shrink_to_fit();
        self.weights.shrink_to_fit();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SampleKey {
    pub(crate) stack: StackId,
    pub(crate) labels: LabelsId,
}

/// What the allocator takes for itself, for each list.
const ALLOCATION_BYTES: usize = 16;
/// The lists of a profile, those in its tables included, without the timeline's.
const LISTS: usize = 14;

/// A resolved profile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub sample_types: Vec<ValueType>,
    /// The sample type a viewer shows first; empty if the profile does not say.
    pub default_sample_type: StringId,
    pub period_type: ValueType,
    pub period: i64,
    /// The sampling periods of its kinds, where more than that one is known.
    pub(crate) periods: Vec<(Kind, i64)>,
    /// Nanoseconds since 1970.
    pub start_nanos: i64,
    pub duration_nanos: i64,
    /// Where it was recorded; empty if unknown.
    pub host: StringId,
    pub comments: Vec<StringId>,
    /// How often a table was full and a name or stack became an empty one.
    pub overflows: u64,
    pub(crate) strings: StringTable,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) frames: ListTable<Frame>,
    pub(crate) locations: Vec<Location>,
    pub(crate) stacks: StackTable,
    pub(crate) labels: ListTable<Label>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) samples: Vec<SampleKey>,
    pub(crate) values: Vec<i64>,
    pub(crate) timeline: Option<Timeline>,
}

impl Profile {
    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        let timeline = self.timeline.as_ref().map_or(0, Timeline::memory);
        let tables = [
            timeline,
            // Most are small: what the allocator takes for itself counts.
            LISTS.saturating_mul(ALLOCATION_BYTES),
            bytes_of(&self.sample_types),
            bytes_of(&self.periods),
            bytes_of(&self.comments),
            self.strings.memory(),
            self.frames.memory(),
            self.stacks.memory(),
            self.labels.memory(),
            bytes_of(&self.mappings),
            bytes_of(&self.locations),
            bytes_of(&self.threads),
            bytes_of(&self.samples),
            bytes_of(&self.values),
        ];
        tables.iter().fold(size_of::<Self>(), |sum, table| sum.saturating_add(*table))
    }

    /// Gives back the room that lists keep to grow: there may be thousands of profiles.
    pub(crate) fn shrink(&mut self) {
        self.strings.shrink();
        self.frames.shrink();
        self.stacks.shrink();
        self.labels.shrink();
        self.mappings.shrink_to_fit();
        self.locations.shrink_to_fit();
        self.threads.shrink_to_fit();
        self.samples.shrink_to_fit();
        self.values.shrink_to_fit();
        if let Some(timeline) = &mut self.timeline {
            timeline.shrink();
        }
    }

    #[must_use]
    pub fn string(&self, id: StringId) -> &str {
        self.strings.get(id.0)
    }

    #[must_use]
    pub fn mapping(&self, id: MappingId) -> Mapping {
        self.mappings.get(id.position()).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    #[must_use]
    pub fn location(&self, id: LocationId) -> Location {
        self.locations.get(id.position()).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// The functions at a location, the innermost inlined one first.
    #[must_use]
    pub fn frames(&self, location: Location) -> &[Frame] {
        self.frames.get(location.frames)
    }

    /// The key of a frame whose symbol was not known yet when the profile was built.
    #[must_use]
    pub fn late_key(&self, location: Location) -> Option<LateKey> {
        LateKey::parse(self.string(location.late))
    }

    /// The path of a location's mapping; empty without one.
    #[must_use]
    pub fn path_of(&self, location: Location) -> &str {
        location.mapping.map_or("", |mapping| self.string(self.mapping(mapping).path))
    }

    /// The locations of a stack, leaf first.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = LocationId> + '_ {
        let mut at = id.0;
        std::iter::from_fn(move || {
            let node = self.stacks.leaf(at)?;
            at = node.caller;
            Some(LocationId(node.location))
        })
    }

    /// The leaf of a stack and the stack of its caller; `None` for the empty stack. For code that
    /// visits shared callers only once.
    #[must_use]
    pub fn leaf(&self, id: StackId) -> Option<(LocationId, StackId)> {
        let node = self.stacks.leaf(id.0)?;
        Some((LocationId(node.location), StackId(node.caller)))
    }

    /// [`Self::leaf`] of all stacks but the empty one, by position: callers come before their
    /// callees.
    pub fn leaves(&self) -> impl Iterator<Item = (LocationId, StackId)> + '_ {
        self.stacks.nodes().map(|node| (LocationId(node.location), StackId(node.caller)))
    }

    /// How many locations each stack has, by position.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = vec![0];
        depths.reserve(self.stack_count());
        for (_, caller) in self.leaves() {
            let of_caller = depths.get(caller.position()).copied().unwrap_or(0);
            depths.push(of_caller.saturating_add(1));
        }
        depths
    }

    pub fn location_ids(&self) -> impl Iterator<Item = LocationId> + use<> {
        (0..u32::try_from(self.locations.len()).unwrap_or(u32::MAX)).map(LocationId)
    }

    /// How many stacks there are, those of callers included: ids are positions below it.
    #[must_use]
    pub fn stack_count(&self) -> usize {
        self.stacks.len()
    }

    #[must_use]
    pub fn labels(&self, id: LabelsId) -> &[Label] {
        self.labels.get(id.0)
    }

    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    #[must_use]
    pub fn thread(&self, id: ThreadId) -> Thread {
        self.threads.get(id.position()).copied().unwrap_or_default()
    }

    #[must_use]
    pub fn sample_count(&self) -> usize {
        self.samples.len()
    }

    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        let width = self.sample_types.len().max(1);
        self.samples.iter().zip(self.values.chunks(width)).map(|(key, values)| Sample {
            stack: key.stack,
            labels: key.labels,
            values,
        })
    }

    /// Every sample in time, if the timeline was kept, in the order it was recorded.
    pub fn timeline(&self) -> Option<impl Iterator<Item = Tick> + '_> {
        let line = self.timeline.as_ref()?;
        let what = line.kinds.iter().zip(&line.labels).zip(&line.stacks);
        let when = line.times.iter().zip(&line.values);
        let weights = line.weights.iter().copied().chain(std::iter::repeat(1));
        Some(what.zip(when).zip(weights).map(
            |((((&kind, &labels), &stack), (&time, &value)), weight)| Tick {
                kind,
                labels,
                stack,
                time,
                weight,
                value,
            },
        ))
    }

    /// The position of the sample type of this name.
    #[must_use]
    pub fn sample_type(&self, name: &str) -> Option<usize> {
        self.sample_types.iter().position(|kind| self.string(kind.name) == name)
    }

    /// The sample type to show by default: the profile's own choice, else the last (as pprof does).
    #[must_use]
    pub fn shown_sample_type(&self) -> usize {
        let named = self.string(self.default_sample_type);
        let chosen = if named.is_empty() { None } else { self.sample_type(named) };
        chosen.unwrap_or_else(|| self.sample_types.len().saturating_sub(1))
    }

    /// The sample type that counts samples, if there is one.
    #[must_use]
    pub fn counting_sample_type(&self) -> Option<usize> {
        self.sample_types.iter().position(|kind| {
            matches!(self.string(kind.name), "samples" | "sample")
                && self.string(kind.unit) == "count"
        })
    }

    /// The count of samples that a viewer may show beside values of another sample type: a count of CPU
    /// samples says nothing of wall-clock time.
    #[must_use]
    pub fn samples_beside(&self, sample_type: usize) -> Option<usize> {
        let counting = self.counting_sample_type()?;
        let (kind, other) = (self.kind_of(sample_type), self.kind_of(counting));
        (kind.is_none() || other.is_none() || kind == other).then_some(counting)
    }

    /// The sample type that counts the samples of another: that of its kind, or of the profile
    /// where its kind is not known.
    #[must_use]
    pub fn count_of(&self, sample_type: usize) -> Option<usize> {
        let Some(kind) = self.kind_of(sample_type) else { return self.counting_sample_type() };
        let count = kind.columns().iter().position(|column| column.measure == Measure::Count)?;
        Some(self.first_column_of(kind)?.saturating_add(count))
    }

    /// Whether a value of `times` is the profile's period for each that `counting` counts.
    #[must_use]
    pub fn counts_periods(&self, counting: usize, times: usize) -> bool {
        // Periods are whole nanoseconds: those of 19 Hz are 0.000000008 of themselves too short.
        const EXACTNESS: i128 = 10_000;
        let counted = i128::from(self.total(counting)) * i128::from(self.period);
        let timed = i128::from(self.total(times));
        (counted - timed).abs().saturating_mul(EXACTNESS) <= timed
    }

    /// The kind that a sample type is a column of.
    #[must_use]
    pub fn kind_of(&self, sample_type: usize) -> Option<Kind> {
        let column = self.sample_types.get(sample_type)?;
        Some(find_column(self.string(column.name), self.string(column.unit))?.0)
    }

    /// The sum of one value over all samples.
    #[must_use]
    pub fn total(&self, sample_type: usize) -> i64 {
        let values = self.samples().filter_map(|sample| sample.values.get(sample_type));
        // Fewer than 2^32 values of 64 bits each.
        let sum: i128 = values.map(|&value| i128::from(value)).sum();
        i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
    }
}
