//! `strata query` and `strata diff` as users run them, on a store made here: tables, files read
//! back, and the messages for an empty result.

use std::path::Path;
use std::process::{Command, Output};

use strata_kinds::Kind;
use strata_profile::{FrameKind, Label, LabelValue, Profile, ProfileBuilder, StackId, StringId};
use strata_store::{Head, Options, Store};

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_nanos() as i64
}

/// A profile of `(stack, samples)`; the pid of every sample is that of `pid`.
fn profile(stacks: &[(&str, i64)], pid: i64) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", 10_000_000);
    let mapping = builder.mapping(0x1000, 0x9000, 0, "/app/Shop.dll", "abcd");
    let key = builder.string("pid");
    for (at, (stack, count)) in stacks.iter().enumerate() {
        let mut id = StackId::default();
        for name in stack.split(';') {
            let frame = builder.frame(FrameKind::Managed, name, "", "Shop.cs", 7);
            let location = builder.location(0x1000 + at as u64, Some(mapping), &[frame]);
            id = builder.called_from(id, location);
        }
        let value = LabelValue::Number { value: pid, unit: StringId::default() };
        let labels = builder.labels(&[Label { key, value }]);
        builder.add(id, labels, &[*count, *count * 10_000_000]);
    }
    builder.finish()
}

fn head(service: &str, version: &str, start: i64) -> Head {
    Head {
        service: service.to_owned(),
        kind: "cpu".to_owned(),
        labels: vec![("version".to_owned(), version.to_owned())],
        runtime_id: format!("{service}-{version}"),
        start_nanos: start,
        end_nanos: start + 15 * SECOND,
    }
}

/// Two hours of a shop whose second hour is slower, and some mail.
fn filled(directory: &Path) {
    let mut store = Store::open(directory, Options::default()).unwrap();
    let now = now();
    for period in 0..240 {
        let start = now - 2 * HOUR + period * 30 * SECOND + SECOND;
        let (version, slow) = if period < 120 { ("1.4", 1) } else { ("1.5", 9) };
        let shop = profile(&[("main;serve;slow", slow), ("main;serve;quick", 10)], 7);
        store.append(&head("shop", version, start), &shop, start).unwrap();
        if period % 10 == 0 {
            let mail = profile(&[("main;\x1b[31mred", 1)], 8);
            store.append(&head("mail", "1", start), &mail, start).unwrap();
            let mut kind = head("mail", "1", start);
            kind.kind = "exceptions".to_owned();
            store.append(&kind, &mail, start).unwrap();
        }
        store.tend(start).unwrap();
    }
}

fn strata(store: &Path, arguments: &[&str]) -> (Output, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(arguments)
        .env("STRATA_STORE_PATH", store)
        .current_dir(store)
        .output()
        .unwrap();
    let printed = String::from_utf8(done.stdout.clone()).unwrap();
    let complained = String::from_utf8(done.stderr.clone()).unwrap();
    println!("strata {} -> {}\n{printed}{complained}", arguments.join(" "), done.status);
    assert!(!complained.contains("panicked"));
    (done, printed, complained)
}

fn answer(store: &Path, arguments: &[&str]) -> String {
    let (done, printed, complained) = strata(store, arguments);
    assert!(done.status.success(), "{complained}");
    printed
}

fn refusal(store: &Path, arguments: &[&str]) -> String {
    let (done, printed, complained) = strata(store, arguments);
    assert!(!done.status.success(), "{printed}");
    complained
}

fn line_with<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.contains(word));
    line.unwrap_or_else(|| panic!("no `{word}` in {text}")).split_whitespace().collect()
}

