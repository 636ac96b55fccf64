//! What was sampled, and how it becomes a profile.
//!
//! - [`aggregate`]: samples of one recording: stacks interned, addresses unresolved.
//! - [`place`]: an address that means the same in every process: kernel, file, generated code.
//! - [`related`]: names that only instructions tell.
//! - [`resolve`]: the end of a recording: every place is named once.
//! - [`selection`]: whose samples are kept.

pub mod aggregate;
pub mod place;
pub mod related;
pub mod resolve;
pub mod selection;
