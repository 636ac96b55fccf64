//! The tables that all profiles of a request share. The same thing twice is one entry, and the
//! first entry of each table is nothing.

use std::hash::Hash;

use hashbrown::HashMap;
use strata_profile::{
    Frame, FrameKind, LabelValue, LabelsId, LocationId, MappingId, Profile, StackId, StringId,
};

use super::messages::{
    Any, Attribute, Dictionary, Function, Line, Link, Location, Mapping, Stack, ValueType,
};
use crate::positions;

pub(super) struct Tables {
    out: Dictionary,
    strings: HashMap<String, i32>,
    mappings: HashMap<Mapping, i32>,
    locations: HashMap<Location, i32>,
    functions: HashMap<Function, i32>,
    stacks: HashMap<Stack, i32>,
    attributes: HashMap<(i32, Any, i32), i32>,
}

/// Translates the ids of one profile to positions in the tables.
#[derive(Default)]
pub(super) struct Known {
    mappings: positions::Known<i32>,
    locations: positions::Known<i32>,
    functions: HashMap<[StringId; 3], i32>,
    stacks: positions::Known<i32>,
    labels: positions::Known<Vec<i32>>,
}

impl Tables {
    pub(super) fn new() -> Self {
        let out = Dictionary {
            mappings: vec![Mapping::default()],
            locations: vec![Location::default()],
            functions: vec![Function::default()],
            links: vec![Link::default()],
            strings: vec![String::new()],
            attributes: vec![Attribute::default()],
            stacks: vec![Stack::default()],
        };
        Self {
            out,
            strings: [(String::new(), 0)].into(),
            mappings: [(Mapping::default(), 0)].into(),
            locations: [(Location::default(), 0)].into(),
            functions: [(Function::default(), 0)].into(),
            stacks: [(Stack::default(), 0)].into(),
            attributes: HashMap::new(),
        }
    }

    pub(super) fn finish(self) -> Dictionary {
        self.out
    }

    pub(super) fn string(&mut self, text: &str) -> i32 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let id = append(&mut self.out.strings, text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    pub(super) fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { name: self.string(name), unit: self.string(unit) }
    }

    pub(super) fn stack(&mut self, profile: &Profile, known: &mut Known, id: StackId) -> i32 {
        if let Some(&stack) = known.stacks.get(id.position()) {
            return stack;
        }
        let locations = profile.stack(id).map(|at| self.location(profile, known, at)).collect();
        let stack = interned(&mut self.stacks, &mut self.out.stacks, Stack { locations });
        known.stacks.set(id.position(), stack);
        stack
    }

    pub(super) fn labels(
        &mut self,
        profile: &Profile,
        known: &mut Known,
        id: LabelsId,
    ) -> Vec<i32> {
        if let Some(labels) = known.labels.get(id.position()) {
            return labels.clone();
        }
        let labels = self.labels_but(profile, id, "");
        known.labels.set(id.position(), labels.clone());
        labels
    }

    /// The labels of a set but the one of this name.
    pub(super) fn labels_but(&mut self, profile: &Profile, id: LabelsId, but: &str) -> Vec<i32> {
        let labels = profile.labels(id).iter();
        labels
            .filter(|label| but.is_empty() || profile.string(label.key) != but)
            .map(|label| {
                let key = profile.string(label.key);
                match label.value {
                    LabelValue::Text(text) => {
                        let text = profile.string(text).to_owned();
                        self.attribute(key, Any::Text(text), "")
                    }
                    LabelValue::Number { value, unit } => {
                        self.attribute(key, Any::Number(value), profile.string(unit))
                    }
                }
            })
            .collect()
    }

    fn attribute(&mut self, key: &str, value: Any, unit: &str) -> i32 {
        let (key, unit) = (self.string(key), self.string(unit));
        if let Some(&id) = self.attributes.get(&(key, value.clone(), unit)) {
            return id;
        }
        let made = Attribute { key, value: Some(value.clone().into()), unit };
        let id = append(&mut self.out.attributes, made);
        self.attributes.insert((key, value, unit), id);
        id
    }

    fn location(&mut self, profile: &Profile, known: &mut Known, id: LocationId) -> i32 {
        if let Some(&location) = known.locations.get(id.position()) {
            return location;
        }
        let location = profile.location(id);
        let frames = profile.frames(location);
        let mapping = location.mapping.map_or(0, |id| self.mapping(profile, known, id));
        let lines = frames
            .iter()
            .map(|frame| Line {
                function: self.function(profile, known, frame),
                line: i64::from(frame.line),
            })
            .collect();
        let kind = frames.iter().find_map(|frame| frame_type(frame.kind));
        let attributes = kind
            .map(|kind| self.attribute("profile.frame.type", Any::Text(kind.to_owned()), ""))
            .into_iter()
            .collect();
        let made = Location { mapping, address: location.address, lines, attributes };
        let made = interned(&mut self.locations, &mut self.out.locations, made);
        known.locations.set(id.position(), made);
        made
    }

    fn function(&mut self, profile: &Profile, known: &mut Known, frame: &Frame) -> i32 {
        let names = [frame.name, frame.system_name, frame.file];
        if let Some(&function) = known.functions.get(&names) {
            return function;
        }
        let [name, system_name, filename] = names.map(|id| self.string(profile.string(id)));
        let function = Function { name, system_name, filename };
        let function = interned(&mut self.functions, &mut self.out.functions, function);
        known.functions.insert(names, function);
        function
    }

    fn mapping(&mut self, profile: &Profile, known: &mut Known, id: MappingId) -> i32 {
        if let Some(&mapping) = known.mappings.get(id.position()) {
            return mapping;
        }
        let mapping = profile.mapping(id);
        let build_id = profile.string(mapping.build_id);
        let attributes = if build_id.is_empty() {
            Vec::new()
        } else {
            let value = Any::Text(build_id.to_owned());
            vec![self.attribute("process.executable.build_id.gnu", value, "")]
        };
        let made = Mapping {
            start: mapping.start,
            limit: mapping.limit,
            file_offset: mapping.file_offset,
            filename: self.string(profile.string(mapping.path)),
            attributes,
        };
        let made = interned(&mut self.mappings, &mut self.out.mappings, made);
        known.mappings.set(id.position(), made);
        made
    }
}

/// The value of `profile.frame.type`; empty for code without a matching value.
fn frame_type(kind: FrameKind) -> Option<&'static str> {
    match kind {
        FrameKind::Kernel => Some("kernel"),
        FrameKind::Native => Some("native"),
        FrameKind::Managed => Some("dotnet"),
        FrameKind::Jit | FrameKind::Marker => None,
    }
}

fn interned<T: Clone + Eq + Hash>(ids: &mut HashMap<T, i32>, list: &mut Vec<T>, thing: T) -> i32 {
    if let Some(&known) = ids.get(&thing) {
        return known;
    }
    let id = append(list, thing.clone());
    ids.insert(thing, id);
    id
}

/// A request has some megabytes, so a position always fits.
fn append<T>(list: &mut Vec<T>, thing: T) -> i32 {
    let id = i32::try_from(list.len()).unwrap_or(0);
    list.push(thing);
    id
}
