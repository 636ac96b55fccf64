//! The daemon's requests and their replies.

use std::sync::Arc;

use strata_dotnet::{Bundle, PdbId};
use strata_symbols::Options;
use strata_unwind::{Limits, UnwindTable};

use crate::answer::Expected;
use crate::cache::CacheKey;
use crate::error::FileError;
use crate::facts::FileFacts;
use crate::jobs::{self, MAX_READ};
use crate::managed::{
    self, FilePart, IlPlace, ImagePlace, ManagedFacts, ManagedLines, ManagedNames,
};
use crate::protocol::{Locator, MAX_PATH, kind};
use crate::related::{self, Related};
use crate::service::{Config, OpenFile, Owner, PendingJob, timeout_of};
use crate::symbols::{Symbols, encode_request};

/// A request to [`crate::FileService`].
#[derive(Debug)]
pub enum Request {
    /// Answered by [`Reply::Opened`].
    Open(Locator),
    /// As [`Self::Open`], but only the file's identity is wanted: its content is not copied.
    /// Answered by [`Reply::Opened`].
    Identify(Locator),
    /// The unwind table of a file, or of an assembly inside it, from the cache if it is there. Of a
    /// part that is not compressed, offsets in the table are the whole file's. Answered by
    /// [`Reply::UnwindTable`].
    UnwindTable { file: Arc<OpenFile>, part: Option<FilePart>, limits: Limits },
    /// The facts from its headers. Answered by [`Reply::Facts`].
    Facts { file: Arc<OpenFile> },
    /// Whether a file is the debug file of a binary with this build id or debug link checksum.
    /// Answered by [`Reply::Fits`].
    Fits { candidate: Arc<OpenFile>, build_id: Option<Vec<u8>>, link_crc: Option<u32> },
    /// Names and lines at addresses as the file was linked ([`FileFacts::address_of`]), best sorted.
    /// Answered by [`Reply::Symbols`].
    Symbolize {
        file: Arc<OpenFile>,
        debug: Option<Arc<OpenFile>>,
        /// The file of dwz that the debug information links to.
        alternate: Option<Arc<OpenFile>>,
        addresses: Vec<u64>,
        options: Options,
    },
    /// The facts from an assembly's headers. Answered by [`Reply::ManagedFacts`].
    ManagedFacts { file: Arc<OpenFile>, part: Option<FilePart> },
    /// The methods whose precompiled code is at places of an assembly, best sorted. Answered by
    /// [`Reply::ManagedNames`].
    ManagedNames { file: Arc<OpenFile>, part: Option<FilePart>, places: Vec<ImagePlace> },
    /// The lines that IL came from, out of a portable PDB or of an assembly with one inside, if it
    /// has this id. Answered by [`Reply::ManagedLines`].
    ManagedLines { file: Arc<OpenFile>, part: Option<FilePart>, pdb: PdbId, places: Vec<IlPlace> },
    /// Facts about methods that only the instructions of an assembly contain. Answered by
    /// [`Reply::Related`].
    Related { file: Arc<OpenFile>, part: Option<FilePart>, questions: Vec<Related> },
    /// The files inside a single-file .NET program. Answered by [`Reply::Bundle`].
    Bundle { file: Arc<OpenFile> },
    /// A piece of the file, at most 16 MiB; shorter where it ends. Answered by [`Reply::Bytes`].
    Read { file: Arc<OpenFile>, offset: u64, length: u64 },
    /// A kind of work of the worker's own [`crate::WorkerJobs`]. Answered by [`Reply::Bytes`].
    Custom { kind: u8, body: Vec<u8>, files: Vec<Arc<OpenFile>> },
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    Opened(Arc<OpenFile>),
    UnwindTable(Box<UnwindTable>),
    Facts(FileFacts),
    Fits(bool),
    Symbols(Symbols),
    ManagedFacts(ManagedFacts),
    ManagedNames(ManagedNames),
    ManagedLines(ManagedLines),
    /// A method's name, or a native function's, for each question.
    Related(Vec<Option<Arc<str>>>),
    Bundle(Bundle),
    Bytes(Vec<u8>),
}

/// The most that fits a message.
const MAX_FILES: usize = crate::channel::MAX_DESCRIPTORS;
/// The limits of a worker's request.
const MAX_BODY: usize = 64 << 20;

/// The size limit of names: a base, and an allowance for each address.
const SYMBOL_BYTES: u64 = 1 << 20;
const SYMBOL_BYTES_PER_ADDRESS: u64 = 16 << 10;
const FACTS_BYTES: u64 = 1 << 20;
/// Types, parameters and a signature beside the names.
const METHOD_BYTES_PER_PLACE: u64 = 16 << 10;
const BUNDLE_BYTES: u64 = 32 << 20;

