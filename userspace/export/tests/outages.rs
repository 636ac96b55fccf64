//! Servers that are down, failing, slow or impostors: what arrives, how often, and when.

mod queue_support;

use std::sync::Arc;
use std::time::Duration;

use queue_support::server::{Act, Server, ok};
use queue_support::{batch, destination, drained, health, plan, start, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use strata_export::{Clock, ExporterSettings, Queues, State};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use uuid::Uuid;

const SECOND: i64 = 1_000_000_000;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Gives batches that began a second apart, the last of them now.
fn give_many(delivery: &Queues, clock: Clock, count: i64, length: usize) -> Vec<Uuid> {
    let now = clock.nanos();
    let mut ids = Vec::new();
    for ago in (0..count).rev() {
        let batch = batch(now - ago * SECOND, length);
        ids.push(batch.id);
        delivery.enqueue("exporter", batch).unwrap();
    }
    ids
}

/// That each id came once, and the ids came in order, but for `swaps` neighbours.
fn assert_in_order(came: &[Uuid], given: &[Uuid]) {
    assert_eq!(came.len(), given.len(), "each arrives once");
    for (place, id) in came.iter().enumerate() {
        let due = given.iter().position(|other| other == id).unwrap();
        assert!(due.abs_diff(place) <= 1, "the batch {due} came as {place}");
    }
}

#[tokio::test]
async fn a_batch_arrives_and_nothing_of_it_remains() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::real();
    let delivery = start(plan(&server.url(), folder.path()), clock).await;
    let given = batch(clock.nanos(), 1000);
    delivery.enqueue("exporter", given.clone()).unwrap();
    let health = drained(&delivery).await;
    let arrived = server.arrivals();
    assert_eq!(arrived.len(), 1);
    assert_eq!((arrived[0].id, &arrived[0].body), (given.id, &given.body));
    assert_eq!((health.delivered.batches, health.delivered.profiles), (1, 2));
    assert_eq!((health.delivered_bytes, health.state), (1000, State::Idle));
    assert!(health.last_success.is_some() && health.drops.batches() == 0);
    assert!(folder.path().read_dir().unwrap().all(|file| file.unwrap().file_name() == "lock"));
}

#[tokio::test]
async fn ten_minutes_without_a_server_lose_nothing_and_end_in_order() {
    let (server, folder) = (Server::down().await, folder());
    let clock = Clock::faster(120);
    let mut plan = plan(&server.url(), folder.path());
    // Less than what piles up.
    plan.memory = 100_000;
    plan.concurrency = 3;
    let delivery = start(plan, clock).await;
    let mut given = Vec::new();
    for _ in 0..40 {
        let batch = batch(clock.nanos(), 10_000);
        given.push(batch.id);
        delivery.enqueue("exporter", batch).unwrap();
        // 15 seconds of the clock.
        tokio::time::sleep(Duration::from_millis(125)).await;
    }
    let away = until(&delivery, |health| health.spooled == 40).await;
    assert!(matches!(away.state, State::Waiting(_)), "{away:#?}");
    assert!(away.lag >= Duration::from_secs(590), "{away:#?}");
    // Waits of 1, 2, 4, 8, 16, 32 s and then a minute, each between half and whole.
    assert!((8..=30).contains(&away.retries), "{away:#?}");
    assert!(away.last_error.unwrap().reason.contains("refused"));
    assert_eq!(away.delivered.batches, 0);
    server.act(
        |number, _| if number == 0 { Act::Late(Duration::from_millis(100), 200) } else { ok() },
    );
    server.rise().await;
    let back = drained(&delivery).await;
    assert_eq!((back.delivered.batches, back.drops.batches()), (40, 0));
    let came = server.ids();
    assert_eq!(came.len(), 40);
    // Up to three at once: an order of beginning, not of arriving.
    for (place, id) in came.iter().enumerate() {
        let due = given.iter().position(|other| other == id).unwrap();
        assert!(due.abs_diff(place) <= 3, "the batch {due} came as {place}");
    }
    assert!(server.most_at_once() <= 3);
}

#[tokio::test]
async fn a_server_that_is_back_is_asked_once_before_it_is_asked_more() {
    let (server, folder) = (Server::down().await, folder());
    let clock = Clock::faster(50);
    let mut plan = plan(&server.url(), folder.path());
    plan.concurrency = 8;
    let delivery = start(plan, clock).await;
    give_many(&delivery, clock, 40, 500);
    until(&delivery, |health| health.retries >= 2 && health.spooled == 40).await;
    // The first answer takes its time: were there others beside it, they would be seen.
    let server_seen = server.clone();
    server.act(move |number, _| {
        if number == 0 {
            Act::Late(Duration::from_millis(300), 200)
        } else {
            assert!(server_seen.arrivals()[0].is_taken, "the first was to be alone");
            Act::Late(Duration::from_millis(10), 200)
        }
    });
    server.rise().await;
    drained(&delivery).await;
    assert!((2..=8).contains(&server.most_at_once()), "{}", server.most_at_once());
    assert_eq!(server.ids().len(), 40);
}

