//! Errors of decoding what another process wrote.

/// Why bytes are not a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the record ends before its last field")]
    Truncated,
    #[error("the record has a value that is not allowed: {0}")]
    Invalid(&'static str),
    #[error("kind {0} is unknown to this version")]
    UnknownKind(u16),
}
