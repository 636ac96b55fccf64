//! A child process that cannot outlive its test: killed, with its process group, when dropped.
//!
//! Invariant: waiting is always bounded; a process that does not end in time is an error that names
//! it, and is killed.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A started process.
pub struct Running {
    name: String,
    child: Child,
    stdout: Option<Collected>,
    stderr: Option<Collected>,
    status: Option<ExitStatus>,
}

/// The output and status of an ended process.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    /// Starts a program in a process group of its own.
    pub fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::from_command(command)
    }

    /// Starts a prepared command in a process group of its own, with its output collected.
    pub fn from_command(mut command: Command) -> Result<Self> {
        command.process_group(0);
        Self::spawn(&mut command)
    }

    /// As [`Self::from_command`], in a session of its own, as a service manager does: where the
    /// scheduler groups processes by session (`kernel.sched_autogroup_enabled`), it then shares its
    /// part of the CPUs with no program of the test.
    pub fn as_service(mut command: Command) -> Result<Self> {
        // SAFETY: `setsid` is async-signal-safe, takes no argument and touches no memory.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into)) };
        Self::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        // Cargo's has strata's library in it, which a program would load instead of the one that
        // strata carries.
        if !command.get_envs().any(|(name, _)| name == "LD_LIBRARY_PATH") {
            command.env_remove("LD_LIBRARY_PATH");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawned(command).with_context(|| format!("starting {name}"))?;
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(Self { name, child, stdout, stderr, status: None })
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid()).context("no pid")?;
        kill_process(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Sends a signal to the whole group, as a terminal's Ctrl-C does.
    pub fn signal_group(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid()).context("no pid")?;
        kill_process_group(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Whether it has not ended yet.
    pub fn is_alive(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// Waits until it ends by itself, at most this long.
    pub fn wait(mut self, at_most: Duration) -> Result<Ended> {
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > at_most {
                self.kill();
                let stderr = self.stderr.take().map(Collected::finished).unwrap_or_default();
                bail!("{} did not end in {at_most:?}; it had printed:\n{stderr}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.status.context("a status after the end")?;
        // Its children may still hold the pipes.
        self.kill();
        let stdout = self.stdout.take().map(Collected::finished).unwrap_or_default();
        let stderr = self.stderr.take().map(Collected::finished).unwrap_or_default();
        Ok(Ended { status, stdout, stderr })
    }

    /// What it has written to its standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.as_ref().map(Collected::text).unwrap_or_default()
    }

    /// Waits until it has written this line to its standard output.
    pub fn wait_for_line(&mut self, line: &str, at_most: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let was_alive = self.is_alive();
            let printed = self.printed();
            if printed.lines().any(|l| l == line) {
                return Ok(());
            }
            if !was_alive || start.elapsed() > at_most {
                let stderr = self.stderr.as_ref().map(Collected::text).unwrap_or_default();
                bail!("{} did not say {line:?}, but:\n{printed}{stderr}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has written to its standard error.
    pub fn logged(&self) -> String {
        self.stderr.as_ref().map(Collected::text).unwrap_or_default()
    }

    /// Waits until there is this text in what it has written to its standard error.
    pub fn wait_for_log(&mut self, part: &str, at_most: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let was_alive = self.is_alive();
            let log = self.logged();
            if log.contains(part) {
                return Ok(());
            }
            if !was_alive || start.elapsed() > at_most {
                bail!("{} did not log {part:?}, but:\n{log}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has used so much CPU time in its life. A hundredth of a second and more is spent
    /// in its own code: it is executed and has loaded its libraries.
    pub fn wait_until_used(&self, seconds: f64) -> Result<()> {
        wait_until_used(self.pid(), seconds)
    }

    fn kill(&mut self) {
        if let Some(pid) = Pid::from_raw(self.pid()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ended {
    /// CPU seconds that targets of this name reported in their last line, added up.
    pub fn cpu_seconds(&self, name: &str) -> f64 {
        let wanted = format!("name={name}");
        let lines = self.stdout.lines().filter(|l| l.starts_with("cpu "));
        let of_name = lines.filter(|l| l.split(' ').any(|w| w == wanted));
        of_name
            .filter_map(|l| l.split(' ').find_map(|w| w.strip_prefix("seconds=")))
            .filter_map(|s| s.parse::<f64>().ok())
            .sum()
    }
}

/// Runs a prepared command to its end, as [`Command::output`] does, but not for ever.
pub fn run(command: &mut Command) -> Result<Ended> {
    command.process_group(0);
    Running::spawn(command)?.wait(LONGEST_RUN)
}

/// Ends a test that hangs: no command of a test takes as long on any machine.
const LONGEST_RUN: Duration = Duration::from_secs(300);

/// The files in /tmp that runtimes write about processes for profilers, and leave there; removed when dropped. A
/// later process of the same number would have their names.
pub struct PerfMaps(Vec<i32>);

impl PerfMaps {
    pub fn of(pids: impl IntoIterator<Item = i32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// Of a process and the children that it has now.
    pub fn of_family(pid: i32) -> Self {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
        Self::of(children.chain([pid]))
    }
}

impl Drop for PerfMaps {
    fn drop(&mut self) {
        for pid in &self.0 {
            for file in [
                format!("perf-{pid}.map"),
                format!("perfinfo-{pid}.map"),
                format!("jit-{pid}.dump"),
            ] {
                let _ = std::fs::remove_file(Path::new("/tmp").join(file));
            }
        }
    }
}

/// A pipe that is being read to its end.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn finished(self) -> String {
        let Self { bytes, reader } = self;
        let _ = reader.join();
        let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Starts it. Just made by this process, a program is busy while a child of another test, forked while
/// it was written, has not executed its own program yet.
fn spawned(command: &mut Command) -> std::io::Result<Child> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            spawned => return spawned,
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> Collected {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&bytes);
    let reader = std::thread::spawn(move || {
        let mut part = vec![0; 1 << 16];
        while let Ok(length @ 1..) = pipe.read(&mut part) {
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend(part.iter().take(length));
        }
    });
    Collected { bytes: collected, reader }
}

/// CPU seconds the kernel has counted for a process (all threads, dead ones too).
pub fn cpu_seconds_of(pid: i32) -> Result<f64> {
    // utime and stime are fields 14 and 15 (proc(5)); the two before ") " are cut off.
    ticks_of(pid, [11, 12])
}

/// The sum of two times in a process's `stat`, in seconds; fields are counted from its state on.
fn ticks_of(pid: i32, fields: [usize; 2]) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let all: Vec<&str> = text.rsplit_once(") ").context("a stat line")?.1.split(' ').collect();
    let ticks = |index: usize| all.get(index).and_then(|f| f.parse::<f64>().ok()).context("ticks");
    let [first, second] = fields;
    Ok((ticks(first)? + ticks(second)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// Waits until a process has used so much CPU time in its life, however busy the machine is.
pub fn wait_until_used(pid: i32, seconds: f64) -> Result<()> {
    let mut has_ended = false;
    wait_until("a process has used its CPU time", LONGEST_FOR_CPU_TIME, || {
        // In this order: one that ends in between has used all of its time.
        let ended = has_no_thread(pid);
        let has_used = cpu_seconds_of(pid).is_ok_and(|used| used >= seconds);
        has_ended = ended && !has_used;
        has_used || has_ended
    })?;
    if has_ended {
        bail!("process {pid} ended before it had used {seconds} s of CPU time");
    }
    Ok(())
}

/// Whether no thread of it runs any more. A leader is a zombie too while other threads go on.
fn has_no_thread(pid: i32) -> bool {
    let Ok(mut threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.all(|thread| {
        let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
        let state = stat.as_ref().ok().and_then(|stat| stat.rsplit_once(") "));
        state.is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    })
}

/// Ends a test that hangs; seconds of CPU time come sooner on any machine.
const LONGEST_FOR_CPU_TIME: Duration = Duration::from_secs(180);

/// Waits until a condition holds, at most this long.
pub fn wait_until(what: &str, at_most: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > at_most {
            bail!("waited {at_most:?} in vain until {what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// What a process and its children use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Of those that have ended too.
    pub cpu_seconds: f64,
    /// Memory, of what is shared with others their part (`smaps_rollup`).
    pub pss_bytes: u64,
}

impl Usage {
    pub fn of(pid: i32) -> Result<Self> {
        let mut usage = Self::default();
        for pid in children_with_memory(pid)?.into_iter().chain([pid]) {
            // A child may end at any moment.
            let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
                continue;
            };
            let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let kib = pss.and_then(|pss| pss.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            usage.pss_bytes += kib.unwrap_or(0) * 1024;
            usage.cpu_seconds += cpu_seconds_of(pid).unwrap_or(0.0);
        }
        // cutime and cstime: children that were waited for.
        usage.cpu_seconds += ticks_of(pid, [13, 14])?;
        Ok(usage)
    }
}

/// The children of a process that have memory of their own: between `vfork` and `execve` a child's is its
/// parent's, and would count twice.
fn children_with_memory(pid: i32) -> Result<Vec<i32>> {
    const KCMP_VM: libc::c_int = 1;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    // SAFETY: the call takes numbers only.
    let shares =
        |child: i32| unsafe { libc::syscall(libc::SYS_kcmp, pid, child, KCMP_VM, 0, 0) } == 0;
    Ok(children.filter(|child| !shares(*child)).collect())
}

/// The memory of a process and its children as [`Usage::pss_bytes`], without pages of BPF maps: strata
/// maps those only while it writes them.
pub fn pss_without_bpf_maps(pid: i32) -> Result<u64> {
    let mut all = 0;
    for pid in children_with_memory(pid)?.into_iter().chain([pid]) {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps")) else { continue };
        let mut is_map = false;
        for line in text.lines() {
            if let Some(kib) = line.strip_prefix("Pss:").filter(|_| !is_map) {
                let kib = kib.trim().strip_suffix(" kB").context("a figure in kB")?;
                all += kib.parse::<u64>()? * 1024;
            } else if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
                is_map = line.ends_with("anon_inode:bpf-map");
            }
        }
    }
    Ok(all)
}
