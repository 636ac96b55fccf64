//! Symbols that were known after their frames were stored: every answer has them, wherever it is
//! read from, and nothing else in it changes.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strata_profile::{FrameKind, LateKey, Profile, ProfileBuilder};
use strata_store::{
    Answer, Detail, LateFrame, LateSymbol, Options, Reader, Selection, Store, StoreError,
};
use support::{HOUR, SECOND, START, counts, head, options, stacks, store};

const LIBRARY: &str = "/lib/slow.so";
const BUILD_ID: &str = "c0ffee";

/// A profile of one stack, whose leaf has its symbol or a key instead.
fn profile(late: Option<LateKey>) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let frame = builder.frame(FrameKind::Native, "main", "", "main.c", 3);
    let main = builder.location(1, None, &[frame]);
    let leaf = match late {
        // Before its file was read, not even the build id is known.
        Some(key) => {
            let mapping = Some(builder.mapping(0, u64::MAX, 0, LIBRARY, ""));
            builder.late_location(0x14b0, mapping, key)
        }
        None => {
            let mapping = Some(builder.mapping(0x1000, 0x9000, 0x1000, LIBRARY, BUILD_ID));
            let frames = [
                builder.frame(FrameKind::Native, "inner", "_inner", "slow.c", 7),
                builder.frame(FrameKind::Native, "outer", "", "slow.c", 9),
            ];
            builder.location(0x24b0, mapping, &frames)
        }
    };
    let stack = builder.stack(&[leaf, main]);
    let labels = builder.labels(&[]);
    builder.add(stack, labels, &[2, 20]);
    builder.finish()
}

fn symbol(key: LateKey, last_nanos: i64) -> LateSymbol {
    let frame = |name: &str, system_name: &str, line| LateFrame {
        kind: FrameKind::Native,
        name: name.into(),
        system_name: system_name.into(),
        file: "slow.c".into(),
        line,
    };
    LateSymbol {
        key,
        path: LIBRARY.into(),
        build_id: BUILD_ID.into(),
        frames: vec![frame("inner", "_inner", 7), frame("outer", "", 9)],
        last_nanos,
    }
}

fn append(store: &mut Store, start: i64, late: Option<LateKey>) {
    store.append(&head("shop", start), &profile(late), start).unwrap();
}

/// From the merges over time, from the profiles, and from both.
fn everywhere(reader: &Reader) -> [Answer; 3] {
    let all = Selection { detail: Detail::All, ..Selection::default() };
    let window = Selection::default().between(START, START + 100 * HOUR + 7 * SECOND);
    [Selection::default(), all, window].map(|asked| reader.query(&asked).unwrap())
}

fn system_names(profile: &Profile) -> Vec<&str> {
    let frames = profile.locations().iter().flat_map(|location| profile.frames(*location));
    frames.map(|frame| profile.string(frame.system_name)).filter(|name| !name.is_empty()).collect()
}

fn only(stack: &str, count: i64) -> BTreeMap<String, i64> {
    [(stack.to_owned(), count)].into()
}

fn names_files(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().flatten().map(|file| file.path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "names")).collect();
    files.sort();
    files
}

#[test]
fn frames_get_their_late_symbols_in_profiles_merges_and_roll_ups() {
    let directory = tempfile::tempdir().unwrap();
    let key = LateKey(0xfeed);
    let mut store = store(directory.path());
    // Four hours late, two named; all but the last are merged and rolled up.
    for period in 0..6 * 60 {
        let start = START + period * 60 * SECOND;
        append(&mut store, start, (period < 4 * 60).then_some(key));
        store.tend(start).unwrap();
    }
    let counters = store.counters();
    assert!(counters.merges_made >= 4 && counters.rollups_made >= 4, "{counters:?}");
    let reader = store.reader();
    for answer in everywhere(&reader) {
        let expected: BTreeMap<_, _> = only("main;slow.so!0x14b0", 480)
            .into_iter()
            .chain(only("main;outer;inner", 240))
            .collect();
        assert_eq!(counts(&answer), expected);
        // Its own symbol's, and no key.
        assert_eq!(system_names(&answer.profile), ["_inner"]);
    }
    store.name_late(&[symbol(key, START + 4 * HOUR)]).unwrap();
    assert_eq!(store.counters().late_symbols_written, 1);
    let check = |reader: &Reader| {
        for answer in everywhere(reader) {
            assert_eq!(
                stacks(&answer.profile),
                [("main;outer;inner".to_owned(), vec![720, 7200])].into()
            );
            // One with what was named in time.
            assert_eq!(answer.profile.sample_count(), 1);
            assert_eq!(answer.profile.locations().len(), 2);
            let [mapping] = answer.profile.mappings() else { panic!("one mapping") };
            assert_eq!(answer.profile.string(mapping.build_id), BUILD_ID);
            assert_eq!((answer.profiles, answer.damaged), (360, 0));
        }
    };
    check(&reader);
    drop(store);
    let mut store = support::store(directory.path());
    check(&reader);
    // Merges made after the symbol was known, of frames without it.
    store.tend(START + 8 * HOUR).unwrap();
    check(&reader);
    assert_eq!(store.counters().bytes_cut_off, 0);
}

