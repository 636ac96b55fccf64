//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use strata_kinds::{Kind, Kinds, UnknownKind};
use strata_profile::Format;

use crate::view::Shown;
use strata_query::when::{When, parse_span};

/// A profiler for the whole host: one stack from the kernel to the function that burns the time.
///
/// strata samples every process with eBPF: no restart, no rebuild, no frame pointers needed.
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
    /// Say how the daemon of this host is doing
    Status(StatusArgs),
    /// Check or show the daemon's configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Turn a profile (pprof or folded stacks) into another format
    Convert(ConvertArgs),
    /// Ask the local store: where time went, of a service, in any window it holds
    Query(Box<QueryArgs>),
    /// Compare two windows, services or versions in the local store
    Diff(Box<DiffArgs>),
    /// List the .NET processes of this host, and how strata's bridge in each is
    Ps(PsArgs),
    /// Show where the threads of a process are right now, blocked ones included
    Stacks(StacksArgs),
    /// Print the environment variables that make a .NET process load strata's bridge at its start
    Env(EnvArgs),
    /// Say what works on this host, what does not, and what to do about it
    Doctor(DoctorArgs),
}

const DAEMON_HELP: &str = "\
Without a configuration the daemon samples at 19 Hz, attaches to .NET processes older than ten
seconds and keeps profiles of a week (1 GB at most) in /var/lib/strata/store: `strata query` asks it.

Examples:
  strata daemon                                        no server at all
  strata daemon --set exporter.pyroscope.url=http://pyroscope:4040
  DD_AGENT_HOST=10.0.0.5 strata daemon                 to a Datadog agent
  strata daemon --config /etc/strata/strata.toml       what is set there (SIGHUP reads it again)
  strata config show                                   every setting, and where it comes from

SIGTERM and Ctrl-C send what was sampled so far and end; SIGHUP reloads the configuration and opens
a log file anew. `strata status` says how it is doing; so do /metrics and /healthz on 127.0.0.1:9464.";

#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// The configuration [/etc/strata/strata.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one value, before the file and the environment: sampling.frequency=99; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
    /// Samples per second and CPU
    #[arg(short = 'F', long, value_name = "HZ")]
    pub frequency: Option<String>,
    /// What strata may use: its own memory, its helpers' and the kernel's for its maps
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Where the log goes: stderr, journald, syslog, none or a file
    #[arg(long, value_name = "WHERE")]
    pub log_target: Option<String>,
    /// How much is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Show strata in its own profiles
    #[arg(long)]
    pub profile_self: bool,
}

#[derive(Debug, Args)]
#[command(after_help = DAEMON_HELP)]
pub struct DaemonArgs {
    #[command(flatten)]
    pub settings: SettingsArgs,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Read the configuration as the daemon would, and say what is wrong with it
    Check(SettingsArgs),
    /// Print every value, and where it comes from (secrets as ***)
    Show(SettingsArgs),
    /// Print a commented configuration with all defaults
    Example,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The daemon's unix socket (metrics.socket)
    #[arg(long, value_name = "PATH", default_value = "/run/strata/status.sock")]
    pub socket: std::path::PathBuf,
    /// Show who is sampled: each process's service, labels, and where they come from
    #[arg(long)]
    pub services: bool,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("a setting is written KEY=VALUE, such as sampling.frequency=99".into()),
    }
}

impl From<SettingsArgs> for crate::daemon::settings::Source {
    fn from(args: SettingsArgs) -> Self {
        let mut flags = Vec::new();
        let mut add = |name: &str, key: &str, value: Option<String>| {
            if let Some(value) = value {
                let (name, key) = (name.to_owned(), key.to_owned());
                flags.push(strata_config::Flag { name, key, value });
            }
        };
        add("--frequency", "sampling.frequency", args.frequency);
        add("--memory-limit", "memory_limit", args.memory_limit);
        add("--log-target", "log.target", args.log_target);
        add("--log-level", "log.level", args.log_level);
        add("--profile-self", "profile_self", args.profile_self.then(|| "true".to_owned()));
        for (key, value) in args.set {
            add("--set", &key, Some(value));
        }
        Self { file: args.config, flags }
    }
}

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

