//! `strata record`, run as a user runs it, and its results.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::pprof::{self, Profile};
use crate::running::{Ended, Running, cpu_seconds_of, wait_until};
use crate::stacks::Stacks;
use crate::summary::Summary;
use crate::{machine, places};

/// The time limit of strata beyond the recording itself: against hanging tests, not a guarantee.
/// Two cores that are busy with the targets symbolise slowly.
const GRACE: Duration = Duration::from_secs(90);

/// How long targets may take to use their CPU time on a machine that does much else.
const LONGEST_WAIT: Duration = Duration::from_secs(180);

/// A recording to be made.
pub struct Record {
    arguments: Vec<OsString>,
    command: Vec<OsString>,
    outputs: Vec<&'static str>,
    seconds: f64,
    json: bool,
    without_capability: Option<&'static str>,
    by_cpu_time: bool,
    folder: TempDir,
}

/// A recording in progress.
pub struct Recording {
    running: Running,
    seconds: f64,
    folder: TempDir,
}

/// A finished recording.
pub struct Recorded {
    pub ended: Ended,
    folder: TempDir,
}

/// A recording of the whole host, with the `--json` summary, to `profile.pb.gz`.
pub fn record() -> Result<Record> {
    let folder = tempfile::Builder::new().prefix("strata-test-").tempdir()?;
    Ok(Record {
        arguments: vec![],
        command: vec![],
        outputs: vec!["profile.pb.gz"],
        seconds: 60.0,
        json: true,
        without_capability: None,
        by_cpu_time: false,
        folder,
    })
}

impl Record {
    /// Ends after this many seconds.
    pub fn seconds(mut self, seconds: f64) -> Self {
        self.seconds = seconds;
        self.option("--duration", format!("{seconds}"))
    }

    pub fn frequency(self, hertz: u32) -> Self {
        self.option("--frequency", hertz.to_string())
    }

    pub fn pid(self, pid: i32) -> Self {
        self.option("--pid", pid.to_string())
    }

    /// An option with a value.
    pub fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.arguments.extend([name.into(), value.into()]);
        self
    }

    /// An option without one.
    pub fn flag(mut self, name: &str) -> Self {
        self.arguments.push(name.into());
        self
    }

    /// One more output of this file name.
    pub fn output(mut self, name: &'static str) -> Self {
        self.outputs.push(name);
        self
    }

    /// Without `--json`.
    pub fn as_text(mut self) -> Self {
        self.json = false;
        self
    }

    /// Without a capability, as a container or a unit may be given them.
    pub fn without_capability(mut self, name: &'static str) -> Self {
        self.without_capability = Some(name);
        self
    }

    /// The program to start and to profile until it ends.
    pub fn command(mut self, program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        self.command = vec![program.as_ref().as_os_str().to_owned()];
        self.command.extend(arguments.iter().map(OsString::from));
        self
    }

    /// The seconds that the command's targets are given are CPU time: they have as many samples however
    /// busy the machine is.
    pub fn by_cpu_time(mut self) -> Self {
        self.by_cpu_time = true;
        self
    }

    /// A shell command line to start and to profile until it ends.
    pub fn shell(self, line: &str) -> Self {
        self.command("/bin/sh", &["-c", line])
    }

    /// The folder its outputs go to.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The prepared command, for tests that start it in an unusual way.
    pub fn to_command(&self) -> Result<Command> {
        let strata = places::strata_binary()?;
        let mut command = match self.without_capability {
            None => Command::new(strata),
            Some(name) => {
                let mut command = Command::new(places::required("setpriv", "util-linux")?);
                command.args([format!("--bounding-set=-{name}"), format!("--inh-caps=-{name}")]);
                command.arg(strata);
                command
            }
        };
        command.arg("record").args(&self.arguments);
        for name in &self.outputs {
            command.arg("-o").arg(self.folder.path().join(name));
        }
        if self.json {
            command.arg("--json");
        }
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        if self.by_cpu_time {
            command.env("STRATA_TARGET_CLOCK", "cpu");
        }
        Ok(command)
    }

    /// Starts it, and returns when it has opened its sampling events.
    pub fn start(self) -> Result<Recording> {
        let command = self.to_command()?;
        let running = Running::from_command(command)?;
        let mut recording = Recording { running, seconds: self.seconds, folder: self.folder };
        recording.wait_for_sampling()?;
        Ok(recording)
    }

    /// Runs it to its end, which must be a success.
    pub fn run(self) -> Result<Recorded> {
        let (command, seconds) = (self.to_command()?, self.seconds);
        let recording =
            Recording { running: Running::from_command(command)?, seconds, folder: self.folder };
        recording.finish()
    }
}

