//! Metadata of containers from container runtimes and Kubernetes, by container id.
//!
//! | module | holds |
//! |---|---|
//! | [`directory`] | asking for a container, and the task that finds out |
//! | [`settings`] | which runtimes there are, and how patient to be |
//! | [`metadata`] | what is known of one container, in bounds |
//! | [`health`] | the health of every source, for display |
//! | `cache` | what was found and what was not, for a time |
//! | `sources` | which source is queried for what, and when not |
//! | `docker`, `cri`, `containerd`, `kubelet` | one protocol each |
//! | `transport`, `trust` | bounded HTTP and gRPC, over sockets and TLS |
//!
//! Invariants: [`Containers::lookup`] never waits. All requests to a source are sent by one task,
//! one after the other, in bounded time and memory, and no redirect is followed. Every answer is
//! untrusted text: it is truncated, counted and made inert before it is used.

mod cache;
mod containerd;
mod cri;
pub mod directory;
mod docker;
pub mod health;
mod kubelet;
pub mod metadata;
pub mod settings;
mod sources;
mod transport;
mod trust;

pub use directory::{Containers, Refresher, containers};
pub use health::{Health, SourceHealth};
pub use metadata::Metadata;
pub use settings::{Kubelet, Pace, Settings};