impl Request {
    pub(crate) fn into_job(
        self,
        id: u64,
        config: &Config,
    ) -> Result<(PendingJob, Expected), FileError> {
        let most = config.reply_bytes;
        let (kind, body, files, reply_limit, expected) = match self {
            Self::Open(_) | Self::Identify(_) => {
                return Err(FileError::InvalidRequest("opening is not for workers"));
            }
            Self::UnwindTable { file, part, limits } => {
                let limits = jobs::encode_limits(&limits);
                let key = CacheKey::new(&file, part.as_ref(), &limits);
                let body = jobs::encode_table_request(limits, part.as_ref());
                (kind::UNWIND_TABLE, body, vec![file], most, Expected::UnwindTable(key))
            }
            Self::Facts { file } => {
                (kind::FACTS, Vec::new(), vec![file], FACTS_BYTES, Expected::Facts)
            }
            Self::Fits { candidate, build_id, link_crc } => {
                let body = jobs::encode_fits(build_id.as_deref(), link_crc);
                (kind::FITS, body, vec![candidate], 1, Expected::Fits)
            }
            Self::Symbolize { file, debug, alternate, addresses, options } => {
                let body = encode_request(&options, debug.is_some(), &addresses);
                let files = [file].into_iter().chain(debug).chain(alternate).collect();
                let limit =
                    SYMBOL_BYTES + SYMBOL_BYTES_PER_ADDRESS.saturating_mul(addresses.len() as u64);
                (kind::SYMBOLIZE, body, files, limit, Expected::Symbols { asked: addresses.len() })
            }
            Self::ManagedFacts { file, part } => {
                let body = managed::encode_facts_request(part.as_ref());
                (kind::MANAGED_FACTS, body, vec![file], FACTS_BYTES, Expected::ManagedFacts)
            }
            Self::ManagedNames { file, part, places } => {
                let asked = places.len();
                let body = managed::encode_names_request(part.as_ref(), &places);
                let limit = METHOD_BYTES_PER_PLACE.saturating_mul(asked as u64) + SYMBOL_BYTES;
                (kind::MANAGED_NAMES, body, vec![file], limit, Expected::ManagedNames { asked })
            }
            Self::ManagedLines { file, part, pdb, places } => {
                let asked = places.len();
                let body = managed::encode_lines_request(part.as_ref(), pdb, &places);
                let limit = SYMBOL_BYTES_PER_ADDRESS.saturating_mul(asked as u64) + SYMBOL_BYTES;
                (kind::MANAGED_LINES, body, vec![file], limit, Expected::ManagedLines { asked })
            }
            Self::Related { file, part, questions } => {
                let asked = questions.len();
                let body = related::encode_questions(part.as_ref(), &questions);
                let limit = SYMBOL_BYTES_PER_ADDRESS.saturating_mul(asked as u64) + SYMBOL_BYTES;
                (kind::RELATED, body, vec![file], limit, Expected::Related { asked })
            }
            Self::Bundle { file } => {
                (kind::BUNDLE, Vec::new(), vec![file], BUNDLE_BYTES, Expected::Bundle)
            }
            Self::Read { file, offset, length } => {
                let length = length.min(MAX_READ);
                (kind::READ, jobs::encode_read(offset, length), vec![file], length, Expected::Bytes)
            }
            Self::Custom { kind, body, files } => (kind, body, files, most, Expected::Bytes),
        };
        if files.len() > MAX_FILES {
            return Err(FileError::InvalidRequest("too many files"));
        }
        if body.len() > MAX_BODY {
            return Err(FileError::InvalidRequest("too much at once"));
        }
        let timeout = timeout_of(kind, config);
        // Names can wait, unwind tables cannot.
        let urgent = !matches!(
            kind,
            kind::SYMBOLIZE | kind::MANAGED_NAMES | kind::MANAGED_LINES | kind::RELATED
        );
        let reply_limit = reply_limit.min(most);
        let owner = files.first().map_or(Owner::HOST, |file| file.share());
        Ok((PendingJob { id, kind, body, files, timeout, urgent, reply_limit, owner }, expected))
    }
}

pub(crate) fn check_locator(locator: &Locator) -> Result<(), FileError> {
    use std::os::unix::ffi::OsStrExt;
    match locator {
        Locator::Mapped { start, end, .. } if start >= end => {
            Err(FileError::InvalidRequest("an empty range"))
        }
        Locator::Mapped { .. } => Ok(()),
        Locator::InRoot { path, .. } | Locator::Host { path } => {
            let bytes = path.as_os_str().as_bytes();
            if bytes.is_empty() || bytes.len() > MAX_PATH || bytes.contains(&0) {
                return Err(FileError::InvalidRequest("a path that cannot exist"));
            }
            Ok(())
        }
    }
}
