//! Translates ids of one profile into ids of another that is being built, each looked up once.
//!
//! Invariant: only requested items are copied, with what they refer to.

use super::ProfileBuilder;
use crate::model::{
    Frame, Label, LabelValue, LabelsId, LocationId, Mapping, MappingId, Profile, StringId,
};

/// The ids there, by position here.
pub(crate) struct Translation<'p> {
    from: &'p Profile,
    strings: Vec<Option<StringId>>,
    mappings: Vec<Option<MappingId>>,
    locations: Vec<Option<LocationId>>,
    labels: Vec<Option<LabelsId>>,
    /// Of the location that is being translated.
    frames: Vec<Frame>,
}

impl<'p> Translation<'p> {
    pub(crate) fn new(from: &'p Profile) -> Self {
        Self {
            from,
            strings: vec![None; from.strings.count()],
            mappings: vec![None; from.mappings.len()],
            locations: vec![None; from.locations.len()],
            labels: vec![None; from.labels.count()],
            frames: Vec::new(),
        }
    }

    pub(crate) fn string(&mut self, into: &mut ProfileBuilder, id: StringId) -> StringId {
        if let Some(Some(known)) = self.strings.get(id.position()) {
            return *known;
        }
        let made = into.string(self.from.string(id));
        note(&mut self.strings, id.position(), made)
    }

    fn mapping(&mut self, into: &mut ProfileBuilder, id: MappingId) -> MappingId {
        if let Some(Some(known)) = self.mappings.get(id.position()) {
            return *known;
        }
        let mapping = self.from.mapping(id);
        let (path, build_id) =
            (self.string(into, mapping.path), self.string(into, mapping.build_id));
        let made = into.mapping_of(Mapping { path, build_id, ..mapping });
        note(&mut self.mappings, id.position(), made)
    }

    pub(crate) fn location(&mut self, into: &mut ProfileBuilder, id: LocationId) -> LocationId {
        if let Some(Some(known)) = self.locations.get(id.position()) {
            return *known;
        }
        let location = self.from.location(id);
        let mapping = location.mapping.map(|mapping| self.mapping(into, mapping));
        self.frames.clear();
        for frame in self.from.frames(location) {
            let [name, system_name, file] =
                [frame.name, frame.system_name, frame.file].map(|id| self.string(into, id));
            self.frames.push(Frame { name, system_name, file, ..*frame });
        }
        let late = self.string(into, location.late);
        let made = into.location_of(location.address, mapping, &self.frames, late);
        note(&mut self.locations, id.position(), made)
    }

    pub(crate) fn labels(&mut self, into: &mut ProfileBuilder, id: LabelsId) -> LabelsId {
        if let Some(Some(known)) = self.labels.get(id.position()) {
            return *known;
        }
        let from = self.from.labels(id).iter();
        let labels: Vec<Label> = from.map(|label| self.label(into, label)).collect();
        let made = into.labels(&labels);
        note(&mut self.labels, id.position(), made)
    }

    fn label(&mut self, into: &mut ProfileBuilder, label: &Label) -> Label {
        let key = self.string(into, label.key);
        let value = match label.value {
            LabelValue::Text(text) => LabelValue::Text(self.string(into, text)),
            LabelValue::Number { value, unit } => {
                LabelValue::Number { value, unit: self.string(into, unit) }
            }
        };
        Label { key, value }
    }
}

fn note<T: Copy>(list: &mut [Option<T>], position: usize, made: T) -> T {
    if let Some(place) = list.get_mut(position) {
        *place = Some(made);
    }
    made
}
