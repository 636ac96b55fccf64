//! The profile: one model, one builder, and all output formats.
//!
//! - [`ProfileBuilder`] aggregates samples; [`Profile`] is the result.
//! - [`pprof`] writes and reads pprof, of strata and of other tools; [`folded`] writes and reads
//!   folded stacks.
//! - [`flamegraph`] (SVG), [`perf_script`] (text) and [`firefox`] (JSON) are written only.
//! - [`merge()`] joins several profiles, [`of_kind`] extracts one kind of a profile with several;
//!   [`difference`] compares two profiles, for a differential flame graph and a table.
//! - [`idle`] knows threads that wait for work. [`LateKey`] finds the symbol of a frame that was
//!   known only after its profile was built.
//! - [`summary`] is the text for a terminal, [`waits`] that of waits, with [`processes`] in both;
//!   [`own_function`] finds the program's own function of a stack; [`text`] makes hostile names harmless.
//! - [`Format`], [`write`] and [`read`] choose among them by file name.
//!
//! Invariant: names, comms and files belong to the programs that were profiled and are hostile.
//! They are unchanged in the model and in pprof, and made inert by each writer whose output is
//! displayed. Nothing here panics on any input, and nothing does I/O beyond the reader or writer it
//! is given.

mod builder;
pub mod by_label;
pub mod difference;
mod error;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
mod format;
mod identity;
pub mod idle;
mod intern;
mod kind;
mod late;
mod merge;
mod model;
pub mod own_function;
pub mod pauses;
pub mod perf_script;
pub mod pprof;
pub mod processes;
pub mod summary;
pub mod text;
mod tree;
pub mod waits;

pub use builder::ProfileBuilder;
pub use error::{ReadError, WriteError};
pub use format::{Format, FrameView, View, WriteOptions, read, write};
pub use identity::Identity;
pub use kind::{FrameKind, is_unnamed, unnamed};
pub use late::LateKey;
pub use merge::{Times, merge, of_kind, without_stacks};
pub use model::{
    Frame, Label, LabelValue, LabelsId, Location, LocationId, Mapping, MappingId, Profile, Sample,
    StackId, StringId, Thread, ThreadId, Tick, ValueType,
};
