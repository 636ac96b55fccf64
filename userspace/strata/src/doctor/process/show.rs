//! The report about a process, as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Report;
use super::files::{FileReport, Symbols, Unwinding};
use super::generated::Generated;
use super::runtime::Interpreted;
use crate::doctor::line::State;
use crate::doctor::print::{bold, coloured};
use crate::doctor::text::{printable, size};
use crate::terminal::counted;

/// Places of a debug file that are named; the rest are counted.
const PLACES: usize = 2;

impl Report {
    pub fn to_text(&self, colour: bool) -> String {
        let mut text = String::new();
        let who = &self.who;
        let mut row = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14}  {value}");
        };
        row("name", &who.name);
        row("program", &who.program);
        row("threads", &who.threads.to_string());
        let shared = |kind| {
            who.namespaces.iter().find(|(name, _)| *name == kind).and_then(|(_, shared)| *shared)
        };
        let namespaces: Vec<String> = [("pid", "PID"), ("mnt", "mount"), ("user", "user")]
            .into_iter()
            .map(|(kind, name)| match shared(kind) {
                Some(true) => format!("{name}: the host's"),
                Some(false) => format!("{name}: its own"),
                None => format!("{name}: not readable"),
            })
            .collect();
        row("namespaces", &namespaces.join(", "));
        row("control group", &printable(who.group.path.as_bytes()));
        if let Some(container) = &who.group.container {
            row("container", container);
        }
        let mut title = format!("process {}", who.pid);
        if who.inner_pid() != who.pid {
            let _ = write!(title, " ({} in its own PID namespace)", who.inner_pid());
        }
        if let Some(thread) = who.thread {
            let _ = write!(title, " (of thread {thread})");
        }
        let mut text = format!("{}\n{text}", bold(&title, colour));
        if !self.files.is_empty() {
            let _ = writeln!(
                text,
                "{}",
                bold(&format!("files with code ({})", self.files.len()), colour)
            );
        }
        for file in &self.files {
            show_file(&mut text, file, colour);
        }
        if let Some(generated) = &self.generated {
            let _ = writeln!(text, "{}", bold("generated code", colour));
            show_generated(&mut text, generated, colour);
        }
        let has_said = |fix: &str| self.generated.as_ref().is_some_and(|one| one.fix == fix);
        if let Some(interpreted) = self.interpreted.as_ref().filter(|one| !has_said(&one.fix)) {
            show_interpreted(&mut text, interpreted, colour);
        }
        let (state, verdict) = self.verdict();
        let _ = writeln!(text, "{}", coloured(&verdict, state, colour));
        if let Some((_, fix)) = &self.trouble {
            let _ = writeln!(text, "-> {fix}");
        }
        text
    }

    pub fn to_json(&self) -> Value {
        let who = &self.who;
        let (state, verdict) = self.verdict();
        let namespaces: serde_json::Map<String, Value> = who
            .namespaces
            .iter()
            .map(|(kind, shared)| ((*kind).to_owned(), json!({ "shared_with_strata": shared })))
            .collect();
        json!({
            "pid": who.pid,
            "thread": who.thread,
            "name": who.name,
            "program": who.program,
            "threads": who.threads,
            "pid_in_namespaces": who.pids,
            "kernel_thread": who.kernel_thread,
            "ended": who.ended,
            "namespaces": namespaces,
            "control_group": who.group.path,
            "container": who.group.container,
            "files": self.files.iter().map(file_json).collect::<Vec<_>>(),
            "generated_code": self.generated.as_ref().map(generated_json),
            "interpreted": self.interpreted.as_ref().map(interpreted_json),
            "state": state.name(),
            "verdict": verdict,
            "fix": self.trouble.as_ref().map(|(_, fix)| fix),
        })
    }
}

