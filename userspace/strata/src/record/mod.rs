//! `strata record`: one recording, from the command line to the files.
//!
//! - [`session`]: the recording itself: the loop over records, signals and the command.
//! - [`files`]: the output files, and their names.
//! - [`launch`]: the command after `--`, run as the right user.
//! - [`upload`]: sends the profile to a server.
//! - [`live`]: progress. [`report`]: what is printed at the end; [`quality`]: where stacks are
//!   incomplete. [`opening`]: opens the flame graph in a browser.

mod files;
pub mod launch;
pub mod live;
mod opening;
mod pauses;
mod quality;
pub mod report;
pub mod session;
pub mod upload;

use std::io::{IsTerminal, Write, stderr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use strata_kinds::{Frequencies, Kind, Kinds};
use strata_profile::{Format, Profile, WriteOptions};

use crate::kind_files::OutputFile;
use crate::printing::message;
use crate::user::User;
use crate::view::Shown;
use crate::{output, printing, second_signal};
use report::{Report, Written};
use session::{from_terminal, is_ignored};
use strata_agent::managed;
use strata_agent::selection::Wanted;
use strata_symbolize::build::Circumstances;
use strata_symbolize::resolve;
use upload::Upload;

/// A recording as it was asked for.
#[derive(Debug)]
pub struct Plan {
    pub wanted: Wanted,
    pub command: Vec<std::ffi::OsString>,
    pub user: Option<String>,
    pub duration: Option<Duration>,
    pub frequency: u32,
    pub kinds: Kinds,
    pub max_frames: u32,
    pub timeline: bool,
    pub table_memory: u64,
    /// What strata may do to .NET processes.
    pub managed: managed::Policy,
    /// What a flame graph shows.
    pub shown: Shown,
    /// Processes of one name stand apart in a flame graph.
    pub split_by_pid: bool,
    /// The flame graph is opened in a browser.
    pub open: bool,
    pub signatures: bool,
    /// Exceptions have their messages.
    pub exception_messages: bool,
    pub outputs: Vec<(PathBuf, Format)>,
    /// The outputs' names were not chosen: another file of such a name is kept.
    pub default_names: bool,
    pub upload: Option<upload::Wanted>,
    pub json: bool,
    pub quiet: bool,
    pub verbose: u8,
}

impl Plan {
    fn frequencies(&self) -> Frequencies {
        Frequencies::of_recording().with(Kind::Cpu, self.frequency)
    }

    /// What was recorded, for the top of a picture: `CPU time of nginx, 97 Hz`.
    fn title(&self, kinds: Kinds) -> String {
        let mut of: Vec<String> = Vec::new();
        if !self.command.is_empty() {
            let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            of.push(words.join(" "));
        }
        let listed = |one: &str, many: &str, list: Vec<String>| match list.len() {
            0 => None,
            1 => Some(format!("{one} {}", list.concat())),
            _ => Some(format!("{many} {}", list.join(", "))),
        };
        let pids = self.wanted.pids.iter().map(u32::to_string).collect();
        of.extend(listed("process", "processes", pids));
        of.extend(self.wanted.comms.iter().cloned());
        of.extend(listed("container", "containers", self.wanted.groups.clone()));
        if of.is_empty() {
            of.push("the whole host".to_owned());
        } else if !self.wanted.follow_children {
            of.push("without children".to_owned());
        }
        let titles: Vec<_> = kinds.iter().map(|kind| kind.info().title).collect();
        // Only a CPU is looked at at even intervals.
        let rate = match kinds.contains(Kind::Cpu) {
            true => format!(", {} Hz", self.frequency),
            false => String::new(),
        };
        format!("{} of {}{rate}", titles.join(", "), of.join(", "))
    }
}

/// Rates that other timers of a host tick at: sampling in step with one sees always or never
/// what it drives.
pub fn is_round_rate(frequency: u32) -> bool {
    const TIMERS: [u32; 4] = [100, 250, 300, 1000];
    frequency > 1
        && TIMERS.iter().any(|timer| timer % frequency == 0 || frequency.is_multiple_of(*timer))
}

/// Records, names, writes and reports. The result is the exit status.
pub fn run(plan: &Plan) -> Result<i32> {
    let upload = plan.upload.clone().map(Upload::prepare).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the event loop cannot be started")?;
    let mut recorded = runtime.block_on(session::record(plan))?;

    if recorded.engine.selection.matches_nothing() && recorded.engine.aggregate.samples() == 0 {
        bail!(
            "nothing was recorded, and no file is written: {} (`ps -e -o pid,comm,cgroup` lists what \
             runs)",
            report::unmatched(&recorded.engine.selection)
        );
    }
    let circumstances = Circumstances {
        started: recorded.started,
        length: recorded.length,
        frequencies: plan.frequencies(),
        kinds: plan.kinds,
        host: strata_agent::host::name().to_owned(),
    };
    let mut progress = Progress::new(plan.quiet || plan.json);
    let (profile, shortfalls) =
        resolve::profile(&mut recorded.engine, &circumstances, plan.signatures, |done, of| {
            progress.show(done, of);
        })
        .context("threads for symbols cannot be started")?;
    progress.clear();

    let profile = Arc::new(profile);
    let uploaded = upload.map(|upload| upload.send(&profile));
    let (uploaded, not_uploaded) = match uploaded.transpose() {
        Ok(uploaded) => (uploaded, None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let (written, mut failures) = write_all(plan, &profile, recorded.user.as_ref(), not_uploaded);
    let command_exit = recorded.command_status.map(exit_code);
    let report = Report {
        engine: &recorded.engine,
        profile: &profile,
        shortfalls: &shortfalls,
        length: recorded.length,
        frequency: plan.frequency,
        kinds: plan.kinds,
        written: &written,
        failures: &failures,
        command_exit,
    };
    if plan.json {
        let summary = report.json();
        if let Err(error) = printing::json(&summary) {
            failures.push(format!("{error:#}"));
        }
    } else if !plan.quiet {
        printing::message_text(&report.text(plan.verbose > 0)?);
        if let Some(uploaded) = uploaded {
            message!("{uploaded}");
        }
    }
    for failure in &failures {
        message!("strata: {failure}");
    }
    if plan.open {
        let picture = written.iter().find(|written| written.format == Format::Svg);
        let opened = picture.map(|picture| opening::open(&picture.path, recorded.user.as_ref()));
        if let Some(Err(error)) = opened {
            message!("strata: {error:#}");
        }
    }
    let command_exit = match recorded.still_running {
        Some(pid) => Some(wait_for_command(pid, plan.quiet)),
        None => command_exit,
    };
    Ok(match (command_exit, failures.is_empty()) {
        (Some(code), true) => code,
        (None, true) => 0,
        (_, false) => 1,
    })
}

/// A command that outlives its recording is left to end by itself; its exit status is still ours.
fn wait_for_command(pid: u32, quiet: bool) -> i32 {
    if !quiet {
        message!("the recording has ended; waiting for the command (Ctrl-C to stop)");
    }
    let mut status = 0;
    let mut signals = vec![libc::SIGINT, libc::SIGTERM, libc::SIGQUIT];
    // `nohup` ignores it for the whole recording.
    if !is_ignored(libc::SIGHUP) {
        signals.push(libc::SIGHUP);
    }
    // SAFETY: plain numbers and a valid place; restores what Ctrl-C does by default.
    unsafe {
        for signal in signals {
            libc::signal(signal, libc::SIG_DFL);
        }
        // While it is recorded, the command gets what strata is sent.
        if let Some(signal) = second_signal::first().filter(|signal| !from_terminal(*signal)) {
            libc::kill(pid as i32, signal);
        }
        while libc::waitpid(pid as i32, &raw mut status, 0) < 0 {
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return 1;
            }
        }
    }
    exit_code(ExitStatus::from_raw(status))
}

/// As a shell reports it: a signal is 128 and its number.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Writes every output. One that fails does not keep the others from being written, and if all
/// fail, and the upload if there was one, the profile goes where it can be kept.
fn write_all(
    plan: &Plan,
    profile: &Profile,
    user: Option<&User>,
    not_uploaded: Option<String>,
) -> (Vec<Written>, Vec<String>) {
    let mut written = Vec::new();
    let mut failures: Vec<String> = not_uploaded.into_iter().collect();
    // That they are distinct was checked before the recording.
    let mut files = plan.files().unwrap_or_default();
    if plan.default_names {
        files = files::free_names(files, user);
    }
    for file in &files {
        let path = &file.path;
        match write_one(plan, file, profile, user) {
            Ok(done) => written.push(done),
            Err(error) => failures.push(format!("{error:#}")),
        }
        if plan.default_names {
            output::release(path, user);
        }
    }
    if written.is_empty() && !failures.is_empty() {
        let name = format!("strata-rescued-{}.pb.gz", std::process::id());
        for folder in ["/var/tmp", "/tmp", "/dev/shm"] {
            let path = Path::new(folder).join(&name);
            let file = OutputFile { path: path.clone(), format: Format::Pprof, kind: None };
            // A place that the user did not choose is read by the user alone.
            if !output::claim_private(&path, user).is_ok_and(|claimed| claimed) {
                continue;
            }
            if let Ok(done) = write_one(plan, &file, profile, user) {
                failures.push(format!("the profile was kept in `{}`", path.display()));
                written.push(done);
                break;
            }
            output::release(&path, user);
        }
    }
    (written, failures)
}

fn write_one(
    plan: &Plan,
    file: &OutputFile,
    profile: &Profile,
    user: Option<&User>,
) -> Result<Written> {
    let OutputFile { path, format, kind } = file;
    let options = WriteOptions {
        title: plan.title(kind.map_or(plan.kinds, |kind| Kinds::NONE.with(kind, true))),
        view: plan.shown.view(),
        split_processes: plan.split_by_pid,
        ..WriteOptions::for_path(path)
    };
    let bytes = file.write(profile, options, user)?;
    Ok(Written { path: path.to_owned(), bytes, format: *format, kind: *kind })
}

/// Progress of symbolization, when it takes longer than a second.
struct Progress {
    started: Instant,
    shown: bool,
    quiet: bool,
}

impl Progress {
    fn new(quiet: bool) -> Self {
        Self { started: Instant::now(), shown: false, quiet: quiet || !stderr().is_terminal() }
    }

    fn show(&mut self, done: usize, of: usize) {
        if !self.quiet && self.started.elapsed() > Duration::from_millis(700) {
            let _ = write!(stderr(), "\rsymbolizing: {done} of {of} files\x1b[K");
            self.shown = true;
        }
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
