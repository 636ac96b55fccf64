//! `strata stacks`, `ps`, `env` and `doctor`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::choices::ClrArg;

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 when recording works (some things may be degraded), \
    1 when something needed is missing or there is no such process, \
    2 for wrong usage. With --pid: 0 whatever is found.")]
pub struct DoctorArgs {
    /// Say what is known about this process: its mappings, their unwind tables and symbols
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Threads of one process with the same stack and state are merged into one entry. The time is how long \
    a thread has been off the CPU, where the kernel reports it (CONFIG_SCHED_DEBUG).\n\n\
    No thread is stopped or signalled. Threads that run at that moment, that have \
    ended or may not be read are only counted: `strata record` shows running code. Threads of the \
    kernel have no user stack. Goroutines that wait have no thread and are not shown. It needs \
    Linux 5.18."
)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
pub struct StacksArgs {
    /// Processes by id
    #[arg(group = "which", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub process: Vec<u32>,
    /// Processes by id; repeatable, or separated by commas
    #[arg(group = "which", short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Processes by name (as in /proc/PID/comm; a trailing `*` is a wildcard)
    #[arg(group = "which", long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub comm: Vec<String>,
    /// Containers by id (a prefix of 6 digits or more), or control groups by path (any part of 4 characters
    /// or more)
    #[arg(
        group = "which",
        long,
        visible_alias = "cgroup",
        value_name = "ID|PATH",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub container: Vec<String>,
    /// All processes of the host
    #[arg(group = "which", short, long)]
    pub all: bool,
    /// Show every kernel frame on a line of its own
    #[arg(long)]
    pub kernel: bool,
    /// How to get the method names of .NET processes
    #[arg(long, value_name = "HOW", default_value = "attach")]
    pub clr: ClrArg,
    /// Print the stacks as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  eval \"$(strata env)\" && dotnet app.dll\n  \
    strata env --form dockerfile --directory . >> Dockerfile\n\n\
    The bridge is idle while no strata process reads it. A running process needs none of this: \
    `strata record` attaches to it.")]
pub struct EnvArgs {
    /// How to write them down
    #[arg(long, value_name = "FORM", default_value = "shell")]
    pub form: FormArg,
    /// Where to put the bridge's library; only root and you may have write access to it
    #[arg(long, value_name = "DIR", default_value = crate::environment::DIRECTORY)]
    pub directory: PathBuf,
    /// For a runtime on musl (Alpine)
    #[arg(long)]
    pub musl: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FormArg {
    /// `export` lines
    Shell,
    /// `COPY` and `ENV` lines
    Dockerfile,
}

impl From<FormArg> for strata_clr::environment::Form {
    fn from(form: FormArg) -> Self {
        match form {
            FormArg::Shell => Self::Shell,
            FormArg::Dockerfile => Self::Dockerfile,
        }
    }
}

#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}
