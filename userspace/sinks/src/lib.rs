//! Where profiles go: Pyroscope, a Datadog agent, an OTLP collector.
//!
//! - [`types`] and [`origin`] are tables: what is counted and whom it is about, in the words of
//!   each backend.
//! - [`limits`] makes a profile fit a server without losing a value.
//! - [`pyroscope`], [`datadog`] and [`otlp`] turn profiles into batches of bytes.
//! - [`http`] sends a batch once; `outcome` says what became of it.
//! - [`Sink`] is both for one server.
//!
//! Invariant: only `http` does I/O or knows an async runtime. Sending again, keeping batches and
//! choosing destinations are the caller's.

mod address;
mod batch;
pub mod datadog;
pub mod http;
pub mod limits;
pub mod origin;
pub mod otlp;
mod outcome;
mod positions;
pub mod pyroscope;
mod secret;
mod sink;
mod tls;
pub mod types;

pub use address::{Address, AddressError};
pub use batch::{Batch, Encoded, NotABatch, Outgoing, Protocol};
pub use outcome::{LONGEST_WAIT, Outcome};
pub use secret::Secret;
pub use sink::{Backend, Sink};
pub use tls::TlsError;
