//! From a program's file to unwind rows, and the unwinder that runs them in userspace.
//!
//! [`build`] reads a file's description of its stack frames and turns it into the rows and rules
//! that the kernel searches ([`strata_abi::tables`], [`strata_abi::rule`]). Sources, best first;
//! each fills only what the ones before it left open:
//!
//! 1. call frame information: `.eh_frame`, or `.debug_frame` where that is missing;
//! 2. Go's line table, which holds the stack's depth at every instruction;
//! 3. procedure linkage tables without call frame information;
//! 4. the instructions themselves, where nothing describes them;
//! 5. the frame pointer: rule "none".
//!
//! That is for ELF files. The CLR's images are PE files, described by an exception directory, and
//! what the CLR compiles at run time is described by its own instructions: [`managed`].
//!
//! Code map:
//! - `elf`: headers, segments, sections
//! - `frame_section`, `frame_program`: call frame information
//! - `golang`: Go's line table
//! - [`managed`]: code of the CLR
//! - `arch`: what all of it looks like on a machine; PLT entries, and rules from instructions
//! - `coverage`: which address is covered by what
//! - `rules`, `pieces`: interned rules, rows and their index
//! - [`table`]: the result, and the search in it
//! - [`bytes`]: the result as bytes, checked when read back
//! - [`unwinder`]: the machine that unwinds a stack snapshot with these tables
//!
//! Invariant: the file is hostile. Nothing here panics, allocates by a size the file claims
//! beyond [`Limits`], or works longer than the file's size pays for.

#![forbid(unsafe_code)]

mod arch;
mod build;
pub mod bytes;
mod coverage;
mod elf;
mod frame_program;
mod frame_section;
mod golang;
mod limits;
pub mod managed;
mod pieces;
mod rules;
pub mod table;
pub mod unwinder;
mod window;

pub use build::{BuildError, build, build_part, fuzz_build};
pub use limits::Limits;
pub use strata_bytes::{FileAt, ReadAt};
pub use table::{Load, Piece, Statistics, UnwindTable};
