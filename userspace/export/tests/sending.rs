//! The outcome of a batch with strict, failing, or malicious servers.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use strata_export::http::{Credential, EndpointSettings, SetupError};
use strata_export::{Backend, Endpoint, Outcome, Secret, otlp, pyroscope};
use support::server::{Server, answer, grpc_answer};
use support::{at, destination, known};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

fn pyroscope() -> Backend {
    Backend::Pyroscope(pyroscope::Settings::default())
}

async fn send(backend: Backend, to: &EndpointSettings) -> Outcome {
    let exporter = Endpoint::new(backend, to).unwrap();
    let batch = exporter.encode(&[known()]).batches.remove(0);
    exporter.send(&batch).await
}

fn delivered() -> Outcome {
    Outcome::Delivered { rejected: 0, message: None }
}

fn retry(outcome: Outcome) -> (Option<Duration>, String) {
    match outcome {
        Outcome::Retry { after, reason } => (after, reason),
        other => panic!("{other:?}"),
    }
}

fn refused(outcome: Outcome) -> (Option<u16>, String) {
    match outcome {
        Outcome::Refused { status, reason } => (status, reason),
        other => panic!("{other:?}"),
    }
}

fn denied(outcome: Outcome) -> (Option<u16>, String) {
    match outcome {
        Outcome::Denied { status, reason } => (status, reason),
        other => panic!("{other:?}"),
    }
}

/// An authority, and a server's TLS with a certificate of it for `name`.
fn authority(name: &str, http2: bool) -> (Vec<u8>, TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let mut configuration = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    configuration.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    (issuer.pem().into_bytes(), TlsAcceptor::from(Arc::new(configuration)))
}

#[tokio::test]
async fn a_certificate_of_the_named_authority_is_trusted() {
    let (authorities, tls) = authority("localhost", false);
    let (server, address) = Server::start_with(Some(tls), || answer(200, &[], "")).await;
    let mut to = destination(&format!("https://localhost:{}", address.port()));
    to.authorities = Some(authorities);
    assert_eq!(send(pyroscope(), &to).await, delivered());
    assert_eq!(server.only().path, "/push.v1.PusherService/Push");
}

#[tokio::test]
async fn grpc_goes_over_tls_too() {
    let (authorities, tls) = authority("localhost", true);
    let (_server, address) = Server::start_with(Some(tls), || grpc_answer(&[], "0", "")).await;
    let mut to = destination(&format!("https://localhost:{}", address.port()));
    to.authorities = Some(authorities);
    let settings = otlp::Settings { transport: otlp::Transport::Grpc, ..otlp::Settings::default() };
    assert_eq!(send(Backend::Otlp(settings), &to).await, delivered());
}

