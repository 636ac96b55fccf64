//! What arrives at a real server of each protocol, decoded without the code that wrote it.

mod support;

use std::collections::BTreeMap;

use std::sync::Arc;

use strata_export::origin::{LabelLimits, Language, Origin};
use strata_export::{
    Address, Backend, Batch, Endpoint, Outcome, Outgoing, datadog, otlp, pyroscope,
};
use support::pprof::{Seen, pairs, see};
use support::server::{Asked, Server, answer, grpc_answer, unzipped};
use support::wire::Message;
use support::{START, at, destination, known};

fn delivered() -> Outcome {
    Outcome::Delivered { rejected: 0, message: None }
}

/// Encodes the known profile as one batch, passes it through its stored form, and sends it.
async fn send_known(exporter: &Endpoint) -> (Batch, Outcome) {
    let mut encoded = exporter.encode(&[known()]);
    assert_eq!(encoded.batches.len(), 1);
    let batch = encoded.batches.remove(0);
    let stored = Batch::from_bytes(batch.to_bytes().into()).unwrap();
    assert_eq!(stored, batch);
    let outcome = exporter.send(&stored).await;
    (batch, outcome)
}

fn assert_cpu(profile: &Seen) {
    assert_eq!(profile.types, pairs(&[("cpu_samples", "count"), ("cpu", "nanoseconds")]));
    assert_eq!(profile.period, ("cpu".to_owned(), "nanoseconds".to_owned()));
    assert_eq!(profile.period_value, 10_000_000);
    assert_eq!((profile.start, profile.duration), (START, 15_000_000_000));
    let [idle, work] = profile.samples.as_slice() else { panic!("{profile:?}") };
    assert_eq!(idle.functions, ["Idle", "Main"]);
    assert_eq!(idle.values, [1, 10_000_000]);
    assert_eq!(work.functions, ["Work", "Main"]);
    assert_eq!(work.values, [3, 30_000_000]);
    // A thread's id as a text would be a series of its own.
    assert_eq!(work.numbers, BTreeMap::from([("tid".to_owned(), 11)]));
    assert!(work.texts.is_empty());
}

#[tokio::test]
async fn pyroscope_gets_every_type_of_a_period_in_one_push() {
    let (server, address) = Server::start(|| answer(200, &[], "{}")).await;
    let exporter =
        Endpoint::new(Backend::Pyroscope(pyroscope::Settings::default()), &at(address)).unwrap();
    let encoded = exporter.encode(&[known()]);
    // `bananas`, and pid, comm and process of the threads of two kinds of profile.
    assert_eq!((encoded.cuts.dropped_types, encoded.cuts.dropped_labels), (1, 9));
    let (batch, outcome) = send_known(&exporter).await;
    assert_eq!(outcome, delivered());
    assert_eq!(batch.profiles, 2);

    let asked = server.only();
    assert_eq!(asked.path, "/push.v1.PusherService/Push");
    assert_eq!(asked.header("content-type"), "application/proto");
    assert_eq!(asked.header("idempotency-key"), batch.id.to_string());
    assert!(asked.header("user-agent").starts_with("strata/"));
    let series = Message::read(&asked.body).all(1);
    let labels = |of: &Message| -> Vec<(String, String)> {
        of.all(1).iter().map(|label| (label.text(1), label.text(2))).collect()
    };
    assert_eq!(series.len(), 2);
    assert_eq!(
        labels(&series[0]),
        pairs(&[
            ("__delta__", "false"),
            ("__name__", "process_cpu"),
            ("env", "prod"),
            ("hostname", "node-1"),
            ("pyroscope_spy", "dotnetspy"),
            ("service_git_ref", "abc123"),
            ("service_name", "shop"),
            ("team", "checkout"),
            ("version", "1.2"),
        ])
    );
    let sample = series[0].one(2);
    assert_eq!(sample.text(2).len(), 36);
    assert_cpu(&see(&unzipped(sample.all_bytes(1)[0])));

    assert!(labels(&series[1]).contains(&("__name__".to_owned(), "exception".to_owned())));
    let exceptions = see(&unzipped(series[1].one(2).all_bytes(1)[0]));
    assert_eq!(exceptions.types, pairs(&[("exception", "count")]));
    assert_eq!(exceptions.period, ("cpu".to_owned(), "nanoseconds".to_owned()));
    assert_eq!(exceptions.samples.len(), 1);
    assert_eq!(exceptions.samples[0].values, [2]);
}

