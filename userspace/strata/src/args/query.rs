//! `strata query` and `diff`.

use std::path::PathBuf;

use clap::Args;
use strata_query::by::By;
use strata_query::when::{When, parse_span};

use super::choices::{FormatArg, FramesArg};
use super::values::{parse_kind_patterns, parse_label, type_help};

const QUERY_EXAMPLES: &str = "\
Examples:
  strata query                                       the store's contents: services, types, times, sizes
  strata query --by service                          which service used most CPU in the last hour
  strata query --by pid --from yesterday --to today  which processes did, yesterday
  strata query --service shop                        the top functions of the last hour
  strata query --service shop --callers malloc       who calls malloc, as a tree
  strata query --service shop -o flame.svg           a flame graph of it
  strata query --service shop --from -1d --to -23h -o shop.pb.gz
  strata query --service shop --from '2026-01-31 14:30' --to '2026-01-31 14:45'
  strata query --service 'shop-*' --label env=prod   several services, some of their profiles
  strata query --service shop --type exceptions --top 50
  strata query --service '*' --from -1d -o host.svg  everything of a day in one picture

Times: `now`; `-30m`, `-1h30m`, `-2d`, `-1w` from now; `14:30`, `today`, `yesterday`, `yesterday 14:30`;
`2026-01-31`, `2026-01-31 14:30[:15]` in local time; RFC 3339 (`2026-01-31T14:30:00Z`). A profile belongs to the
time it began.
Outputs by extension, as of `strata record`: .pb.gz .svg .folded .perf .json.gz. The last two show
samples in time, if the daemon keeps that (`timestamps` in its configuration). Of several kinds
(--type cpu,wall) each has its own table, and its own file (flame.cpu.svg) where a file shows one.
Two queries compared: `strata diff`.";

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
    /// The format of outputs whose extension is unknown
    #[arg(long, value_name = "FORMAT", help_heading = "What to write")]
    pub format: Option<FormatArg>,
    /// Keep the labels of single processes, threads and requests (slower: reads every profile)
    #[arg(long, help_heading = "What to write")]
    pub all_labels: bool,
    /// Draw processes of one name apart in a flame graph, each with its pid
    #[arg(long, help_heading = "What to write")]
    pub split_by_pid: bool,
    /// Show what used how much, the largest first: service, pid, thread, container, label (each set
    /// of labels) or label:NAME (each value of one, which may be a label of samples such as state)
    #[arg(long, value_name = "WHAT", value_parser = By::parse, help_heading = "What to show")]
    pub by: Option<By>,
    /// Show which functions call this one, as a tree: a name, a pattern (`*`), or a part of a name
    #[arg(long, value_name = "FUNCTION", conflicts_with = "by", help_heading = "What to show")]
    pub callers: Option<String>,
    /// Show the calls as a tree, from processes down
    #[arg(long, conflicts_with_all = ["by", "callers"], help_heading = "What to show")]
    pub tree: bool,
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
The default baseline is the window just before; with --baseline-service or --baseline-label it is
the same window. Times are written as for `strata query`.";

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
#[command(next_help_heading = "Which profiles")]
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
    /// Start of the window [an hour before --to; of the list of the store: the oldest profile]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub from: Option<When>,
    /// End of the window [now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = When::parse)]
    pub to: Option<When>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to compare with (the window just before)")]
pub struct BaselineArgs {
    /// The same window, this much earlier: 1h, 1d, 1w
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
#[command(next_help_heading = "What to show")]
pub struct AnswerArgs {
    /// Which of the profiles' values to show, such as samples or cpu [the main one of the type]
    #[arg(long, value_name = "NAME")]
    pub value: Option<String>,
    /// Which frames a flame graph shows
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub frames: FramesArg,
    /// Lines of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
    /// The store's directory [store.path of the daemon's configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// The daemon's configuration [/etc/strata/strata.toml, if it is there]
    #[arg(short, long, value_name = "FILE", conflicts_with = "store")]
    pub config: Option<PathBuf>,
}
