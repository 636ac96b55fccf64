//! What a profile is: samples over interned stacks, labels, locations and strings.
//!
//! Everything refers to everything else by a 32-bit position. A [`Profile`] is made by a
//! [`crate::ProfileBuilder`] and does not change afterwards.
//!
//! Invariant: every location has at least one frame; an id of another profile finds an empty
//! thing, never a panic.

use crate::intern::{ListTable, StackTable, StringTable, bytes_of};
use crate::kind::FrameKind;

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

/// What a number in a sample counts, as pprof says it: `cpu` in `nanoseconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueType {
    pub name: StringId,
    pub unit: StringId,
}

/// A function at a line. Several at one location are inlined into each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What people see.
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
    pub thread: ThreadId,
    pub stack: StackId,
    /// Nanoseconds since the start of the profile.
    pub time: u64,
    /// Nanoseconds of CPU time it stands for.
    pub on_cpu: u32,
}

/// Every sample in time, in columns: 20 bytes each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) threads: Vec<ThreadId>,
    pub(crate) stacks: Vec<StackId>,
    pub(crate) times: Vec<u64>,
    pub(crate) on_cpu: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SampleKey {
    pub(crate) stack: StackId,
    pub(crate) labels: LabelsId,
}

/// A resolved profile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub sample_types: Vec<ValueType>,
    /// The sample type a viewer shows first; empty if the profile does not say.
    pub default_sample_type: StringId,
    pub period_type: ValueType,
    pub period: i64,
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
        let timeline = self.timeline.as_ref().map_or(0, |line| {
            let columns = [bytes_of(&line.threads), bytes_of(&line.stacks), bytes_of(&line.times)];
            columns.iter().sum::<usize>().saturating_add(bytes_of(&line.on_cpu))
        });
        let tables = [
            timeline,
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
        if let Some(Timeline { threads, stacks, times, on_cpu }) = &mut self.timeline {
            threads.shrink_to_fit();
            stacks.shrink_to_fit();
            times.shrink_to_fit();
            on_cpu.shrink_to_fit();
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

    /// The leaf of a stack and the stack of its caller; `None` for the empty stack. For who visits
    /// callers that stacks share only once.
    #[must_use]
    pub fn leaf(&self, id: StackId) -> Option<(LocationId, StackId)> {
        let node = self.stacks.leaf(id.0)?;
        Some((LocationId(node.location), StackId(node.caller)))
    }

    /// [`Self::leaf`] of all stacks but the empty one, by position: callers come before what they
    /// call.
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
        let places = line.threads.iter().zip(&line.stacks);
        let when = line.times.iter().zip(&line.on_cpu);
        Some(places.zip(when).map(|((&thread, &stack), (&time, &on_cpu))| Tick {
            thread,
            stack,
            time,
            on_cpu,
        }))
    }

    /// The position of the sample type of this name.
    #[must_use]
    pub fn sample_type(&self, name: &str) -> Option<usize> {
        self.sample_types.iter().position(|kind| self.string(kind.name) == name)
    }

    /// The sample type to show when nobody chose: the profile's own choice, else the last (as
    /// pprof does).
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

    /// The sum of one value over all samples.
    #[must_use]
    pub fn total(&self, sample_type: usize) -> i64 {
        let values = self.samples().filter_map(|sample| sample.values.get(sample_type));
        // Fewer than 2^32 values of 64 bits each.
        let sum: i128 = values.map(|&value| i128::from(value)).sum();
        i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
    }
}