#[tokio::test]
async fn an_old_pyroscope_gets_the_profile_as_the_body() {
    let (server, address) = Server::start(|| answer(200, &[], "")).await;
    let settings =
        pyroscope::Settings { api: pyroscope::Api::Ingest, ..pyroscope::Settings::default() };
    let exporter = Endpoint::new(Backend::Pyroscope(settings), &at(address)).unwrap();
    let encoded = exporter.encode(&[known()]);
    assert_eq!(encoded.batches.len(), 2);
    assert_eq!(exporter.send(&encoded.batches[0]).await, delivered());
    let asked = server.only();
    assert_eq!(asked.path, "/ingest");
    let name = "shop%7B__delta__%3Dfalse%2Cenv%3Dprod%2Chostname%3Dnode-1%2C\
                service_git_ref%3Dabc123%2Cteam%3Dcheckout%2Cversion%3D1.2%7D";
    let query =
        format!("name={name}&from=1709208000&until=1709208015&format=pprof&spyName=dotnetspy");
    assert_eq!(asked.query, query);
    assert_cpu(&see(&asked.unzipped()));
}

#[tokio::test]
async fn pyroscope_pushes_stay_below_the_servers_burst() {
    let settings = pyroscope::Settings { batch_bytes: 20_000, ..pyroscope::Settings::default() };
    let encoded = pyroscope::encode(
        &settings,
        &vec![known(); 10],
        &mut strata_export::EncoderState::default(),
    );
    assert!(encoded.batches.len() > 3, "{}", encoded.batches.len());
    let profiles: u32 = encoded.batches.iter().map(|batch| batch.profiles).sum();
    assert_eq!(profiles, 20);
    let samples = encoded.batches.iter().flat_map(|batch| Message::read(&batch.body).all(1));
    assert_eq!(samples.map(|series| series.all(2).len()).sum::<usize>(), 20);
}

/// The moment of every profile, by the labels of its series.
fn moments_by_series(batches: &[Batch]) -> BTreeMap<String, Vec<i64>> {
    let mut moments: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for series in batches.iter().flat_map(|batch| Message::read(&batch.body).all(1)) {
        let labels: Vec<Vec<String>> = series
            .all(1)
            .iter()
            .map(|label| [1, 2].into_iter().flat_map(|part| label.texts(part)).collect())
            .collect();
        let of_series = moments.entry(format!("{labels:?}")).or_default();
        let raw = series.all(2).into_iter().map(|sample| unzipped(sample.all_bytes(1)[0]));
        of_series.extend(raw.map(|profile| Message::read(&profile).number(9) / 1_000_000));
    }
    moments
}

#[test]
fn no_two_profiles_of_a_pyroscope_series_are_of_one_moment() {
    let mut moments = strata_export::EncoderState::default();
    let backend = Backend::Pyroscope(pyroscope::Settings::default());
    let mut batches = backend.encode(&vec![known(); 10], &mut moments).batches;
    // Of the same flush, but sent later.
    batches.extend(backend.encode(&vec![known(); 5], &mut moments).batches);
    let by_series = moments_by_series(&batches);
    assert_eq!(by_series.len(), 2, "CPU and exceptions");
    for (series, mut moments) in by_series {
        assert_eq!(moments.len(), 15, "{series}");
        assert_eq!(moments[0], 1_709_208_000_000, "the first one's own");
        moments.sort_unstable();
        moments.dedup();
        assert_eq!(moments.len(), 15, "a server would show one of those of one moment");
    }
}

