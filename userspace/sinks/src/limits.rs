//! A profile made to fit a server, before the server does it.
//!
//! A server cuts the leaf off a deep stack and refuses what is too big. Here a stack keeps its
//! leaf and loses frames at its root, where a marker says so, and a profile that is too big
//! becomes several. Labels that are not on the sink's list go, and samples that differ in nothing
//! else add up.
//!
//! Invariant: no value is lost. For every type that is sent, the sum over all parts is the sum
//! over the profile, and so is the sum of each leaf. Whatever was cut is in [`Cuts`].

use std::collections::{HashMap, HashSet};
use std::ops::AddAssign;

use strata_profile::{
    Frame, FrameKind, Label, LabelValue, LabelsId, LocationId, MappingId, Profile, ProfileBuilder,
    StackId, StringId,
};

use crate::types::{Form, LabelRule};

/// The frame at the root of a stack that was too deep.
pub const TRIMMED: &str = "[stack trimmed]";

/// No part has a smaller limit: below it, a single sample might not fit.
pub const FEWEST_BYTES: usize = 64 << 10;

/// Bytes of a profile without any sample: types, times, comments, the paths of kinds.
const BASE_BYTES: usize = 4 << 10;

/// What a server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Locations of a stack, the marker included.
    pub depth: usize,
    /// Samples of a profile.
    pub samples: usize,
    /// Bytes of a profile before it is compressed; at least [`FEWEST_BYTES`].
    pub bytes: usize,
    /// Labels of a sample.
    pub labels: usize,
    /// Bytes of a label's name.
    pub name_bytes: usize,
    /// Bytes of a label's value.
    pub value_bytes: usize,
    /// Bytes of a function's name, a file or a path.
    pub symbol_bytes: usize,
}

/// What did not fit, or was not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Samples whose stack lost frames at its root.
    pub trimmed_stacks: u64,
    /// Labels of samples, or of a profile, that were dropped.
    pub dropped_labels: u64,
    /// Names and values that were shortened.
    pub shortened_texts: u64,
    /// Sample types that the backend does not take.
    pub dropped_types: u64,
    /// Profiles that exist only because another one was too big.
    pub extra_parts: u64,
    /// What the recording itself could not hold.
    pub overflows: u64,
    /// Profiles that could not be written at all.
    pub failed_profiles: u64,
}

impl AddAssign for Cuts {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.trimmed_stacks, other.trimmed_stacks),
            (&mut self.dropped_labels, other.dropped_labels),
            (&mut self.shortened_texts, other.shortened_texts),
            (&mut self.dropped_types, other.dropped_types),
            (&mut self.extra_parts, other.extra_parts),
            (&mut self.overflows, other.overflows),
            (&mut self.failed_profiles, other.failed_profiles),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What of a profile is sent, and under which names.
#[derive(Clone, Debug)]
pub struct Selection<'r> {
    /// For each type of the result: its position in the profile, its name and its unit.
    pub types: Vec<(usize, &'static str, &'static str)>,
    /// The name and unit of the period.
    pub period: (&'static str, &'static str),
    pub labels: &'r [LabelRule],
}

/// One profile that fits.
#[derive(Debug)]
pub struct Part {
    pub profile: Profile,
    /// At least as many as it has when it is written and not compressed.
    pub bytes: usize,
}

/// The parts of what `selection` takes of a profile; none if it has no value there.
#[must_use]
pub fn fit(profile: &Profile, selection: &Selection, limits: &Limits) -> (Vec<Part>, Cuts) {
    let limits = Limits {
        bytes: limits.bytes.max(FEWEST_BYTES),
        depth: limits.depth.max(2),
        samples: limits.samples.max(1),
        ..*limits
    };
    let (whole, mut cuts) = project(profile, selection, &limits);
    cuts.overflows = profile.overflows;
    let parts = split(whole, &limits);
    cuts.extra_parts = (parts.len() as u64).saturating_sub(1);
    (parts, cuts)
}

/// `text` in at most `bytes` bytes; the end of a shortened one says so.
#[must_use]
pub fn shortened(text: &str, bytes: usize) -> Option<String> {
    const MARK: &str = "…";
    if text.len() <= bytes {
        return None;
    }
    let kept = text.floor_char_boundary(bytes.saturating_sub(MARK.len()));
    let mut short = text.get(..kept).unwrap_or_default().to_owned();
    if bytes >= MARK.len() {
        short.push_str(MARK);
    }
    Some(short)
}

