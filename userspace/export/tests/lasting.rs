//! Restarts, reloads, credentials that change, and disks that are full.

mod queue_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use queue_support::server::{Act, Server, ok};
use queue_support::{backend, batch, destination, drained, health, plan, start, until};
use strata_export::http::Credential;
use strata_export::{Backend, Batch, Protocol, Secret, otlp};
use strata_export::{
    Clock, CredentialSource, EnqueueError, ExporterSettings, Queues, StartError, State,
};

fn now(count: usize, length: usize) -> Vec<Batch> {
    let now = Clock::real().nanos();
    (0..count).map(|number| batch(now + number as i64, length)).collect()
}

fn give(delivery: &Queues, batches: &[Batch]) {
    for batch in batches {
        delivery.enqueue("exporter", batch.clone()).unwrap();
    }
}

/// A flush brings more at once than the exporter's memory has room for: it waits while the spool takes
/// what came before.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_is_larger_than_the_memory_is_not_dropped() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let clock = Clock::faster(20);
    let mut plan = plan(&server.url(), folder.path());
    plan.memory = 100_000;
    let given = now(200, 10_000);
    let delivery = std::sync::Arc::new(start(plan, clock).await);
    let (giving, batches) = (delivery.clone(), given.clone());
    let given_all = tokio::task::spawn_blocking(move || {
        batches.into_iter().all(|batch| {
            let until = std::time::Instant::now() + Duration::from_secs(60);
            let has_room = giving.wait_for_room("exporter", batch.body.len(), until);
            giving.enqueue("exporter", batch).unwrap();
            has_room
        })
    });
    assert!(given_all.await.unwrap());
    server.rise().await;
    let health = drained(&delivery).await;
    assert_eq!((health.delivered.batches, health.drops.batches()), (200, 0));
    assert_eq!(sorted(server.ids()), sorted(ids(&given)));
}

fn ids(batches: &[Batch]) -> Vec<uuid::Uuid> {
    batches.iter().map(|batch| batch.id).collect()
}

fn sorted<T: Ord>(mut things: Vec<T>) -> Vec<T> {
    things.sort();
    things
}

fn batch_files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "batch")).collect()
}

#[tokio::test]
async fn what_is_unsent_at_the_end_is_sent_by_the_next_start_in_order() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let clock = Clock::faster(20);
    let mut plan = plan(&server.url(), folder.path());
    plan.concurrency = 1;
    let given = now(20, 3000);
    let delivery = start(plan.clone(), clock).await;
    give(&delivery, &given);
    let ended = delivery.shutdown(Duration::from_secs(2)).await.remove(0);
    assert_eq!((ended.state, ended.spooled, ended.drops.batches()), (State::Stopped, 20, 0));
    assert_eq!(batch_files(folder.path()).len(), 20);
    assert_eq!(delivery.enqueue("exporter", given[0].clone()), Err(EnqueueError::Ended));
    server.rise().await;
    let delivery = start(plan, clock).await;
    assert_eq!(drained(&delivery).await.delivered.batches, 20);
    assert_eq!(server.ids(), ids(&given));
}

#[tokio::test]
async fn the_end_waits_for_what_the_server_still_takes() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    server.act(|_, _| Act::Late(Duration::from_millis(20), 200));
    let given = now(20, 3000);
    let delivery = start(plan(&server.url(), folder.path()), Clock::real()).await;
    give(&delivery, &given);
    let ended = delivery.shutdown(Duration::from_secs(60)).await.remove(0);
    assert_eq!((ended.delivered.batches, ended.spooled), (20, 0));
    assert_eq!(sorted(server.ids()), sorted(ids(&given)));
}

