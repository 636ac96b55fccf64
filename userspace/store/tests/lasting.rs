//! What stays when writers die, files are damaged and space or time runs out.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strata_store::{Options, Selection, Store, StoreError};
use support::{HOUR, SECOND, START, counts, head, late, options, profile, store};

fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}

fn with_ending(directory: &Path, ending: &str) -> PathBuf {
    let found = files(directory).into_iter().map(|(path, _)| path);
    found.into_iter().find(|path| path.extension().is_some_and(|e| e == ending)).unwrap()
}

fn all(directory: &Path) -> i64 {
    let answer = strata_store::Reader::new(directory).query(&Selection::default()).unwrap();
    counts(&answer).values().sum()
}

/// Three profiles of one, two and four samples in a segment that was never sealed, and how long
/// the file was after each.
fn left_open(directory: &Path) -> (PathBuf, Vec<u8>, [u64; 4]) {
    let mut store = store(directory);
    let mut lengths = [16, 0, 0, 0];
    for (at, count) in [(1, 1), (2, 2), (3, 4)] {
        let start = START + at as i64 * SECOND;
        let name = format!("main;work{at}");
        store.append(&head("shop", start), &profile(&[(&name, count)]), start).unwrap();
        lengths[at] = store.bytes();
    }
    // As if killed: nothing is sealed, the lock ends with the process.
    let path = with_ending(directory, "open");
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes, lengths)
}

#[test]
fn a_write_cut_off_at_any_byte_costs_only_its_own_record() {
    let source = tempfile::tempdir().unwrap();
    let (path, bytes, lengths) = left_open(source.path());
    for length in 0..=bytes.len() {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join(path.file_name().unwrap());
        std::fs::write(&copy, &bytes[..length]).unwrap();
        let expected = match length as u64 {
            length if length >= lengths[3] => 7,
            length if length >= lengths[2] => 3,
            length if length >= lengths[1] => 1,
            _ => 0,
        };
        assert_eq!(all(directory.path()), expected, "read as it lies, {length} bytes");
        let mut store = store(directory.path());
        assert_eq!(all(directory.path()), expected, "recovered, {length} bytes");
        let start = START + 9 * SECOND;
        store.append(&head("shop", start), &profile(&[("later", 8)]), start).unwrap();
        assert_eq!(all(directory.path()), expected + 8);
    }
}

#[test]
fn only_its_user_reads_a_store_in_a_directory_that_was_there_already() {
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open_to_all).unwrap();
    let mut store = store(directory.path());
    let (profile, symbol) = late(7, START);
    for minute in 0..6 * 60 {
        let start = START + minute * 60 * SECOND;
        store.append(&head("shop", start), &profile, start).unwrap();
        store.tend(start).unwrap();
    }
    store.name_late(&[symbol]).unwrap();
    for ending in ["open", "seg", "merged", "rollup", "names"] {
        with_ending(directory.path(), ending);
    }
    for (path, _) in files(directory.path()) {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn an_index_cut_off_at_any_byte_costs_nothing() {
    let source = tempfile::tempdir().unwrap();
    let (path, _, lengths) = left_open(source.path());
    drop(store(source.path()));
    let sealed = std::fs::read(path.with_extension("seg")).unwrap();
    for length in lengths[3] as usize..=sealed.len() {
        for ending in ["open", "seg"] {
            let directory = tempfile::tempdir().unwrap();
            let name = path.with_extension(ending);
            let copy = directory.path().join(name.file_name().unwrap());
            std::fs::write(&copy, &sealed[..length]).unwrap();
            assert_eq!(all(directory.path()), 7, "{length} bytes");
            drop(store(directory.path()));
            assert_eq!(all(directory.path()), 7, "{length} bytes, recovered");
        }
    }
}

#[test]
fn a_flipped_bit_never_panics_and_never_adds_anything() {
    let source = tempfile::tempdir().unwrap();
    let (path, _, _) = left_open(source.path());
    drop(store(source.path()));
    let sealed = path.with_extension("seg");
    let bytes = std::fs::read(&sealed).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&sealed, damaged).unwrap();
        let reader = strata_store::Reader::new(source.path());
        let answer = reader.query(&Selection::default()).unwrap();
        let left: i64 = counts(&answer).values().sum();
        assert!([0, 1, 3, 7].contains(&left), "{left} at bit {bit}");
        reader.holdings(&Selection::default()).unwrap();
    }
}

