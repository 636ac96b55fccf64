//! The profiling agent: from the kernel's records to an aggregate of one flush period.
//!
//! - [`kernel`]: the only module that knows `aya`: programs, ring buffer, process events.
//! - [`processes`]: which processes run, what each has mapped.
//! - [`tables`]: unwind tables of files and generated code, published to the kernel.
//! - [`managed`]: .NET processes: bridges, methods, code.
//! - [`engine`]: ties them together in the order of time.
//! - [`event_loop`]: the loop that recordings and the daemon run.
//! - [`aggregate`]: samples of one period: stacks interned, addresses not symbolized.
//! - [`image_id`]: the number of a process image.
//! - [`code_address`]: addresses independent of the process: kernel, file, generated code.
//! - [`frame`]: the frame that such an address becomes.
//! - [`selection`]: which processes' samples are kept.
//! - [`blocking_reader`]: work that may block, off the event loop.
//! - [`processor_time`]: what a thread may spend.
//! - [`host`]: the host's name.
//! - [`clock`]: the clock of process events and records.

pub mod aggregate;
pub mod blocking_reader;
pub mod clock;
pub mod code_address;
pub mod engine;
pub mod event_loop;
pub mod frame;
mod hash;
pub mod host;
pub mod image_id;
pub mod kernel;
pub mod managed;
mod proc_file;
pub mod processes;
pub mod processor_time;
mod random;
pub mod selection;
pub mod tables;
