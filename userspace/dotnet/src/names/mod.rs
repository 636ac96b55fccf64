//! Display names: from the names in the CLR's metadata to those of the source code.
//!
//! Code map:
//! - `frame`: a method's name as a flame graph shows it, from all its metadata
//! - `path`: type names, and what a compiler made each of their parts for
//! - `member`: method names: accessors, lambdas, local functions, constructors
//! - `operators`: the source form of `op_Addition`
//! - `type_text`: type names with arguments, as the runtime writes them
//! - `perf_map`: methods as the runtime's own perf map names them
//! - [`signature`]: signature blobs to text
//! - `hiding`: which frames are plumbing, and which a view may merge into one
//!
//! Invariant: all input is hostile. Nothing panics, and every text that comes out has at most
//! [`MAX_NAME_BYTES`] and no character that moves a cursor or changes the direction of writing.

mod arguments;
mod brackets;
mod frame;
mod hiding;
mod inert;
mod member;
mod operators;
mod path;
mod perf_map;
pub mod signature;
mod type_text;

pub use frame::{FrameName, Kind, Lacking, RawMethod, frame_name, lacking, with_signature};
pub use hiding::{Shown, folds, plumbing};
pub use inert::MAX_NAME_BYTES;
pub use perf_map::{MethodOfMap, of_perf_map};
pub use signature::{Signature, TypeNames};
pub use type_text::type_name;
