//! Who runs, and what is mapped where.
//!
//! - [`table`]: processes, their images and executable mappings, kept up by perf events.
//! - [`mapped`]: the files behind mappings, as the kernel names them.
//! - [`scan`]: the state at the start, from `/proc`.
//! - [`container`]: container ids from control groups.
//!
//! Invariant: everything here is bounded per process; a process that maps without end loses
//! its own mappings and nobody else's.

pub mod container;
pub mod mapped;
pub mod scan;
pub mod table;
