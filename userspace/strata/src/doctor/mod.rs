//! `strata doctor`: what this host offers a recording, what is lost, and what to do about it.
//!
//! Code map:
//! - [`line`]: one finding: ok, degraded (and what is lost), missing (and what fixes it)
//! - [`environment`]: who runs this and in what (root, container), hence which command fixes it
//! - [`host`], [`permissions`], [`perf`], [`symbols`], [`sandbox`]: the checks, by group
//! - [`process`]: `--pid`: what is known about one process
//! - [`parse`]: the kernel's texts, as pure functions; [`text`]: hostile names made harmless
//! - [`print`]: for people and for programs
//!
//! Checks try the real thing (create a map, open an event, open and parse a file) wherever that
//! is cheap: a setting only explains why it failed.
//!
//! Invariants: nothing on the host is changed. Every line that is not ok says what to do. Files of
//! a process are opened and parsed by the file service alone, never here.

mod environment;
mod host;
mod line;
mod parse;
mod perf;
mod permissions;
mod print;
mod process;
mod sandbox;
mod symbols;
mod text;

use std::io::{IsTerminal, Write};
use std::path::Path;

pub use line::{Group, Line, State};

use environment::Environment;

/// Exit status: recording works.
pub const WORKS: i32 = 0;
/// Exit status: something is missing, recording cannot work.
pub const CANNOT_WORK: i32 = 1;

/// Tells whether this host can be profiled and what would be lost, or (--pid) what is known about
/// one process.
///
/// Every line is ok, degraded (it works, and this is lost) or missing (recording cannot work), with
/// the command that fixes it below. Exit status: 0 recording works, also where lines are degraded;
/// 1 something is missing, or there is no process with that pid; 2 wrong usage.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DoctorArgs {
    /// Explain one process: its files, unwind rules, symbols, JIT code, and what is not known
    #[arg(long, short, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Only lines that are not ok
    #[arg(long, hide = true)]
    pub brief: bool,
}

/// What the rest of strata knows and the checks need.
pub struct Context<'a> {
    /// Loads the BPF programs and unloads them again; says what was loaded, or what failed.
    pub load_programs: &'a dyn Fn() -> Result<String, String>,
    /// Where unwind tables are kept between runs.
    pub cache: Option<&'a Path>,
}

/// Runs `strata doctor`; the exit status.
pub fn run(args: &DoctorArgs, context: &Context<'_>) -> anyhow::Result<i32> {
    let output = std::io::stdout();
    let colour = output.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if let Some(pid) = args.pid {
        let Some(report) = process::examine(pid) else {
            anyhow::bail!("there is no process with pid {pid} (pids are those of the host)");
        };
        let text = if args.json { print::json_text(&report.to_json()) } else { report.to_text(colour) };
        write(output, &text)?;
        return Ok(WORKS);
    }
    let lines = all_lines(context);
    let text = if args.json {
        print::json_text(&print::lines_as_json(&lines))
    } else {
        let shown: Vec<&Line> =
            lines.iter().filter(|line| !args.brief || line.state() != State::Ok).collect();
        print::lines_as_text(&shown, colour) + &print::verdict(&lines, colour)
    };
    write(output, &text)?;
    let missing = lines.iter().any(|line| line.state() == State::Missing);
    Ok(if missing { CANNOT_WORK } else { WORKS })
}

/// What is missing for a recording; for `record`, when it could not start.
pub fn brief() -> Vec<Line> {
    let environment = Environment::read();
    let mut lines = host::lines(&environment);
    lines.extend(permissions::lines(&environment));
    lines.extend(perf::lines(&environment));
    lines.retain(|line| line.state() == State::Missing);
    lines
}

/// Lines as they are printed, with their fixes.
pub fn to_text(lines: &[Line], colour: bool) -> String {
    print::lines_as_text(&lines.iter().collect::<Vec<_>>(), colour)
}

fn all_lines(context: &Context<'_>) -> Vec<Line> {
    let environment = Environment::read();
    let mut lines = host::lines(&environment);
    lines.extend(permissions::lines(&environment));
    lines.extend(perf::lines(&environment));
    let refused = lines.iter().any(|line| line.state() == State::Missing);
    lines.push(host::programs(context.load_programs, refused));
    lines.extend(symbols::lines(&environment));
    lines.extend(sandbox::lines(&environment, context.cache));
    lines
}

/// A reader that went away (`doctor | head`) is not an error.
fn write(mut to: impl Write, text: &str) -> std::io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