#[test]
fn a_key_that_the_daemon_did_not_draw_finds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    store.name_late(&[symbol(LateKey(7), START)]).unwrap();
    // A symbol of a target's file that has the form of a key.
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let claimed = LateKey(8).to_string();
    let frame = builder.frame(FrameKind::Native, "mine", &claimed, "", 0);
    let with_line = builder.frame(FrameKind::Native, "lines", &LateKey(7).to_string(), "a.c", 1);
    for frame in [frame, with_line] {
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        let labels = builder.labels(&[]);
        builder.add(stack, labels, &[1, 1]);
    }
    store.append(&head("evil", START), &builder.finish(), START).unwrap();
    let answer = store.reader().query(&Selection::default()).unwrap();
    let names: Vec<_> = counts(&answer).into_keys().collect();
    assert_eq!(names, ["lines", "mine"]);
}

#[test]
fn a_file_of_symbols_torn_anywhere_has_its_whole_records_and_is_written_on() {
    let whole = {
        let directory = tempfile::tempdir().unwrap();
        let mut store = store(directory.path());
        for key in 1..=3 {
            store.name_late(&[symbol(LateKey(key), START)]).unwrap();
        }
        let [file] = &names_files(directory.path())[..] else { panic!("one file") };
        std::fs::read(file).unwrap()
    };
    let record = (whole.len() - 16) / 3;
    assert_eq!(16 + 3 * record, whole.len(), "records are equally long");
    for length in 0..=whole.len() {
        for zeroed in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let mut torn = whole[..length].to_vec();
            // The file system may have given the end its length and not its bytes.
            if zeroed && length >= 16 {
                torn.resize(whole.len(), 0);
            }
            let mut store = store(directory.path());
            for key in 1..=4 {
                append(&mut store, START + key as i64 * SECOND, Some(LateKey(key)));
            }
            drop(store);
            std::fs::write(directory.path().join("00000000000000ff.names"), &torn).unwrap();
            let named = length.saturating_sub(16) / record;
            let check = |named: usize| {
                for answer in everywhere(&Reader::new(directory.path())) {
                    assert_eq!(answer.damaged, 0, "{length}");
                    let counts = counts(&answer);
                    let of = |name: &str| counts.get(name).copied().unwrap_or(0) as usize / 2;
                    let found = (of("main;outer;inner"), of("main;slow.so!0x14b0"));
                    assert_eq!(found, (named, 4 - named), "{length}");
                }
            };
            check(named);
            let mut store = support::store(directory.path());
            check(named);
            store.name_late(&[symbol(LateKey(4), START)]).unwrap();
            check(named + 1);
            drop(store);
            let store = support::store(directory.path());
            assert_eq!(store.counters().bytes_cut_off, 0, "{length}");
            check(named + 1);
        }
    }
}

/// Symbols whose texts do not compress, of about a kilobyte each.
fn large(keys: std::ops::Range<u64>, last_nanos: i64) -> Vec<LateSymbol> {
    let name = |key: u64| {
        let mixed = |at: u64| (key * 64 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..64).map(|at| format!("{:016x}", mixed(at))).collect::<String>()
    };
    keys.map(|key| {
        let mut one = symbol(LateKey(key), last_nanos);
        one.frames[0].name = Arc::from(name(key));
        one
    })
    .collect()
}

fn bounded(max_bytes: u64) -> Options {
    Options { max_bytes, ..options() }
}