/// The profile with the selected types, labels and depth.
fn project(profile: &Profile, selection: &Selection, limits: &Limits) -> (Profile, Cuts) {
    let types: Vec<(&str, &str)> =
        selection.types.iter().map(|&(_, name, unit)| (name, unit)).collect();
    let mut copy = Copy::new(profile, &types, limits.symbol_bytes);
    let (period_name, period_unit) = selection.period;
    copy.builder.set_period(period_name, period_unit, profile.period);
    let mut costs = Costs::new(profile, limits.symbol_bytes);
    let mut stacks: HashMap<StackId, (StackId, bool)> = HashMap::new();
    let mut labels: HashMap<LabelsId, LabelsId> = HashMap::new();
    let mut values = Vec::new();
    for sample in profile.samples() {
        values.clear();
        values.extend(
            selection.types.iter().map(|&(at, _, _)| sample.values.get(at).copied().unwrap_or(0)),
        );
        if values.iter().all(|&value| value == 0) {
            continue;
        }
        let (stack, trimmed) = match stacks.get(&sample.stack) {
            Some(&known) => known,
            None => {
                let made = copy.trimmed_stack(sample.stack, limits, &mut costs);
                stacks.insert(sample.stack, made);
                made
            }
        };
        copy.cuts.trimmed_stacks = copy.cuts.trimmed_stacks.saturating_add(u64::from(trimmed));
        let labels = match labels.get(&sample.labels) {
            Some(&known) => known,
            None => {
                let made = copy.allowed_labels(sample.labels, selection.labels, limits);
                labels.insert(sample.labels, made);
                made
            }
        };
        copy.builder.add(stack, labels, &values);
    }
    (copy.builder.finish(), copy.cuts)
}

/// The profile in parts of at most so many samples and bytes.
fn split(whole: Profile, limits: &Limits) -> Vec<Part> {
    if whole.sample_count() == 0 {
        return Vec::new();
    }
    let mut costs = Costs::new(&whole, usize::MAX);
    let mut seen = Seen::default();
    let mut bytes = BASE_BYTES;
    // Where each part begins, and its bytes.
    let mut parts = vec![(0_usize, bytes)];
    let mut in_part = 0_usize;
    for (position, sample) in whole.samples().enumerate() {
        let mut cost = costs.sample(&sample, &mut seen);
        if in_part >= limits.samples || bytes.saturating_add(cost) > limits.bytes {
            seen = Seen::default();
            cost = costs.sample(&sample, &mut seen);
            if in_part > 0 {
                parts.push((position, BASE_BYTES));
            }
            bytes = BASE_BYTES;
            in_part = 0;
        }
        bytes = bytes.saturating_add(cost);
        in_part = in_part.saturating_add(1);
        if let Some(part) = parts.last_mut() {
            part.1 = bytes;
        }
    }
    if let [(_, bytes)] = parts[..] {
        return vec![Part { profile: whole, bytes }];
    }
    let ends = parts.iter().skip(1).map(|&(start, _)| start).chain([whole.sample_count()]);
    let ranges = parts.iter().zip(ends).map(|(&(start, bytes), end)| (start, end, bytes));
    ranges.map(|(start, end, bytes)| part_of(&whole, start, end, bytes)).collect()
}

fn part_of(whole: &Profile, start: usize, end: usize, bytes: usize) -> Part {
    let types: Vec<(&str, &str)> = whole
        .sample_types
        .iter()
        .map(|kind| (whole.string(kind.name), whole.string(kind.unit)))
        .collect();
    let mut copy = Copy::new(whole, &types, usize::MAX);
    let period = whole.period_type;
    copy.builder.set_period(whole.string(period.name), whole.string(period.unit), whole.period);
    for sample in whole.samples().skip(start).take(end.saturating_sub(start)) {
        let stack = copy.stack(sample.stack);
        let labels = copy.labels(sample.labels);
        copy.builder.add(stack, labels, sample.values);
    }
    Part { profile: copy.builder.finish(), bytes }
}

/// Copies what is needed of a profile into a new one.
struct Copy<'p> {
    source: &'p Profile,
    builder: ProfileBuilder,
    symbol_bytes: usize,
    locations: HashMap<LocationId, LocationId>,
    cuts: Cuts,
}

