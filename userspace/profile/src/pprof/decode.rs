//! Reads any pprof: of strata, of Go's runtime, of other profilers; gzipped or plain.
//!
//! The fields of the top level may come in any order, so the bytes are walked twice: for the
//! tables, then for the samples. Each message is decoded alone.
//!
//! Invariant: memory is bounded by [`Limits`], not by what the file claims; a wrong reference is
//! an error or an unknown thing, never a panic.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::MultiGzDecoder;
use hashbrown::HashMap;
use prost::Message;

use super::HOST_COMMENT;
use super::messages::{self, field};
use super::wire::{Content, Fields};
use crate::builder::ProfileBuilder;
use crate::error::ReadError;
use crate::kind::{FrameKind, is_marker};
use crate::model::{Frame, Label, LabelValue, LocationId, MappingId, Profile, StringId};

/// The most bytes read of a string: more than any real name, and cheap to scan repeatedly.
const LONGEST_STRING: usize = 64 << 10;

/// Limits on the memory that a file may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes once decompressed.
    pub bytes: usize,
    /// Strings, functions, locations, mappings and samples, each.
    pub entries: usize,
    /// Frames of one stack.
    pub depth: usize,
    /// Distinct callers in all stacks together.
    pub stack_nodes: usize,
    pub sample_types: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            entries: 8 << 20,
            depth: 16 << 10,
            stack_nodes: 64 << 20,
            sample_types: 64,
        }
    }
}

/// Reads a pprof file, gzipped or not.
pub fn decode(bytes: &[u8]) -> Result<Profile, ReadError> {
    decode_with_limits(bytes, &Limits::default())
}

/// [`decode`] with limits other than the default.
pub fn decode_with_limits(bytes: &[u8], limits: &Limits) -> Result<Profile, ReadError> {
    let plain = decompress(bytes, limits)?;
    if plain.is_empty() {
        return Err(ReadError::Empty);
    }
    let tables = Tables::read(&plain, limits)?;
    Reader::new(tables, limits).read(&plain)
}

/// Whether the bytes begin as gzip does.
#[must_use]
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

pub(crate) fn decompress<'b>(bytes: &'b [u8], limits: &Limits) -> Result<Cow<'b, [u8]>, ReadError> {
    let too_large = ReadError::TooLarge { what: "bytes", limit: limits.bytes };
    if !is_gzip(bytes) {
        return if bytes.len() > limits.bytes { Err(too_large) } else { Ok(bytes.into()) };
    }
    let mut plain = Vec::new();
    let one_more = u64::try_from(limits.bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut reader = MultiGzDecoder::new(bytes).take(one_more);
    reader.read_to_end(&mut plain).map_err(ReadError::Gzip)?;
    if plain.len() > limits.bytes { Err(too_large) } else { Ok(plain.into()) }
}

/// Everything but the samples.
#[derive(Default)]
struct Tables<'b> {
    strings: Vec<&'b [u8]>,
    sample_types: Vec<messages::ValueType>,
    mappings: Vec<messages::Mapping>,
    functions: Vec<messages::Function>,
    period_type: messages::ValueType,
    period: i64,
    time_nanos: i64,
    duration_nanos: i64,
    default_sample_type: i64,
    comments: Vec<i64>,
}

impl<'b> Tables<'b> {
    fn read(plain: &'b [u8], limits: &Limits) -> Result<Self, ReadError> {
        let mut tables = Self::default();
        for part in Fields::new(plain) {
            match part? {
                (field::STRING_TABLE, Content::Bytes(text)) => {
                    bounded_push(&mut tables.strings, text, "strings", limits.entries)?;
                }
                (field::SAMPLE_TYPE, Content::Bytes(bytes)) => {
                    let kind = messages::ValueType::decode(bytes)?;
                    bounded_push(
                        &mut tables.sample_types,
                        kind,
                        "sample types",
                        limits.sample_types,
                    )?;
                }
                (field::MAPPING, Content::Bytes(bytes)) => {
                    let mapping = messages::Mapping::decode(bytes)?;
                    bounded_push(&mut tables.mappings, mapping, "mappings", limits.entries)?;
                }
                (field::FUNCTION, Content::Bytes(bytes)) => {
                    let function = messages::Function::decode(bytes)?;
                    bounded_push(&mut tables.functions, function, "functions", limits.entries)?;
                }
                (field::PERIOD_TYPE, Content::Bytes(bytes)) => {
                    tables.period_type = messages::ValueType::decode(bytes)?;
                }
                (field::COMMENT, Content::Number(text)) => {
                    bounded_push(
                        &mut tables.comments,
                        text.cast_signed(),
                        "comments",
                        limits.entries,
                    )?;
                }
                (field::COMMENT, Content::Bytes(packed)) => {
                    tables.read_packed_comments(packed, limits)?;
                }
                (number, Content::Number(value)) => tables.read_number(number, value.cast_signed()),
                (_, Content::Bytes(_)) => {}
            }
        }
        if tables.sample_types.is_empty() {
            return Err(ReadError::Malformed("it has no sample types"));
        }
        Ok(tables)
    }

