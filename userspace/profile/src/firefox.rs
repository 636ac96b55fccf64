//! The Firefox profiler's format: threads' samples on a time line.
//!
//! Processes and threads carry their names; frames are grouped by kind of code and, within it,
//! by file. With a timeline every sample of a CPU stands at its time and with its CPU use; what a
//! thread waited for and what happened to it are [`markers`], as long as they lasted. Where no CPU was
//! sampled, wall-clock or off-CPU time is samples too, weighing milliseconds. Without a timeline a
//! thread's stacks follow each other, each as one sample weighing what was counted, spread over
//! the recording: shares are right, order and times mean nothing.
//!
//! Invariant: times within a thread never go back; threads are at most [`MOST_THREADS`].

mod markers;

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use fxprof_processed_profile as fxprof;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CategoryPairHandle, CpuDelta, FrameFlags, FrameInfo,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp, WeightType,
};
use hashbrown::HashMap;
use markers::Markers;
use strata_kinds::{Kind, Shape};

use crate::error::WriteError;
use crate::identity::Identity;
use crate::kind::{FrameKind, base_name};
use crate::model::{LabelsId, LocationId, Profile, StackId, StringId};
use crate::text::{shortened, visible};

/// Threads shown on their own; the samples of further ones share one.
const MOST_THREADS: usize = 10_000;
/// Files distinguished within a kind of code.
const MOST_FILES: usize = 1_000;
/// Characters of a name.
const LONGEST_NAME: usize = 4_096;

/// Writes the profile as JSON.
pub fn write(
    profile: &Profile,
    sample_type: usize,
    title: &str,
    mut out: impl Write,
) -> Result<(), WriteError> {
    let converted = convert(profile, sample_type, title);
    serde_json::to_writer(&mut out, &converted)?;
    Ok(out.flush()?)
}

/// Writes the profile as gzipped JSON, which the Firefox profiler opens as it is.
pub fn write_gzip(
    profile: &Profile,
    sample_type: usize,
    title: &str,
    out: impl Write,
) -> Result<(), WriteError> {
    // serde_json writes a few bytes at a time.
    let mut gzip = std::io::BufWriter::new(GzEncoder::new(out, Compression::default()));
    write(profile, sample_type, title, &mut gzip)?;
    let gzip = gzip.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    Ok(gzip.finish()?.flush()?)
}

fn convert(profile: &Profile, sample_type: usize, title: &str) -> fxprof::Profile {
    let host = profile.string(profile.host);
    let product = if host.is_empty() { title.to_owned() } else { format!("{title} ({host})") };
    let start = Duration::from_nanos(u64::try_from(profile.start_nanos).unwrap_or(0));
    let mut converted = fxprof::Profile::new(
        &clean(&product),
        ReferenceTimestamp::from_duration_since_unix_epoch(start),
        SamplingInterval::from_nanos(interval(profile)),
    );
    converted.set_os_name("Linux");
    converted.set_symbolicated(true);
    let categories = FrameKind::ALL.map(|kind| {
        let handle = match kind {
            FrameKind::Marker => CategoryHandle::OTHER,
            _ => converted.add_category(kind.label(), color(kind)),
        };
        (kind, handle)
    });
    let mut converter = Converter {
        profile,
        out: converted,
        categories: categories.into_iter().collect(),
        files: HashMap::new(),
        processes: HashMap::new(),
        threads: HashMap::new(),
        stacks: HashMap::new(),
        other_threads: None,
        markers: Markers::default(),
        unweighed: HashMap::new(),
    };
    if profile.timeline.is_some() {
        converter.timeline();
    } else {
        converter.aggregated(sample_type);
    }
    converter.out
}

fn interval(profile: &Profile) -> u64 {
    let unit = profile.string(profile.period_type.unit);
    let period = u64::try_from(profile.period).unwrap_or(0);
    if unit == "nanoseconds" && period > 0 { period } else { 10_000_000 }
}

fn color(kind: FrameKind) -> CategoryColor {
    match kind {
        FrameKind::Kernel => CategoryColor::Blue,
        FrameKind::Native => CategoryColor::Orange,
        FrameKind::Jit => CategoryColor::Green,
        FrameKind::Managed => CategoryColor::Purple,
        FrameKind::Marker => CategoryColor::Gray,
    }
}