impl<'p> Copy<'p> {
    fn new(source: &'p Profile, types: &[(&str, &str)], symbol_bytes: usize) -> Self {
        let mut builder = ProfileBuilder::new(types);
        builder.set_start(source.start_nanos);
        builder.set_duration(source.duration_nanos);
        Self { source, builder, symbol_bytes, locations: HashMap::new(), cuts: Cuts::default() }
    }

    fn text(&mut self, id: StringId, longest: usize) -> StringId {
        let text = self.source.string(id);
        match shortened(text, longest) {
            Some(short) => {
                self.cuts.shortened_texts = self.cuts.shortened_texts.saturating_add(1);
                self.builder.string(&short)
            }
            None => self.builder.string(text),
        }
    }

    fn mapping(&mut self, id: MappingId) -> MappingId {
        let mapping = self.source.mapping(id);
        let path = self.source.string(mapping.path);
        let build_id = self.source.string(mapping.build_id);
        let short = shortened(path, self.symbol_bytes);
        let path = short.as_deref().unwrap_or(path);
        let (start, limit, offset) = (mapping.start, mapping.limit, mapping.file_offset);
        self.builder.mapping(start, limit, offset, path, build_id)
    }

    fn location(&mut self, id: LocationId) -> LocationId {
        if let Some(&known) = self.locations.get(&id) {
            return known;
        }
        let location = self.source.location(id);
        let mapping = location.mapping.map(|id| self.mapping(id));
        let source = self.source;
        let longest = self.symbol_bytes;
        let frames: Vec<Frame> = source
            .frames(location)
            .iter()
            .map(|frame| Frame {
                name: self.text(frame.name, longest),
                system_name: self.text(frame.system_name, longest),
                file: self.text(frame.file, longest),
                ..*frame
            })
            .collect();
        let made = self.builder.location(location.address, mapping, &frames);
        self.locations.insert(id, made);
        made
    }

    fn stack(&mut self, id: StackId) -> StackId {
        let source = self.source;
        let locations: Vec<LocationId> = source.stack(id).map(|at| self.location(at)).collect();
        self.builder.stack(&locations)
    }

    /// The stack, and whether it lost frames at its root.
    fn trimmed_stack(
        &mut self,
        id: StackId,
        limits: &Limits,
        costs: &mut Costs,
    ) -> (StackId, bool) {
        let source = self.source;
        let mut kept: Vec<LocationId> = Vec::new();
        let mut seen = Seen::default();
        // The other half is for labels, values and the marker.
        let room = limits.bytes / 2;
        let mut bytes = 0_usize;
        let mut trimmed = false;
        for at in source.stack(id) {
            bytes = bytes.saturating_add(costs.location(at, &mut seen));
            if kept.len() >= limits.depth || (bytes > room && !kept.is_empty()) {
                trimmed = true;
                break;
            }
            kept.push(at);
        }
        if trimmed {
            kept.truncate(limits.depth.saturating_sub(1));
        }
        let mut locations: Vec<LocationId> = kept.iter().map(|&at| self.location(at)).collect();
        if trimmed {
            let marker = self.builder.frame(FrameKind::Marker, TRIMMED, "", "", 0);
            locations.push(self.builder.location(0, None, &[marker]));
        }
        (self.builder.stack(&locations), trimmed)
    }

    fn labels(&mut self, id: LabelsId) -> LabelsId {
        let source = self.source;
        let labels: Vec<Label> = source
            .labels(id)
            .iter()
            .map(|label| {
                let value = match label.value {
                    LabelValue::Text(text) => LabelValue::Text(self.text(text, usize::MAX)),
                    LabelValue::Number { value, unit } => {
                        LabelValue::Number { value, unit: self.text(unit, usize::MAX) }
                    }
                };
                Label { key: self.text(label.key, usize::MAX), value }
            })
            .collect();
        self.builder.labels(&labels)
    }

    fn allowed_labels(&mut self, id: LabelsId, rules: &[LabelRule], limits: &Limits) -> LabelsId {
        let source = self.source;
        let mut labels: Vec<Label> = Vec::new();
        let room = limits.bytes / 4;
        let mut bytes = 0_usize;
        for label in source.labels(id) {
            let key = source.string(label.key);
            let rule = rules.iter().find(|rule| rule.own == key);
            let made = rule.and_then(|rule| self.allowed_label(label, rule, limits));
            let Some((made, cost)) = made else {
                self.cuts.dropped_labels = self.cuts.dropped_labels.saturating_add(1);
                continue;
            };
            bytes = bytes.saturating_add(cost);
            if labels.len() >= limits.labels || bytes > room {
                self.cuts.dropped_labels = self.cuts.dropped_labels.saturating_add(1);
                continue;
            }
            labels.push(made);
        }
        self.builder.labels(&labels)
    }

