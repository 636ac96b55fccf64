//! Writes a profile as pprof.
//!
//! Strings, mappings and locations keep their positions (ids are position + 1). A mapping is
//! written a second time under a path that implies the kind where its own would give a frame
//! another kind when it is read again.
//!
//! `has_functions` is set on a mapping only if every location in it has a real name: servers
//! drop the addresses of a mapping that has it.

use std::io::Write;

use hashbrown::HashMap;

use super::gzip::Gzip;
use super::messages::field;
use super::writer::{Body, Writer};
use super::{HOST_COMMENT, samples};
use crate::error::WriteError;
use crate::kind::{FrameKind, is_stub_name};
use crate::model::{Frame, Location, MappingId, Profile, StringId, ValueType};

/// Writes the profile as gzipped pprof, the way such files are exchanged.
pub fn encode(profile: &Profile, out: impl Write) -> Result<(), WriteError> {
    let mut out = encode_fields(profile, Gzip::new(out))?.finish()?;
    Ok(out.flush()?)
}

/// Writes the profile as pprof without compression.
pub fn encode_plain(profile: &Profile, out: impl Write) -> Result<(), WriteError> {
    Ok(encode_fields(profile, out)?.flush()?)
}

fn encode_fields<W: Write>(profile: &Profile, out: W) -> Result<W, WriteError> {
    let mut out = Writer::new(out);
    for &kind in &profile.sample_types {
        out.write(|fields| value_type(fields, field::SAMPLE_TYPE, kind))?;
    }
    samples::write(profile, &mut out)?;
    let mut mappings = Mappings::new(profile);
    let mut functions = Functions::default();
    for (id, &location) in (1..).zip(&profile.locations) {
        let mapping = mappings.mapping_of(location);
        let frames = profile.frames(location);
        out.write(|fields| {
            fields.message(field::LOCATION, |message| {
                message.number(field::location::ID, id);
                message.number(field::location::MAPPING_ID, mapping);
                message.number(field::location::ADDRESS, location.address);
                frames.iter().for_each(|frame| functions.write_line(message, frame));
            });
        })?;
    }
    for (id, mapping) in (1..).zip(&mappings.list) {
        out.write(|fields| {
            fields.message(field::MAPPING, |message| mapping.write(message, id, profile));
        })?;
    }
    for (id, &[name, system_name, file]) in (1..).zip(&functions.list) {
        out.write(|fields| {
            fields.message(field::FUNCTION, |message| {
                message.number(field::function::ID, id);
                message.number(field::function::NAME, string(name));
                message.number(field::function::SYSTEM_NAME, string(system_name));
                message.number(field::function::FILENAME, string(file));
            });
        })?;
    }
    for text in profile.strings.iter() {
        out.write(|fields| fields.element(field::STRING_TABLE, text.as_bytes()))?;
    }
    for path in &mappings.extra_paths {
        out.write(|fields| fields.element(field::STRING_TABLE, path.as_bytes()))?;
    }
    let strings = mappings.first_extra_path.saturating_add(mappings.extra_paths.len() as u64);
    out.write(|fields| write_rest(fields, profile, strings))?;
    Ok(out.finish()?)
}

/// The fields that are written once; `strings` are written already.
fn write_rest(fields: &mut Body, profile: &Profile, strings: u64) {
    fields.number(field::TIME_NANOS, profile.start_nanos.cast_unsigned());
    fields.number(field::DURATION_NANOS, profile.duration_nanos.cast_unsigned());
    if profile.period_type != ValueType::default() {
        value_type(fields, field::PERIOD_TYPE, profile.period_type);
    }
    fields.number(field::PERIOD, profile.period.cast_unsigned());
    fields.number(field::DEFAULT_SAMPLE_TYPE, string(profile.default_sample_type));
    for &comment in &profile.comments {
        fields.number(field::COMMENT, string(comment));
    }
    let host = profile.string(profile.host);
    if !host.is_empty() {
        fields.element(field::STRING_TABLE, format!("{HOST_COMMENT}{host}").as_bytes());
        fields.number(field::COMMENT, strings);
    }
}

fn value_type(fields: &mut Body, number: u32, kind: ValueType) {
    fields.message(number, |message| {
        message.number(field::value_type::NAME, string(kind.name));
        message.number(field::value_type::UNIT, string(kind.unit));
    });
}

pub(super) fn string(id: StringId) -> u64 {
    u64::from(id.0)
}

/// The functions, made as locations need them.
#[derive(Default)]
struct Functions {
    /// Name, name as the linker has it, file.
    list: Vec<[StringId; 3]>,
    ids: HashMap<[StringId; 3], u64>,
}

impl Functions {
    fn write_line(&mut self, location: &mut Body, frame: &Frame) {
        let function = self.id([frame.name, frame.system_name, frame.file]);
        location.message(field::location::LINE, |line| {
            line.number(field::line::FUNCTION_ID, function);
            line.number(field::line::LINE, u64::from(frame.line));
        });
    }

