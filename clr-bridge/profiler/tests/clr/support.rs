//! What the tests stand on: the library, a C# program on a real runtime, the diagnostics socket, and
//! the shared memory as strata reads it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use strata_bridge_protocol::contexts::Context;
use strata_bridge_protocol::control::{Outcome, wish};
use strata_bridge_protocol::objects::ObjectTable;
use strata_bridge_protocol::owning::{Owner, TakeError};
use strata_bridge_protocol::reader::{self, Budget, Entry, Limits, Reader};
use strata_bridge_protocol::record::{MethodRecord, Record};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::StatusRecord;

pub const CLASS: &str = "{8A4D1E52-6F0B-4C39-9B7E-D5C1A7F23E60}";
const CLASS_BYTES: [u8; 16] = [
    0x52, 0x1e, 0x4d, 0x8a, 0x0b, 0x6f, 0x39, 0x4c, 0x9b, 0x7e, 0xd5, 0xc1, 0xa7, 0xf2, 0x3e, 0x60,
];
pub const SONAME: &str = "libstrata_clr.so";

/// Something that must be there at once on an idle machine, and within this time on a busy one.
pub const SOON: Duration = Duration::from_secs(20);

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The library, built from what is there now. `STRATA_CLR_BRIDGE` names another.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os("STRATA_CLR_BRIDGE") {
            return PathBuf::from(path);
        }
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "strata-clr-profiler", "--message-format=json"])
            .current_dir(workspace())
            .stderr(Stdio::inherit())
            .output()
            .expect("starting cargo");
        assert!(built.status.success(), "the library does not build");
        library_in(&String::from_utf8_lossy(&built.stdout))
    })
}

/// The library's path in cargo's build messages.
pub fn library_in(messages: &str) -> PathBuf {
    let end = messages.rfind("libstrata_clr.so\"").expect("cargo names the library");
    let start = messages[..end].rfind('"').expect("a quoted path") + 1;
    PathBuf::from(&messages[start..end + SONAME.len()])
}

/// The assembled .NET runtimes.
fn dotnet() -> PathBuf {
    let folder = match std::env::var_os("STRATA_DOTNET") {
        Some(folder) => PathBuf::from(folder),
        None => workspace().join(".cache/dotnet"),
    };
    assert!(folder.join("compile").is_file(), "no .NET: run `cargo xtask setup test`");
    folder
}

/// The runtimes that are there.
pub fn versions() -> Vec<&'static str> {
    let has = |path: &str| dotnet().join(path).is_file();
    [("3.1", "3.1/dotnet"), ("8", "8/Sarif.Multitool"), ("9", "9/dotnet")]
        .into_iter()
        .filter(|(_, path)| has(path))
        .map(|(version, _)| version)
        .collect()
}

/// Those of them whose runtime reports its own events.
pub fn versions_with_events() -> impl Iterator<Item = &'static str> {
    versions().into_iter().filter(|version| *version != "3.1")
}

/// The test program, compiled once for each change of its source.
fn program() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clr/programs/Shop.cs");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clr");
        fs::create_dir_all(&folder).expect("a folder for the program");
        let output = folder.join("Shop.dll");
        let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        if modified(&output) < modified(&source) {
            let compiled = Command::new(dotnet().join("compile"))
                .args([&output, &source])
                .output()
                .expect("starting the C# compiler");
            let printed = String::from_utf8_lossy(&compiled.stdout);
            assert!(compiled.status.success(), "the program does not compile: {printed}");
        }
        output
    })
}

/// How a program is to be started.
#[derive(Clone, Copy, Default)]
pub struct Start {
    /// With the variables that load the library.
    pub loaded: Option<Loaded>,
    /// With `STRATA_CLR_EAGER=1`.
    pub eager: bool,
    /// With at most so many bytes for one file of its: less than a log segment.
    pub file_size_limit: Option<u64>,
    /// With these faults, which a library that was built for debugging has.
    pub faults: Option<&'static str>,
    /// With a collector that has threads of its own.
    pub server: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// `CORECLR_PROFILER`
    AsMain,
    /// `CORECLR_NOTIFICATION_PROFILERS`
    AsNotification,
}

