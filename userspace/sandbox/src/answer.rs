//! Decodes and checks a worker's answers: the worker may have been taken over, so everything it
//! returns is checked here before use.

use crate::cache::CacheKey;
use crate::error::{ChildKind, FileError};
use crate::facts::FileFacts;
use crate::managed::{ManagedFacts, ManagedLines, ManagedNames, decode_bundle};
use crate::related::decode_answers;
use crate::request::Reply;
use crate::symbols::Symbols;
use crate::wire::WireError;

/// The expected form of a request's answer.
#[derive(Debug)]
pub(crate) enum Expected {
    /// With its cache key, if it may be cached.
    UnwindTable(Option<CacheKey>),
    Facts,
    Fits,
    Symbols {
        asked: usize,
    },
    ManagedFacts,
    ManagedNames {
        asked: usize,
    },
    ManagedLines {
        asked: usize,
    },
    Related {
        asked: usize,
    },
    Bundle,
    Bytes,
}

pub(crate) fn decode(expected: &Expected, bytes: &[u8]) -> Result<Reply, FileError> {
    match expected {
        Expected::UnwindTable(_) => match strata_unwind::bytes::from_bytes(bytes) {
            Ok(table) => Ok(Reply::UnwindTable(Box::new(table))),
            Err(error) => Err(FileError::BadTable(error.to_string())),
        },
        Expected::Facts => FileFacts::decode(bytes).map(Reply::Facts).map_err(bad),
        Expected::Fits => match bytes {
            [0] => Ok(Reply::Fits(false)),
            [1] => Ok(Reply::Fits(true)),
            _ => Err(bad(WireError::Invalid("a flag"))),
        },
        Expected::Symbols { asked } => {
            Symbols::decode(bytes, *asked).map(Reply::Symbols).map_err(bad)
        }
        Expected::ManagedFacts => ManagedFacts::decode(bytes).map(Reply::ManagedFacts).map_err(bad),
        Expected::ManagedNames { asked } => {
            ManagedNames::decode(bytes, *asked).map(Reply::ManagedNames).map_err(bad)
        }
        Expected::ManagedLines { asked } => {
            ManagedLines::decode(bytes, *asked).map(Reply::ManagedLines).map_err(bad)
        }
        Expected::Related { asked } => {
            decode_answers(bytes, *asked).map(Reply::Related).map_err(bad)
        }
        Expected::Bundle => decode_bundle(bytes).map(Reply::Bundle).map_err(bad),
        Expected::Bytes => Ok(Reply::Bytes(bytes.to_vec())),
    }
}

fn bad(error: WireError) -> FileError {
    FileError::BadReply(ChildKind::Worker, error)
}