#[test]
fn a_service_is_asked_for_its_top_functions() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let table = answer(directory.path(), &["query", "--service", "shop"]);
    assert_eq!(line_with(&table, "quick"), ["52.63%", "52.63%", "quick", "(Shop.dll)"]);
    assert_eq!(line_with(&table, "slow"), ["47.37%", "47.37%", "slow", "(Shop.dll)"]);
    assert_eq!(line_with(&table, "serve"), ["0.00%", "100.00%", "serve", "(Shop.dll)"]);
    let long = answer(directory.path(), &["query", "-s", "shop", "--from", "-3h", "--json"]);
    let long: serde_json::Value = serde_json::from_str(&long).unwrap();
    assert_eq!(long["profiles"], 240);
    assert_eq!(long["summary"]["samples"], 120 * 11 + 120 * 19);
    let old = ["query", "-s", "sh*p", "-l", "version=1.4", "--from", "-3h", "--value", "samples"];
    assert_eq!(line_with(&answer(directory.path(), &old), "slow")[0], "9.09%");
    let of_process = ["query", "-s", "*", "--pid", "8", "--from", "-3h", "--json"];
    let of_process = answer(directory.path(), &of_process);
    let of_process: serde_json::Value = serde_json::from_str(&of_process).unwrap();
    assert_eq!(of_process["profiles"], 24, "and not those of other processes");
    assert_eq!(of_process["summary"]["top_functions"][0]["name"], "\x1b[31mred");
}

#[test]
fn every_output_is_read_back_by_another_reader() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let files = ["one.pb.gz", "one.svg", "one.folded", "one.json", "one.perf"];
    let mut arguments = vec!["query", "--service", "shop", "--from", "-3h"];
    files.iter().for_each(|file| arguments.extend(["-o", file]));
    assert_eq!(answer(directory.path(), &arguments), "", "files instead of a table");
    let read = |file: &str| std::fs::read(directory.path().join(file)).unwrap();
    let pprof = strata_profile::read(&read("one.pb.gz")).unwrap();
    assert_eq!(pprof.total(pprof.sample_type("samples").unwrap()), 120 * 11 + 120 * 19);
    let folded = strata_profile::read(&read("one.folded")).unwrap();
    assert_eq!(folded.total(0), 120 * 11 + 120 * 19);
    let svg = String::from_utf8(read("one.svg")).unwrap();
    assert!(svg.contains("<title>quick\n(2,400 samples"), "the picture has its figures");
    assert!(svg.contains("shop: 20"), "and says whose it is and when");
    let folded =
        answer(directory.path(), &["query", "-s", "mail", "-o", "-", "--format", "folded"]);
    assert!(folded.starts_with("main;") && !folded.contains('\x1b'), "{folded:?}");
    let link = directory.path().join("link.svg");
    std::os::unix::fs::symlink("elsewhere", &link).unwrap();
    let refused = refusal(directory.path(), &["query", "-s", "shop", "-o", "link.svg"]);
    assert!(refused.contains("symbolic link"), "{refused}");
}

