//! The report at the end of a recording: as text, and as JSON for scripts.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use strata_abi::record::{Counter, End};
use strata_kinds::{Kind, Kinds, Shape};
use strata_profile::by_label::ByLabel;
use strata_profile::own_function::{self, OwnFunctions};
use strata_profile::pauses::Pauses;
use strata_profile::summary::{self, Summary};
use strata_profile::text::{quantity, sanitize_for_terminal, shortened};
use strata_profile::waits::Waits;
use strata_profile::{FrameKind, LabelsId, Profile};

use super::pauses;
use super::quality;
use crate::losses::{Running, advice, cause_of, losses};
use crate::printing::grouped;
use crate::shares;
use crate::terminal::{columns, counted, cut, print_more};
use crate::{processes, waits};
use strata_agent::engine::Engine;
use strata_agent::kernel::introspect;
use strata_agent::managed::events::AllWindows;
use strata_agent::selection::Selection;
use strata_sandbox::Usage;
use strata_symbolize::Shortfalls;

/// A file that was written.
pub struct Written {
    pub path: PathBuf,
    pub bytes: u64,
    pub format: strata_profile::Format,
    /// What it shows, if not everything.
    pub kind: Option<Kind>,
}

/// Which names and control groups no process had: `no process is named `nosuch``.
pub fn unmatched(selection: &Selection) -> String {
    let listed = |wanted_groups: bool| -> Vec<String> {
        let of_kind = selection.unmatched().filter(|(is_group, _)| *is_group == wanted_groups);
        of_kind.map(|(_, text)| format!("`{}`", sanitize_for_terminal(text))).collect()
    };
    let (names, groups) = (listed(false), listed(true));
    let mut parts = Vec::new();
    if !names.is_empty() {
        parts.push(format!("no process is named {}", names.join(" or ")));
    }
    if !groups.is_empty() {
        parts
            .push(format!("no process is in a container or control group {}", groups.join(" or ")));
    }
    parts.join(", and ")
}

/// Everything the summaries are made of.
pub struct Report<'a> {
    pub engine: &'a Engine,
    pub profile: &'a Profile,
    pub shortfalls: &'a Shortfalls,
    pub length: Duration,
    pub frequency: u32,
    pub kinds: Kinds,
    pub written: &'a [Written],
    pub failures: &'a [String],
    pub command_exit: Option<i32>,
}

/// Lines of each list.
pub const MOST: usize = 10;