#[tokio::test]
async fn a_request_that_hangs_at_the_end_leaves_its_batch_in_the_spool() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    server.act(|_, _| Act::Hang);
    let given = now(1, 3000);
    let delivery = start(plan(&server.url(), folder.path()), Clock::real()).await;
    give(&delivery, &given);
    until(&delivery, |health| health.in_flight == 1).await;
    let ended = delivery.shutdown(Duration::from_millis(100)).await.remove(0);
    assert_eq!((ended.spooled, ended.in_flight, ended.queued), (1, 0, 0));
    server.act(|_, _| ok());
    drained(&start(plan(&server.url(), folder.path()), Clock::real()).await).await;
    assert_eq!(server.ids(), [given[0].id, given[0].id]);
}

#[tokio::test]
async fn without_a_spool_memory_is_the_bound_and_the_rest_is_counted() {
    let server = Server::down().await;
    let mut plan = ExporterSettings::new("exporter", backend(), destination(&server.url()));
    plan.memory = 200_000;
    let delivery = start(plan, Clock::faster(20)).await;
    let given = now(50, 10_000);
    for batch in &given {
        delivery.enqueue("exporter", batch.clone()).unwrap();
        until(&delivery, |health| health.queued + health.in_flight <= 22).await;
    }
    let full = until(&delivery, |health| health.queued == 10).await;
    assert_eq!(full.drops.no_spool.batches + full.drops.memory_full.batches, 40);
    server.rise().await;
    let done = drained(&delivery).await;
    assert_eq!(done.delivered.batches, 10);
    // The newest were kept.
    assert_eq!(sorted(server.ids()), sorted(ids(&given[40..])));
}

#[tokio::test]
async fn a_spool_that_is_full_drops_its_oldest() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let mut plan = plan(&server.url(), folder.path());
    plan.spool_size = 10 * 4096;
    let delivery = start(plan, Clock::faster(20)).await;
    let given = now(30, 3000);
    give(&delivery, &given);
    let full = until(&delivery, |health| health.drops.spool_full.batches == 20).await;
    assert_eq!((full.spooled, full.spooled_bytes), (10, 10 * 4096));
    assert_eq!(full.drops.spool_full.profiles, 40);
    server.rise().await;
    drained(&delivery).await;
    assert_eq!(sorted(server.ids()), sorted(ids(&given[20..])));
}

#[tokio::test]
async fn a_exporter_that_disappears_keeps_its_spool_and_another_goes_on_undisturbed() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let (away, away_folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let clock = Clock::faster(20);
    let staying = plan(&server.url(), folder.path());
    let mut leaving = plan(&away.url(), away_folder.path());
    leaving.name = "leaving".to_owned();
    let delivery = Queues::start(vec![staying.clone(), leaving.clone()], clock).await.unwrap();
    let given = now(5, 3000);
    for batch in &given {
        delivery.enqueue("leaving", batch.clone()).unwrap();
    }
    // A request of the one that stays is under way all the time.
    server.act(|_, _| Act::Late(Duration::from_millis(500), 200));
    give(&delivery, &now(1, 100));
    until(&delivery, |health| health.in_flight == 1).await;
    delivery.reconfigure(vec![staying.clone()]).await.unwrap();
    assert_eq!(delivery.enqueue("leaving", given[0].clone()), Err(EnqueueError::NoSuchExporter));
    assert_eq!(batch_files(away_folder.path()).len(), 5);
    assert_eq!(drained(&delivery).await.retries, 0);
    assert_eq!(server.ids().len(), 1);
    // It is configured again under another name and with another server, and the spooled batches
    // are sent.
    leaving.name = "back".to_owned();
    leaving.destination = destination(&server.url());
    delivery.reconfigure(vec![leaving, staying]).await.unwrap();
    drained(&delivery).await;
    let mut came = server.ids();
    came.remove(0);
    assert_eq!(sorted(came), sorted(ids(&given)));
}

