//! What is said at the end: for people, and as JSON for scripts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use strata_abi::record::{Counter, END_COUNT, End};
use strata_profile::summary::{self, Summary};
use strata_profile::text::sanitize_for_terminal;
use strata_profile::{FrameKind, Profile};

use super::live::grouped;
use strata_agent::code_address::describe_end;
use strata_agent::engine::Engine;
use strata_agent::kernel::introspect;
use strata_agent::selection::Selection;
use strata_symbolize::Shortfalls;

/// A file that was written.
pub struct Written {
    pub path: PathBuf,
    pub bytes: u64,
    pub format: strata_profile::Format,
}

/// Something that is missing from the profile, and how often.
pub struct Loss {
    /// For scripts.
    pub cause: &'static str,
    /// For people.
    pub text: String,
    pub count: u64,
}

/// Losses other than the ways in which stacks end, for scripts and for people.
const CAUSES: [(&str, &str); 16] = [
    ("ring_full", "samples the record ring had no room for"),
    (
        "sampling_restarted",
        "times the kernel had stopped sampling a CPU for seconds, and was asked again",
    ),
    ("lost_events", "process events that were lost: the kernel had no room, or a CPU was off"),
    ("malformed_records", "records that made no sense"),
    ("raw_stacks_dropped", "raw stacks that had to be given up"),
    ("processes_unread", "processes whose mappings could not be read"),
    (
        "clr_looks_unanswered",
        "looks at what .NET processes have mapped that hung, or were left because others hang",
    ),
    (
        "clr_stacks_followed",
        "stacks of .NET code followed by frame pointer before its methods were known",
    ),
    ("files_unreadable", "mapped files that could not be read"),
    (
        "files_delayed",
        "times a mapped file was opened later: its process maps many, or strata was busy",
    ),
    ("tables_refused", "unwind tables without room (--table-memory)"),
    ("extents_dropped", "mappings beyond what a process may have in the kernel's tables"),
    ("mappings_refused", "executable mappings beyond 4,096 of one process"),
    (
        "mapping_events_muted",
        "mapping events passed over: their process maps without end, and is read again later",
    ),
    ("clr_records_lost", "records of .NET processes that were lost or refused"),
    ("unnamed_places", "addresses without a name"),
];

/// What a loss means to people.
pub fn explained(cause: &str) -> Option<String> {
    if let Some((_, text)) = CAUSES.iter().find(|(known, _)| *known == cause) {
        return Some((*text).to_owned());
    }
    let end = End::ALL.into_iter().find(|end| cause_of(*end) == cause)?;
    Some(format!("stacks cut: {}", describe_end(end)))
}

/// Every loss that is not zero. `ends` says how stacks ended, `unnamed` how many places have no
/// name.
pub fn losses(engine: &Engine, ends: &[u64; END_COUNT], unnamed: u64) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut add = |cause, count| {
        if count > 0 {
            losses.push(Loss { cause, text: explained(cause).unwrap_or_default(), count });
        }
    };
    add("ring_full", engine.count(Counter::RingFull));
    add("sampling_restarted", engine.restarted);
    add("lost_events", engine.table.lost_events);
    add("malformed_records", engine.malformed_records);
    for end in End::ALL {
        if matches!(end, End::Complete | End::KernelOnly) {
            continue;
        }
        add(cause_of(end), ends.get(end as usize).copied().unwrap_or_default());
    }
    add("raw_stacks_dropped", engine.raw_stacks_dropped());
    add("processes_unread", engine.processes_unread());
    add("clr_looks_unanswered", engine.managed.unanswered_looks());
    add("clr_stacks_followed", engine.stacks_followed());
    add("files_unreadable", engine.loading.failed_files);
    add("files_delayed", engine.loading.delayed_files);
    add("tables_refused", engine.store.refused);
    add("extents_dropped", engine.store.cut_extents);
    add("mappings_refused", engine.table.refused_mappings);
    add("mapping_events_muted", engine.table.muted_events);
    add("clr_records_lost", engine.managed.totals().lost);
    add("unnamed_places", unnamed);
    losses
}

fn cause_of(end: End) -> &'static str {
    match end {
        End::Complete => "complete",
        End::FrameLimit => "stack_frame_limit",
        End::NoMapping => "stack_no_mapping",
        End::BrokenChain => "stack_broken_frame_pointers",
        End::UnreadableStack => "stack_unreadable",
        End::UnsupportedRule => "stack_unsupported_rule",
        End::StackNotGrowing => "stack_not_growing",
        End::NoProcess => "stack_process_unknown",
        End::Compat => "stack_32_bit",
        End::KernelOnly => "kernel_only",
        End::CaptureLimit => "stack_capture_limit",
        End::NoReturnAddress => "stack_no_return_address",
    }
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
    pub written: &'a [Written],
    pub failures: &'a [String],
    pub command_exit: Option<i32>,
}

/// Lines of each list.
const MOST: usize = 10;

