//! The possible calls in a test program, compared with stacks: the check for skipped callers.
//!
//! The program writes its call graph to a file (`tests/targets/csharp/SmallMethods/Graph.cs` has
//! the format). No method in it calls a callee of its own callees, so every skipped caller makes a
//! pair that is not in the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::stacks::{Stack, Stacks};

/// How a call of one method of the program by another shows in a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// Side by side, at most with a stub of the runtime's between.
    Direct,
    /// With at least one foreign frame between.
    Through,
    /// Either: a frame in between may be missing.
    Either,
}

/// A program's own methods and the calls between them.
#[derive(Default)]
pub struct CallGraph {
    prefixes: Vec<String>,
    roots: BTreeSet<String>,
    calls: BTreeMap<(String, String), Call>,
    /// Callee above caller without having been called by it: a handler above the code that threw.
    above: BTreeSet<(String, String)>,
    depths: Vec<Depth>,
    /// The calls as written, without those that follow from a caller that is gone.
    written: BTreeSet<(String, String)>,
}

struct Depth {
    method: String,
    prefix: String,
    frames: usize,
}

impl CallGraph {
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        Self::parse(&text)
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut gone: Vec<(String, String)> = vec![];
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["program", prefix] => graph.prefixes.push((*prefix).to_string()),
                ["root", method] => {
                    graph.roots.insert((*method).to_string());
                }
                ["edge", a, b] => graph.add(a, b, Call::Direct),
                ["through", a, b] => graph.add(a, b, Call::Through),
                ["gone", a, b] => {
                    graph.add(a, b, Call::Either);
                    gone.push(((*a).to_string(), (*b).to_string()));
                }
                ["above", a, b] => {
                    graph.above.insert(((*a).to_string(), (*b).to_string()));
                }
                ["depth", method, prefix, frames] => graph.depths.push(Depth {
                    method: (*method).to_string(),
                    prefix: (*prefix).to_string(),
                    frames: frames.parse().with_context(|| line.to_string())?,
                }),
                _ => bail!("not a line of a call graph: {line}"),
            }
        }
        graph.close(&gone);
        Ok(graph)
    }

    fn add(&mut self, caller: &str, callee: &str, call: Call) {
        let pair = (caller.to_string(), callee.to_string());
        self.written.insert(pair.clone());
        // Both ways at different places: either is right.
        let merged = match self.calls.get(&pair) {
            Some(known) if *known != call => Call::Either,
            _ => call,
        };
        self.calls.insert(pair, merged);
    }

    /// The caller of a method that may be missing may appear to call that method's callees.
    fn close(&mut self, gone: &[(String, String)]) {
        loop {
            let mut more = vec![];
            for (method, callee) in gone {
                for (caller, called) in self.calls.keys() {
                    let pair = (caller.clone(), callee.clone());
                    if called == method && !self.calls.contains_key(&pair) {
                        more.push(pair);
                    }
                }
            }
            if more.is_empty() {
                return;
            }
            self.calls.extend(more.into_iter().map(|pair| (pair, Call::Either)));
        }
    }

    /// Compares every stack that has a method of the program in it.
    pub fn check(&self, stacks: &Stacks) -> Verdict {
        let mut verdict = Verdict::default();
        let mut seen = BTreeSet::new();
        for stack in &stacks.stacks {
            let own = self.own_frames(stack);
            if own.is_empty() {
                verdict.elsewhere += stack.count;
                continue;
            }
            verdict.samples += stack.count;
            let mut wrongs: Vec<String> = vec![];
            for (callee, caller) in own.iter().zip(own.iter().skip(1)) {
                let pair = (caller.name.clone(), callee.name.clone());
                verdict.pairs += stack.count;
                let between = stack.frames.get(callee.index + 1..caller.index).unwrap_or_default();
                let is_direct = between.iter().all(|frame| frame.name.starts_with("(stub)"));
                let is_right = match self.calls.get(&pair) {
                    Some(Call::Direct) => is_direct,
                    Some(Call::Through) => !between.is_empty(),
                    Some(Call::Either) => true,
                    None => false,
                };
                if !is_right && !self.above.contains(&pair) {
                    let how = if is_direct { "directly" } else { "through others" };
                    wrongs.push(format!("{} {how} above {}", callee.name, caller.name));
                }
                seen.insert(pair);
            }
            if let Some(outermost) = own.last().filter(|frame| !self.roots.contains(&frame.name)) {
                wrongs.push(format!("{} outermost", outermost.name));
            }
            wrongs.extend(self.wrong_depths(&own));
            if !wrongs.is_empty() {
                verdict.wrong += stack.count;
                if verdict.examples.len() < EXAMPLES {
                    verdict.examples.push(format!("{}: {}", wrongs.join(", "), stack.line()));
                }
            }
            for wrong in wrongs {
                *verdict.kinds.entry(wrong).or_default() += stack.count;
            }
        }
        verdict.unseen = self.written.difference(&seen).cloned().collect();
        verdict.calls = self.written.len();
        verdict
    }

    fn own_frames(&self, stack: &Stack) -> Vec<OwnFrame> {
        let frames = stack.frames.iter().enumerate();
        let named = frames.map(|(index, f)| OwnFrame { index, name: without_arguments(&f.name) });
        named.filter(|f| self.prefixes.iter().any(|p| f.name.starts_with(p))).collect()
    }

    fn wrong_depths(&self, own: &[OwnFrame]) -> Vec<String> {
        let of = |depth: &Depth| own.iter().filter(|f| f.name.starts_with(&depth.prefix)).count();
        let depths = self.depths.iter().filter(|d| own.iter().any(|f| f.name == d.method));
        let wrong = depths.filter(|d| of(d) != d.frames);
        wrong.map(|d| format!("{} frames below {}", of(d), d.method)).collect()
    }
}