/// A thread as its samples name it.
type ThreadKey = (Option<u32>, Option<u32>, StringId, StringId);

struct Converter<'p> {
    profile: &'p Profile,
    out: fxprof::Profile,
    categories: HashMap<FrameKind, CategoryHandle>,
    files: HashMap<(FrameKind, StringId), CategoryPairHandle>,
    processes: HashMap<(Option<u32>, StringId), fxprof::ProcessHandle>,
    threads: HashMap<ThreadKey, ThreadHandle>,
    stacks: HashMap<(ThreadHandle, StackId), Option<StackHandle>>,
    other_threads: Option<ThreadHandle>,
    markers: Markers,
    /// Nanoseconds that no sample's weight has, because they are no whole millisecond.
    unweighed: HashMap<ThreadHandle, u64>,
}

impl Converter<'_> {
    fn timeline(&mut self) {
        let profile = self.profile;
        let mut ticks: Vec<_> = profile.timeline().into_iter().flatten().collect();
        ticks.sort_by_key(|tick| tick.time);
        let sampled = self.elapsed_time();
        let mut identities: HashMap<LabelsId, Identity> = HashMap::new();
        for tick in ticks {
            let identity =
                *identities.entry(tick.labels).or_insert_with(|| profile.identity(tick.labels));
            let thread = self.thread(&identity, tick.time.saturating_sub(tick.duration()));
            let stack = self.stack(thread, tick.stack);
            let end = Timestamp::from_nanos_since_reference(tick.time);
            if tick.kind.info().shape == Shape::CpuSlice {
                let cpu = CpuDelta::from_nanos(tick.duration());
                let weight = i32::try_from(tick.weight).unwrap_or(1);
                self.out.add_sample(thread, end, stack, cpu, weight);
                continue;
            }
            if Some(tick.kind) == sampled {
                let cpu = self.cpu_part(tick.labels, tick.duration());
                let weight = self.milliseconds(thread, tick.value);
                self.out.add_sample(thread, end, stack, cpu, weight);
            }
            self.event(thread, &tick, stack);
        }
        self.close_markers();
    }

    /// The kind of elapsed time whose samples stand for those of a CPU, where there are none.
    fn elapsed_time(&self) -> Option<Kind> {
        let kinds = || self.profile.timeline().into_iter().flatten().map(|tick| tick.kind);
        let is_there = |kind: &Kind| kinds().any(|other| other == *kind);
        [Kind::Cpu, Kind::Wall, Kind::OffCpu]
            .into_iter()
            .find(is_there)
            .filter(|kind| *kind != Kind::Cpu)
    }

    /// The part of elapsed time that is CPU time: all of it where the thread ran.
    fn cpu_part(&self, labels: LabelsId, lasted: u64) -> CpuDelta {
        let is_running = markers::state(self.profile, labels) == Some("running");
        if is_running { CpuDelta::from_nanos(lasted) } else { CpuDelta::ZERO }
    }

    /// A sample's weight in whole milliseconds. The rest is kept for the thread's next sample, so that
    /// the sum is right.
    fn milliseconds(&mut self, thread: ThreadHandle, nanoseconds: u64) -> i32 {
        self.out.set_thread_samples_weight_type(thread, WeightType::TracingMs);
        let rest = self.unweighed.entry(thread).or_default();
        let all = rest.saturating_add(nanoseconds);
        *rest = all % 1_000_000;
        i32::try_from(all / 1_000_000).unwrap_or(i32::MAX)
    }

    fn aggregated(&mut self, sample_type: usize) {
        let profile = self.profile;
        let weighing = profile.count_of(sample_type).unwrap_or(sample_type);
        let unit = profile.sample_types.get(weighing).map(|shown| profile.string(shown.unit));
        let is_time = unit == Some("nanoseconds");
        let shape = profile.kind_of(sample_type).map(|kind| kind.info().shape);
        let step = if is_time { 1 } else { self.invented_step(weighing) };
        let mut clocks: HashMap<ThreadHandle, u64> = HashMap::new();
        for sample in profile.samples() {
            let value = sample.values.get(weighing).copied().unwrap_or(0);
            let Ok(value @ 1..) = u64::try_from(value) else { continue };
            let identity = profile.identity(sample.labels);
            let thread = self.thread(&identity, 0);
            let stack = self.stack(thread, sample.stack);
            let weight = match is_time {
                true => self.milliseconds(thread, value),
                false => i32::try_from(value).unwrap_or(i32::MAX),
            };
            let lasts = step.saturating_mul(value);
            let cpu = match shape {
                Some(Shape::Blocked) => self.cpu_part(sample.labels, lasts),
                _ => CpuDelta::from_nanos(lasts),
            };
            let clock = clocks.entry(thread).or_default();
            let time = Timestamp::from_nanos_since_reference(*clock);
            self.out.add_sample(thread, time, stack, cpu, weight);
            *clock = clock.saturating_add(lasts);
        }
    }

    /// How much time a sample stands for where no times are known: what makes the busiest
    /// possible thread as long as the recording.
    fn invented_step(&self, weighing: usize) -> u64 {
        let duration = u64::try_from(self.profile.duration_nanos).unwrap_or(0);
        let total = u64::try_from(self.profile.total(weighing)).unwrap_or(0).max(1);
        let longest = interval(self.profile).min(100_000_000);
        if duration == 0 { longest } else { (duration / total).clamp(1, longest) }
    }

    fn thread(&mut self, identity: &Identity, time: u64) -> ThreadHandle {
        let key = (identity.pid, identity.tid, identity.process, identity.comm);
        if let Some(&known) = self.threads.get(&key) {
            return known;
        }
        let start = Timestamp::from_nanos_since_reference(time);
        if self.threads.len() >= MOST_THREADS {
            if let Some(other) = self.other_threads {
                return other;
            }
            let process = self.out.add_process("other processes", 0, start);
            let thread = self.out.add_thread(process, 0, start, false);
            self.out.set_thread_name(thread, "other threads");
            return *self.other_threads.insert(thread);
        }
        let (pid, profile) = (identity.pid.unwrap_or(0), self.profile);
        let name = |id: StringId, number: u32| match profile.string(id) {
            "" => format!("[{number}]"),
            name => clean(name),
        };
        let process = *self
            .processes
            .entry((identity.pid, identity.process))
            .or_insert_with(|| self.out.add_process(&name(identity.process, pid), pid, start));
        let tid = identity.tid.unwrap_or(pid);
        let thread = self.out.add_thread(process, tid, start, tid == pid);
        self.out.set_thread_name(thread, &name(identity.comm, tid));
        self.threads.insert(key, thread);
        thread
    }

    fn stack(&mut self, thread: ThreadHandle, stack: StackId) -> Option<StackHandle> {
        let mut missing: Vec<(StackId, LocationId)> = Vec::new();
        let mut at = stack;
        let mut handle = loop {
            let Some(leaf) = self.profile.stacks.leaf(at.0) else { break None };
            if let Some(&known) = self.stacks.get(&(thread, at)) {
                break known;
            }
            missing.push((at, LocationId(leaf.location)));
            at = StackId(leaf.caller);
        };
        for &(stack, location) in missing.iter().rev() {
            let location = self.profile.location(location);
            let file = location.mapping.map(|id| self.profile.mapping(id).path);
            for frame in self.profile.frames(location).iter().rev() {
                let name = clean(self.profile.string(frame.name));
                let info = FrameInfo {
                    frame: fxprof::Frame::Label(self.out.intern_string(&name)),
                    category_pair: self.category(frame.kind, file.unwrap_or_default()),
                    flags: FrameFlags::empty(),
                };
                let frame = self.out.intern_frame(thread, info);
                handle = Some(self.out.intern_stack(thread, handle, frame));
            }
            self.stacks.insert((thread, stack), handle);
        }
        handle
    }

    fn category(&mut self, kind: FrameKind, file: StringId) -> CategoryPairHandle {
        let category = self.categories.get(&kind).copied().unwrap_or(CategoryHandle::OTHER);
        let path = self.profile.string(file);
        if path.is_empty() {
            return category.into();
        }
        if let Some(&known) = self.files.get(&(kind, file)) {
            return known;
        }
        if self.files.len() >= MOST_FILES {
            return category.into();
        }
        let pair = self.out.add_subcategory(category, &clean(base_name(path)));
        self.files.insert((kind, file), pair);
        pair
    }
}

fn clean(name: &str) -> String {
    shortened(&visible(name), LONGEST_NAME).into_owned()
}
