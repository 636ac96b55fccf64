//! Errors of reading and writing profiles.

use std::io;

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the compressed data is damaged or cut short")]
    Gzip(#[source] io::Error),
    #[error("the profile holds more than {limit} {what}, the most that is read")]
    TooLarge { what: &'static str, limit: usize },
    #[error("not a pprof file: {0}")]
    Malformed(&'static str),
    #[error("a part of the pprof file cannot be decoded")]
    Message(#[from] prost::DecodeError),
    #[error(
        "{0} files can be written but not read; give the pprof (.pb.gz) or folded file instead"
    )]
    WriteOnly(&'static str),
    #[error("neither pprof nor folded stacks: line {line} is not `frame;frame;frame count`")]
    NotFolded { line: usize },
    #[error("the file is empty")]
    Empty,
}

/// Why a profile could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("could not write the profile")]
    Io(#[from] io::Error),
    #[error("could not encode the profile as JSON")]
    Json(#[source] serde_json::Error),
    #[error("the profile has no sample type {wanted:?}; it has {known}")]
    NoSampleType { wanted: String, known: String },
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() { Self::Io(error.into()) } else { Self::Json(error) }
    }
}
