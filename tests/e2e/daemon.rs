//! The daemon against real servers: what arrives, under which identity, and what happens while the
//! server or the daemon is down.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_tests::backends::{self, Received};
use strata_tests::collector::{Answer, Collector};
use strata_tests::daemon::{Daemon, PATIENCE, own_address};
use strata_tests::running::{Running, wait_until};
use strata_tests::{machine, pprof, targets};

/// The program whose functions take 50, 30 and 20 % of its time, with variables.
fn shares(variables: &[(&str, &str)]) -> Result<Running> {
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("600").envs(variables.iter().copied());
    Running::from_command(command)
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

fn of_service(received: &[Received], label: &str, service: &str) -> Vec<Received> {
    received.iter().filter(|one| one.label(label) == service).cloned().collect()
}

/// Sums of several profiles' stacks.
fn all_stacks(received: &[Received]) -> Result<strata_tests::stacks::Stacks> {
    let mut all = strata_tests::stacks::Stacks::default();
    for one in received {
        all.stacks.extend(one.profile.stacks()?.stacks);
    }
    Ok(all)
}

fn assert_shares(name: &str, received: &[Received]) -> Result<()> {
    let stacks = all_stacks(received)?;
    let share = |function| stacks.share_with(function);
    let shares = ["burn_fifty", "burn_thirty", "burn_twenty"].map(share);
    println!("{name}: {} profiles, {} samples, {shares:.3?}", received.len(), stacks.total());
    for (share, expected) in shares.into_iter().zip([0.5, 0.3, 0.2]) {
        assert!((share - expected).abs() < 0.1, "{name}: {shares:?}");
    }
    Ok(())
}

fn types_of(profile: &pprof::Profile) -> Vec<String> {
    let types = profile.sample_type.iter();
    types
        .map(|kind| format!("{}/{}", profile.string(kind.r#type), profile.string(kind.unit)))
        .collect()
}

#[test]
fn profiles_of_a_known_program_arrive_at_every_backend_under_its_name() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let (pyroscope, push) = Collector::on_port(0)?;
    let agent_socket = daemon.folder().join("agent.socket");
    let agent = Collector::on_socket(&agent_socket)?;
    let (otlp, export) = Collector::on_port(0)?;
    let files = daemon.folder().join("files");
    daemon.configure(&format!(
        "[sampling]\nfrequency = 499\n\
         [exporter.pyroscope]\nurl = \"http://{push}\"\nperiod = \"2s\"\ntenant = \"blue\"\n\
         token = \"s3cret\"\n\
         [exporter.datadog]\nurl = \"unix://{}\"\nperiod = \"4s\"\n\
         [exporter.otlp]\nurl = \"http://{export}\"\nperiod = \"2s\"\n\
         [exporter.file]\npath = \"{}\"\nperiod = \"2s\"\n",
        agent_socket.display(),
        files.display()
    ))?;
    daemon.start()?;
    let target = shares(&[
        ("DD_SERVICE", "shop"),
        ("DD_ENV", "prod"),
        ("DD_VERSION", "1.2"),
        ("DD_TAGS", "team:checkout"),
        ("DD_GIT_COMMIT_SHA", "abc123"),
        // Where a target sends its own data does not affect strata.
        ("DD_TRACE_AGENT_URL", "http://127.0.0.1:1"),
        ("PYROSCOPE_SERVER_ADDRESS", "http://127.0.0.1:1"),
    ])?;
    let pid = target.pid().to_string();
    let enough = |requests: usize| requests >= 3;
    wait_until("every backend has some profiles", PATIENCE, || {
        let of = |collector: &Collector| collector.requests().len();
        let shop = backends::datadog(&agent.requests()).unwrap_or_default();
        enough(of(&pyroscope))
            && enough(of(&otlp))
            && of_service(&shop, "service", "shop").len() >= 2
    })?;
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);

    let requests = pyroscope.requests();
    for request in &requests {
        assert_eq!(request.header("authorization"), "Bearer s3cret");
        assert_eq!(request.header("x-scope-orgid"), "blue");
        assert_eq!(request.header("content-type"), "application/proto");
    }
    let arrived = backends::pyroscope(&requests)?;
    let shop = of_service(&arrived, "service_name", "shop");
    assert_shares("Pyroscope", &shop)?;
    for one in &shop {
        assert_eq!(one.label("__name__"), "process_cpu");
        assert_eq!((one.label("env"), one.label("version")), ("prod", "1.2"));
        assert_eq!(one.label("service_git_ref"), "abc123");
        // A value for each process would be a series for each; what the process states of itself is
        // sent.
        assert_eq!((one.label("pid"), one.label("team")), ("", "checkout"));
        assert!(types_of(&one.profile).contains(&"cpu/nanoseconds".to_owned()));
    }

    let arrived = backends::datadog(&agent.requests())?;
    let shop = of_service(&arrived, "service", "shop");
    assert_shares("Datadog", &shop)?;
    for one in &shop {
        assert_eq!(one.label("process_id"), pid);
        assert_eq!((one.label("env"), one.label("version")), ("prod", "1.2"));
        assert_eq!(one.label("team"), "checkout");
        assert_eq!(one.label("git.commit.sha"), "abc123");
        assert_eq!(one.label("runtime-id"), shop[0].label("runtime-id"));
        assert_eq!(one.label("runtime-id").len(), 36);
    }
    // Also what the process did before it executed the target, under another name.
    let of_runtime =
        arrived.iter().filter(|one| one.label("runtime-id") == shop[0].label("runtime-id"));
    let sequence: Result<Vec<u64>, _> =
        of_runtime.map(|one| one.label("profile_seq").parse()).collect();
    let mut sequence = sequence?;
    sequence.sort_unstable();
    let first = sequence.first().copied().unwrap_or(0);
    assert!(sequence.iter().copied().eq(first..first + sequence.len() as u64), "{sequence:?}");

    let sums = backends::otlp(&otlp.requests())?;
    let shop: Vec<_> = sums
        .iter()
        .filter(|sum| sum.attributes.get("service.name").is_some_and(|name| name == "shop"))
        .collect();
    let total = |kind: &str| -> i64 {
        shop.iter().filter(|sum| sum.sample_type == kind).map(|sum| sum.total).sum()
    };
    let (samples, cpu) = (total("samples/count"), total("cpu/nanoseconds"));
    println!("OTLP: {samples} samples, {cpu} ns");
    assert!(samples > 100 && cpu == samples * (1_000_000_000 / 499));
    for sum in &shop {
        assert_eq!(sum.attributes["process.pid"], pid);
        assert_eq!(sum.attributes["service.version"], "1.2");
    }

    let written: Vec<_> = std::fs::read_dir(files.join("shop"))?.flatten().collect();
    let mut read = Vec::new();
    for file in &written {
        read.push(Received {
            labels: Default::default(),
            profile: pprof::read(&file.path())?,
            batch: String::new(),
        });
    }
    assert_shares("files", &read)
}

#[test]
fn what_is_sampled_in_the_middle_of_a_period_is_sent_when_the_daemon_ends() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    let (server, address) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "[sampling]\nfrequency = 199\n[exporter.pyroscope]\nurl = \"http://{address}\"\nperiod = \"1h\"\n"
    ))?;
    daemon.start()?;
    let _target = shares(&[("PYROSCOPE_APPLICATION_NAME", "late")])?;
    std::thread::sleep(Duration::from_secs(3));
    assert!(server.requests().is_empty(), "nothing is due yet");
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let arrived = of_service(&backends::pyroscope(&server.requests())?, "service_name", "late");
    assert_shares("the last profile", &arrived)
}

