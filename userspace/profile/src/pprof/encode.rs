//! Writes a profile as pprof.
//!
//! Strings, mappings and locations keep their positions (ids are position + 1). A mapping is
//! written a second time under a telling path where its own would give a frame another kind
//! when it is read again.
//!
//! `has_functions` is set on a mapping only if every location in it has a real name: servers
//! drop the addresses of a mapping that has it.

use std::io::{BufWriter, IntoInnerError, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use hashbrown::HashMap;

use super::HOST_COMMENT;
use super::messages::{self, field};
use super::wire::{Body, FieldWriter};
use crate::error::WriteError;
use crate::kind::{FrameKind, is_stub_name};
use crate::model::{LabelValue, Location, MappingId, Profile, StringId, ValueType};

/// A third of the time of the usual level, and a tenth more bytes.
pub const COMPRESSION: u32 = 2;

/// What is compressed at once.
const PIECE: usize = 64 << 10;

/// Writes the profile as gzipped pprof, the way such files are exchanged.
pub fn encode(profile: &Profile, out: impl Write) -> Result<(), WriteError> {
    let gzip = GzEncoder::new(out, Compression::new(COMPRESSION));
    // Fields are small, and each call of the compressor has its price.
    let gzip = encode_fields(profile, BufWriter::with_capacity(PIECE, gzip))?;
    let mut out = gzip.into_inner().map_err(IntoInnerError::into_error)?.finish()?;
    Ok(out.flush()?)
}

/// Writes the profile as pprof without compression.
pub fn encode_plain(profile: &Profile, out: impl Write) -> Result<(), WriteError> {
    Ok(encode_fields(profile, out)?.flush()?)
}

fn encode_fields<W: Write>(profile: &Profile, out: W) -> Result<W, WriteError> {
    let mut out = FieldWriter::new(out);
    for &kind in &profile.sample_types {
        out.message(field::SAMPLE_TYPE, &value_type(kind))?;
    }
    write_samples(profile, &mut out)?;
    let mut mappings = Mappings::new(profile);
    let mut functions = Functions::default();
    for (id, &location) in (1..).zip(&profile.locations) {
        let message = mappings.location(id, location, &mut functions);
        out.message(field::LOCATION, &message)?;
    }
    for mapping in &mappings.list {
        out.message(field::MAPPING, mapping)?;
    }
    for function in &functions.list {
        out.message(field::FUNCTION, function)?;
    }
    for text in profile.strings.iter() {
        out.bytes(field::STRING_TABLE, text.as_bytes())?;
    }
    let extra_strings = profile.strings.iter().count();
    for path in &mappings.extra_paths {
        out.bytes(field::STRING_TABLE, path.as_bytes())?;
    }
    out.number(field::TIME_NANOS, profile.start_nanos)?;
    out.number(field::DURATION_NANOS, profile.duration_nanos)?;
    if profile.period_type != ValueType::default() {
        out.message(field::PERIOD_TYPE, &value_type(profile.period_type))?;
    }
    out.number(field::PERIOD, profile.period)?;
    out.number(field::DEFAULT_SAMPLE_TYPE, string(profile.default_sample_type))?;
    for &comment in &profile.comments {
        out.number(field::COMMENT, string(comment))?;
    }
    let host = profile.string(profile.host);
    if !host.is_empty() {
        let position = extra_strings.saturating_add(mappings.extra_paths.len());
        out.bytes(field::STRING_TABLE, format!("{HOST_COMMENT}{host}").as_bytes())?;
        out.number(field::COMMENT, i64::try_from(position).unwrap_or(0))?;
    }
    Ok(out.into_inner())
}

fn write_samples<W: Write>(profile: &Profile, out: &mut FieldWriter<W>) -> Result<(), WriteError> {
    let mut body = Body::default();
    for sample in profile.samples() {
        body.clear();
        let ids = profile.stack(sample.stack).map(|id| u64::from(id.0).saturating_add(1));
        body.packed(field::sample::LOCATION_ID, ids);
        let values = sample.values.iter().take(profile.sample_types.len());
        body.packed(field::sample::VALUE, values.map(|value| value.cast_unsigned()));
        for label in profile.labels(sample.labels) {
            let key = string(label.key);
            let label = match label.value {
                LabelValue::Text(text) => {
                    messages::Label { key, str: string(text), ..Default::default() }
                }
                LabelValue::Number { value, unit } => messages::Label {
                    key,
                    num: value,
                    num_unit: string(unit),
                    ..Default::default()
                },
            };
            body.message(field::sample::LABEL, &label);
        }
        out.bytes(field::SAMPLE, body.as_bytes())?;
    }
    Ok(())
}

fn value_type(kind: ValueType) -> messages::ValueType {
    messages::ValueType { name: string(kind.name), unit: string(kind.unit) }
}

fn string(id: StringId) -> i64 {
    i64::from(id.0)
}

/// The functions, made as locations need them.
#[derive(Default)]
struct Functions {
    list: Vec<messages::Function>,
    ids: HashMap<(StringId, StringId, StringId), u64>,
}

impl Functions {
    fn id(&mut self, name: StringId, system_name: StringId, file: StringId) -> u64 {
        let next = (self.list.len() as u64).saturating_add(1);
        let id = *self.ids.entry((name, system_name, file)).or_insert(next);
        if id == next {
            self.list.push(messages::Function {
                id,
                name: string(name),
                system_name: string(system_name),
                filename: string(file),
            });
        }
        id
    }
}

/// The mappings, those of the profile first, then those renamed to tell a kind.
struct Mappings<'p> {
    profile: &'p Profile,
    list: Vec<messages::Mapping>,
    /// Whether any location of the mapping has been seen.
    seen: Vec<bool>,
    renamed: HashMap<(Option<MappingId>, FrameKind), u64>,
    extra_paths: Vec<&'static str>,
    first_extra_path: usize,
}

