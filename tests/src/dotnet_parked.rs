//! The runtime's own stacks of waiting threads, compared with recorded ones.
//!
//! Two sources: the file that `Parked` writes (`tests/targets/csharp/Parked`: `StackTrace` on each
//! thread, immediately before it waits), and the file that the test profiler writes
//! (`tests/targets/profiler`: `DoStackSnapshot` of every thread while it waits).

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::dotnet_calls::without_arguments;
use crate::stacks::{Frame, Stacks};

/// A thread and its managed frames, innermost first, by the names that a reader knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedStack {
    pub tid: i32,
    pub kind: String,
    pub frames: Vec<String>,
}

/// Reads a file of either source.
pub fn read(file: &Path) -> Result<Vec<ManagedStack>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    parse(&text)
}

/// "thread TID KIND", then "frame NAME" or "frame TYPE<tab>METHOD" for each frame.
pub fn parse(text: &str) -> Result<Vec<ManagedStack>> {
    let mut stacks: Vec<ManagedStack> = vec![];
    for line in text.lines() {
        if let Some(thread) = line.strip_prefix("thread ") {
            let (tid, kind) = thread.split_once(' ').context("a thread without a kind")?;
            let tid = tid.parse().with_context(|| line.to_string())?;
            stacks.push(ManagedStack { tid, kind: kind.to_string(), frames: vec![] });
        } else if let Some(frame) = line.strip_prefix("frame ") {
            let stack = stacks.last_mut().context("a frame before the first thread")?;
            stack.frames.push(match frame.split_once('\t') {
                Some((of_type, method)) => readable(of_type, method),
                None => frame.to_string(),
            });
        } else {
            bail!("not a line of a stack: {line}");
        }
    }
    Ok(stacks)
}

/// A method's name as a reader knows it, from its metadata: the forms that `Parked` has.
fn readable(of_type: &str, method: &str) -> String {
    let plain = without_arity(of_type);
    let (outer, compiled) = plain.split_once("+<").unwrap_or((&plain, ""));
    let outer = outer.replace('+', ".");
    let last = outer.rsplit('.').next().unwrap_or(&outer);
    let name = if let Some(compiled_method) = method.strip_prefix('<') {
        let (of, rest) = compiled_method.split_once('>').unwrap_or((compiled_method, ""));
        match rest.strip_prefix("g__").and_then(|local| local.split_once('|')) {
            Some((local, _)) => format!("{of}.{local}"),
            None if compiled.starts_with(">c__DisplayClass") => format!("{of}_AnonymousMethod"),
            None => format!("{of}_Lambda"),
        }
    } else if let Some((of, _)) = compiled.split_once('>').filter(|(of, _)| !of.is_empty()) {
        of.to_string()
    } else if method == ".ctor" {
        last.to_string()
    } else if method == ".cctor" {
        format!("{last} (static)")
    } else if let Some(property) = method.strip_prefix("get_") {
        format!("{property}.get")
    } else {
        method.to_string()
    };
    format!("{outer}.{name}")
}

