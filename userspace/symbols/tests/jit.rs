//! Perf maps and jitdump: made here byte by byte, and written by a real just-in-time compiler.

mod support;

use std::fs;
use std::process::Command;
use strata_symbols::jitdump::{JitDump, JitDumpError};
use strata_symbols::{PerfMap, exercise};
use support::place;

fn header() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0x4a69_5444_u32, 1, 40, 62, 0, 1234] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 16]);
    bytes
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).unwrap() + 16;
    let mut bytes = [kind.to_le_bytes(), size.to_le_bytes()].concat();
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn load(address: u64, size: u64, name: &str) -> Vec<u8> {
    let mut body = words(&[0, address, address, size, 1]);
    body.extend(name.as_bytes());
    body.push(0);
    body.resize(body.len() + usize::try_from(size).unwrap(), 0xcc);
    record(0, &body)
}

fn debug_info(address: u64, lines: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let mut body = words(&[address, u64::try_from(lines.len()).unwrap()]);
    for (at, line, file) in lines {
        body.extend(at.to_le_bytes());
        body.extend(line.to_le_bytes());
        body.extend([0; 4]);
        body.extend(*file);
        body.push(0);
    }
    record(2, &body)
}

fn sample() -> Vec<u8> {
    let lines: &[(u64, u32, &[u8])] =
        &[(0x1000, 10, b"app.js"), (0x1008, 11, b"\xff"), (0x1010, 3, b"lib.js")];
    [
        header(),
        debug_info(0x1000, lines),
        load(0x1000, 0x20, "run"),
        record(4, &[0; 100]),
        load(0x2000, 0x10, "other"),
        record(1, &words(&[0, 0, 0x2000, 0x3000, 0x10, 2])),
        record(3, &[]),
    ]
    .concat()
}

fn check(dump: &JitDump) {
    let run = dump.lookup(0x100c).unwrap();
    assert_eq!((run.name, run.start), ("run", 0x1000));
    assert_eq!((run.file, run.line), (Some("app.js"), Some(11)));
    assert_eq!(dump.lookup(0x101f).unwrap().file, Some("lib.js"));
    assert_eq!(dump.lookup(0x2004), None, "moved away");
    assert_eq!(dump.lookup(0x3004).unwrap().name, "other");
    assert_eq!(dump.lookup(0x3004).unwrap().line, None);
    assert!(dump.closed);
}

#[test]
fn a_jitdump_gives_names_and_lines() {
    let mut dump = JitDump::default();
    dump.feed(&sample()).unwrap();
    check(&dump);
}

#[test]
fn a_jitdump_that_grows_is_read_as_it_grows() {
    for size in [1, 13, 100] {
        let mut dump = JitDump::default();
        for piece in sample().chunks(size) {
            dump.feed(piece).unwrap();
        }
        check(&dump);
    }
}

#[test]
fn a_cut_record_waits_and_what_came_before_is_there() {
    let bytes = sample();
    let cut = bytes.len() - 80;
    let mut dump = JitDump::default();
    dump.feed(&bytes[..cut]).unwrap();
    assert_eq!(dump.lookup(0x1004).unwrap().name, "run");
    dump.feed(&bytes[cut..]).unwrap();
    check(&dump);
}

#[test]
fn code_that_is_replaced_again_and_again_leaves_room_for_lines() {
    let mut dump = JitDump::default();
    dump.feed(&header()).unwrap();
    let lines: Vec<(u64, u32, &[u8])> = (0..64).map(|at| (at, 7, b"a".as_slice())).collect();
    // Each begins elsewhere in the same memory, and half of them say nothing of lines.
    for round in 0..40_000_u64 {
        let start = 0x1000 + round % 61;
        if round % 2 == 0 {
            let moved: Vec<_> = lines.iter().map(|line| (start + line.0, line.1, line.2)).collect();
            dump.feed(&debug_info(start, &moved)).unwrap();
        }
        dump.feed(&load(start, 0x100, "f")).unwrap();
    }
    let last: &[(u64, u32, &[u8])] = &[(0x1000, 9, b"b")];
    dump.feed(&debug_info(0x1000, last)).unwrap();
    dump.feed(&load(0x1000, 0x400, "g")).unwrap();
    assert_eq!(dump.lookup(0x1010).unwrap().line, Some(9));
    // No function is as large, so it replaces none.
    let body = words(&[0, 0, 0, 1 << 62, 1]);
    dump.feed(&record(0, &[body, b"all\0".to_vec()].concat())).unwrap();
    assert_eq!(dump.lookup(0x1010).unwrap().line, Some(9));
}

