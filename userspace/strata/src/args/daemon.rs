//! `strata daemon`, `config` and `status`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const DAEMON_HELP: &str = "\
Without a configuration the daemon samples at 19 Hz, attaches to .NET processes older than ten
seconds and keeps profiles of a week (1 GB at most) in /var/lib/strata/store, which `strata query` reads.

Examples:
  strata daemon                                        no server at all
  strata daemon --set exporter.pyroscope.url=http://pyroscope:4040
  DD_AGENT_HOST=10.0.0.5 strata daemon                 to a Datadog agent
  strata daemon --config /etc/strata/strata.toml       what is set there (SIGHUP reads it again)
  strata config show                                   every setting, and where it comes from

SIGTERM and Ctrl-C send what was sampled so far and end; SIGHUP reloads the configuration and
reopens the log file. `strata status`, and /metrics and /healthz on 127.0.0.1:9464, report its state.";

#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// The configuration [/etc/strata/strata.toml, if it is there]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one value, which overrides the file and the environment: sampling.frequency=99; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
    /// Samples per second and CPU, up to 1000 [19]
    #[arg(short = 'F', long, value_name = "HZ")]
    pub frequency: Option<String>,
    /// Memory limit for the daemon, its helper processes and its BPF maps [256MB]
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
    /// Check the configuration as the daemon reads it, and the paths in it; list the problems
    Check(SettingsArgs),
    /// Print every value, and where it comes from (secrets as ***)
    Show(SettingsArgs),
    /// Print a commented configuration with all defaults
    Example,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The daemon's unix socket [metrics.socket of its configuration]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The daemon's configuration [/etc/strata/strata.toml, if it is there]
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    pub config: Option<PathBuf>,
    /// List the sampled processes, 500 at most: the service and labels of each, and where they come from
    #[arg(long)]
    pub services: bool,
    /// Only check that the daemon is alive, as /healthz does: for container probes
    #[arg(long, conflicts_with_all = ["services", "json"])]
    pub alive: bool,
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