#[tokio::test]
async fn an_exporter_whose_spool_is_elsewhere_goes_on_counting() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let mut plan = plan(&server.url(), folder.path());
    let delivery = start(plan.clone(), Clock::faster(20)).await;
    give(&delivery, &now(5, 3000));
    let before = drained(&delivery).await;
    server.act(|_, _| Act::Answer(503, Vec::new()));
    give(&delivery, &now(2, 3000));
    until(&delivery, |health| health.spooled == 2).await;
    let elsewhere = tempfile::tempdir().unwrap();
    plan.spool_dir = Some(elsewhere.path().to_owned());
    delivery.reconfigure(vec![plan]).await.unwrap();
    assert_eq!(batch_files(folder.path()).len(), 2, "what it had stays");
    let health = delivery.health().remove(0);
    assert_eq!((health.delivered, health.spooled), (before.delivered, 0));
    assert!(health.retries > 0, "{health:?}");
    server.act(|_, _| Act::Answer(200, Vec::new()));
    give(&delivery, &now(1, 3000));
    assert_eq!(drained(&delivery).await.delivered.batches, 6);
}

#[tokio::test]
async fn another_address_holds_for_what_lies_in_the_spool() {
    let (down, server) = (Server::down().await, Server::up().await);
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(&down.url(), folder.path());
    // So that only the change of address can be why they are sent.
    plan.waits.first = Duration::from_secs(3000);
    plan.waits.longest = Duration::from_secs(3000);
    let delivery = start(plan.clone(), Clock::real()).await;
    let given = now(5, 3000);
    give(&delivery, &given);
    until(&delivery, |health| health.retries == 1 && health.spooled == 5).await;
    plan.destination = destination(&server.url());
    delivery.reconfigure(vec![plan]).await.unwrap();
    drained(&delivery).await;
    assert_eq!(sorted(server.ids()), sorted(ids(&given)));
}

#[tokio::test]
async fn what_waits_for_another_kind_of_server_is_dropped_and_the_rest_is_sent() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let delivery = start(plan(&server.url(), folder.path()), Clock::real()).await;
    let old = now(3, 3000);
    give(&delivery, &old);
    until(&delivery, |health| health.spooled == 3).await;
    delivery.shutdown(Duration::from_millis(100)).await;
    server.rise().await;
    let otlp = Backend::Otlp(otlp::Settings::default());
    let other = ExporterSettings { backend: otlp, ..plan(&server.url(), folder.path()) };
    let delivery = start(other, Clock::real()).await;
    let mut new = now(1, 3000);
    for batch in &mut new {
        batch.protocol = Protocol::OtlpHttp;
        batch.path = "/v1development/profiles".to_owned();
    }
    give(&delivery, &new);
    let done = drained(&delivery).await;
    assert_eq!((done.delivered.batches, done.drops.reconfigured.batches), (1, 3));
    assert_eq!(server.ids(), ids(&new));
    until(&delivery, |health| health.spooled == 0).await;
    assert!(batch_files(folder.path()).is_empty());
}

#[tokio::test]
async fn a_smaller_spool_keeps_the_newest() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let mut plan = plan(&server.url(), folder.path());
    let delivery = start(plan.clone(), Clock::faster(20)).await;
    let given = now(10, 3000);
    give(&delivery, &given);
    until(&delivery, |health| health.spooled == 10).await;
    plan.spool_size = 5 * 4096;
    delivery.reconfigure(vec![plan.clone()]).await.unwrap();
    until(&delivery, |health| health.spooled == 5 && health.drops.spool_full.batches == 5).await;
    delivery.shutdown(Duration::ZERO).await;
    plan.spool_size = 2 * 4096;
    let delivery = start(plan, Clock::faster(20)).await;
    until(&delivery, |health| health.spooled == 2 && health.drops.spool_full.batches == 3).await;
    server.rise().await;
    drained(&delivery).await;
    assert_eq!(sorted(server.ids()), sorted(ids(&given[8..])));
}

#[tokio::test]
async fn plans_that_cannot_be_used_change_nothing() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let good = plan(&server.url(), folder.path());
    let delivery = start(good.clone(), Clock::real()).await;
    let twice = delivery.reconfigure(vec![good.clone(), good.clone()]).await;
    assert!(matches!(twice, Err(StartError::SameName(_))));
    let mut bad = good.clone();
    bad.destination.headers = vec![("bad name".to_owned(), Secret::new("v4lue"))];
    let error = delivery.reconfigure(vec![bad]).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("v4lue"));
    let second = Queues::start(vec![good], Clock::real()).await;
    assert!(matches!(second, Err(StartError::Spool { .. })));
    give(&delivery, &now(1, 100));
    drained(&delivery).await;
    assert_eq!(server.ids().len(), 1);
}