Exit status: that of the command after `--`; else 0, or 1 when something failed.";

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
#[command(next_help_heading = "What to profile (the whole host by default)")]
pub struct WhatArgs {
    /// A process, by its id; repeatable, or separated by commas
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Processes by their name (as in /proc/PID/comm; a `*` at the end matches any end)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub comm: Vec<String>,
    /// Containers by their id (or the first 6 digits and more), or control groups by their path (or a
    /// part of 4 characters and more)
    #[arg(long, visible_alias = "cgroup", value_name = "ID|PATH", value_delimiter = ',')]
    pub container: Vec<String>,
    /// Leave the children of chosen processes out
    #[arg(long)]
    pub no_children: bool,
    /// The user to run the command as, who then owns the outputs too (under sudo: its caller)
    #[arg(long, value_name = "USER", requires = "command")]
    pub user: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How to sample")]
pub struct HowArgs {
    /// How long to record: seconds, or with a unit (500ms, 30s, 5m, 1h); a command that goes on is
    /// waited for [until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// What to sample, with commas between kinds
    #[arg(short, long, value_name = "KINDS", default_value = "cpu", value_parser = parse_events, long_help = events_help())]
    pub events: Kinds,
    /// Samples per second and CPU. A prime keeps clear of timers that tick at round rates
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 97, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub frequency: u32,
    /// Keep at most this many user frames of a stack, nearest the running code
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_frames: u32,
    /// Keep the time of every sample even if no output needs it (Firefox and .perf outputs do)
    #[arg(long)]
    pub timeline: bool,
    /// Kernel memory for unwind tables, in MB
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=4096))]
    pub table_memory: u32,
    /// How to reach into .NET processes for the names of their methods
    #[arg(long, value_name = "HOW", default_value = "attach")]
    pub clr: ClrArg,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to write")]
