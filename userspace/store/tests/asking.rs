//! Stored profiles are found: by service, label, kind and time, merged or unmerged.

mod support;

use proptest::prelude::*;
use strata_kinds::Kind;
use strata_profile::{FrameKind, LabelsId, ProfileBuilder, StackId, Tick};
use strata_store::{Detail, Options, Pattern, Selection, Store};
use support::{HOUR, SECOND, START, counts, head, options, profile, stacks, store};

#[test]
fn a_profile_comes_back_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let written = profile(&[("main;work;add", 3), ("main;work;multiply", 4), ("main;wait", 5)]);
    store.append(&head("shop", START), &written, START).unwrap();
    let answer = store.reader().query(&Selection::of_service("shop", "cpu")).unwrap();
    let read = &answer.profile;
    assert_eq!(stacks(read), stacks(&written));
    assert_eq!((answer.profiles, answer.damaged), (1, 0));
    assert_eq!((read.start_nanos, read.duration_nanos), (START, 15 * SECOND));
    assert_eq!(read.string(read.host), "node-1");
    assert_eq!(read.period, 10_101_010);
    assert_eq!(read.sample_type("cpu"), Some(1));
    let location = read.locations()[0];
    assert_eq!(read.path_of(location), "/app/Shop.dll");
    let frame = read.frames(location)[0];
    assert_eq!((read.string(frame.file), frame.line), ("Shop.cs", 7));
    assert_eq!(frame.kind, FrameKind::Managed);
}

#[test]
fn process_numbers_are_there_when_asked_for_and_merged_away_when_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let written = profile(&[("main", 3), ("main", 4)]);
    store.append(&head("shop", START), &written, START).unwrap();
    let lasting = Selection::of_service("shop", "cpu");
    let all = Selection { detail: Detail::All, ..lasting.clone() };
    let lasting = store.reader().query(&lasting).unwrap().profile;
    let all = store.reader().query(&all).unwrap().profile;
    assert_eq!((lasting.sample_count(), all.sample_count()), (1, 2));
    let pids: Vec<_> = all.samples().map(|sample| all.identity(sample.labels).pid).collect();
    assert_eq!(pids, [Some(1), Some(2)]);
    let sample = lasting.samples().next().unwrap();
    assert_eq!(lasting.string(lasting.identity(sample.labels).comm), "worker");
}

#[test]
fn services_kinds_and_labels_are_chosen_by_name_or_pattern() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    for (at, service) in ["shop-api", "shop-web", "mail"].into_iter().enumerate() {
        let mut head = head(service, START + at as i64 * SECOND);
        head.labels.push(("version".to_owned(), format!("1.{at}")));
        store.append(&head, &profile(&[(service, 1)]), START).unwrap();
    }
    let found = |selection: Selection| {
        let answer = store.reader().query(&selection).unwrap();
        counts(&answer).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(found(Selection::of_service("mail", "cpu")), ["mail"]);
    assert_eq!(found(Selection::of_service("shop-*", "cpu")), ["shop-api", "shop-web"]);
    assert_eq!(found(Selection::of_service("*", "heap")), [""; 0]);
    assert_eq!(found(Selection::default().with_label("version", "1.?")).len(), 3);
    assert_eq!(found(Selection::default().with_label("version", "1.1")), ["shop-web"]);
    assert_eq!(found(Selection::default().with_label("absent", "*")), [""; 0]);
    let of_runtime = Selection { runtime_id: Some("mail-1".to_owned()), ..Selection::default() };
    assert_eq!(found(of_runtime), ["mail"]);
    let held = store.reader().holdings(&Selection::default()).unwrap();
    let names: Vec<_> = held.iter().map(|holding| holding.service.as_str()).collect();
    assert_eq!(names, ["mail", "shop-api", "shop-web"]);
    assert_eq!(held[0].first_nanos, START + 2 * SECOND);
    let kind = Some(Pattern::new("heap"));
    assert!(
        store.reader().holdings(&Selection { kind, ..Selection::default() }).unwrap().is_empty()
    );
}

