//! The losses of a profile: each with its text and the remedy.

use strata_abi::record::{Counter, END_COUNT, End};
use strata_agent::code_address::describe_end;
use strata_agent::engine::Engine;
use strata_kinds::{BridgeEvents, Kind};

/// Something that is missing from the profile, and how often.
pub struct Loss {
    /// For scripts.
    pub cause: &'static str,
    /// For display.
    pub text: String,
    pub count: u64,
}

/// What runs, and therefore which option or setting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    Recording,
    Daemon,
}

/// A cause: its name for scripts, its text, and the remedy in a recording and in the daemon; empty
/// where there is none.
struct Cause {
    name: &'static str,
    text: &'static str,
    recording: &'static str,
    daemon: &'static str,
}

const fn cause(
    name: &'static str,
    text: &'static str,
    recording: &'static str,
    daemon: &'static str,
) -> Cause {
    Cause { name, text, recording, daemon }
}

const EVENTS_LOST: &str = "the host was too busy to run strata, or a process renames its threads thousands of times a second";

/// Losses other than incomplete stacks.
const CAUSES: [Cause; 29] = [
    cause(
        "ring_full",
        "samples dropped: the kernel's ring buffer was full",
        "use a lower --frequency",
        "lower sampling.frequency, or raise memory_limit",
    ),
    cause(
        "sampling_restarted",
        "times a CPU was not sampled for seconds, until its event was opened again",
        "",
        "",
    ),
    cause(
        "cpus_unsampled",
        "CPUs added to this machine that are not sampled: there is no room for their samples",
        "record again",
        "start the daemon again",
    ),
    cause(
        "lost_events",
        "process events lost, or a CPU was off: some processes have no names or tables",
        EVENTS_LOST,
        EVENTS_LOST,
    ),
    cause(
        "waits_without_end",
        "waits whose end was noticed late and their length estimated",
        "",
        "",
    ),
    cause(
        "clr_events_unreadable",
        "reports of .NET processes that hold no event: their memory is not what their bridge wrote",
        "",
        "",
    ),
    cause(
        "objects_missing",
        "sampled objects of .NET processes in use and not shown: their event was lost, or too many were in use",
        "",
        "",
    ),
    cause(
        "object_stacks_shortened",
        "objects of .NET processes whose stacks were shortened to 8 frames: those of one process are too long together",
        "",
        "",
    ),
    cause(
        "event_labels_left_out",
        "events and objects of .NET processes without some of their labels: too many were different",
        "record for a shorter time",
        "dotnet.exception_messages = false keeps messages from taking the room",
    ),
    cause(
        "event_types_unknown",
        "exceptions, allocations and objects of .NET processes without their type: it could not be read at once",
        "",
        "",
    ),
    cause(
        "kernel_stacks_truncated",
        "samples whose kernel stack has more than 127 frames: the outermost are left out",
        "",
        "",
    ),
    cause("waits_refused", "waits dropped: too many threads waited at once", "", ""),
    cause(
        "thread_reads_hung",
        "times reading a thread's stack hung: its process has kernel stacks only for a while",
        "its stack is mapped from a file system that does not answer",
        "its stack is mapped from a file system that does not answer",
    ),
    cause(
        "thread_passes_refused",
        "times threads were not walked: their reader failed, or too many earlier ones hang",
        "a reader hangs where a stack is mapped from a file system that does not answer",
        "the log has the error of a reader that failed; one hangs where a stack is mapped from a file system that does not answer",
    ),
    cause("threads_refused", "threads without wall-clock time: they were too many", "", ""),
    cause("malformed_records", "records refused: not in the sampler's format", "", ""),
    cause(
        "unexpected_records",
        "records refused: of a kind of sample that is not recorded",
        "",
        "",
    ),
    cause(
        "raw_stacks_dropped",
        "deferred samples dropped before their unwind tables were ready",
        "new programs were many at once",
        "new programs were many at once; a higher memory_limit keeps more",
    ),
    cause(
        "processes_unread",
        "processes without a stack: they ended before their mappings were read, or may not be read",
        "",
        "",
    ),
    cause(
        "clr_maps_reads_timed_out",
        "reads of .NET processes' mappings not answered in time",
        "the host is short of memory, or a file system hangs",
        "the host is short of memory, or a file system hangs",
    ),
    cause(
        "clr_stacks_followed",
        "stacks of .NET code unwound by frame pointer before its methods were known",
        "",
        "",
    ),
    cause(
        "files_unreadable",
        "times a mapped file could not be read: its code is unwound by frame pointer",
        "-v names the files",
        "deleted files and files of other mount namespaces are usual",
    ),
    cause(
        "files_delayed",
        "times a mapped file was opened late: its process maps many, or strata was busy",
        "",
        "",
    ),
    cause(
        "tables_refused",
        "unwind tables without room",
        "raise --table-memory",
        "raise memory_limit",
    ),
    cause(
        "extents_dropped",
        "ranges of code beyond the 4,096 of a process that the sampler can search: stacks end at frames \
         in them",
        "",
        "",
    ),
    cause(
        "mappings_refused",
        "executable mappings beyond the 4,096 of a process that are kept: stacks end at frames in them, \
         which have no symbols",
        "",
        "",
    ),
    cause(
        "mapping_events_muted",
        "mapping events skipped: their process maps without end, and is read again later; until then \
         stacks may have names of what it had mapped before",
        "",
        "",
    ),
    cause("clr_records_lost", "records of .NET processes lost or refused", "", ""),
    cause(
        "unsymbolized_addresses",
        "addresses without a symbol",
        "install debug symbols; `strata doctor --pid PID` says of which files",
        "install debug symbols; `strata doctor --pid PID` says of which files",
    ),
];

