//! Finds .NET processes, attaches the bridge to them and reads its memory.
//!
//! ```text
//! pid ─► discover ─► ClrProcess ─► attach ─► Session ─► poll: methods, modules, threads, …
//!           │                        │          │         ask: addresses, IL maps
//!           │ /proc, socket          │ library  │ memory  detach
//!           ▼                        ▼          ▼
//!         target             diagnostics socket, map_files
//! ```
//!
//! - [`discover`] detects whether a process is a CLR, its version, and what stands in the way;
//! - [`attach`] loads strata's library and opens a [`Session`]: by the library's bare name, or from
//!   a file in a directory that the target can read ([`loading`]), over the runtime's own socket
//!   ([`diagnostics`]);
//! - [`session`] owns the library's shared memory, and reads it also after the process has ended;
//! - [`environment`] and [`install`] load the library at a process's start instead;
//! - [`enable_perf_map`] is the fallback where the library may not be loaded.
//!
//! Everything here is plain blocking code without a runtime of its own; what may hang runs on a
//! thread that is abandoned at its deadline, and the number of such threads is bounded (`guarded`).
//!
//! **Invariant:** a target's paths, links, sockets, answers and memory are untrusted. None is
//! followed out of its root, waited for without end, or used as a size or an index without a check;
//! a hostile target harms its own data only.
//!
//! **Invariant:** files created in a target's file system are removed again.

mod assume;
mod attach;
pub mod bridge_library;
mod deadline;
pub mod diagnostics;
mod discover;
pub mod environment;
pub mod exercise;
mod guarded;
mod install;
pub mod loading;
mod mappings;
mod memory_room;
mod place;
mod profilers;
mod root;
pub mod session;
mod socket;
mod switches;
mod target;
mod version;

pub use attach::{
    ATTACH_TIME, AttachError, AttachOptions, Attached, How, attach, attach_to, disable_perf_map,
    enable_perf_map, runtime_version,
};
pub use deadline::Deadline;
pub use discover::{
    ClrProcess, DiscoverError, Evidence, Machine, discover, discover_checked, has_runtime_threads,
    is_runtime_thread,
};
pub use guarded::{MAX_STUCK, Patience, Stuck, stuck_threads};
pub use install::{InstallError, install};
pub use mappings::{CLibrary, SharedKind, SharedMapping};
pub use place::{PlaceError, Tried, Unusable, has_librarys_name};
pub use profilers::{Profiler, ProfilerRole, STRATA, STRATA_CLASS, STRATA_LIBRARY};
pub use root::RootError;
pub use session::{Session, SessionError, SessionOptions};
pub use socket::{FoundSocket, SocketError};
pub use switches::Switches;
pub use target::{Status, Target, TargetError};
pub use version::RuntimeVersion;