#[test]
fn samples_in_time_are_kept_where_they_were_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    for period in 0..2_i64 {
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        builder.keep_timeline();
        let frame = builder.frame(FrameKind::Native, "work", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        let thread = builder.thread(7, 8, "worker", "shop", "");
        let labels = builder.thread_labels(thread);
        for tick in 0..3 {
            builder.tick(on_cpu(labels, stack, tick * 10));
        }
        builder.add(stack, labels, &[3]);
        let head = head("shop", START + period * 15 * SECOND);
        store.append(&head, &builder.finish(), START).unwrap();
    }
    let selection = Selection { timeline: true, ..Selection::of_service("shop", "cpu") };
    let answer = store.reader().query(&selection).unwrap().profile;
    let ticks: Vec<_> = answer.timeline().unwrap().collect();
    let times: Vec<_> = ticks.iter().map(|tick| tick.time).collect();
    let late = 15 * SECOND as u64;
    assert_eq!(times, [0, 10, 20, late, late + 10, late + 20]);
    let thread = answer.identity(ticks[5].labels);
    let named = (thread.pid, thread.tid, answer.string(thread.comm));
    assert_eq!(named, (Some(7), Some(8), "worker"));
    assert_eq!((ticks[5].kind, ticks[5].duration(), ticks[5].weight), (Kind::Cpu, 5, 1));
}

/// A slice of a CPU.
fn on_cpu(labels: LabelsId, stack: StackId, time: u64) -> Tick {
    Tick { kind: Kind::Cpu, labels, stack, time, weight: 1, value: 5 }
}

#[test]
fn samples_in_time_of_a_process_that_began_later_are_at_their_own_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    for (period, pid) in [(0_i64, 7), (1, 8), (2, 8)] {
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        builder.keep_timeline();
        let frame = builder.frame(FrameKind::Native, "work", "", "", 0);
        let location = builder.location(1, None, &[frame]);
        let stack = builder.stack(&[location]);
        let thread = builder.thread(pid, pid, "worker", "shop", "");
        let labels = builder.thread_labels(thread);
        builder.tick(on_cpu(labels, stack, 10));
        builder.add(stack, labels, &[1]);
        let mut head = head("shop", START + period * 15 * SECOND);
        head.runtime_id = format!("shop-{pid}");
        store.append(&head, &builder.finish(), START).unwrap();
    }
    let all = Selection { timeline: true, ..Selection::of_service("shop", "cpu") };
    let later = Selection { runtime_id: Some("shop-8".to_owned()), ..all.clone() };
    let asked = |selection: &Selection| {
        let profile = store.reader().query(selection).unwrap().profile;
        let times = profile.timeline().unwrap();
        let times = times.map(|tick| profile.start_nanos + tick.time as i64);
        (times.collect::<Vec<_>>(), profile.start_nanos + profile.duration_nanos)
    };
    let at = |period: i64| START + period * 15 * SECOND + 10;
    let end = START + 45 * SECOND;
    assert_eq!(asked(&all), (vec![at(0), at(1), at(2)], end));
    assert_eq!(asked(&later), (vec![at(1), at(2)], end));
    let without_times = Selection { timeline: false, ..later };
    let profile = store.reader().query(&without_times).unwrap().profile;
    assert_eq!(profile.start_nanos, START + 15 * SECOND);
}

