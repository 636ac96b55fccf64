//! Delivers profiles to the local store and to the configured *exporters*: Pyroscope, a Datadog
//! agent, an OTLP collector, a folder of files.
//!
//! The modules, in the order in which a profile passes them:
//!
//! - [`pipeline`]: a thread that receives the profiles of each flush, writes them to the store and
//!   passes them to each exporter at the end of its period.
//! - [`exporter`]: an exporter built from a section of the configuration: a backend, and an
//!   endpoint or folder.
//! - [`backends`]: [`backends::pyroscope`], [`backends::datadog`] and [`backends::otlp`] turn
//!   profiles into batches of bytes. Tables of names: [`sample_labels`] (labels of samples) and
//!   [`origin`] (the process that a profile describes). [`limits`] makes a profile fit a server
//!   without losing a value. `label_names` makes names valid, [`label_values`] bounds the values of a
//!   label.
//! - [`queue`]: a task for each exporter puts batches into its [`spool`] on disk, sends them,
//!   sends again, and counts what is lost. [`orphans`] finds spools that no exporter has.
//! - `endpoint`: a backend and its connection. [`http`]: sends a batch once and returns the outcome.
//! - [`files`]: an exporter that writes pprof files.
//! - [`disks`]: which disks do not answer.
//!
//! Invariants: only [`http`] opens connections. Backends are pure: no I/O, no clock. Every profile
//! given to the pipeline is delivered, stored or counted as dropped.

pub mod backends;
mod batch;
mod causes;
pub mod disks;
mod endpoint;
pub mod exporter;
pub mod files;
pub mod http;
mod label_names;
pub mod label_values;
pub mod limits;
pub mod origin;
pub mod orphans;
pub mod pipeline;
mod positions;
pub mod queue;
pub mod sample_labels;
pub mod spool;

pub use crate::http::{Address, AddressError, LONGEST_WAIT, Outcome, Secret, TlsError};
pub use backends::{Backend, EncoderState, datadog, otlp, pyroscope};
pub use batch::{Batch, Encoded, NotABatch, Outgoing, Protocol};
pub use endpoint::Endpoint;
pub use queue::{
    Clock, Count, CredentialSource, Drops, EnqueueError, ExporterHealth, ExporterSettings, Queues,
    StartError, State, Trouble, Waits,
};
