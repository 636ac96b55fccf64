//! From addresses to names and lines, for everything that runs on a Linux host.
//!
//! Code map:
//! - [`elf`]: headers, sections, build id, debug link, file offsets and addresses
//! - [`debug_files`]: where a binary's debug file may lie, and whether a candidate is it
//! - [`resolve`]: [`Resolver`]: addresses of one ELF file to frames, inlined ones included
//!   - [`symbol_table`], [`plt`], [`dwarf`], [`go`], [`demangle`], `scopes`, `unwind_functions`: its
//!     sources
//! - [`kallsyms`]: the kernel's symbols, with modules and BPF programs
//! - [`perf_map`], [`jitdump`]: what just-in-time compilers write about their code
//! - [`exercise`]: entry points for fuzzers
//!
//! No module opens a file: the caller passes bytes or a [`ReadAt`].
//!
//! Invariants: all input is hostile. Nothing panics, nothing is allocated by a size that only the
//! input vouches for, and every name that comes out is at most [`MAX_NAME_BYTES`] long. What could
//! not be used is reported ([`resolve::Report`]), never silently dropped.

#![forbid(unsafe_code)]

mod arch;
mod compressed;
pub mod debug_files;
pub mod demangle;
pub mod dwarf;
pub mod elf;
pub mod exercise;
pub mod go;
mod jit_ranges;
pub mod jitdump;
pub mod kallsyms;
pub mod perf_map;
pub mod plt;
mod read_at;
pub mod resolve;
mod scopes;
pub mod symbol_table;
mod unwind_functions;

pub use dwarf::State as DwarfState;
pub use elf::ElfFile;
pub use jitdump::JitDump;
pub use kallsyms::KernelSymbols;
pub use perf_map::PerfMap;
pub use resolve::{Options, Resolved, Resolver, SymbolFrame};
pub use strata_bytes::{FileAt, MAX_NAME_BYTES, ReadAt};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not an ELF file")]
    NotElf,
    #[error("an ELF file for a machine this does not read ({what})")]
    Foreign { what: &'static str },
    #[error("the file is cut or damaged: its {what} lies outside of it")]
    Cut { what: &'static str },
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
