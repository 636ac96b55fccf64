//! A service's dictionary as read back, and the translation of its items into a profile.
//!
//! Invariant: an invalid number is reported as damage, and never causes a panic; a stack's caller
//! comes before it, so every walk ends.

use strata_kinds::{Kind, labels};
use strata_profile::{
    Frame, FrameKind, Label, LabelValue, LabelsId, LateKey, LocationId, MappingId, ProfileBuilder,
    StackId, StringId, Tick,
};

use crate::body::Body;
use crate::dictionary::MOST_FRAMES;
use crate::error::Damage;
use crate::late::{Found, LateSymbols};
use crate::wire::Cursor;

/// Labels that say which process a sample is of.
const PROCESS: [&str; 3] = ["pid", "process_id", "process id"];

#[derive(Clone, Copy)]
struct StoredFrame {
    name: u32,
    system_name: u32,
    file: u32,
    line: u32,
    kind: FrameKind,
}

#[derive(Clone, Copy)]
struct StoredLabel {
    key: u32,
    is_number: bool,
    value: i64,
    unit: u32,
}

/// Lists end to end; list 0 is empty.
struct Lists<T> {
    items: Vec<T>,
    ends: Vec<usize>,
}

impl<T> Lists<T> {
    fn new() -> Self {
        Self { items: Vec::new(), ends: vec![0] }
    }

    fn get(&self, number: u32) -> &[T] {
        let number = number as usize;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        let end = self.ends.get(number).copied().unwrap_or(0);
        self.items.get(start.unwrap_or(0)..end).unwrap_or_default()
    }

    fn close(&mut self) {
        self.ends.push(self.items.len());
    }

    fn memory(&self) -> usize {
        memory_of(&self.items).saturating_add(memory_of(&self.ends))
    }
}

fn memory_of<T>(list: &Vec<T>) -> usize {
    list.capacity().saturating_mul(size_of::<T>())
}

/// A dictionary, read up to some record.
pub(crate) struct Tables {
    text: String,
    strings: Vec<usize>,
    mappings: Vec<(u32, u32)>,
    location_mappings: Vec<u32>,
    frames: Lists<StoredFrame>,
    stacks: Vec<(u32, u32)>,
    labels: Lists<StoredLabel>,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            strings: vec![0],
            mappings: vec![(0, 0)],
            location_mappings: vec![0],
            frames: Lists::new(),
            stacks: vec![(0, 0)],
            labels: Lists::new(),
        }
    }

    /// Adds a record's new items. After an error nothing more may be read with these tables.
    pub(crate) fn add(&mut self, mut added: Cursor<'_>) -> Result<(), Damage> {
        let cursor = &mut added;
        for _ in 0..following(cursor, self.strings.len())? {
            self.text.push_str(cursor.text()?);
            self.strings.push(self.text.len());
        }
        for _ in 0..following(cursor, self.mappings.len())? {
            self.mappings.push((cursor.small()?, cursor.small()?));
        }
        for _ in 0..following(cursor, self.location_mappings.len())? {
            let mapping = below(cursor.small()?, self.mappings.len())?;
            let count = cursor.count()?;
            if count == 0 || count > MOST_FRAMES {
                return Err(Damage("a location has no frames, or too many"));
            }
            for _ in 0..count {
                self.frames.items.push(StoredFrame {
                    name: cursor.small()?,
                    system_name: cursor.small()?,
                    file: cursor.small()?,
                    line: cursor.small()?,
                    kind: kind_of(cursor.small()?)?,
                });
            }
            self.frames.close();
            self.location_mappings.push(mapping);
        }
        for _ in 0..following(cursor, self.stacks.len())? {
            let next = u32::try_from(self.stacks.len()).map_err(|_| Damage("too many stacks"))?;
            let back = cursor.small()?;
            let caller = next.checked_sub(back).filter(|&caller| caller < next);
            let caller = caller.ok_or(Damage("a stack is called by one that is not there"))?;
            let location = below(cursor.small()?, self.location_mappings.len())?;
            self.stacks.push((caller, location));
        }
        for _ in 0..following(cursor, self.labels.ends.len())? {
            for _ in 0..cursor.count()? {
                self.labels.items.push(StoredLabel {
                    key: signed_small(cursor)?,
                    is_number: cursor.signed()? == 1,
                    value: cursor.signed()?,
                    unit: signed_small(cursor)?,
                });
            }
            self.labels.close();
        }
        if added.is_empty() { Ok(()) } else { Err(Damage("something follows the dictionary")) }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        let lists = [
            self.text.capacity(),
            memory_of(&self.strings),
            memory_of(&self.mappings),
            memory_of(&self.location_mappings),
            self.frames.memory(),
            memory_of(&self.stacks),
            self.labels.memory(),
        ];
        lists.into_iter().fold(0, usize::saturating_add)
    }

    /// How many there are of everything, the empty things included.
    pub(crate) fn counts(&self) -> [u32; 5] {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        [
            count(self.strings.len()),
            count(self.mappings.len()),
            count(self.location_mappings.len()),
            count(self.stacks.len()),
            count(self.labels.ends.len()),
        ]
    }

    pub(crate) fn each_string(&self, mut take: impl FnMut(&str)) {
        let count = u32::try_from(self.strings.len()).unwrap_or(u32::MAX);
        (1..count).for_each(|number| take(self.string(number)));
    }

    pub(crate) fn mappings(&self) -> &[(u32, u32)] {
        self.mappings.get(1..).unwrap_or_default()
    }

    pub(crate) fn stacks(&self) -> &[(u32, u32)] {
        self.stacks.get(1..).unwrap_or_default()
    }

    pub(crate) fn location_count(&self) -> u32 {
        u32::try_from(self.location_mappings.len()).unwrap_or(u32::MAX)
    }

    /// Mapping, then for each frame name, system name, file, line, kind.
    pub(crate) fn location_fields(&self, number: u32, fields: &mut Vec<u32>) {
        fields.clear();
        fields.push(self.location_mappings.get(number as usize).copied().unwrap_or(0));
        for frame in self.frames.get(number) {
            let StoredFrame { name, system_name, file, line, kind } = *frame;
            fields.extend([name, system_name, file, line, kind as u32]);
        }
    }

    pub(crate) fn label_sets(&self) -> u32 {
        u32::try_from(self.labels.ends.len()).unwrap_or(u32::MAX)
    }

    /// For each label its key, whether it is a number, its value and its unit.
    pub(crate) fn label_fields(&self, number: u32, fields: &mut Vec<i64>) {
        fields.clear();
        for label in self.labels.get(number) {
            let (key, unit) = (i64::from(label.key), i64::from(label.unit));
            fields.extend([key, i64::from(label.is_number), label.value, unit]);
        }
    }

    pub(crate) fn string(&self, number: u32) -> &str {
        let number = number as usize;
        let start = number.checked_sub(1).and_then(|before| self.strings.get(before)).copied();
        let end = self.strings.get(number).copied().unwrap_or(0);
        self.text.get(start.unwrap_or(0)..end).unwrap_or_default()
    }
}