impl Report<'_> {
    fn summary(&self) -> Summary {
        summary::summarize(self.profile, self.profile.shown_sample_type(), MOST)
    }

    pub fn print(&self, out: &mut dyn Write, verbose: bool) -> std::io::Result<()> {
        let summary = self.summary();
        let samples = self.engine.aggregate.samples();
        let busy = samples as f64 / f64::from(self.frequency) / self.length.as_secs_f64();
        writeln!(
            out,
            "{} samples in {:.1}s at {} Hz: {:.2} CPUs busy, {} processes, {} threads",
            grouped(samples),
            self.length.as_secs_f64(),
            self.frequency,
            busy,
            grouped(summary.processes as u64),
            grouped(self.profile.threads().len() as u64),
        )?;
        if samples == 0 {
            writeln!(
                out,
                "no samples: the selected processes used no CPU time meanwhile (`strata stacks PID` \
                 shows where they wait)"
            )?;
        }
        let unmatched = unmatched(&self.engine.selection);
        if !unmatched.is_empty() {
            writeln!(out, "note: {unmatched}")?;
        }
        if !summary.top_functions.is_empty() {
            writeln!(out, "\n  self   total  function")?;
        }
        for function in &summary.top_functions {
            let module = match function.kind {
                FrameKind::Kernel | FrameKind::Marker => String::new(),
                _ if function.module.is_empty() => String::new(),
                _ => format!("  ({})", sanitize_for_terminal(base_name(&function.module))),
            };
            writeln!(
                out,
                "{:5.1}%  {:5.1}%  {}{module}",
                function.self_percent,
                function.total_percent,
                shorten(&sanitize_for_terminal(&function.name), 90),
            )?;
        }
        if summary.top_processes.len() > 1 {
            writeln!(out, "\n   cpu   process")?;
            for process in &summary.top_processes {
                let pid = process.pid.map(|pid| format!(" [{pid}]")).unwrap_or_default();
                let container = process.container.get(..12).unwrap_or(&process.container);
                let container =
                    if container.is_empty() { String::new() } else { format!("  in {container}") };
                writeln!(
                    out,
                    "{:5.1}%  {}{pid}{container}",
                    process.percent,
                    sanitize_for_terminal(&process.name),
                )?;
            }
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

    /// How many .NET processes were reached into, and which were not, and why.
    fn print_managed(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let totals = self.engine.managed.totals();
        if totals.attached == 0 && totals.refused.is_empty() {
            return Ok(());
        }
        let processes = |count: u64| match count {
            1 => "1 process".to_owned(),
            count => format!("{} processes", grouped(count)),
        };
        let mut line =
            format!(".NET: {} methods of {}", grouped(totals.methods), processes(totals.attached));
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
            writeln!(out, "  process {pid} has no managed names: {}", sanitize_for_terminal(why))?;
        }
        if totals.refused.len() > MOST {
            let more = totals.refused.len() - MOST;
            writeln!(out, "  and {more} more (`strata ps` tells)")?;
        }
        Ok(())
    }

    fn print_losses(&self, out: &mut dyn Write, verbose: bool) -> std::io::Result<()> {
        let losses = losses(self.engine, self.engine.aggregate.ends(), self.shortfalls.unnamed);
        if losses.is_empty() && self.engine.aggregate.samples() == 0 {
            return Ok(());
        }
        if losses.is_empty() {
            writeln!(out, "\nnothing was lost: every stack is complete")?;
        } else {
            writeln!(out, "\nnot complete:")?;
        }
        for loss in &losses {
            writeln!(out, "  {:>8}  {}", grouped(loss.count), loss.text)?;
        }
        if verbose {
            for problem in &self.shortfalls.problems {
                writeln!(out, "  {}", sanitize_for_terminal(problem))?;
            }
        } else if !self.shortfalls.problems.is_empty() {
            writeln!(out, "  (-v tells which files are concerned)")?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let summary = self.summary();
        let losses: serde_json::Map<String, Value> =
            losses(self.engine, self.engine.aggregate.ends(), self.shortfalls.unnamed)
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
                    "bytes": written.bytes,
                })
            })
            .collect();
        json!({
            "samples": self.engine.aggregate.samples(),
            "duration_seconds": self.length.as_secs_f64(),
            "frequency": self.frequency,
            "processes": summary.processes,
            "stacks": stacks,
            "losses": losses,
            "problems": self.shortfalls.problems,
            "top_functions": functions,
            "top_processes": processes,
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
        let refused: Vec<Value> =
            totals.refused.iter().map(|(pid, why)| json!({ "pid": pid, "reason": why })).collect();
        json!({
            "attached": totals.attached,
            "loaded": totals.loaded,
            "detached": totals.detached,
            "methods": totals.methods,
            "refused": refused,
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
        json!({
            "cpu_seconds": own_seconds + helpers.processor_time.as_secs_f64(),
            "own_cpu_seconds": own_seconds,
            "peak_rss_bytes": own.ru_maxrss as u64 * 1024 + helpers.peak_memory_bytes,
        })
    }

    fn bpf(&self) -> Value {
        let engine = self.engine;
        let sampler = engine.sampler_use.as_ref();
        json!({
            "run_time_ns": sampler.map_or(0, |used| used.run_time.as_nanos() as u64),
            "run_count": sampler.map_or(0, |used| used.run_count),
            "verified_instructions": sampler.map_or(0, |used| used.verified_instructions),
            "samples": engine.count(Counter::Samples),
            "idle": engine.count(Counter::Idle),
            "raw": engine.count(Counter::Raw),
            "cache_hits": engine.count(Counter::CacheHit),
            "cache_misses": engine.count(Counter::CacheMiss),
            "map_bytes": introspect::of_this_process().map_or(0, |own| own.map_bytes()),
            "table_bytes": engine.store.used_bytes(),
            "rules": engine.store.rule_count(),
            "tables": engine.loading.built,
            "evicted": engine.store.evicted,
        })
    }
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

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most - 1).collect();
    short.push('…');
    short
}