/// Takes only this token.
fn demand(server: &Server, token: &'static str) {
    let seen = server.clone();
    server.act(move |number, _| {
        let is_right = seen.arrivals()[number].authorization == format!("Bearer {token}");
        Act::Answer(if is_right { 200 } else { 401 }, Vec::new())
    });
}

#[tokio::test]
async fn a_token_that_changed_is_read_again_at_once_when_the_old_one_is_refused() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken-1\n").unwrap();
    let mut plan = plan(&server.url(), &folder.path().join("spool"));
    plan.credential = CredentialSource::TokenFile(token.clone());
    plan.concurrency = 1;
    let delivery = start(plan.clone(), Clock::real()).await;
    demand(&server, "t0ken-1");
    give(&delivery, &now(1, 100));
    drained(&delivery).await;
    // Sooner than the file is looked at by itself, and of the same length.
    demand(&server, "t0ken-2");
    std::fs::write(&token, "t0ken-2\n").unwrap();
    give(&delivery, &now(1, 100));
    let health = drained(&delivery).await;
    assert_eq!((health.delivered.batches, health.drops.batches(), health.retries), (2, 0, 1));
    // Denied with the newest: it waits until there is one that is right.
    demand(&server, "t0ken-3");
    give(&delivery, &now(1, 100));
    let health = until(&delivery, |health| health.failing_since.is_some()).await;
    assert_eq!((health.drops.batches(), health.delivered.batches), (0, 2));
    assert!(health.queued + health.spooled > 0);
    std::fs::write(&token, "t0ken-3\n").unwrap();
    let health = drained(&delivery).await;
    assert_eq!((health.drops.batches(), health.delivered.batches), (0, 3));
    assert_eq!(health.failing_since, None);
    for shown in [format!("{health:?}"), format!("{plan:?}")] {
        assert!(!shown.contains("t0ken"), "{shown}");
    }
}

#[tokio::test]
async fn a_token_that_changes_is_used_before_anything_is_refused() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let token = folder.path().join("token");
    std::fs::write(&token, "first").unwrap();
    let mut plan = plan(&server.url(), &folder.path().join("spool"));
    plan.credential = CredentialSource::TokenFile(token.clone());
    let clock = Clock::faster(100);
    let delivery = start(plan, clock).await;
    give(&delivery, &now(1, 100));
    drained(&delivery).await;
    // As secrets of Kubernetes are: another file under the same name.
    std::fs::write(folder.path().join("new"), "second").unwrap();
    std::fs::rename(folder.path().join("new"), &token).unwrap();
    // Ten seconds of the clock.
    tokio::time::sleep(Duration::from_millis(100)).await;
    give(&delivery, &now(1, 100));
    drained(&delivery).await;
    let seen: Vec<_> = server.arrivals().into_iter().map(|seen| seen.authorization).collect();
    assert_eq!(seen, ["Bearer first", "Bearer second"]);
}

