//! The daemon's configuration: a TOML file, the environment and flags, every value with its
//! origin.
//!
//! | module | holds |
//! |---|---|
//! | [`layers`] | the sources of values, in order: flags, environment, file, defaults |
//! | [`families`] | variables of profiling agents that mean an exporter of the daemon |
//! | [`value`] | how values are written, read and shown |
//! | [`settings`] | what there is to set, and its defaults |
//! | `frequencies` | how often kinds are sampled, as settings and rules state it |
//! | [`exporters`] | where profiles go |
//! | [`rules`] | what is different for some processes |
//! | [`secret`] | values that are never shown |
//! | [`problem`] | errors, with file, line, column, the line and a hint |
//!
//! Pure: the caller reads the file and the environment. A value never falls back silently: an
//! invalid one is a [`Problem`], and all problems are reported at once.

pub mod exporters;
pub mod families;
mod frequencies;
pub mod layers;
pub mod origin;
pub mod problem;
pub mod rules;
pub mod secret;
pub mod settings;
pub mod value;

pub use layers::{Flag, Inputs, Shown};
pub use origin::{Origin, Sourced};
pub use problem::Problem;
pub use secret::Secret;
pub use settings::{Configuration, Loaded, check, load, status_socket};

/// Every setting, with its default and what it does.
pub const EXAMPLE: &str = include_str!("../strata.example.toml");
