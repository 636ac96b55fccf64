//! An independent reader of pprof files: the schema by hand, so that a mistake in the product's
//! schema cannot hide in the test.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use prost::Message;

use crate::stacks::{Frame, Stack, Stacks};

/// `perftools.profiles.Profile` (profile.proto of github.com/google/pprof), what tests look at.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
    #[prost(int64, tag = "3")]
    pub num: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(int64, tag = "6")]
    pub build_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

/// Reads a gzipped pprof file.
pub fn read(path: &Path) -> Result<Profile> {
    let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{} is not gzip", path.display()))?;
    Profile::decode(bytes.as_slice()).with_context(|| format!("{} is not a pprof", path.display()))
}

impl Profile {
    /// The string with this number; empty for one that is not there.
    pub fn string(&self, index: i64) -> &str {
        usize::try_from(index)
            .ok()
            .and_then(|i| self.string_table.get(i))
            .map_or("", String::as_str)
    }

    /// The sum of the sample values of the type `samples` (or `sample`, or unit `count`).
    pub fn total(&self) -> Result<i64> {
        let index = self.count_index()?;
        Ok(self.sample.iter().filter_map(|s| s.value.get(index)).sum())
    }

    /// Its samples as stacks, each frame with its file and offset there.
    pub fn stacks(&self) -> Result<Stacks> {
        self.stacks_at(self.count_index()?)
    }

    /// The same by the values of the type of this name; those without any are left out.
    pub fn stacks_of(&self, name: &str) -> Result<Stacks> {
        let index = self.sample_type.iter().position(|t| self.string(t.r#type) == name);
        let mut stacks = self.stacks_at(index.with_context(|| format!("no type {name}"))?)?;
        stacks.stacks.retain(|stack| stack.count > 0);
        Ok(stacks)
    }

    fn stacks_at(&self, index: usize) -> Result<Stacks> {
        let functions: BTreeMap<u64, &Function> = self.function.iter().map(|f| (f.id, f)).collect();
        let mappings: BTreeMap<u64, &Mapping> = self.mapping.iter().map(|m| (m.id, m)).collect();
        let locations: BTreeMap<u64, &Location> = self.location.iter().map(|l| (l.id, l)).collect();
        let mut stacks = Vec::with_capacity(self.sample.len());
        for sample in &self.sample {
            let count = sample.value.get(index).copied().unwrap_or(0);
            let mut stack = Stack { count: u64::try_from(count)?, ..Stack::default() };
            for id in &sample.location_id {
                let location = locations.get(id).context("a sample names a missing location")?;
                let mapping = mappings.get(&location.mapping_id).copied();
                self.push_frames(&mut stack, location, mapping, &functions)?;
            }
            for label in &sample.label {
                let text = self.string(label.str);
                let value = if text.is_empty() { label.num.to_string() } else { text.to_string() };
                stack.labels.insert(self.string(label.key).to_string(), value);
            }
            stacks.push(stack);
        }
        Ok(Stacks { stacks })
    }

    fn push_frames(
        &self,
        stack: &mut Stack,
        location: &Location,
        mapping: Option<&Mapping>,
        functions: &BTreeMap<u64, &Function>,
    ) -> Result<()> {
        let file = mapping.map_or("", |m| self.string(m.filename)).to_string();
        let file_offset = mapping
            .map(|m| location.address.wrapping_sub(m.memory_start).wrapping_add(m.file_offset));
        let build_id = mapping.map_or("", |m| self.string(m.build_id)).to_string();
        let frame =
            Frame { file, build_id, address: location.address, file_offset, ..Frame::default() };
        if location.line.is_empty() {
            stack.frames.push(Frame { name: format!("{:#x}", location.address), ..frame.clone() });
        }
        for (index, line) in location.line.iter().enumerate() {
            let function = functions.get(&line.function_id).context("a missing function")?;
            let is_inlined = index + 1 < location.line.len();
            stack.frames.push(Frame {
                name: self.string(function.name).to_string(),
                system_name: self.string(function.system_name).to_string(),
                source_file: self.string(function.filename).to_string(),
                line: line.line,
                is_inlined,
                ..frame.clone()
            });
        }
        Ok(())
    }

    fn count_index(&self) -> Result<usize> {
        let names =
            |t: &ValueType| (self.string(t.r#type).to_string(), self.string(t.unit).to_string());
        let types: Vec<(String, String)> = self.sample_type.iter().map(names).collect();
        let found =
            types.iter().position(|(name, unit)| name.starts_with("sample") || unit == "count");
        match found {
            Some(index) => Ok(index),
            None => bail!("no sample count among the types {types:?}"),
        }
    }
}