    fn read_number(&mut self, number: u32, value: i64) {
        match number {
            field::TIME_NANOS => self.time_nanos = value,
            field::DURATION_NANOS => self.duration_nanos = value,
            field::PERIOD => self.period = value,
            field::DEFAULT_SAMPLE_TYPE => self.default_sample_type = value,
            _ => {}
        }
    }

    fn read_packed_comments(&mut self, packed: &[u8], limits: &Limits) -> Result<(), ReadError> {
        #[derive(Clone, PartialEq, Eq, Message)]
        struct Comments {
            #[prost(int64, repeated, tag = "13")]
            comment: Vec<i64>,
        }
        let mut whole = Vec::new();
        prost::encoding::encode_key(
            field::COMMENT,
            prost::encoding::WireType::LengthDelimited,
            &mut whole,
        );
        prost::encoding::encode_varint(packed.len() as u64, &mut whole);
        whole.extend_from_slice(packed);
        for comment in Comments::decode(whole.as_slice())?.comment {
            bounded_push(&mut self.comments, comment, "comments", limits.entries)?;
        }
        Ok(())
    }

    fn text(&self, position: i64) -> Cow<'b, str> {
        let bytes = usize::try_from(position).ok().and_then(|at| self.strings.get(at));
        let bytes = bytes.copied().unwrap_or_default();
        String::from_utf8_lossy(bytes.get(..LONGEST_STRING).unwrap_or(bytes))
    }
}

/// Turns the tables and then the samples into a profile.
struct Reader<'b, 'l> {
    tables: Tables<'b>,
    limits: &'l Limits,
    builder: ProfileBuilder,
    /// The strings used so far, so that each is processed once.
    strings: Vec<Option<StringId>>,
    mappings: HashMap<u64, (MappingId, FrameKind)>,
    locations: HashMap<u64, LocationId>,
}

impl<'b, 'l> Reader<'b, 'l> {
    fn new(tables: Tables<'b>, limits: &'l Limits) -> Self {
        let types = tables.sample_types.iter();
        let names: Vec<_> =
            types.map(|kind| (tables.text(kind.name), tables.text(kind.unit))).collect();
        let borrowed: Vec<_> = names.iter().map(|(name, unit)| (&**name, &**unit)).collect();
        let builder = ProfileBuilder::new(&borrowed);
        let strings = vec![None; tables.strings.len()];
        let (mappings, locations) = (HashMap::new(), HashMap::new());
        Self { tables, limits, builder, strings, mappings, locations }
    }

    fn read(mut self, plain: &[u8]) -> Result<Profile, ReadError> {
        self.read_header();
        self.read_mappings();
        self.read_locations(plain)?;
        self.read_samples(plain)?;
        Ok(self.builder.finish())
    }

    fn string(&mut self, position: i64) -> StringId {
        let Some(known) = usize::try_from(position).ok().and_then(|at| self.strings.get_mut(at))
        else {
            return StringId::default();
        };
        *known.get_or_insert_with(|| self.builder.string(&self.tables.text(position)))
    }

    fn read_header(&mut self) {
        let Self { tables, builder, .. } = self;
        builder.set_default_sample_type(&tables.text(tables.default_sample_type));
        builder.set_start(tables.time_nanos);
        builder.set_duration(tables.duration_nanos);
        let kind = tables.period_type;
        builder.set_period(&tables.text(kind.name), &tables.text(kind.unit), tables.period);
        for &comment in &tables.comments {
            let text = tables.text(comment);
            match text.strip_prefix(HOST_COMMENT) {
                Some(host) => builder.set_host(host),
                None => builder.comment(&text),
            }
        }
    }