/// A running program. Killed when it is dropped.
pub struct Target {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Target {
    pub fn start(version: &'static str, start: Start) -> Target {
        let mut command = match version {
            "8" => {
                let mut command = Command::new(dotnet().join("8/Sarif.Multitool"));
                command.arg("--version").env("DOTNET_STARTUP_HOOKS", program());
                command
            }
            _ => {
                let mut command = Command::new(dotnet().join(version).join("dotnet"));
                command.arg("exec").arg(program());
                command
            }
        };
        command
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
            .env("DOTNET_CLI_TELEMETRY_OPTOUT", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match start.loaded {
            Some(Loaded::AsMain) => {
                command
                    .env("CORECLR_ENABLE_PROFILING", "1")
                    .env("CORECLR_PROFILER", CLASS)
                    .env("CORECLR_PROFILER_PATH", library());
            }
            Some(Loaded::AsNotification) => {
                let entry = format!("{}={CLASS};", library().display());
                command
                    .env("CORECLR_ENABLE_NOTIFICATION_PROFILERS", "1")
                    .env("CORECLR_NOTIFICATION_PROFILERS", entry);
            }
            None => {}
        }
        if start.server {
            command.env("DOTNET_gcServer", "1");
        }
        if start.eager {
            command.env("STRATA_CLR_EAGER", "1");
        }
        if let Some(faults) = start.faults {
            command.env("STRATA_CLR_FAULTS", faults);
        }
        if let Some(limit) = start.file_size_limit {
            // The runtime itself needs a large file else, for the two views of its code.
            command.env("DOTNET_EnableWriteXorExecute", "0");
            limit_file_size(&mut command, limit);
        }
        let mut child = command.spawn().expect("starting the program");
        let input = child.stdin.take().expect("its input");
        let output = child.stdout.take().expect("its output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let target = Target { child, input, lines };
        assert_eq!(target.line(), "ready");
        target
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the program writes.
    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).expect("the program answers")
    }

    /// Gives a command, and waits for its answer.
    pub fn tell(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("the program listens");
        self.line()
    }

    /// Until its thread that burns CPU time has done so many times: its code is compiled, and
    /// compiled again where it is hot.
    pub fn until_it_burns(&self) {
        let slept = |status: String| {
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        eventually("its burning thread", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
            threads
                .flatten()
                .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
                .filter_map(slept)
                .find(|times| *times > 200)
        });
    }

    /// Lets the program return, which it does well and without a word.
    pub fn quit(self) {
        self.end("quit");
    }

    /// Lets the program end itself, which also one does well that has threads at work.
    pub fn exit(self) {
        self.end("exit");
    }

    fn end(mut self, command: &str) {
        assert_eq!(self.tell(command), "bye");
        self.ends_well();
    }

    /// The program ends by itself, soon, and without a word.
    pub fn ends_well(mut self) {
        let ended = || self.child.try_wait().expect("waiting for the program");
        eventually("the end of the program", ended);
        let status = self.child.wait().expect("waiting for the program");
        let mut printed = String::new();
        self.child.stderr.take().expect("its errors").read_to_string(&mut printed).expect("text");
        assert!(status.success(), "{status}: {printed}");
        assert_eq!(printed, "");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killing the program");
        self.child.wait().expect("waiting for the program");
    }

    /// Names of the threads.
    pub fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten();
        let mut names: Vec<String> = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
            .map(|name| name.trim_end().to_string())
            .collect();
        names.sort();
        names
    }