#[test]
fn rules_the_environment_and_a_reload_change_what_arrives() -> Result<()> {
    let _machine = machine::alone()?;
    let mut daemon = Daemon::prepared()?;
    let (server, address) = Collector::on_port(0)?;
    let exporter = format!(
        "[sampling]\nfrequency = 199\n[exporter.pyroscope]\nurl = \"http://{address}\"\n\
         period = \"1s\"\nlabels = [\"*\"]\n"
    );
    let exe = targets::c("shares").build()?;
    daemon.configure(&exporter)?;
    daemon.start()?;
    let _plain = shares(&[])?;
    let _named = shares(&[("OTEL_SERVICE_NAME", "of-environment")])?;
    let _off = shares(&[("DD_SERVICE", "off"), ("DD_PROFILING_CPU_ENABLED", "0")])?;
    let services = || {
        let arrived = backends::pyroscope(&server.requests()).unwrap_or_default();
        let mut services: Vec<String> =
            arrived.iter().map(|one| one.label("service_name").to_owned()).collect();
        services.sort();
        services.dedup();
        services
    };
    let name = exe.file_name().context("a name")?.to_string_lossy().into_owned();
    let has = |service: &str| services().iter().any(|known| known == service);
    wait_until("both services arrive", PATIENCE, || has(&name) && has("of-environment"))?;
    assert!(!has("off"), "its own environment says no: {:?}", services());

    // A rule for the program takes precedence over its environment.
    let rule = format!(
        "{exporter}[[rule]]\nservice = \"of-rule\"\nlabels = {{ team = \"blue\" }}\n\
         match = {{ exe = \"{}\" }}\ntypes = [\"cpu\"]\n",
        exe.display()
    );
    daemon.configure(&rule)?;
    daemon.reload()?;
    let reloaded = now();
    wait_until("the rule's service arrives", PATIENCE, || has("of-rule"))?;
    // Profiles begun before a reload may arrive after it, or twice.
    let later = |since: i64| -> Vec<Received> {
        let arrived = backends::pyroscope(&server.requests()).unwrap_or_default();
        arrived.into_iter().filter(|one| one.profile.time_nanos > since).collect()
    };
    wait_until("more periods pass", PATIENCE, || {
        of_service(&later(reloaded), "service_name", "of-rule").len() > 2
    })?;
    let after = later(reloaded);
    assert!(of_service(&after, "service_name", "of-environment").is_empty());
    for one in of_service(&after, "service_name", "of-rule") {
        assert_eq!(one.label("team"), "blue");
    }

    // An unusable value changes nothing, and is reported.
    daemon.configure("[sampling]\nfrequenzy = 3\n")?;
    daemon.reload()?;
    let trouble = daemon.status()?["configuration"]["trouble"].to_string();
    println!("{trouble}");
    assert!(
        trouble.contains("frequenzy") && trouble.contains("did you mean `frequency`"),
        "{trouble}"
    );

    // And a rule can leave a program out.
    daemon.configure(&format!(
        "{exporter}[[rule]]\nenable = false\nmatch = {{ exe = \"{}\" }}\n",
        exe.display()
    ))?;
    daemon.reload()?;
    let reloaded = now();
    let _other = Running::from_command({
        let mut command = Command::new(targets::c("zero").build()?);
        command.arg("600").env("DD_SERVICE", "other");
        command
    })?;
    wait_until("others still arrive", PATIENCE, || {
        let after = later(reloaded);
        of_service(&after, "service_name", "other").len() > 2
    })?;
    let after = later(reloaded);
    assert!(of_service(&after, "service_name", "of-rule").is_empty());
    assert!(of_service(&after, "service_name", &name).is_empty());
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

#[test]
fn a_server_that_was_away_gets_what_it_missed_though_the_daemon_was_killed() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let agent_socket = daemon.folder().join("agent.socket");
    daemon.configure(&format!(
        "[sampling]\nfrequency = 99\n[exporter.datadog]\nurl = \"unix://{}\"\nperiod = \"1s\"\n",
        agent_socket.display()
    ))?;
    // No server listens at first.
    daemon.start()?;
    let _target = shares(&[("DD_SERVICE", "patient")])?;
    let waiting = |daemon: &Daemon| -> u64 {
        let status = daemon.status().unwrap_or_default();
        status["exporters"][0]["waiting_batches"].as_u64().unwrap_or(0)
    };
    let cuts = |daemon: &Daemon| -> u64 {
        daemon.status().unwrap_or_default()["profiles"]["flushes"].as_u64().unwrap_or(0)
    };
    let begun = cuts(&daemon);
    wait_until("some batches wait", PATIENCE, || {
        cuts(&daemon) > begun + 4 && waiting(&daemon) > 3
    })?;
    daemon.kill()?;
    // Then it fails, and recovers.
    let agent = Collector::on_socket(&agent_socket)?;
    agent.answer(Answer::status(503));
    daemon.start()?;
    wait_until("the agent is asked", PATIENCE, || agent.requests().len() > 1)?;
    agent.answer(Answer::default());
    let begun = cuts(&daemon);
    wait_until("everything is delivered", PATIENCE, || {
        cuts(&daemon) > begun + 4 && waiting(&daemon) == 0
    })?;
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let well = backends::datadog(&agent.taken())?;
    let patient = of_service(&well, "service", "patient");
    let mut by_runtime: std::collections::BTreeMap<String, Vec<u64>> = Default::default();
    for one in &patient {
        let sequence = one.label("profile_seq").parse()?;
        by_runtime.entry(one.label("runtime-id").to_owned()).or_default().push(sequence);
    }
    println!("sequences by runtime: {by_runtime:?}");
    // Both daemons derive the same runtime id, and the second's numbers begin after a gap.
    assert_eq!(by_runtime.len(), 1);
    let mut sequences = by_runtime.into_values().next().unwrap_or_default();
    sequences.sort_unstable();
    assert!(sequences.is_sorted_by(|one, next| one < next), "some came twice: {sequences:?}");
    let of_one = sequences.chunk_by(|one, next| one + 1 == *next).map(<[u64]>::len);
    let of_each: Vec<usize> = of_one.collect();
    assert!(of_each.len() == 2 && of_each.iter().all(|count| *count > 2), "{sequences:?}");
    Ok(())
}

