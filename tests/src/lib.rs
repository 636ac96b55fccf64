//! Support for the end-to-end tests and the benchmark: programs to profile, `strata` run as a user
//! runs it, and readers of its output that share no code with the product.
//!
//! | module | holds |
//! |---|---|
//! | [`places`] | where the workspace, its cache and the `strata` binary are |
//! | [`compile`] | a recipe for a target program, built once per source and flags |
//! | [`targets`] | the catalogue of target programs |
//! | [`runtimes`] | targets that need a runtime: Python, Node, Java, .NET |
//! | [`dotnet_calls`] | a .NET program's call graph, compared with stacks |
//! | [`dotnet_parked`] | waiting .NET threads: the runtime's own stack of each |
//! | [`dotnet_names`] | names that a .NET program expects, lines that are hot |
//! | [`dotnet_profiler`] | a second CLR profiler, for living beside it |
//! | [`event_sessions`] | sessions of events that another tool has |
//! | [`running`] | a child process that cannot outlive its test |
//! | [`strata`] | one run of `strata record` and what came of it |
//! | [`daemon`] | `strata daemon`, run as a service manager runs it |
//! | [`probing`] | how long its health probe takes |
//! | [`collector`] | a server that takes what profilers send |
//! | [`backends`] | what arrived at Pyroscope, Datadog and OTLP, read by their schemas |
//! | [`summary`] | the `--json` summary, losses above all |
//! | [`pprof`] | an own pprof reader |
//! | [`stacks`] | stacks and the questions tests ask of them |
//! | [`stack_ends`] | whether a stack's outermost frame is where a thread starts |
//! | [`text_outputs`] | folded stacks and SVG, read back |
//! | [`perf`] | the same recording by Linux perf |
//! | [`deployment`] | `deploy/` read by those it is for, and its image run |
//! | [`disk`] | a disk that can stop answering |
//! | [`elf_edit`] | hostile copies of ELF files |
//! | [`fuse`] | a file system that can stop answering |
//! | [`namespaces`] | processes in namespaces and containers |
//! | [`machine`] | one profile of the machine at a time; the long variants |
//! | [`bench`] | scenes, meters and tables of `cargo xtask bench` |
//!
//! Invariant: strata's own report is never taken as proof; it is compared with what the target did,
//! what the kernel counted or what another tool saw.

pub mod backends;
pub mod bench;
pub mod collector;
pub mod compile;
pub mod daemon;
pub mod deployment;
pub mod disk;
pub mod dotnet_calls;
pub mod dotnet_names;
pub mod dotnet_parked;
pub mod dotnet_profiler;
pub mod elf_edit;
pub mod event_sessions;
pub mod fake_clr;
pub mod fuse;
pub mod machine;
pub mod namespaces;
pub mod perf;
pub mod places;
pub mod pprof;
pub mod probing;
pub mod running;
pub mod runtimes;
pub mod stack_ends;
pub mod stacks;
pub mod strata;
pub mod summary;
pub mod targets;
pub mod text_outputs;
