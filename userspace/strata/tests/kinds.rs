//! Samples of every kind in the table from the aggregate to the store and an exporter: nothing on the
//! way may know one of them by name, and no sum may change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strata_abi::record::End;
use strata_agent::aggregate::{Aggregate, LabelsId, Sample, ThreadKey, Words};
use strata_agent::image_id::ImageId;
use strata_agent::processes::container::Groups;
use strata_agent::processes::table::{ProcessTable, Space};
use strata_export::exporter::{Exporter, Output};
use strata_export::origin::Origin;
use strata_export::pipeline::{
    FlushedProfile, Hooks, Pipeline, PipelineSettings, PoolSettings, StoreSettings,
};
use strata_export::{Clock, Outgoing, Queues};
use strata_kinds::{Frequencies, Kind, Kinds};
use strata_metadata::Source;
use strata_profile::{Profile, pprof};
use strata_store::{Detail, Head, Options, Pattern, Reader, Selection};
use strata_symbolize::build::{Build, Circumstances};
use strata_symbolize::known_symbols::KnownSymbols;

/// What a sample of a kind stands for, so that no two kinds have the same sums.
fn weight_and_value(kind: Kind) -> (u32, u64) {
    let number = kind as u32 + 1;
    let measures = kind.info().measured_columns() > 0;
    (number, if measures { u64::from(number) * 1000 } else { 0 })
}

const THREADS: u32 = 3;
const SAMPLES: u32 = 2;

/// A process, and one period of it with samples of these kinds: each thread has each stack once.
fn period(kinds: Kinds, times: Kinds) -> Profile {
    let mut table = ProcessTable::default();
    table.insert_unknown(7, "shop");
    let image = table.get(7).expect("it was inserted").image;
    let mut aggregate = Aggregate::new(times);
    for kind in kinds.iter() {
        // The first snapshot of two is not what is in use at the end.
        for _ in 0..2 {
            aggregate.begin_snapshot(kind, image, 0);
            take(&mut aggregate, kind, image);
        }
    }
    let groups = Groups::default();
    let circumstances = Circumstances {
        started: SystemTime::now() - Duration::from_secs(60),
        length: Duration::from_secs(15),
        frequencies: Frequencies::of_daemon(),
        kinds,
        host: "here".to_owned(),
    };
    let symbols = KnownSymbols::new(100);
    let mut build = Build::new((&table, &groups), &aggregate, &symbols, &circumstances);
    aggregate.rows().for_each(|row| build.add(&row));
    build.add_ticks(aggregate.ticks(), 0);
    build.finish()
}

fn take(aggregate: &mut Aggregate, kind: Kind, image: ImageId) {
    let (weight, value) = weight_and_value(kind);
    let space = Space::default();
    for number in 0..SAMPLES {
        let user = [0x1000 + u64::from(number) * 64, 0x2000];
        for tid in 0..THREADS {
            let labels = match number {
                0 => LabelsId::NONE,
                _ => aggregate.labels(&[("exception type", "Sold")]),
            };
            let comm = *b"worker\0\0\0\0\0\0\0\0\0\0";
            let stack = Words { kernel: &[], user: &user, end: End::Complete, flags: 0, era: 0 };
            let thread = ThreadKey { image, tid, comm, domain: 0 };
            let time = u64::from(number) * 1_000_000_000;
            let space = &space;
            aggregate.add(&Sample { kind, time, thread, labels, weight, value, stack, space });
        }
    }
}

/// The sum of every column after so many periods.
fn expected(kinds: Kinds, periods: i64) -> BTreeMap<&'static str, i64> {
    let mut sums = BTreeMap::new();
    for kind in kinds.iter() {
        let (weight, value) = weight_and_value(kind);
        let info = kind.info();
        let times = i64::from(THREADS * SAMPLES);
        // Snapshots replace each other, and everything else adds up.
        let times = if info.is_snapshot() { times } else { times * 2 * periods };
        let period = Frequencies::of_daemon().period(kind);
        for (column, one) in info.columns.iter().zip(info.values(weight.into(), value, period)) {
            sums.insert(column.own.name, one * times);
        }
    }
    sums
}

fn sums(profile: &Profile) -> BTreeMap<&str, i64> {
    let types = profile.sample_types.iter().enumerate();
    types.map(|(at, kind)| (profile.string(kind.name), profile.total(at))).collect()
}

