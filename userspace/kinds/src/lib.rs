//! The kinds of samples, declared once.
//!
//! [`table`] has one row per kind: what it is called in the configuration, `record -e` and
//! `query --type`, which value columns it has and how they aggregate, how it looks on a timeline,
//! which variables of in-process profilers switch it, and what each backend calls its columns.
//! The configuration, the aggregate, profiles, the store and exporters read the table and name no
//! kind. The BPF programs, the bridge, the agent's engine and the daemon's settings do: ARCHITECTURE.md,
//! "Adding a kind", lists where. [`labels`] does the same for the labels of samples.
//!
//! Invariant: a kind's number and its columns' names are written to disk and into BPF records, so
//! rows are appended, never reordered; a column's name and unit belong to one kind only.

#![no_std]

mod frequencies;
pub mod labels;
mod set;
mod table;
mod types;

pub use frequencies::Frequencies;
pub use set::{Kinds, UnknownKind};
pub use table::{KIND_COUNT, Kind, find_column};
pub use types::{
    Aggregation, BridgeEvents, Column, KindInfo, Measure, OtlpType, PyroscopeType, Quantity, Rate,
    Shape,
};
