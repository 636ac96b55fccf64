//! Stacks as tests see them, and queries on them: process, share, depth, completeness.

use std::collections::BTreeMap;
use std::fmt;

use crate::stack_ends;

/// One frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    pub name: String,
    pub system_name: String,
    pub source_file: String,
    pub line: i64,
    pub file: String,
    pub build_id: String,
    pub address: u64,
    pub file_offset: Option<u64>,
    /// Not a frame of the machine's stack, but a function inlined into the next one.
    pub is_inlined: bool,
}

impl Frame {
    /// One of which only the name is known.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_string(), ..Self::default() }
    }

    /// Whether its address belongs to the kernel (the upper half on x86-64 and arm64).
    pub fn is_kernel(&self) -> bool {
        self.address >> 63 == 1
    }

    /// Whether it has a real name: not an address, not a mark of an unknown place.
    pub fn is_named(&self) -> bool {
        let name = self.name.as_str();
        let looks_like_an_address = name.starts_with("0x") || name.contains("+0x");
        !(name.is_empty() || looks_like_an_address || name.contains("unknown"))
    }
}

/// One stack, leaf first, with how often it was seen.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    pub frames: Vec<Frame>,
    pub count: u64,
    pub labels: BTreeMap<String, String>,
}

impl Stack {
    pub fn pid(&self) -> Option<i32> {
        self.labels.get("pid").and_then(|v| v.parse().ok())
    }

    pub fn tid(&self) -> Option<i32> {
        self.labels.get("tid").and_then(|v| v.parse().ok())
    }

    pub fn comm(&self) -> &str {
        self.labels.get("comm").map_or("", String::as_str)
    }

    /// The label that names the container or control group.
    pub fn container(&self) -> &str {
        let mut labels = self.labels.iter();
        labels.find(|(k, _)| k.starts_with("container")).map_or("", |(_, v)| v.as_str())
    }

    /// Whether a frame of this name is in it.
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|f| f.name == name)
    }

    /// Number of frames of this name.
    pub fn times(&self, name: &str) -> usize {
        self.frames.iter().filter(|f| f.name == name).count()
    }

    pub fn leaf(&self) -> Option<&Frame> {
        self.frames.first()
    }

    /// The function the user part's innermost machine frame belongs to (not one inlined into it).
    pub fn leaf_function(&self) -> &str {
        let mut frames = self.frames.iter().filter(|f| !f.is_kernel() && !f.is_inlined);
        frames.next().map_or("", |f| f.name.as_str())
    }

    /// The user part's outermost frame, if it has a user part.
    pub fn outermost_user_frame(&self) -> Option<&Frame> {
        self.frames.iter().rev().find(|f| f.address != 0 && !f.is_kernel())
    }

    /// The names from the leaf on, separated by ` < `.
    pub fn line(&self) -> String {
        self.frames.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(" < ")
    }

    /// Whether this frame comes before (nearer to the leaf than) that one.
    pub fn is_above(&self, upper: impl Fn(&Frame) -> bool, lower: &str) -> bool {
        let upper = self.frames.iter().position(upper);
        let lower = self.frames.iter().rposition(|f| f.name == lower);
        matches!((upper, lower), (Some(u), Some(l)) if u < l)
    }
}

/// A recording's stacks, or a part of them.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub stacks: Vec<Stack>,
}

impl Stacks {
    /// Those for which the condition holds.
    pub fn that(&self, condition: impl Fn(&Stack) -> bool) -> Self {
        Self { stacks: self.stacks.iter().filter(|s| condition(s)).cloned().collect() }
    }

    pub fn of_pid(&self, pid: i32) -> Self {
        self.that(|s| s.pid() == Some(pid))
    }

    pub fn of_comm(&self, comm: &str) -> Self {
        self.that(|s| s.comm() == comm)
    }

    /// Those with at least one user frame.
    pub fn with_user_part(&self) -> Self {
        self.that(|s| s.outermost_user_frame().is_some())
    }

    /// Number of samples.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(|s| s.count).sum()
    }

    /// Samples for which the condition holds, as a fraction of all.
    pub fn share_that(&self, condition: impl Fn(&Stack) -> bool) -> f64 {
        let part: u64 = self.stacks.iter().filter(|s| condition(s)).map(|s| s.count).sum();
        part as f64 / self.total().max(1) as f64
    }

    /// The fraction of samples whose innermost *user* function is this.
    pub fn share_of_leaf(&self, name: &str) -> f64 {
        self.share_that(|s| s.leaf_function() == name)
    }

    /// The fraction of samples whose innermost user function's name has all of these parts.
    pub fn share_of_leaf_like(&self, parts: &[&str]) -> f64 {
        self.share_that(|s| parts.iter().all(|p| s.leaf_function().contains(p)))
    }

    /// The fraction of samples with this function anywhere.
    pub fn share_with(&self, name: &str) -> f64 {
        self.share_that(|s| s.has(name))
    }

    /// How many of the samples with a user part end where a thread starts.
    pub fn completeness(&self) -> Completeness {
        let mut result = Completeness::default();
        for stack in &self.stacks {
            let Some(outermost) = stack.outermost_user_frame() else { continue };
            result.total += stack.count;
            if stack_ends::is_thread_start(outermost) {
                result.complete += stack.count;
            } else {
                let Frame { file, file_offset, .. } = outermost;
                let end =
                    format!("{} (at {:#x} of {file:?})", stack.line(), file_offset.unwrap_or(0));
                *result.other_ends.entry(end).or_default() += stack.count;
            }
        }
        result
    }

    /// Self counts by function name, most first.
    pub fn self_counts(&self) -> Vec<(String, u64)> {
        self.counts(|s| s.leaf().map(|f| f.name.clone()).into_iter().collect())
    }

    /// Counts of the stacks with a function anywhere, most first.
    pub fn inclusive_counts(&self) -> Vec<(String, u64)> {
        self.counts(|s| {
            let mut names: Vec<String> = s.frames.iter().map(|f| f.name.clone()).collect();
            names.sort();
            names.dedup();
            names
        })
    }

    fn counts(&self, names: impl Fn(&Stack) -> Vec<String>) -> Vec<(String, u64)> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for stack in &self.stacks {
            for name in names(stack) {
                *counts.entry(name).or_default() += stack.count;
            }
        }
        let mut sorted: Vec<(String, u64)> = counts.into_iter().collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sorted
    }
}

/// How many user stacks reached their end, and where the others stopped.
#[derive(Clone, Debug, Default)]
pub struct Completeness {
    pub total: u64,
    pub complete: u64,
    other_ends: BTreeMap<String, u64>,
}

impl Completeness {
    pub fn fraction(&self) -> f64 {
        self.complete as f64 / self.total.max(1) as f64
    }

    pub fn incomplete(&self) -> u64 {
        self.total - self.complete
    }

    /// Both together.
    pub fn and(mut self, other: Self) -> Self {
        self.total += other.total;
        self.complete += other.complete;
        for (line, count) in other.other_ends {
            *self.other_ends.entry(line).or_default() += count;
        }
        self
    }
}

impl fmt::Display for Completeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} = {:.2} %", self.complete, self.total, 100.0 * self.fraction())?;
        let mut ends: Vec<_> = self.other_ends.iter().collect();
        ends.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (line, count) in ends.iter().take(5) {
            let tail: String =
                line.chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
            write!(f, "\n      {count} x …{tail}")?;
        }
        Ok(())
    }
}
