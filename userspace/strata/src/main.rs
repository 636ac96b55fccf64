//! strata: a host-wide profiler. See `ARCHITECTURE.md` for the map of the code.

// They panic when standard error is full or closed: `message!` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod args;
mod capabilities;
mod convert;
mod daemon;
mod doctor;
mod documents;
mod environment;
mod kind_files;
mod losses;
mod output;
mod printing;
mod priority;
mod process_files;
mod processes;
mod ps;
mod query;
mod record;
mod second_signal;
mod shares;
mod stacks;
mod status;
mod terminal;
mod user;
mod view;
mod waits;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use args::{Command, ConfigCommand, DiffArgs, QueryArgs, RecordArgs, WhoseArgs};
use clap::Parser;
use daemon::settings::store_directory;
use printing::message;
use strata_agent::kernel::broker;
use strata_agent::kernel::loader::{Programs, Settings, ThreadsOf};
use strata_agent::kernel::thread_reader;
use strata_agent::selection::Wanted;
use strata_profile::Format;

/// strata's own helper processes are the same executable with one of these as its first argument.
fn helper(arguments: &[OsString]) -> Option<std::io::Result<()>> {
    let first = arguments.get(1)?.to_str()?;
    // A part of the recording, with its priority.
    if first == thread_reader::ARGUMENT {
        return Some(thread_reader::process::run());
    }
    if first.starts_with("internal-") {
        // Parsing can wait; only the recording itself goes before others.
        priority::set_priority(0);
    }
    match first {
        "internal-opener" => {
            let lane = arguments.get(2)?.to_str()?;
            let lane = strata_sandbox::Lane::from_argument(lane.as_bytes())?;
            Some(strata_sandbox::run_opener(lane))
        }
        // For `cargo xtask dist`.
        "internal-documents" => {
            let written = documents::write(Path::new(arguments.get(2)?));
            if let Err(error) = &written {
                message!("strata: completions and manual pages cannot be written: {error}");
            }
            Some(written)
        }
        broker::ARGUMENT => Some(broker::process::run()),
        "internal-worker" => Some(strata_sandbox::run_worker(&strata_sandbox::StandardJobs)),
        _ => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = helper(&arguments) {
        return if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let cli = args::Cli::parse();
    let result = match cli.command {
        Command::Record(args) => record(*args),
        Command::Daemon(args) => daemon::run(args.settings.into()),
        Command::Status(args) => daemon::settings::status_socket(args.socket, args.config)
            .and_then(|socket| match args.alive {
                true => status::alive(&socket),
                false => status::run(&socket, args.json, args.services),
            }),
        Command::Config(ConfigCommand::Check(args)) => daemon::check(&args.into()),
        Command::Config(ConfigCommand::Show(args)) => daemon::show(&args.into()),
        Command::Config(ConfigCommand::Example) => printing::print(strata_config::EXAMPLE),
        Command::Convert(args) => convert::run(&convert::Question {
            input: args.input,
            output: args.output,
            format: args.format.map(Into::into),
            value: args.value,
            shown: args.frames.into(),
        }),
        Command::Query(args) => ask(*args),
        Command::Diff(args) => compare(*args),
        Command::Stacks(args) => stacks::run(&stacks::Question {
            which: stacks::Which {
                pids: args.process.into_iter().chain(args.pid).collect(),
                comms: args.comm,
                groups: args.container,
                all: args.all,
            },
            managed: args.clr.into(),
            kernel: args.kernel,
            json: args.json,
        }),
        Command::Env(args) => environment::print(&args.directory, args.form.into(), args.musl),
        Command::Ps(args) => ps::run(args.json),
        Command::Doctor(args) => {
            doctor::run(doctor::Question { pid: args.pid, json: args.json }, &probe)
        }
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            match doctor::rerun_as_root(&error, &arguments) {
                Some(command) => message!(
                    "strata: this needs root, or the capabilities that `strata doctor` names; run: \
                     {command}"
                ),
                None => {
                    message!("strata: {error:#}");
                    if error.is::<strata_agent::engine::EngineError>() {
                        explain();
                    }
                }
            }
            ExitCode::FAILURE
        }
    }
}

fn record(args: RecordArgs) -> Result<i32> {
    start_log(args.output.verbose);
    let format = args.output.format.map(Into::into);
    let mut outputs = with_formats(args.output.output, format)?;
    let upload = upload_of(args.upload, &args.command);
    // Who sends it somewhere has it there.
    let default_names = outputs.is_empty() && upload.is_none();
    if default_names {
        let base = default_name();
        let formats = match format {
            Some(format) => vec![format],
            None => vec![Format::Pprof, Format::Svg],
        };
        for format in formats {
            outputs.push((format!("{base}.{}", format.extension()).into(), format));
        }
    }
    let is_picture =
        |(path, format): &(PathBuf, Format)| *format == Format::Svg && !is_standard_output(path);
    if args.output.open && !outputs.iter().any(is_picture) {
        bail!("--open shows a flame graph: add an output file that ends in .svg");
    }
    one_standard_output(outputs.iter().map(|(path, _)| path.as_path()), args.output.json)?;
    let needs_times = |format: &Format| matches!(format, Format::Firefox | Format::PerfScript);
    let timeline = args.how.timeline || outputs.iter().any(|(_, format)| needs_times(format));
    if record::is_round_rate(args.how.frequency) && !args.output.quiet {
        message!(
            "strata: {} Hz is in step with common timers, which may be sampled always or never; a \
             prime such as 97 or 997 is safer",
            args.how.frequency
        );
    }
    let plan = record::Plan {
        wanted: Wanted {
            pids: args.what.pid,
            comms: args.what.comm,
            groups: args.what.container,
            follow_children: !args.what.no_children,
            only_roots: false,
        },
        command: args.command,
        user: args.what.user,
        duration: args.how.duration,
        frequency: args.how.frequency,
        kinds: args.how.events,
        max_frames: args.how.max_frames,
        timeline,
        managed: args.how.clr.into(),
        shown: args.output.frames.into(),
        split_by_pid: args.output.split_by_pid,
        open: args.output.open,
        signatures: args.output.signatures,
        exception_messages: !args.how.no_exception_messages,
        table_memory: u64::from(args.how.table_memory) << 20,
        outputs,
        default_names,
        upload,
        json: args.output.json,
        quiet: args.output.quiet,
        verbose: args.output.verbose,
    };
    record::run(&plan)
}

/// Each output with the format that its name asks for, else `format`.
fn with_formats(paths: Vec<PathBuf>, format: Option<Format>) -> Result<Vec<(PathBuf, Format)>> {
    let chosen = |path: PathBuf| {
        let chosen = Format::from_path(&path).or(format).with_context(|| {
            format!(
                "`{}` has no known extension: use .pb.gz, .svg, .folded, .perf or .json.gz, or \
                 set --format",
                path.display()
            )
        })?;
        Ok((path, chosen))
    };
    paths.into_iter().map(chosen).collect()
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses a profile and a summary in one stream: neither could be read back.
fn one_standard_output<'a>(
    mut outputs: impl Iterator<Item = &'a Path>,
    has_json: bool,
) -> Result<()> {
    if has_json && outputs.any(is_standard_output) {
        bail!(
            "`--output -` and `--json` both write to the standard output: name a file with --output"
        );
    }
    Ok(())
}

fn ask(args: QueryArgs) -> Result<i32> {
    one_standard_output(args.output.iter().map(PathBuf::as_path), args.answer.json)?;
    query::run(query::Question {
        store: store_directory(args.answer.store, args.answer.config)?,
        whose: whose(args.whose),
        from: args.window.from,
        to: args.window.to,
        value: args.answer.value,
        outputs: with_formats(args.output, args.format.map(Into::into))?,
        shown: args.answer.frames.into(),
        all_labels: args.all_labels,
        split_by_pid: args.split_by_pid,
        view: match (args.by, args.callers, args.tree) {
            (Some(by), _, _) => query::View::By(by),
            (None, Some(function), _) => query::View::Callers(function),
            (None, None, true) => query::View::Tree,
            (None, None, false) => query::View::Functions,
        },
        top: args.answer.top,
        json: args.answer.json,
    })
}

fn compare(args: DiffArgs) -> Result<i32> {
    if args.whose.service.is_none() {
        bail!("say which service to compare: --service NAME (`strata query` lists them)");
    }
    one_standard_output(args.output.iter().map(PathBuf::as_path), args.answer.json)?;
    let is_picture = |(_, format): &(PathBuf, Format)| *format == Format::Svg;
    let outputs = with_formats(args.output, Some(Format::Svg))?;
    if let Some((path, _)) = outputs.iter().find(|output| !is_picture(output)) {
        bail!("`{}`: a comparison is written as .svg, or with --json", path.display());
    }
    query::diff::run(query::diff::Question {
        store: store_directory(args.answer.store, args.answer.config)?,
        whose: whose(args.whose),
        from: args.window.from,
        to: args.window.to,
        baseline: strata_query::diff::Baseline {
            service: args.baseline.baseline_service,
            labels: args.baseline.baseline_label,
            from: args.baseline.baseline_from,
            to: args.baseline.baseline_to,
            earlier: args.baseline.earlier,
        },
        value: args.answer.value,
        outputs: outputs.into_iter().map(|(path, _)| path).collect(),
        shown: args.answer.frames.into(),
        top: args.answer.top,
        json: args.answer.json,
    })
}

fn whose(args: WhoseArgs) -> strata_query::Whose {
    strata_query::Whose {
        service: args.service,
        kind: args.kind,
        labels: args.label,
        pid: args.pid,
        runtime_id: args.runtime_id,
    }
}

fn upload_of(args: args::UploadArgs, command: &[OsString]) -> Option<record::upload::Wanted> {
    let named = || {
        let program = Path::new(command.first()?).file_name()?;
        Some(program.to_string_lossy().into_owned())
    };
    Some(record::upload::Wanted {
        url: args.upload?,
        kind: args.upload_as.map(args::ServerArg::name),
        service: args.service.or_else(named).unwrap_or_else(|| "strata".to_owned()),
        env: args.env.unwrap_or_default(),
        version: args.service_version.unwrap_or_default(),
    })
}

/// Loads the programs as a recording would, for `doctor`.
fn probe() -> Result<doctor::Loaded, String> {
    let settings = Settings {
        max_frames: 1024,
        ring_bytes: 1 << 20,
        frequency: 97,
        threads_of: ThreadsOf::None,
        off_cpu: None,
        wall: false,
        clr_events: false,
    };
    let loaded = |programs: &Programs| doctor::Loaded {
        found: format!("loaded for {} CPUs", programs.cpus().len()),
        names_kernel: programs.kernel_names().is_some(),
        ..doctor::Loaded::default()
    };
    let all = Settings { off_cpu: Some(1), wall: true, clr_events: true, ..settings };
    if let Ok(programs) = Programs::load(all) {
        return Ok(loaded(&programs));
    }
    let programs = Programs::load(settings).map_err(|error| error.to_string())?;
    let found = loaded(&programs);
    drop(programs);
    // A kernel that takes the others may refuse these: recordings of CPU time work all the same.
    let further = [
        (doctor::Part::OffCpu, Settings { off_cpu: Some(1), ..settings }),
        (doctor::Part::Wall, Settings { wall: true, ..settings }),
        (doctor::Part::ClrEvents, Settings { clr_events: true, ..settings }),
    ];
    let refused = further.into_iter().filter_map(|(part, settings)| {
        let error = Programs::load(settings).err()?;
        Some((part, format!("{:#}", anyhow::Error::from(error))))
    });
    Ok(doctor::Loaded { refused: refused.collect(), ..found })
}

/// What keeps a recording from starting, and what to do about it.
fn explain() {
    let missing = doctor::brief();
    if !missing.is_empty() {
        let colour = std::env::var_os("NO_COLOR").is_none() && std::io::stderr().is_terminal();
        printing::message_text(&format!("\n{}", doctor::to_text(&missing, colour)));
    }
}

/// `strata-20260131-235959`, in local time.
fn default_name() -> String {
    // SAFETY: a zeroed `tm` is valid; both calls only write to what they are given.
    let now = unsafe {
        let mut now: libc::tm = std::mem::zeroed();
        let time = libc::time(std::ptr::null_mut());
        libc::localtime_r(&raw const time, &raw mut now);
        now
    };
    format!(
        "strata-{:04}{:02}{:02}-{:02}{:02}{:02}",
        now.tm_year + 1900,
        now.tm_mon + 1,
        now.tm_mday,
        now.tm_hour,
        now.tm_min,
        now.tm_sec
    )
}

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_writer(std::io::stderr)
        // A line that cannot be written is dropped: the subscriber would use `eprintln!` for it.
        .log_internal_errors(false)
        .init();
}
