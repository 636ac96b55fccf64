//! Builds a profile, a sample at a time.
//!
//! Every call returns an id for its argument; equal arguments have equal ids. Samples with the same
//! stack and labels are added up at once, so memory grows with distinct items, not with the length
//! of a recording (except the timeline, which is kept only when asked for). `append` takes a whole
//! profile in, by a `translation` of its ids.
//!
//! Invariant: no call fails. When a table is full (four thousand million of something, or 4 GiB
//! of names) the empty thing is used and `overflows` counts it.

mod append;
mod kinds;
mod snapshots;
mod translation;

use std::hash::BuildHasher;

use crate::identity::{CommonStrings, intern_common};
use crate::intern::{Children, Index};
use crate::kind::{FrameKind, unnamed};
use crate::late::LateKey;
use crate::model::{
    Frame, Label, LabelValue, LabelsId, Location, LocationId, Mapping, MappingId, Profile,
    SampleKey, StackId, StringId, Thread, ThreadId, Tick, ValueType,
};
use snapshots::Snapshots;
pub(crate) use translation::Translation;

#[derive(Default)]
pub struct ProfileBuilder {
    profile: Profile,
    strings: Index,
    mappings: Index,
    frames: Index,
    locations: Index,
    /// Of a stack's caller, and of a sample's stack.
    stacks: Children,
    samples: Children,
    labels: Index,
    threads: Index,
    common: CommonStrings,
    snapshots: Snapshots,
    /// The values of one kind among those of all.
    row: Vec<i64>,
}

impl ProfileBuilder {
    /// `sample_types` are (name, unit) pairs as pprof has them, such as
    /// `("samples", "count"), ("cpu", "nanoseconds")`.
    #[must_use]
    pub fn new(sample_types: &[(&str, &str)]) -> Self {
        let mut builder = Self::default();
        builder.common = intern_common(&mut builder);
        for &(name, unit) in sample_types {
            let kind = builder.value_type(name, unit);
            builder.profile.sample_types.push(kind);
            builder.note_column(kind);
        }
        builder
    }

    /// Keeps the samples of [`Self::tick`] (which otherwise does nothing).
    pub fn keep_timeline(&mut self) {
        self.profile.timeline.get_or_insert_default();
    }

    pub fn set_period(&mut self, name: &str, unit: &str, period: i64) {
        self.profile.period_type = self.value_type(name, unit);
        self.profile.period = period;
    }

    pub fn set_default_sample_type(&mut self, name: &str) {
        self.profile.default_sample_type = self.string(name);
    }

    /// When the recording began, in nanoseconds since 1970.
    pub fn set_start(&mut self, nanos: i64) {
        self.profile.start_nanos = nanos;
    }

    pub fn set_duration(&mut self, nanos: i64) {
        self.profile.duration_nanos = nanos;
    }

    pub fn set_host(&mut self, name: &str) {
        self.profile.host = self.string(name);
    }

    pub fn comment(&mut self, text: &str) {
        let text = self.string(text);
        self.profile.comments.push(text);
    }

    /// The comments of another profile that this one does not have.
    pub(crate) fn comments_of(&mut self, other: &Profile) {
        for comment in &other.comments {
            let text = other.string(*comment);
            let known = self.profile.comments.iter();
            if !{ known }.any(|known| self.profile.string(*known) == text) {
                self.comment(text);
            }
        }
    }

    pub fn string(&mut self, text: &str) -> StringId {
        let id = self.profile.strings.intern(&mut self.strings, text);
        StringId(self.or_overflow(id))
    }

    /// Shorthand for a frame of strings: name, system name (empty if the same), file, line.
    pub fn frame(
        &mut self,
        kind: FrameKind,
        name: &str,
        system_name: &str,
        file: &str,
        line: u32,
    ) -> Frame {
        Frame {
            name: self.string(name),
            system_name: self.string(system_name),
            file: self.string(file),
            line,
            kind,
        }
    }

    /// A range of addresses a file fills; `build_id` in hexadecimal, empty if unknown.
    pub fn mapping(
        &mut self,
        start: u64,
        limit: u64,
        file_offset: u64,
        path: &str,
        build_id: &str,
    ) -> MappingId {
        let path = self.string(path);
        let build_id = self.string(build_id);
        self.mapping_of(Mapping { start, limit, file_offset, path, build_id })
    }