#[test]
fn without_a_service_everything_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let list = answer(directory.path(), &["query"]);
    assert_eq!(list.lines().filter(|line| line.starts_with("shop")).count(), 2, "{list}");
    // From the end: between two days, a row has the date twice.
    let line = line_with(&list, "exceptions");
    assert_eq!((line[0], line[line.len() - 4]), ("mail", "24"), "{list}");
    assert!(list.contains("version=1.5"));
    assert!(list.contains("2 services, 288 profiles"), "{list}");
    let json = answer(directory.path(), &["query", "--type", "exceptions", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["holdings"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["holdings"][0]["labels"]["version"], "1");
    assert!(answer(directory.path(), &["query", "--from", "-30m"]).contains("1.5"));
}

#[test]
fn what_burns_cpu_comes_first_and_its_callers_are_a_tree() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let by = answer(directory.path(), &["query", "--by", "service"]);
    let lines: Vec<&str> = by.lines().filter(|line| line.contains('%')).collect();
    assert!(lines[0].ends_with("shop") && lines[1].ends_with("mail"), "{by}");
    assert_eq!(line_with(&by, "shop"), ["99.48%", "22.80", "s", "shop"]);
    let by = answer(directory.path(), &["query", "--by", "label:version", "--from", "-3h"]);
    assert_eq!(line_with(&by, "1.5")[0], "62.91%", "{by}");
    let by = answer(directory.path(), &["query", "-s", "*", "--by", "pid"]);
    assert!(by.contains("[7]") && by.contains("[8]"), "{by}");
    let json = answer(directory.path(), &["query", "--by", "pid", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(2));
    let refused = refusal(directory.path(), &["query", "--by", "colour"]);
    assert!(refused.contains("label:NAME"), "{refused}");

    let callers = answer(directory.path(), &["query", "-s", "shop", "--callers", "slo"]);
    let names: Vec<&str> = callers
        .lines()
        .filter(|line| line.contains('%') && line.contains("Shop.dll"))
        .map(|line| line.split_whitespace().nth(4).unwrap())
        .collect();
    assert_eq!(names, ["slow", "serve", "main"], "{callers}");
    let tree = answer(directory.path(), &["query", "-s", "shop", "--tree"]);
    assert!(tree.contains("├ quick") && tree.contains("└ slow"), "{tree}");
    let refused = refusal(directory.path(), &["query", "-s", "shop", "--callers", "nosuch"]);
    assert!(refused.contains("`nosuch`"), "{refused}");
    // The list has what used most first, and shows the time zone of its times.
    let list = answer(directory.path(), &["query"]);
    assert!(list.lines().nth(1).is_some_and(|line| line.starts_with("shop")), "{list}");
    assert!(list.contains("from (UTC)") || list.contains("from (+") || list.contains("from (-"));
}

#[test]
fn each_profile_is_in_one_row_of_its_labels() {
    let directory = tempfile::tempdir().unwrap();
    let start = now() - 60 * SECOND;
    let mut store = Store::open(directory.path(), Options::default()).unwrap();
    let sets: [&[(&str, &str)]; 4] =
        [&[("env", "prod")], &[("env", "prod"), ("version", "1")], &[("version", "*")], &[]];
    for (at, labels) in sets.into_iter().enumerate() {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let head = Head { labels: labels.collect(), ..head(&format!("s{at}"), "", start) };
        store.append(&head, &profile(&[("main", 10)], 7), start).unwrap();
    }
    drop(store);
    let rows = |by: &str| {
        let json = answer(directory.path(), &["query", "-s", "*", "--by", by, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let rows = json["rows"].as_array().unwrap().iter();
        let mut rows: Vec<_> = rows
            .map(|row| (row["name"].as_str().unwrap().to_owned(), row["value"].as_i64().unwrap()))
            .collect();
        rows.sort();
        rows
    };
    let row = |name: &str, samples: i64| (name.to_owned(), samples * 10_000_000);
    assert_eq!(
        rows("label"),
        [
            row("(no labels)", 10),
            row("env=prod", 10),
            row("env=prod version=1", 10),
            row("version=*", 10)
        ]
    );
    assert_eq!(rows("label:env"), [row("(no env)", 20), row("prod", 20)]);
    assert_eq!(rows("label:version"), [row("(no version)", 20), row("*", 10), row("1", 10)]);
    let closed = std::process::Command::new("sh")
        .args(["-c", "exec 3>&1; { \"$0\" query -s s0 -o - --format folded; echo $? >&3; } | true"])
        .arg(env!("CARGO_BIN_EXE_strata"))
        .env("STRATA_STORE_PATH", directory.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&closed.stdout).trim(), "0", "a closed pipe is no failure");
}

#[test]
fn the_store_is_the_one_of_the_daemons_configuration() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let file = directory.path().join("strata.toml");
    std::fs::write(&file, format!("[store]\npath = \"{}\"\n", directory.path().display())).unwrap();
    let query = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_strata"))
            .args(arguments)
            .env_remove("STRATA_STORE_PATH")
            .output()
            .unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    let config = file.to_str().unwrap();
    assert_eq!(query(&["query", "--config", config]), (true, String::new()));
    assert_eq!(query(&["query", "-s", "shop", "-c", config]), (true, String::new()));
    std::fs::write(&file, "[store]\nenabled = false\n").unwrap();
    let (done, complained) = query(&["query", "--config", config]);
    assert!(!done && complained.contains("store.enabled"), "{complained}");
    std::fs::write(&file, "[metrics]\nsocket = \"/nowhere/of-mine.sock\"\n").unwrap();
    let (done, complained) = query(&["status", "--config", config]);
    assert!(!done && complained.contains("/nowhere/of-mine.sock"), "{complained}");
}

#[test]
fn what_is_not_there_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let says = |arguments: &[&str], words: &str| {
        let refused = refusal(directory.path(), arguments);
        assert!(refused.contains(words), "{refused}");
    };
    says(&["query", "--store", "nowhere"], "there is no store in `nowhere`");
    says(&["query"], "holds nothing yet");
    says(&["query", "-s", "shop"], "holds nothing yet");
    filled(directory.path());
    says(&["query", "-s", "shpo"], "did you mean shop?");
    says(&["query", "-s", "database"], "there are: mail, shop");
    says(&["query", "-s", "shop", "--type", "heap"], "--type can be: cpu");
    says(&["query", "-s", "shop", "-l", "version=9"], "version=1.4, version=1.5");
    says(
        &["query", "-s", "shop", "--from", "-9h", "--to", "-8h"],
        "the store holds its cpu profiles from 20",
    );
    says(&["query", "-s", "shop", "--from", "now", "--to", "-1h"], "the window is empty");
    says(&["diff", "-s", "shop", "--from", "now", "--to", "-1h"], "the earlier time first");
    says(&["query", "-s", "shop", "--to", "-8h"], "there is nothing of `shop` from 20");
    says(&["query", "-s", "shop", "--pid", "99"], "process 99");
    says(&["query", "-s", "shop", "--value", "bytes"], "--value takes one of: samples, cpu");
    says(&["query", "-s", "shop", "--from", "tomorrow"], "`tomorrow` is no time");
    says(&["query", "-o", "all.svg"], "--service '*'");
    says(&["query", "--by", "pid", "-o", "all.svg"], "--by prints a table");
    says(&["query", "--tree", "-o", "all.svg"], "--tree prints a tree");
    says(&["query", "-s", "shop", "--callers", "slow", "-o", "a.svg"], "--callers prints a tree");
    says(&["query", "--pid", "7"], "--service '*'");
    says(&["query", "--runtime-id", "shop-1.5", "--json"], "--service '*'");
    says(&["diff"], "--service NAME");
    says(&["diff", "-s", "shop", "--baseline-service", "shop"], "with itself");
    says(&["diff", "-s", "shop", "-o", "x.pb.gz"], "written as .svg");
    for by in ["service", "pid", "label"] {
        says(
            &["query", "--by", by, "--from", "-9h", "--to", "-8h"],
            "the store holds its cpu profiles from 20",
        );
    }
    says(&["query", "--by", "service", "-s", "shpo"], "did you mean shop?");
    says(&["query", "--by", "service", "--type", "heap"], "--type can be: cpu");
    for command in ["query", "diff"] {
        says(&[command, "-s", "shop", "-o", "-", "--json"], "both write to the standard output");
    }
}