impl Recording {
    /// Ends it, as Ctrl-C does, once each of these processes has used so many CPU seconds: enough
    /// samples, however busy the machine is. It ends by itself where those that it selects have.
    pub fn finish_when_used(mut self, pids: &[i32], seconds: f64) -> Result<Recorded> {
        let used = |pid: i32| cpu_seconds_of(pid).unwrap_or(f64::INFINITY);
        let wanted: Vec<(i32, f64)> = pids.iter().map(|pid| (*pid, used(*pid) + seconds)).collect();
        wait_until("the targets have used their CPU time", LONGEST_WAIT, || {
            wanted.iter().all(|(pid, until)| used(*pid) >= *until) || !self.running.is_alive()
        })?;
        if self.running.is_alive() {
            self.running.signal(Signal::INT)?;
        }
        self.finish()
    }

    /// Waits for the end, which must be a success.
    pub fn finish(self) -> Result<Recorded> {
        let recorded = self.end()?;
        if !recorded.ended.status.success() {
            let Ended { status, stdout, stderr } = &recorded.ended;
            bail!("strata record: {status}\n{stdout}\n{stderr}");
        }
        Ok(recorded)
    }

    /// Waits for the end, whatever it is.
    pub fn end(self) -> Result<Recorded> {
        let limit = Duration::from_secs_f64(self.seconds) + GRACE;
        let ended = self.running.wait(limit)?;
        Ok(Recorded { ended, folder: self.folder })
    }

    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// strata samples when it holds one perf event per CPU and a BPF link or program; what is left
    /// to do after that is switching them on.
    fn wait_for_sampling(&mut self) -> Result<()> {
        let (pid, cpus) = (self.running.pid(), machine::cpus());
        let mut ended = false;
        wait_until("strata samples", GRACE, || {
            ended = !self.running.is_alive();
            ended || perf_events_of(pid) >= cpus
        })?;
        if !ended {
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }
}

fn perf_events_of(pid: i32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let links = entries.flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
    links.filter(|l| l.to_string_lossy().contains("[perf_event]")).count()
}

impl Recorded {
    /// The path of an output.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> Result<String> {
        let path = self.path(name);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    pub fn profile(&self) -> Result<Profile> {
        pprof::read(&self.path("profile.pb.gz"))
    }

    pub fn stacks(&self) -> Result<Stacks> {
        self.profile()?.stacks()
    }

    /// The `--json` summary.
    pub fn summary(&self) -> Result<Summary> {
        Summary::find(&self.ended.stdout).or_else(|_| Summary::find(&self.ended.stderr))
    }

    /// Prints the counted losses beside a test's figures.
    pub fn print_losses(&self) {
        match self.summary() {
            Ok(summary) => {
                println!("  losses: {:?}", summary.losses());
                // Why a .NET program has no names.
                let refused = summary.0.pointer("/dotnet/refused").and_then(|all| all.as_array());
                for process in refused.into_iter().flatten() {
                    println!("  no bridge: {process}");
                }
            }
            Err(error) => println!("  losses: {error}"),
        }
    }
}