#[tokio::test]
async fn a_wrong_certificate_gets_nothing() {
    let (authorities, _) = authority("localhost", false);
    let (other_authorities, tls) = authority("other.example", false);
    let (server, address) = Server::start_with(Some(tls), || answer(200, &[], "")).await;
    // Of another authority, then of the right one for another name.
    for authorities in [authorities, other_authorities] {
        let mut to = destination(&format!("https://localhost:{}", address.port()));
        to.authorities = Some(authorities);
        to.credential = Credential::Bearer(Secret::new("t0ken"));
        let (_, reason) = denied(send(pyroscope(), &to).await);
        assert!(reason.contains("certificate"), "{reason}");
    }
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_port_of_another_protocol_is_named_as_such() {
    let (_server, address) = Server::start(|| answer(200, &[], "")).await;
    let to = destination(&format!("https://localhost:{}", address.port()));
    let (_, reason) = retry(send(pyroscope(), &to).await);
    assert!(reason.ends_with("set an address with http://"), "{reason}");
}

#[test]
fn a_file_without_certificates_is_an_error_at_once() {
    let mut to = destination("https://localhost");
    to.authorities = Some(b"hello".to_vec());
    assert!(matches!(Endpoint::new(pyroscope(), &to), Err(SetupError::Tls(_))));
}

#[tokio::test]
async fn credentials_tenant_and_headers_arrive() {
    let (server, address) = Server::start(|| answer(200, &[], "")).await;
    let mut to = at(address);
    to.tenant = Some(Secret::new("team-a"));
    to.headers = vec![("X-Extra".to_owned(), Secret::new("one"))];
    to.credential = Credential::Bearer(Secret::new("t0ken"));
    assert_eq!(send(pyroscope(), &to).await, delivered());
    to.credential =
        Credential::Basic { user: "Aladdin".to_owned(), password: Secret::new("open sesame") };
    assert_eq!(send(pyroscope(), &to).await, delivered());
    let asked = server.asked();
    assert_eq!(asked[0].header("authorization"), "Bearer t0ken");
    // The example of RFC 7617.
    assert_eq!(asked[1].header("authorization"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    for asked in asked {
        assert_eq!((asked.header("x-scope-orgid"), asked.header("x-extra")), ("team-a", "one"));
    }
}

#[tokio::test]
async fn no_secret_is_shown_anywhere() {
    let echo = r#"{"code":"unauthenticated","message":"no t0ken, t3nant, v4lue, dTpwNHNz p4ss"}"#;
    let (_server, address) = Server::start(move || answer(401, &[], echo)).await;
    let mut to = at(address);
    to.tenant = Some(Secret::new("t3nant"));
    to.headers = vec![("x-key".to_owned(), Secret::new("v4lue"))];
    for credential in [
        Credential::Bearer(Secret::new("t0ken")),
        Credential::Basic { user: "u".to_owned(), password: Secret::new("p4ss") },
    ] {
        let is_bearer = matches!(credential, Credential::Bearer(_));
        to.credential = credential;
        let exporter = Endpoint::new(pyroscope(), &to).unwrap();
        let batch = exporter.encode(&[known()]).batches.remove(0);
        let (status, reason) = denied(exporter.send(&batch).await);
        assert_eq!(status, Some(401));
        assert!(reason.contains("unauthenticated: no "), "{reason}");
        let stored = String::from_utf8_lossy(&batch.to_bytes()).into_owned();
        for shown in [format!("{to:?} {exporter:?} {batch:?} {reason}"), stored] {
            let own = if is_bearer { ["t0ken", "t0ken"] } else { ["p4ss", "dTpwNHNz"] };
            for secret in ["t3nant", "v4lue"].into_iter().chain(own) {
                assert!(!shown.contains(secret), "{secret} in {shown}");
            }
        }
    }
    for header in ["Content-Type", "te", "Authorization"] {
        to.headers = vec![(header.to_owned(), Secret::new("v4lue"))];
        let error = Endpoint::new(pyroscope(), &to).unwrap_err();
        let is_of_header =
            matches!(error, SetupError::ReservedHeader(_) | SetupError::SecondCredential(_));
        assert!(is_of_header && !error.to_string().contains('4'));
    }
    to.headers = vec![("x".to_owned(), Secret::new("v4lue\r\nx: y"))];
    let error = Endpoint::new(pyroscope(), &to).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("v4lue"));
}

#[tokio::test]
async fn a_server_with_too_much_to_do_says_when_to_come_back() {
    let (_server, address) =
        Server::start(|| answer(429, &[("retry-after", "7")], r#"{"message":"slow down"}"#)).await;
    let (after, reason) = retry(send(pyroscope(), &at(address)).await);
    assert_eq!(after, Some(Duration::from_secs(7)));
    assert!(reason.contains("429: slow down"), "{reason}");
}

#[tokio::test]
async fn an_ill_server_is_tried_again_and_a_clear_no_is_not() {
    let (_server, address) = Server::start(|| answer(500, &[], "oops")).await;
    assert!(retry(send(pyroscope(), &at(address)).await).1.contains("500: oops"));
    let body = r#"{"code":"invalid_argument","message":"profile too large"}"#;
    let (_server, address) = Server::start(move || answer(400, &[], body)).await;
    let (status, reason) = refused(send(pyroscope(), &at(address)).await);
    assert_eq!(status, Some(400));
    assert_eq!(reason, "the server answered 400: invalid_argument: profile too large");
}

#[tokio::test]
async fn a_web_page_is_no_answer_to_a_profile() {
    let html = [("content-type", "text/html; charset=utf-8")];
    for backend in [pyroscope(), Backend::Otlp(otlp::Settings::default())] {
        let (_server, address) = Server::start(move || answer(200, &html, "<html>Sign in")).await;
        let (status, reason) = denied(send(backend, &at(address)).await);
        assert_eq!(status, Some(200));
        assert!(reason.contains("web page"), "{reason}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_nothing_goes_there() {
    let (elsewhere, other) = Server::start(|| answer(200, &[], "")).await;
    for status in [301, 302, 303, 307, 308] {
        let location = format!("http://{other}/");
        let (_server, address) =
            Server::start(move || answer(status, &[("location", &location)], "")).await;
        let mut to = at(address);
        to.credential = Credential::Bearer(Secret::new("t0ken"));
        to.tenant = Some(Secret::new("t3nant"));
        let (shown, reason) = denied(send(pyroscope(), &to).await);
        assert_eq!(shown, Some(status));
        assert!(reason.contains("redirect"), "{reason}");
    }
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (_, reason) = retry(send(pyroscope(), &at(address)).await);
    assert!(reason.contains("refused"), "{reason}");
    assert!(!reason.contains("http://"), "{reason}");
    let (_, reason) = retry(send(pyroscope(), &destination("unix:///no/such.socket")).await);
    assert!(!reason.is_empty());
}

/// A server that reads a little and then writes `bytes` over and over, `pause` apart, until the
/// client leaves or `most` bytes are written. Gives how many it could write.
async fn raw_server(
    head: &'static [u8],
    bytes: Vec<u8>,
    pause: Duration,
    most: usize,
) -> (std::net::SocketAddr, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 64 << 10];
        let _ = stream.read(&mut request).await.unwrap();
        let mut written = 0;
        stream.write_all(head).await.unwrap();
        while written < most {
            tokio::time::sleep(pause).await;
            match stream.write(&bytes).await {
                Ok(0) | Err(_) => break,
                Ok(more) => written += more,
            }
        }
        written
    });
    (address, task)
}

const LONG: &[u8] = b"HTTP/1.1 400 No\r\ncontent-length: 1000000000000\r\n\r\n";
const BOMB: &[u8] =
    b"HTTP/1.1 400 No\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn a_huge_answer_is_read_no_further_than_its_beginning() {
    let (address, server) = raw_server(LONG, vec![b'x'; 64 << 10], Duration::ZERO, 256 << 20).await;
    let (status, reason) = refused(send(pyroscope(), &at(address)).await);
    assert_eq!(status, Some(400));
    assert!(reason.len() < 1000);
    // What lay in the kernel's buffers, not 256 MiB.
    assert!(server.await.unwrap() < 32 << 20);
}

#[tokio::test]
async fn a_compression_bomb_is_not_unpacked() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut gzip, &vec![0; 16 << 20]).unwrap();
    let bomb = gzip.finish().unwrap();
    let mut chunk = format!("{:x}\r\n", bomb.len()).into_bytes();
    chunk.extend(&bomb);
    chunk.extend(b"\r\n0\r\n\r\n");
    let length = chunk.len();
    let (address, _server) = raw_server(BOMB, chunk, Duration::ZERO, length).await;
    let (_, reason) = refused(send(pyroscope(), &at(address)).await);
    assert!(reason.len() < 3000, "{}", reason.len());
}

