//! An upper bound on a profile's encoded size, as pprof or as OTLP, before encoding: each item is
//! counted once, where it is first referred to.

use hashbrown::HashSet;
use strata_profile::{Frame, Label, LabelValue, LocationId, Profile, Sample, StackId, StringId};

use crate::positions::Marks;

// The prefix of a field or message of less than 2^28 bytes, and an index into a table: no table of
// such a profile is larger.
const KEY: usize = 1;
const LENGTH: usize = 4;
const INDEX: usize = 4;
const FIELD: usize = KEY + INDEX;
const LONGEST_NUMBER: usize = KEY + 10;

const STRING_BYTES: usize = KEY + LENGTH;
/// A line with its function and number, and the function with its three names.
const FRAME_BYTES: usize = (KEY + LENGTH + FIELD + KEY + 5) + (KEY + LENGTH + 4 * FIELD);
/// With its mapping, its address and OTLP's attribute for its kind.
const LOCATION_BYTES: usize = KEY + LENGTH + 2 * FIELD + LONGEST_NUMBER + FIELD + KEY;
/// In a sample, or where OTLP has it.
const LABEL_BYTES: usize = KEY + LENGTH + 2 * FIELD + LONGEST_NUMBER;
/// Where OTLP has it, with its text.
const ATTRIBUTE_BYTES: usize = LABEL_BYTES + 2 * LENGTH;
/// Without what it has once for each type: its stack is a message of its own in OTLP.
const SAMPLE_BYTES: usize = 2 * (KEY + LENGTH) + KEY + LENGTH;
/// OTLP writes a sample once for each type.
const VALUE_BYTES: usize = KEY + LENGTH + FIELD + 2 * (KEY + LENGTH) + 10;

/// What a label of a sample takes each time: pprof writes it, OTLP its number with each type.
const fn label_bytes(types: usize) -> usize {
    let numbers = types.saturating_mul(INDEX);
    if numbers > LABEL_BYTES { numbers } else { LABEL_BYTES }
}

/// What a label and its texts take at most, the first time.
pub(super) fn new_label_bytes(types: usize, name: &str, text: &str) -> usize {
    let texts = [name, text].map(|text| text.len().saturating_add(STRING_BYTES));
    let all = [label_bytes(types), ATTRIBUTE_BYTES].into_iter().chain(texts);
    all.fold(0, usize::saturating_add)
}

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

/// The items already in a part.
#[derive(Default)]
pub(super) struct Seen {
    strings: Marks,
    /// Strings that are the text of a label: pprof has them among its strings, OTLP does not.
    texts: Marks,
    locations: Marks,
    mappings: Marks,
    labels: Marks,
    /// What OTLP has once, in whichever labels it is.
    attributes: HashSet<Label>,
    /// With all their callers.
    stacks: Marks,
}

impl Seen {
    pub(super) fn clear(&mut self) {
        let Self { strings, texts, locations, mappings, labels, attributes, stacks } = self;
        for marks in [strings, texts, locations, mappings, labels, stacks] {
            marks.clear();
        }
        attributes.clear();
    }
}

/// Upper bounds on the sizes of items, as pprof or as OTLP.
pub(super) struct Costs<'p> {
    profile: &'p Profile,
    /// Bytes of a location's id.
    id_bytes: usize,
    /// Strings will be no longer than this.
    longest: usize,
    /// Bytes of the functions at one location; what exceeds the limit will be truncated.
    frame_room: usize,
    /// Places of each stack.
    depths: Vec<u32>,
}

impl<'p> Costs<'p> {
    pub(super) fn new(
        profile: &'p Profile,
        longest: usize,
        frame_room: usize,
        least_index: usize,
    ) -> Self {
        // One more for the marker.
        let locations = profile.locations().len().saturating_add(2);
        let bits = usize::BITS.saturating_sub(locations.leading_zeros()) as usize;
        let id_bytes = bits.div_ceil(7).max(1).max(least_index);
        Self { profile, id_bytes, longest, frame_room, depths: profile.depths() }
    }

    pub(super) fn depth(&self, id: StackId) -> usize {
        self.depths.get(id.position()).map_or(0, |&depth| depth as usize)
    }

    /// The largest size of each stack, with all of its items new.
    pub(super) fn most_bytes(&self) -> Vec<usize> {
        let mut seen = Seen::default();
        let locations: Vec<usize> = self
            .profile
            .location_ids()
            .map(|id| {
                seen.clear();
                self.location(id, &mut seen)
            })
            .collect();
        let mut most: Vec<usize> = vec![0];
        for (location, caller) in self.profile.leaves() {
            let of = |list: &[usize], at: usize| list.get(at).copied().unwrap_or(usize::MAX);
            let own = of(&locations, location.position());
            most.push(of(&most, caller.position()).saturating_add(own));
        }
        most
    }

    fn string(&self, id: StringId, seen: &mut Seen) -> usize {
        if !seen.strings.insert(id.position()) {
            return 0;
        }
        self.profile.string(id).len().min(self.longest).saturating_add(STRING_BYTES)
    }

    /// A place in a stack, and what it refers to.
    pub(super) fn location(&self, id: LocationId, seen: &mut Seen) -> usize {
        self.id_bytes.saturating_add(self.new_location(id, seen))
    }

    /// Without its id.
    fn new_location(&self, id: LocationId, seen: &mut Seen) -> usize {
        if !seen.locations.insert(id.position()) {
            return 0;
        }
        let profile = self.profile;
        let location = profile.location(id);
        let mut bytes = LOCATION_BYTES;
        if let Some(mapping) = location.mapping
            && seen.mappings.insert(mapping.position())
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

    /// The places of a stack, and what they refer to.
    fn stack(&self, id: StackId, seen: &mut Seen) -> usize {
        let mut bytes = self.depth(id).saturating_mul(self.id_bytes);
        let mut at = id;
        while let Some((location, caller)) = self.profile.leaf(at)
            && seen.stacks.insert(at.position())
        {
            bytes = bytes.saturating_add(self.new_location(location, seen));
            at = caller;
        }
        bytes
    }

    pub(super) fn sample(&self, sample: &Sample, seen: &mut Seen) -> usize {
        let profile = self.profile;
        let types = sample.values.len();
        let mut bytes = types.saturating_mul(VALUE_BYTES).saturating_add(SAMPLE_BYTES);
        bytes = bytes.saturating_add(self.stack(sample.stack, seen));
        let labels = profile.labels(sample.labels);
        bytes = bytes.saturating_add(labels.len().saturating_mul(label_bytes(types)));
        if seen.labels.insert(sample.labels.position()) {
            let new = labels.iter().map(|label| self.new_label(label, seen));
            bytes = new.fold(bytes, usize::saturating_add);
        }
        bytes
    }

    /// The size that a new label adds: in pprof its texts, in OTLP itself with its text.
    fn new_label(&self, label: &Label, seen: &mut Seen) -> usize {
        if !seen.attributes.insert(*label) {
            return 0;
        }
        let text = match label.value {
            LabelValue::Number { unit, .. } => self.string(unit, seen),
            LabelValue::Text(text) => {
                let length = self.profile.string(text).len();
                let is_new = seen.texts.insert(text.position());
                length.saturating_add(if is_new { STRING_BYTES } else { 0 })
            }
        };
        self.string(label.key, seen).saturating_add(text).saturating_add(ATTRIBUTE_BYTES)
    }
}
