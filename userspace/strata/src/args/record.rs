//! `strata record` and `convert`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use strata_kinds::Kinds;

use super::choices::{ClrArg, FormatArg, FramesArg};
use super::values::{events_help, parse_duration, parse_events};

const RECORD_EXAMPLES: &str = "\
Examples:
  strata record                          the whole host, until Ctrl-C
  strata record --duration 30s           for half a minute
  strata record --pid 4711               one process and its children
  strata record --comm nginx             every process of that name
  strata record --container 3f2a91       a container, by the start of its id
  strata record -- ./server --port 80    a command from its start to its end
  strata record -o app.pb.gz -o app.svg -o app.folded
  strata record --upload http://pyroscope:4040 --service shop --env test -- ./shop

Outputs by extension: .pb.gz (pprof), .svg (flame graph), .folded (folded stacks),
.perf (perf-script text), .json.gz (Firefox profiler, https://profiler.firefox.com).
(.pprof, .pb, .txt and .json are understood as well; .pb and .json are not compressed.)
Without --output and --upload: strata-<time>.pb.gz and .svg in the current directory.

Exit status: 1 if something failed, or if only --comm and --container were given and none of them
matched; else that of the command after `--` (128 + N after signal N); else 0.";

#[derive(Debug, Args)]
#[command(after_help = RECORD_EXAMPLES)]
pub struct RecordArgs {
    #[command(flatten)]
    pub what: WhatArgs,
    #[command(flatten)]
    pub how: HowArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub upload: UploadArgs,
    /// Run this command and profile it (and its children) until it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to profile: any of these (the whole host by default)")]
pub struct WhatArgs {
    /// Processes by their ids, with their children; repeatable, or separated by commas
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Processes by name (as in /proc/PID/comm; a trailing `*` is a wildcard)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub comm: Vec<String>,
    /// Containers by id (a prefix of 6 digits or more), or control groups by path (any part of 4 characters
    /// or more)
    #[arg(long, visible_alias = "cgroup", value_name = "ID|PATH", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub container: Vec<String>,
    /// Leave the children of chosen processes out
    #[arg(long)]
    pub no_children: bool,
    /// Run the command and write the outputs as this user [under sudo: the user who called it]
    #[arg(long, value_name = "USER", requires = "command")]
    pub user: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How to sample")]
pub struct HowArgs {
    /// How long to record: seconds, or with a unit (500ms, 30s, 5m, 1h) [until Ctrl-C]. A command that
    /// still runs then is left to finish
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// What to sample, with commas between kinds
    #[arg(short, long, value_name = "KINDS", default_value = "cpu", value_parser = parse_events, long_help = events_help())]
    pub events: Kinds,
    /// Samples per second and CPU, up to 20000. A prime keeps clear of timers that tick at round rates
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 97, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub frequency: u32,
    /// Keep at most this many user frames of a stack (up to 1024), nearest the running code
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_frames: u32,
    /// Keep the time of every sample even if no output needs it (Firefox and .perf outputs do)
    #[arg(long)]
    pub timeline: bool,
    /// Omit the messages of .NET exceptions, which may contain personal data
    #[arg(long)]
    pub no_exception_messages: bool,
    /// Kernel memory for unwind tables, in MB: 8 to 4096
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=4096))]
    pub table_memory: u32,
    /// How to get the method names of .NET processes
    #[arg(long, value_name = "HOW", default_value = "attach")]
    pub clr: ClrArg,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to write")]
pub struct OutputArgs {
    /// A file to write; repeatable; `-` is the standard output. Of several kinds of samples, .svg and
    /// .folded are one file each: app.cpu.svg
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// The format of outputs whose file name has no known extension; without -o, the only output
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// Which frames a flame graph shows (the other formats have them all)
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
    /// Draw processes of one name apart in a flame graph, each with its pid
    #[arg(long)]
    pub split_by_pid: bool,
    /// Open the flame graph in a browser when it is written
    #[arg(long)]
    pub open: bool,
    /// Show the types of .NET methods' parameters in their names
    #[arg(long)]
    pub signatures: bool,
    /// Print a summary for scripts, as JSON, on the standard output (counts BPF run time too)
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log files that could not be used; twice: every step
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where to send it (nowhere by default)")]
pub struct UploadArgs {
    /// A server to send the profile to: Pyroscope, a Datadog agent (unix:///socket too) or an OTLP
    /// collector. Credentials come from the environment: STRATA_EXPORTER_PYROSCOPE_TOKEN,
    /// PYROSCOPE_AUTH_TOKEN, … (docs/exporters.md has all)
    #[arg(long, value_name = "URL")]
    pub upload: Option<String>,
    /// The server's protocol [otlp at port 4317 or 4318, datadog at 8126 or unix:, else pyroscope]
    #[arg(long, value_name = "KIND", requires = "upload")]
    pub upload_as: Option<ServerArg>,
    /// Service name of the profile [the command's name]
    #[arg(long, value_name = "NAME", requires = "upload")]
    pub service: Option<String>,
    /// Environment of the service, such as prod
    #[arg(long, value_name = "NAME", requires = "upload")]
    pub env: Option<String>,
    /// Version of the service
    #[arg(long, value_name = "VERSION", requires = "upload")]
    pub service_version: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ServerArg {
    Pyroscope,
    Datadog,
    Otlp,
}

impl ServerArg {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pyroscope => "pyroscope",
            Self::Datadog => "datadog",
            Self::Otlp => "otlp",
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  strata convert app.pb.gz app.svg\n  strata convert cpu.pprof cpu.folded\n  strata convert - profile.json.gz < app.pb.gz"
)]
pub struct ConvertArgs {
    /// The profile to read: pprof of any tool, or folded stacks; `-` is the standard input
    pub input: PathBuf,
    /// The file to write; its extension sets the format; `-` is the standard output
    pub output: PathBuf,
    /// The format to write, if the extension is unknown
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// Which of the profile's values to show, such as samples or cpu [the main one; of several
    /// kinds a file for each, such as app.cpu.svg]
    #[arg(long, value_name = "NAME")]
    pub value: Option<String>,
    /// Which frames a flame graph shows
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
}