/// What is lost of the kinds that the CLR bridge reports: in the table of kinds.
fn of_bridge() -> impl Iterator<Item = (Kind, &'static BridgeEvents)> {
    Kind::ALL.into_iter().filter_map(|kind| Some((kind, kind.info().bridge.as_ref()?)))
}

/// Of whole samples, and of process events: what the line of a running recording sums, with those
/// [`of_bridge`].
const WHOLE: [&str; 6] = [
    "ring_full",
    "lost_events",
    "waits_refused",
    "threads_refused",
    "malformed_records",
    "unexpected_records",
];

fn known(name: &str) -> Option<&'static Cause> {
    CAUSES.iter().find(|cause| cause.name == name)
}

fn end_of(cause: &str) -> Option<End> {
    End::ALL.into_iter().find(|end| cause_of(*end) == cause)
}

/// The text of a loss, for display.
pub fn explained(cause: &str) -> Option<String> {
    if let Some(known) = known(cause) {
        return Some(known.text.to_owned());
    }
    if let Some((_, events)) = of_bridge().find(|(_, events)| events.dropped == cause) {
        return Some(events.dropped_text.to_owned());
    }
    let end = end_of(cause)?;
    let what = if end == End::FrameLimit { "truncated" } else { "incomplete" };
    Some(format!("stacks {what}: {}", describe_end(end)))
}

/// As [`explained`], for behind this number.
pub fn explained_for(cause: &str, count: u64) -> Option<String> {
    let text = explained(cause)?;
    Some(if count == 1 { with_first_word_singular(&text) } else { text })
}

fn with_first_word_singular(text: &str) -> String {
    let (word, rest) = text.split_at(text.find(' ').unwrap_or(text.len()));
    let singular = match word {
        word if word.ends_with("sses") => word.strip_suffix("es"),
        word if word.ends_with("ss") => None,
        word => word.strip_suffix('s'),
    };
    format!("{}{rest}", singular.unwrap_or(word))
}

/// The remedy, where there is one.
pub fn advice(cause: &str, running: Running) -> Option<&'static str> {
    if let Some(known) = known(cause) {
        let advice = match running {
            Running::Recording => known.recording,
            Running::Daemon => known.daemon,
        };
        return Some(advice).filter(|advice| !advice.is_empty());
    }
    match end_of(cause)? {
        End::FrameLimit if running == Running::Recording => Some(
            "deep recursion: the outermost frames are missing (--max-frames keeps 1,024 at most)",
        ),
        End::FrameLimit => Some("deep recursion: the outermost frames are missing"),
        End::NoMapping | End::BrokenChain => {
            Some("code of a JIT compiler, or built without frame pointers or unwind tables")
        }
        End::NoProcess | End::CaptureLimit => Some("usual in the first moments of a program"),
        _ => None,
    }
}

/// The names of all causes.
pub fn causes() -> impl Iterator<Item = &'static str> {
    let bridge = of_bridge().map(|(_, events)| events.dropped);
    let is_loss = |end: &End| !matches!(end, End::Complete | End::KernelOnly);
    let ends = End::ALL.into_iter().filter(is_loss).map(cause_of);
    CAUSES.iter().map(|cause| cause.name).chain(bridge).chain(ends)
}

