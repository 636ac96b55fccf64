//! The completeness of a profile's stacks, and the programs and files with incomplete ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use strata_kinds::Kind;
use strata_profile::{FrameKind, Profile};

/// Programs or files that are named.
const MOST: usize = 3;
/// Smallest share of samples of Python functions without names that is reported, in percent.
const LEAST_PYTHON: u128 = 5;
/// CPython's interpreter loop; with `-X perf` a frame `py::function:file` is above each.
const PYTHON_LOOP: &str = "_PyEval_EvalFrameDefault";
const PYTHON_FUNCTION: &str = "py::";

/// Shares of samples and frames that miss something, and where. Nanoseconds of elapsed time by frame
/// pass 2^64 in hours where a host has thousands of threads.
#[derive(Clone, Debug, Default, PartialEq)]
struct Quality {
    samples: u128,
    /// Samples whose stack does not reach its start, and of which programs.
    incomplete: u128,
    programs: Vec<(String, u128)>,
    /// Frames of all samples.
    frames: u128,
    /// Frames that have no symbol, and of which files.
    unnamed: u128,
    files: Vec<(String, u128)>,
    /// Samples of processes that run CPython without its trampolines, and of which programs.
    python: u128,
    pythons: Vec<(String, u128)>,
}

/// What stacks of a process show of CPython.
#[derive(Default)]
struct Python {
    /// Samples with its interpreter loop.
    samples: u128,
    has_functions: bool,
}

/// What is missing, a line each; of every kind of sample by itself: a million exceptions would hide what
/// CPU samples miss.
pub fn lines(profile: &Profile) -> Vec<String> {
    let mut columns = BTreeMap::new();
    for at in 0..profile.sample_types.len() {
        columns.entry(profile.kind_of(at)).or_insert_with(|| profile.count_of(at).unwrap_or(at));
    }
    let is_one = columns.len() == 1;
    let of_kind = |(kind, at): (Option<Kind>, usize)| {
        let quality = Quality::of(profile, at);
        let lines = [quality.incomplete_text(), quality.unnamed_text(), quality.python_text()];
        lines.into_iter().flatten().map(move |line| match kind {
            Some(kind) if !is_one => format!("{}: {line}", kind.name()),
            _ => line,
        })
    };
    columns.into_iter().flat_map(of_kind).collect()
}

impl Quality {
    /// Weighted by the values of a sample type.
    fn of(profile: &Profile, weight: usize) -> Self {
        let mut quality = Self::default();
        let (mut programs, mut files) = (BTreeMap::new(), BTreeMap::new());
        let mut pythons: BTreeMap<_, Python> = BTreeMap::new();
        for sample in profile.samples() {
            let count = sample.values.get(weight).and_then(|value| u128::try_from(*value).ok());
            let Some(count) = count.filter(|count| *count > 0) else { continue };
            quality.samples += count;
            let (mut is_incomplete, mut is_python, mut has_functions) = (false, false, false);
            for at in profile.stack(sample.stack) {
                let location = profile.location(at);
                for frame in profile.frames(location) {
                    let name = profile.string(frame.name);
                    if frame.kind == FrameKind::Marker && name != "[unknown]" {
                        is_incomplete = true;
                        continue;
                    }
                    is_python |= name == PYTHON_LOOP;
                    has_functions |= name.starts_with(PYTHON_FUNCTION);
                    quality.frames += count;
                    if name == "[unknown]" || strata_profile::is_unnamed(name) {
                        quality.unnamed += count;
                        let path = profile.path_of(location);
                        let file = path.rsplit('/').next().unwrap_or_default();
                        let file = if file.is_empty() { "generated code" } else { file };
                        *files.entry(file.to_owned()).or_default() += count;
                    }
                }
            }
            if is_incomplete {
                quality.incomplete += count;
                let process = profile.string(profile.identity(sample.labels).process);
                *programs.entry(process.to_owned()).or_default() += count;
            }
            if is_python || has_functions {
                let identity = profile.identity(sample.labels);
                let python = pythons.entry((identity.pid, identity.process)).or_default();
                python.samples += if is_python { count } else { 0 };
                python.has_functions |= has_functions;
            }
        }
        let mut without_functions = BTreeMap::new();
        for ((_, process), python) in pythons.iter().filter(|(_, one)| !one.has_functions) {
            quality.python += python.samples;
            *without_functions.entry(profile.string(*process).to_owned()).or_default() +=
                python.samples;
        }
        quality.pythons = most(without_functions);
        quality.programs = most(programs);
        quality.files = most(files);
        quality
    }

    /// `5.3 % of stacks do not reach their start (of these: node 96.0 %, orders 4.0 %)`
    fn incomplete_text(&self) -> Option<String> {
        text("stacks do not reach their start", self.incomplete, self.samples, &self.programs)
    }

