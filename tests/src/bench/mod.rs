//! The benchmark: what a recording costs in standard scenes, measured from outside, beside a bare
//! BPF program in the same run and Linux perf in the same scene.
//!
//! | module | holds |
//! |---|---|
//! | [`scenes`] | what the machine does while it is measured |
//! | [`bpf_objects`] | BPF programs and maps as the kernel counts them |
//! | [`bare_program`] | a BPF program of two `bpf_get_stack` calls: the least a profiler can cost |
//! | [`bare_tracepoints`] | BPF programs that do nothing, at tracepoints |
//! | [`meters`] | CPU time and memory of a process with its children |
//! | [`measure`] | one scene under strata, and under perf |
//! | [`clr`] | what strata costs .NET programs: start-up, speed, memory, latencies |
//! | [`control_group`] | CPU time and memory of all that a daemon or a recording starts |
//! | [`resident`] | what a daemon costs that runs for good |
//! | [`starts`] | what it costs programs to start |
//! | [`switches`] | what off-CPU time costs programs that switch |
//! | [`wall`] | what passes over threads cost, for wall-clock time |
//! | [`throughput`] | what CPU and wall-clock time together cost a program that uses every CPU |
//! | [`components`] | table building and symbolisation by themselves |
//! | [`pairs`] | differences of pairs of runs, and how sure they are |
//! | [`figure`] | a line of the table of the groups [`clr`], [`starts`], [`switches`], [`wall`] and [`resident`] |
//! | [`report`] | the table and the JSON file |
//! | [`readme`] | the README's table of costs |
//!
//! Invariant: a figure that strata reports about itself is printed beside the one measured from
//! outside.

pub mod bare_program;
pub mod bare_tracepoints;
pub mod bpf_objects;
pub mod clr;
pub mod components;
pub mod control_group;
pub mod figure;
pub mod measure;
pub mod meters;
pub mod pairs;
pub mod readme;
pub mod report;
pub mod resident;
pub mod scenes;
pub mod starts;
pub mod switches;
pub mod throughput;
pub mod wall;
