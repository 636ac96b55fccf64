//! CPU, wall-clock and off-CPU time of one program at every backend: the sums that the local store
//! answers, each kind under its name there.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result};
use strata_tests::backends::{self, Received};
use strata_tests::collector::Collector;
use strata_tests::daemon::{Daemon, PATIENCE};
use strata_tests::running::Running;
use strata_tests::{machine, places, targets};

/// The kinds, their columns of nanoseconds, and Pyroscope's name of their profiles.
const KINDS: [(&str, &str); 3] = [("cpu", "process_cpu"), ("wall", "wall"), ("off_cpu", "offcpu")];

/// What the store answers for a kind, in nanoseconds.
fn stored(daemon: &Daemon, service: &str, kind: &str) -> Result<i64> {
    let mut command = Command::new(places::strata_binary()?);
    command.args(["query", "--json", "--service", service, "--type", kind, "--store"]);
    command.arg(daemon.store());
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    let answer: serde_json::Value = serde_json::from_str(&ended.stdout).context(ended.stderr)?;
    assert_eq!(answer["summary"]["unit"], "nanoseconds");
    answer["summary"]["total"].as_i64().context("no total")
}

/// The sum of a profile's column.
fn sum(one: &Received, column: &str) -> i64 {
    let profile = &one.profile;
    let of_name = profile.sample_type.iter().position(|kind| profile.string(kind.r#type) == column);
    let values = |at| profile.sample.iter().filter_map(move |sample| sample.value.get(at)).sum();
    of_name.map_or(0, values)
}

/// The threads of a profile's samples, as Datadog has them.
fn thread_ids(one: &Received) -> impl Iterator<Item = i64> + '_ {
    let labels = one.profile.sample.iter().flat_map(|sample| &sample.label);
    labels.filter(|label| one.profile.string(label.key) == "thread id").map(|label| label.num)
}

#[test]
fn the_sums_of_each_kind_are_the_same_at_every_backend_and_in_the_store() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let (pyroscope, push) = Collector::on_port(0)?;
    let agent_socket = daemon.folder().join("agent.socket");
    let agent = Collector::on_socket(&agent_socket)?;
    let (otlp, export) = Collector::on_port(0)?;
    daemon.configure(&format!(
        "[dotnet]\nbridge = \"off\"\n\
         [exporter.pyroscope]\nurl = \"http://{push}\"\nperiod = \"2s\"\n\
         [exporter.datadog]\nurl = \"unix://{}\"\nperiod = \"4s\"\n\
         [exporter.otlp]\nurl = \"http://{export}\"\nperiod = \"2s\"\n\
         [[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"elapsed\" }} }}\n\
         types = [\"cpu\", \"wall\", \"off_cpu\"]\n",
        agent_socket.display(),
    ))?;
    daemon.start()?;
    let program = targets::c("waits").flag("-fomit-frame-pointer").flag("-pthread").build()?;
    let mut command = Command::new(program);
    command.arg("9").env("DD_SERVICE", "elapsed");
    let target = Running::from_command(command)?;
    let pid = target.pid().to_string();
    target.wait(PATIENCE)?;
    // What is under way is sent at the end.
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);

    let of = |all: Vec<Received>, name: &str| -> Vec<Received> {
        all.into_iter().filter(|one| one.label(name) == "elapsed").collect()
    };
    let pushed = of(backends::pyroscope(&pyroscope.requests())?, "service_name");
    let uploaded = of(backends::datadog(&agent.requests())?, "service");
    let exported = backends::otlp(&otlp.requests())?;
    for (kind, name) in KINDS {
        let stored = stored(&daemon, "elapsed", kind)?;
        let of_kind = pushed.iter().filter(|one| one.label("__name__") == name);
        // Its column has the kind's own name but for one.
        let column = if kind == "off_cpu" { "offcpu" } else { kind };
        let at_pyroscope: i64 = of_kind.map(|one| sum(one, column)).sum();
        // Of native programs an agent knows `cpu-time`.
        let column = if kind == "cpu" { "cpu-time" } else { kind };
        let at_datadog: i64 = uploaded.iter().map(|one| sum(one, column)).sum();
        let own = exported.iter().filter(|sum| {
            sum.attributes.get("service.name").is_some_and(|service| service == "elapsed")
                && sum.sample_type == format!("{kind}/nanoseconds")
        });
        let at_otlp: i64 = own.map(|sum| sum.total).sum();
        println!(
            "{kind}: stored {stored}, Pyroscope {at_pyroscope}, Datadog {at_datadog}, OTLP {at_otlp}"
        );
        assert!(stored > 0);
        assert_eq!((at_pyroscope, at_otlp), (stored, stored), "{kind}");
        // An agent knows no type for off-CPU time.
        assert_eq!(at_datadog, if kind == "off_cpu" { 0 } else { stored }, "{kind}");
    }
    // One upload has all kinds of a runtime's period.
    let mut periods: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    for one in &uploaded {
        let begins = periods.entry(one.label("runtime-id")).or_default();
        assert!(begins.insert(one.profile.time_nanos), "two uploads of a period");
    }
    let own: Vec<&Received> =
        uploaded.iter().filter(|one| one.label("process_id") == pid).collect();
    let whole = own.iter().filter(|one| sum(one, "cpu-time") > 0 && sum(one, "wall") > 0).count();
    println!("{} runtimes, {} uploads of the program, {whole} whole", periods.len(), own.len());
    assert!(own.len() >= 2 && whole >= 1);
    assert!(own.windows(2).all(|pair| pair[0].label("runtime-id") == pair[1].label("runtime-id")));
    Ok(())
}

