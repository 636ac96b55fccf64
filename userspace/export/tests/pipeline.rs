//! Flushes on their way to a real HTTP server: what a period is, what a `kill -9` in the middle of
//! one costs, and how many labels and services arrive.
//!
//! The one that is killed is this test binary, run again as `a_child_that_flushes`.

mod queue_support;
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_support::plan;
use queue_support::server::Server;
use strata_export::exporter::{Exporter, Output};
use strata_export::origin::Origin;
use strata_export::pipeline::{
    FlushedProfile, Hooks, Pipeline, PipelineSettings, PoolSettings, StoreSettings,
};
use strata_export::{Clock, Outgoing, Queues, Secret};
use strata_metadata::Source;
use strata_profile::{FrameKind, ProfileBuilder};
use strata_store::{Head, Reader, Selection};
use support::pprof::see;
use support::server::unzipped;
use support::wire::Message;

const FOLDER: &str = "STRATA_TEST_PIPELINE";
const SERVER: &str = "STRATA_TEST_SERVER";
const SECOND: i64 = 1_000_000_000;
const FLUSH: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(60);

/// What a service did in a flush that ended `ago` flushes before now.
fn flushed(service: &str, samples: i64, ago: i64, label: Option<&str>) -> FlushedProfile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let start = Clock::real().nanos() - (ago + 1) * 15 * SECOND;
    builder.set_period("cpu", "nanoseconds", SECOND / 19);
    builder.set_start(start);
    builder.set_duration(15 * SECOND);
    let frame = builder.frame(FrameKind::Native, "Work", "", "", 0);
    let location = builder.location(7, None, &[frame]);
    let stack = builder.stack(&[location]);
    let thread = builder.thread(7, 7, service, service, "");
    let labels = builder.thread_labels(thread);
    builder.add(stack, labels, &[samples, samples * SECOND / 19]);
    let origin = Origin {
        service: service.to_owned(),
        runtime_id: format!("runtime of {service}"),
        labels: label.map(|value| ("team".to_owned(), value.to_owned())).into_iter().collect(),
        target_labels: vec!["team".to_owned()],
        ..Origin::default()
    };
    FlushedProfile {
        head: Head {
            service: service.to_owned(),
            kind: "cpu".to_owned(),
            labels: Vec::new(),
            runtime_id: origin.runtime_id.clone(),
            start_nanos: start,
            end_nanos: start + 15 * SECOND,
        },
        outgoing: Outgoing { profile: Arc::new(builder.finish()), origin: Arc::new(origin) },
        stores_times: false,
        own_settings: Vec::new(),
        named_by: Source::DdService,
    }
}

/// A pipeline with a store, and an exporter for each of these periods, in seconds. The server knows
/// them by the header that it takes for a child's number.
async fn pipeline(folder: &Path, url: &str, periods: &[u64]) -> (Pipeline, Arc<Queues>) {
    let (mut exporters, mut plans) = (Vec::new(), Vec::new());
    for &period in periods {
        let mut plan = plan(url, &folder.join("spool").join(period.to_string()));
        plan.name = format!("every-{period}");
        plan.destination.headers = vec![("x-child".to_owned(), Secret::new(period.to_string()))];
        plan.waits.first = Duration::from_millis(20);
        plan.waits.longest = Duration::from_millis(100);
        exporters.push(Exporter {
            name: plan.name.clone(),
            output: Output::Endpoint(plan.backend.clone()),
            period: Duration::from_secs(period),
            labels: Vec::new(),
            target_labels: true,
            label_values: 3,
            timestamps: false,
            spool: plan.spool_dir.clone().map(|folder| (folder, plan.spool_size)),
        });
        plans.push(plan);
    }
    let queues = Arc::new(Queues::start(plans.clone(), Clock::real()).await.unwrap());
    let settings = PipelineSettings {
        store: Some(StoreSettings {
            directory: folder.join("store"),
            options: strata_store::Options::default(),
        }),
        exporters,
        plans,
        spools: Some(folder.join("spool")),
        memory: 1 << 20,
        waiting: 16 << 20,
        pool: PoolSettings::default(),
    };
    let hooks = Hooks { started: || (), trim: || () };
    let network = tokio::runtime::Handle::current();
    (Pipeline::start(settings, queues.clone(), network, hooks).unwrap(), queues)
}

