//! pprof: the format most profilers and viewers exchange.
//!
//! - `messages` is its schema, `wire` walks fields, `writer` writes them.
//! - `encode` writes one message at a time into a gzip stream, the `samples` apart, since they are
//!   most of it; `decode` reads one at a time: neither holds a second copy of the profile.
//!
//! Labels: `pid`, `tid` (numeric), `comm`, `container_id`, and `process` where it differs from
//! `comm`. The host is a comment, `host: NAME`.
//!
//! Invariant: what is written passes the checks of Go's `profile.CheckValid`: no zero id, an
//! empty first string, as many values as sample types. What is read is bounded by [`Limits`].

mod decode;
mod encode;
mod gzip;
mod messages;
mod samples;
mod wire;
mod writer;

pub use decode::{Limits, decode, decode_with_limits, is_gzip};
pub use encode::{encode, encode_plain};
pub use gzip::Gzip;

pub(crate) use decode::decompress;

/// What the comment with the host's name begins with.
const HOST_COMMENT: &str = "host: ";