#[test]
fn short_processes_of_a_service_share_one_profile_a_period_and_a_lasting_one_has_its_own()
-> Result<()> {
    const COUNT: usize = 100;
    let _machine = machine::beside_others()?;
    let mut daemon = Daemon::prepared()?;
    let agent_socket = daemon.folder().join("agent.socket");
    let agent = Collector::on_socket(&agent_socket)?;
    // The service is no other test's: it would share profiles with what runs beside this one.
    daemon.configure(&format!(
        "[dotnet]\nbridge = \"off\"\n\
         [exporter.datadog]\nurl = \"unix://{}\"\nperiod = \"10s\"\n\
         [[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"short-lived\" }} }}\n\
         types = [\"cpu\", \"wall\"]\n\
         [[rule]]\nmatch = {{ exe = \"*/short_life*\" }}\n\
         service = \"short-lived\"\ntypes = [\"cpu\", \"wall\"]\n",
        agent_socket.display(),
    ))?;
    daemon.start()?;
    let mut lasting = Command::new("/bin/sleep");
    lasting.arg("600").env("DD_SERVICE", "short-lived");
    let lasting = Running::from_command(lasting)?;
    let program = targets::c("short_life").build()?;
    for _ in 0..COUNT {
        Running::start(&program, &["20"])?.wait(PATIENCE)?;
    }
    let ended = daemon.end()?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);

    let uploaded = backends::datadog(&agent.requests())?;
    let own: Vec<&Received> =
        uploaded.iter().filter(|one| one.label("service") == "short-lived").collect();
    let (of_one, of_several): (Vec<&Received>, Vec<&Received>) =
        own.iter().partition(|one| !one.label("process_id").is_empty());
    let lasting = lasting.pid().to_string();
    let has_lasting = of_one.iter().any(|one| one.label("process_id") == lasting);
    let ids: BTreeSet<&str> = of_several.iter().map(|one| one.label("runtime-id")).collect();
    let uploaded: i64 = own.iter().map(|one| sum(one, "wall")).sum();
    let stored = stored(&daemon, "short-lived", "wall")?;
    // Each has one thread, whose number is the process's.
    let threads: BTreeSet<i64> = of_several.iter().flat_map(|one| thread_ids(one)).collect();
    println!(
        "{} profiles of short processes, {} of {COUNT}, under {} runtime ids; {} of one process; \
         wall: stored {stored}, Datadog {uploaded}",
        of_several.len(),
        threads.len(),
        ids.len(),
        of_one.len(),
    );
    assert!(has_lasting, "a process that lasts has a profile of its own");
    assert!(threads.len() >= COUNT * 9 / 10, "their samples keep their threads");
    // What is known of a process may differ where it ended before it was read.
    assert!(of_several.len() <= 8 && ids.len() <= 3, "they share profiles");
    assert!(stored > 0 && stored == uploaded, "no time is lost");
    Ok(())
}