const EXAMPLES: usize = 5;

struct OwnFrame {
    index: usize,
    name: String,
}

/// The results of the comparison.
#[derive(Default)]
pub struct Verdict {
    /// With a method of the program.
    pub samples: u64,
    /// Without: threads of the runtime's own.
    pub elsewhere: u64,
    /// Of `samples`: those with a pair not in the graph, a false end, or a wrong depth.
    pub wrong: u64,
    /// Pairs of caller and callee looked at.
    pub pairs: u64,
    /// Calls that the graph has.
    pub calls: usize,
    /// Of those: never seen. A test that saw little has shown little.
    pub unseen: Vec<(String, String)>,
    kinds: BTreeMap<String, u64>,
    examples: Vec<String>,
}

impl Verdict {
    /// The fraction of samples that are right.
    pub fn fraction_right(&self) -> f64 {
        1.0 - self.wrong as f64 / self.samples.max(1) as f64
    }

    /// The fraction of the graph's calls that were seen.
    pub fn coverage(&self) -> f64 {
        1.0 - self.unseen.len() as f64 / self.calls.max(1) as f64
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} samples wrong ({:.3} % right), {} pairs, {:.0} % of {} calls seen, {} samples elsewhere",
            self.wrong,
            self.samples,
            100.0 * self.fraction_right(),
            self.pairs,
            100.0 * self.coverage(),
            self.calls,
            self.elsewhere
        )?;
        for (caller, callee) in &self.unseen {
            write!(f, "\n  never seen: {caller} > {callee}")?;
        }
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (kind, count) in kinds.iter().take(20) {
            write!(f, "\n  {count} x {kind}")?;
        }
        for example in &self.examples {
            write!(f, "\n  e.g. {}", example.chars().take(600).collect::<String>())?;
        }
        Ok(())
    }
}

/// A name without type arguments: `Box<T>.Open<U>` is `Box.Open`. Not so an operator's `<`.
pub fn without_arguments(name: &str) -> String {
    let mut result = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let mut last = ' ';
    for character in name.chars() {
        match character {
            '<' if last != ' ' && !(last == '<' && depth == 0) => depth += 1,
            '>' if depth > 0 => depth -= 1,
            _ if depth == 0 => result.push(character),
            _ => {}
        }
        last = character;
    }
    result
}

/// The chains that a program printed as the runtime's own view: `chain`, then names from the
/// innermost on, separated by tabs.
pub fn printed_chains(text: &str) -> Stacks {
    let chains = text.lines().filter_map(|line| line.strip_prefix("chain\t"));
    let stacks = chains.map(|chain| Stack {
        frames: chain.split('\t').map(crate::stacks::Frame::named).collect(),
        count: 1,
        ..Stack::default()
    });
    Stacks { stacks: stacks.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "program My.\nroot My.Main\nedge My.Main My.A\nedge My.A My.B\n\
        gone My.B My.C\nthrough My.C My.D\nabove My.D My.A\ndepth My.D My.Step 0\n";

    fn verdict(chain: &str) -> Verdict {
        let text = format!("chain\t{}", chain.replace(" < ", "\t"));
        CallGraph::parse(GRAPH).unwrap().check(&printed_chains(&text))
    }

    #[test]
    fn a_stack_of_calls_that_the_graph_has_is_right() {
        let verdict = verdict("malloc < My.C < My.B < My.A < My.Main < _start");
        assert_eq!((verdict.samples, verdict.wrong, verdict.pairs), (1, 0, 3), "{verdict}");
        assert_eq!(verdict.unseen, vec![("My.C".to_string(), "My.D".to_string())]);
    }

    #[test]
    fn a_skipped_caller_is_seen() {
        assert_eq!(verdict("My.B < My.Main").wrong, 1);
        assert_eq!(verdict("My.B < My.A").wrong, 1, "Main is missing");
    }

    #[test]
    fn a_caller_that_may_be_gone_may_be_missing() {
        assert_eq!(verdict("My.C < My.A < My.Main").wrong, 0);
    }

    #[test]
    fn a_call_through_others_needs_others() {
        assert_eq!(verdict("My.D < System.X < My.C < My.B < My.A < My.Main").wrong, 0);
        assert_eq!(verdict("My.D < My.C < My.B < My.A < My.Main").wrong, 1);
        assert_eq!(verdict("My.B < System.X < My.A < My.Main").wrong, 1);
    }

    #[test]
    fn a_handler_may_lie_above_the_code_that_threw() {
        let chain = "My.A < System.EH < My.D < System.X < My.C < My.B < My.A < My.Main";
        assert_eq!(verdict(chain).wrong, 0);
    }

    #[test]
    fn type_arguments_are_left_out_but_operators_are_not() {
        assert_eq!(without_arguments("My.Box<List<T>>.Open<U, V>"), "My.Box.Open");
        assert_eq!(without_arguments("My.Money.operator <"), "My.Money.operator <");
        assert_eq!(without_arguments("My.Money.operator <<"), "My.Money.operator <<");
    }
}