#[test]
fn a_second_daemon_and_a_wrong_configuration_end_with_what_to_do() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    daemon.configure("")?;
    daemon.start()?;
    let strata = strata_tests::places::strata_binary()?;
    let run = |arguments: &[&str]| -> Result<strata_tests::running::Ended> {
        Running::start(&strata, arguments)?.wait(PATIENCE)
    };
    let configuration = daemon.configuration();
    let configuration = configuration.to_string_lossy();
    let second = run(&["daemon", "--config", &configuration])?;
    assert!(!second.status.success());
    assert!(second.stderr.contains("another strata daemon"), "{}", second.stderr);
    let socket = daemon.status_socket().display().to_string();
    let status = run(&["status", "--socket", &socket])?;
    println!("{}", status.stdout);
    assert!(status.status.success() && status.stdout.contains("healthy"));
    let metrics = daemon.metrics()?;
    for name in ["strata_samples_total", "strata_memory_bytes{component=\"bpf_maps\"}"] {
        assert!(metrics.contains(name), "{metrics}");
    }
    daemon.end()?;
    let missing = run(&["status", "--socket", &socket])?;
    assert!(missing.stderr.contains("start `strata daemon`"), "{}", missing.stderr);
    let wrong = run(&["config", "check", "--set", "sampling.frequency=fast"])?;
    assert!(!wrong.status.success());
    assert!(wrong.stderr.contains("flag --set: sampling.frequency"), "{}", wrong.stderr);
    for path in ["store.path=/proc/x", "log.target=/nonexistent/dir/x.log"] {
        let wrong = run(&["config", "check", "--set", path])?;
        assert!(!wrong.status.success() && wrong.stderr.contains("\n-> "), "{}", wrong.stderr);
    }
    let shown = run(&[
        "config",
        "show",
        "--config",
        &configuration,
        "--set",
        "exporter.pyroscope.url=http://x:1",
        "--set",
        "exporter.pyroscope.token=s3cret",
    ])?;
    assert!(
        shown.stdout.contains("exporter.pyroscope.token = ***  # flag --set"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains("s3cret") && shown.stdout.contains("# default"));
    Ok(())
}