/// The parts of a multipart request: name → (file name, content type, content).
async fn parts_of(asked: &Asked) -> BTreeMap<String, (String, String, Vec<u8>)> {
    let boundary = multer::parse_boundary(asked.header("content-type")).unwrap();
    let body = asked.body.clone();
    let once = Once(Some(Ok::<_, std::convert::Infallible>(body)));
    let mut multipart = multer::Multipart::new(once, boundary);
    let mut parts = BTreeMap::new();
    while let Some(field) = multipart.next_field().await.unwrap() {
        let name = field.name().unwrap().to_owned();
        let file = field.file_name().unwrap().to_owned();
        let kind = field.content_type().unwrap().to_string();
        parts.insert(name, (file, kind, field.bytes().await.unwrap().to_vec()));
    }
    parts
}

struct Once<T>(Option<T>);

impl<T: Unpin> futures_core::Stream for Once<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready(self.0.take())
    }
}

async fn assert_datadog(server: &Server) {
    let asked = server.only();
    assert_eq!(asked.path, "/profiling/v1/input");
    let parts = parts_of(&asked).await;
    assert_eq!(parts.len(), 2);
    let (file, kind, event) = &parts["event"];
    assert_eq!((file.as_str(), kind.as_str()), ("event.json", "application/json"));
    let event: serde_json::Value = serde_json::from_slice(event).unwrap();
    assert_eq!(event["attachments"], serde_json::json!(["auto.pprof"]));
    assert_eq!(event["family"], "dotnet");
    assert_eq!(event["version"], "4");
    assert_eq!(event["start"], "2024-02-29T12:00:00.000000000Z");
    assert_eq!(event["end"], "2024-02-29T12:00:15.000000000Z");
    let tags: Vec<&str> = event["tags_profiler"].as_str().unwrap().split(',').collect();
    for tag in [
        "language:dotnet",
        "service:shop",
        "env:prod",
        "version:1.2",
        "host:node-1",
        "runtime-id:0b5bbf6b-4a3a-4a0a-8a51-2d5ad1b7f0aa",
        "process_id:7",
        "profile_seq:4",
        "number_of_cpu_cores:8",
        "process_architecture:x86_64",
        "git.commit.sha:abc123",
        "team:checkout",
    ] {
        assert!(tags.contains(&tag), "{tag} in {tags:?}");
    }
    assert!(tags.iter().any(|tag| tag.starts_with("profiler_version:")));
    let (file, _, profile) = &parts["auto.pprof"];
    assert_eq!(file, "auto.pprof");
    let profile = see(&unzipped(profile));
    let types = [("cpu-samples", "count"), ("cpu", "nanoseconds"), ("exception", "count")];
    assert_eq!(profile.types, pairs(&types));
    assert_eq!(profile.samples[1].functions, ["Work", "Main"]);
    assert_eq!(profile.samples[1].values, [3, 30_000_000, 2]);
    assert_eq!(profile.samples[1].numbers, BTreeMap::from([("thread id".to_owned(), 11)]));
    let texts = BTreeMap::from([("thread name".to_owned(), "worker".to_owned())]);
    assert_eq!(profile.samples[1].texts, texts);
    assert_eq!(asked.header("dd-evp-origin"), "strata");
    assert_eq!(asked.header("dd-evp-origin-version"), env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn a_datadog_agent_learns_whose_container_it_is_and_the_types_that_a_family_has() {
    let (server, address) = Server::start(|| answer(200, &[], "")).await;
    let exporter =
        Endpoint::new(Backend::Datadog(datadog::Settings::default()), &at(address)).unwrap();
    let mut seen = Vec::new();
    for language in [Language::Native, Language::Go, Language::DotNet] {
        let known = known();
        let origin =
            Origin { language, container_id: "0123abc".to_owned(), ..(*known.origin).clone() };
        let outgoing = Outgoing { origin: Arc::new(origin), ..known };
        let batch = exporter.encode(&[outgoing]).batches.remove(0);
        // As it comes out of a spool.
        let batch = Batch::from_bytes(batch.to_bytes().into()).unwrap();
        assert_eq!(exporter.send(&batch).await, delivered());
        let asked = server.asked().pop().unwrap();
        assert_eq!(asked.header("datadog-container-id"), "0123abc");
        assert_eq!(asked.header("datadog-entity-id"), "ci-0123abc");
        let parts = parts_of(&asked).await;
        let event: serde_json::Value = serde_json::from_slice(&parts["event"].2).unwrap();
        let profile = see(&unzipped(&parts["auto.pprof"].2));
        seen.push((event["family"].as_str().unwrap().to_owned(), profile.types[1].0.clone()));
    }
    assert_eq!(seen, pairs(&[("native", "cpu-time"), ("go", "cpu"), ("dotnet", "cpu")]));
}

#[tokio::test]
async fn a_datadog_agent_gets_an_event_and_a_profile() {
    let (server, address) = Server::start(|| answer(202, &[], "")).await;
    let exporter =
        Endpoint::new(Backend::Datadog(datadog::Settings::default()), &at(address)).unwrap();
    assert_eq!(send_known(&exporter).await.1, delivered());
    assert_datadog(&server).await;
}

#[tokio::test]
async fn a_datadog_agent_gets_the_same_over_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apm.socket");
    let server = Server::start_on_socket(&path, || answer(200, &[], ""));
    let to = destination(&format!("unix://{}", path.display()));
    let exporter = Endpoint::new(Backend::Datadog(datadog::Settings::default()), &to).unwrap();
    assert_eq!(send_known(&exporter).await.1, delivered());
    assert_datadog(&server).await;
}

#[tokio::test]
async fn an_agent_that_starts_later_is_found_at_its_socket_or_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apm.socket");
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = closed.local_addr().unwrap();
    drop(closed);
    let mut to = at(port);
    to.other_address = Some(Address::parse(&format!("unix://{}", path.display())).unwrap());
    let exporter = Endpoint::new(Backend::Datadog(datadog::Settings::default()), &to).unwrap();
    let Outcome::Retry { reason, .. } = send_known(&exporter).await.1 else { panic!("no agent") };
    assert!(reason.contains("refused"), "{reason}");
    let server = Server::start_on_socket(&path, || answer(200, &[], ""));
    assert_eq!(send_known(&exporter).await.1, delivered());
    assert_datadog(&server).await;
}

