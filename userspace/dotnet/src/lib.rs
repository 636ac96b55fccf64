//! Reads .NET files: names, native code and source lines of their methods.
//!
//! Code map:
//! - [`pe`]: a file's headers and sections (parsed by `strata-ecma`); [`debug_directory`]: which PDB belongs to it
//! - [`metadata`]: names of types and methods (tables and heaps: `strata-ecma`); [`signature`]: blobs
//!   to type names
//! - [`readytorun`]: which method precompiled code belongs to
//! - [`image`]: [`ManagedImage`]: the three above as one answer to "what is at this address?"
//! - `il`, `related`: facts that only a method's instructions contain: where a VB lambda is
//!   written, which native function a statement calls
//! - [`pdb`]: portable PDBs: IL offsets to documents and lines
//! - [`bundle`]: the files inside a single-file program
//! - [`names`]: the names of methods as a flame graph shows them
//! - [`exercise`]: entry points for fuzzers
//!
//! No module opens a file: the caller hands over a [`ReadAt`]. Names are raw, as the metadata has
//! them, until [`names`] makes them readable.
//!
//! Invariants: all input is hostile. Nothing panics, nothing is allocated by a size that only the
//! input vouches for, every loop is bounded by bytes that were read, and every text that comes out
//! is at most [`MAX_NAME_BYTES`] long.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod debug_directory;
pub mod exercise;
mod il;
pub mod image;
pub mod metadata;
pub mod names;
pub mod pdb;
pub mod pe;
pub mod readytorun;
mod related;
mod sequence_points;
pub mod signature;
mod source;
mod statement;

pub use bundle::Bundle;
pub use debug_directory::{PdbId, PdbReference};
pub use image::{CodePart, ManagedImage, MethodRef};
pub use metadata::Metadata;
pub use pdb::{PortablePdb, SequencePoint};
pub use pe::PeImage;
pub use statement::{IlMap, Statement, statement_at};
pub use strata_bytes::{MAX_NAME_BYTES, Part, ReadAt};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a PE image")]
    NotPe,
    #[error("a PE image without .NET metadata")]
    NotManaged,
    #[error("not a portable PDB")]
    NotPortablePdb,
    #[error("not a single-file bundle")]
    NotBundle,
    #[error("the PDB belongs to another build: its id is {found}, the module wants {wanted}")]
    OtherBuild { found: PdbId, wanted: PdbId },
    #[error("the {what} has a form this does not read: {form}")]
    Foreign { what: &'static str, form: String },
    #[error("the file is cut or damaged: its {what} lies outside of it")]
    Cut { what: &'static str },
    #[error("the file is damaged: its {what} makes no sense")]
    Damaged { what: &'static str },
    #[error("the {what} is too large to read: {bytes} bytes of at most {limit}")]
    TooLarge { what: &'static str, bytes: u64, limit: u64 },
    #[error("the compressed {what} does not unpack: {reason}")]
    Unpack { what: &'static str, reason: String },
    #[error("reading the {what} failed")]
    Io {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
}