#[test]
fn two_app_domains_of_one_process_have_profiles_and_names_of_their_own() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let (server, address) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "[sampling]\nfrequency = 199\n[dotnet]\nage = \"0s\"\nbridge = \"environment\"\n\
         [exporter.pyroscope]\nurl = \"http://{address}\"\nperiod = \"2s\"\n\
         labels = [\"*\", \"runtime_id\", \"pid\"]\n"
    ))?;
    daemon.start()?;
    let folder = tempfile::tempdir()?;
    let folder = folder.path().to_string_lossy();
    let target = Running::start(env!("CARGO_BIN_EXE_two_domains").as_ref(), &["300", &folder])?;
    let pid = target.pid().to_string();
    let of_process = || -> Vec<Received> {
        let arrived = backends::pyroscope(&server.requests()).unwrap_or_default();
        arrived.into_iter().filter(|one| one.label("pid") == pid).collect()
    };
    let both = || {
        let arrived = of_process();
        ["shop-web", "Jobs"].iter().all(|name| of_service(&arrived, "service_name", name).len() > 2)
    };
    wait_until("both domains have had some periods", PATIENCE, both)?;
    daemon.end()?;
    let arrived = of_process();
    let [shop, jobs] = ["shop-web", "Jobs"].map(|name| of_service(&arrived, "service_name", name));
    let threads_of = |profiles: &[Received]| -> Result<BTreeSet<i32>> {
        Ok(all_stacks(profiles)?.stacks.iter().filter_map(|stack| stack.tid()).collect())
    };
    for of_domain in [&shop, &jobs] {
        let runtime = of_domain[0].label("runtime_id");
        // What was sampled before the AppDomains were known belongs to the process.
        let known = of_domain.iter().filter(|one| one.label("runtime_id") == runtime);
        println!("{}: {} profiles", of_domain[0].label("service_name"), known.count());
        assert!(of_domain.iter().all(|one| one.label("env") == "prod"));
    }
    let jobs_thread = threads_of(&jobs)?;
    assert_eq!(jobs_thread.len(), 1, "the domain has one thread");
    // Before its bridge was read, a process was one; its first domain's name stands for it.
    let first = jobs.iter().map(|one| one.profile.time_nanos).min().unwrap_or(0);
    let later: Vec<Received> =
        shop.iter().filter(|one| one.profile.time_nanos > first).cloned().collect();
    assert!(later.len() > 1 && threads_of(&later)?.is_disjoint(&jobs_thread));
    assert_ne!(shop[0].label("runtime_id"), jobs[0].label("runtime_id"));
    Ok(())
}