#[test]
fn a_store_of_another_version_is_refused_and_left_as_it_is() {
    for ending in ["open", "seg", "merged", "rollup", "new"] {
        let directory = tempfile::tempdir().unwrap();
        let (path, mut bytes, _) = left_open(directory.path());
        bytes[12] = 3;
        let other = path.with_file_name(format!("{:016x}.{ending}", 9));
        std::fs::write(&other, bytes).unwrap();
        let before = files(directory.path());
        let refused = Store::open(directory.path(), options()).err().unwrap();
        assert!(matches!(refused, StoreError::OtherVersion { version: 3, .. }), "{refused}");
        assert!(refused.to_string().contains(other.to_str().unwrap()), "{refused}");
        assert_eq!(files(directory.path()), before);
        assert_eq!(all(directory.path()), 7, "what this version wrote can still be read");
    }
}

#[test]
fn a_segment_that_does_not_begin_as_one_is_put_aside_and_bounded_like_all_others() {
    for ending in ["open", "seg"] {
        let directory = tempfile::tempdir().unwrap();
        let (path, mut bytes, _) = left_open(directory.path());
        std::fs::remove_file(&path).unwrap();
        bytes[0] ^= 1;
        let (damaged, aside) = (path.with_extension(ending), path.with_extension("damaged"));
        std::fs::write(&damaged, &bytes).unwrap();
        std::fs::write(&aside, "an older one").unwrap();
        let store = store(directory.path());
        assert_eq!((store.counters().files_unreadable, store.bytes()), (1, bytes.len() as u64));
        assert!(!damaged.exists());
        assert_eq!(std::fs::read(&aside).unwrap(), bytes);
        drop(store);
        let mut again = self::store(directory.path());
        assert_eq!((again.counters().files_unreadable, again.bytes()), (0, bytes.len() as u64));
        let written = std::fs::metadata(&aside).unwrap().modified().unwrap();
        let written = written.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
        again.tend(written + HOUR).unwrap();
        assert!(aside.exists());
        again.tend(written + 31 * 24 * HOUR).unwrap();
        assert!(!aside.exists() && again.bytes() == 0, "it is older than anything is kept");
        drop(again);
        std::fs::write(&damaged, &bytes).unwrap();
        let small = Options { max_bytes: bytes.len() as u64 - 1, ..options() };
        let small = Store::open(directory.path(), small).unwrap();
        assert!(!aside.exists() && small.bytes() == 0, "there is no room for it");
    }
}

#[test]
fn merges_half_made_are_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = store(directory.path());
    for period in 0..240_i64 {
        let start = START + period * 15 * SECOND;
        first.append(&head("shop", start), &profile(&[("main;work", 1)]), start).unwrap();
    }
    first.seal().unwrap();
    drop(first);
    let sealed = with_ending(directory.path(), "seg");
    std::fs::write(sealed.with_extension("new"), b"strata-store\x02\x00\x00\x00SREC").unwrap();
    let mut again = store(directory.path());
    assert!(!sealed.with_extension("new").exists());
    again.tend(START).unwrap();
    assert_eq!(again.counters().merges_made, 1);
    assert!(sealed.with_extension("merged").exists());
    assert_eq!(all(directory.path()), 240);
}

#[test]
fn one_writer_owns_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let first = store(directory.path());
    let second = Store::open(directory.path(), options());
    let own = Some(std::process::id());
    assert!(matches!(second, Err(StoreError::Locked { owner, .. }) if owner == own));
    drop(first);
    Store::open(directory.path(), options()).unwrap();
}