#[test]
fn symbols_are_bounded_and_those_lacked_longest_ago_go_first() {
    const MOST: u64 = 64 << 20;
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path(), bounded(MOST)).unwrap();
    append(&mut store, START, None);
    // The second hour's symbols were lacked before the first's.
    let lacked = [2, 1, 3, 4];
    for (at, hour) in (0_u64..).zip(lacked) {
        for part in 0..8 {
            let keys = at * 400 + part * 50..at * 400 + (part + 1) * 50;
            store.name_late(&large(keys, START + hour * HOUR)).unwrap();
        }
        let on_disk: u64 =
            names_files(directory.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(on_disk <= MOST / 64, "{on_disk}");
        assert!(names_files(directory.path()).len() <= 16);
    }
    let counters = store.counters();
    assert_eq!(counters.late_symbols_written, 1600);
    assert!((1..1600).contains(&counters.late_symbols_dropped), "1.6 MB do not fit into 1 MiB");
    let kept = |key: u64| {
        append_one(&directory, key, MOST).contains_key(&format!("main;outer;{}", text_of(key)))
    };
    drop(store);
    assert!(!kept(400), "lacked longest ago");
    assert!(kept(1599), "lacked last");
    // One that is larger than a file may be.
    let mut store = Store::open(directory.path(), bounded(MOST)).unwrap();
    let mut huge = symbol(LateKey(1), START);
    huge.frames = large(0..500, START).into_iter().map(|one| one.frames[0].clone()).collect();
    store.name_late(&[huge, symbol(LateKey(2), START)]).unwrap();
    let counters = store.counters();
    assert_eq!((counters.late_symbols_written, counters.late_symbols_refused), (1, 1));
}

#[test]
fn a_store_that_is_opened_with_a_smaller_limit_keeps_the_symbols_that_were_lacked_last() {
    const MOST: u64 = 64 << 20;
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path(), bounded(MOST)).unwrap();
    append(&mut store, START, None);
    for part in 0..16 {
        let keys = part * 50..(part + 1) * 50;
        store.name_late(&large(keys, START + part as i64 * HOUR)).unwrap();
    }
    assert_eq!(store.counters().late_symbols_dropped, 0);
    drop(store);
    let on_disk = || -> u64 {
        names_files(directory.path()).iter().map(|file| file.metadata().unwrap().len()).sum()
    };
    let before = on_disk();
    assert!(before > MOST / 2 / 64, "{before}");
    for (most, drops) in [(MOST, false), (MOST / 2, true)] {
        let store = Store::open(directory.path(), bounded(most)).unwrap();
        assert!(on_disk() <= most / 64 && on_disk() > most / 64 / 2, "{}", on_disk());
        assert_eq!(store.counters().late_symbols_dropped > 0, drops);
    }
    let kept = |key: u64| {
        append_one(&directory, key, MOST / 2).contains_key(&format!("main;outer;{}", text_of(key)))
    };
    assert!(!kept(0), "lacked longest ago");
    assert!(kept(799), "lacked last");
}

fn text_of(key: u64) -> String {
    large(key..key + 1, 0)[0].frames[0].name.to_string()
}

/// The answer of a store to which a profile with this key was added.
fn append_one(directory: &tempfile::TempDir, key: u64, max_bytes: u64) -> BTreeMap<String, i64> {
    let mut store = Store::open(directory.path(), bounded(max_bytes)).unwrap();
    append(&mut store, START + HOUR, Some(LateKey(key)));
    counts(&store.reader().query(&Selection::default()).unwrap())
}

#[test]
fn symbols_go_with_the_profiles_that_lacked_them() {
    let directory = tempfile::tempdir().unwrap();
    let max_age = Duration::from_secs(24 * 3600);
    let mut store =
        Store::open(directory.path(), Options { max_age, ..Options::default() }).unwrap();
    let key = LateKey(5);
    append(&mut store, START, Some(key));
    store.name_late(&[symbol(key, START + 15 * SECOND)]).unwrap();
    store.tend(START + 23 * HOUR).unwrap();
    assert_eq!(names_files(directory.path()).len(), 1);
    store.tend(START + 25 * HOUR).unwrap();
    assert_eq!(names_files(directory.path()).len(), 0);
    assert_eq!(store.counters().late_symbols_dropped, 0, "nothing needs them");
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_directory_that_cannot_be_written_refuses_symbols_and_counts_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    append(&mut store, START, None);
    // The next number is taken by what is no file.
    std::fs::create_dir(directory.path().join("0000000000000001.names")).unwrap();
    let refused = store.name_late(&[symbol(LateKey(1), START), symbol(LateKey(2), START)]);
    assert!(matches!(refused, Err(StoreError::Io { .. })), "{refused:?}");
    assert_eq!(store.counters().late_symbols_refused, 2);
    append(&mut store, START + SECOND, None);
    assert_eq!(store.reader().query(&Selection::default()).unwrap().profiles, 2);
}
