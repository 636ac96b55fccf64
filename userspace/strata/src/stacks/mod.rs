//! `strata stacks`: where the threads of processes are right now, blocked ones included.
//!
//! Nothing is stopped, signalled or loaded for native code: the kernel walks the threads that wait,
//! with the tables that a recording uses. A .NET process gets the bridge for its symbols, as in a
//! recording, and it is detached again. [`which`]: the processes; [`thread`]: threads as they are
//! shown; [`last_run`]: for how long they have waited; [`not_shown`]: threads without a stack, and
//! why.

mod last_run;
mod not_shown;
mod thread;
mod which;

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use serde_json::Value;
use strata_abi::record::End;
use strata_kinds::{Frequencies, Kind, Kinds};

use crate::capabilities;
use crate::printing;
use crate::process_files;
use crate::terminal::{columns, counted, cut, wrapped};
use not_shown::{ProcessKind, States, without_stacks};
use strata_agent::code_address::describe_end;
use strata_agent::engine::{Engine, Options};
use strata_agent::kernel::loader::{Settings, ThreadsOf};
use strata_agent::kernel::sideband::Wakeup;
use strata_agent::managed::Policy;
use strata_agent::selection::Wanted;
use strata_profile::text::sanitize_for_terminal;
use strata_symbolize::build::Circumstances;
use strata_symbolize::resolve;
use thread::Thread;
pub use which::Which;

/// The options.
pub struct Question {
    pub which: Which,
    pub managed: Policy,
    /// Kernel frames have lines of their own.
    pub kernel: bool,
    pub json: bool,
}

/// Tables are waited for so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// And a bridge; a process that fakes one is shown without names.
const BRIDGE_PATIENCE: Duration = Duration::from_secs(4);
/// Unannounced code that one stack may lead through.
const LOOKS: u32 = 12;
const LOOK: Duration = Duration::from_millis(10);

/// Prints the stacks; the exit status.
pub fn run(question: &Question) -> Result<i32> {
    let pids = question.which.pids()?;
    let (threads_of, table_memory) = match pids.iter().next() {
        Some(pid) if pids.len() == 1 => (ThreadsOf::Process(*pid), 64 << 20),
        _ => (ThreadsOf::All, 256 << 20),
    };
    let mut engine = Engine::new(Options {
        wakeup: Wakeup::Each,
        settings: Settings {
            max_frames: 1024,
            ring_bytes: 16 << 20,
            frequency: 97,
            threads_of,
            off_cpu: None,
            wall: false,
            clr_events: false,
        },
        wanted: Wanted { pids: pids.iter().copied().collect(), ..Wanted::default() },
        // The walk's records are of threads that run or wait.
        kinds: Kinds::NONE.with(Kind::Wall, true),
        times: Kinds::NONE,
        frequencies: Frequencies::of_recording(),
        table_memory,
        waiting_memory: 32 << 20,
        own_pid: std::process::id(),
        managed: question.managed,
        messages: false,
        signatures: false,
        opened: Some(capabilities::give_up_administration),
    })?;
    prepare(&mut engine, &pids)?;
    // Each pass may find code that the runtime has not published yet, and requests it.
    let mut walked = Instant::now();
    for _ in 0..LOOKS {
        walked = Instant::now();
        engine.walk(&pids);
        if engine.is_settled() {
            break;
        }
    }
    let states = States::read(&pids, walked);
    engine.finish(PATIENCE);
    let circumstances = Circumstances {
        started: SystemTime::now(),
        length: Duration::ZERO,
        frequencies: Frequencies::of_recording(),
        kinds: Kinds::NONE.with(Kind::Wall, true),
        host: strata_agent::host::name().to_owned(),
    };
    let (profile, _) = resolve::profile(&mut engine, &circumstances, false, |_, _| {})?;
    let threads = thread::threads(&profile, &states);
    if question.json {
        return printing::json(&threads.iter().map(Thread::json).collect::<Vec<Value>>());
    }
    let width = columns(&std::io::stdout());
    let mut text = String::new();
    for pid in &pids {
        let own: Vec<&Thread> = threads.iter().filter(|thread| thread.pid == *pid).collect();
        if pids.len() > 1 {
            text += &(cut(&heading(*pid, own.len()), width) + "\n\n");
        }
        text += &of_process(&own, width, question.kernel);
        text += &of_others(*pid, &own, &states, width);
        text += of_goroutines(&own);
        if pids.len() > 1 && !text.ends_with("\n\n") {
            text.push('\n');
        }
    }
    let ends = engine.aggregate.ends();
    for end in End::ALL {
        let count = ends.get(end as usize).copied().unwrap_or_default();
        if count > 0 && !matches!(end, End::Complete | End::KernelOnly) {
            let what = if end == End::FrameLimit { "truncated" } else { "incomplete" };
            text += &format!("{} {what}: {}\n", counted(count, "stack"), describe_end(end));
        }
    }
    printing::print(&text)
}

/// Loads the tables of the processes. Without those of the only one there is nothing to show; of
/// many, those without are shown as far as they can be followed.
fn prepare(engine: &mut Engine, pids: &BTreeSet<u32>) -> Result<()> {
    engine.walk_only(pids);
    for pid in pids {
        engine.prepare(*pid);
    }
    let begun = Instant::now();
    let lacks = |engine: &Engine| {
        let patient = begun.elapsed() < BRIDGE_PATIENCE;
        pids.iter().copied().find(|pid| !engine.is_prepared(*pid, patient))
    };
    while let Some(pid) = lacks(engine) {
        if begun.elapsed() > PATIENCE {
            if pids.len() == 1 {
                bail!(
                    "the unwind tables of process {pid} are not ready after {PATIENCE:?}: try again; `strata doctor --pid {pid}` lists its files"
                );
            }
            break;
        }
        engine.loading.block(LOOK);
        engine.turn();
    }
    engine.stop_expecting();
    Ok(())
}

/// `process 4711 (nginx): 12 threads not running`
fn heading(pid: u32, waiting: usize) -> String {
    let name = process_files::text(format!("/proc/{pid}/comm"));
    let name =
        name.map_or("ended".to_owned(), |name| sanitize_for_terminal(name.trim_end()).into());
    match counted(waiting as u64, "thread") {
        _ if waiting == 0 => format!("process {pid} ({name})"),
        threads => format!("process {pid} ({name}): {threads} not running"),
    }
}

fn of_process(threads: &[&Thread], width: Option<usize>, kernel: bool) -> String {
    let groups = thread::merged(threads);
    groups.iter().map(|group| thread::text(group, width, kernel)).collect()
}

/// The threads that are not shown.
fn of_others(pid: u32, shown: &[&Thread], states: &States, width: Option<usize>) -> String {
    let kind = if shown.is_empty() { ProcessKind::of(pid) } else { ProcessKind::Usual };
    let lines = match without_stacks(pid, kind) {
        Some(line) => vec![line],
        None => states.not_shown(pid, &shown.iter().map(|thread| thread.tid).collect()).lines(),
    };
    wrapped(&lines.iter().map(|line| format!("{line}\n")).collect::<String>(), width)
}

fn of_goroutines(threads: &[&Thread]) -> &'static str {
    if !thread::is_of_go(threads) {
        return "";
    }
    // Not truncated: it shows what is missing.
    "this is a Go program: goroutines that wait have no thread, and are not looked at. A deadlock\n\
     is in their stacks: `kill -QUIT` prints them and ends the program; \
     /debug/pprof/goroutine?debug=2\nserves them where net/http/pprof is loaded\n"
}