#[test]
fn a_long_question_reads_merges_and_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let names: Vec<String> = (0..40).map(|at| format!("main;work{};leaf{at}", at % 7)).collect();
    for period in 0..720_i64 {
        let start = START + period * 15 * SECOND;
        let stacks: Vec<_> = (0..20)
            .map(|at| (names[(at * 3 + period as usize) % 40].as_str(), 1 + at as i64))
            .collect();
        store.append(&head("shop", start), &profile(&stacks), start).unwrap();
    }
    let (from, to) = (START + 100 * SECOND, START + 3 * HOUR - 70 * SECOND);
    let selection = Selection::of_service("shop", "cpu").between(from, to);
    let before = store.reader().query(&selection).unwrap();
    store.seal().unwrap();
    store.tend(START).unwrap();
    assert_eq!(store.counters().merges_made, 3);
    let after = store.reader().query(&selection).unwrap();
    assert_eq!(stacks(&before.profile), stacks(&after.profile));
    assert_eq!(before.profiles, after.profiles);
    assert_eq!(before.profile.start_nanos, after.profile.start_nanos);
    assert_eq!(before.profile.duration_nanos, after.profile.duration_nanos);
    let all = Selection::of_service("shop", "cpu");
    assert_eq!(store.reader().query(&all).unwrap().records_read, 3);
}

#[test]
fn two_windows_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let later = START + 60 * SECOND;
    let (old, new) = (profile(&[("main;slow", 3), ("main;b", 1)]), profile(&[("main;b", 4)]));
    store.append(&head("shop", START), &old, START).unwrap();
    store.append(&head("shop", later), &new, later).unwrap();
    let shop = Selection::of_service("shop", "cpu");
    let before = shop.clone().between(START, later);
    let after = shop.between(later, later + HOUR);
    let compared = store.reader().diff(&before, &after, "samples").unwrap();
    let most = &compared.difference.functions[0];
    assert_eq!((most.name.as_str(), most.own.before, most.own.after), ("b", 1, 4));
    assert_eq!(compared.difference.total.before, compared.difference.total.after);
    assert_eq!(compared.difference.functions[1].name, "slow");
}

/// Damages a file of the store within the payload of its record of this number.
fn damage(directory: &std::path::Path, ending: &str, record: usize) {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let path = files.into_iter().find(|path| path.extension().is_some_and(|e| e == ending));
    let path = path.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let records = bytes.windows(4).enumerate().filter(|(_, window)| *window == b"SREC");
    let at = records.map(|(at, _)| at).nth(record).unwrap();
    bytes[at + 60] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn damaged_merges_are_replaced_by_what_they_were_made_of() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    for period in 0..240_i64 {
        let start = START + period * 15 * SECOND;
        for service in ["shop", "mail"] {
            store.append(&head(service, start), &profile(&[("main;work", 2)]), start).unwrap();
        }
    }
    store.seal().unwrap();
    store.tend(START).unwrap();
    assert_eq!((store.counters().merges_made, store.counters().rollups_made), (1, 1));
    let ask = || {
        let answer = store.reader().query(&Selection::of_service("shop", "cpu")).unwrap();
        assert_eq!(counts(&answer)["main;work"], 480);
        assert_eq!(answer.profiles, 240);
        assert_eq!(answer.damaged, 0);
        (answer.records_read, answer.replaced)
    };
    assert_eq!(ask(), (1, 0), "from the roll-up");
    // Members, two series, and the hour of mail before that of shop.
    damage(directory.path(), "rollup", 4);
    assert_eq!(ask(), (2, 1), "from the hour's merge");
    // A series, its hour and its twelve five minutes, then the same of shop.
    damage(directory.path(), "merged", 15);
    let (records, damaged) = ask();
    assert_eq!((records, damaged), (242, 2), "from the profiles");
}