/// Every loss that is not zero. `ends` counts how stacks ended, `unnamed` the addresses without a
/// symbol.
pub fn losses(engine: &Engine, ends: &[u64; END_COUNT], unnamed: u64) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut add = |cause, count| {
        if count > 0 {
            losses.push(Loss {
                cause,
                text: explained_for(cause, count).unwrap_or_default(),
                count,
            });
        }
    };
    add("ring_full", engine.ring_full());
    for (kind, events) in of_bridge() {
        add(events.dropped, engine.clr_events_refused(kind));
    }
    add("clr_events_unreadable", engine.clr_events_unreadable());
    add("objects_missing", engine.heaps.missing());
    add("object_stacks_shortened", engine.heaps.shortened());
    let shortfalls = engine.shortfalls();
    add("event_labels_left_out", shortfalls.labels_left_out);
    add("event_types_unknown", shortfalls.types_unknown);
    add("kernel_stacks_truncated", shortfalls.kernel_stacks_truncated);
    add("waits_without_end", engine.waits.endless);
    add("waits_refused", engine.waits.refused + engine.count_of_waits(Counter::Crowded));
    let passes = engine.pass_figures();
    add("thread_reads_hung", passes.abandoned);
    add("thread_passes_refused", passes.refused);
    add("threads_refused", engine.threads_refused());
    add("sampling_restarted", engine.figures.restarted);
    add("cpus_unsampled", engine.figures.cpus_without_room);
    add("lost_events", engine.table.lost_events);
    add("malformed_records", engine.figures.malformed_records);
    add("unexpected_records", engine.figures.unexpected_records);
    for end in End::ALL {
        if matches!(end, End::Complete | End::KernelOnly) {
            continue;
        }
        add(cause_of(end), ends.get(end as usize).copied().unwrap_or_default());
    }
    add("raw_stacks_dropped", engine.raw_stacks_dropped());
    add("processes_unread", engine.processes_unread());
    add("clr_maps_reads_timed_out", engine.managed.unanswered_looks());
    add("clr_stacks_followed", engine.stacks_followed());
    add("files_unreadable", engine.loading.failed_files);
    add("files_delayed", engine.loading.delayed_files);
    add("tables_refused", engine.store.refused);
    add("extents_dropped", engine.store.dropped_extents);
    add("mappings_refused", engine.table.refused_mappings);
    add("mapping_events_muted", engine.table.muted_events);
    add("clr_records_lost", engine.managed.totals().lost);
    add("unsymbolized_addresses", unnamed);
    losses
}

/// Samples and process events that were lost so far.
pub fn lost(engine: &Engine) -> u64 {
    sum_of_whole(&losses(engine, &[0; END_COUNT], 0))
}

fn sum_of_whole(losses: &[Loss]) -> u64 {
    let is_whole = |cause: &str| {
        WHOLE.contains(&cause) || of_bridge().any(|(_, events)| events.dropped == cause)
    };
    losses.iter().filter(|loss| is_whole(loss.cause)).map(|loss| loss.count).sum()
}

pub fn cause_of(end: End) -> &'static str {
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
        End::NotWalked => "stack_not_walked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_of_what_runs() {
        assert_eq!(advice("tables_refused", Running::Recording), Some("raise --table-memory"));
        assert_eq!(advice("tables_refused", Running::Daemon), Some("raise memory_limit"));
        assert_eq!(advice("malformed_records", Running::Daemon), None);
        let end = cause_of(End::NoMapping);
        assert!(explained(end).is_some_and(|text| text.starts_with("stacks incomplete: ")));
        assert!(advice(end, Running::Daemon).is_some());
        let end = cause_of(End::FrameLimit);
        assert!(explained(end).is_some_and(|text| text.starts_with("stacks truncated: ")));
        assert!(advice(end, Running::Recording).is_some_and(|text| text.contains("--max-frames")));
        assert!(advice(end, Running::Daemon).is_some_and(|text| !text.contains("--")));
        assert_eq!(explained("of another version"), None);
    }

    #[test]
    fn one_is_no_plural() {
        let of = |count| explained_for("thread_passes_refused", count);
        assert!(of(1).is_some_and(|text| text.starts_with("time threads were not walked")));
        assert!(of(2).is_some_and(|text| text.starts_with("times threads were")));
        let one = with_first_word_singular;
        assert_eq!(one("process events lost"), "process events lost");
        assert_eq!(one("addresses without a symbol"), "address without a symbol");
    }

    #[test]
    fn every_kind_that_bridges_report_has_a_loss_of_its_own() {
        let mut causes: Vec<&str> = of_bridge().map(|(_, events)| events.dropped).collect();
        let all = causes.len();
        assert!(all >= 6 && causes.iter().all(|cause| explained(cause).is_some()));
        causes.sort_unstable();
        causes.dedup();
        assert!(causes.len() == all && causes.iter().all(|cause| known(cause).is_none()));
    }

    #[test]
    fn a_running_recording_sums_the_losses_that_its_report_names() {
        for cause in WHOLE {
            assert!(known(cause).is_some(), "{cause}");
        }
        let of = |cause, count| Loss { cause, text: String::new(), count };
        let losses = [
            of("ring_full", 3),
            of("waits_refused", 4),
            of("wait_handles_dropped", 5),
            of("stack_no_mapping", 50),
        ];
        assert_eq!(sum_of_whole(&losses), 12);
    }

    #[test]
    fn the_daemon_is_not_given_advice_about_options() {
        for cause in &CAUSES {
            assert!(
                !cause.daemon.contains("--") || cause.daemon.contains("doctor"),
                "{}",
                cause.name
            );
        }
    }

    #[test]
    fn the_documentation_has_every_cause_with_its_remedy() {
        let text = include_str!("../../../docs/metrics.md");
        let (_, table) =
            text.split_once("| cause | what it is | what to do |\n|---|---|---|\n").expect("it");
        let mut expected = String::new();
        for cause in causes() {
            let text = explained(cause).unwrap_or_default();
            let advice = advice(cause, Running::Daemon).unwrap_or_default();
            expected += &format!("| `{cause}` | {text} | {advice} |\n").replace("|  |", "| |");
        }
        assert_eq!(table, expected, "docs/metrics.md should have\n{expected}");
    }
}