pub struct OutputArgs {
    /// A file to write; repeatable; `-` is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// The format of outputs whose name does not tell
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// Which frames a flame graph shows (the other formats have them all)
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
    /// Show the types of .NET methods' parameters in their names
    #[arg(long)]
    pub signatures: bool,
    /// Print a summary for scripts, as JSON, on the standard output (counts BPF run time too)
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more; twice: what strata does step by step
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where to send it (nowhere by default)")]
pub struct UploadArgs {
    /// A server to send the profile to: Pyroscope, a Datadog agent (unix:///socket too) or an OTLP
    /// collector. Credentials come from the environment: STRATA_EXPORTER_PYROSCOPE_TOKEN,
    /// PYROSCOPE_AUTH_TOKEN, … (see `strata config example`)
    #[arg(long, value_name = "URL")]
    pub upload: Option<String>,
    /// What listens there [guessed from the URL]
    #[arg(long, value_name = "KIND", requires = "upload")]
    pub upload_as: Option<ServerArg>,
    /// The service that the profile is of [the command's name]
    #[arg(long, value_name = "NAME", requires = "upload")]
    pub service: Option<String>,
    /// Its environment, such as prod
    #[arg(long, value_name = "NAME", requires = "upload")]
    pub env: Option<String>,
    /// Its version
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
    /// The file to write; its extension tells the format; `-` is the standard output
    pub output: PathBuf,
    /// The format to write, when the name does not tell
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<FormatArg>,
    /// Which frames a flame graph shows
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
}

/// Where the daemon keeps its store unless its configuration says otherwise.
const STORE: &str = "/var/lib/strata/store";

const QUERY_EXAMPLES: &str = "\
Examples:
  strata query                                       what there is: services, types, times, sizes
  strata query --service shop                        the top functions of the last hour
  strata query --service shop -o flame.svg           a flame graph of it
  strata query --service shop --from -1d --to -23h -o shop.pb.gz
  strata query --service shop --from '2026-01-31 14:30' --to '2026-01-31 14:45'
  strata query --service 'shop-*' --label env=prod   several services, some of their profiles
  strata query --service shop --type exceptions --top 50
  strata query --service '*' --from -1d -o host.svg  everything of a day in one picture

Times: `now`; `-30m`, `-1h30m`, `-2d` from now; `14:30` today; `2026-01-31 14:30[:15]` in local
time; RFC 3339 (`2026-01-31T14:30:00Z`). A profile belongs to the time it began.
Outputs by extension, as of `strata record`: .pb.gz .svg .folded .perf .json.gz. The last two show
samples in time, if the daemon keeps that (`timestamps` in its configuration).
Two questions compared: `strata diff`.";

#[derive(Debug, Args)]
#[command(after_help = QUERY_EXAMPLES)]
pub struct QueryArgs {
    #[command(flatten)]
    pub whose: WhoseArgs,
    #[command(flatten)]
    pub window: WindowArgs,
    /// A file to write instead of a table; repeatable; `-` is the standard output
    #[arg(short, long, value_name = "FILE", help_heading = "What to write")]
    pub output: Vec<PathBuf>,
    /// The format of outputs whose name does not tell
    #[arg(long, value_name = "FORMAT", help_heading = "What to write")]
    pub format: Option<FormatArg>,
    /// Keep the labels of single processes, threads and requests (slower: reads every profile)
    #[arg(long, help_heading = "What to write")]
    pub all_labels: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  strata diff --service shop                         the last hour and the hour before it
  strata diff --service shop --earlier 1d            and the same hour of yesterday
  strata diff --service shop --earlier 1w --from -1d -o week.svg
  strata diff --service shop --from 14:30 --to 14:45 --baseline-from 14:00 --baseline-to 14:15
  strata diff --service shop --label version=1.5 --baseline-label version=1.4 --from -1d
  strata diff --service shop-new --baseline-service shop-old -o move.svg

Shares are compared, so the windows need not be of one length. In the picture a frame is red
where its share grew and blue where it shrank; what came and what went are both drawn.
Without a word about the baseline it is the window just before; with another service or label it
is the same window. Times are written as for `strata query`.";

#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub struct DiffArgs {
    #[command(flatten)]
    pub whose: WhoseArgs,
    #[command(flatten)]
    pub window: WindowArgs,
    #[command(flatten)]
    pub baseline: BaselineArgs,
    /// A differential flame graph to write (.svg) instead of a table; repeatable; `-` is the
    /// standard output
    #[arg(short, long, value_name = "FILE", help_heading = "What to write")]
    pub output: Vec<PathBuf>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Whose profiles")]
pub struct WhoseArgs {
    /// The service; `*` stands for any characters, `?` for one
    #[arg(short, long, value_name = "NAME")]
    pub service: Option<String>,
    /// The kind of sample: a name, an alias or a pattern; several with commas between them [cpu, or
    /// the only one there is]
    #[arg(short, long = "type", value_name = "TYPE", value_parser = parse_kind_patterns, long_help = type_help())]
    pub kind: Option<String>,
    /// Only profiles with this label, such as env=prod; repeatable
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Only samples of this process
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Only profiles with this runtime id
    #[arg(long, value_name = "ID")]
    pub runtime_id: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "When")]
pub struct WindowArgs {
    /// From this time on [an hour before --to; of a list: the beginning]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub from: Option<When>,
    /// Up to this time [now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub to: Option<When>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to compare with (the window just before)")]
pub struct BaselineArgs {
    /// The same window so much earlier: 1h, 1d, 1w
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with_all = ["baseline_from", "baseline_to"])]
    pub earlier: Option<i64>,
    /// From this time on
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub baseline_from: Option<When>,
    /// Up to this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub baseline_to: Option<When>,
    /// Another service
    #[arg(long, value_name = "NAME")]
    pub baseline_service: Option<String>,
    /// Profiles with this label instead of the one of the same name; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub baseline_label: Vec<(String, String)>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How to answer")]
pub struct AnswerArgs {
    /// Which of the profiles' values to show, such as samples or cpu [the profiles' own choice]
    #[arg(long, value_name = "NAME")]
    pub value: Option<String>,
    /// Which frames a flame graph shows
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
    /// Functions in the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
    /// The store's directory
    #[arg(long, value_name = "DIR", default_value = STORE, env = "STRATA_STORE_PATH")]
    pub store: PathBuf,
}

/// The kinds, one a line, as the table says them.
fn kinds_help(intro: &str) -> String {
    let mut text = intro.to_owned();
    for kind in Kind::ALL {
        let not_yet = if kind.is_sampled() { "" } else { " (not sampled yet)" };
        let info = kind.info();
        let aliases = match info.aliases {
            [] => String::new(),
            aliases => format!(" [{}]", aliases.join(", ")),
        };
        text.push_str(&format!("\n  {}{aliases}: {}{not_yet}", info.name, info.help));
    }
    text
}

fn events_help() -> String {
    kinds_help("What to sample, with commas between kinds:")
}

fn type_help() -> String {
    kinds_help(
        "The kind of sample: a name, an alias or a pattern; several with commas between them [cpu, \
         or the only one there is]:",
    )
}

/// What is to be sampled: kinds that have a sampler.
fn parse_events(text: &str) -> Result<Kinds, String> {
    let kinds = Kinds::parse(text).map_err(|error| error.to_string())?;
    let missing: Kinds = kinds.iter().filter(|kind| !kind.is_sampled()).collect();
    let sampled: Kinds = Kind::ALL.into_iter().filter(|kind| kind.is_sampled()).collect();
    if !missing.is_empty() {
        return Err(format!("not sampled yet: {missing}; this version samples {sampled}"));
    }
    if kinds.is_empty() {
        return Err(format!("no kind is named; there are {sampled}"));
    }
    Ok(kinds)
}

/// Kinds of stored profiles: names and aliases become names, patterns stay.
fn parse_kind_patterns(text: &str) -> Result<String, String> {
    let one = |item: &str| match Kind::find(item) {
        Some(kind) => Ok(kind.name().to_owned()),
        None if item.contains(['*', '?']) => Ok(item.to_owned()),
        None => Err(UnknownKind(item).to_string()),
    };
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Ok(items.map(one).collect::<Result<Vec<String>, String>>()?.join(","))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write a label as NAME=VALUE, such as env=prod".into()),
    }
}

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
    after_help = "Nothing is stopped or signalled. Threads that run at that moment are left out: \
    `strata record` shows those."
)]
pub struct StacksArgs {
    /// The process
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// How to reach into a .NET process for the names of its methods
    #[arg(long, value_name = "HOW", default_value = "attach")]
    pub clr: ClrArg,
    /// Print the stacks as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  eval \"$(strata env)\" && dotnet app.dll\n  \
    strata env --form dockerfile --directory . >> Dockerfile\n\n\
    Without a strata that reads it the bridge stays quiet. A running process needs none of this: \
    `strata record` attaches to it.")]
pub struct EnvArgs {
    /// How to write them down
    #[arg(long, value_name = "FORM", default_value = "shell")]
    pub form: FormArg,
    /// Where to put the bridge's library; others than root and you must not be able to write there
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

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ClrArg {
    /// Load the bridge into running processes, and take it back at the end
    Attach,
    /// Use it where a process has loaded it itself (see `strata env`)
    EnvOnly,
    /// Leave .NET processes alone: frames of generated code have no names
    Off,
}

impl From<ClrArg> for strata_agent::managed::Policy {
    fn from(how: ClrArg) -> Self {
        match how {
            ClrArg::Attach => Self::Attach,
            ClrArg::EnvOnly => Self::EnvironmentOnly,
            ClrArg::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FramesArg {
    /// Every frame
    All,
    /// Without the .NET runtime's own: its native code, and what it puts between a caller and an
    /// async continuation
    App,
}

impl From<FramesArg> for Shown {
    fn from(frames: FramesArg) -> Self {
        match frames {
            FramesArg::All => Self::All,
            FramesArg::App => Self::App,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FormatArg {
    Pprof,
    Svg,
    Folded,
    Perf,
    Firefox,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Pprof => Self::Pprof,
            FormatArg::Svg => Self::Svg,
            FormatArg::Folded => Self::Folded,
            FormatArg::Perf => Self::PerfScript,
            FormatArg::Firefox => Self::Firefox,
        }
    }
}

/// `90`, `1.5`, `500ms`, `30s`, `5m`, `2h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time: use ms, s, m or h")),
    };
    let seconds: f64 = number.trim().parse().map_err(|_| format!("`{number}` is no number"))?;
    let seconds = seconds * scale;
    if !(0.001..=31_536_000.0).contains(&seconds) {
        return Err("a recording lasts between a millisecond and a year".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn kinds_are_named_by_the_table_and_what_is_not_sampled_is_refused() {
        assert_eq!(parse_events("cpu"), Ok(Kinds::NONE.with(Kind::Cpu, true)));
        let refused = parse_events("cpu,wall").expect_err("no sampler");
        assert_eq!(refused, "not sampled yet: wall; this version samples cpu");
        let unknown = parse_events("cycles").expect_err("no kind");
        assert!(unknown.contains("exceptions, locks"), "{unknown}");
        assert_eq!(parse_kind_patterns("alloc,off-cpu"), Ok("allocations,off_cpu".to_owned()));
        assert_eq!(parse_kind_patterns("*"), Ok("*".to_owned()));
        assert!(parse_kind_patterns("cycles").is_err());
        assert!(events_help().contains("live_heap"));
    }

    #[test]
    fn a_label_has_a_name() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_label("env=prod"), pair("env", "prod"));
        assert_eq!(parse_label("flags=a=b"), pair("flags", "a=b"));
        assert!(parse_label("env").is_err());
        assert!(parse_label("=prod").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("5 parsecs").is_err());
        assert!(parse_duration("-1").is_err());
        assert!(parse_duration("0").is_err());
    }
}