#[test]
fn foreign_and_damaged_dumps_say_so() {
    let mut foreign = sample();
    foreign[..4].reverse();
    assert_eq!(JitDump::default().feed(&foreign), Err(JitDumpError::ForeignByteOrder));
    assert_eq!(JitDump::default().feed(&[0; 64]), Err(JitDumpError::Magic));
    let mut newer = sample();
    newer[4] = 9;
    assert_eq!(JitDump::default().feed(&newer), Err(JitDumpError::Version(9)));
    let mut damaged = sample();
    damaged.extend(record(0, &[]));
    let end = damaged.len();
    damaged[end - 12..end - 8].fill(0);
    let mut dump = JitDump::default();
    assert_eq!(dump.feed(&damaged), Err(JitDumpError::Record(0)));
    assert_eq!(dump.feed(b"more"), Err(JitDumpError::Record(0)));
    assert_eq!(dump.lookup(0x1004).unwrap().name, "run");
}

#[test]
fn damaged_jitdumps_never_panic() {
    let bytes = sample();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..20_000_usize {
        let mut damaged = bytes.clone();
        for _ in 0..=round % 5 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = usize::try_from(state >> 8).unwrap_or(0) % damaged.len();
            damaged[at] = state.to_le_bytes()[0];
        }
        let _ = exercise::jitdump(&damaged);
    }
}

const SCRIPT: &str = "function busyLoop(n) { let t = 0; for (let i = 0; i < n; i++) t = (t * 31 + i) | 0; return t; }
let total = 0; for (let i = 0; i < 3000; i++) total += busyLoop(2000); console.log(total);";

fn node(arguments: &[&str], directory: &std::path::Path) -> Option<u32> {
    fs::create_dir_all(directory).unwrap();
    let script = directory.join("busy.js");
    fs::write(&script, SCRIPT).unwrap();
    let child = Command::new("node")
        .args(arguments)
        .arg(&script)
        .current_dir(directory)
        .stdout(std::process::Stdio::null())
        .spawn();
    match child {
        Ok(mut child) => {
            let process = child.id();
            child.wait().ok()?.success().then_some(process)
        }
        Err(error) => {
            strata_skip::skipped!("no node here ({error})");
            None
        }
    }
}

#[test]
fn the_perf_map_of_node_names_javascript_functions() {
    let Some(process) = node(&["--perf-basic-prof"], &place("node-map")) else {
        return;
    };
    let path = format!("/tmp/perf-{process}.map");
    let bytes = fs::read(&path).unwrap();
    let _ = fs::remove_file(&path);
    let mut map = PerfMap::default();
    bytes.chunks(1000).for_each(|piece| map.feed(piece));
    let text = String::from_utf8_lossy(&bytes);
    let line =
        text.lines().rfind(|line| line.contains("busyLoop")).expect("the function is listed");
    let start =
        u64::from_str_radix(line.split(' ').next().unwrap().trim_start_matches("0x"), 16).unwrap();
    assert!(map.lookup(start).unwrap().contains("busyLoop"));
    println!(
        "{} functions, {} lines damaged, {} bytes",
        map.len(),
        map.damaged_lines,
        map.memory()
    );
    assert!(map.len() > 100);
}

#[test]
fn the_jitdump_of_node_names_javascript_functions() {
    let directory = place("node-dump");
    let Some(process) = node(&["--perf-prof", "--interpreted-frames-native-stack"], &directory)
    else {
        return;
    };
    let path = directory.join(format!("jit-{process}.dump"));
    let Ok(bytes) = fs::read(&path) else {
        strata_skip::skipped!("this node writes no jitdump");
        return;
    };
    let _ = fs::remove_file(&path);
    let mut dump = JitDump::default();
    for piece in bytes.chunks(4096) {
        dump.feed(piece).unwrap();
    }
    println!("{} functions from {} KiB", dump.len(), bytes.len() >> 10);
    assert!(dump.len() > 100);
}
