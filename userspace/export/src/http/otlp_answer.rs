//! The answer of an OTLP receiver that took a request.

use prost::Message;

use super::Secret;
use super::outcome::{self, Outcome};
use crate::backends::otlp::messages::ExportResponse;

/// The message in the body of a gRPC answer, if it is whole and not compressed (nothing else was
/// asked for).
#[must_use]
pub(crate) fn grpc_payload(body: &[u8]) -> Option<&[u8]> {
    let (head, rest) = body.split_first_chunk::<5>()?;
    let [0, length @ ..] = *head else { return None };
    rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)
}

/// The answer to a delivered request: some profiles may have been rejected. Any other answer is
/// ignored.
#[must_use]
pub(crate) fn delivery(message: &[u8], secrets: &[&Secret]) -> Outcome {
    let answer = ExportResponse::decode(message).unwrap_or_default();
    let Some(partial) = answer.partial_success else { return Outcome::delivered() };
    let text = outcome::shown(&partial.error_message, secrets);
    Outcome::Delivered {
        rejected: u64::try_from(partial.rejected_profiles).unwrap_or(0),
        message: (!text.is_empty()).then_some(text),
    }
}