#[test]
fn one_recording_is_uploaded_and_kept_when_that_fails() -> Result<()> {
    let _machine = machine::beside_others()?;
    let (server, address) = Collector::on_port(0)?;
    let folder = tempfile::tempdir()?;
    let strata = strata_tests::places::strata_binary()?;
    let shares = targets::c("shares").build()?;
    let upload = |url: &str| -> Result<strata_tests::running::Ended> {
        let mut command = Command::new(&strata);
        command.args([
            "record",
            "-F",
            "499",
            "--upload",
            url,
            "--service",
            "shop",
            "--env",
            "test",
        ]);
        command.arg("--").arg(&shares).arg("1.5").current_dir(folder.path());
        command.env("PYROSCOPE_AUTH_TOKEN", "s3cret");
        Running::from_command(command)?.wait(PATIENCE)
    };
    let ended = upload(&format!("http://{address}"))?;
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("uploaded to") && !ended.stderr.contains("s3cret"));
    let requests = server.requests();
    assert_eq!(requests[0].header("authorization"), "Bearer s3cret");
    let arrived = backends::pyroscope(&requests)?;
    assert_eq!((arrived[0].label("service_name"), arrived[0].label("env")), ("shop", "test"));
    assert_shares("the upload", &arrived)?;
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0, "nothing else was asked for");

    server.answer(Answer::status(401));
    // A port at which no server listens.
    let closed = own_address();
    for (address, why) in [(address, "the server answered 401"), (closed, "refused")] {
        let ended = upload(&format!("http://{address}"))?;
        println!("{}", ended.stderr);
        assert!(!ended.status.success() && ended.stderr.contains(why));
        for untrue in ["spool", "which are dropped", "lost: neither"] {
            assert!(!ended.stderr.contains(untrue), "{untrue}");
        }
        let kept = ended.stderr.split("was kept in `").nth(1);
        let kept = kept.and_then(|rest| rest.split('`').next());
        let kept = std::path::PathBuf::from(kept.context("it says where the profile is")?);
        assert!(pprof::read(&kept)?.total()? > 100);
        std::fs::remove_file(kept)?;
    }
    Ok(())
}