impl Report<'_> {
    /// The column that a viewer shows first.
    fn column(&self, kind: Kind) -> usize {
        let first = self.profile.first_column_of(kind).unwrap_or_default();
        first + kind.info().default_column
    }

    fn summary(&self, kind: Kind) -> Summary {
        summary::summarize(self.profile, self.column(kind), MOST)
    }

    /// The summary for users.
    pub fn text(&self, verbose: bool) -> std::io::Result<String> {
        let mut text = Vec::new();
        self.print(&mut text, verbose)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn print(&self, out: &mut dyn Write, verbose: bool) -> std::io::Result<()> {
        for (position, kind) in self.kinds.iter().enumerate() {
            if position > 0 {
                writeln!(out)?;
            }
            self.print_kind(out, kind)?;
        }
        self.print_managed(out)?;
        self.print_losses(out, verbose)?;
        for written in self.written {
            if written.path != Path::new("-") {
                writeln!(
                    out,
                    "\n{}  ({}, {} KiB)",
                    written.path.display(),
                    describe(written.format),
                    written.bytes.div_ceil(1024)
                )?;
            }
        }
        Ok(())
    }

    fn print_kind(&self, out: &mut dyn Write, kind: Kind) -> std::io::Result<()> {
        let summary = self.summary(kind);
        let width = columns(&std::io::stderr());
        let samples = self.engine.aggregate.samples_of(kind);
        let threads = threads_with(self.profile, self.column(kind));
        let whose = format!(
            "{}, {}",
            counted(summary.processes as u64, "process"),
            counted(threads as u64, "thread"),
        );
        let seconds = self.length.as_secs_f64();
        let counted_samples = counted(samples, "sample");
        if kind == Kind::Cpu {
            let (frequency, rate) = (self.frequency, f64::from(self.frequency));
            let busy = samples as f64 / rate / seconds;
            writeln!(
                out,
                "{counted_samples} in {seconds:.1} s at {frequency} Hz: {busy:.2} CPUs busy, {whose}",
            )?;
        } else {
            let total = measured(summary.total, &summary.unit);
            let rethrown = match self.rethrown(kind) {
                0 => String::new(),
                some => format!(" ({} of them rethrown)", quantity(some, &summary.unit)),
            };
            let title = kind.info().title;
            writeln!(out, "{title}: {total}{rethrown} in {counted_samples}, {whose}")?;
        }
        if samples == 0 && kind == Kind::Cpu {
            writeln!(out, "{}", without_samples(self.frequency, self.command_exit.is_some()))?;
        }
        if samples == 0 && kind == Kind::Heap {
            writeln!(
                out,
                "no objects: those allocated while strata records are shown once a garbage \
                 collection of generation 1 or 2 has left them"
            )?;
        }
        let unmatched = unmatched(&self.engine.selection);
        if !unmatched.is_empty() {
            writeln!(out, "note: {unmatched}")?;
        }
        match kind.info().shape {
            Shape::Blocked => waits::print(&self.waits(kind), kind, width, out)?,
            Shape::Collection => {
                let length = (summary.processes == 1).then_some(self.length);
                pauses::print(&self.pauses(kind), length, width, out)?;
            }
            Shape::CpuSlice => print_functions(&summary, width, out)?,
            Shape::Event => {
                let functions = self.own_functions(kind);
                shares::functions(&functions, &summary.sample_type, &summary.unit, width, out)?;
            }
        }
        if let Some(label) = kind.info().telling_label {
            let values = self.by_label(kind, label);
            shares::values(&values, label, &summary.sample_type, &summary.unit, width, out)?;
        }
        // Waits have a list of their own.
        let are_several = summary.top_processes.iter().map(|one| one.processes).sum::<usize>() > 1;
        if are_several && kind.info().shape != Shape::Blocked {
            writeln!(out, "\n {:>5}   process", kind.name())?;
            processes::print(&summary.top_processes, summary.more_processes, width, out)?;
        }
        Ok(())
    }

    fn waits(&self, kind: Kind) -> Waits {
        strata_profile::waits::summarize(self.profile, self.column(kind), MOST)
    }

    fn pauses(&self, kind: Kind) -> Pauses {
        let first = self.profile.first_column_of(kind).unwrap_or_default();
        strata_profile::pauses::summarize(
            self.profile,
            first,
            first + kind.info().default_column,
            MOST,
        )
    }

    fn own_functions(&self, kind: Kind) -> OwnFunctions {
        own_function::summarize(self.profile, self.column(kind), MOST)
    }

    /// Of exceptions: how many were thrown before.
    fn rethrown(&self, kind: Kind) -> i64 {
        if kind != Kind::Exceptions {
            return 0;
        }
        let rethrown = self.by_label(kind, "rethrown").values;
        rethrown.iter().fold(0, |sum: i64, one| sum.saturating_add(one.total))
    }

    fn by_label(&self, kind: Kind, label: &str) -> ByLabel {
        strata_profile::by_label::summarize(self.profile, self.column(kind), label, MOST)
    }

    /// What was recorded of each kind: samples, the sums of its columns, and stacks that are not whole.
    fn kinds_json(&self) -> Value {
        let one = |kind: Kind| {
            let first = self.profile.first_column_of(kind).unwrap_or_default();
            let columns = kind.columns().iter().zip(first..);
            let sums: serde_json::Map<String, Value> = columns
                .map(|(column, at)| (column.own.name.to_owned(), self.profile.total(at).into()))
                .collect();
            let ends = self.engine.aggregate.ends_of(kind);
            let whole = [End::Complete, End::KernelOnly];
            let whole: u64 = whole.iter().filter_map(|end| ends.get(*end as usize)).sum();
            let incomplete = ends.iter().sum::<u64>() - whole;
            let samples = self.engine.aggregate.samples_of(kind);
            let mut of_kind =
                json!({ "samples": samples, "values": sums, "incomplete": incomplete });
            if kind.info().shape == Shape::Blocked {
                of_kind["waits"] = json!(self.waits(kind));
            }
            if kind.info().shape == Shape::Collection {
                of_kind["pauses"] = json!(self.pauses(kind));
            }
            if kind.info().shape == Shape::Event {
                of_kind["functions"] = json!(self.own_functions(kind).functions);
            }
            if let Some(label) = kind.info().telling_label {
                of_kind["by_label"] = json!({ label: self.by_label(kind, label).values });
            }
            (kind.name().to_owned(), of_kind)
        };
        Value::Object(self.kinds.iter().map(one).collect())
    }

    /// The number of .NET processes with a bridge, and those without, with reasons.
    fn print_managed(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let totals = self.engine.managed.totals();
        if totals.attached == 0 && totals.refused.is_empty() {
            return Ok(());
        }
        let (methods, processes) =
            (counted(totals.methods, "method"), counted(totals.attached, "process"));
        let mut line = format!(".NET: {methods} of {processes}");
        if totals.loaded > 0 {
            let gone = totals.loaded.saturating_sub(totals.detached);
            line += &format!("; attached to {}", grouped(totals.loaded));
            line += &format!(", detached from {}", grouped(totals.detached));
            if gone > 0 {
                line += &format!(" ({} ended first, or did not let go in time)", grouped(gone));
            }
        }
        writeln!(out, "\n{line}")?;
        for (pid, why) in totals.refused.iter().take(MOST) {
            writeln!(out, "  not attached to process {pid}: {}", sanitize_for_terminal(why))?;
        }
        if totals.refused.len() > MOST {
            let more = totals.refused.len() - MOST;
            writeln!(out, "  and {more} more (`strata ps` lists them)")?;
        }
        if totals.taken_over > 0 {
            let processes = counted(totals.taken_over, "process");
            writeln!(
                out,
                "  {processes} read beside another strata until that ended, and attached to since: \
                 events of the moments between are missing"
            )?;
        }
        for (pid, why) in totals.without_events.iter().take(MOST) {
            writeln!(out, "  process {pid} lacks events: {}", sanitize_for_terminal(why))?;
        }
        print_more(2, totals.without_events.len().saturating_sub(MOST), out)?;
        let AllWindows { sum, least } = totals.allocation_windows;
        // Another strata may record allocations of the same process.
        let has_allocations = [Kind::Allocations, Kind::Heap].map(|kind| self.kinds.contains(kind));
        if sum > 0 && has_allocations.contains(&true) {
            let windows = counted(sum, "window");
            writeln!(
                out,
                "  allocations were too many to be recorded all the time: their sums are estimates from \
                 {windows} of time, which bursts can make wrong by {:.0} %",
                burst_error(least)
            )?;
        }
        for (pid, why) in totals.managed_frames_only.iter().take(MOST) {
            let why = sanitize_for_terminal(why);
            writeln!(out, "  process {pid} has events with managed frames only: {why}")?;
        }
        print_more(2, totals.managed_frames_only.len().saturating_sub(MOST), out)?;
        Ok(())
    }

    fn print_losses(&self, out: &mut dyn Write, verbose: bool) -> std::io::Result<()> {
        let losses = losses(self.engine, &self.engine.aggregate.ends(), self.shortfalls.unnamed);
        if losses.is_empty() && self.engine.aggregate.samples() == 0 {
            return Ok(());
        }
        if losses.is_empty() {
            writeln!(out, "\nnothing was lost: every stack is complete")?;
        } else {
            writeln!(out, "\nnot complete:")?;
        }
        for line in quality::lines(self.profile) {
            writeln!(out, "  {}", sanitize_for_terminal(&line))?;
        }
        for loss in &losses {
            let advice = advice(loss.cause, Running::Recording);
            let advice = advice.map_or(String::new(), |advice| format!(" ({advice})"));
            writeln!(out, "  {:>8}  {}{advice}", grouped(loss.count), loss.text)?;
        }
        if verbose {
            for problem in &self.shortfalls.problems {
                writeln!(out, "  {}", sanitize_for_terminal(problem))?;
            }
        } else if !self.shortfalls.problems.is_empty() {
            writeln!(out, "  (-v names the files)")?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let first = self.kinds.iter().next().unwrap_or(Kind::Cpu);
        let summary = self.summary(first);
        let losses: serde_json::Map<String, Value> =
            losses(self.engine, &self.engine.aggregate.ends(), self.shortfalls.unnamed)
                .into_iter()
                .map(|loss| (loss.cause.to_owned(), loss.count.into()))
                .collect();
        let stacks: serde_json::Map<String, Value> = End::ALL
            .iter()
            .map(|end| {
                let count = self.engine.aggregate.ends().get(*end as usize).copied();
                (cause_of(*end).to_owned(), count.unwrap_or_default().into())
            })
            .collect();
        let functions: Vec<Value> = summary
            .top_functions
            .iter()
            .map(|function| {
                json!({
                    "name": function.name,
                    "module": function.module,
                    "self_percent": function.self_percent,
                    "total_percent": function.total_percent,
                })
            })
            .collect();
        let processes: Vec<Value> = summary
            .top_processes
            .iter()
            .map(|process| {
                json!({
                    "pid": process.pid,
                    "name": process.name,
                    "container": process.container,
                    "processes": process.processes,
                    "percent": process.percent,
                })
            })
            .collect();
        let outputs: Vec<Value> = self
            .written
            .iter()
            .map(|written| {
                json!({
                    "path": written.path.display().to_string(),
                    "format": written.format.name(),
                    "kind": written.kind.map(Kind::name),
                    "bytes": written.bytes,
                })
            })
            .collect();
        json!({
            "samples": self.engine.aggregate.samples(),
            "kinds": self.kinds_json(),
            "duration_seconds": self.length.as_secs_f64(),
            "frequency": self.frequency,
            "processes": summary.processes,
            "stacks": stacks,
            "losses": losses,
            "problems": self.shortfalls.problems,
            "top_functions": functions,
            "top_processes": processes,
            "more_processes": summary.more_processes,
            "outputs": outputs,
            "errors": self.failures,
            "command_exit": self.command_exit,
            "clr": self.managed(),
            "bpf": self.bpf(),
            "agent": self.agent(),
        })
    }

    fn managed(&self) -> Value {
        let totals = self.engine.managed.totals();
        let reasons = |all: &[(u32, String)]| -> Vec<Value> {
            all.iter().map(|(pid, why)| json!({ "pid": pid, "reason": why })).collect()
        };
        json!({
            "attached": totals.attached,
            "loaded": totals.loaded,
            "detached": totals.detached,
            "methods": totals.methods,
            "refused": reasons(&totals.refused),
            "without_events": reasons(&totals.without_events),
            "managed_frames_only": reasons(&totals.managed_frames_only),
            "allocation_windows": totals.allocation_windows.sum,
            "taken_over": totals.taken_over,
        })
    }

    /// What strata itself used, its helpers included, and the command not.
    fn agent(&self) -> Value {
        // SAFETY: a zeroed `rusage` is valid, and filled by the call.
        let own = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage
        };
        let time = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        let own_seconds = time(own.ru_utime) + time(own.ru_stime);
        let helpers = self.engine.loading.helpers();
        let memory = Usage::own_memory().unwrap_or_default();
        json!({
            "cpu_seconds": own_seconds + helpers.processor_time.as_secs_f64(),
            "own_cpu_seconds": own_seconds,
            "peak_rss_bytes": memory.peak_memory_bytes + helpers.peak_memory_bytes,
        })
    }

    fn bpf(&self) -> Value {
        let engine = self.engine;
        let used = |name: &str| {
            let program = engine.figures.programs.iter().find(|used| used.name == name);
            json!({
                "run_time_ns": program.map_or(0, |used| used.run_time.as_nanos() as u64),
                "run_count": program.map_or(0, |used| used.run_count),
                "missed": program.map_or(0, |used| used.missed),
                "verified_instructions": program.map_or(0, |used| used.verified_instructions),
            })
        };
        let sampler = used("sample_cpu");
        json!({
            "run_time_ns": sampler["run_time_ns"],
            "run_count": sampler["run_count"],
            "verified_instructions": sampler["verified_instructions"],
            "switched": used("switched"),
            "woken": used("woken"),
            "waits": engine.count_of_waits(Counter::Samples),
            "raw_waits": engine.count_of_waits(Counter::Raw),
            "clr_event": used("clr_event"),
            "clr_events": engine.count_of_clr_events(Counter::Samples),
            "raw_clr_events": engine.count_of_clr_events(Counter::Raw),
            "samples": engine.count(Counter::Samples),
            "idle": engine.count(Counter::Idle),
            "raw": engine.count(Counter::Raw),
            "cache_hits": engine.count(Counter::CacheHit),
            "cache_misses": engine.count(Counter::CacheMiss),
            "map_bytes": introspect::of_this_process().map_or(0, |own| own.map_bytes()),
            "table_bytes": engine.store.segments.used_bytes(),
            "rules": engine.store.rule_count(),
            "tables": engine.loading.built,
            "evicted": engine.store.evicted,
        })
    }
}

