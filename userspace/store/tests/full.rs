//! A full disk: a file system of half a megabyte, with the store and a ballast in it.
//!
//! Run in namespaces of its own (`unshare`, of util-linux), so that no root is needed to mount.

mod support;

use std::path::Path;
use std::process::Command;

use strata_store::{Options, Reader, Selection, Store, StoreError};
use support::{HOUR, SECOND, START, counts, head, options, profile};

const INSIDE: &str = "STRATA_TEST_SMALL_DISK";

/// A profile that does not compress.
fn written(number: i64) -> strata_profile::Profile {
    let mixed = |at: i64| (number * 99 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let names: Vec<String> = (0..40).map(|at| format!("main;{:x};{at}", mixed(at))).collect();
    let stacks: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    profile(&stacks)
}

fn samples(directory: &Path) -> i64 {
    let answer = Reader::new(directory).query(&Selection::default()).unwrap();
    assert_eq!(answer.damaged, 0);
    counts(&answer).values().sum()
}

#[test]
fn a_full_disk_is_counted_and_does_not_stop_the_writer_for_good() {
    if let Some(disk) = std::env::var_os(INSIDE) {
        return on_a_small_disk(Path::new(&disk));
    }
    let directory = tempfile::tempdir().unwrap();
    let myself = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=512k strata-test \"$1\" && \
                  exec \"$2\" --exact a_full_disk_is_counted_and_does_not_stop_the_writer_for_good";
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .arg(myself)
        .env(INSIDE, directory.path())
        .output()
        .expect("`unshare` of util-linux runs");
    let printed = String::from_utf8_lossy(&done.stdout);
    let complained = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}{complained}");
    assert!(printed.contains("1 passed"), "{printed}{complained}");
}

fn on_a_small_disk(disk: &Path) {
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![7; 200 << 10]).unwrap();
    let directory = disk.join("store");
    let mut store = Store::open(&directory, Options { max_bytes: 1 << 30, ..options() }).unwrap();
    let (mut appended, mut failed) = (0, 0);
    let mut number = 0;
    let mut append = |store: &mut Store| {
        number += 1;
        let now = START + number / 20 * HOUR + number % 20 * 180 * SECOND;
        let result = store.append(&head("shop", now), &written(number), now);
        // Sealing, merging and rolling up fail as well, and are tried all the same.
        let _ = store.tend(now);
        result
    };
    while failed < 60 {
        match append(&mut store) {
            Ok(()) => appended += 40,
            Err(StoreError::Io { .. }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(store.counters().write_failures, failed);
    assert!(appended > 40, "the disk was full at once");
    assert_eq!(samples(&directory), appended, "what was written is there");

    std::fs::remove_file(&ballast).unwrap();
    for _ in 0..10 {
        append(&mut store).expect("there is room again");
        appended += 40;
    }
    assert_eq!(store.counters().write_failures, failed);
    assert_eq!(samples(&directory), appended);
    // A whole disk of what failed writes left behind would be a leak.
    let files = std::fs::read_dir(&directory).unwrap().count();
    assert!(files < 120, "{files} files");

    drop(store);
    let store = Store::open(&directory, Options { max_bytes: 1 << 30, ..options() }).unwrap();
    assert_eq!(samples(&directory), appended, "and after opening it again");
    drop(store);
    // A bound below what is there makes room even then.
    let small = Options { max_bytes: 100_000, ..options() };
    assert!(Store::open(&directory, small).unwrap().bytes() <= 100_000);
}
