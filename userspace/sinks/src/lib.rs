//! Where profiles go: Pyroscope, a Datadog agent, an OTLP collector.
//!
//! - [`types`] is a table: what is counted, in the words of each backend.
//! - [`limits`] makes a profile fit a server without losing a value.

pub mod limits;
pub mod types;