fn without_arity(name: &str) -> String {
    let mut parts = name.split('`');
    let mut result = parts.next().unwrap_or_default().to_string();
    for part in parts {
        result.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

/// How recorded stacks of parked threads compare with the runtime's.
#[derive(Default)]
pub struct Comparison {
    /// Samples of threads that the runtime listed.
    pub samples: u64,
    pub wrong: u64,
    /// Threads without a sample, by kind.
    pub unseen: Vec<String>,
    examples: Vec<String>,
}

/// Compares every recorded stack of a listed thread. `is_managed` recognises the managed frames
/// among the recorded ones; above the runtime's innermost frame there may be more of the
/// framework's, none of the program's.
pub fn compare(
    expected: &[ManagedStack],
    recorded: &Stacks,
    is_managed: impl Fn(&Frame) -> bool,
) -> Comparison {
    let mut comparison = Comparison::default();
    for thread in expected {
        let own = recorded.that(|stack| stack.tid() == Some(thread.tid));
        if own.total() == 0 {
            comparison.unseen.push(thread.kind.clone());
        }
        let wanted = comparable(thread.frames.iter().cloned());
        for stack in &own.stacks {
            comparison.samples += stack.count;
            let managed = stack.frames.iter().filter(|frame| is_managed(frame));
            let seen = comparable(managed.map(|frame| without_arguments(&frame.name)));
            let on_top = seen.len().saturating_sub(wanted.len());
            let (top, below) = seen.split_at(on_top);
            if below != wanted || top.iter().any(|name| name.starts_with("Parking.")) {
                comparison.wrong += stack.count;
                comparison.examples.push(format!(
                    "{}:\n    runtime: {}\n    recorded: {}",
                    thread.kind,
                    shortened(&wanted),
                    shortened(&seen)
                ));
            }
        }
    }
    comparison
}

/// What both sides must agree on. Not stubs, which only some walks show; not the code that passes an
/// exception on, nor the frame it was thrown in while a handler runs: those frames are dead, and only
/// a walk that asks the runtime knows it. A handler and its method are one.
fn comparable(names: impl Iterator<Item = String>) -> Vec<String> {
    let passing = ["(stub)", "System.Runtime.EH.", "System.Runtime.ExceptionServices."];
    let mut kept: Vec<String> = names
        .filter(|name| !name.is_empty() && !passing.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|name| name != "Parking.Handlers.Throw")
        .collect();
    kept.dedup();
    kept
}

fn shortened(names: &[String]) -> String {
    let line = names.join(" < ");
    if line.len() < 1500 {
        return line;
    }
    let (head, tail) = (line.chars().take(400), line.chars().rev().take(400));
    let tail: String = tail.collect::<Vec<_>>().into_iter().rev().collect();
    format!("{} … ({} frames) … {tail}", head.collect::<String>(), names.len())
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} stacks differ; not seen: {:?}", self.wrong, self.samples, self.unseen)?;
        self.examples.iter().take(10).try_for_each(|example| write!(f, "\n  {example}"))
    }
}

/// Both sources about the same threads: the first may be of a moment before the threads waited.
pub fn agree(before: &[ManagedStack], waiting: &[ManagedStack]) -> Vec<String> {
    let mut differences = vec![];
    for thread in before {
        let Some(other) = waiting.iter().find(|other| other.tid == thread.tid) else {
            differences.push(format!("{}: no such thread", thread.kind));
            continue;
        };
        // DoStackSnapshot has an id for a dynamic method, which has no metadata.
        let wanted = thread.frames.iter().filter(|name| !name.starts_with("(dynamic)"));
        let wanted = comparable(wanted.cloned());
        let seen = comparable(other.frames.iter().cloned());
        let below = seen.get(seen.len().saturating_sub(wanted.len())..).unwrap_or_default();
        if below != wanted {
            differences.push(format!(
                "{}: {}\n  not {}",
                thread.kind,
                shortened(&seen),
                shortened(&wanted)
            ));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_named_from_its_metadata() {
        let name = |line: &str| {
            parse(&format!("thread 1 x\nframe {line}\n")).unwrap()[0].frames[0].clone()
        };
        assert_eq!(name("A.B`1+C`2\tRun"), "A.B.C.Run");
        assert_eq!(name("A.B+<>c\t<Run>b__3_0"), "A.B.Run_Lambda");
        assert_eq!(name("A.B+<>c__DisplayClass3_0\t<Run>b__0"), "A.B.Run_AnonymousMethod");
        assert_eq!(name("A.B+<>c__DisplayClass3_0\t<Run>g__In|0"), "A.B.Run.In");
        assert_eq!(name("A.B+<Pay>d__7\tMoveNext"), "A.B.Pay");
        assert_eq!(name("A.B+C\t.cctor"), "A.B.C.C (static)");
        assert_eq!(name("A.B.Already readable"), "A.B.Already readable");
    }

    #[test]
    fn a_handler_above_the_dead_frames_of_an_exception_equals_the_folded_one() {
        let kept = |line: &str| comparable(line.split(" < ").map(String::from));
        assert_eq!(
            kept(
                "P.Sleep < P.Catch < System.Runtime.EH.DispatchEx < Parking.Handlers.Throw < P.Catch < P.Begin"
            ),
            kept("P.Sleep < P.Catch < P.Begin")
        );
    }
}