    fn mapping_of(&mut self, mapping: Mapping) -> MappingId {
        let id = position_of(&mut self.profile.mappings, &mut self.mappings, mapping);
        MappingId(self.or_overflow(id))
    }

    /// `frames` has the innermost inlined function first. Without any, a name is made of the
    /// mapping and the file offset: `libc.so.6!0x1f3c0`.
    pub fn location(
        &mut self,
        address: u64,
        mapping: Option<MappingId>,
        frames: &[Frame],
    ) -> LocationId {
        self.location_of(address, mapping, frames, StringId::default())
    }

    /// A location without a symbol, which it may get after the profile was built: at an address in its
    /// file's own numbering, or at its file offset where the file has not been read. It is another one than
    /// that of the same address without a key, or with another key.
    pub fn late_location(
        &mut self,
        address: u64,
        mapping: Option<MappingId>,
        key: LateKey,
    ) -> LocationId {
        let late = self.string(&key.to_string());
        self.location_of(address, mapping, &[], late)
    }

    fn location_of(
        &mut self,
        address: u64,
        mapping: Option<MappingId>,
        frames: &[Frame],
        late: StringId,
    ) -> LocationId {
        let stub;
        let frames = if frames.is_empty() {
            stub = [self.stub_frame(address, mapping, late != StringId::default())];
            stub.as_slice()
        } else {
            frames
        };
        let frames = self.profile.frames.intern(&mut self.frames, frames);
        let frames = self.or_overflow(frames);
        let location = Location { address, mapping, frames, late };
        let id = position_of(&mut self.profile.locations, &mut self.locations, location);
        LocationId(self.or_overflow(id))
    }

    /// Leaf first.
    pub fn stack(&mut self, locations: &[LocationId]) -> StackId {
        let mut stack = StackId::default();
        for &location in locations.iter().rev() {
            stack = self.called_from(stack, location);
        }
        stack
    }

    /// The stack in which `caller` calls `location`: for callers that already have stacks of
    /// ids, root first.
    pub fn called_from(&mut self, caller: StackId, location: LocationId) -> StackId {
        let id = self.profile.stacks.push(&mut self.stacks, caller.0, location.0);
        StackId(self.or_overflow(id))
    }

    pub fn labels(&mut self, labels: &[Label]) -> LabelsId {
        let id = self.profile.labels.intern(&mut self.labels, labels);
        LabelsId(self.or_overflow(id))
    }

    /// A thread; the same pid, tid and names give the same id.
    pub fn thread(
        &mut self,
        pid: u32,
        tid: u32,
        comm: &str,
        process: &str,
        container: &str,
    ) -> ThreadId {
        let thread = Thread {
            pid,
            tid,
            comm: self.string(comm),
            process: self.string(process),
            container: self.string(container),
        };
        let id = position_of(&mut self.profile.threads, &mut self.threads, thread);
        ThreadId(self.or_overflow(id))
    }

    /// The labels that say which thread a sample is of: pid, tid, and comm, process and
    /// container id where there is something to say.
    pub fn thread_labels(&mut self, thread: ThreadId) -> LabelsId {
        let Thread { pid, tid, comm, process, container } = self.profile.thread(thread);
        let number = |key, value: u32| Label {
            key,
            value: LabelValue::Number { value: i64::from(value), unit: StringId::default() },
        };
        let text = |key, value| Label { key, value: LabelValue::Text(value) };
        let mut labels = vec![number(self.common.pid, pid), number(self.common.tid, tid)];
        if comm != StringId::default() {
            labels.push(text(self.common.comm, comm));
        }
        if process != comm && process != StringId::default() {
            labels.push(text(self.common.process, process));
        }
        if container != StringId::default() {
            labels.push(text(self.common.container, container));
        }
        self.labels(&labels)
    }

    /// Adds one value for each sample type (a missing one is 0).
    pub fn add(&mut self, stack: StackId, labels: LabelsId, values: &[i64]) {
        match self.without_stale(values) {
            None => self.add_current(stack, labels, values),
            Some(values) => self.add_current(stack, labels, &values),
        }
    }