    pub fn footprint(&self) -> Footprint {
        Footprint::of(self.pid())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub threads: usize,
    pub files: usize,
    pub libraries: usize,
    pub memory: usize,
}

impl Footprint {
    /// What of the process would grow if an attach left something behind.
    pub fn of(pid: u32) -> Footprint {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let count = |what: &str| fs::read_dir(proc.join(what)).map_or(0, Iterator::count);
        let maps = fs::read_to_string(proc.join("maps")).unwrap_or_default();
        Footprint {
            threads: count("task"),
            // The runtime opens its libraries when it needs them.
            files: files_of(pid).iter().filter(|file| !file.ends_with(".dll")).count(),
            libraries: maps.lines().filter(|line| line.contains(SONAME)).count(),
            memory: maps.lines().filter(|line| line.contains("strata-clr")).count(),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the descriptors of a process are.
pub fn files_of(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let mut names: Vec<String> = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    names.sort();
    names
}

fn limit_file_size(command: &mut Command, limit: u64) {
    use std::os::unix::process::CommandExt;
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: setrlimit is async-signal-safe and the structure is a copy.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limits) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Asks the runtime to load a library. Its answer: the HRESULT.
pub fn attach(pid: u32, library: &str) -> u32 {
    let mut socket = UnixStream::connect(diagnostics_socket(pid)).expect("the diagnostics socket");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    let mut payload = Vec::new();
    payload.extend(10_000u32.to_le_bytes());
    payload.extend(CLASS_BYTES);
    let units: Vec<u16> = library.encode_utf16().chain([0]).collect();
    payload.extend((units.len() as u32).to_le_bytes());
    payload.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    payload.extend(0u32.to_le_bytes());

    let mut message = b"DOTNET_IPC_V1\0".to_vec();
    message.extend((20 + payload.len() as u16).to_le_bytes());
    message.extend([3, 1, 0, 0]);
    message.extend(payload);
    socket.write_all(&message).expect("a request");
    let mut answer = [0; 24];
    socket.read_exact(&mut answer).expect("an answer");
    u32::from_le_bytes(answer[20..].try_into().expect("four bytes"))
}

/// The socket's name has the process's start time, which distinguishes it from those left by dead
/// processes with the same pid.
fn diagnostics_socket(pid: u32) -> PathBuf {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let started = fields.split_whitespace().nth(19).expect("a start time");
    let path = PathBuf::from(format!("/tmp/dotnet-diagnostic-{pid}-{started}-socket"));
    eventually("the diagnostics socket", || path.exists().then_some(()));
    path
}

pub fn attach_bridge(target: &Target) {
    attach_bridge_to(target.pid());
}

/// Attaches by the bare name when the library is mapped, and by its path else.
pub fn attach_bridge_to(pid: u32) {
    let path = library().to_str().expect("a path of text");
    let way = if Footprint::of(pid).libraries > 0 { SONAME } else { path };
    let deadline = Instant::now() + SOON;
    loop {
        let result = attach(pid, way);
        if result == 0 {
            return;
        }
        // Too early, or an earlier detach is not over.
        assert!(Instant::now() < deadline, "attach to {pid}: {result:#x}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program with the bridge, and a reader that has received everything that existed.
pub fn watched(version: &'static str) -> (Target, Watcher) {
    let target = Target::start(version, Start::default());
    attach_bridge(&target);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    watcher.until_enumerated();
    (target, watcher)
}

/// Reads what a bridge writes.
pub struct Watcher {
    pid: u32,
    reader: Reader<File>,
    owner: Option<Owner>,
    segments: Vec<PathBuf>,
    /// Since the last gap: everything that lives is reported again after it.
    pub entries: Vec<Entry>,
    pub gaps: usize,
}

/// Mapped files of a process with this name, as its `map_files`.
fn mapped(pid: u32, name: &str) -> Vec<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let end = format!("/memfd:{name} (deleted)");
    maps.lines()
        .filter(|line| line.ends_with(&end))
        .filter_map(|line| line.split(' ').next())
        .map(|range| PathBuf::from(format!("/proc/{pid}/map_files/{range}")))
        .collect()
}

impl Watcher {
    pub fn find(target: &Target) -> Watcher {
        Watcher::find_in(target.pid())
    }

    /// Waits for a bridge in the process.
    pub fn find_in(pid: u32) -> Watcher {
        let main =
            eventually("the bridge's memory", || mapped(pid, "strata-clr").into_iter().next());
        let file = reader::file::open(&main).expect("the main file");
        reader::file::check_main(&file).expect("a sound main file");
        let reader = Reader::new(file, Limits::default()).expect("a main file");
        Watcher { pid, reader, owner: None, segments: Vec::new(), entries: Vec::new(), gaps: 0 }
    }

    /// Becomes the owner and requests everything.
    pub fn own(&mut self) {
        self.wish(wish::JIT_EVENTS);
    }

    pub fn wish_until_obeyed(&mut self, flags: u64) {
        let before = self.status().obeyed;
        self.wish(flags);
        eventually("the wish in force", || (self.status().obeyed != before).then_some(()));
    }

    pub fn wish(&mut self, flags: u64) {
        if self.owner.is_none() {
            let main = mapped(self.pid, "strata-clr").into_iter().next().expect("the main file");
            let file = reader::file::open(&main).expect("the main file");
            self.owner = Some(Owner::take(file, "test").expect("to become the owner"));
        }
        self.owner.as_mut().expect("an owner").wish(flags, [0; 32]).expect("to wish");
    }

    /// From now on an owner as those of older versions, which state no capabilities.
    pub fn own_as_an_older_one(&mut self) {
        self.owner.as_mut().expect("an owner").set_capabilities(0);
        self.wish(wish::JIT_EVENTS);
    }

    /// The memory that the log takes, in bytes.
    pub fn log_memory(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let files = mapped(self.pid, "strata-clr-log").into_iter();
        files.map(|path| 512 * fs::metadata(path).map_or(0, |file| file.blocks())).sum()
    }

    /// Whether another process may own the bridge now.
    pub fn try_own(&self) -> Result<Owner, TakeError> {
        let main = mapped(self.pid, "strata-clr").into_iter().next().expect("the main file");
        Owner::take(reader::file::open(&main).expect("the main file"), "other")
    }

    /// Gives the ownership up, as the kernel does when an owner is killed.
    pub fn disown(&mut self) {
        self.owner = None;
    }

    /// The contents of a thread's slot.
    pub fn context(&self, tid: u32) -> Option<Context> {
        self.reader.context(tid).expect("the contexts")
    }

    pub fn status(&self) -> StatusRecord {
        self.reader.status().expect("the status")
    }

    pub fn objects(&self) -> ObjectTable {
        self.reader.objects().expect("the objects")
    }

    /// Reads what is new.
    pub fn read(&mut self) {
        for path in mapped(self.pid, "strata-clr-log") {
            if !self.segments.contains(&path) {
                let file = reader::file::open(&path).expect("a segment");
                self.reader.add_segment(file).expect("a segment");
                self.segments.push(path);
            }
        }
        loop {
            let poll = self.reader.poll(Budget::default(), monotonic_time()).expect("the log");
            if poll.gap {
                self.gaps += 1;
                self.entries.clear();
            }
            self.entries.extend(poll.entries);
            if !poll.more {
                break;
            }
        }
    }

    /// Reads until something is there.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&[Entry]) -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            self.read();
            if let Some(found) = look(&self.entries) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn until_enumerated(&mut self) {
        let epoch = self.owner.as_ref().expect("an owner").wishes().epoch;
        self.until("the end of the enumeration", |entries| {
            entries
                .iter()
                .any(
                    |entry| matches!(entry.record, Record::Enumerated(done) if done.epoch == epoch),
                )
                .then_some(())
        });
    }

    /// Asks, and waits for what became of it.
    pub fn ask(&mut self, kind: u32, first: u64, second: u64) -> Outcome {
        let owner = self.owner.as_mut().expect("an owner");
        let sent = owner.request(&[(kind, first, second)]).expect("to ask");
        let sequence = *sent.first().expect("room");
        owner.ring().expect("to ring");
        let owner = self.owner.as_ref().expect("an owner");
        let what = format!("an outcome of {kind} {first:#x} ({sequence:#x})");
        eventually(&what, || owner.outcomes().expect("the answers").of(sequence))
    }

    pub fn methods(&self) -> impl Iterator<Item = &MethodRecord> {
        self.entries.iter().filter_map(|entry| match &entry.record {
            Record::Method(method) => Some(method),
            _ => None,
        })
    }

    /// `Type.Method` with arguments, as far as the records say.
    pub fn full_name(&self, method: &MethodRecord) -> String {
        let of_type = self.entries.iter().find_map(|entry| match &entry.record {
            Record::Type(found)
                if (found.module, found.token) == (method.module, method.type_token) =>
            {
                Some(found.name.clone())
            }
            _ => None,
        });
        let arguments = |texts: &[String]| match texts {
            [] => String::new(),
            _ => format!("<{}>", texts.join(", ")),
        };
        format!(
            "{}{}.{}{}",
            of_type.unwrap_or_default(),
            arguments(&method.class_arguments),
            method.name,
            arguments(&method.method_arguments)
        )
    }

    pub fn full_names(&self) -> Vec<String> {
        self.methods().map(|method| self.full_name(method)).collect()
    }
}

/// Waits until something is there.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
