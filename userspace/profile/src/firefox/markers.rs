//! What a thread waited for and what happened to it: markers, as long as they lasted.
//!
//! Samples with a `state` (of wall-clock and off-CPU time) have a lane for each state: markers of one
//! name, which the marker chart shows in one row. A wait that went on in the same stack is one marker,
//! however often it was counted meanwhile; so is time on a CPU in one function.
//!
//! Invariant: markers of a lane are written in the order of time.

use fxprof_processed_profile as fxprof;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, MarkerFieldFlags, MarkerFieldFormat, MarkerTiming, StackHandle,
    StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use hashbrown::HashMap;

use super::{Converter, LONGEST_NAME, clean};
use crate::model::{LabelValue, LabelsId, Profile, StackId, Tick};
use crate::own_function::{self, Which};
use crate::text::shortened;

/// Labels that say which thread it is.
const OF_THREADS: [&str; 5] = ["pid", "tid", "comm", "process", "container_id"];
/// Two markers with less between them are one: times are rounded.
const JOINED_NANOS: u64 = 1_000;

/// A wait, a collection or an event of a thread.
struct EventMarker {
    name: StringHandle,
    details: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for EventMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Event";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.details}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name} {marker.data.details}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "details",
        label: "Details",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut fxprof::Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut fxprof::Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field: u32) -> StringHandle {
        self.details
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

/// The newest marker of a lane: it may go on.
struct Open {
    details: StringHandle,
    category: CategoryHandle,
    stack: Option<StackHandle>,
    start: u64,
    end: u64,
}

/// What markers are made of.
#[derive(Default)]
pub(super) struct Markers {
    /// By thread and name.
    open: HashMap<(ThreadHandle, StringHandle), Open>,
    states: HashMap<String, CategoryHandle>,
    /// The program's own function that waits.
    functions: HashMap<StackId, String>,
}

/// The state of a thread, if its sample has one.
pub(super) fn state(profile: &Profile, labels: LabelsId) -> Option<&str> {
    let state = profile.labels(labels).iter().find(|label| profile.string(label.key) == "state")?;
    match state.value {
        LabelValue::Text(text) => Some(profile.string(text)),
        LabelValue::Number { .. } => None,
    }
}

fn color(state: &str) -> CategoryColor {
    match state {
        "running" => CategoryColor::Green,
        "runnable" => CategoryColor::Yellow,
        "blocked" => CategoryColor::Red,
        "uninterruptible" => CategoryColor::Magenta,
        _ => CategoryColor::DarkGray,
    }
}

impl Converter<'_> {
    /// A sample that is not a slice of CPU time, with its stack.
    pub(super) fn event(&mut self, thread: ThreadHandle, tick: &Tick, stack: Option<StackHandle>) {
        let title = tick.kind.info().title;
        let profile = self.profile;
        let Some(state) = state(profile, tick.labels) else {
            let timing = timing(tick.time.saturating_sub(tick.duration()), tick.time);
            let name = self.out.intern_string(title);
            let details = self.details(tick.labels);
            let details = self.out.intern_string(&details);
            let marker = EventMarker { name, details, category: CategoryHandle::OTHER };
            let marker = self.out.add_marker(thread, timing, marker);
            self.out.set_marker_stack(thread, marker, stack);
            return;
        };
        let name = self.out.intern_string(&format!("{title}: {}", clean(state)));
        let category = self.category_of_state(state);
        let mut details = self.details(tick.labels);
        let function = self.waiting(tick.stack);
        if !function.is_empty() {
            let separator = if details.is_empty() { "" } else { ", " };
            details = format!("in {function}{separator}{details}");
        }
        let details = self.out.intern_string(&details);
        let (start, end) = (tick.time.saturating_sub(tick.duration()), tick.time);
        if let Some(open) = self.markers.open.get_mut(&(thread, name))
            && open.details == details
            && (open.stack == stack || state == "running")
            && start <= open.end.saturating_add(JOINED_NANOS)
        {
            open.start = open.start.min(start);
            open.end = open.end.max(end);
            return;
        }
        let open = Open { details, category, stack, start, end };
        if let Some(before) = self.markers.open.insert((thread, name), open) {
            self.write_marker(thread, name, before);
        } else {
            self.out.set_thread_show_markers_in_timeline(thread, true);
        }
    }

    /// Writes the markers that may have gone on.
    pub(super) fn close_markers(&mut self) {
        let mut open: Vec<_> = std::mem::take(&mut self.markers.open).into_iter().collect();
        open.sort_by_key(|(_, marker)| (marker.start, marker.end));
        for ((thread, name), marker) in open {
            self.write_marker(thread, name, marker);
        }
    }

    fn write_marker(&mut self, thread: ThreadHandle, name: StringHandle, open: Open) {
        let Open { details, category, stack, start, end } = open;
        let marker = EventMarker { name, details, category };
        let marker = self.out.add_marker(thread, timing(start, end), marker);
        self.out.set_marker_stack(thread, marker, stack);
    }

    fn category_of_state(&mut self, state: &str) -> CategoryHandle {
        if let Some(&known) = self.markers.states.get(state) {
            return known;
        }
        // A profile may have any text there.
        if self.markers.states.len() >= 8 {
            return CategoryHandle::OTHER;
        }
        let category = self.out.add_category(&clean(state), color(state));
        self.markers.states.insert(state.to_owned(), category);
        category
    }

    fn waiting(&mut self, stack: StackId) -> String {
        let profile = self.profile;
        let name = || clean(profile.string(own_function::of_stack(profile, stack, Which::Any).0));
        self.markers.functions.entry(stack).or_insert_with(name).clone()
    }

    /// The labels of an event beside those of its thread and its state, as text.
    fn details(&self, labels: LabelsId) -> String {
        let profile = self.profile;
        let mut text = String::new();
        for label in profile.labels(labels) {
            let key = profile.string(label.key);
            let value = match label.value {
                LabelValue::Text(value) => clean(profile.string(value)),
                LabelValue::Number { value, .. } => value.to_string(),
            };
            if !OF_THREADS.contains(&key) && key != "state" {
                let separator = if text.is_empty() { "" } else { ", " };
                text.push_str(&format!("{separator}{}: {value}", clean(key)));
            }
        }
        shortened(&text, LONGEST_NAME).into_owned()
    }
}

fn timing(start: u64, end: u64) -> MarkerTiming {
    let at = Timestamp::from_nanos_since_reference;
    if start == end {
        MarkerTiming::Instant(at(end))
    } else {
        MarkerTiming::Interval(at(start), at(end))
    }
}