async fn publish(pipeline: &mut Pipeline, flush: Vec<FlushedProfile>, length: Duration) {
    pipeline.publish(flush, Some(length));
    while pipeline.is_behind() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        pipeline.retry();
    }
}

async fn stored(pipeline: &Pipeline, profiles: u64) {
    let figures = pipeline.figures();
    tokio::time::timeout(PATIENCE, async {
        while figures.lock().unwrap().kept.written < profiles {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the store takes what is published");
}

type Labels = Vec<(String, String)>;

/// What arrived at the exporter of a period: the labels of each profile's series, its length in
/// seconds and its samples.
fn arrived(server: &Server, period: usize) -> Vec<(Labels, i64, i64)> {
    let mut seen = Vec::new();
    let mut known = BTreeSet::new();
    for arrival in server.arrivals() {
        if arrival.child != period || !arrival.is_taken || !known.insert(arrival.id) {
            continue;
        }
        for series in Message::read(&arrival.body).all(1) {
            let labels: Vec<_> =
                series.all(1).iter().map(|label| (label.text(1), label.text(2))).collect();
            for sample in series.all(2) {
                let profile = see(&unzipped(sample.all_bytes(1)[0]));
                let samples = profile.samples.iter().map(|sample| sample.values[0]).sum();
                seen.push((labels.clone(), profile.duration / SECOND, samples));
            }
        }
    }
    seen
}

fn lengths(server: &Server, period: usize) -> Vec<(i64, i64)> {
    let mut all: Vec<_> =
        arrived(server, period).into_iter().map(|(_, length, samples)| (length, samples)).collect();
    all.sort_unstable();
    all
}

/// Ends a pipeline in order.
async fn end(pipeline: Pipeline, queues: &Queues) {
    assert!(tokio::task::spawn_blocking(move || pipeline.end(PATIENCE)).await.unwrap());
    let health = queues.shutdown(PATIENCE).await;
    assert!(health.iter().all(|one| one.spooled == 0 && one.drops.batches() == 0), "{health:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run and killed by the other tests here"]
async fn a_child_that_flushes() {
    let folder = std::env::var(FOLDER).unwrap();
    let url = std::env::var(SERVER).unwrap();
    let (mut pipeline, _queues) = pipeline(Path::new(&folder), &url, &[15, 60]).await;
    for flush in 0..6 {
        publish(&mut pipeline, vec![flushed("shop", 100 + flush, 6 - flush, None)], FLUSH).await;
    }
    stored(&pipeline, 6).await;
    println!("\nstored");
    std::io::stdout().flush().unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_in_mid_period_with_the_server_away_it_ends_with_what_the_store_has() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_that_flushes", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .env(SERVER, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line == "stored"));
    child.kill().unwrap();
    child.wait().unwrap();

    server.rise().await;
    let (mut pipeline, queues) = pipeline(folder.path(), &server.url(), &[15, 60]).await;
    publish(&mut pipeline, vec![flushed("shop", 7, 0, None)], FLUSH).await;
    stored(&pipeline, 1).await;
    end(pipeline, &queues).await;
    let answer = Reader::new(&folder.path().join("store")).query(&Selection::default()).unwrap();
    let in_store = answer.profile.total(0);
    assert_eq!(in_store, 100 + 101 + 102 + 103 + 104 + 105 + 7);
    for period in [15, 60] {
        let at_server: i64 = lengths(&server, period).iter().map(|(_, samples)| samples).sum();
        assert_eq!(at_server, in_store, "every {period} s: {:?}", lengths(&server, period));
    }
    let all: Vec<i64> = lengths(&server, 15).iter().map(|(length, _)| *length).collect();
    assert_eq!(all, [15; 7]);
    // Four flushes, two before the kill, one after it.
    assert_eq!(lengths(&server, 60), [(15, 7), (30, 104 + 105), (60, 100 + 101 + 102 + 103)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushes_that_come_late_double_and_lose_no_period() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let (mut pipeline, queues) = pipeline(folder.path(), &server.url(), &[15, 60]).await;
    // All at once, as after a flush whose symbols took long: only their own times count. One is
    // short, as when memory is, and the next a little late.
    let flushes: [u64; 8] = [15, 15, 16, 15, 15, 12, 15, 18];
    for (at, length) in flushes.into_iter().enumerate() {
        let flush = vec![flushed("shop", 10, 8 - at as i64, None)];
        publish(&mut pipeline, flush, Duration::from_secs(length)).await;
    }
    stored(&pipeline, 8).await;
    end(pipeline, &queues).await;
    assert_eq!(lengths(&server, 15), [(15, 10); 8]);
    assert_eq!(lengths(&server, 60), [(60, 40); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_that_a_target_sets_arrive_up_to_a_number_of_values() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let (mut pipeline, queues) = pipeline(folder.path(), &server.url(), &[15]).await;
    for flush in 0..3 {
        let teams = (0..20).map(|team| {
            let (name, value) = (format!("service-{team:02}"), format!("team-{team:02}"));
            flushed(&name, 10, 3 - flush, Some(&value))
        });
        publish(&mut pipeline, teams.collect(), FLUSH).await;
    }
    stored(&pipeline, 60).await;
    let figures = pipeline.figures();
    end(pipeline, &queues).await;
    let arrived = arrived(&server, 15);
    assert_eq!(arrived.len(), 60);
    let teams: BTreeSet<&str> = arrived
        .iter()
        .flat_map(|(labels, ..)| labels)
        .filter(|(name, _)| name == "team")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(teams.len(), 4, "{teams:?}");
    assert!(teams.contains("other"));
    assert_eq!(figures.lock().unwrap().cuts.other_values, 3 * 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_short_commands_are_one_series_at_the_server() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let (mut pipeline, queues) = pipeline(folder.path(), &server.url(), &[15]).await;
    let short = (0..2000).map(|at| FlushedProfile {
        named_by: Source::Executable,
        ..flushed(&format!("command-{at}"), 1, 0, None)
    });
    let mut flush: Vec<FlushedProfile> = short.collect();
    flush.push(flushed("shop", 500, 0, None));
    publish(&mut pipeline, flush, FLUSH).await;
    stored(&pipeline, 2).await;
    end(pipeline, &queues).await;
    let mut services: Vec<(String, i64)> = arrived(&server, 15)
        .into_iter()
        .flat_map(|(labels, _, samples)| {
            let service = labels.into_iter().find(|(name, _)| name == "service_name");
            service.map(|(_, value)| (value, samples))
        })
        .collect();
    services.sort();
    assert_eq!(services, [("shop".to_owned(), 500), ("short-lived".to_owned(), 2000)]);
    let answer = Reader::new(&folder.path().join("store")).query(&Selection::default()).unwrap();
    let names: BTreeSet<&str> =
        answer.profile.threads().iter().map(|thread| answer.profile.string(thread.comm)).collect();
    let labelled: BTreeSet<&str> = answer
        .profile
        .samples()
        .flat_map(|sample| answer.profile.labels(sample.labels))
        .filter_map(|label| match label.value {
            strata_profile::LabelValue::Text(text) => Some(answer.profile.string(text)),
            strata_profile::LabelValue::Number { .. } => None,
        })
        .collect();
    assert!(labelled.contains("command-1999") || names.contains("command-1999"));
    assert!(labelled.len().max(names.len()) >= 2001);
}

/// Held by a test as long as its pipeline is to be busy.
static BUSY: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_pipeline_is_waited_for_by_profiles_and_not_by_the_loop() {
    let folder = tempfile::tempdir().unwrap();
    let profile = |number: i64| flushed(&format!("service-{number}"), number, 99 - number, None);
    let most_bytes = 10 * profile(7).outgoing.profile.memory();
    let settings = PipelineSettings {
        store: Some(StoreSettings {
            directory: folder.path().join("store"),
            options: strata_store::Options::default(),
        }),
        waiting: most_bytes,
        ..PipelineSettings::default()
    };
    let queues = Arc::new(Queues::start(Vec::new(), Clock::real()).await.unwrap());
    let busy = BUSY.lock().unwrap();
    let hooks = Hooks { started: || drop(BUSY.lock().unwrap()), trim: || () };
    let network = tokio::runtime::Handle::current();
    let mut pipeline = Pipeline::start(settings.clone(), queues, network, hooks).unwrap();
    let begun = Instant::now();
    let mut was_full_at = None;
    for number in 0..40 {
        pipeline.publish(vec![profile(number)], Some(FLUSH));
        if pipeline.is_full() {
            was_full_at.get_or_insert(number);
        }
    }
    let outcome = pipeline.configure(settings);
    assert!(begun.elapsed() < Duration::from_secs(5), "it was waited for");
    assert!(pipeline.is_behind() && was_full_at.is_some_and(|number| (5..10).contains(&number)));
    // Two are with the thread already, ten wait, and those between them had no room.
    let (waiting, dropped) = (pipeline.waiting() as u64, pipeline.dropped);
    assert!((9..=11).contains(&waiting) && waiting + dropped == 38, "{waiting}, {dropped}");
    drop(busy);
    tokio::time::timeout(PATIENCE, async {
        while pipeline.is_behind() {
            pipeline.retry();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("what waits is taken");
    stored(&pipeline, 40 - dropped).await;
    tokio::task::spawn_blocking(move || outcome.recv()).await.unwrap().unwrap().unwrap();
    assert!(tokio::task::spawn_blocking(move || pipeline.end(PATIENCE)).await.unwrap());
    let answer = Reader::new(&folder.path().join("store")).query(&Selection::default()).unwrap();
    // The oldest were dropped: what came last is there.
    let kept: i64 = [0, 1].into_iter().chain(2 + dropped as i64..40).sum();
    assert_eq!(answer.profile.total(0), kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtimes_profiles_have_other_numbers_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = Exporter {
        name: "files".to_owned(),
        output: Output::Folder(folder.path().to_owned()),
        period: FLUSH,
        labels: Vec::new(),
        target_labels: true,
        label_values: 3,
        timestamps: false,
        spool: None,
    };
    let settings = PipelineSettings { exporters: vec![exporter], ..PipelineSettings::default() };
    for start in 0..3 {
        let queues = Arc::new(Queues::start(Vec::new(), Clock::real()).await.unwrap());
        let hooks = Hooks { started: || (), trim: || () };
        let network = tokio::runtime::Handle::current();
        let mut pipeline = Pipeline::start(settings.clone(), queues, network, hooks).unwrap();
        for flush in 0..3 {
            let profile = flushed("shop", 10, 9 - 3 * start - flush, None);
            publish(&mut pipeline, vec![profile], FLUSH).await;
        }
        assert!(tokio::task::spawn_blocking(move || pipeline.end(PATIENCE)).await.unwrap());
        // No daemon starts sooner.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let files = std::fs::read_dir(folder.path().join("shop")).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    // They begin with the profile's time.
    names.sort();
    let numbers: Vec<u64> = names
        .iter()
        .map(|name| name.strip_suffix(".pb.gz").unwrap().rsplit('-').next().unwrap())
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(numbers.len(), 9);
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}