/// What a fake of Docker's engine returns for every request.
fn known_to_an_engine(id: &str) -> Answer {
    let known = serde_json::json!({
        "Id": id,
        "Name": "/cart",
        "Config": { "Image": "shop/cart:7", "Labels": { "com.docker.compose.project": "shop" } },
    });
    Answer {
        head: vec!["content-type: application/json".into()],
        body: known.to_string().into_bytes(),
        ..Answer::default()
    }
}

/// A program in a container, and a daemon that asks one engine about it and sends to one server.
struct Boxed {
    container: strata_tests::namespaces::Container,
    daemon: Daemon,
    server: Collector,
    engine: Collector,
}

impl Boxed {
    /// The daemon runs; the engine gives this answer for the container's id.
    fn start(name: &str, rules: &str, answer: fn(&str) -> Answer) -> Result<Self> {
        let program = targets::c("shares").named("shares_static").flag("-static").build()?;
        let container = strata_tests::namespaces::Container::start(&program, name, &["300"])?;
        let mut daemon = Daemon::prepared()?;
        let (server, address) = Collector::on_port(0)?;
        let socket = daemon.folder().join("docker.sock");
        let engine = Collector::on_socket(&socket)?;
        engine.answer(answer(&container.id));
        daemon.configure(&format!(
            "[sampling]\nfrequency = 199\n[containers]\ndocker = [\"{}\"]\ncri = []\n\
             [exporter.pyroscope]\nurl = \"http://{address}\"\nperiod = \"1s\"\nlabels = [\"*\", \"container_id\"]\n\
             {rules}",
            socket.display()
        ))?;
        daemon.start()?;
        Ok(Self { container, daemon, server, engine })
    }

    fn arrived(&self) -> Vec<Received> {
        let arrived = backends::pyroscope(&self.server.requests()).unwrap_or_default();
        let is_its = |one: &Received| one.label("container_id") == self.container.id;
        arrived.into_iter().filter(is_its).collect()
    }

    /// By the name that the engine knows.
    fn named(&self) -> Vec<Received> {
        of_service(&self.arrived(), "service_name", "cart")
    }
}

#[test]
fn a_process_in_a_container_has_its_containers_name() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut boxed = Boxed::start("boxed_known", "", known_to_an_engine)?;
    wait_until("the container is known", PATIENCE, || boxed.named().len() > 1)?;
    boxed.daemon.end()?;
    let arrived = boxed.named();
    for one in &arrived {
        assert_eq!(one.label("container"), "cart");
        assert_eq!(one.label("container_image"), "shop/cart:7");
    }
    let requests = boxed.engine.requests();
    let asked: Vec<String> = requests.into_iter().map(|request| request.path).collect();
    println!("{} profiles; the engine was asked {asked:?}", arrived.len());
    let of_it = format!("/containers/{}/json", boxed.container.id);
    assert!(asked.iter().any(|path| path.ends_with(&of_it)));
    Ok(())
}

#[test]
fn a_container_is_taken_in_when_a_runtime_that_was_down_knows_it() -> Result<()> {
    const RULES: &str = "[[rule]]\nenable = true\nmatch = { container = \"cart\" }\n\
                         [[rule]]\nenable = false\nmatch = { exe = \"*\" }\n";
    let _machine = machine::beside_others()?;
    let boxed = Boxed::start("boxed_late", RULES, |_| Answer::status(503))?;
    // A process is decided about without its container's runtime after fifteen seconds.
    std::thread::sleep(Duration::from_secs(20));
    let asked = boxed.engine.requests().len();
    assert!(asked >= 2 && boxed.arrived().is_empty(), "asked {asked} times");
    boxed.engine.answer(known_to_an_engine(&boxed.container.id));
    wait_until("the container is sampled", PATIENCE, || boxed.named().len() > 1)?;
    println!("the engine was asked {asked} times before it answered");
    Ok(())
}