#[test]
fn what_is_compared_stands_on_two_lines() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let text = answer(directory.path(), &["diff", "-s", "shop"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("before: ") && lines[1].starts_with("after:  "), "{text}");
    assert!(!text.contains("\\x0a"), "{text}");
    assert_eq!(answer(directory.path(), &["diff", "-s", "shop", "-o", "d.svg"]), "");
    let picture = std::fs::read_to_string(directory.path().join("d.svg")).unwrap();
    assert!(picture.contains("share of all, in points") && picture.contains("+15"));
}

#[test]
fn two_hours_two_versions_and_two_services_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    // slow: 1 of 11 before, 9 of 19 after.
    let expected = ["9.09%", "47.37%", "+38.28", "9.09%", "47.37%", "+38.28", "slow"];
    for arguments in [
        &["diff", "-s", "shop"][..],
        &["diff", "-s", "shop", "--earlier", "1h"],
        &["diff", "-s", "shop", "--baseline-from", "-2h", "--baseline-to", "-1h"],
        &[
            "diff",
            "-s",
            "shop",
            "--from",
            "-3h",
            "-l",
            "version=1.5",
            "--baseline-label",
            "version=1.4",
        ],
    ] {
        let table = answer(directory.path(), arguments);
        assert_eq!(line_with(&table, "slow"), expected, "{arguments:?}");
        assert!(!table.contains("serve"), "what did not change is left out");
    }
    let moved = ["diff", "-s", "shop", "--baseline-service", "mail", "--json"];
    let moved: serde_json::Value = serde_json::from_str(&answer(directory.path(), &moved)).unwrap();
    assert_eq!(moved["functions"][0]["name"], "\x1b[31mred");
    assert_eq!(moved["functions"][0]["own_share_change"], -1.0);
    answer(directory.path(), &["diff", "-s", "shop", "-o", "changed.svg"]);
    let svg = std::fs::read_to_string(directory.path().join("changed.svg")).unwrap();
    assert!(svg.contains("class=\"r4\"") && svg.contains("class=\"b4\""));
    assert!(svg.contains("(9.09 % → 47.37 %: +38.28"), "the figures are in the picture");
}