    fn read_mappings(&mut self) {
        let Self { tables, builder, mappings, .. } = self;
        for mapping in &tables.mappings {
            let path = tables.text(mapping.filename);
            let id = builder.mapping(
                mapping.memory_start,
                mapping.memory_limit,
                mapping.file_offset,
                &path,
                &tables.text(mapping.build_id),
            );
            mappings.insert(mapping.id, (id, FrameKind::of_mapping(&path)));
        }
    }

    fn read_locations(&mut self, plain: &[u8]) -> Result<(), ReadError> {
        let functions = self.tables.functions.iter();
        let functions: HashMap<u64, messages::Function> =
            functions.map(|&function| (function.id, function)).collect();
        let mut frames = Vec::new();
        for part in Fields::new(plain) {
            let (field::LOCATION, Content::Bytes(bytes)) = part? else { continue };
            let location = messages::Location::decode(bytes)?;
            let limit = self.limits.entries;
            if self.locations.len() >= limit {
                return Err(ReadError::TooLarge { what: "locations", limit });
            }
            let limit = self.limits.depth;
            if location.line.len() > limit {
                return Err(ReadError::TooLarge { what: "inlined functions", limit });
            }
            let mapping = self.mappings.get(&location.mapping_id).copied();
            frames.clear();
            for line in &location.line {
                let Some(&function) = functions.get(&line.function_id) else { continue };
                let kind = mapping.map_or(FrameKind::Native, |(_, kind)| kind);
                frames.push(self.frame(function, line.line, kind));
            }
            let mapping = mapping.map(|(id, _)| id);
            let id = self.builder.location(location.address, mapping, &frames);
            self.locations.insert(location.id, id);
        }
        Ok(())
    }

    fn frame(&mut self, function: messages::Function, line: i64, kind: FrameKind) -> Frame {
        let mut name = self.string(function.name);
        let system_name = self.string(function.system_name);
        if name == StringId::default() {
            name = system_name;
        }
        if name == StringId::default() {
            name = self.builder.string("[unknown]");
        }
        let is_marker = is_marker(self.builder.so_far().string(name));
        Frame {
            name,
            system_name,
            file: self.string(function.filename),
            line: u32::try_from(line).unwrap_or(0),
            kind: if is_marker { FrameKind::Marker } else { kind },
        }
    }

    fn read_samples(&mut self, plain: &[u8]) -> Result<(), ReadError> {
        let mut stack = Vec::new();
        let mut labels = Vec::new();
        for part in Fields::new(plain) {
            let (field::SAMPLE, Content::Bytes(bytes)) = part? else { continue };
            let sample = messages::Sample::decode(bytes)?;
            if sample.value.len() != self.tables.sample_types.len() {
                return Err(ReadError::Malformed(
                    "a sample has not one value for each sample type",
                ));
            }
            let limit = self.limits.depth;
            if sample.location_id.len() > limit {
                return Err(ReadError::TooLarge { what: "frames in a stack", limit });
            }
            stack.clear();
            for id in &sample.location_id {
                let known = self.locations.get(id).copied();
                stack.push(known.ok_or(ReadError::Malformed("a stack has an unknown location"))?);
            }
            labels.clear();
            for label in &sample.label {
                labels.push(self.label(label));
            }
            let stack = self.builder.stack(&stack);
            let labels = self.builder.labels(&labels);
            self.builder.add(stack, labels, &sample.value);
            self.check_size()?;
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), ReadError> {
        let held = self.builder.so_far();
        let (nodes, entries) = (self.limits.stack_nodes, self.limits.entries);
        if held.stacks.len() > nodes {
            return Err(ReadError::TooLarge { what: "different callers", limit: nodes });
        }
        if held.samples.len() > entries {
            return Err(ReadError::TooLarge { what: "samples", limit: entries });
        }
        Ok(())
    }

    fn label(&mut self, label: &messages::Label) -> Label {
        let key = self.string(label.key);
        let value = if label.str != 0 {
            LabelValue::Text(self.string(label.str))
        } else {
            LabelValue::Number { value: label.num, unit: self.string(label.num_unit) }
        };
        Label { key, value }
    }
}

fn bounded_push<T>(
    list: &mut Vec<T>,
    item: T,
    what: &'static str,
    limit: usize,
) -> Result<(), ReadError> {
    if list.len() >= limit {
        return Err(ReadError::TooLarge { what, limit });
    }
    list.push(item);
    Ok(())
}