#[test]
fn the_size_is_kept_at_every_moment_and_the_oldest_goes_first() {
    let directory = tempfile::tempdir().unwrap();
    let most = 200_000;
    let mut store =
        Store::open(directory.path(), Options { max_bytes: most, ..options() }).unwrap();
    let mut appended = 0;
    for period in 0..3_000_i64 {
        let start = START + period * 15 * SECOND;
        // Names that do not compress, so that it fills up.
        let names: Vec<String> = (0..8_u64)
            .map(|at| (period as u64 * 8 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .map(|mixed| format!("main;{mixed:x};{:x}", mixed.wrapping_mul(0xdead_beef_1234_5677)))
            .collect();
        let stacks: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        store.append(&head("shop", start), &profile(&stacks), start).unwrap();
        appended += 8;
        let on_disk = if period % 50 == 0 {
            files(directory.path()).iter().map(|(_, bytes)| bytes.len() as u64).sum()
        } else {
            store.bytes()
        };
        assert!(on_disk <= most, "{on_disk} bytes after {period}");
        if period % 100 == 0 {
            store.tend(start).unwrap();
        }
    }
    let counters = store.counters();
    assert!(counters.dropped_by_size > 0);
    let left = all(directory.path());
    assert_eq!(left + counters.profiles_dropped as i64 * 8, appended);
    assert!(left > 0);
    let held = store.reader().holdings(&Selection::default()).unwrap();
    assert_eq!(held[0].last_nanos, START + 3_000 * 15 * SECOND);
    let (bytes, counted) = (store.bytes(), store.counters());
    assert_eq!(counted.write_failures, 0);
    drop(store);
    let reopened = Store::open(directory.path(), Options { max_bytes: most / 2, ..options() });
    let reopened = reopened.unwrap();
    assert!(bytes > most / 2 && reopened.bytes() <= most / 2, "a smaller bound holds at once");
}

#[test]
fn what_is_too_old_goes_and_what_comes_too_late_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let max_age = Duration::from_secs(8 * 3600);
    let mut store = Store::open(directory.path(), Options { max_age, ..options() }).unwrap();
    for hour in 0..24_i64 {
        let now = START + hour * HOUR;
        store.append(&head("shop", now), &profile(&[("main", 1)]), now).unwrap();
        store.tend(now).unwrap();
        let held = store.reader().holdings(&Selection::default()).unwrap();
        assert!(held[0].first_nanos >= now - 8 * HOUR);
    }
    assert_eq!(all(directory.path()), 9);
    assert_eq!(store.counters().dropped_by_age, 15);
    let late = store.append(&head("shop", START), &profile(&[("main", 1)]), START + 24 * HOUR);
    assert!(matches!(late, Err(StoreError::TooOld)));
    assert_eq!(store.counters().refused_too_old, 1);
}

#[test]
fn a_time_that_is_held_back_drops_nothing_and_refuses_nothing_newer() {
    let directory = tempfile::tempdir().unwrap();
    let max_age = Duration::from_secs(8 * 3600);
    let mut store = Store::open(directory.path(), Options { max_age, ..options() }).unwrap();
    assert_eq!(store.newest(), None);
    store.append(&head("shop", START), &profile(&[("main", 1)]), START).unwrap();
    assert_eq!(store.newest(), Some(START));
    // The clock of profiles is a month ahead, the time by which they age is not.
    let ahead = START + 30 * 24 * HOUR;
    store.append(&head("shop", ahead), &profile(&[("main", 1)]), START + HOUR).unwrap();
    store.tend(START + HOUR).unwrap();
    assert_eq!(store.newest(), Some(ahead));
    // And is set back to where it was.
    let later = START + 2 * HOUR;
    store.append(&head("shop", later), &profile(&[("main", 1)]), later).unwrap();
    store.tend(later).unwrap();
    assert_eq!(all(directory.path()), 3);
    assert_eq!((store.counters().profiles_dropped, store.counters().refused_too_old), (0, 0));
    drop(store);
    let store = Store::open(directory.path(), Options { max_age, ..options() }).unwrap();
    assert_eq!(store.newest(), Some(ahead));
}

#[test]
fn a_profile_larger_than_the_store_is_refused_and_the_next_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Options { max_bytes: 20_000, ..options() };
    let mut store = Store::open(directory.path(), bounds).unwrap();
    let names: Vec<String> =
        (0..2_000_u64).map(|at| format!("{:x}", at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let large: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    store.append(&head("shop", START), &profile(&[("main", 1)]), START).unwrap();
    let refused = store.append(&head("shop", START), &profile(&large), START);
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    store.append(&head("shop", START), &profile(&[("main", 2)]), START).unwrap();
    assert_eq!(all(directory.path()), 3);
    assert_eq!(store.counters().refused_too_large, 1);
}

#[test]
fn a_number_that_a_roll_up_knows_is_not_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let max_age = Duration::from_secs(24 * 3600);
    let bounds = Options { max_age, ..options() };
    let mut store = Store::open(directory.path(), bounds).unwrap();
    let write = |store: &mut Store, hour: i64| {
        let start = START + hour * HOUR;
        for _ in 0..100 {
            store.append(&head("shop", start), &profile(&[("main;work", 1)]), start).unwrap();
        }
        store.seal().unwrap();
    };
    // The second segment is the older one, and is dropped before the first.
    write(&mut store, 10);
    write(&mut store, 0);
    store.tend(START + 11 * HOUR).unwrap();
    assert_eq!(store.counters().rollups_made, 2);
    store.tend(START + 25 * HOUR).unwrap();
    assert_eq!(all(directory.path()), 100);
    drop(store);
    let mut store = Store::open(directory.path(), bounds).unwrap();
    write(&mut store, 26);
    // The roll-up does not take the new segment for the one that is gone.
    assert_eq!(all(directory.path()), 200);
    let newest = Selection::default().between(START + 26 * HOUR, START + 27 * HOUR);
    assert_eq!(store.reader().query(&newest).unwrap().profiles, 100);
}

#[test]
fn a_roll_up_of_another_segment_with_the_same_number_is_made_anew() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (directory, hour) in [(&old, 10), (&new, 26)] {
        let mut store = store(directory.path());
        let start = START + hour * HOUR;
        for _ in 0..100 {
            store.append(&head("shop", start), &profile(&[("main;work", 1)]), start).unwrap();
        }
        store.seal().unwrap();
        store.tend(start).unwrap();
        assert_eq!(store.counters().rollups_made, 1);
    }
    // Older versions gave the number of a dropped segment again.
    for ending in ["seg", "merged"] {
        let path = with_ending(new.path(), ending);
        std::fs::copy(&path, old.path().join(path.file_name().unwrap())).unwrap();
    }
    let mut store = store(old.path());
    let newest = Selection::default().between(START + 26 * HOUR, START + 27 * HOUR);
    for _ in 0..2 {
        assert_eq!(store.reader().query(&newest).unwrap().profiles, 100);
        assert_eq!(store.reader().query(&Selection::default()).unwrap().profiles, 100);
        store.tend(START + 27 * HOUR).unwrap();
    }
    assert_eq!(store.counters().rollups_made, 1);
}