#[tokio::test]
async fn a_dripping_answer_costs_no_more_than_its_time() {
    let (address, server) =
        raw_server(LONG, vec![b'x'], Duration::from_millis(20), usize::MAX).await;
    let mut to = at(address);
    to.timeout = Duration::from_millis(300);
    let begun = Instant::now();
    assert_eq!(refused(send(pyroscope(), &to).await).0, Some(400));
    assert!(begun.elapsed() < Duration::from_secs(5));
    server.await.unwrap();
}

#[tokio::test]
async fn a_dripping_head_and_a_hanging_server_are_given_up() {
    for (head, pause) in [(b"HTTP/1.1 200 OK\r\nx: ".as_slice(), 20), (b"", 3_600_000)] {
        let (address, server) =
            raw_server(head, vec![b'x'], Duration::from_millis(pause), usize::MAX).await;
        let mut to = at(address);
        to.timeout = Duration::from_millis(300);
        let begun = Instant::now();
        let (_, reason) = retry(send(pyroscope(), &to).await);
        assert!(reason.contains("no answer within 300ms"), "{reason}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        server.abort();
    }
}

#[tokio::test]
async fn an_answer_of_endless_headers_is_cut_off() {
    let (address, server) = raw_server(
        b"HTTP/1.1 200 OK\r\n",
        b"x-more: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(1000),
        Duration::ZERO,
        256 << 20,
    )
    .await;
    retry(send(pyroscope(), &at(address)).await);
    assert!(server.await.unwrap() < 32 << 20);
}

#[tokio::test]
async fn what_is_no_http_is_tried_again_and_does_no_harm() {
    for garbage in [b"\0\xff\x16\x03\x01garbage\r\n\r\n".as_slice(), b"HTTP/1.1 999999 x\r\n\r\n"] {
        let (address, _server) = raw_server(garbage, Vec::new(), Duration::ZERO, 0).await;
        retry(send(pyroscope(), &at(address)).await);
    }
    let settings = otlp::Settings { transport: otlp::Transport::Grpc, ..otlp::Settings::default() };
    let (address, _server) =
        raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n", Vec::new(), Duration::ZERO, 0).await;
    retry(send(Backend::Otlp(settings), &at(address)).await);
}

/// A server that closes a connection when its second request arrives: it took the connection for
/// unused, as one does whose time for that ends in the moment in which the request is sent.
async fn closing_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).await.unwrap() > 2 {
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                stream.read_exact(&mut vec![0; length]).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                let _ = stream.read_u8().await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_period_later_no_connection_is_used_that_the_server_may_be_closing() {
    let exporter = Endpoint::new(pyroscope(), &at(closing_server().await)).unwrap();
    for _ in 0..2 {
        let batch = exporter.encode(&[known()]).batches.remove(0);
        assert_eq!(exporter.send(&batch).await, delivered());
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

#[tokio::test]
async fn a_delivery_with_a_malformed_answer_is_a_delivery() {
    for body in [vec![0xff; 100], vec![b'['; 60_000], vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        let (_server, address) = Server::start(move || answer(200, &[], body.clone())).await;
        for backend in [pyroscope(), Backend::Otlp(otlp::Settings::default())] {
            assert_eq!(send(backend, &at(address)).await, delivered());
        }
    }
}