fn show_file(text: &mut String, file: &FileReport, colour: bool) {
    let state = file.state();
    let padded = coloured(&format!("{:<8}", state.name()), state, colour);
    let deleted = if file.deleted { ", deleted or replaced on disk" } else { "" };
    let _ =
        writeln!(text, "  {padded}  {}  ({} of code{deleted})", file.path, size(file.code_bytes));
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {:8}  {name:<10} {value}", "");
    };
    let how = match &file.opened {
        Ok(how) => how.text().to_owned(),
        Err(why) => format!("not: {why}"),
    };
    match &file.build_id {
        Some(build_id) => row("opened", &format!("{how}; build id {build_id}")),
        None if file.opened.is_ok() => row("opened", &format!("{how}; no build id")),
        None => row("opened", &how),
    }
    if file.opened.is_err() {
        return row("->", "unwound by frame pointers, shown as addresses");
    }
    if file.is_32_bit {
        return row("->", "a program of 32 bits: only 64-bit x86-64 code is unwound and named");
    }
    if file.is_assembly {
        return row("code", "a .NET assembly: unwound and named by what its runtime says of it");
    }
    match &file.unwinding {
        Ok(unwinding) => row("unwinding", &unwinding_text(unwinding)),
        Err(why) => row("unwinding", &format!("by frame pointers: {why}")),
    }
    row("symbols", &symbols_text(&file.symbols));
    if file.symbols.trouble.is_none() && file.symbols.state() != State::Ok {
        row("->", &debug_file_fix(&file.symbols));
    }
}

fn unwinding_text(unwinding: &Unwinding) -> String {
    let statistics = &unwinding.statistics;
    let mut sources = Vec::new();
    if statistics.go_functions > 0 {
        sources.push(format!("Go line table ({} functions)", statistics.go_functions));
    }
    if statistics.entries > 0 {
        sources.push(format!("call frame information ({} functions)", statistics.entries));
    }
    if sources.is_empty() {
        sources.push("known code only".to_owned());
    }
    let mut text =
        format!("{}: {} rows, {}", sources.join(", "), unwinding.rows, size(unwinding.bytes));
    let undescribed = statistics.undescribed_bytes.saturating_sub(statistics.derived_bytes);
    for (count, what, why) in [
        (undescribed, "byte", "of code unwound by frame pointers"),
        (
            statistics.unsupported_rows,
            "row",
            "with call frame information that cannot be expressed: stacks through that code are incomplete",
        ),
        (
            statistics.refused_rows,
            "row",
            "beyond the quota of rules: stacks through that code are incomplete",
        ),
    ] {
        if count > 0 {
            let _ = write!(text, "; {} {why}", counted(count, what));
        }
    }
    if statistics.truncated > 0 {
        text.push_str("; cut by a quota");
    }
    text
}

fn symbols_text(symbols: &Symbols) -> String {
    if let Some(trouble) = &symbols.trouble {
        return format!("none: {trouble}");
    }
    let mut sources = Vec::new();
    if symbols.dwarf {
        sources.push("DWARF (lines, inlined functions)".to_owned());
    }
    if let Some(place) = &symbols.debug_file {
        sources.push(format!("debug file {place}"));
    }
    for (there, name) in [
        (symbols.symtab, "symbol table"),
        (symbols.go, "Go line table"),
        (symbols.mini_debug, ".gnu_debugdata"),
    ] {
        if there {
            sources.push(name.to_owned());
        }
    }
    match (sources.is_empty(), symbols.dynsym) {
        (true, true) => "exported functions only (.dynsym)".to_owned(),
        (true, false) => "none: it is stripped".to_owned(),
        (false, _) => sources.join(", "),
    }
}

fn debug_file_fix(symbols: &Symbols) -> String {
    let Some(first) = symbols
        .searched
        .get(..symbols.searched.len().min(PLACES))
        .filter(|first| !first.is_empty())
    else {
        return "build it with symbols: it has no build id to find a debug file by".to_owned();
    };
    let more = match symbols.searched.len().saturating_sub(PLACES) {
        0 => String::new(),
        more => format!(" and {more} more places"),
    };
    format!("install its debug package; no debug file that fits at {}{more}", first.join(", "))
}

fn show_generated(text: &mut String, generated: &Generated, colour: bool) {
    let state = if generated.has_names() { State::Ok } else { State::Degraded };
    let padded = coloured(&format!("{:<8}", state.name()), state, colour);
    let _ = writeln!(
        text,
        "  {padded}  {} (regions: {}; runtime: {}), unwound by {}",
        size(generated.bytes),
        generated.regions,
        generated.runtime.name(),
        if generated.attachable { "what its runtime says" } else { "frame pointers" }
    );
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {:8}  {name:<10} {value}", "");
    };
    match &generated.bridge {
        Some(bridge) if bridge != crate::ps::NOT_LOADED => row("bridge", bridge),
        _ if generated.attachable => {
            row("bridge", "`strata record` attaches to it (`strata ps` shows how it is)");
        }
        _ => {}
    }
    if let Some(map) = &generated.perf_map {
        let functions = match map.functions {
            Some(functions) => format!(", {functions} functions"),
            None => String::new(),
        };
        row("perf map", &format!("{} ({}{functions})", map.path, size(map.bytes)));
    }
    if let Some(dump) = &generated.jitdump {
        row("jitdump", dump);
    }
    if !generated.has_names() {
        if let Some(why) = &generated.no_perf_map {
            row("perf map", why);
        }
        row("->", &generated.fix);
    }
}