#[test]
fn a_day_is_read_from_one_roll_up_that_says_the_same_as_the_profiles() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let names: Vec<String> = (0..90).map(|at| format!("main;work{};leaf{at}", at % 7)).collect();
    let day = 24 * HOUR;
    // Not at a whole hour, so that it takes two roll-ups, and the last hour is open.
    let begin = START + 17 * 60 * SECOND;
    for period in 0..30 * 60_i64 {
        let start = begin + period * 60 * SECOND;
        for service in ["shop", "mail", "late"] {
            if service == "late" && period < 700 {
                continue;
            }
            let stacks: Vec<_> = (0..6)
                .map(|at| (names[(at * 11 + period as usize / 9) % 90].as_str(), 1 + at as i64))
                .collect();
            store.append(&head(service, start), &profile(&stacks), start).unwrap();
        }
        if period % 20 == 0 {
            store.tend(start).unwrap();
        }
    }
    assert!(store.counters().rollups_made >= 28, "{:?}", store.counters());
    let of_ending = |ending: &str| {
        let files = std::fs::read_dir(directory.path()).unwrap().flatten();
        files.filter(|file| file.path().extension().is_some_and(|end| end == ending)).count()
    };
    assert_eq!(of_ending("rollup"), 2);
    let from = begin + 2 * HOUR + 777 * SECOND;
    for (selection, least) in [
        (Selection::of_service("shop", "cpu").between(from, from + day), 24 * 50),
        (Selection::default().between(from, from + day), 2 * 24 * 50),
        (Selection::default(), 2 * 30 * 60),
    ] {
        let merged = store.reader().query(&selection).unwrap();
        let every = Selection { detail: Detail::All, ..selection };
        let every = store.reader().query(&every).unwrap();
        assert_eq!(stacks(&merged.profile), stacks(&every.profile));
        assert_eq!(merged.profiles, every.profiles);
        assert_eq!((merged.damaged, every.damaged), (0, 0));
        assert!(merged.profiles >= least);
        assert!(merged.records_read * 4 < every.records_read, "{}", merged.records_read);
    }
    // The same after it was opened again, which finds the roll-ups as they are.
    let before = store.reader().query(&Selection::default()).unwrap();
    let made = store.counters().rollups_made;
    drop(store);
    let mut store = self::store(directory.path());
    assert_eq!(stacks(&before.profile), {
        let after = store.reader().query(&Selection::default()).unwrap();
        stacks(&after.profile)
    });
    store.tend(begin + 40 * HOUR).unwrap();
    let made = made + store.counters().rollups_made;
    assert_eq!(made, of_ending("seg") as u64, "every segment is rolled up once");
}

#[test]
fn a_roll_up_does_not_speak_for_what_retention_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let hours = |hours: i64| std::time::Duration::from_secs(hours as u64 * 3_600);
    let bounds = strata_store::Options { max_age: hours(10), ..options() };
    let mut store = Store::open(directory.path(), bounds).unwrap();
    for minute in 0..30 * 60_i64 {
        let start = START + minute * 60 * SECOND;
        store.append(&head("shop", start), &profile(&[("main;work", 1)]), start).unwrap();
        if minute % 10 == 0 {
            store.tend(start).unwrap();
            let oldest = start - 10 * HOUR;
            let answer = store.reader().query(&Selection::of_service("shop", "cpu")).unwrap();
            assert!(answer.profile.start_nanos >= oldest, "at minute {minute}");
            assert_eq!(counts(&answer)["main;work"], answer.profiles as i64);
            assert!(answer.profiles as i64 <= 601 && (minute < 600 || answer.profiles >= 540));
        }
    }
    let rollups = std::fs::read_dir(directory.path()).unwrap().flatten();
    let rollups = rollups.filter(|file| file.path().extension().is_some_and(|e| e == "rollup"));
    assert!(rollups.count() <= 2, "roll-ups without segments are removed");
}

#[test]
fn samples_of_one_process_are_chosen_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let written = profile(&[("main;one", 2), ("main;two", 4)]);
    store.append(&head("shop", START), &written, START).unwrap();
    let later = START + 15 * SECOND;
    store.append(&head("shop", later), &profile(&[("main;one", 1)]), later).unwrap();
    let of = |pid| {
        let selection = Selection { pid: Some(pid), ..Selection::of_service("shop", "cpu") };
        let answer = store.reader().query(&selection).unwrap();
        (counts(&answer).into_iter().collect::<Vec<_>>(), answer.profiles)
    };
    assert_eq!(of(1), (vec![("main;one".to_owned(), 3)], 2));
    assert_eq!(of(2), (vec![("main;two".to_owned(), 4)], 1));
    assert_eq!(of(3), (vec![], 0), "profiles of others are not counted");
}