fn flushed(profile: Profile, ago: i64) -> FlushedProfile {
    let mut profile = profile;
    profile.start_nanos -= ago * 15_000_000_000;
    let origin =
        Origin { service: "shop".to_owned(), runtime_id: "one".to_owned(), ..Origin::default() };
    let head = Head {
        service: origin.service.clone(),
        runtime_id: origin.runtime_id.clone(),
        start_nanos: profile.start_nanos,
        end_nanos: profile.start_nanos + profile.duration_nanos,
        ..Head::default()
    };
    FlushedProfile {
        outgoing: Outgoing { profile: Arc::new(profile), origin: Arc::new(origin) },
        head,
        stores_times: true,
        own_settings: Vec::new(),
        named_by: Source::DdService,
    }
}

/// Publishes flushes to a store and to files of all of them.
fn publish(folder: &Path, flushes: Vec<FlushedProfile>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let network = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let queues = network.block_on(Queues::start(Vec::new(), Clock::real())).expect("no exporters");
    let settings = PipelineSettings {
        store: Some(StoreSettings { directory: folder.join("store"), options: Options::default() }),
        exporters: vec![Exporter {
            name: "file".to_owned(),
            output: Output::Folder(folder.join("files")),
            period: Duration::from_secs(3600),
            labels: Vec::new(),
            target_labels: true,
            label_values: 10,
            timestamps: false,
            spool: None,
        }],
        waiting: 1 << 30,
        pool: PoolSettings { service: String::new(), ..PoolSettings::default() },
        ..PipelineSettings::default()
    };
    let hooks = Hooks { started: || {}, trim: || {} };
    let mut pipeline = Pipeline::start(settings, Arc::new(queues), network, hooks)
        .expect("a thread can be started");
    for flush in flushes {
        pipeline.publish(vec![flush], Some(Duration::from_secs(15)));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(pipeline.end(Duration::from_secs(60)));
}

#[test]
fn every_kind_keeps_its_sums_from_the_aggregate_to_the_store_and_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = Kinds::all();
    let one = period(all, Kinds::NONE);
    assert_eq!(one.kinds(), all);
    assert_eq!(sums(&one), expected(all, 1));
    let flushes = (0..3).map(|ago| flushed(period(all, Kinds::NONE), ago)).collect();
    publish(folder.path(), flushes);
    let sums_of_three = expected(all, 3);

    // One file with all columns: the period of the exporter is longer than three flushes.
    let files = std::fs::read_dir(folder.path().join("files/shop")).expect("a service's folder");
    let files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let written = pprof::decode(&std::fs::read(file).expect("readable")).expect("pprof");
    assert_eq!(sums(&written), sums_of_three);

    // A series for each kind, asked for by its name or with others.
    let reader = Reader::new(&folder.path().join("store"));
    for kind in all.iter() {
        let answer = reader.query(&Selection::of_service("shop", kind.name())).expect("an answer");
        let only = expected(Kinds::NONE.with(kind, true), 3);
        assert_eq!((answer.profiles, sums(&answer.profile)), (3, only), "{kind}");
    }
    let kind = Some(Pattern::new("*"));
    let answer = reader.query(&Selection { kind, ..Selection::default() }).expect("an answer");
    assert_eq!(sums(&answer.profile), sums_of_three);
}

#[test]
fn times_are_stored_with_their_kind_and_say_what_the_sums_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let kinds: Kinds = [Kind::Cpu, Kind::Exceptions, Kind::Locks].into_iter().collect();
    publish(folder.path(), vec![flushed(period(kinds, kinds), 0)]);
    let reader = Reader::new(&folder.path().join("store"));
    for kind in kinds.iter() {
        let selection = Selection {
            timeline: true,
            detail: Detail::All,
            ..Selection::of_service("shop", kind.name())
        };
        let profile = reader.query(&selection).expect("an answer").profile;
        let ticks: Vec<_> = profile.timeline().expect("times were kept").collect();
        assert_eq!(ticks.len() as u32, 2 * THREADS * SAMPLES, "{kind}");
        assert!(ticks.iter().all(|tick| tick.kind == kind));
        for at in 0..kind.columns().len() {
            let in_time: i64 = ticks.iter().filter_map(|tick| tick.values().nth(at)).sum();
            assert_eq!(in_time, profile.total(at), "{kind}");
        }
        let (weight, value) = weight_and_value(kind);
        // A sample that stands for several events was as long as each of them.
        let each = value / u64::from(weight);
        let lasted = if kind == Kind::Cpu { ticks[0].duration() } else { each };
        assert!(ticks.iter().all(|tick| tick.duration() == lasted));
    }
}
