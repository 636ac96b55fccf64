//! Copies samples into a new profile, with what they refer to and nothing else.

use std::borrow::Cow;

use strata_config::rules::matches;
use strata_kinds::labels::SAMPLE_LABELS;
use strata_profile::{
    Frame, FrameKind, Label, LabelValue, LabelsId, LocationId, MappingId, Profile, ProfileBuilder,
    StackId, StringId,
};

use super::costs::{Costs, Seen, kept_frames, new_label_bytes};
use super::{Cuts, Limits, Selection, TRIMMED, shortened};
use crate::label_names::pyroscope_name;
use crate::label_values::OTHER;
use crate::positions::Known;
use crate::sample_labels::{Form, LabelRule};

/// Copies the needed parts of a profile into a new one.
pub(super) struct Copy<'p> {
    source: &'p Profile,
    pub(super) builder: ProfileBuilder,
    symbol_bytes: usize,
    frame_room: usize,
    locations: Known<LocationId>,
    /// The stacks copied, by themselves or as callers.
    stacks: Known<StackId>,
    pub(super) cuts: Cuts,
}

impl<'p> Copy<'p> {
    pub(super) fn new(
        source: &'p Profile,
        types: &[(&str, &str)],
        symbol_bytes: usize,
        frame_room: usize,
    ) -> Self {
        let mut builder = ProfileBuilder::new(types);
        builder.set_start(source.start_nanos);
        builder.set_duration(source.duration_nanos);
        let (locations, stacks) = (Known::default(), Known::default());
        let cuts = Cuts::default();
        Self { source, builder, symbol_bytes, frame_room, locations, stacks, cuts }
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
        let mut fit = Fitting::default();
        let path = fit.text(self.source.string(mapping.path), self.symbol_bytes);
        let build_id = fit.text(self.source.string(mapping.build_id), self.symbol_bytes);
        self.cuts.shortened_texts = self.cuts.shortened_texts.saturating_add(fit.shortened);
        let (start, limit, offset) = (mapping.start, mapping.limit, mapping.file_offset);
        self.builder.mapping(start, limit, offset, &path, &build_id)
    }

    fn location(&mut self, id: LocationId) -> LocationId {
        if let Some(&known) = self.locations.get(id.position()) {
            return known;
        }
        let location = self.source.location(id);
        let mapping = location.mapping.map(|id| self.mapping(id));
        let source = self.source;
        let longest = self.symbol_bytes;
        let frames = source.frames(location);
        let kept = kept_frames(source, frames, longest, self.frame_room);
        let mut copied: Vec<Frame> = frames
            .iter()
            .take(kept)
            .map(|frame| Frame {
                name: self.text(frame.name, longest),
                system_name: self.text(frame.system_name, longest),
                file: self.text(frame.file, longest),
                ..*frame
            })
            .collect();
        if kept < frames.len() {
            self.cuts.trimmed_stacks = self.cuts.trimmed_stacks.saturating_add(1);
            copied.push(self.builder.frame(FrameKind::Marker, TRIMMED, "", "", 0));
        }
        let made = self.builder.location(location.address, mapping, &copied);
        self.locations.set(id.position(), made);
        made
    }

    pub(super) fn stack(&mut self, id: StackId) -> StackId {
        // Up to a caller that was copied before; all have the empty stack.
        let mut new = Vec::new();
        let mut at = id;
        let mut made = loop {
            if let Some(&known) = self.stacks.get(at.position()) {
                break known;
            }
            let Some((location, caller)) = self.source.leaf(at) else { break StackId::default() };
            new.push((at, location));
            at = caller;
        };
        for (at, location) in new.into_iter().rev() {
            let location = self.location(location);
            made = self.builder.called_from(made, location);
            self.stacks.set(at.position(), made);
        }
        made
    }