#[test]
fn what_is_there_is_listed_with_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    for period in 0..240_i64 {
        let start = START + period * 15 * SECOND;
        store.append(&head("shop", start), &profile(&[("main;work", 2)]), start).unwrap();
        if period == 120 {
            store.seal().unwrap();
            store.tend(start).unwrap();
        }
    }
    let held = store.reader().holdings(&Selection::default()).unwrap();
    let [holding] = held.as_slice() else { panic!("{held:?}") };
    assert_eq!((holding.service.as_str(), holding.kind.as_str()), ("shop", "cpu"));
    assert_eq!((holding.first_nanos, holding.last_nanos), (START, START + HOUR));
    assert_eq!(holding.profiles, 240);
    assert!(holding.bytes > 240 * 48 && holding.bytes < store.bytes(), "{}", holding.bytes);
    let late = Selection::default().between(START + 30 * 60 * SECOND, START + 2 * HOUR);
    assert_eq!(store.reader().holdings(&late).unwrap()[0].profiles, 120);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_window_over_any_profiles_is_their_sum(
        profiles in prop::collection::vec((0..4_i64 * 3600, 0..3_usize, 0..6_usize, 1..1000_i64), 1..60),
        window in (0..4_i64 * 3600, 0..4_i64 * 3600),
        sealed in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(directory.path(), options()).unwrap();
        let names = ["a;b", "a;c", "a;b;d", "e", "a", "e;f;g"];
        let services = ["shop", "shop", "mail"];
        for &(second, service, stack, count) in &profiles {
            let head = head(services[service], START + second * SECOND);
            store.append(&head, &profile(&[(names[stack], count)]), START).unwrap();
        }
        if sealed {
            store.seal().unwrap();
            store.tend(START).unwrap();
        }
        let (from, to) = window;
        let mut expected = std::collections::BTreeMap::<String, i64>::new();
        for &(second, service, stack, count) in &profiles {
            if services[service] == "shop" && (from..to).contains(&second) {
                *expected.entry(names[stack].to_owned()).or_default() += count;
            }
        }
        let selection = Selection::of_service("shop", "cpu")
            .between(START + from * SECOND, START + to * SECOND);
        let answer = store.reader().query(&selection).unwrap();
        prop_assert_eq!(counts(&answer), expected);
        prop_assert_eq!(answer.damaged, 0);
    }
}

#[test]
fn services_whose_dictionaries_have_no_room_are_written_as_if_they_had() {
    const LIMIT: usize = 400 << 10;
    let [tight, roomy] = [LIMIT, 64 << 20].map(|dictionary_bytes| {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { dictionary_bytes, ..options() };
        let store = Store::open(directory.path(), options).unwrap();
        (directory, store)
    });
    let mut stores = [tight, roomy];
    let mut most = [0, 0];
    for period in 0..20_i64 {
        let start = START + period * 15 * SECOND;
        for service in 0..60 {
            let names: Vec<_> = (0..5)
                .map(|at| format!("main;of service {service};work {}", (at + period * 3) % 23))
                .collect();
            let stacks: Vec<_> = names.iter().map(|name| (name.as_str(), 1 + period)).collect();
            for ((_, store), most) in stores.iter_mut().zip(&mut most) {
                let head = head(&format!("service-{service}"), start);
                store.append(&head, &profile(&stacks), start).unwrap();
                *most = store.dictionaries().max(*most);
            }
        }
    }
    assert!(most[0] < LIMIT && most[1] > LIMIT, "{most:?}");
    let [tight, roomy] = stores.map(|(directory, mut store)| {
        assert_eq!(store.counters().segments_sealed, 0);
        store.tend(START + 3 * HOUR).unwrap();
        let files = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files
            .map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(path).unwrap()))
            .collect();
        files.sort();
        let answer = store.reader().query(&Selection::default()).unwrap();
        assert_eq!((answer.profiles, answer.damaged), (1_200, 0));
        files
    });
    assert_eq!(tight, roomy);
}