fn otlp(transport: otlp::Transport) -> Backend {
    Backend::Otlp(otlp::Settings { transport, ..otlp::Settings::default() })
}

/// An attribute's value: a text, or a number as text.
fn any_value(value: &Message) -> String {
    let texts = value.texts(1);
    texts.first().cloned().unwrap_or_else(|| value.number(3).to_string())
}

/// Checks an `ExportProfilesServiceRequest` of the known profile by the numbers of proto 1.10.
fn assert_otlp(request: &[u8]) {
    let request = Message::read(request);
    let dictionary = request.one(2);
    let strings = dictionary.texts(5);
    let string = |position: i64| strings[position as usize].as_str();
    let [mappings, locations, functions, links, attributes, stacks] =
        [1, 2, 3, 4, 6, 7].map(|table| dictionary.all(table));
    assert_eq!(string(0), "");
    for table in [1, 2, 3, 4, 6, 7] {
        assert!(dictionary.all_bytes(table)[0].is_empty(), "table {table} begins with nothing");
    }
    assert_eq!((mappings.len(), links.len()), (2, 1));
    assert_eq!(string(mappings[1].number(4)), "/app/Shop.dll");
    assert_eq!((mappings[1].number(1), mappings[1].number(2)), (0x1000, 0x9000));
    let attribute = |position: i64| {
        let attribute = &attributes[position as usize];
        (string(attribute.number(1)).to_owned(), any_value(&attribute.one(2)))
    };
    let of_mapping: Vec<_> = mappings[1].numbers(5).into_iter().map(attribute).collect();
    assert_eq!(of_mapping, pairs(&[("process.executable.build_id.gnu", "c0ffee")]));

    let resource_profiles = request.one(1);
    let facts: BTreeMap<String, String> = resource_profiles
        .one(1)
        .all(1)
        .iter()
        .map(|fact| (fact.text(1), any_value(&fact.one(2))))
        .collect();
    for (key, value) in [
        ("service.name", "shop"),
        ("deployment.environment.name", "prod"),
        ("service.version", "1.2"),
        ("service.instance.id", "0b5bbf6b-4a3a-4a0a-8a51-2d5ad1b7f0aa"),
        ("process.pid", "7"),
        ("host.name", "node-1"),
        ("team", "checkout"),
        ("host.arch", "amd64"),
        ("process.runtime.name", "dotnet"),
        ("process.executable.name", "shop"),
        ("process.executable.path", "/app/shop"),
    ] {
        assert_eq!(facts.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(resource_profiles.text(3).starts_with("https://opentelemetry.io/schemas/"));
    let scope = resource_profiles.one(2);
    assert_eq!(scope.one(1).text(1), "strata");
    assert_eq!(scope.text(3), resource_profiles.text(3));
    let mut seen = Vec::new();
    for profile in scope.all(2) {
        assert_eq!(profile.number(3), START);
        assert_eq!(profile.number(4), 15_000_000_000);
        assert_eq!(profile.all_bytes(7)[0].len(), 16);
        let kind = profile.one(1);
        let kind = format!("{}/{}", string(kind.number(1)), string(kind.number(2)));
        // Of each kind its own: an exception stands for itself.
        let period = if kind.starts_with("exceptions") { 1 } else { 10_000_000 };
        assert_eq!(profile.number(6), period);
        for sample in profile.all(2) {
            let names: Vec<&str> = stacks[sample.number(1) as usize]
                .numbers(1)
                .into_iter()
                .flat_map(|at| locations[at as usize].all(3))
                .map(|line| string(functions[line.number(1) as usize].number(1)))
                .collect();
            let labels: Vec<_> = sample.numbers(2).into_iter().map(attribute).collect();
            seen.push((kind.clone(), names.join(";"), sample.numbers(4), labels));
        }
    }
    let thread = |tid| pairs(&[("thread.id", tid), ("thread.name", "worker")]);
    let sample = |kind: &str, stack: &str, value, tid| {
        (kind.to_owned(), stack.to_owned(), vec![value], thread(tid))
    };
    assert_eq!(
        seen,
        [
            sample("samples/count", "Work;Main", 3, "11"),
            sample("samples/count", "Idle;Main", 1, "12"),
            sample("cpu/nanoseconds", "Work;Main", 30_000_000, "11"),
            sample("cpu/nanoseconds", "Idle;Main", 10_000_000, "12"),
            sample("exceptions/count", "Work;Main", 2, "11"),
        ]
    );
    let managed = locations[1].numbers(4).into_iter().map(attribute).collect::<Vec<_>>();
    assert_eq!(managed, pairs(&[("profile.frame.type", "dotnet")]));
}

#[tokio::test]
async fn a_collector_gets_otlp_over_http() {
    let (server, address) = Server::start(|| answer(200, &[], "")).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Http), &at(address)).unwrap();
    let (batch, outcome) = send_known(&exporter).await;
    assert_eq!((outcome, batch.profiles), (delivered(), 3));
    let asked = server.only();
    assert_eq!(asked.path, "/v1development/profiles");
    assert_eq!(asked.header("content-type"), "application/x-protobuf");
    assert_eq!(asked.header("content-encoding"), "gzip");
    assert!(asked.header("user-agent").ends_with(" otlp-proto/1.10"));
    assert_otlp(&asked.unzipped());
}

