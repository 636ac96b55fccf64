//! `kill -9` at any moment: a writer in a process of its own is killed while it appends, seals,
//! merges, rolls up and drops, again and again on the same directory.
//!
//! What is promised: what was appended before the last [`Store::seal`] that returned is there
//! (unless retention dropped it), what is read is what was written, the lock is free. In fact
//! whole records survive too, since a killed process loses no write: only the one in the making.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use strata_store::{Options, Reader, Selection, Store};
use support::{HOUR, SECOND, START, counts, head, profile};

const WRITER: &str = "STRATA_TEST_WRITER";
/// Where the writer goes on.
const FIRST: &str = "STRATA_TEST_FIRST";
const MOST_BYTES: u64 = 3_000_000;

fn bounds() -> Options {
    Options {
        max_age: Duration::from_secs(1_000 * 3_600),
        max_bytes: MOST_BYTES,
        ..Options::default()
    }
}

/// The time of the profile of this number: ten of each of two services in an hour.
fn time_of(number: i64) -> i64 {
    START + number / 20 * HOUR + number % 20 * 180 * SECOND
}

/// Every profile has a function of its own, so that an answer shows which profiles are in it; and
/// much that does not compress, so that writes are long enough to be killed in.
fn written(number: i64) -> strata_profile::Profile {
    let own = format!("main;profile{number}");
    let mixed = |at: i64| (number * 40 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let rest: Vec<String> = (0..30).map(|at| format!("main;work;{:x}", mixed(at))).collect();
    let mut stacks = vec![(own.as_str(), 1)];
    stacks.extend(rest.iter().map(|stack| (stack.as_str(), 2)));
    profile(&stacks)
}

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "run by a_writer_killed_at_any_moment_loses_nothing_it_sealed, which kills it"]
fn writer() {
    let directory = std::env::var_os(WRITER).expect("the killing test says where");
    let first: i64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let mut store = Store::open(Path::new(&directory), bounds()).unwrap();
    let mut out = std::io::stdout();
    for number in first.. {
        let service = ["shop", "mail"][(number % 2) as usize];
        let now = time_of(number);
        store.append(&head(service, now), &written(number), now).unwrap();
        writeln!(out, "\nappended {number}").unwrap();
        if number % 10 == 0 {
            // Without its symbol first, which is written by itself.
            let (profile, symbol) = support::late(number as u64, now);
            store.append(&head(service, now), &profile, now).unwrap();
            store.name_late(&[symbol]).unwrap();
            writeln!(out, "\nnamed {number}").unwrap();
        }
        if number % 7 == 0 {
            store.seal().unwrap();
            writeln!(out, "\nsealed {number}").unwrap();
        }
        if number % 5 == 0 {
            store.tend(now).unwrap();
        }
    }
}

/// Which profiles an answer has, and that each is there once.
fn numbers(directory: &Path, selection: &Selection) -> std::collections::BTreeSet<i64> {
    let answer = Reader::new(directory).query(selection).unwrap();
    assert_eq!(answer.damaged, 0, "damage after a kill");
    counts(&answer)
        .into_iter()
        .filter_map(|(stack, count)| {
            let number = stack.strip_prefix("main;profile")?.parse().unwrap();
            assert_eq!(count, 1, "profile {number}");
            Some(number)
        })
        .collect()
}

/// Which late symbols an answer has.
fn late(directory: &Path) -> std::collections::BTreeSet<i64> {
    let answer = Reader::new(directory).query(&Selection::default()).unwrap();
    let stacks = counts(&answer).into_keys();
    stacks.filter_map(|stack| stack.strip_prefix("late")?.parse().ok()).collect()
}

#[test]
fn a_writer_killed_at_any_moment_loses_nothing_it_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut next, mut random) = (0_i64, 0x1234_5678_u64);
    let rounds = std::env::var("STRATA_TEST_LONG").map_or(40, |_| 1_000);
    let (mut cut_off, mut dropped_rounds, mut rolled_up) = (0_u64, 0, 0);
    let mut all_named = std::collections::BTreeSet::new();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--ignored", "--nocapture"])
            .env(WRITER, directory.path())
            .env(FIRST, next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let reading = std::thread::spawn(move || {
            let (mut appended, mut sealed, mut named) = (-1_i64, -1_i64, None);
            for line in lines.lines().map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("appended ") {
                    appended = number.parse().unwrap_or(appended);
                } else if let Some(number) = line.strip_prefix("sealed ") {
                    sealed = number.parse().unwrap_or(sealed);
                } else if let Some(number) = line.strip_prefix("named ") {
                    named = number.parse().ok().or(named);
                }
            }
            (appended, sealed, named)
        });
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(20_000 + (random >> 33) % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let (appended, sealed, named) = reading.join().unwrap();

        // As found, before any repair; and from the merges as from the profiles.
        let found = numbers(directory.path(), &Selection::default());
        let profiles = Selection { detail: strata_store::Detail::All, ..Selection::default() };
        assert_eq!(found, numbers(directory.path(), &profiles), "round {round}");
        let last = appended.max(next - 1);
        // The record after the last one confirmed may be whole.
        assert!(found.last().is_none_or(|&found| found <= last + 1), "round {round}: too new");
        let first = found.first().copied().unwrap_or(0);
        for number in first..=sealed {
            assert!(found.contains(&number), "round {round}: {number} was sealed by {sealed}");
        }
        for number in first..=appended {
            assert!(found.contains(&number), "round {round}: {number} was written whole");
        }
        if let Some(named) = named {
            assert!(
                late(directory.path()).contains(&named),
                "round {round}: {named} has its symbol"
            );
            all_named.insert(named);
        }
        let bytes: u64 = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(bytes <= MOST_BYTES, "round {round}: {bytes} bytes");

        let store = Store::open(directory.path(), bounds()).unwrap();
        cut_off += store.counters().bytes_cut_off;
        let recovered = numbers(directory.path(), &Selection::default());
        assert_eq!(recovered.last(), found.last(), "round {round}: recovery lost the newest");
        let (still, first) = (late(directory.path()), recovered.first().copied().unwrap_or(0));
        let is_kept = |number: &&i64| **number > first;
        for number in all_named.iter().filter(is_kept) {
            assert!(still.contains(number), "round {round}: recovery lost the symbol {number}");
        }
        // Opening drops what is too much, the oldest first, and nothing else.
        let kept = recovered.first().copied().unwrap_or(0);
        assert_eq!(recovered, found.range(kept..).copied().collect(), "round {round}");
        dropped_rounds += usize::from(kept > 0);
        let ending = |file: std::fs::DirEntry| file.path().extension().map(|end| end.to_owned());
        let files = std::fs::read_dir(directory.path()).unwrap().flatten();
        rolled_up += usize::from(files.filter_map(ending).any(|end| end == "rollup"));
        next = found.last().map_or(next, |&last| last + 1).max(next);
    }
    println!(
        "{rounds} kills, {next} profiles, {cut_off} bytes cut off; {dropped_rounds} rounds after \
         something was dropped, {rolled_up} with a roll-up"
    );
    assert!(next > 0, "nothing was ever written");
}
