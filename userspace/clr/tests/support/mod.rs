//! Real CLR processes for tests, of every runtime that the set-up put together.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The runtimes that tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Core31,
    /// A single-file program without sources, which runs ours by a start-up hook.
    Net8,
    Net9,
    /// A single-file program as it is.
    Net10,
}

impl Runtime {
    pub const ALL: [Self; 4] = [Self::Core31, Self::Net8, Self::Net9, Self::Net10];

    pub fn is_single_file(self) -> bool {
        matches!(self, Self::Net8 | Self::Net10)
    }

    pub fn major(self) -> u16 {
        match self {
            Self::Core31 => 3,
            Self::Net8 => 8,
            Self::Net9 => 9,
            Self::Net10 => 10,
        }
    }

    /// A command that runs the steady program, or stands still (10).
    pub fn command(self) -> Command {
        let home = dotnet();
        let mut command = match self {
            Self::Core31 | Self::Net9 => {
                let version = if self == Self::Net9 { "9" } else { "3.1" };
                let mut command = Command::new(home.join(version).join("dotnet"));
                command.arg("exec").arg(steady());
                command
            }
            Self::Net8 => {
                let mut command = Command::new(home.join("8/Sarif.Multitool"));
                command.arg("--version").env("DOTNET_STARTUP_HOOKS", hook());
                command
            }
            Self::Net10 => {
                let mut command = Command::new(home.join("10/azmcp"));
                command.args(["server", "start"]).env("AZURE_MCP_COLLECT_TELEMETRY", "false");
                command
            }
        };
        command
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
            .env("DOTNET_CLI_TELEMETRY_OPTOUT", "1");
        command
    }

    pub fn start(self) -> Clr {
        Clr::start(self.command())
    }
}

/// Where the set-up put the runtimes.
pub fn dotnet() -> PathBuf {
    let home = match std::env::var_os("STRATA_DOTNET") {
        Some(home) => PathBuf::from(home),
        None => workspace().join(".cache/dotnet"),
    };
    assert!(
        home.join("compile").is_file(),
        "no .NET in {}: run `cargo xtask setup test`",
        home.display()
    );
    home
}

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The steady program, compiled once.
pub fn steady() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("Steady", &["Steady.cs"])).clone()
}

fn hook() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("SteadyHook", &["Steady.cs", "Hook.cs"])).clone()
}

fn compile(name: &str, sources: &[&str]) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let sources: Vec<PathBuf> = sources.iter().map(|source| programs.join(source)).collect();
    let folder = workspace().join(".cache/targets/clr");
    fs::create_dir_all(&folder).unwrap();
    let output = folder.join(format!("{name}.dll"));
    let lock = fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    if sources.iter().any(|source| modified(source) >= modified(&output)) {
        let done = Command::new(dotnet().join("compile"))
            .arg(&output)
            .args(&sources)
            .output()
            .expect("the C# compiler runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    output
}

/// A CLR process that ends with its test.
pub struct Clr {
    child: Child,
    /// Of the CLR itself, when something stands between (`unshare`).
    pid: u32,
    folder: Option<tempfile::TempDir>,
}

impl Clr {
    /// Starts a command that becomes, or starts, the CLR; waits until the runtime is up.
    pub fn start(command: Command) -> Self {
        Self::start_with(command, true)
    }

    /// The same without waiting for the program to say that it runs.
    pub fn start_with(mut command: Command, wait: bool) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.process_group(0);
        // Cargo's has the library in it, which must come from strata.
        command.env_remove("LD_LIBRARY_PATH");
        let mut child = command.spawn().expect("the CLR starts");
        let name = format!("{command:?}");
        if wait && !name.contains("azmcp") {
            let mut line = String::new();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            output.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), "running", "{name}");
            // Kept open, so that it may go on writing.
            child.stdout = Some(output.into_inner());
        } else if wait {
            let pid = child.id();
            wait_until("the runtime of 10 is up", || has_runtime_threads(pid));
        }
        let pid = innermost_child(child.id());
        Self { child, pid, folder: None }
    }

    /// The program in namespaces of its own, after `script` arranged them. `user` is its user
    /// outside. The runtimes are visible there at a place that `script` does not cover, and where
    /// every user reaches them.
    pub fn in_namespaces(runtime: Runtime, user: u32, script: &str) -> Self {
        const VISIBLE: &str = "/mnt";
        let cache = dotnet().parent().expect("the runtimes are in a folder").to_path_buf();
        let cache = cache.to_str().unwrap();
        let visible = |word: &std::ffi::OsStr| word.to_str().unwrap().replace(cache, VISIBLE);
        let program = runtime.command();
        let mut words = vec![visible(program.get_program())];
        words.extend(program.get_args().map(visible));
        let mut command = Command::new("unshare");
        let bind = format!("mount --rbind '{cache}' {VISIBLE} && exec \"$@\"");
        command.args(["--mount", "sh", "-c", &bind, "sh", "setpriv"]);
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare"]);
        command.args(["--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child"]);
        command.args(["sh", "-c", &format!("{script} && exec {}", words.join(" "))]);
        command.env("HOME", "/").current_dir("/");
        for (name, value) in program.get_envs() {
            command.env(name, visible(value.unwrap_or_default()));
        }
        Self::start(command)
    }

    pub fn with_folder(mut self, folder: tempfile::TempDir) -> Self {
        self.folder = Some(folder);
        self
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the program opens no more files and starts no more threads.
    pub fn settle(&self) {
        let count = |folder: &str| {
            fs::read_dir(format!("/proc/{}/{folder}", self.pid)).map_or(0, Iterator::count)
        };
        let mut before = (0, 0);
        let mut since = Instant::now();
        wait_until("the program has settled", || {
            let now = (count("fd"), count("task"));
            if now != before {
                (before, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_secs(3)
        });
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        // SAFETY: a signal to the group that this test started.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

impl Drop for Clr {
    fn drop(&mut self) {
        self.kill();
    }
}

fn has_runtime_threads(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| {
        fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.trim() == ".NET Finalizer")
    })
}

/// Follows only children: `unshare --fork` and shells have one each.
pub fn innermost_child(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    match children.unwrap_or_default().split_whitespace().next() {
        Some(child) => innermost_child(child.parse().unwrap()),
        None => pid,
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Held while a test has CLRs that no other test may attach to: a recording of the whole host
/// attaches to all. The end-to-end tests hold the same lock, those of other clones too.
pub struct Alone {
    _lock: fs::File,
}

pub fn alone() -> Alone {
    must_be_root();
    let mut options = fs::File::options();
    let options = options.create(true).truncate(false).write(true);
    let lock = options.open("/tmp/strata-tests.lock").unwrap();
    lock.lock().unwrap();
    Alone { _lock: lock }
}

pub fn must_be_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests look into other users' processes: run them as root (`sudo -E cargo xtask test`)"
    );
}