    /// `0.4 % of frames have no symbol (of these: libfoo.so 60.0 %, generated code 40.0 %)`
    fn unnamed_text(&self) -> Option<String> {
        text("frames have no symbol", self.unnamed, self.frames, &self.files)
    }

    /// Only where Python is much of what was sampled: few programs of a host are started with `-X perf`.
    fn python_text(&self) -> Option<String> {
        let is_much = self.python.saturating_mul(100) >= self.samples.saturating_mul(LEAST_PYTHON);
        let python = if is_much { self.python } else { 0 };
        let what = "stacks lack the names of Python functions";
        let line = text(what, python, self.samples, &self.pythons)?;
        Some(format!("{line}: start Python as `python3 -X perf` (3.12 and later)"))
    }
}

fn most(counts: BTreeMap<String, u128>) -> Vec<(String, u128)> {
    let mut list: Vec<_> = counts.into_iter().collect();
    list.sort_by_key(|(_, count)| Reverse(*count));
    list.truncate(MOST);
    list
}

fn text(what: &str, part: u128, all: u128, of: &[(String, u128)]) -> Option<String> {
    if part == 0 {
        return None;
    }
    let percent = |part: u128, all: u128| match 100.0 * part as f64 / all.max(1) as f64 {
        small if small < 0.1 => "<0.1 %".to_owned(),
        share => format!("{share:.1} %"),
    };
    let of = of.iter().map(|(name, count)| format!("{name} {}", percent(*count, part)));
    let of = of.collect::<Vec<_>>().join(", ");
    Some(format!("{} of {what} (of these: {of})", percent(part, all)))
}

#[cfg(test)]
mod tests {
    use strata_profile::ProfileBuilder;

    use super::*;

    #[test]
    fn the_worst_programs_and_files_are_named_with_their_shares() {
        let profile = strata_profile::read(
            b"node;[incomplete];run 9\nshop;main;serve 90\nshop;[incomplete];libx.so!0x12 1\n",
        )
        .expect("it is folded stacks");
        assert_eq!(
            lines(&profile),
            [
                "10.0 % of stacks do not reach their start (of these: node 90.0 %, shop 10.0 %)",
                "0.5 % of frames have no symbol (of these: generated code 100.0 %)"
            ]
        );
        let whole = strata_profile::read(b"shop;main;serve 90\n").expect("it is folded stacks");
        assert!(lines(&whole).is_empty());
    }

    #[test]
    fn much_python_without_trampolines_is_reported_with_the_option_that_names_it() {
        let of = |stacks: &[u8]| lines(&strata_profile::read(stacks).expect("it is folded stacks"));
        let found = of(b"app;main;_PyEval_EvalFrameDefault 60\nshop;main;serve 40\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("60.0 % of stacks lack the names of Python functions"));
        assert!(found[0].ends_with(
            "(of these: app 100.0 %): start Python as `python3 -X perf` (3.12 and later)"
        ));
        let named =
            b"app;py::run:/a.py;_PyEval_EvalFrameDefault 60\napp;_PyEval_EvalFrameDefault 9\n";
        assert!(of(named).is_empty());
        assert!(of(b"app;_PyEval_EvalFrameDefault 4\nshop;main;serve 96\n").is_empty());
    }

    #[test]
    fn shares_of_hours_of_many_threads_are_right() {
        let count = i64::MAX;
        let stacks = format!("shop;main;a;b;c;d;[unknown] {count}\nshop;main;a {count}\n");
        let profile = strata_profile::read(stacks.as_bytes()).expect("it is folded stacks");
        assert_eq!(
            lines(&profile),
            ["12.5 % of frames have no symbol (of these: generated code 100.0 %)"]
        );
    }

    #[test]
    fn what_each_kind_misses_is_of_its_own_samples() {
        let kinds = [Kind::Cpu, Kind::Exceptions].into_iter().collect();
        let mut builder = ProfileBuilder::of_kinds(kinds);
        let of = builder.thread(41, 42, "worker", "shop", "");
        let labels = builder.thread_labels(of);
        let mut stack = |names: &[&str]| {
            let mut location = |name: &&str| {
                let kind = FrameKind::derive("", name);
                let frame = builder.frame(kind, name, "", "", 0);
                builder.location(0, None, &[frame])
            };
            let locations: Vec<_> = names.iter().map(&mut location).collect();
            builder.stack(&locations)
        };
        let (whole, cut) = (stack(&["serve", "main"]), stack(&["pay", "[incomplete]"]));
        builder.add_of(Kind::Cpu, whole, labels, &[9, 90_000_000]);
        builder.add_of(Kind::Cpu, cut, labels, &[1, 10_000_000]);
        builder.add_of(Kind::Exceptions, whole, labels, &[1_000_000]);
        assert_eq!(
            lines(&builder.finish()),
            ["cpu: 10.0 % of stacks do not reach their start (of these: shop 100.0 %)"]
        );
    }
}