/// The standard error, in percent, of a sum from so many windows when a program allocates in a fifth of
/// the time, each burst longer than a window: the square root of what is outside per what is inside, per
/// window.
fn burst_error(windows: u64) -> f64 {
    200.0 / (windows.max(1) as f64).sqrt()
}

/// Threads with a value in a column. A thread that is renamed has labels of each name.
fn threads_with(profile: &Profile, column: usize) -> usize {
    let with_value = profile
        .samples()
        .filter(|sample| sample.values.get(column).is_some_and(|value| *value > 0));
    let labels: BTreeSet<LabelsId> = with_value.map(|sample| sample.labels).collect();
    let threads = labels.into_iter().map(|labels| profile.identity(labels));
    let threads: BTreeSet<_> = threads.map(|identity| (identity.pid, identity.tid)).collect();
    threads.len()
}

/// Why there are no samples of CPU time, and what helps.
fn without_samples(frequency: u32, has_command_ended: bool) -> String {
    let (who, advice) = match has_command_ended {
        true => ("the command", "a higher --frequency samples short commands"),
        false => ("the selected processes", "`strata stacks PID` shows where threads wait"),
    };
    let milliseconds = 1e3 / f64::from(frequency.max(1));
    format!(
        "no samples: {who} ran at no moment of sampling (every {milliseconds:.1} ms on each CPU): \
         {advice}"
    )
}

