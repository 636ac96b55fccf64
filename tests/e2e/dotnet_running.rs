//! .NET programs under test, and strata's output about them; shared by the other `dotnet_*` tests.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use strata_tests::places;
use strata_tests::running::{Running, wait_until};
use strata_tests::runtimes::{DotNet, Version};
use strata_tests::stacks::{Frame, Stack, Stacks};
use strata_tests::strata::{Record, Recorded};

pub const FREQUENCY: u32 = 997;

/// How long a program may take to get ready, or strata to answer: a limit against hanging tests.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Starts a program and waits until it prints that it is ready.
pub fn start(dotnet: &DotNet, version: Version, name: &str, words: &[&str]) -> Result<Running> {
    start_command(dotnet.program(version, name, words)?)
}

/// Starts a prepared command and waits until it prints that it is ready.
pub fn start_command(command: Command) -> Result<Running> {
    let mut running = Running::from_command(command)?;
    running.wait_for_line("ready", PATIENCE)?;
    Ok(running)
}

/// Lets a recording run this command, in its environment.
pub fn recorded_command(record: Record, command: &Command) -> Result<Record> {
    record_with(record, &[], command)
}

/// The same, but the process loads nothing by itself: it starts while strata records already.
pub fn recorded_without_variables(record: Record, command: &Command) -> Result<Record> {
    let variables = [
        "CORECLR_ENABLE_PROFILING",
        "CORECLR_PROFILER",
        "CORECLR_PROFILER_PATH",
        "CORECLR_ENABLE_NOTIFICATION_PROFILERS",
        "CORECLR_NOTIFICATION_PROFILERS",
    ];
    let unset: Vec<&str> = variables.iter().flat_map(|name| ["-u", *name]).collect();
    record_with(record, &unset, command)
}

