//! Where profiles go: Pyroscope, a Datadog agent, an OTLP collector.
//!
//! - [`types`] and [`origin`] are tables: what is counted and whom it is about, in the words of
//!   each backend.
//! - [`limits`] makes a profile fit a server without losing a value.

pub mod limits;
pub mod origin;
pub mod types;
