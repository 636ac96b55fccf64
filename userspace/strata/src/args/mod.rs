//! The command line.
//!
//! - [`record`]: `record`, `convert`. [`query`]: `query`, `diff`. [`daemon`]: `daemon`, `config`,
//!   `status`. [`process`]: `stacks`, `ps`, `env`, `doctor`.
//! - [`choices`], [`values`]: the types of options' values.

mod choices;
mod daemon;
mod process;
mod query;
mod record;
mod values;

use clap::{Parser, Subcommand};

pub use daemon::{ConfigCommand, DaemonArgs, StatusArgs};
pub use process::{DoctorArgs, EnvArgs, PsArgs, StacksArgs};
pub use query::{DiffArgs, QueryArgs, WhoseArgs};
pub use record::{ConvertArgs, RecordArgs, ServerArg, UploadArgs};

/// A profiler for the whole host: one stack from the kernel to the function that burns the time.
///
/// strata samples every process with eBPF: no restart, no rebuild, no frame pointers needed.
/// Most commands need root, or the capabilities that `strata doctor` lists.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile the host, some processes, or a command, and write what was found
    Record(Box<RecordArgs>),
    /// Profile the whole host continuously, for the local store and for servers
    Daemon(DaemonArgs),
    /// Show the state of this host's daemon: load, losses, exporters
    Status(StatusArgs),
    /// Check or show the daemon's configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Turn a profile (pprof or folded stacks) into another format
    Convert(ConvertArgs),
    /// Query the local store: where a service's time went, in any window that it holds
    Query(Box<QueryArgs>),
    /// Compare two windows, services or versions in the local store
    Diff(Box<DiffArgs>),
    /// List the .NET processes of this host, and the state of strata's bridge in each
    Ps(PsArgs),
    /// Show where the threads of a process are right now, blocked ones included
    Stacks(StacksArgs),
    /// Print the environment variables that make a .NET process load strata's bridge at its start
    Env(EnvArgs),
    /// Check what works on this host, what does not, and how to fix it
    Doctor(DoctorArgs),
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn an_empty_name_selects_nothing_and_is_refused() {
        let is_taken = |command, option, text| {
            super::Cli::try_parse_from(["strata", command, option, text]).is_ok()
        };
        for command in ["record", "stacks"] {
            for option in ["--comm", "--container", "--cgroup"] {
                assert!(is_taken(command, option, "nginx,shop"), "{command} {option}");
                assert!(!is_taken(command, option, ""), "{command} {option}");
                assert!(!is_taken(command, option, "nginx,"), "{command} {option}");
            }
        }
    }
}