fn following(cursor: &mut Cursor<'_>, known: usize) -> Result<usize, Damage> {
    if usize::try_from(cursor.number()?) != Ok(known) {
        return Err(Damage("a part of the dictionary before it is missing"));
    }
    cursor.count()
}

fn below(number: u32, count: usize) -> Result<u32, Damage> {
    let is_known = (number as usize) < count;
    if is_known { Ok(number) } else { Err(Damage("it refers to what is not there")) }
}

fn signed_small(cursor: &mut Cursor<'_>) -> Result<u32, Damage> {
    u32::try_from(cursor.signed()?).map_err(|_| Damage("a number is too large"))
}

pub(crate) fn kind_of(number: u32) -> Result<FrameKind, Damage> {
    FrameKind::ALL
        .into_iter()
        .find(|&kind| kind as u32 == number)
        .ok_or(Damage("a frame is of no known kind"))
}

/// Which of the samples' labels a profile gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Texts of few values that name something lasting, such as `comm` or `exception type`, by the
    /// table of labels: merges over time keep these.
    #[default]
    Lasting,
    /// All of them, pid and thread and span ids included.
    All,
}

/// Takes records into a profile; looks up everything once per dictionary.
pub(crate) struct Replay<'l> {
    detail: Detail,
    /// Without, late frames keep their keys.
    late: Option<&'l LateSymbols>,
    /// Whose samples only, and for each label set whether it is one of these.
    pid: Option<u32>,
    wanted: Vec<Option<bool>>,
    strings: Vec<Option<StringId>>,
    mappings: Vec<Option<MappingId>>,
    locations: Vec<Option<LocationId>>,
    stacks: Vec<Option<StackId>>,
    /// From a stack up to what is known.
    missing: Vec<(u32, u32)>,
    labels: Vec<Option<LabelsId>>,
    /// Those of samples in time, with all that they say.
    labels_in_time: Vec<Option<LabelsId>>,
}