#[tokio::test]
async fn an_ill_server_gets_every_batch_once_it_is_well() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::faster(100);
    server.act(|number, _| if number < 7 { Act::Answer(500, Vec::new()) } else { ok() });
    let mut plan = plan(&server.url(), folder.path());
    plan.concurrency = 1;
    let delivery = start(plan, clock).await;
    let given = give_many(&delivery, clock, 10, 100);
    let health = drained(&delivery).await;
    assert_eq!((health.retries, health.delivered.batches), (7, 10));
    assert!(health.last_error.unwrap().reason.contains("500"));
    let came: Vec<_> = server.ids().split_off(7);
    assert_in_order(&came, &given);
}

#[tokio::test]
async fn a_server_that_names_a_time_is_left_alone_until_then() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::faster(20);
    let asked_at: Arc<std::sync::Mutex<Vec<i64>>> = Arc::default();
    let asked = Arc::clone(&asked_at);
    server.act(move |number, _| {
        asked.lock().unwrap().push(clock.nanos());
        let wait = vec![("retry-after", "20".to_owned())];
        if number == 0 { Act::Answer(429, wait) } else { ok() }
    });
    let delivery = start(plan(&server.url(), folder.path()), clock).await;
    give_many(&delivery, clock, 5, 100);
    let waiting = until(&delivery, |health| health.retries == 1).await;
    let State::Waiting(then) = waiting.state else { panic!("{waiting:#?}") };
    assert!(then.duration_since(waiting.last_error.unwrap().at).unwrap().as_secs() >= 19);
    drained(&delivery).await;
    let asked = asked_at.lock().unwrap().clone();
    assert_eq!(asked.len(), 6);
    assert!(asked[1] - asked[0] >= 20 * SECOND, "{asked:?}");
}

#[tokio::test]
async fn a_batch_that_the_server_cannot_take_does_not_hold_up_the_others() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::faster(200);
    let mut plan = plan(&server.url(), folder.path());
    plan.spool_age = Duration::from_secs(1000);
    let delivery = start(plan, clock).await;
    let poison = batch(clock.nanos() - SECOND, 100);
    let id = poison.id;
    server.act(move |_, came| if came == id { Act::Answer(500, Vec::new()) } else { ok() });
    delivery.enqueue("exporter", poison).unwrap();
    until(&delivery, |health| health.retries > 0).await;
    give_many(&delivery, clock, 10, 100);
    let health = until(&delivery, |health| health.delivered.batches == 10).await;
    assert_eq!(health.drops.batches(), 0);
    // In the end it is too old.
    let health = drained(&delivery).await;
    assert_eq!((health.drops.too_old.batches, health.delivered.batches), (1, 10));
}

#[tokio::test]
async fn a_refused_batch_is_counted_with_its_reason_and_not_sent_again() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::real();
    server.act(|number, _| if number == 0 { Act::Answer(400, Vec::new()) } else { ok() });
    let delivery = start(plan(&server.url(), folder.path()), clock).await;
    give_many(&delivery, clock, 3, 100);
    let health = drained(&delivery).await;
    assert_eq!((health.drops.refused.batches, health.drops.refused.profiles), (1, 2));
    assert_eq!((health.delivered.batches, health.retries), (2, 0));
    assert!(health.last_refusal.unwrap().reason.contains("400"));
    assert_eq!(server.ids().len(), 3);
}

#[tokio::test]
async fn what_a_wrong_credential_or_path_denies_stays_in_the_spool_until_it_is_right() {
    for status in [401, 403, 404, 405, 301] {
        let (server, folder) = (Server::up().await, folder());
        let clock = Clock::real();
        server.act(move |_, _| Act::Answer(status, Vec::new()));
        let mut plan = plan(&server.url(), folder.path());
        plan.waits.first = std::time::Duration::from_millis(10);
        plan.waits.longest = std::time::Duration::from_millis(50);
        let delivery = start(plan, clock).await;
        give_many(&delivery, clock, 3, 100);
        let failing = until(&delivery, |health| health.retries >= 3).await;
        assert!(failing.failing_since.is_some());
        assert_eq!((failing.drops.batches(), failing.delivered.batches), (0, 0), "{status}");
        server.act(|_, _| ok());
        let health = drained(&delivery).await;
        assert_eq!((health.drops.batches(), health.delivered.batches), (0, 3), "{status}");
        assert_eq!(health.failing_since, None);
    }
}

