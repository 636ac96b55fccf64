//! How many bytes a profile takes at most when it is written, as pprof or as OTLP, known before it
//! is: each thing costs once, where it is first referred to.

use std::collections::HashSet;

use strata_profile::{
    Frame, LabelValue, LabelsId, LocationId, MappingId, Profile, Sample, StringId,
};

pub(super) const LABEL_BYTES: usize = 48;
const STRING_BYTES: usize = 8;
const FRAME_BYTES: usize = 80;

/// How many of the innermost functions at a location fit in `room` bytes; at least one.
pub(super) fn kept_frames(
    profile: &Profile,
    frames: &[Frame],
    longest: usize,
    room: usize,
) -> usize {
    let cost = |frame: &Frame| {
        let strings = [frame.name, frame.system_name, frame.file]
            .map(|id| profile.string(id).len().min(longest).saturating_add(STRING_BYTES));
        strings.iter().sum::<usize>().saturating_add(FRAME_BYTES)
    };
    let sums = frames.iter().scan(0_usize, |sum, frame| {
        *sum = sum.saturating_add(cost(frame));
        Some(*sum)
    });
    sums.take_while(|&sum| sum <= room).count().max(1)
}

/// What is in a part already.
#[derive(Default)]
pub(super) struct Seen {
    strings: HashSet<StringId>,
    locations: HashSet<LocationId>,
    mappings: HashSet<MappingId>,
    labels: HashSet<LabelsId>,
}

/// How many bytes things take at most, as pprof or as OTLP.
pub(super) struct Costs<'p> {
    profile: &'p Profile,
    /// Bytes of a location's id.
    id_bytes: usize,
    /// Strings will be no longer than this.
    longest: usize,
    /// Bytes of the functions at one location; what is over will be cut.
    frame_room: usize,
}

impl<'p> Costs<'p> {
    pub(super) fn new(profile: &'p Profile, longest: usize, frame_room: usize) -> Self {
        // One more for the marker.
        let locations = profile.locations().len().saturating_add(2);
        let bits = usize::BITS.saturating_sub(locations.leading_zeros()) as usize;
        Self { profile, id_bytes: bits.div_ceil(7).max(1), longest, frame_room }
    }

    fn string(&self, id: StringId, seen: &mut Seen) -> usize {
        if !seen.strings.insert(id) {
            return 0;
        }
        self.profile.string(id).len().min(self.longest).saturating_add(STRING_BYTES)
    }

    /// A place in a stack, and what it refers to.
    pub(super) fn location(&mut self, id: LocationId, seen: &mut Seen) -> usize {
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
        let frames = profile.frames(location);
        let kept = kept_frames(profile, frames, self.longest, self.frame_room);
        for frame in frames.iter().take(kept) {
            let strings =
                [frame.name, frame.system_name, frame.file].map(|id| self.string(id, seen));
            bytes = bytes.saturating_add(FRAME_BYTES).saturating_add(strings.iter().sum());
        }
        bytes
    }

    /// OTLP writes a sample once for each type.
    pub(super) fn sample(&mut self, sample: &Sample, seen: &mut Seen) -> usize {
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