    /// The stack, and whether it lost frames at its root.
    pub(super) fn trimmed_stack(
        &mut self,
        id: StackId,
        limits: &Limits,
        room: usize,
        costs: &Costs,
    ) -> (StackId, bool) {
        let source = self.source;
        let mut kept: Vec<LocationId> = Vec::new();
        let mut seen = Seen::default();
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

    pub(super) fn labels(&mut self, id: LabelsId) -> LabelsId {
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

    /// The labels that `rules` name and `limits` let through, in their order. Dropped labels leave
    /// nothing in the copy, not even their text.
    pub(super) fn allowed_labels(
        &mut self,
        id: LabelsId,
        selection: &Selection<'_>,
        limits: &Limits,
    ) -> LabelsId {
        let source = self.source;
        let types = self.builder.so_far().sample_types.len();
        let mut labels: Vec<Label> = Vec::new();
        let mut texts = 0_usize;
        let mut room = limits.bytes / 4;
        for label in source.labels(id) {
            let key = source.string(label.key);
            let rule = rule_of(selection.labels, key);
            let fitting = rule.and_then(|rule| Fitting::label(source, label, rule, limits));
            let fitting = fitting.filter(|_| labels.len() < limits.labels);
            let fitting = fitting.filter(|label| !label.is_of_series() || texts < limits.texts);
            let left = fitting.as_ref().and_then(|label| room.checked_sub(label.bytes(types)));
            let (Some(mut fitting), Some(left)) = (fitting, left) else {
                self.cuts.dropped_labels = self.cuts.dropped_labels.saturating_add(1);
                continue;
            };
            room = left;
            if let Some(values) = selection.values.filter(|_| fitting.is_of_series())
                && !values.borrow_mut().admit(&fitting.name, &fitting.text)
            {
                self.cuts.other_values = self.cuts.other_values.saturating_add(1);
                fitting.text = Cow::Borrowed(OTHER);
            }
            texts = texts.saturating_add(usize::from(fitting.is_of_series()));
            labels.push(self.fitting_label(&fitting));
        }
        self.builder.labels(&labels)
    }

    fn fitting_label(&mut self, label: &Fitting) -> Label {
        self.cuts.shortened_texts = self.cuts.shortened_texts.saturating_add(label.shortened);
        let key = self.builder.string(&label.name);
        let text = self.builder.string(&label.text);
        let value = match label.number {
            Some(value) => LabelValue::Number { value, unit: text },
            None => LabelValue::Text(text),
        };
        Label { key, value }
    }
}

/// The rule of a label: one that names it, else the first pattern. Labels that strata sets by
/// itself follow no pattern: what a backend is sent of them is in the table.
fn rule_of<'r>(rules: &'r [LabelRule], key: &str) -> Option<&'r LabelRule> {
    let exact = rules.iter().find(|rule| rule.own == key);
    exact.or_else(|| {
        let is_own = || SAMPLE_LABELS.iter().any(|label| label.name == key);
        let pattern = |rule: &&LabelRule| rule.own.contains('*') && matches(&rule.own, key);
        rules.iter().find(pattern).filter(|_| !is_own())
    })
}

/// A label as it will be sent, or other texts that were made to fit.
#[derive(Default)]
struct Fitting<'t> {
    name: Cow<'t, str>,
    /// The unit of a number.
    text: Cow<'t, str>,
    number: Option<i64>,
    /// How many texts had to be shortened.
    shortened: u64,
}

impl<'t> Fitting<'t> {
    fn text(&mut self, text: &'t str, longest: usize) -> Cow<'t, str> {
        let short = shortened(text, longest);
        self.shortened = self.shortened.saturating_add(u64::from(short.is_some()));
        short.map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// `None` if it does not match the rule.
    fn label(
        source: &'t Profile,
        label: &Label,
        rule: &'t LabelRule,
        limits: &Limits,
    ) -> Option<Self> {
        let mut made = Self::default();
        let (number, text) = match (label.value, rule.form) {
            (LabelValue::Text(text), Form::AsItIs | Form::Series) => (None, source.string(text)),
            (LabelValue::Text(text), Form::Number) => (Some(source.string(text).parse().ok()?), ""),
            (LabelValue::Number { value, unit }, _) => (Some(value), source.string(unit)),
        };
        made.number = number;
        made.name = match rule.form {
            // The name under which it was set.
            Form::Series => Cow::Owned(pyroscope_name(source.string(label.key))),
            _ if rule.named.is_empty() => made.text(source.string(label.key), limits.name_bytes),
            _ => made.text(&rule.named, limits.name_bytes),
        };
        made.text = made.text(text, limits.value_bytes);
        Some(made)
    }

    fn bytes(&self, types: usize) -> usize {
        new_label_bytes(types, &self.name, &self.text)
    }

    /// Whether Pyroscope makes a label of the series of it.
    fn is_of_series(&self) -> bool {
        self.number.is_none() && !matches!(&*self.name, "span_id" | "trace_id")
    }
}