#[tokio::test]
async fn what_is_too_old_is_never_sent() {
    let (server, folder) = (Server::down().await, folder());
    let clock = Clock::faster(100);
    let mut plan = plan(&server.url(), folder.path());
    plan.spool_age = Duration::from_secs(1000);
    let delivery = start(plan, clock).await;
    let old = batch(clock.nanos() - 990 * SECOND, 100);
    let older = batch(clock.nanos() - 1001 * SECOND, 100);
    let (old_id, older_id) = (old.id, older.id);
    delivery.enqueue("exporter", old).unwrap();
    delivery.enqueue("exporter", older).unwrap();
    until(&delivery, |health| health.drops.too_old.batches == 2).await;
    server.rise().await;
    let young = give_many(&delivery, clock, 2, 100);
    let health = drained(&delivery).await;
    assert_eq!((health.drops.too_old.batches, health.drops.too_old.profiles), (2, 4));
    let came = server.ids();
    assert!(!came.contains(&old_id) && !came.contains(&older_id));
    assert_in_order(&came, &young);
}

#[tokio::test]
async fn a_connection_that_hangs_is_given_up_and_its_batch_sent_again() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::faster(20);
    server.act(|number, _| if number < 2 { Act::Hang } else { ok() });
    let mut plan = plan(&server.url(), folder.path());
    plan.destination.timeout = Duration::from_millis(300);
    plan.concurrency = 1;
    let delivery = start(plan, clock).await;
    let given = give_many(&delivery, clock, 4, 100);
    let health = drained(&delivery).await;
    assert_eq!((health.retries, health.delivered.batches), (2, 4));
    assert!(health.last_error.unwrap().reason.contains("no answer within"));
    // The server has read it three times; its answer was lost twice.
    let came = server.ids();
    assert_eq!(came[..3], [given[0]; 3]);
    assert_in_order(&came[2..], &given);
}

#[tokio::test]
async fn an_answer_that_drips_costs_its_time_and_no_other_exporter() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dripping = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 64 << 10];
                let _ = stream.read(&mut request).await;
                for byte in b"HTTP/1.1 200 OK\r\nx: ".iter().chain([b'x'].iter().cycle()) {
                    if stream.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
    });
    let server = Server::up().await;
    let folders = [folder(), folder()];
    let clock = Clock::faster(20);
    let mut slow = plan(&format!("http://{dripping}"), folders[0].path());
    slow.name = "slow".to_owned();
    slow.destination.timeout = Duration::from_millis(300);
    let good = plan(&server.url(), folders[1].path());
    let delivery = Queues::start(vec![good, slow], clock).await.unwrap();
    for _ in 0..20 {
        let batch = batch(clock.nanos(), 100);
        delivery.enqueue("slow", batch.clone()).unwrap();
        delivery.enqueue("exporter", batch).unwrap();
    }
    let health = drained(&delivery).await;
    assert_eq!(health.delivered.batches, 20);
    let give_up = async {
        while delivery.health()[1].retries < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), give_up).await.unwrap();
    let slow = delivery.health().remove(1);
    assert_eq!((slow.spooled, slow.drops.batches(), slow.delivered.batches), (20, 0, 0));
    assert!(slow.last_error.unwrap().reason.contains("no answer within"));
}

/// An authority, and a server's TLS with a certificate of it.
fn authority() -> (Vec<u8>, TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let configuration = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    (issuer.pem().into_bytes(), TlsAcceptor::from(Arc::new(configuration)))
}

#[tokio::test]
async fn a_wrong_certificate_gets_nothing_until_the_right_authority_is_set() {
    let ((wrong, _), (right, tls)) = (authority(), authority());
    let (server, folder) = (Server::with_tls(Some(tls)).await, folder());
    server.rise().await;
    let clock = Clock::faster(20);
    let mut plan: ExporterSettings = plan("http://unused", folder.path());
    plan.destination = destination(&format!("https://localhost:{}", server.address.port()));
    plan.destination.authorities = Some(wrong);
    let delivery = start(plan.clone(), clock).await;
    let given = give_many(&delivery, clock, 5, 100);
    let health = until(&delivery, |health| health.retries >= 2).await;
    assert!(health.last_error.unwrap().reason.contains("certificate"));
    assert!(server.arrivals().is_empty());
    plan.destination.authorities = Some(right);
    delivery.reconfigure(vec![plan]).await.unwrap();
    let health = drained(&delivery).await;
    assert_eq!((health.delivered.batches, health.drops.batches()), (5, 0));
    let mut came = server.ids();
    came.sort();
    let mut given = given;
    given.sort();
    assert_eq!(came, given);
}

#[tokio::test]
async fn a_lost_answer_makes_a_duplicate_with_the_same_id() {
    let (server, folder) = (Server::up().await, folder());
    let clock = Clock::faster(20);
    server.act(|number, _| if number == 0 { Act::HangUp } else { ok() });
    let delivery = start(plan(&server.url(), folder.path()), clock).await;
    let given = give_many(&delivery, clock, 1, 100);
    drained(&delivery).await;
    assert_eq!(server.ids(), [given[0], given[0]]);
    assert_eq!(health(&delivery).retries, 1);
}