/// The key of a late frame, which is alone at its location and has nothing but a name made up.
fn late_key(tables: &Tables, frames: &[StoredFrame]) -> Option<LateKey> {
    let [frame] = frames else { return None };
    let is_bare = frame.file == 0 && frame.line == 0;
    is_bare.then(|| LateKey::parse(tables.string(frame.system_name))).flatten()
}

/// The location as it would be had its symbol been in time.
fn late_location(builder: &mut ProfileBuilder, found: &Found) -> LocationId {
    let mapping = builder.mapping(0, 0, 0, found.path(), found.build_id());
    let frames = found.frames.iter().map(|frame| {
        let [name, system_name, file] =
            [frame.name, frame.system_name, frame.file].map(|text| found.text(text));
        builder.frame(frame.kind, name, system_name, file, frame.line)
    });
    let frames: Vec<_> = frames.collect();
    builder.location(0, Some(mapping), &frames)
}

fn slot<T: Copy>(list: &mut Vec<Option<T>>, number: u32, length: usize) -> &mut Option<T> {
    let place = number as usize;
    if list.len() <= place {
        // `place` was checked to be below `length`, the table's own.
        list.resize(length.max(place.saturating_add(1)), None);
    }
    &mut list[place]
}

impl<'l> Replay<'l> {
    /// For an answer: late frames get their symbols, as far as these are known by now.
    pub(crate) fn naming(detail: Detail, pid: Option<u32>, late: &'l LateSymbols) -> Self {
        Self { late: Some(late), ..Self::new(detail, pid) }
    }

    pub(crate) fn new(detail: Detail, pid: Option<u32>) -> Self {
        Self {
            detail,
            late: None,
            pid,
            wanted: Vec::new(),
            strings: Vec::new(),
            mappings: Vec::new(),
            locations: Vec::new(),
            stacks: Vec::new(),
            missing: Vec::new(),
            labels: Vec::new(),
            labels_in_time: Vec::new(),
        }
    }

    fn string(&mut self, tables: &Tables, builder: &mut ProfileBuilder, number: u32) -> StringId {
        if number as usize >= tables.strings.len() {
            return StringId::default();
        }
        let slot = slot(&mut self.strings, number, tables.strings.len());
        *slot.get_or_insert_with(|| builder.string(tables.string(number)))
    }

    fn location(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        number: u32,
    ) -> LocationId {
        if let Some(known) = slot(&mut self.locations, number, tables.location_mappings.len()) {
            return *known;
        }
        let stored = tables.frames.get(number);
        let key = self.late.and_then(|late| Some((late, late_key(tables, stored)?)));
        if let Some(found) = key.and_then(|(late, key)| late.get(key)) {
            let location = late_location(builder, found);
            *slot(&mut self.locations, number, tables.location_mappings.len()) = Some(location);
            return location;
        }
        let mapping = tables.location_mappings.get(number as usize).copied().unwrap_or(0);
        let mapping = (mapping != 0).then(|| {
            let slot = slot(&mut self.mappings, mapping, tables.mappings.len());
            *slot.get_or_insert_with(|| {
                let (path, build_id) =
                    tables.mappings.get(mapping as usize).copied().unwrap_or_default();
                builder.mapping(0, 0, 0, tables.string(path), tables.string(build_id))
            })
        });
        let frames: Vec<_> = stored
            .iter()
            .map(|frame| Frame {
                name: self.string(tables, builder, frame.name),
                system_name: match key {
                    Some(_) => StringId::default(),
                    None => self.string(tables, builder, frame.system_name),
                },
                file: self.string(tables, builder, frame.file),
                line: frame.line,
                kind: frame.kind,
            })
            .collect();
        let location = builder.location(0, mapping, &frames);
        *slot(&mut self.locations, number, tables.location_mappings.len()) = Some(location);
        location
    }

    fn stack(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        number: u32,
    ) -> Result<StackId, Damage> {
        let length = tables.stacks.len();
        let mut at = below(number, length)?;
        self.missing.clear();
        let mut stack = loop {
            if at == 0 {
                break StackId::default();
            }
            if let Some(known) = slot(&mut self.stacks, at, length) {
                break *known;
            }
            let (caller, location) = tables.stacks.get(at as usize).copied().unwrap_or_default();
            self.missing.push((at, location));
            at = caller;
        };
        while let Some((number, location)) = self.missing.pop() {
            let location = self.location(tables, builder, location);
            stack = builder.called_from(stack, location);
            *slot(&mut self.stacks, number, length) = Some(stack);
        }
        Ok(stack)
    }

