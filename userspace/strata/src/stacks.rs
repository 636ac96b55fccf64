//! `strata stacks`: where the threads of one process are right now, blocked ones included.
//!
//! Nothing is stopped, signalled or loaded for native code: the kernel walks the threads that wait,
//! with the tables that a recording uses. A .NET process gets the bridge for its names, as in a
//! recording, and loses it again.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use strata_abi::record::End;
use strata_kinds::{Kind, Kinds};
use strata_profile::Profile;
use strata_profile::text::sanitize_for_terminal;

use crate::printing;
use strata_agent::code_address::describe_end;
use strata_agent::engine::{Engine, Options};
use strata_agent::kernel::loader::Settings;
use strata_agent::kernel::sideband::Wakeup;
use strata_agent::managed::Policy;
use strata_agent::selection::Wanted;
use strata_symbolize::build::Circumstances;
use strata_symbolize::resolve;

/// What is asked.
pub struct Question {
    pub pid: u32,
    pub managed: Policy,
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
        },
        wanted,
        keep_timeline: false,
        table_memory: 64 << 20,
        waiting_memory: 32 << 20,
        own_pid: std::process::id(),
        managed: question.managed,
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
    // Each look may find code that the runtime has not told of yet, and asks.
    for _ in 0..LOOKS {
        engine.walk(pid)?;
        if engine.is_settled() {
            break;
        }
    }
    engine.finish(PATIENCE)?;
    let circumstances = Circumstances {
        started: SystemTime::now(),
        length: Duration::ZERO,
        frequency: 1,
        kinds: Kinds::NONE.with(Kind::Cpu, true),
    };
    let (profile, _) = resolve::profile(&mut engine, &circumstances, false, |_, _| {})?;
    let threads = threads(&profile);
    if question.json {
        return printing::json(&threads.iter().map(Thread::json).collect::<Vec<Value>>());
    }
    let mut text: String = threads.iter().map(Thread::text).collect();
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if all > threads.len() {
        text += &format!("{} more threads are running\n", all - threads.len());
    }
    let ends = engine.aggregate.ends();
    for end in End::ALL {
        let count = ends.get(end as usize).copied().unwrap_or_default();
        if count > 0 && !matches!(end, End::Complete | End::KernelOnly) {
            text += &format!("{count} stacks cut: {}\n", describe_end(end));
        }
    }
    printing::print(&text)
}

struct Frame {
    name: String,
    module: String,
    place: String,
}

struct Thread {
    tid: u32,
    name: String,
    /// Innermost first.
    frames: Vec<Frame>,
}

fn threads(profile: &Profile) -> Vec<Thread> {
    let mut threads: Vec<Thread> = profile
        .samples()
        .map(|sample| {
            let identity = profile.identity(sample.labels);
            let frames = profile
                .stack(sample.stack)
                .flat_map(|location| {
                    let location = profile.location(location);
                    let module = location.mapping.map(|mapping| profile.mapping(mapping));
                    let module = module.map_or("", |module| profile.string(module.path)).to_owned();
                    profile.frames(location).iter().map(move |frame| Frame {
                        name: profile.string(frame.name).to_owned(),
                        module: module.clone(),
                        place: place(profile.string(frame.file), frame.line),
                    })
                })
                .collect();
            Thread {
                tid: identity.tid.unwrap_or_default(),
                name: profile.string(identity.comm).to_owned(),
                frames,
            }
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    threads
}

fn place(file: &str, line: u32) -> String {
    if file.is_empty() { String::new() } else { format!("{file}:{line}") }
}

impl Thread {
    fn text(&self) -> String {
        let mut text = format!("{} \"{}\"\n", self.tid, sanitize_for_terminal(&self.name));
        for frame in &self.frames {
            let module = frame.module.rsplit('/').next().unwrap_or_default();
            let module = if module.is_empty() { String::new() } else { format!("  ({module})") };
            let place =
                if frame.place.is_empty() { String::new() } else { format!("  {}", frame.place) };
            let line = format!("{}{module}{place}", frame.name);
            text += &format!("    {}\n", sanitize_for_terminal(&line));
        }
        text + "\n"
    }

    fn json(&self) -> Value {
        let frames: Vec<Value> = self
            .frames
            .iter()
            .map(
                |frame| json!({ "name": frame.name, "module": frame.module, "place": frame.place }),
            )
            .collect();
        json!({ "tid": self.tid, "name": self.name, "frames": frames })
    }
}