fn record_with(record: Record, options: &[&str], command: &Command) -> Result<Record> {
    let text = |word: &std::ffi::OsStr| word.to_str().map(String::from).context("not a text");
    let mut words: Vec<String> = options.iter().map(|word| (*word).to_string()).collect();
    for (name, value) in command.get_envs() {
        let value = value.context("a variable to be taken away")?;
        words.push(format!("{}={}", text(name)?, text(value)?));
    }
    words.push(text(command.get_program())?);
    for word in command.get_args() {
        words.push(text(word)?);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(record.command("/usr/bin/env", &words))
}

/// The .NET processes in a recording's summary.
#[derive(Debug, Clone, PartialEq)]
pub struct Clr {
    pub attached: u64,
    pub loaded: u64,
    pub detached: u64,
    pub methods: u64,
    pub refused: Vec<(i32, String)>,
}

impl Clr {
    pub fn of(recorded: &Recorded) -> Result<Self> {
        let summary = recorded.summary()?;
        let clr = summary.0.get("clr").context("the summary says nothing of .NET")?;
        let number = |name: &str| {
            clr.get(name).and_then(Value::as_u64).with_context(|| format!("no {name}: {clr}"))
        };
        let mut refused = vec![];
        for one in clr.get("refused").and_then(Value::as_array).context("no refusals")? {
            let pid =
                one.get("pid").and_then(Value::as_i64).context("a refusal without a process")?;
            let reason = one.get("reason").and_then(Value::as_str).context("no reason")?;
            refused.push((i32::try_from(pid)?, reason.to_string()));
        }
        Ok(Self {
            attached: number("attached")?,
            loaded: number("loaded")?,
            detached: number("detached")?,
            methods: number("methods")?,
            refused,
        })
    }

    /// Whether strata has attached the bridge to one process, and detached it.
    pub fn came_and_left_once(&self) -> bool {
        (self.attached, self.loaded, self.detached) == (1, 1, 1) && self.refused.is_empty()
    }

    /// Why strata did not attach to this process.
    pub fn why_not(&self, pid: i32) -> Option<&str> {
        self.refused.iter().find(|(of, _)| *of == pid).map(|(_, reason)| reason.as_str())
    }
}

/// Whether a frame is of managed code, named or not.
pub fn is_managed(frame: &Frame) -> bool {
    !frame.is_kernel()
        && (frame.file.ends_with(".dll")
            || frame.file.contains("doublemapper")
            || frame.name.contains("[managed]")
            || frame.file.is_empty() && frame.name.contains('.')
            || frame.file == "//anon")
}

/// The output of `strata` with these arguments, which must succeed.
pub fn ask(words: &[&str]) -> Result<String> {
    ask_of(&places::strata_binary()?, words)
}

/// The same of another binary.
pub fn ask_of(strata: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new(strata);
    command.args(words);
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    if !ended.status.success() {
        bail!("strata {words:?}: {}\n{}{}", ended.status, ended.stdout, ended.stderr);
    }
    Ok(ended.stdout)
}

/// The stacks of a process's waiting threads, by `strata stacks`.
pub fn waiting_threads(pid: i32) -> Result<Stacks> {
    let text = ask(&["stacks", "--json", "--pid", &pid.to_string()])?;
    let threads: Vec<Value> = serde_json::from_str(&text)?;
    let mut stacks = vec![];
    for thread in &threads {
        let tid = thread.get("tid").and_then(Value::as_i64).context("a thread without an id")?;
        let mut stack = Stack { count: 1, ..Stack::default() };
        stack.labels.insert("tid".to_string(), tid.to_string());
        for frame in thread.get("frames").and_then(Value::as_array).context("no frames")? {
            let text = |name: &str| frame.get(name).and_then(Value::as_str).unwrap_or_default();
            let file = text("module").to_string();
            stack.frames.push(Frame { file, ..Frame::named(text("name")) });
        }
        stacks.push(stack);
    }
    Ok(Stacks { stacks })
}

/// The line of `strata ps` about a process.
pub fn listed(pid: i32) -> Result<Option<Value>> {
    listed_by(&places::strata_binary()?, pid)
}

/// The same of another binary.
pub fn listed_by(strata: &Path, pid: i32) -> Result<Option<Value>> {
    let all: Value = serde_json::from_str(&ask_of(strata, &["ps", "--json"])?)?;
    let all = all.as_array().context("no list")?;
    let is_it = |row: &&Value| row.get("pid").and_then(Value::as_i64) == Some(i64::from(pid));
    Ok(all.iter().find(is_it).cloned())
}

/// Waits until a strata is attached to a process. The daemon's number of attached processes does not
/// say it: other .NET processes may run on the host.
pub fn wait_for_attach(pid: i32) -> Result<()> {
    wait_until("strata is attached", PATIENCE, || {
        let row = listed(pid).ok().flatten().unwrap_or_default();
        row["bridge"].as_str().unwrap_or_default().starts_with("attached")
    })
}

/// Entries of a folder in /proc, or lines of a file there.
pub fn count_of(pid: i32, name: &str) -> Result<usize> {
    let path = format!("/proc/{pid}/{name}");
    let path = Path::new(&path);
    Ok(if path.is_dir() {
        std::fs::read_dir(path)?.count()
    } else {
        std::fs::read_to_string(path)?.lines().count()
    })
}

/// Collects failures of several checks before the test fails.
#[derive(Default)]
pub struct Wrongs(Vec<String>);

impl Wrongs {
    pub fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let what = what();
            println!("  WRONG: {what}");
            self.0.push(what);
        }
    }

    pub fn none(self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}

/// A test's part for each of `cases`, some at a time: mostly they wait, for programs to start and
/// recordings to end.
pub fn each<C: Copy + Sync>(
    cases: &[C],
    at_a_time: usize,
    part: impl Fn(C, &mut Wrongs) -> Result<()> + Sync,
) -> Result<()> {
    let mut all = Wrongs::default();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrongs = Wrongs::default();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            part(*case, &mut wrongs)?;
        }
        anyhow::Ok(wrongs)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            all.0.extend(thread.join().expect("a part panicked")?.0);
        }
        anyhow::Ok(())
    })?;
    all.none();
    Ok(())
}

/// Prints the commonest of some stacks.
pub fn print_examples(stacks: &Stacks, most: usize) {
    let mut all: Vec<&Stack> = stacks.stacks.iter().collect();
    all.sort_by_key(|stack| std::cmp::Reverse(stack.count));
    for stack in all.iter().take(most) {
        println!("    {} x {}", stack.count, stack.line().chars().take(700).collect::<String>());
    }
}
