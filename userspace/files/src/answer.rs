//! From a worker's bytes to an answer: the worker may have been taken over, so everything it says
//! is checked here before anybody uses it.

use crate::error::FileError;
use crate::request::Reply;

/// What a request's answer has to be.
#[derive(Debug)]
pub(crate) enum Expected {
    Bytes,
}

pub(crate) fn decode(expected: Expected, bytes: Vec<u8>) -> Result<Reply, FileError> {
    match expected {
        Expected::Bytes => Ok(Reply::Bytes(bytes)),
    }
}
