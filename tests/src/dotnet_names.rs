//! The names a .NET test program expects to see, and the lines it reports as hot.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::stacks::{Stack, Stacks};

/// The names of the lines "expect NAME" in a program's output.
pub fn expected(printed: &str) -> Vec<String> {
    printed.lines().filter_map(|line| line.strip_prefix("expect ")).map(String::from).collect()
}

/// Those of the names that no frame has.
pub fn missing<'a>(names: &'a [String], stacks: &Stacks) -> Vec<&'a str> {
    let frames = stacks.stacks.iter().flat_map(|stack| &stack.frames);
    let seen: BTreeSet<&str> = frames.map(|frame| frame.name.as_str()).collect();
    names.iter().map(String::as_str).filter(|name| !seen.contains(name)).collect()
}

/// A line that a comment in its source marks: "// HOT name".
#[derive(Clone, Debug, PartialEq)]
pub struct HotLine {
    pub name: String,
    pub file: PathBuf,
    pub line: i64,
}

/// The marked lines of some sources.
pub fn hot_lines(sources: &[PathBuf]) -> Result<Vec<HotLine>> {
    let mut lines = vec![];
    for file in sources {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        for (index, line) in text.lines().enumerate() {
            if let Some((_, name)) = line.split_once("// HOT ") {
                let line = i64::try_from(index + 1)?;
                lines.push(HotLine { name: name.to_string(), file: file.clone(), line });
            }
        }
    }
    Ok(lines)
}

impl HotLine {
    /// Of the samples whose innermost frame of this function has a line: how many, and which
    /// fraction of them is on this one. `function` is the function the line is in.
    pub fn share(&self, stacks: &Stacks, function: &str) -> (u64, f64) {
        let own = stacks.that(|stack| frame_of(stack, function).is_some());
        let is_here = |stack: &Stack| {
            frame_of(stack, function).is_some_and(|frame| {
                frame.line == self.line && ends_alike(Path::new(&frame.source_file), &self.file)
            })
        };
        (own.total(), own.share_that(is_here))
    }
}

fn frame_of<'a>(stack: &'a Stack, function: &str) -> Option<&'a crate::stacks::Frame> {
    stack.frames.iter().find(|frame| frame.name == function)
}

/// Whether both paths name a file of one name.
fn ends_alike(one: &Path, other: &Path) -> bool {
    one.file_name().is_some() && one.file_name() == other.file_name()
}