#[test]
fn a_roll_up_with_a_large_dictionary_is_joined_no_more() {
    const HOURS: i64 = 12;
    let made = [96 << 10, 64 << 20].map(|dictionary_bytes| {
        let directory = tempfile::tempdir().unwrap();
        let mut store =
            Store::open(directory.path(), Options { dictionary_bytes, ..options() }).unwrap();
        for hour in 0..HOURS {
            let start = START + hour * HOUR;
            let names: Vec<_> = (0..100).map(|at| format!("main;work {at} of {hour}")).collect();
            let stacks: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
            // So many that merging them is worth it.
            for _ in 0..50 {
                store.append(&head("shop", start), &profile(&stacks), start).unwrap();
            }
            store.seal().unwrap();
            store.tend(start).unwrap();
        }
        let counters = store.counters();
        assert_eq!(counters.segments_sealed, HOURS as u64);
        assert_eq!((counters.rollups_made, counters.rollups_skipped), (HOURS as u64, 0));
        let files = files(directory.path()).into_iter().map(|(path, _)| path);
        let rollups = files.filter(|path| path.extension().is_some_and(|e| e == "rollup")).count();
        let answer = store.reader().query(&Selection::default()).unwrap();
        assert_eq!(answer.damaged, 0);
        (rollups, counts(&answer))
    });
    let [(many, tight), (one, roomy)] = made;
    assert_eq!(one, 1);
    assert!((2..=HOURS as usize / 2).contains(&many), "{many} roll-ups");
    assert_eq!(tight, roomy);
    assert_eq!(tight.len(), 100 * HOURS as usize);
}
