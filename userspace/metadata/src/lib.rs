//! Resolves a process's identity: from facts about it to its service name, environment, version,
//! labels and enabled sample types.
//!
//! | module | holds |
//! |---|---|
//! | [`facts`] | what goes in: what strata and its host know of a process |
//! | [`environment`] | the environment block, as the hostile bytes it is |
//! | `known_variables` | the variables of it that strata understands |
//! | [`control_group`] | systemd units, container and pod ids in `/proc/PID/cgroup` |
//! | [`source`] | where a value may come from, in order of precedence |
//! | [`identity`] | what comes out, and how it is chosen |
//! | [`types`] | sample types, and the variables that switch them |
//! | [`destinations`] | variables for endpoints and credentials: never applied |
//! | [`text`] | bounds on lengths and characters; lists of labels |
//! | [`document`] | the tables of the documentation |
//!
//! Pure: no I/O, no clock; nothing panics, and no result is larger than [`text::Limits`], whatever
//! the target wrote.

pub mod control_group;
pub mod destinations;
pub mod document;
pub mod environment;
pub mod facts;
pub mod identity;
mod known_variables;
pub mod source;
pub mod text;
pub mod types;

pub use environment::Environment;
pub use facts::{Application, Choice, Container, Facts, Pod};
pub use identity::{Identity, identify};
pub use source::Source;
