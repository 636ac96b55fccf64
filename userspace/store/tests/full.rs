//! A full disk: a file system of half a megabyte, with the store and a ballast in it.
//!
//! Run in namespaces of its own (`unshare`, of util-linux), so that no root is needed to mount.

mod support;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use strata_store::{Options, Reader, Selection, Store, StoreError};
use support::{HOUR, SECOND, START, counts, head, options, profile};

const INSIDE: &str = "STRATA_TEST_SMALL_DISK";

fn mixed(number: i64, at: i64) -> i64 {
    (number * 99 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

/// A profile that does not compress.
fn written(number: i64) -> strata_profile::Profile {
    let names: Vec<String> =
        (0..40).map(|at| format!("main;{:x};{at}", mixed(number, at))).collect();
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
    on_a_small_disk("a_full_disk_is_counted_and_does_not_stop_the_writer_for_good", |disk| {
        fills_up_and_has_room_again(disk);
    });
}

#[test]
fn a_store_opened_on_a_full_disk_fails_only_to_write() {
    on_a_small_disk("a_store_opened_on_a_full_disk_fails_only_to_write", |disk| {
        let directory = disk.join("store");
        let mut store = Store::open(&directory, options()).unwrap();
        // Names that do not compress: their index takes more than what is left of the file's last page.
        for number in 0..60 {
            let service: String = (0..6).map(|at| format!("{:016x}", mixed(number, at))).collect();
            store.append(&head(&service, START), &profile(&[("main", 1)]), START).unwrap();
        }
        // As when its process is killed: the segment is not sealed.
        drop(store);
        let mut ballast = File::create(disk.join("ballast")).unwrap();
        while ballast.write_all(&[7; 512]).is_ok() {}
        let mut store = Store::open(&directory, options()).unwrap();
        store.tend(START).expect("there is nothing to merge");
        assert!(directory.join("0000000000000000.open").exists(), "it could not be sealed");
        assert_eq!(samples(&directory), 60);
        let refused = store.append(&head("shop", START), &written(2), START).unwrap_err();
        let StoreError::Io { source, .. } = refused else { panic!("{refused}") };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        store.tend(START).expect("there is nothing to merge");
    });
}

/// Runs a test again by itself, with a small disk.
fn on_a_small_disk(test: &str, run: fn(&Path)) {
    if let Some(disk) = std::env::var_os(INSIDE) {
        return run(Path::new(&disk));
    }
    let directory = tempfile::tempdir().unwrap();
    let myself = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=512k strata-test \"$1\" && \
                  exec \"$2\" --exact \"$3\"";
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .arg(myself)
        .arg(test)
        .env(INSIDE, directory.path())
        .output()
        .expect("`unshare` of util-linux runs");
    let printed = String::from_utf8_lossy(&done.stdout);
    let complained = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}{complained}");
    assert!(printed.contains("1 passed"), "{printed}{complained}");
}

fn fills_up_and_has_room_again(disk: &Path) {
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

/// A program whose every sample has another stack fills a store in an hour: with what all others have in it.
#[test]
fn a_service_with_ever_new_stacks_has_a_share_and_the_others_keep_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let mut store =
        Store::open(directory.path(), Options { max_bytes: 1 << 30, ..options() }).unwrap();
    let mut random = 7_u64;
    let mut flood = || {
        let mut name = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("f{random:x}")
        };
        let stacks: Vec<String> =
            (0..1500).map(|_| (0..6).map(|_| name()).collect::<Vec<_>>().join(";")).collect();
        profile(&stacks.iter().map(|stack| (stack.as_str(), 1)).collect::<Vec<_>>())
    };
    let periods = 200;
    for period in 0..periods {
        let start = START + period * 15 * SECOND;
        store.append(&head("flood", start), &flood(), start).unwrap();
        store.append(&head("shop", start), &profile(&[("main;work", 2)]), start).unwrap();
    }
    let (folded, bytes) = (store.counters().profiles_folded, store.bytes());
    println!("{folded} of {} profiles folded, {bytes} bytes", 2 * periods);
    assert!(folded > 0 && bytes < (1 << 30) / 24, "{folded}, {bytes}");
    let answer = |service: &str| {
        let answer = store.reader().query(&Selection::of_service(service, "cpu")).unwrap();
        assert_eq!(answer.profiles, periods as u64);
        counts(&answer)
    };
    assert_eq!(answer("shop")["main;work"], 2 * periods);
    let flood = answer("flood");
    assert_eq!(flood.values().sum::<i64>(), 1500 * periods, "no sample is lost");
    assert_eq!(flood["[beyond its share of the store]"], 1500 * folded as i64);
}
