//! `strata stacks`: where the threads of one process are right now, blocked ones included.
//!
//! Nothing is stopped, signalled or loaded for native code: the kernel walks the threads that wait,
//! with the tables that a recording uses. A .NET process gets the bridge for its symbols, as in a
//! recording, and it is detached again. [`thread`]: threads as they are shown; [`last_run`]:
//! for how long they have waited.

mod last_run;
mod thread;

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use serde_json::Value;
use strata_abi::record::End;
use strata_kinds::{Frequencies, Kind, Kinds};

use crate::printing;
use crate::terminal::{columns, counted, cut};
use strata_agent::code_address::describe_end;
use strata_agent::engine::{Engine, Options};
use strata_agent::kernel::loader::Settings;
use strata_agent::kernel::sideband::Wakeup;
use strata_agent::managed::Policy;
use strata_agent::selection::Wanted;
use strata_symbolize::build::Circumstances;
use strata_symbolize::resolve;
use thread::Thread;

/// The options.
pub struct Question {
    pub pid: u32,
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
    let pid = question.pid;
    if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
        bail!("there is no process {pid}");
    }
    let wanted = Wanted { pids: vec![pid], ..Wanted::default() };
    let mut engine = Engine::new(Options {
        wakeup: Wakeup::Each,
        settings: Settings {
            max_frames: 1024,
            ring_bytes: 16 << 20,
            frequency: 97,
            threads_of: Some(pid),
            off_cpu: None,
            wall: false,
            clr_events: false,
        },
        wanted,
        // The walk's records are of threads that run or wait.
        kinds: Kinds::NONE.with(Kind::Wall, true),
        times: Kinds::NONE,
        frequencies: Frequencies::of_recording(),
        table_memory: 64 << 20,
        waiting_memory: 32 << 20,
        own_pid: std::process::id(),
        managed: question.managed,
        messages: false,
        signatures: false,
    })?;
    engine.prepare(pid);
    let begun = Instant::now();
    while !engine.is_prepared(pid, begun.elapsed() < BRIDGE_PATIENCE) {
        if begun.elapsed() > PATIENCE {
            bail!("the unwind tables of process {pid} are not ready after {PATIENCE:?}");
        }
        engine.loading.block(LOOK);
        engine.turn();
    }
    engine.stop_expecting();
    // Each pass may find code that the runtime has not published yet, and requests it.
    for _ in 0..LOOKS {
        engine.walk(pid);
        if engine.is_settled() {
            break;
        }
    }
    engine.finish(PATIENCE)?;
    let circumstances = Circumstances {
        started: SystemTime::now(),
        length: Duration::ZERO,
        frequencies: Frequencies::of_recording(),
        kinds: Kinds::NONE.with(Kind::Wall, true),
    };
    let (profile, _) = resolve::profile(&mut engine, &circumstances, false, |_, _| {})?;
    let threads = thread::threads(&profile, pid);
    if question.json {
        return printing::json(&threads.iter().map(Thread::json).collect::<Vec<Value>>());
    }
    let width = columns(&std::io::stdout());
    let groups = thread::merged(&threads);
    let mut text: String =
        groups.iter().map(|group| thread::text(group, width, question.kernel)).collect();
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let running = all.saturating_sub(threads.len()) as u64;
    if running > 0 {
        let note = format!(
            "{} ran at that moment and {} not shown: `strata record --pid {pid}` shows running code",
            counted(running, "more thread"),
            if running == 1 { "is" } else { "are" }
        );
        text += &(cut(&note, width) + "\n");
    }
    if thread::is_of_go(&threads) {
        // Not truncated: it shows what is missing.
        text += "this is a Go program: goroutines that wait have no thread, and are not looked at. A \
                 deadlock\nis in their stacks: `kill -QUIT` prints them and ends the program; \
                 /debug/pprof/goroutine?debug=2\nserves them where net/http/pprof is loaded\n";
    }
    let ends = engine.aggregate.ends();
    for end in End::ALL {
        let count = ends.get(end as usize).copied().unwrap_or_default();
        if count > 0 && !matches!(end, End::Complete | End::KernelOnly) {
            text += &format!("{} incomplete: {}\n", counted(count, "stack"), describe_end(end));
        }
    }
    printing::print(&text)
}
