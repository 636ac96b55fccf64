//! The threads of a process for display: what each is doing, for how long, and where.
//!
//! Threads of the same stack and state are one entry with a count. The frames of the kernel below a
//! system call are one line, because the program's own call is of interest.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use strata_profile::text::sanitize_for_terminal;
use strata_profile::{FrameKind, Profile};

use super::not_shown::States;
use crate::terminal::{counted, cut};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub name: String,
    pub module: String,
    pub place: String,
    pub is_kernel: bool,
}

#[derive(Clone, Debug)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The letter of `/proc/PID/task/TID/stat`.
    pub state: char,
    /// Time since it left the CPU, where the kernel provides it.
    pub since: Option<Duration>,
    /// Innermost first.
    pub frames: Vec<Frame>,
}

/// The threads of a profile of one moment that did not run, by id.
pub fn threads(profile: &Profile, states: &States) -> Vec<Thread> {
    let mut threads: Vec<Thread> = profile
        .samples()
        .filter(|sample| profile.stack(sample.stack).next().is_some())
        .map(|sample| {
            let identity = profile.identity(sample.labels);
            let frames = profile
                .stack(sample.stack)
                .flat_map(|location| {
                    let location = profile.location(location);
                    let module = profile.path_of(location).to_owned();
                    profile.frames(location).iter().map(move |frame| Frame {
                        name: profile.string(frame.name).to_owned(),
                        module: module.clone(),
                        place: place(profile.string(frame.file), frame.line),
                        is_kernel: frame.kind == FrameKind::Kernel,
                    })
                })
                .collect();
            let (pid, tid) = (identity.pid.unwrap_or_default(), identity.tid.unwrap_or_default());
            // Symbols may have taken seconds since the walk.
            let state = states.of_thread(pid, tid);
            Thread {
                pid,
                tid,
                name: profile.string(identity.comm).to_owned(),
                state: state.map_or('?', |state| state.letter),
                since: state.and_then(|state| state.since),
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

/// `waiting`: what a state means.
fn describe(state: char) -> &'static str {
    match state {
        'R' => "running",
        'S' => "waiting",
        'D' => "waiting uninterruptibly (usually for a disk)",
        'T' => "stopped",
        't' => "stopped by a debugger",
        'I' => "idle",
        'Z' | 'X' => "ended",
        _ => "in an unknown state",
    }
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..120 => format!("{:.1} s", time.as_secs_f64()),
        120..7_200 => format!("{} min {} s", seconds / 60, seconds % 60),
        7_200..172_800 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Threads that are at the same place in the same state, the most first.
pub fn merged<'a>(threads: &[&'a Thread]) -> Vec<Vec<&'a Thread>> {
    let mut places: BTreeMap<(char, &[Frame]), Vec<&'a Thread>> = BTreeMap::new();
    for thread in threads {
        places.entry((thread.state, &thread.frames)).or_default().push(thread);
    }
    let mut groups: Vec<_> = places.into_values().collect();
    groups.sort_by_key(|group| {
        (std::cmp::Reverse(group.len()), group.first().map_or(0, |thread| thread.tid))
    });
    groups
}

/// Threads named in one heading.
const MOST_NAMED: usize = 6;

/// One entry: `3 threads "worker", waiting for 2.1 s to 5 min 3 s  (4712 4713 4714)` and its stack.
pub fn text(group: &[&Thread], columns: Option<usize>, all_kernel_frames: bool) -> String {
    let Some(first) = group.first() else { return String::new() };
    let mut times: Vec<Duration> = group.iter().filter_map(|thread| thread.since).collect();
    times.sort_unstable();
    let waits = match (times.first(), times.last()) {
        (Some(least), Some(most)) if span(*least) == span(*most) => format!(" for {}", span(*most)),
        (Some(least), Some(most)) => format!(" for {} to {}", span(*least), span(*most)),
        _ => String::new(),
    };
    let waits = if first.state == 'R' { String::new() } else { waits };
    let mut names: Vec<&str> = group.iter().map(|thread| thread.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let names = match names.as_slice() {
        [one] => format!("\"{one}\""),
        many => format!("of {}", counted(many.len() as u64, "name")),
    };
    let ids: Vec<String> =
        group.iter().take(MOST_NAMED).map(|thread| thread.tid.to_string()).collect();
    let more = if group.len() > MOST_NAMED { " …" } else { "" };
    let heading = match group.len() {
        1 => format!("{} {names}, {}{waits}", first.tid, describe(first.state)),
        count => format!(
            "{} {names}, {}{waits}  ({}{more})",
            counted(count as u64, "thread"),
            describe(first.state),
            ids.join(" ")
        ),
    };
    let mut text = cut(&sanitize_for_terminal(&heading), columns) + "\n";
    for line in lines(&first.frames, all_kernel_frames) {
        text += &cut(&format!("    {}", sanitize_for_terminal(&line)), columns);
        text.push('\n');
    }
    text + "\n"
}

/// What every system call passes through, and the scheduler's own.
fn is_passage(name: &str) -> bool {
    let name = name.split(' ').next().unwrap_or(name);
    ["__schedule", "schedule", "x64_sys_call", "ret_from_fork", "ret_from_fork_asm"].contains(&name)
        || name.starts_with("entry_SYSCALL")
        || name.starts_with("do_syscall")
        || name.starts_with("__do_sys_")
        || name.starts_with("__se_sys_")
}

fn lines(frames: &[Frame], all_kernel_frames: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let kernel = frames.iter().take_while(|frame| frame.is_kernel).count();
    if all_kernel_frames {
        lines.extend(frames.iter().take(kernel).map(|frame| format!("{}  [kernel]", frame.name)));
    } else if kernel > 0 {
        let (inside, _) = frames.split_at(kernel);
        let names: Vec<&str> = inside
            .iter()
            .map(|frame| frame.name.as_str())
            .filter(|name| !is_passage(name))
            .collect();
        let short = match names.as_slice() {
            [] => inside.first().map_or(String::new(), |frame| frame.name.clone()),
            [one] => (*one).to_owned(),
            // Where it waits, and the system call.
            [first, .., last] => format!("{first} … {last}"),
        };
        lines.push(format!("[kernel] {short}"));
    }
    for frame in frames.iter().skip(kernel) {
        let module = frame.module.rsplit('/').next().unwrap_or_default();
        let module = if module.is_empty() { String::new() } else { format!("  ({module})") };
        let place =
            if frame.place.is_empty() { String::new() } else { format!("  {}", frame.place) };
        lines.push(format!("{}{module}{place}", frame.name));
    }
    lines
}

/// Whether a thread's stack is of Go's runtime.
pub fn is_of_go(threads: &[&Thread]) -> bool {
    let scheduler = ["runtime.mcall", "runtime.mstart", "runtime.rt0_go", "runtime.findRunnable"];
    threads
        .iter()
        .flat_map(|thread| &thread.frames)
        .any(|frame| scheduler.iter().any(|name| frame.name.starts_with(name)))
}

impl Thread {
    pub fn json(&self) -> Value {
        let frames: Vec<Value> = self
            .frames
            .iter()
            .map(
                |frame| json!({ "name": frame.name, "module": frame.module, "place": frame.place }),
            )
            .collect();
        json!({
            "pid": self.pid,
            "tid": self.tid,
            "name": self.name,
            "state": self.state.to_string(),
            "waiting_seconds": self.since.map(|since| since.as_secs_f64()),
            "frames": frames,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, seconds: u64, frames: &[(&str, bool)]) -> Thread {
        let frame = |&(name, is_kernel): &(&str, bool)| Frame {
            name: name.to_owned(),
            module: if is_kernel { String::new() } else { "/usr/lib/libc.so.6".to_owned() },
            place: String::new(),
            is_kernel,
        };
        Thread {
            pid: 7,
            tid,
            name: "worker".to_owned(),
            state: 'S',
            since: Some(Duration::from_secs(seconds)),
            frames: frames.iter().map(frame).collect(),
        }
    }

    const WAITING: [(&str, bool); 6] = [
        ("schedule", true),
        ("futex_wait_queue", true),
        ("futex_wait", true),
        ("__x64_sys_futex", true),
        ("do_syscall_64", true),
        ("pthread_cond_wait", false),
    ];

    #[test]
    fn equal_stacks_are_one_entry_with_short_kernel_frames() {
        let threads =
            [thread(7, 3, &WAITING), thread(8, 500, &WAITING), thread(9, 1, &[("poll", false)])];
        let groups = merged(&threads.iter().collect::<Vec<_>>());
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(
            text(&groups[0], None, false),
            "2 threads \"worker\", waiting for 3.0 s to 8 min 20 s  (7 8)\n    \
             [kernel] futex_wait_queue … __x64_sys_futex\n    pthread_cond_wait  (libc.so.6)\n\n"
        );
        assert_eq!(
            text(&groups[1], Some(30), false),
            "9 \"worker\", waiting for 1.0 s\n    poll  (libc.so.6)\n\n"
        );
        assert!(text(&groups[0], Some(40), true).lines().all(|line| line.chars().count() <= 40));
        assert_eq!(lines(&threads[0].frames, true).len(), 6);
    }
}
