//! What a .NET image is made of, over bytes in memory.
//!
//! The bridge reads the images that its runtime has mapped, userspace those in files. Both use this
//! crate: it needs neither a heap nor an operating system, and borrows all that it returns.
//!
//! Code map:
//! - [`pe`]: headers, sections, the CLI header; [`ready_to_run`]: the header of precompiled code
//! - [`metadata`]: streams, heaps, and types and methods by token; `schema`: which tables there are
//! - [`signature`]: a walk through a signature blob
//! - [`compressed`]: the numbers of blobs
//! - [`exercise`]: the entry point for fuzzers
//!
//! Invariants: all input is hostile. Nothing panics or allocates, and every loop is bounded by the
//! bytes that there are.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod compressed;
pub mod exercise;
pub mod metadata;
pub mod pe;
pub mod ready_to_run;
mod schema;
pub mod signature;

pub use metadata::{Layout, Reader};
pub use schema::{
    Coded, MEMBER_FORWARDED, MEMBER_REF_PARENT, METHOD_DEF_OR_REF, RESOLUTION_SCOPE,
    TYPE_DEF_OR_REF, TYPE_OR_METHOD_DEF, table,
};

/// The row that a token names; rows count from 1.
#[inline]
#[must_use]
pub const fn row_of(token: u32) -> u32 {
    token & 0x00ff_ffff
}

/// The table that a token names a row of.
#[inline]
#[must_use]
pub const fn table_of(token: u32) -> u8 {
    let [table, ..] = token.to_be_bytes();
    table
}

#[inline]
#[must_use]
pub const fn token(table: u8, row: u32) -> u32 {
    (table as u32) << 24 | row_of(row)
}