    fn add_current(&mut self, stack: StackId, labels: LabelsId, values: &[i64]) {
        let key = SampleKey { stack, labels };
        let next = self.profile.samples.len();
        let samples = &self.profile.samples;
        let key_at = |sample: u32| samples.get(sample as usize).copied().unwrap_or(key);
        match self.samples.position_of(stack.0, &key, next, key_at) {
            None => self.profile.overflows = self.profile.overflows.saturating_add(1),
            Some(id) if id as usize == next => self.push_sample(stack, labels, values),
            Some(id) => {
                let width = self.profile.sample_types.len();
                let start = (id as usize).saturating_mul(width.max(1));
                let sums = self.profile.values.get_mut(start..).unwrap_or_default();
                for (sum, value) in sums.iter_mut().zip(values).take(width) {
                    *sum = sum.saturating_add(*value);
                }
            }
        }
    }

    /// Adds values of a stack that has none with these labels.
    fn push_sample(&mut self, stack: StackId, labels: LabelsId, values: &[i64]) {
        if u32::try_from(self.profile.samples.len()).is_err() {
            self.profile.overflows = self.profile.overflows.saturating_add(1);
            return;
        }
        let width = self.profile.sample_types.len();
        let room = width.max(1).saturating_sub(values.len().min(width));
        self.profile.samples.push(SampleKey { stack, labels });
        self.profile.values.extend(values.iter().take(width));
        self.profile.values.extend(std::iter::repeat_n(0, room));
    }

    /// One sample in time. Does nothing unless [`Self::keep_timeline`] was called.
    pub fn tick(&mut self, tick: Tick) {
        if let Some(timeline) = self.profile.timeline.as_mut() {
            timeline.push(tick);
        }
    }

    /// Samples and stacks added from now on are not looked for among those added before, only
    /// among each other. For parts that have little in common, such as services: the indexes stay
    /// as small as a part and fit the processor's caches. The same stack in two parts is there
    /// twice, and adds up in whatever is made of the profile.
    pub fn begin_part(&mut self) {
        let stacks = self.profile.stacks.len();
        self.stacks = Children::begun_at(stacks, stacks);
        self.samples = Children::begun_at(stacks, self.profile.samples.len());
    }

    /// Adds the overflows of other tables that are merged into this one.
    pub fn count_overflows(&mut self, overflows: u64) {
        self.profile.overflows = self.profile.overflows.saturating_add(overflows);
    }

    #[must_use]
    pub fn finish(mut self) -> Profile {
        // Without any time, outputs in time show the samples as those of a profile without times.
        let empty = self.profile.timeline.as_ref().is_some_and(|line| line.times.is_empty());
        if empty && !self.profile.samples.is_empty() {
            self.profile.timeline = None;
        }
        self.drop_emptied();
        self.profile.shrink();
        self.profile
    }

    /// The profile built so far (for a live view).
    #[must_use]
    pub fn so_far(&self) -> &Profile {
        &self.profile
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { name: self.string(name), unit: self.string(unit) }
    }

    /// `is_of_file`: the address is in the file's own numbering, else a process's.
    fn stub_frame(&mut self, address: u64, mapping: Option<MappingId>, is_of_file: bool) -> Frame {
        let known = mapping.map(|id| self.profile.mapping(id));
        let path = known.map_or("", |mapping| self.profile.string(mapping.path));
        let (name, kind) = if path.is_empty() {
            ("[unknown]".to_owned(), FrameKind::Marker)
        } else {
            let Mapping { start, file_offset, .. } = known.unwrap_or_default();
            let offset = address.wrapping_sub(start).wrapping_add(file_offset);
            let shown = if is_of_file { address } else { offset };
            (unnamed(path, shown), FrameKind::of_mapping(path))
        };
        Frame { name: self.string(&name), kind, ..Frame::default() }
    }

    fn or_overflow(&mut self, id: Option<u32>) -> u32 {
        id.unwrap_or_else(|| {
            self.profile.overflows = self.profile.overflows.saturating_add(1);
            0
        })
    }
}

/// The position of `thing` in `list`, appended if it is new.
fn position_of<T: Copy + Eq + std::hash::Hash>(
    list: &mut Vec<T>,
    index: &mut Index,
    thing: T,
) -> Option<u32> {
    let hash = index.hash(&thing);
    if let Some(id) = index.find(hash, |id| list.get(id as usize) == Some(&thing)) {
        return Some(id);
    }
    let id = u32::try_from(list.len()).ok()?;
    list.push(thing);
    index.insert(hash, id, |hasher, id| {
        hasher.hash_one(list.get(id as usize).copied().unwrap_or(thing))
    });
    Some(id)
}
