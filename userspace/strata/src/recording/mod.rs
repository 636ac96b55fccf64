//! What was sampled, and how it becomes a profile.
//!
//! - [`aggregate`]: samples of one recording: stacks interned, addresses unresolved.
//! - [`place`]: an address that means the same in every process: kernel, file, generated code.
//! - [`related`]: names that only instructions tell.
//! - [`naming`]: places get their names, which are kept.
//! - [`build`]: named samples become a profile.
//! - [`host`]: what the host is called.
//! - [`resolve`]: both, for the end of a recording.
//! - [`selection`]: whose samples are kept.

pub mod aggregate;
pub mod build;
pub mod host;
pub mod naming;
pub mod place;
pub mod related;
pub mod resolve;
pub mod selection;
