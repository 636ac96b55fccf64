//! The line table of Go programs (`runtime.pclntab`), read as the Go runtime reads it.
//!
//! Every Go program carries this table, stripped or not, because its own tracebacks need it. It names
//! every function, its file and lines, the calls inlined into it, and how far the stack pointer is
//! from the caller's frame at every instruction: all that a profiler needs, since Go has no
//! `.eh_frame`.
//!
//! Code map:
//! - [`header`](mod@crate::header): the table's header, its four versions, and the search for it in a section
//!   without a name
//! - [`table`](mod@crate::table): [`PclnTab`]: functions, lookup by address, names, files and lines
//! - [`pc_values`](mod@crate::pc_values): the delta-coded tables of (address range, value)
//! - [`inline`](mod@crate::inline): logical frames of calls the compiler inlined
//! - [`module_data`](mod@crate::module_data): the linker's record of where text and function data
//!   begin
//!
//! Facts follow Go's own source: `internal/abi/symtab.go`, `runtime/symtab.go`,
//! `runtime/symtabinl.go`, `debug/gosym/pclntab.go` and `cmd/link/internal/ld/pcln.go` (Go 1.26).
//!
//! Invariant: any bytes are fine as input. Nothing here panics, allocates by a size from the input,
//! or loops more often than the bytes given can pay for.

#![forbid(unsafe_code)]

mod bytes;
pub mod exercise;
pub mod header;
pub mod inline;
pub mod module_data;
pub mod pc_values;
pub mod table;

pub use header::{Header, Version, find_header};
pub use inline::Frame;
pub use module_data::ModuleData;
pub use pc_values::{PcValue, PcValues};
pub use table::{Function, PclnTab, SourceLine};

pub use strata_bytes::MAX_NAME_BYTES;

/// Why bytes are not a usable Go line table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not a Go line table: no known magic at its start")]
    Magic,
    #[error("a Go line table of the other byte order")]
    ForeignByteOrder,
    #[error(
        "a Go line table with an impossible header (pc quantum {quantum}, pointer size {pointer_size})"
    )]
    Header { quantum: u8, pointer_size: u8 },
    #[error("the Go line table is cut: its {part} lies outside of it")]
    Cut { part: &'static str },
    #[error(
        "this Go line table counts from the start of the text, which it does not tell: pass the address of runtime.text"
    )]
    TextStartUnknown,
}
