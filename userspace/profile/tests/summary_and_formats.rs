//! The summary, the choice of formats, and what adds up.

mod support;

use std::path::Path;

use strata_profile::{Format, FrameKind, WriteError, WriteOptions, summary, write};
use support::{PERIOD, add, everything, on_cpu, recording};

#[test]
fn a_function_that_calls_itself_counts_once() {
    let mut builder = recording();
    let thread = builder.thread(5, 5, "app", "app", "");
    add(&mut builder, thread, &["leaf", "recurse", "recurse", "recurse", "main"], 30);
    add(&mut builder, thread, &["recurse", "main"], 10);
    let profile = builder.finish();
    let summary = summary::summarize(&profile, 0, 10);
    let of = |name: &str| summary.top_functions.iter().find(|share| share.name == name).unwrap();
    assert_eq!((of("recurse").own, of("recurse").total), (10, 40));
    assert_eq!((of("leaf").own, of("leaf").total), (30, 30));
    assert_eq!((of("main").own, of("main").total), (0, 40));
    assert_eq!(of("leaf").self_percent, 75.0);
    assert_eq!(summary.top_functions[0].name, "leaf");
}

#[test]
fn processes_and_kinds_are_summed() {
    let summary = summary::summarize(&everything(), 0, 2);
    assert_eq!((summary.total, summary.samples, summary.processes), (1000, Some(1000), 2));
    let first = &summary.top_processes[0];
    assert_eq!((first.pid, first.name.as_str(), first.value), (Some(41), "app", 970));
    assert_eq!(first.container, "3f29c0ffee");
    assert_eq!(summary.top_functions.len(), 2);
    assert_eq!(summary.top_functions[0].module, "[kernel.kallsyms]");
    assert_eq!(summary.kinds[0].kind, FrameKind::Kernel);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["top_functions"][0]["self"], 500);
    assert_eq!(json["kinds"][0]["kind"], "kernel");
}

#[test]
fn many_small_processes_of_a_name_are_one_row_and_all_rows_add_up() {
    let mut builder = recording();
    let shell = builder.thread(7, 7, "sh", "sh", "");
    add(&mut builder, shell, &["main"], 60);
    // The shell's process executes another program, and keeps its id.
    let server = builder.thread(7, 7, "server", "server", "");
    add(&mut builder, server, &["main"], 200);
    for pid in 100..1_040 {
        let short = builder.thread(pid, pid, "true", "true", "");
        add(&mut builder, short, &["main"], 1);
    }
    let large = builder.thread(50, 50, "true", "true", "");
    add(&mut builder, large, &["main"], 300);
    let profile = builder.finish();
    let summary = summary::summarize(&profile, 0, 3);
    assert_eq!(summary.processes, 942);
    let rows: Vec<_> = summary
        .top_processes
        .iter()
        .map(|row| (&*row.name, row.pid, row.processes, row.value))
        .collect();
    assert_eq!(
        rows,
        [("true", None, 940, 940), ("true", Some(50), 1, 300), ("server", Some(7), 1, 200)]
    );
    let more = summary.more_processes;
    assert_eq!((more.processes, more.percent), (1, 4.0));
    // Where all have room they have rows of their own.
    let rows = summary::summarize(&profile, 0, 1_000).top_processes;
    assert!(rows.len() == 943 && rows.iter().all(|row| row.pid.is_some()));
}

#[test]
fn processes_of_one_sample_each_are_summed_however_large_their_shares_are() {
    let mut builder = recording();
    for pid in 1..=20 {
        let name = if pid % 2 == 0 { "sh" } else { "true" };
        let thread = builder.thread(pid, pid, name, name, "");
        add(&mut builder, thread, &["main"], if pid == 2 { 5 } else { 1 });
    }
    let rows = summary::summarize(&builder.finish(), 0, 10).top_processes;
    let rows: Vec<_> = rows.iter().map(|row| (&*row.name, row.pid, row.processes)).collect();
    assert_eq!(rows, [("true", None, 10), ("sh", None, 9), ("sh", Some(2), 1)]);
}

#[test]
fn the_same_stack_with_the_same_labels_adds_up() {
    let mut builder = recording();
    let thread = builder.thread(1, 1, "app", "app", "");
    let other = builder.thread(1, 2, "app", "app", "");
    let first = add(&mut builder, thread, &["leaf", "main"], 1);
    let second = add(&mut builder, thread, &["leaf", "main"], 2);
    add(&mut builder, other, &["leaf", "main"], 4);
    assert_eq!(first, second);
    let profile = builder.finish();
    assert_eq!(profile.sample_count(), 2);
    assert_eq!(profile.samples().next().unwrap().values, [3, 3 * PERIOD]);
    assert_eq!((profile.total(0), profile.overflows), (7, 0));
}

#[test]
fn the_timeline_is_kept_only_when_asked_for() {
    let mut builder = recording();
    let thread = builder.thread(1, 1, "app", "app", "");
    let stack = add(&mut builder, thread, &["main"], 1);
    let labels = builder.thread_labels(thread);
    builder.tick(on_cpu(labels, stack, 5));
    assert!(builder.so_far().timeline().is_none());
    builder.keep_timeline();
    builder.tick(on_cpu(labels, stack, 6));
    let profile = builder.finish();
    let ticks: Vec<_> = profile.timeline().unwrap().collect();
    assert_eq!(ticks.len(), 1);
    assert_eq!((ticks[0].time, ticks[0].stack), (6, stack));
}

#[test]
fn a_file_name_chooses_the_format() {
    for (name, format) in [
        ("a.pb.gz", Some(Format::Pprof)),
        ("a.PPROF", Some(Format::Pprof)),
        ("a.pb", Some(Format::Pprof)),
        ("dir.svg/a.svg", Some(Format::Svg)),
        ("a.folded", Some(Format::Folded)),
        ("a.txt", Some(Format::Folded)),
        ("a.perf", Some(Format::PerfScript)),
        ("a.json.gz", Some(Format::Firefox)),
        ("a.json", Some(Format::Firefox)),
        ("a.gz", None),
        ("svg", None),
        ("/", None),
    ] {
        assert_eq!(Format::from_path(Path::new(name)), format, "{name}");
    }
    for format in Format::ALL {
        assert_eq!(Format::from_name(format.name()), Some(format));
        let file = format!("x.{}", format.extension());
        assert_eq!(Format::from_path(Path::new(&file)), Some(format));
    }
    assert!(!WriteOptions::for_path(Path::new("a.json")).compressed);
    assert!(WriteOptions::for_path(Path::new("a.json.gz")).compressed);
}

#[test]
fn a_sample_type_that_is_not_there_is_refused_with_those_that_are() {
    let options = WriteOptions { sample_type: Some("wall".to_owned()), ..WriteOptions::default() };
    let refused = write(&everything(), Format::Svg, &options, std::io::sink()).unwrap_err();
    assert!(matches!(refused, WriteError::NoSampleType { .. }));
    assert!(refused.to_string().contains("samples, cpu"));
}

#[test]
fn a_chosen_sample_type_is_what_is_shown() {
    let options = WriteOptions { sample_type: Some("cpu".to_owned()), ..WriteOptions::default() };
    let mut text = Vec::new();
    write(&everything(), Format::Svg, &options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains(
            "<title>vfs_read\n(500 samples, 5.15 s, 50.00 %, self 50.00 %, Kernel)</title>"
        )
    );
    assert!(text.contains(", Native, libc.so.6"), "code has its module: {text}");
}