#[tokio::test]
async fn a_collectors_whole_url_is_asked_as_it_is() {
    let (server, address) = Server::start(|| answer(200, &[], "")).await;
    let to = destination(&format!("http://{address}/own/v1development/profiles"));
    let exporter = Endpoint::new(otlp(otlp::Transport::Http), &to).unwrap();
    assert_eq!(send_known(&exporter).await.1, delivered());
    assert_eq!(server.only().path, "/own/v1development/profiles");
}

#[tokio::test]
async fn a_collector_gets_otlp_over_grpc() {
    let (server, address) = Server::start(|| grpc_answer(&[], "0", "")).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Grpc), &at(address)).unwrap();
    assert_eq!(send_known(&exporter).await.1, delivered());
    let asked = server.only();
    assert_eq!(
        asked.path,
        "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
    );
    assert_eq!(asked.header("te"), "trailers");
    assert_eq!(asked.header("grpc-encoding"), "gzip");
    assert!(asked.header("content-type").starts_with("application/grpc"));
    assert!(asked.header("user-agent").ends_with(" otlp-proto/1.10"));
    assert_eq!(asked.body[0], 1, "compressed");
    let length = u32::from_be_bytes(asked.body[1..5].try_into().unwrap());
    assert_eq!(length as usize, asked.body.len() - 5);
    assert_otlp(&unzipped(&asked.body[5..]));
}