/// Every wait ends in the scheduler, which says nothing of the program.
#[test]
fn of_elapsed_time_an_answer_says_what_waits_and_in_which_call() {
    let directory = tempfile::tempdir().unwrap();
    let mut builder = ProfileBuilder::of_kinds([Kind::Wall].into_iter().collect());
    for (state, call, functions, seconds) in [
        ("running", "", [(FrameKind::Native, "burns"), (FrameKind::Native, "main")], 1),
        ("blocked", "futex", [(FrameKind::Kernel, "schedule"), (FrameKind::Native, "waits")], 3),
    ] {
        let locations = functions.map(|(kind, name)| {
            let frame = builder.frame(kind, name, "", "", 0);
            builder.location(0, None, &[frame])
        });
        let stack = builder.stack(&locations);
        let mut labels = Vec::new();
        for (key, text) in [("state", state), ("syscall", call)] {
            let (key, value) = (builder.string(key), LabelValue::Text(builder.string(text)));
            labels.extend((!text.is_empty()).then_some(Label { key, value }));
        }
        let labels = builder.labels(&labels);
        builder.add_of(Kind::Wall, stack, labels, &[seconds * SECOND]);
    }
    let mut store = Store::open(directory.path(), Options::default()).unwrap();
    let start = now() - 60 * SECOND;
    let head = Head { kind: "wall".to_owned(), ..head("shop", "1", start) };
    store.append(&head, &builder.finish(), start).unwrap();
    store.tend(start).unwrap();
    let asked = ["query", "-s", "shop", "--type", "wall"];
    let table = answer(directory.path(), &asked);
    assert!(table.contains("blocked 75.0%, running 25.0%"), "{table}");
    assert_eq!(line_with(&table, "waits"), ["75.0%", "waits"]);
    assert_eq!(line_with(&table, "burns"), ["25.0%", "burns"]);
    assert_eq!(line_with(&table, "futex"), ["75.0%", "futex"]);
    assert!(!table.contains("schedule"), "{table}");
    let json = answer(directory.path(), &[&asked[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["waits"]["functions"][0]["name"], "waits");
    let (_, _, note) = strata(directory.path(), &[&asked[..], &["-o", "wall.json"]].concat());
    assert!(note.contains("keeps no times of wall samples"), "{note}");
}

#[test]
fn of_a_store_with_one_kind_the_services_are_grouped_by_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path(), Options::default()).unwrap();
    let start = now() - 60 * SECOND;
    let head = Head { kind: "wall".to_owned(), ..head("shop", "1", start) };
    store.append(&head, &waits_of_two_states(), start).unwrap();
    store.tend(start).unwrap();
    drop(store);
    for by in ["service", "label", "label:version", "pid"] {
        let table = answer(directory.path(), &["query", "--by", by, "--json"]);
        let table: serde_json::Value = serde_json::from_str(&table).unwrap();
        assert_eq!(table["total"], 4 * SECOND, "{by}: {table}");
    }
}

fn waits_of_two_states() -> Profile {
    let mut builder = ProfileBuilder::of_kinds([Kind::Wall].into_iter().collect());
    for (state, seconds) in [("running", 1), ("blocked", 3)] {
        let frame = builder.frame(FrameKind::Native, "waits", "", "", 0);
        let location = builder.location(0, None, &[frame]);
        let stack = builder.stack(&[location]);
        let value = LabelValue::Text(builder.string(state));
        let state = Label { key: builder.string("state"), value };
        let value = LabelValue::Number { value: 7, unit: StringId::default() };
        let pid = Label { key: builder.string("pid"), value };
        let labels = builder.labels(&[state, pid]);
        builder.add_of(Kind::Wall, stack, labels, &[seconds * SECOND]);
    }
    builder.finish()
}