fn show_interpreted(text: &mut String, interpreted: &Interpreted, colour: bool) {
    let title = format!("{} functions", interpreted.runtime.name());
    let _ = writeln!(text, "{}", bold(&title, colour));
    let padded = coloured(&format!("{:<8}", State::Degraded.name()), State::Degraded, colour);
    let _ = writeln!(text, "  {padded}  without names: stacks show the interpreter's C functions");
    let _ = writeln!(text, "  {:8}  {:<10} {}", "", "->", interpreted.fix);
}

fn file_json(file: &FileReport) -> Value {
    let unwinding = match &file.unwinding {
        Ok(unwinding) => json!({
            "rows": unwinding.rows,
            "rules": unwinding.rules,
            "bytes": unwinding.bytes,
            "frame_entries": unwinding.statistics.entries,
            "go_functions": unwinding.statistics.go_functions,
            "undescribed_bytes": unwinding.statistics.undescribed_bytes,
            "derived_bytes": unwinding.statistics.derived_bytes,
            "unsupported_rows": unwinding.statistics.unsupported_rows,
            "refused_rows": unwinding.statistics.refused_rows,
            "truncated": unwinding.statistics.truncated > 0,
        }),
        Err(why) => json!({ "none": why }),
    };
    let symbols = &file.symbols;
    json!({
        "path": file.path,
        "deleted": file.deleted,
        "code_bytes": file.code_bytes,
        "opened": match &file.opened { Ok(how) => json!(how.text()), Err(_) => Value::Null },
        "not_opened": file.opened.as_ref().err(),
        "build_id": file.build_id,
        "is_32_bit": file.is_32_bit,
        "is_assembly": file.is_assembly,
        "state": file.state().name(),
        "unwinding": unwinding,
        "symbols": {
            "state": file.symbols_state().name(),
            "dwarf": symbols.dwarf,
            "symtab": symbols.symtab,
            "dynsym": symbols.dynsym,
            "mini_debug": symbols.mini_debug,
            "go": symbols.go,
            "debug_file": symbols.debug_file,
            "searched": symbols.searched,
            "trouble": symbols.trouble,
        },
    })
}

fn generated_json(generated: &Generated) -> Value {
    json!({
        "regions": generated.regions,
        "bytes": generated.bytes,
        "runtime": generated.runtime.name(),
        "perf_map": generated.perf_map.as_ref().map(|map| json!({
            "path": map.path, "bytes": map.bytes, "functions": map.functions,
        })),
        "bridge": generated.bridge,
        "no_perf_map": generated.no_perf_map,
        "jitdump": generated.jitdump,
        "fix": if generated.has_names() { None } else { Some(&generated.fix) },
    })
}

fn interpreted_json(interpreted: &Interpreted) -> Value {
    json!({ "runtime": interpreted.runtime.name(), "fix": interpreted.fix })
}

#[cfg(test)]
mod tests {
    use strata_unwind::Statistics;

    use super::*;

    #[test]
    fn rows_without_a_rule_say_what_they_mean_for_stacks() {
        let with = |unsupported_rows, refused_rows| {
            let statistics =
                Statistics { entries: 9, unsupported_rows, refused_rows, ..Statistics::default() };
            unwinding_text(&Unwinding { rows: 20, rules: 3, bytes: 4096, statistics })
        };
        assert!(!with(0, 0).contains("incomplete"), "{}", with(0, 0));
        assert!(with(1, 0).contains("; 1 row with call frame information"), "{}", with(1, 0));
        let both = with(4, 2);
        assert!(both.contains("; 4 rows with ") && both.contains("; 2 rows beyond "), "{both}");
        assert_eq!(both.matches("stacks through that code are incomplete").count(), 2, "{both}");
    }
}