    fn allowed_label(
        &mut self,
        label: &Label,
        rule: &LabelRule,
        limits: &Limits,
    ) -> Option<(Label, usize)> {
        let name = shortened(&rule.named, limits.name_bytes);
        let key = self.builder.string(name.as_deref().unwrap_or(&rule.named));
        let value = match (label.value, rule.form) {
            (LabelValue::Text(text), Form::AsItIs) => {
                LabelValue::Text(self.text(text, limits.value_bytes))
            }
            (LabelValue::Text(text), Form::Number) => {
                let value = self.source.string(text).parse().ok()?;
                LabelValue::Number { value, unit: StringId::default() }
            }
            (LabelValue::Number { value, unit }, _) => {
                LabelValue::Number { value, unit: self.text(unit, limits.value_bytes) }
            }
        };
        let text = match value {
            LabelValue::Text(text) => text,
            LabelValue::Number { unit, .. } => unit,
        };
        let strings = [key, text].map(|id| self.builder.so_far().string(id).len());
        let cost = strings.iter().sum::<usize>().saturating_add(LABEL_BYTES);
        Some((Label { key, value }, cost))
    }
}

const LABEL_BYTES: usize = 48;
const STRING_BYTES: usize = 8;

/// What is in a part already.
#[derive(Default)]
struct Seen {
    strings: HashSet<StringId>,
    locations: HashSet<LocationId>,
    mappings: HashSet<MappingId>,
    labels: HashSet<LabelsId>,
}

/// How many bytes things take at most, as pprof or as OTLP.
struct Costs<'p> {
    profile: &'p Profile,
    /// Bytes of a location's id.
    id_bytes: usize,
    /// Strings will be no longer than this.
    longest: usize,
}

impl<'p> Costs<'p> {
    fn new(profile: &'p Profile, longest: usize) -> Self {
        // One more for the marker.
        let locations = profile.locations().len().saturating_add(2);
        let bits = usize::BITS.saturating_sub(locations.leading_zeros()) as usize;
        Self { profile, id_bytes: bits.div_ceil(7).max(1), longest }
    }

    fn string(&self, id: StringId, seen: &mut Seen) -> usize {
        if !seen.strings.insert(id) {
            return 0;
        }
        self.profile.string(id).len().min(self.longest).saturating_add(STRING_BYTES)
    }

    /// A place in a stack, and what it refers to.
    fn location(&mut self, id: LocationId, seen: &mut Seen) -> usize {
        if !seen.locations.insert(id) {
            return self.id_bytes;
        }
        let profile = self.profile;
        let location = profile.location(id);
        let mut bytes = self.id_bytes.saturating_add(64);
        if let Some(mapping) = location.mapping
            && seen.mappings.insert(mapping)
        {
            let known = profile.mapping(mapping);
            // The writer may need it twice, the second time under the name of a kind.
            let strings = [known.path, known.build_id].map(|id| self.string(id, seen));
            bytes = bytes.saturating_add(256).saturating_add(strings.iter().sum());
        }
        for frame in profile.frames(location) {
            let strings =
                [frame.name, frame.system_name, frame.file].map(|id| self.string(id, seen));
            bytes = bytes.saturating_add(80).saturating_add(strings.iter().sum());
        }
        bytes
    }

    /// OTLP writes a sample once for each type.
    fn sample(&mut self, sample: &strata_profile::Sample, seen: &mut Seen) -> usize {
        let profile = self.profile;
        let mut bytes = sample.values.len().saturating_mul(24).saturating_add(32);
        for location in profile.stack(sample.stack) {
            bytes = bytes.saturating_add(self.location(location, seen));
        }
        let new = seen.labels.insert(sample.labels);
        for label in profile.labels(sample.labels) {
            bytes = bytes.saturating_add(LABEL_BYTES);
            let text = match label.value {
                LabelValue::Text(text) => text,
                LabelValue::Number { unit, .. } => unit,
            };
            let strings = [label.key, text].map(|id| self.string(id, seen));
            bytes = bytes.saturating_add(strings.iter().sum());
            if new {
                // OTLP writes the text of a label with each new label.
                bytes = bytes.saturating_add(profile.string(text).len());
            }
        }
        bytes
    }
}
