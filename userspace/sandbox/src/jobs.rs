//! The jobs that a worker runs on a file.
//!
//! [`StandardJobs`] are those of strata; a test's worker adds its own (hang, crash, use up memory)
//! through [`WorkerJobs`]. Jobs run inside the sandbox: they see files, and nothing else.

use strata_symbols::{DwarfState, Resolver};
use strata_unwind::Limits;

use crate::facts::FileFacts;
use crate::managed::{FilePart, decode_part, encode_part};
use crate::managed_jobs;
use crate::protocol::kind;
use crate::related;
use crate::symbols::{Symbols, decode_request};
use crate::target_file::TargetFile;
use crate::wire::{Decoder, Encoder, WireError};

/// Why a job has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    #[error("{0}")]
    Parse(String),
    #[error("the result is too large")]
    TooLarge,
}

impl From<WireError> for JobError {
    fn from(error: WireError) -> Self {
        Self::Parse(error.to_string())
    }
}

/// An error with what caused it, as one line.
pub(crate) fn parse_error(error: &dyn std::error::Error) -> JobError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    JobError::Parse(text)
}

/// The work of a worker process.
pub trait WorkerJobs {
    /// The answer to a request of `kind` with `body` on `files`. May panic: it is contained.
    fn run(&self, kind: u8, body: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError>;
}

/// The jobs of strata.
#[derive(Debug, Default)]
pub struct StandardJobs;

impl WorkerJobs for StandardJobs {
    fn run(&self, kind: u8, body: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError> {
        let file = files.first().ok_or_else(|| JobError::Parse("no file was given".into()))?;
        match kind {
            kind::UNWIND_TABLE => unwind_table(body, file),
            kind::FACTS => {
                FileFacts::of(file).map(|facts| facts.encode()).map_err(|error| parse_error(&error))
            }
            kind::SYMBOLIZE => symbolize(body, file, files.get(1..).unwrap_or_default()),
            kind::FITS => fits(body, file),
            kind::READ => read(body, file),
            kind::MANAGED_FACTS => managed_jobs::facts(body, file),
            kind::MANAGED_NAMES => managed_jobs::names(body, file),
            kind::MANAGED_LINES => managed_jobs::lines(body, file),
            kind::RELATED => related::answer(body, file),
            kind::BUNDLE => managed_jobs::bundle(file),
            kind => Err(JobError::Parse(format!("unknown kind of work {kind}"))),
        }
    }
}

pub(crate) fn encode_limits(limits: &Limits) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.u32(limits.max_rows).u32(limits.max_rules).u64(limits.max_section);
    encoder.u32(limits.max_entries).u64(limits.max_work).u64(limits.max_decoded);
    encoder.finish()
}

/// `limits` as [`encode_limits`] makes them.
pub(crate) fn encode_table_request(mut limits: Vec<u8>, part: Option<&FilePart>) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encode_part(&mut encoder, part);
    limits.extend(encoder.finish());
    limits
}

fn unwind_table(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let limits = Limits {
        max_rows: decoder.u32()?,
        max_rules: decoder.u32()?,
        max_section: decoder.u64()?,
        max_entries: decoder.u32()?,
        max_work: decoder.u64()?,
        max_decoded: decoder.u64()?,
    };
    let part = decode_part(&mut decoder)?;
    decoder.finish()?;
    let built = match part {
        None => strata_unwind::build(file, &limits),
        Some(FilePart { offset, length, unpacked: None }) => {
            let end = offset.saturating_add(length);
            strata_unwind::build_part(file, offset..end, &limits)
        }
        Some(FilePart { offset, length, unpacked: Some(size) }) => {
            let bytes = strata_dotnet::bundle::unpack(file, offset, length, size);
            strata_unwind::build(&bytes.map_err(|error| parse_error(&error))?, &limits)
        }
    };
    let table = built.map_err(|error| parse_error(&error))?;
    Ok(strata_unwind::bytes::to_bytes(&table))
}

/// `others`: the debug file, if there is one, and the file of dwz, if there is one.
fn symbolize(body: &[u8], main: &TargetFile, others: &[TargetFile]) -> Result<Vec<u8>, JobError> {
    let (options, has_debug, addresses) = decode_request(body)?;
    let mut others = others.iter().map(|file| file as &dyn strata_bytes::ReadAt);
    let debug = if has_debug { others.next() } else { None };
    let mut resolver = Resolver::new(main, debug, options).map_err(|error| parse_error(&error))?;
    if let Some(alternate) = others.next() {
        resolver.set_alternate(alternate);
    }
    let resolved = resolver.resolve(&addresses);
    let report = resolver.report();
    let without_lines = matches!(report.dwarf, DwarfState::TooLarge { .. });
    let mut problems = report.problems;
    if report.dwarf == DwarfState::Broken {
        problems.push("its debug information cannot be read: no lines".to_owned());
    }
    Ok(Symbols { resolved, problems, without_lines }.encode())
}

pub(crate) fn encode_fits(build_id: Option<&[u8]>, link_crc: Option<u32>) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.optional_bytes(build_id).u8(link_crc.is_some().into()).u32(link_crc.unwrap_or(0));
    encoder.finish()
}

fn fits(body: &[u8], candidate: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let build_id = decoder.optional_bytes()?;
    let has_crc = decoder.bool()?;
    let crc = decoder.u32()?;
    decoder.finish()?;
    let fits = strata_symbols::debug_files::accept(candidate, build_id, has_crc.then_some(crc));
    Ok(vec![fits.into()])
}

/// The longest piece of a file that one request reads.
pub const MAX_READ: u64 = 16 << 20;

pub(crate) fn encode_read(offset: u64, length: u64) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.u64(offset).u64(length);
    encoder.finish()
}

/// A piece of the file; shorter where the file ends.
fn read(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let offset = decoder.u64()?;
    let length = decoder.u64()?.min(MAX_READ).min(file.size().saturating_sub(offset));
    decoder.finish()?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| JobError::TooLarge)?];
    file.read_exact_at(offset, &mut bytes).map_err(|error| JobError::Parse(error.to_string()))?;
    Ok(bytes)
}