#[tokio::test]
async fn without_its_credential_nothing_is_sent_and_nothing_lost() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("password");
    let mut plan = plan(&server.url(), &folder.path().join("spool"));
    plan.credential =
        CredentialSource::PasswordFile { user: "Aladdin".to_owned(), path: file.clone() };
    plan.destination.credential = Credential::None;
    let delivery = start(plan, Clock::faster(50)).await;
    give(&delivery, &now(3, 100));
    let waiting = until(&delivery, |health| health.last_error.is_some()).await;
    assert!(matches!(waiting.state, State::Waiting(_)) && waiting.drops.batches() == 0);
    assert!(waiting.last_error.unwrap().reason.contains("password"));
    assert!(server.arrivals().is_empty());
    std::fs::write(&file, "open sesame\n").unwrap();
    assert_eq!(drained(&delivery).await.delivered.batches, 3);
    for seen in server.arrivals() {
        assert_eq!(seen.authorization, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}

#[tokio::test]
async fn a_damaged_file_is_counted_and_the_others_arrive() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let delivery = start(plan(&server.url(), folder.path()), Clock::faster(20)).await;
    give(&delivery, &now(3, 3000));
    delivery.shutdown(Duration::ZERO).await;
    let files = sorted(batch_files(folder.path()));
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[2000] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    std::fs::write(&files[1], b"").unwrap();
    server.rise().await;
    let delivery = start(plan(&server.url(), folder.path()), Clock::faster(20)).await;
    let health = drained(&delivery).await;
    assert_eq!((health.drops.corrupt.batches, health.delivered.batches), (2, 1));
}

const SMALL_DISK: &str = "STRATA_TEST_SMALL_DISK";

/// Runs `a_disk_without_room` with a private disk of 200 KiB. The mount ends with the process that
/// has it.
#[test]
fn a_full_disk_never_blocks_and_its_drops_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=200k none \"$0\" && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    // Without root, the test becomes root in a user namespace.
    if !is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let ended = unshare
        .args(["--mount", "sh", "-c", script])
        .arg(folder.path())
        .arg(own)
        .args(["--exact", "a_disk_without_room", "--ignored", "--nocapture"])
        .env(SMALL_DISK, folder.path())
        .status()
        .unwrap();
    assert!(ended.success(), "needs root, or namespaces of users, to mount a small disk");
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[tokio::test]
#[ignore = "run by a_full_disk_never_blocks_and_its_drops_are_counted, which mounts the disk"]
async fn a_disk_without_room() {
    let disk = PathBuf::from(std::env::var_os(SMALL_DISK).unwrap());
    let server = Server::down().await;
    let clock = Clock::faster(20);
    let mut plan = plan(&server.url(), &disk.join("spool"));
    plan.memory = 200_000;
    let delivery = start(plan.clone(), clock).await;
    let given = now(60, 10_000);
    for batch in &given {
        delivery.enqueue("exporter", batch.clone()).unwrap();
        until(&delivery, |health| health.queued == 0 || health.spooled == 16).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let full = until(&delivery, |health| health.drops.batches() == 34).await;
    // 200 KiB hold 16 files of 12 KiB; 10 more batches are in memory.
    assert_eq!((full.spooled, full.queued), (16, 10), "{full:#?}");
    assert!(full.drops.disk_error.batches > 0);
    let error = full.spool_error.unwrap().reason;
    assert!(error.contains("No space left"), "{error}");
    // A server that is back receives the backlog; the disk has room again, and is used.
    server.rise().await;
    let done = drained(&delivery).await;
    assert_eq!((done.delivered.batches, done.drops.batches()), (26, 34));
    server.fall().await;
    give(&delivery, &now(3, 10_000));
    let again = until(&delivery, |health| health.spooled == 3).await;
    assert_eq!((again.drops.batches(), again.spool_error), (34, None));
    // With a full disk, new batches are still sent.
    server.rise().await;
    drained(&delivery).await;
    let others = vec![0; 400 << 10];
    assert!(std::fs::write(disk.join("others"), others).is_err());
    give(&delivery, &now(5, 10_000));
    let past = drained(&delivery).await;
    assert_eq!((past.delivered.batches, past.drops.batches()), (34, 34));
    // At the end, with no server and no room: counted, not silent.
    server.fall().await;
    give(&delivery, &now(5, 10_000));
    let ended = delivery.shutdown(Duration::from_secs(1)).await.remove(0);
    assert_eq!((ended.drops.batches(), ended.spooled), (39, 0), "{ended:#?}");
    assert_eq!(ended.drops.disk_error.batches - past.drops.disk_error.batches, 5);
    assert_eq!(health(&delivery).state, State::Stopped);
}