#[tokio::test]
async fn what_a_collector_rejected_is_reported() {
    // partial_success { rejected_profiles: 2, error_message: "no" }
    const PARTIAL: &[u8] = &[0x0a, 6, 0x08, 2, 0x12, 2, b'n', b'o'];
    let partly = Outcome::Delivered { rejected: 2, message: Some("no".to_owned()) };
    let (_server, address) = Server::start(|| answer(200, &[], PARTIAL)).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Http), &at(address)).unwrap();
    assert_eq!(send_known(&exporter).await.1, partly);
    let (_server, address) = Server::start(|| grpc_answer(PARTIAL, "0", "")).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Grpc), &at(address)).unwrap();
    assert_eq!(send_known(&exporter).await.1, partly);
}

#[tokio::test]
async fn a_grpc_status_says_whether_to_try_again() {
    let (_server, address) = Server::start(|| grpc_answer(&[], "14", "gone%20away")).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Grpc), &at(address)).unwrap();
    let Outcome::Retry { reason, .. } = send_known(&exporter).await.1 else { panic!() };
    assert!(reason.contains("UNAVAILABLE: gone away"), "{reason}");
    let (_server, address) = Server::start(|| {
        answer(200, &[("content-type", "application/grpc"), ("grpc-status", "12")], "")
    })
    .await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Grpc), &at(address)).unwrap();
    assert!(matches!(send_known(&exporter).await.1, Outcome::Denied { .. }));
    // An answer that ends without a status may or may not have been stored.
    let (_server, address) = Server::start(|| answer(200, &[], "")).await;
    let exporter = Endpoint::new(otlp(otlp::Transport::Grpc), &at(address)).unwrap();
    assert!(matches!(send_known(&exporter).await.1, Outcome::Retry { .. }));
}

#[test]
fn otlp_requests_stay_below_what_a_grpc_server_takes() {
    let settings = otlp::Settings {
        batch_bytes: 30_000,
        attribute_limits: LabelLimits { count: 4, name_bytes: 100, value_bytes: 100 },
        ..otlp::Settings::default()
    };
    let encoded =
        otlp::encode(&settings, &vec![known(); 20], &strata_export::EncoderState::default());
    assert!(encoded.batches.len() > 2);
    for batch in &encoded.batches {
        assert!(unzipped(&batch.body).len() <= 30_000);
    }
    assert_eq!(encoded.batches.iter().map(|batch| batch.profiles).sum::<u32>(), 60);
}