    fn id(&mut self, names: [StringId; 3]) -> u64 {
        let next = (self.list.len() as u64).saturating_add(1);
        let id = *self.ids.entry(names).or_insert(next);
        if id == next {
            self.list.push(names);
        }
        id
    }
}

/// A mapping as it is written: one of the profile's, or one of them under another path.
struct Written {
    of: Option<MappingId>,
    /// Its position among all strings.
    path: u64,
    /// Whether any location of it has been seen; what follows is true of those.
    seen: bool,
    functions: bool,
    filenames: bool,
    line_numbers: bool,
    inline_frames: bool,
}

impl Written {
    fn write(&self, message: &mut Body, id: u64, profile: &Profile) {
        let mapping = self.of.map(|id| profile.mapping(id)).unwrap_or_default();
        message.number(field::mapping::ID, id);
        message.number(field::mapping::MEMORY_START, mapping.start);
        message.number(field::mapping::MEMORY_LIMIT, mapping.limit);
        message.number(field::mapping::FILE_OFFSET, mapping.file_offset);
        message.number(field::mapping::FILENAME, self.path);
        message.number(field::mapping::BUILD_ID, string(mapping.build_id));
        message.number(field::mapping::HAS_FUNCTIONS, self.functions.into());
        message.number(field::mapping::HAS_FILENAMES, self.filenames.into());
        message.number(field::mapping::HAS_LINE_NUMBERS, self.line_numbers.into());
        message.number(field::mapping::HAS_INLINE_FRAMES, self.inline_frames.into());
    }

    fn note(&mut self, profile: &Profile, frames: &[Frame]) {
        let named = !frames.iter().any(|frame| is_stub_name(profile.string(frame.name)));
        self.functions = named && (self.functions || !self.seen);
        self.filenames |= frames.iter().any(|frame| frame.file != StringId::default());
        self.line_numbers |= frames.iter().any(|frame| frame.line > 0);
        self.inline_frames |= frames.len() > 1;
        self.seen = true;
    }
}

/// The mappings, those of the profile first, then those renamed to imply a kind.
struct Mappings<'p> {
    profile: &'p Profile,
    list: Vec<Written>,
    /// The kind that each mapping's path implies, by position.
    kinds: Vec<FrameKind>,
    renamed: HashMap<(Option<MappingId>, FrameKind), u64>,
    extra_paths: Vec<&'static str>,
    first_extra_path: u64,
}

impl<'p> Mappings<'p> {
    fn new(profile: &'p Profile) -> Self {
        let mut mappings = Self {
            profile,
            list: Vec::with_capacity(profile.mappings.len()),
            kinds: Vec::with_capacity(profile.mappings.len()),
            renamed: HashMap::new(),
            extra_paths: Vec::new(),
            first_extra_path: profile.strings.iter().count() as u64,
        };
        for (id, mapping) in (0..).zip(&profile.mappings) {
            mappings.push(Some(MappingId(id)), string(mapping.path));
            mappings.kinds.push(FrameKind::of_mapping(profile.string(mapping.path)));
        }
        mappings
    }

    fn push(&mut self, of: Option<MappingId>, path: u64) -> u64 {
        self.list.push(Written {
            of,
            path,
            seen: false,
            functions: false,
            filenames: false,
            line_numbers: false,
            inline_frames: false,
        });
        self.list.len() as u64
    }

    /// The id of a location's mapping, to be written with the location; 0 without one.
    fn mapping_of(&mut self, location: Location) -> u64 {
        let profile = self.profile;
        let frames = profile.frames(location);
        let id = self.id(location.mapping, frames);
        let position = usize::try_from(id).unwrap_or(0).wrapping_sub(1);
        if let Some(mapping) = self.list.get_mut(position) {
            mapping.note(profile, frames);
        }
        id
    }

    fn id(&mut self, mapping: Option<MappingId>, frames: &[Frame]) -> u64 {
        let own = mapping.map_or(0, |id| u64::from(id.0).saturating_add(1));
        let mut kinds = frames.iter().map(|frame| frame.kind);
        let Some(kind) = kinds.find(|&kind| kind != FrameKind::Marker) else { return own };
        let kinds = mapping.and_then(|id| self.kinds.get(id.position()).copied());
        if kinds.unwrap_or_else(|| FrameKind::of_mapping("")) == kind {
            return own;
        }
        if let Some(&id) = self.renamed.get(&(mapping, kind)) {
            return id;
        }
        let path = self.extra_path(kind.mapping_path());
        let id = self.push(mapping, path);
        self.renamed.insert((mapping, kind), id);
        id
    }

    fn extra_path(&mut self, path: &'static str) -> u64 {
        let known = self.extra_paths.iter().position(|&other| other == path);
        let position = known.unwrap_or_else(|| {
            self.extra_paths.push(path);
            self.extra_paths.len().saturating_sub(1)
        });
        self.first_extra_path.saturating_add(position as u64)
    }
}