    fn labels(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        number: u32,
    ) -> Result<LabelsId, Damage> {
        let length = tables.labels.ends.len();
        below(number, length)?;
        if let Some(known) = slot(&mut self.labels, number, length) {
            return Ok(*known);
        }
        // Merges over time leave these out, or they would merge nothing.
        let is_lasting = self.detail == Detail::Lasting;
        let is_separable =
            |label: &StoredLabel| label.is_number || labels::is_separable(tables.string(label.key));
        let labels =
            self.new_labels(tables, builder, number, |label| !(is_lasting && is_separable(label)));
        *slot(&mut self.labels, number, length) = Some(labels);
        Ok(labels)
    }

    /// All labels of a set: a sample in time belongs to its thread.
    fn labels_in_time(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        number: u32,
    ) -> Result<LabelsId, Damage> {
        let length = tables.labels.ends.len();
        below(number, length)?;
        if let Some(known) = slot(&mut self.labels_in_time, number, length) {
            return Ok(*known);
        }
        let labels = self.new_labels(tables, builder, number, |_| true);
        *slot(&mut self.labels_in_time, number, length) = Some(labels);
        Ok(labels)
    }

    fn new_labels(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        number: u32,
        is_kept: impl Fn(&StoredLabel) -> bool,
    ) -> LabelsId {
        let mut labels = Vec::new();
        for label in tables.labels.get(number).iter().filter(|label| is_kept(label)) {
            let key = self.string(tables, builder, label.key);
            let value = if label.is_number {
                let unit = self.string(tables, builder, label.unit);
                LabelValue::Number { value: label.value, unit }
            } else {
                let text = u32::try_from(label.value).unwrap_or(0);
                LabelValue::Text(self.string(tables, builder, text))
            };
            labels.push(Label { key, value });
        }
        builder.labels(&labels)
    }

    /// Whether samples with these labels are wanted.
    fn wants(&mut self, tables: &Tables, number: u32) -> bool {
        let Some(pid) = self.pid else { return true };
        let length = tables.labels.ends.len();
        if number as usize >= length {
            return false;
        }
        *slot(&mut self.wanted, number, length).get_or_insert_with(|| {
            tables.labels.get(number).iter().any(|label| {
                let is_pid = PROCESS.contains(&tables.string(label.key));
                let text = || u32::try_from(label.value).map(|text| tables.string(text));
                is_pid
                    && match label.is_number {
                        true => label.value == i64::from(pid),
                        false => text().is_ok_and(|text| text.parse() == Ok(pid)),
                    }
            })
        })
    }

    /// Whether a record is wanted: not if all its samples are of other processes.
    pub(crate) fn wants_some(&mut self, tables: &Tables, body: &Body) -> bool {
        self.pid.is_none() || body.labels.iter().any(|&labels| self.wants(tables, labels))
    }

    /// Adds a record's samples. `columns` maps the record's sample types to the profile's.
    pub(crate) fn samples(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        body: &Body,
        columns: &[usize],
    ) -> Result<(), Damage> {
        let count = body.stacks.len();
        let width = columns.iter().max().map_or(0, |most| most.saturating_add(1));
        let mut values = vec![0_i64; width];
        for (row, (&stack, &labels)) in body.stacks.iter().zip(&body.labels).enumerate() {
            if !self.wants(tables, labels) {
                continue;
            }
            let stack = self.stack(tables, builder, stack)?;
            let labels = self.labels(tables, builder, labels)?;
            for (at, &column) in columns.iter().enumerate() {
                let place = at.saturating_mul(count).saturating_add(row);
                if let Some(value) = values.get_mut(column) {
                    *value = body.values.get(place).copied().unwrap_or(0);
                }
            }
            builder.add(stack, labels, &values);
        }
        Ok(())
    }

    /// Adds a record's samples in time, which are of one kind, `shift` nanoseconds later than they
    /// say.
    pub(crate) fn ticks(
        &mut self,
        tables: &Tables,
        builder: &mut ProfileBuilder,
        body: &Body,
        kind: Kind,
        shift: u64,
    ) -> Result<(), Damage> {
        let Some(line) = &body.timeline else { return Ok(()) };
        let whose = line.labels.iter().zip(&line.stacks);
        let what = line.times.iter().zip(line.values.iter().zip(&line.weights));
        for ((&labels, &stack), (&time, (&value, &weight))) in whose.zip(what) {
            if !self.wants(tables, labels) {
                continue;
            }
            let labels = self.labels_in_time(tables, builder, labels)?;
            let stack = self.stack(tables, builder, stack)?;
            let time = time.saturating_add(shift);
            builder.tick(Tick { kind, labels, stack, time, weight, value });
        }
        Ok(())
    }
}