/// A sum in a readable unit.
fn measured(total: i64, unit: &str) -> String {
    match unit {
        "nanoseconds" => format!("{:.2}s", total as f64 / 1e9),
        "bytes" => format!("{:.1} MiB", total as f64 / f64::from(1 << 20)),
        _ => grouped(u64::try_from(total).unwrap_or(0)),
    }
}

fn print_functions(
    summary: &Summary,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if !summary.top_functions.is_empty() {
        writeln!(out, "\n  self   total  function")?;
    }
    for function in &summary.top_functions {
        let module = match function.kind {
            FrameKind::Kernel | FrameKind::Marker => String::new(),
            _ if function.module.is_empty() => String::new(),
            _ => format!("  ({})", sanitize_for_terminal(base_name(&function.module))),
        };
        let line = format!(
            "{:5.1}%  {:5.1}%  {}{module}",
            function.self_percent,
            function.total_percent,
            shortened(&sanitize_for_terminal(&function.name), 90),
        );
        writeln!(out, "{}", cut(&line, width))?;
    }
    print_more(16, summary.functions.saturating_sub(summary.top_functions.len()), out)
}

fn describe(format: strata_profile::Format) -> &'static str {
    use strata_profile::Format::{Firefox, Folded, PerfScript, Pprof, Svg};
    match format {
        Pprof => "pprof; go tool pprof -http=: FILE",
        Svg => "flame graph; open it in a browser",
        Folded => "folded stacks",
        PerfScript => "perf script text",
        Firefox => "open it at https://profiler.firefox.com",
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use strata_profile::ProfileBuilder;

    use super::*;

    #[test]
    fn threads_are_those_with_a_value_of_the_kind() {
        let mut builder =
            ProfileBuilder::of_kinds([Kind::Cpu, Kind::Exceptions].into_iter().collect());
        let frame = builder.frame(FrameKind::Native, "serve", "", "", 0);
        let location = builder.location(0, None, &[frame]);
        let stack = builder.stack(&[location]);
        for (tid, comm) in [(42, "first"), (42, "renamed"), (43, "worker")] {
            let of = builder.thread(41, tid, comm, "shop", "");
            let labels = builder.thread_labels(of);
            builder.add_of(Kind::Cpu, stack, labels, &[1, 10_000_000]);
            if tid == 43 {
                builder.add_of(Kind::Exceptions, stack, labels, &[1]);
            }
        }
        let profile = builder.finish();
        let of = |kind| threads_with(&profile, profile.first_column_of(kind).unwrap_or_default());
        assert_eq!((of(Kind::Cpu), of(Kind::Exceptions)), (2, 1));
    }
}
