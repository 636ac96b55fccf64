//! The profiling agent: from the kernel's records to an aggregate of one flush period.
//!
//! - [`kernel`]: the only module that knows `aya`: programs, ring buffer, process events.
//! - [`processes`]: which processes run, what each has mapped.
//! - [`tables`]: unwind tables of files and generated code, published to the kernel.
//! - [`managed`]: .NET processes: bridges, methods, code.
//! - [`engine`]: ties them together in the order of time.
//! - [`event_loop`]: the loop that recordings and the daemon run.
//! - [`aggregate`]: samples of one period: stacks interned, addresses not symbolized.
//! - [`place`]: an address that means the same in every process: kernel, file, generated code.
//! - [`frame`]: the frame that such an address becomes.
//! - [`selection`]: which processes' samples are kept.
//! - [`aside`]: work that may block, off the event loop.
//! - [`host`]: the host's name.

pub mod aggregate;
pub mod aside;
pub mod engine;
pub mod event_loop;
pub mod frame;
pub mod host;
pub mod kernel;
pub mod managed;
pub mod place;
pub mod processes;
pub mod selection;
pub mod tables;