/// A minute ago: a profile of CPU time with its main function, and one of elapsed time with two states.
fn of_two_kinds(directory: &Path) {
    let mut store = Store::open(directory, Options::default()).unwrap();
    let start = now() - 60 * SECOND;
    store.append(&head("shop", "1", start), &profile(&[("main;burns", 4)], 7), start).unwrap();
    let head = Head { kind: "wall".to_owned(), ..head("shop", "1", start) };
    store.append(&head, &waits_of_two_states(), start).unwrap();
    store.tend(start).unwrap();
}

#[test]
fn of_several_kinds_each_has_its_table_and_its_file() {
    let directory = tempfile::tempdir().unwrap();
    of_two_kinds(directory.path());
    let asked = |further: &[&'static str]| {
        [&["query", "-s", "shop", "--type", "cpu,wall"], further].concat()
    };
    let table = answer(directory.path(), &asked(&[]));
    assert_eq!(line_with(&table, "burns")[0], "100.00%");
    assert_eq!(line_with(&table, "waits"), ["100.0%", "waits"]);
    assert!(table.contains(", cpu\n") && table.contains(", wall\n"), "{table}");
    let tree = answer(directory.path(), &asked(&["--tree"]));
    assert!(tree.contains("burns") && tree.contains("waits"), "{tree}");
    let json = answer(directory.path(), &asked(&["--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["summary"]["top_functions"][0]["name"], "burns");
    assert_eq!(json["kinds"][1]["type"], "wall");
    assert_eq!(json["kinds"][1]["waits"]["functions"][0]["name"], "waits");

    let files =
        ["-o", "a.folded", "-o", "a.svg", "-o", "a.json.gz", "-o", "a.perf", "-o", "a.pb.gz"];
    answer(directory.path(), &asked(&files));
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(read("a.cpu.folded").contains("burns") && !read("a.cpu.folded").contains("waits"));
    assert!(read("a.wall.folded").contains("waits") && !read("a.wall.folded").contains("burns"));
    assert!(read("a.wall.svg").contains("waits") && read("a.cpu.perf").contains("burns"));
    assert!(directory.path().join("a.wall.json.gz").exists());
    assert!(!directory.path().join("a.svg").exists());
    let refused = refusal(directory.path(), &asked(&["-o", "-", "--format", "folded"]));
    assert!(refused.contains("one kind with --type"), "{refused}");
    let chosen = asked(&["-o", "-", "--format", "folded", "--value", "wall"]);
    assert!(answer(directory.path(), &chosen).starts_with("waits "));
    let refused = refusal(directory.path(), &asked(&["--by", "service"]));
    assert!(refused.contains("choose one with --type (cpu, wall)"), "{refused}");

    let diff = ["diff", "-s", "shop", "--type", "cpu,wall", "--baseline-from", "-5m"];
    let (_, _, note) = strata(directory.path(), &diff);
    assert!(note.contains("is compared; --type compares another kind"), "{note}");

    answer(directory.path(), &["convert", "a.pb.gz", "b.folded"]);
    assert_eq!(read("b.cpu.folded"), read("a.cpu.folded"));
    assert_eq!(read("b.wall.folded"), read("a.wall.folded"));
    answer(directory.path(), &["convert", "--value", "wall", "a.pb.gz", "c.folded"]);
    assert_eq!(read("c.folded"), read("a.wall.folded"));
}

#[test]
fn a_label_of_samples_groups_what_profiles_have_no_label_for() {
    let directory = tempfile::tempdir().unwrap();
    of_two_kinds(directory.path());
    let by = |label: &str| {
        let by = format!("label:{label}");
        answer(directory.path(), &["query", "-s", "shop", "--type", "wall", "--by", &by])
    };
    assert_eq!(line_with(&by("state"), "blocked")[0], "75.00%");
    assert_eq!(line_with(&by("state"), "running")[0], "25.00%");
    assert_eq!(line_with(&by("pid"), "100.00%").last(), Some(&"7"));
    assert_eq!(line_with(&by("version"), "100.00%").last(), Some(&"1"));
    assert!(by("colour").contains("(no colour)"));
}