impl<'p> Mappings<'p> {
    fn new(profile: &'p Profile) -> Self {
        let mut mappings = Self {
            profile,
            list: Vec::with_capacity(profile.mappings.len()),
            seen: Vec::new(),
            renamed: HashMap::new(),
            extra_paths: Vec::new(),
            first_extra_path: profile.strings.iter().count(),
        };
        for position in 0..profile.mappings.len() {
            let id = u32::try_from(position).unwrap_or(u32::MAX);
            let path = string(profile.mapping(MappingId(id)).path);
            mappings.push(Some(MappingId(id)), path);
        }
        mappings
    }

    fn push(&mut self, of: Option<MappingId>, path: i64) -> u64 {
        let mapping = of.map(|id| self.profile.mapping(id)).unwrap_or_default();
        let id = (self.list.len() as u64).saturating_add(1);
        self.list.push(messages::Mapping {
            id,
            memory_start: mapping.start,
            memory_limit: mapping.limit,
            file_offset: mapping.file_offset,
            filename: path,
            build_id: string(mapping.build_id),
            ..Default::default()
        });
        self.seen.push(false);
        id
    }

    fn location(
        &mut self,
        id: u64,
        location: Location,
        functions: &mut Functions,
    ) -> messages::Location {
        let frames = self.profile.frames(location);
        let mapping_id = self.mapping_id(location);
        self.note_what_is_known(mapping_id, location);
        let line = frames.iter().map(|frame| messages::Line {
            function_id: functions.id(frame.name, frame.system_name, frame.file),
            line: i64::from(frame.line),
        });
        messages::Location { id, mapping_id, address: location.address, line: line.collect() }
    }

    fn mapping_id(&mut self, location: Location) -> u64 {
        let own = location.mapping.map_or(0, |id| u64::from(id.0).saturating_add(1));
        let mut kinds = self.profile.frames(location).iter().map(|frame| frame.kind);
        let Some(kind) = kinds.find(|&kind| kind != FrameKind::Marker) else { return own };
        if FrameKind::of_mapping(self.profile.path_of(location)) == kind {
            return own;
        }
        if let Some(&id) = self.renamed.get(&(location.mapping, kind)) {
            return id;
        }
        let path = self.extra_path(kind.mapping_path());
        let id = self.push(location.mapping, path);
        self.renamed.insert((location.mapping, kind), id);
        id
    }

    fn extra_path(&mut self, path: &'static str) -> i64 {
        let known = self.extra_paths.iter().position(|&other| other == path);
        let position = known.unwrap_or_else(|| {
            self.extra_paths.push(path);
            self.extra_paths.len().saturating_sub(1)
        });
        i64::try_from(self.first_extra_path.saturating_add(position)).unwrap_or(0)
    }

    fn note_what_is_known(&mut self, mapping_id: u64, location: Location) {
        let position = usize::try_from(mapping_id).unwrap_or(0).wrapping_sub(1);
        let (Some(mapping), Some(seen)) =
            (self.list.get_mut(position), self.seen.get_mut(position))
        else {
            return;
        };
        let frames = self.profile.frames(location);
        let named = !frames.iter().any(|frame| is_stub_name(self.profile.string(frame.name)));
        mapping.has_functions = named && (mapping.has_functions || !*seen);
        mapping.has_filenames |= frames.iter().any(|frame| frame.file != StringId::default());
        mapping.has_line_numbers |= frames.iter().any(|frame| frame.line > 0);
        mapping.has_inline_frames |= frames.len() > 1;
        *seen = true;
    }
}
