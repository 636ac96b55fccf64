//! Servers that answer too much, too late, wrongly or elsewhere, and containers that start all at
//! once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::fake_cri::{FakeContainerd, pairs};
use crate::support::server::{Asked, Body, Server, answer, grpc_answer, never, tls};
use crate::support::{ID, LONG, id, only_source, quick, running};
use http::Response;
use strata_containers::{Containers, Kubelet, Pace, Settings};

struct Scene {
    _folder: tempfile::TempDir,
    server: Server,
    containers: Containers,
}

fn docker(
    pace: Pace,
    answerer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static,
) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("docker.sock");
    let server = Server::on_socket(&socket, answerer);
    let settings = Settings { docker: vec![socket], pace, ..Settings::default() };
    Scene { _folder: folder, server, containers: running(&settings) }
}

fn cri(answerer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("containerd.sock");
    let server = Server::on_socket(&socket, answerer);
    let settings = Settings { cri: vec![socket], pace: quick(), ..Settings::default() };
    Scene { _folder: folder, server, containers: running(&settings) }
}

fn output(containers: &Containers) -> String {
    only_source(containers).last_error.unwrap_or_default()
}

#[tokio::test]
async fn what_is_no_id_is_never_asked_for() {
    let scene = docker(quick(), |_| answer(404, &[], ""));
    for wrong in ["", "web", "../../images/json?", &id(7).to_uppercase().replace('0', "A")] {
        assert_eq!(scene.containers.wait(wrong, LONG).await, None);
    }
    assert_eq!(scene.containers.wait(ID, LONG).await, None);
    assert_eq!(scene.server.paths(), [format!("/containers/{ID}/json")]);
    assert_eq!(only_source(&scene.containers).failed, 0);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("http://{}/", elsewhere.local_addr().unwrap());
    let scene = docker(quick(), move |_| answer(302, &[("location", &location)], ""));
    assert_eq!(scene.containers.wait(ID, LONG).await, None);
    assert_eq!(output(&scene.containers), "an answer of HTTP status 302");
    let came = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
    assert!(came.is_err());
}

