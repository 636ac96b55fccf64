//! pprof, against itself and against Go's own tools.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use strata_profile::{FrameKind, Profile, pprof};
use support::{described, everything, hostile};

fn encoded(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    pprof::encode(profile, &mut bytes).unwrap();
    bytes
}

fn go(arguments: &[&str], folder: &Path) -> Output {
    let output = Command::new("go")
        .args(arguments)
        .current_dir(folder)
        .env("GO111MODULE", "off")
        .output()
        .expect("these tests need `go` on the path: `cargo xtask setup` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn go_tool_pprof(profile: &Profile, option: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.pb.gz");
    fs::write(&file, encoded(profile)).unwrap();
    let output =
        go(&["tool", "pprof", option, "-symbolize=none", file.to_str().unwrap()], folder.path());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_was_written_is_read_back() {
    for profile in [everything(), hostile()] {
        let read = pprof::decode(&encoded(&profile)).unwrap();
        assert_eq!(described(&read), described(&profile));
    }
}

#[test]
fn a_plain_file_is_read_like_a_gzipped_one() {
    let mut plain = Vec::new();
    pprof::encode_plain(&everything(), &mut plain).unwrap();
    assert_eq!(described(&pprof::decode(&plain).unwrap()), described(&everything()));
}

#[test]
fn mappings_keep_their_addresses_and_build_ids() {
    let read = pprof::decode(&encoded(&everything())).unwrap();
    let libc =
        read.mappings().iter().find(|mapping| read.string(mapping.path).ends_with("libc.so.6"));
    let libc = libc.unwrap();
    assert_eq!(
        (libc.start, libc.limit, libc.file_offset),
        (0x7f00_0000_0000, 0x7f00_0020_0000, 0x2_8000)
    );
    assert_eq!(read.string(libc.build_id), "c0ffee");
}

#[test]
fn go_lists_the_functions_with_their_shares() {
    let top = go_tool_pprof(&everything(), "-top");
    assert!(top.contains("Type: cpu"), "{top}");
    assert!(top.contains("Duration: 10s"), "{top}");
    let line = |name: &str| {
        let line = top
            .lines()
            .find(|line| line.ends_with(name))
            .unwrap_or_else(|| panic!("{name} in {top}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("vfs_read")[1], "50.00%", "{top}");
    assert_eq!(line("app::inner (inline)")[4], "97.00%", "{top}");
    assert_eq!(line("app::outer")[4], "97.00%", "{top}");
}

#[test]
fn go_accepts_every_table_of_the_file() {
    let raw = go_tool_pprof(&everything(), "-raw");
    for expected in [
        "PeriodType: cpu nanoseconds",
        "samples/count cpu/nanoseconds[dflt]",
        "comm:[worker 1] container_id:[3f29c0ffee] process:[app]",
        "pid:[41] tid:[42]",
        "vfs_read",
        "app::inner src/app.rs:7",
        "app::outer src/app.rs:70",
        "System.Void Shop.Order.Pay()",
        "0x7f0000000000/0x7f0000200000/0x28000 /usr/lib/libc.so.6 c0ffee [FL][LN]",
        "recorded by a test",
        "host: web-1",
    ] {
        assert!(raw.contains(expected), "{expected} in\n{raw}");
    }
    go_tool_pprof(&hostile(), "-raw");
}

#[test]
fn go_accepts_a_profile_without_samples() {
    let empty = support::recording().finish();
    assert_eq!(described(&pprof::decode(&encoded(&empty)).unwrap()), described(&empty));
    go_tool_pprof(&empty, "-raw");
}

#[test]
fn a_mapping_with_unnamed_code_does_not_claim_to_have_functions() {
    let raw = go_tool_pprof(&everything(), "-raw");
    let app = raw.lines().find(|line| line.contains("/srv/app (deleted)")).unwrap();
    assert!(app.contains("[FN]") && app.contains("[IN]"), "{app}");
    let libc = raw.lines().find(|line| line.contains("libc.so.6 c0ffee")).unwrap();
    assert!(!libc.contains("[FN]"), "libc has `libc.so.6!0x…`: {libc}");
}

#[test]
fn a_profile_made_by_go_is_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("burn.go"), GO_PROGRAM).unwrap();
    go(&["run", "burn.go"], folder.path());
    let cpu = pprof::decode(&fs::read(folder.path().join("cpu.pprof")).unwrap()).unwrap();
    assert_eq!(cpu.sample_type("cpu"), Some(1));
    assert_eq!(cpu.counting_sample_type(), Some(0));
    assert!(cpu.total(1) > 100_000_000, "{}", cpu.total(1));
    let burning = cpu.samples().any(|sample| {
        cpu.stack(sample.stack).any(|id| {
            cpu.frames(cpu.location(id)).iter().any(|frame| {
                cpu.string(frame.name) == "main.burn"
                    && cpu.string(frame.file).ends_with("burn.go")
                    && frame.line > 0
                    && frame.kind == FrameKind::Native
            })
        })
    });
    assert!(burning, "{:#?}", described(&cpu));
    let labelled = described(&cpu).iter().any(|line| line.contains("worker=\"one\""));
    assert!(labelled, "{:#?}", described(&cpu));

    let heap = pprof::decode(&fs::read(folder.path().join("heap.pprof")).unwrap()).unwrap();
    assert_eq!(heap.string(heap.sample_types[heap.shown_sample_type()].name), "inuse_space");
    // Bytes are numeric labels with a unit; they survive being written again.
    assert_eq!(described(&pprof::decode(&encoded(&heap)).unwrap()), described(&heap));
}

const GO_PROGRAM: &str = r#"package main

import (
	"context"
	"os"
	"runtime"
	"runtime/pprof"
	"time"
)

var sink []byte
var sum uint64

//go:noinline
func burn(until time.Time) {
	for time.Now().Before(until) {
		for i := uint64(0); i < 100000; i++ {
			sum = sum*31 + i
		}
	}
}

func main() {
	runtime.MemProfileRate = 1
	file, _ := os.Create("cpu.pprof")
	pprof.StartCPUProfile(file)
	pprof.Do(context.Background(), pprof.Labels("worker", "one"), func(context.Context) {
		burn(time.Now().Add(700 * time.Millisecond))
	})
	pprof.StopCPUProfile()
	file.Close()
	sink = make([]byte, 1<<20)
	heap, _ := os.Create("heap.pprof")
	pprof.WriteHeapProfile(heap)
	heap.Close()
}
"#;
