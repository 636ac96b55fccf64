//! End-to-end tests of `strata`: real processes, the real binary, results read back by independent
//! readers. One module per theme of the product's guarantees.
//!
//! They need root and what `cargo xtask setup test` installs, and are run by `cargo xtask test`.
//! By default each records for seconds; `STRATA_TEST_LONG=1` gives the full durations. Every test
//! prints the figures it saw (`--nocapture`).

mod complete_stacks;
mod daemon;
mod daemon_lasting;
mod daemon_lines;
mod daemon_outages;
mod daemon_status;
mod daemon_store;
mod deploying;
mod dotnet_attaching;
mod dotnet_beside;
mod dotnet_bundles;
mod dotnet_events;
mod dotnet_floods;
mod dotnet_gc;
mod dotnet_heap;
mod dotnet_hostile;
mod dotnet_log;
mod dotnet_names;
mod dotnet_places;
mod dotnet_pretending;
mod dotnet_readers;
mod dotnet_running;
mod dotnet_stacks;
mod dotnet_storms;
mod dotnet_stubs;
mod dotnet_surviving;
mod dotnet_targets;
mod dotnet_unloading;
mod dotnet_waits;
mod dotnet_without_probes;
mod elapsed_exports;
mod errors;
mod harness;
mod hostile_files;
mod hostile_names;
mod hostile_together;
mod idle_threads;
mod isolation;
mod jits;
mod kernel_on_user;
mod late_symbols;
mod off_cpu;
mod on_off;
mod pictures;
mod privileges;
mod probed_programs;
mod record_command;
mod shares;
mod short_lives;
mod slow_symbols;
mod tools_agree;
mod waiting_threads;
mod wall;
mod wall_unreadable;
