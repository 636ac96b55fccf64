//! The benchmark: what a recording costs in standard scenes, measured from outside, beside a bare
//! BPF program in the same run and Linux perf in the same scene.
//!
//! | module | holds |
//! |---|---|
//! | [`scenes`] | what the machine does while it is measured |
//! | [`bpf_objects`] | BPF programs and maps as the kernel counts them |
//! | [`bare_program`] | a BPF program of two `bpf_get_stack` calls: the least a profiler can cost |
//! | [`meters`] | CPU time and memory of a process with its children |
//! | [`measure`] | one scene under strata, and under perf |
//! | [`clr`] | what strata costs .NET programs: start-up, speed, memory, latencies |
//! | [`components`] | table building and symbolisation by themselves |
//! | [`report`] | the table and the JSON file |
//!
//! Invariant: a figure strata tells about itself is printed beside the one seen from outside.

pub mod bare_program;
pub mod bpf_objects;
pub mod clr;
pub mod components;
pub mod measure;
pub mod meters;
pub mod report;
pub mod scenes;
