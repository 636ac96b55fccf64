//! Opens and parses the files of hostile processes.
//!
//! A target's files are untrusted: opening, reading or even closing them may hang, they may change
//! while read, and they may be crafted to exploit their parser. So the daemon touches none of them:
//!
//! - the [`opener`] process opens regular files, by mapping or below a target's root, and puts
//!   each in an *envelope*: a socket that holds the descriptor ([`channel::Envelope`]);
//! - a [`worker`] process takes files out of envelopes and parses them, after giving up every
//!   privilege ([`sandbox`]); its answers are bytes that are checked again ([`answer`]);
//! - [`FileService`] starts both from the daemon's own executable, gives every request a deadline,
//!   kills and replaces what is late or dead, remembers the file responsible, and never waits.
//!
//! Code map: [`identity`] which file is it; [`protocol`], [`wire`], [`channel`] the protocol
//! between the processes; [`opener`], and [`opening`] with its shared functions; [`worker`],
//! [`sandbox`], [`jobs`], [`living_thread`], [`target_file`], [`facts`], [`symbols`], [`managed`], [`related`];
//! [`service`] with [`request`], [`answer`], [`cache`] and [`child`]; [`capabilities`], which helpers
//! keep; [`waiting`], who is slow and does not hang; [`error`].
//!
//! The executable calls [`run_opener`] and [`run_worker`] when it is started with the arguments of
//! [`ChildCommand`], before it opens anything or starts a thread.

mod answer;
mod cache;
pub mod capabilities;
pub mod channel;
mod child;
mod error;
pub mod exercise;
mod facts;
mod identity;
mod jobs;
mod living_thread;
mod managed;
mod managed_jobs;
mod opener;
pub mod opening;
pub mod process_text;
mod protocol;
mod related;
mod request;
mod sandbox;
mod service;
mod symbols;
mod target_file;
mod texts;
pub mod waiting;
mod wire;
mod worker;

pub use cache::{CacheConfig, CacheError, CacheStatistics};
pub use child::{ChildCommand, Usage};
pub use error::{ChildKind, Death, FileError, Refusal};
pub use facts::FileFacts;
pub use identity::{FileIdentity, IdentityTrust};
pub use jobs::{JobError, StandardJobs, WorkerJobs};
pub use living_thread::living_thread;
pub use managed::{
    AssemblyCode, FilePart, IlPlace, ImagePlace, ManagedFacts, ManagedLines, ManagedMethod,
    ManagedNames,
};
pub use opener::{Lane, run_opener};
pub use protocol::{Locator, ProcessRef};
pub use related::Related;
pub use request::{Reply, Request};
pub use service::{ChildReport, Config, FileService, OpenFile, RequestId, Statistics};
pub use symbols::Symbols;
pub use target_file::TargetFile;
pub use wire::WireError;
pub use worker::run_worker;