#[tokio::test]
async fn an_answer_that_is_too_large_or_no_json_spoils_its_own_container_only() {
    let good = |id: &str| format!(r#"{{"Id":"{id}","Name":"/good"}}"#);
    let scene = docker(quick(), move |asked| match asked.path.as_str() {
        path if path.contains(&id(1)) => {
            answer(200, &[], format!(r#"{{"Id":"{}"}}"#, "x".repeat(64 << 20)))
        }
        path if path.contains(&id(2)) => answer(200, &[], "{\u{1b}[31m"),
        path if path.contains(&id(3)) => answer(200, &[], good(&id(4))),
        path if path.contains(&id(5)) => answer(200, &[], good(&id(5))),
        _ => answer(404, &[], ""),
    });
    for number in 1..=5 {
        assert_eq!(scene.containers.lookup(&id(number)), None);
    }
    let metadata = scene.containers.wait(&id(5), LONG).await.unwrap();
    assert_eq!(metadata.container.name.as_deref(), Some("good"));
    for number in 1..=4 {
        assert_eq!(scene.containers.wait(&id(number), LONG).await, None);
    }
    let health = scene.containers.health();
    assert_eq!((health.known, health.unknown), (1, 4));
    assert_eq!(only_source(&scene.containers).failed, 2);
    assert!(!output(&scene.containers).contains('\u{1b}'));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left_alone_for_a_while() {
    let pace = Pace { request: Duration::from_millis(50), retry: LONG, ..quick() };
    let scene = docker(pace, |_| never());
    for number in 0..10 {
        let _ = scene.containers.lookup(&id(number));
    }
    assert_eq!(scene.containers.wait(&id(9), LONG).await, None);
    assert_eq!(scene.containers.wait(&id(99), LONG).await, None);
    let source = only_source(&scene.containers);
    assert_eq!((source.asked, source.failed, source.skipped), (2, 1, 9));
    assert!(output(&scene.containers).starts_with("no answer within"));
}

#[tokio::test]
async fn a_server_that_comes_back_is_asked_again() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = is_well.clone();
    let retry = Duration::from_millis(10);
    let scene = docker(Pace { retry, ..quick() }, move |_| {
        if well.load(Ordering::Relaxed) {
            answer(200, &[], format!(r#"{{"Id":"{ID}","Name":"/web"}}"#))
        } else {
            answer(500, &[], "")
        }
    });
    assert_eq!(scene.containers.wait(ID, LONG).await, None);
    is_well.store(true, Ordering::Relaxed);
    let found = tokio::time::timeout(LONG, async {
        while scene.containers.lookup(ID).is_none() {
            tokio::time::sleep(retry).await;
        }
    });
    found.await.expect("it is known at last");
}

#[tokio::test]
async fn a_socket_that_is_not_there_costs_nothing_and_is_seen_when_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let pace = Pace { retry: Duration::from_millis(10), ..quick() };
    let settings = Settings { docker: vec![socket.clone()], pace, ..Settings::default() };
    let containers = running(&settings);
    assert_eq!(containers.wait(ID, LONG).await, None);
    let source = only_source(&containers);
    assert_eq!((source.is_there, source.asked, source.failed), (false, 0, 0));
    let _server = Server::on_socket(&socket, |_| {
        answer(200, &[], format!(r#"{{"Id":"{ID}","Name":"/web"}}"#))
    });
    let found = tokio::time::timeout(LONG, async {
        while containers.lookup(ID).is_none() {
            tokio::time::sleep(pace.retry).await;
        }
    });
    found.await.expect("it is known at last");
}

#[tokio::test]
async fn five_hundred_containers_at_once_are_five_hundred_requests_one_after_the_other() {
    let scene = docker(Pace { batch: 64, ..quick() }, |asked| {
        let id = asked.path.split('/').nth(2).unwrap();
        answer(200, &[], format!(r#"{{"Id":"{id}","Name":"/c{id}"}}"#))
    });
    for _ in 0..3 {
        for number in 0..500 {
            let _ = scene.containers.lookup(&id(number));
        }
    }
    for number in 0..500 {
        assert!(scene.containers.wait(&id(number), LONG).await.is_some(), "{number}");
    }
    assert_eq!(scene.server.asked().len(), 500);
    // Over one connection of HTTP/1 there is never more than one under way.
    assert_eq!(scene.server.connections(), 1);
    assert_eq!(scene.containers.health().known, 500);
}

#[tokio::test]
async fn a_pod_with_endless_annotations_is_cut_to_its_bound() {
    let mut fake = FakeContainerd::with_pod();
    let names: Vec<String> = (0..2000).map(|number| format!("n{number}\u{202e}")).collect();
    let value = "v\u{7}".repeat(100);
    let mut all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), &*value)).collect();
    all.push(("pyroscope.io/service_name", "the-cart"));
    for sandbox in &mut fake.sandboxes {
        sandbox.annotations = pairs(&all);
        sandbox.labels = pairs(&all);
    }
    let scene = cri(move |asked| fake.answer(asked));
    let metadata = scene.containers.wait(ID, LONG).await.unwrap();
    assert!(metadata.size() <= strata_containers::metadata::MOST_BYTES);
    let pod = metadata.pod.as_ref().unwrap();
    assert_eq!(pod.annotation("pyroscope.io/service_name"), Some("the-cart"));
    let texts = pod.annotations.iter().chain(&pod.labels);
    for (name, value) in texts {
        let is_shown = |text: &str| !text.contains(['\u{7}', '\u{202e}']);
        assert!(is_shown(name) && is_shown(value), "{name:?} {value:?}");
    }
}

#[tokio::test]
async fn grpc_answers_that_are_none_are_readable_errors() {
    let framed = |flag: u8| {
        let mut made = answer(200, &[("grpc-status", "0")], vec![flag, 0, 0, 0, 9, 1]);
        made.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        made
    };
    type Answerer = Box<dyn Fn() -> Response<Body> + Send + Sync>;
    let cases: [(Answerer, &str); 6] = [
        (Box::new(|| grpc_answer(&[0xff; 40])), "an answer that cannot be read"),
        (Box::new(move || framed(0)), "it is not one gRPC message"),
        (Box::new(move || framed(1)), "it is not one gRPC message"),
        (Box::new(|| answer(200, &[], "")), "it has no gRPC status"),
        (Box::new(|| grpc_answer(&vec![0; 4 << 20])), "an answer of more than"),
        (
            Box::new(|| answer(307, &[("location", "http://127.0.0.1:1/")], "")),
            "an answer of HTTP status 307",
        ),
    ];
    for (answerer, expected) in cases {
        let scene = cri(move |_| answerer());
        assert_eq!(scene.containers.wait(ID, LONG).await, None);
        let output = output(&scene.containers);
        assert!(output.contains(expected), "{output} is not {expected}");
    }
}

#[tokio::test]
async fn a_kubelet_that_misbehaves_costs_an_error_and_its_redirect_gets_no_token() {
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("https://{}/pods", elsewhere.local_addr().unwrap());
    type Answerer = Box<dyn Fn() -> Response<Body> + Send + Sync>;
    let long = quick().request;
    let cases: [(Answerer, Duration, &str); 5] = [
        (Box::new(move || answer(301, &[("location", &location)], "")), long, "HTTP status 301"),
        (Box::new(|| answer(403, &[], "no")), long, "does not let this service account"),
        (Box::new(|| answer(200, &[], vec![b' '; 17 << 20])), long, "an answer of more than"),
        (Box::new(|| answer(200, &[], "[".repeat(1 << 20))), long, "an answer that cannot be read"),
        (Box::new(never), Duration::from_millis(500), "no answer within"),
    ];
    for (answerer, request, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (acceptor, authority) = tls();
        let (_server, address) = Server::on_port(acceptor, move |_| answerer()).await;
        let (token, authorities) = (folder.path().join("token"), folder.path().join("ca.crt"));
        std::fs::write(&token, "hunter2").unwrap();
        std::fs::write(&authorities, authority).unwrap();
        let kubelet = Kubelet {
            url: format!("https://{address}"),
            token_file: Some(token),
            authorities_file: Some(authorities),
            verify: true,
        };
        let pace = Pace { request, ..quick() };
        let settings = Settings { kubelet: Some(kubelet), pace, ..Settings::default() };
        let containers = running(&settings);
        assert_eq!(containers.wait(ID, LONG).await, None);
        let output = output(&containers);
        assert!(output.contains(expected), "{output} is not {expected}");
        assert!(!output.contains("hunter2"));
    }
    let came = tokio::time::timeout(Duration::from_millis(50), elsewhere.accept()).await;
    assert!(came.is_err());
}

#[tokio::test]
async fn the_task_ends_with_its_last_client() {
    let (containers, refresher) = strata_containers::containers(&Settings::default());
    let task = tokio::spawn(refresher.run());
    assert_eq!(containers.wait(ID, LONG).await, None);
    drop(containers);
    tokio::time::timeout(LONG, task).await.expect("it ends").unwrap();
}
