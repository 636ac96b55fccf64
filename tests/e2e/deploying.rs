//! The files in `deploy/` are accepted by their consumers, are consistent with each other, and run.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use strata_config::{Inputs, Loaded, load};
use strata_tests::daemon::own_address;
use strata_tests::deployment::{self, PrivilegedContainer};
use strata_tests::running::{Running, run, wait_until};
use strata_tests::runtimes::Version;
use strata_tests::{machine, places, runtimes, targets, text_outputs};

use crate::dotnet_events::{REPORTED, Target};
use crate::privileges;

/// Where the unit and the image have the program.
const INSTALLED: &str = "/usr/local/bin/strata";

fn configuration(name: &str, text: &str, environment: &[(String, String)]) -> Result<Loaded> {
    load(&Inputs { file: Some((name, text)), environment, ..Inputs::default() }).map_err(
        |problems| {
            let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{name}: {}", all.join("\n"))
        },
    )
}

/// The values of a unit's setting, in order.
fn unit_settings(name: &str) -> Result<Vec<String>> {
    let unit = deployment::text("strata.service")?;
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Ok(lines.map(str::to_string).collect())
}

#[test]
fn systemd_takes_the_unit_without_a_complaint() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let unit = folder.path().join("strata.service");
    // systemd wants the program to be there.
    let strata = places::strata_binary()?.canonicalize()?;
    let text = deployment::text("strata.service")?;
    fs::write(&unit, text.replace(INSTALLED, &strata.to_string_lossy()))?;
    let verify = |unit: &Path| -> Result<String> {
        let mut verify = Command::new(places::required("systemd-analyze", "systemd")?);
        verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit);
        let done = run(&mut verify)?;
        let printed = done.stdout + &done.stderr;
        Ok(if done.status.success() { printed } else { format!("{printed}{}", done.status) })
    };
    assert_eq!(verify(&unit)?, "");
    // It would have reported that.
    let wrong = folder.path().join("wrong.service");
    fs::write(&wrong, fs::read_to_string(&unit)?.replace("NoNewPrivileges", "NoNewPrivilege"))?;
    assert!(verify(&wrong)?.contains("NoNewPrivilege"));
    Ok(())
}

/// The capabilities that the unit allows, by their names in lower case.
fn units_capabilities() -> Result<Vec<String>> {
    let allowed = unit_settings("CapabilityBoundingSet")?.join(" ");
    let names = allowed.split_whitespace();
    Ok(names.map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect())
}

/// strata with these capabilities only.
fn start_with(allowed: &[String], arguments: &[&str]) -> Result<Running> {
    let bounds = format!("-all,+{}", allowed.join(",+"));
    let mut command = Command::new(places::required("setpriv", "util-linux")?);
    command.args(["--no-new-privs", "--inh-caps=-all", "--bounding-set", &bounds]);
    command.arg(places::strata_binary()?).args(arguments);
    Running::from_command(command)
}

#[test]
fn the_units_capabilities_are_enough_to_record() -> Result<()> {
    let _machine = machine::beside_others()?;
    let allowed = units_capabilities()?;
    let run = |allowed: &[String], arguments: &[&str]| {
        start_with(allowed, arguments)?.wait(Duration::from_secs(60))
    };
    let doctor = run(&allowed, &["doctor"])?;
    print!("{}", doctor.stdout);
    assert!(doctor.status.success());
    let line = doctor.stdout.lines().find(|line| line.contains("capabilities"));
    assert!(line.is_some_and(|line| line.trim_start().starts_with("ok")), "{line:?}");

    let folder = tempfile::tempdir()?;
    let output = folder.path().join("all.folded");
    let busy = Running::start(&targets::c("shares").build()?, &["20"])?;
    let recorded = run(&allowed, &["record", "-d", "1", "-o", &output.to_string_lossy()])?;
    assert!(recorded.status.success(), "{}", recorded.stderr);
    drop(busy);
    let stacks = text_outputs::folded(&fs::read_to_string(&output)?)?;
    let samples_in = |name: &str| -> u64 {
        let has = |stack: &&text_outputs::Folded| stack.frames.iter().any(|f| f.contains(name));
        stacks.iter().filter(has).map(|stack| stack.count).sum()
    };
    println!("{} samples in the target", samples_in("shares"));
    assert!(samples_in("shares") > 0);

    let without: Vec<String> = allowed.into_iter().filter(|name| name != "perfmon").collect();
    let without: Vec<String> = without.into_iter().filter(|name| name != "sys_admin").collect();
    assert!(!run(&without, &["doctor"])?.status.success());
    Ok(())
}

/// Events of .NET programs, whose probes take CAP_SYS_ADMIN: the helper has it, strata not. No daemon may
/// attach to the program and leave it again meanwhile.
#[test]
fn the_units_capabilities_are_enough_for_events() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let allowed = units_capabilities()?;
    let folder = tempfile::tempdir()?;
    let target = Target::start(&runtimes::dotnet()?, Version::V9, "paced", "500")?;
    let exceptions = folder.path().join("exceptions.folded");
    let (pid, output) = (target.pid().to_string(), exceptions.to_string_lossy());
    let arguments = ["record", "-v", "-e", "exceptions", "-p", &pid, "-o", &output];
    let mut recording = start_with(&allowed, &arguments)?;
    recording.wait_for_log(REPORTED, Duration::from_secs(60))?;
    privileges::check(recording.pid())?;
    target.go()?;
    let thrown: u64 = target.counts()?.values().sum();
    let recorded = recording.wait(Duration::from_secs(60))?;
    assert!(recorded.status.success(), "{}", recorded.stderr);
    let stacks = text_outputs::folded(&fs::read_to_string(&exceptions)?)?;
    let seen: u64 = stacks.iter().map(|stack| stack.count).sum();
    println!("{thrown} exceptions, {seen} seen");
    assert_eq!(seen, thrown, "{}", recorded.stderr);
    Ok(())
}

#[test]
fn kubernetes_takes_the_manifests_and_they_fit_together() -> Result<()> {
    let _machine = machine::beside_others()?;
    let read =
        deployment::read_strictly("kubernetes", &deployment::file("kubernetes/daemonset.yaml"))?;
    let objects = read.as_array().context("a list of objects")?;
    let of_kind = |kind: &str| {
        let found = objects.iter().find(|object| object["kind"] == kind);
        found.with_context(|| format!("there is no {kind}"))
    };
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    println!("{kinds:?}");
    for object in objects {
        let name = &object["metadata"]["name"];
        assert_eq!(name, "strata");
        let is_global = ["Namespace", "ClusterRole", "ClusterRoleBinding"]
            .contains(&object["kind"].as_str().unwrap_or_default());
        assert_eq!(object["metadata"].get("namespace").is_none(), is_global, "{object}");
    }
    let binding = of_kind("ClusterRoleBinding")?;
    assert_eq!(binding["roleRef"]["name"], of_kind("ClusterRole")?["metadata"]["name"]);
    let account = &of_kind("ServiceAccount")?["metadata"];
    assert_eq!(binding["subjects"][0]["name"], account["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], account["namespace"]);
    for rule in of_kind("ClusterRole")?["rules"].as_array().context("rules")? {
        assert_eq!(rule["verbs"], serde_json::json!(["get"]), "the least that serves");
    }

    let set = &of_kind("DaemonSet")?["spec"];
    let pod = &set["template"]["spec"];
    assert_eq!(set["selector"]["matchLabels"], set["template"]["metadata"]["labels"]);
    assert_eq!(pod["serviceAccountName"], account["name"]);
    assert_eq!(pod["hostPID"], true);
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true);
    assert_eq!(names(&pod["volumes"]), names(&container["volumeMounts"]));
    let port = container["ports"][0]["containerPort"].as_u64();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["path"], "/healthz");
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"]);
    }

    // It listens on more than the node's loopback, so access is restricted explicitly.
    let policy = &of_kind("NetworkPolicy")?["spec"];
    assert_eq!(policy["podSelector"]["matchLabels"], set["selector"]["matchLabels"]);
    assert_eq!(policy["policyTypes"], serde_json::json!(["Ingress"]));
    let [way_in] = policy["ingress"].as_array().context("ways in")?.as_slice() else {
        anyhow::bail!("one way in")
    };
    assert_eq!(way_in["ports"][0]["port"].as_u64(), port);
    assert!(way_in["from"][0]["namespaceSelector"]["matchLabels"].is_object());

    let variables = container["env"].as_array().context("variables")?;
    let host = variables.iter().find(|variable| variable["name"] == "STRATA_HOST");
    let host = host.context("the node's name")?;
    assert_eq!(host["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    let environment: Vec<(String, String)> = variables
        .iter()
        .filter_map(|variable| {
            let value = variable["value"].as_str()?.replace("$(NODE_IP)", "192.0.2.1");
            Some((variable["name"].as_str()?.to_string(), value))
        })
        .collect();
    let data = of_kind("ConfigMap")?["data"].as_object().context("files")?;
    let (name, text) = data.iter().next().context("a file")?;
    let arguments = serde_json::json!(["daemon", "--config", format!("/etc/strata/{name}")]);
    assert_eq!(container["args"], arguments);
    let text = text.as_str().context("text")?;
    let loaded = configuration(name, text, &environment)?.configuration;
    assert_eq!(loaded.metrics.value.map(|address| u64::from(address.port())), port);
    assert!(loaded.metrics.value.is_some_and(|address| address.ip().is_unspecified()));
    assert_eq!(loaded.containers.kubelet.value.as_deref(), Some("https://192.0.2.1:10250"));
    let sockets = loaded.containers.cri.value.iter().chain(&loaded.containers.docker.value);
    for socket in sockets {
        assert!(socket.starts_with("/host/run"), "{} is not mounted", socket.display());
    }
    // Its disabled parts can be enabled.
    let on = text.replace("\n#[", "\n[").replace("\n#url", "\nurl");
    assert_eq!(configuration(name, &on, &[])?.configuration.exporters.len(), 1);
    Ok(())
}

#[test]
fn a_manifest_with_a_misspelt_field_is_refused() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let manifest = deployment::text("kubernetes/daemonset.yaml")?;
    for (right, wrong) in [
        ("hostPID: true", "hostPid: true"),
        ("containerPort: 9464", "containerPort: many"),
        ("memory: 512Mi", "memory: 512Mb"),
        ("kind: ServiceAccount\nmetadata", "kind: ServiceAccounts\nmetadata"),
        ("  name: strata\n", "  name: strata\n  name: strata\n"),
    ] {
        let path = folder.path().join("wrong.yaml");
        fs::write(&path, manifest.replacen(right, wrong, 1))?;
        let read = deployment::read_strictly("kubernetes", &path);
        assert!(read.is_err(), "{wrong} was taken");
    }
    Ok(())
}

#[test]
fn compose_takes_its_file_and_everything_it_names_is_there() -> Result<()> {
    let _machine = machine::beside_others()?;
    let read = deployment::read_strictly("compose", &deployment::file("compose.yaml"))?;
    let services = read["services"].as_object().context("services")?;
    println!("{:?}", services.keys().collect::<Vec<_>>());
    let strata = &services["strata"];
    assert_eq!(strata["privileged"], true);
    assert_eq!(strata["pid"], "host");
    assert_eq!(strata["uts"], "host");
    let root = places::workspace().canonicalize()?;
    assert_eq!(strata["build"]["context"].as_str().map(Path::new), Some(root.as_path()));
    for service in services.values().filter(|service| service["build"].is_object()) {
        let context = Path::new(service["build"]["context"].as_str().context("a context")?);
        let dockerfile = service["build"]["dockerfile"].as_str().context("a Dockerfile")?;
        assert!(context.join(dockerfile).is_file(), "{dockerfile}");
    }
    // Of a tmpfs without it, as Docker's are, nothing is loaded.
    let tmpfs = services["app"]["tmpfs"].as_array().context("the app's tmpfs")?;
    let options = tmpfs.iter().filter_map(|mount| mount.as_str()?.strip_prefix("/tmp:"));
    let options: Vec<&str> = options.flat_map(|options| options.split(',')).collect();
    assert!(options.contains(&"exec"), "{tmpfs:?}");
    for file in read["configs"].as_object().context("files")?.values() {
        assert!(Path::new(file["file"].as_str().context("a file")?).is_file(), "{file}");
    }

    let text = deployment::text("compose/strata.toml")?;
    let loaded = configuration("strata.toml", &text, &[])?;
    let exporter = loaded.shown.iter().find(|shown| shown.key == "exporter.pyroscope.url");
    let exporter = exporter.context("an exporter")?.value.trim_matches('"').to_string();
    let host = exporter.trim_start_matches("http://").split(':').next().context("a host")?;
    assert!(services.contains_key(host), "{host} is no service");
    assert!(deployment::text("compose/datasource.yaml")?.contains(&format!("url: {exporter}\n")));

    let folder = tempfile::tempdir()?;
    let wrong = folder.path().join("compose.yaml");
    fs::write(&wrong, deployment::text("compose.yaml")?.replace("pid: host", "pids: host"))?;
    assert!(deployment::read_strictly("compose", &wrong).is_err());
    Ok(())
}

/// What `strata env` prints for a directory: the variables, with the library's place below it.
fn variables_of_env(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut command = Command::new(places::strata_binary()?);
    command.arg("env").arg("--directory").arg(directory);
    let ended = Running::from_command(command)?.wait(Duration::from_secs(60))?;
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = ended.stdout.lines().filter_map(|line| line.strip_prefix("export "));
    let found = lines.filter_map(|line| line.split_once('='));
    Ok(found.map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned())).collect())
}

/// The same, as if the directory were another.
fn expected_variables(directory: &str) -> Result<Vec<(String, String)>> {
    let folder = tempfile::tempdir_in("/run")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let real = folder.path().to_string_lossy().into_owned();
    let mut variables = variables_of_env(folder.path())?;
    for (name, value) in &mut variables {
        if name.ends_with("_PATH") {
            assert!(Path::new(value).is_file(), "{value}");
        }
        *value = value.replace(&real, directory);
    }
    variables.sort();
    assert_eq!(variables.len(), 3, "{variables:?}");
    Ok(variables)
}

fn sorted(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut variables: Vec<_> = variables.collect();
    variables.sort();
    variables
}

/// The examples for programs that load the bridge themselves have the variables of `strata env`, and the
/// library where these say.
#[test]
fn programs_that_load_the_bridge_themselves_get_the_variables_of_strata_env() -> Result<()> {
    let _machine = machine::beside_others()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();

    let file = deployment::file("at-start/kubernetes.yaml");
    let read = deployment::read_strictly("kubernetes", &file)?;
    let [shop] = read.as_array().context("objects")?.as_slice() else {
        bail!("one object: {read}")
    };
    let pod = &shop["spec"]["template"]["spec"];
    let (init, app) = (&pod["initContainers"][0], &pod["containers"][0]);
    let (written, mounted) = (&init["volumeMounts"][0], &app["volumeMounts"][0]);
    let directory = text(&written["mountPath"]);
    assert_eq!(init["args"], serde_json::json!(["env", "--directory", directory]));
    assert_eq!(mounted["mountPath"], written["mountPath"]);
    assert_eq!((&mounted["name"], &mounted["readOnly"]), (&written["name"], &Value::Bool(true)));
    assert_eq!(names(&pod["volumes"]), names(&app["volumeMounts"]));
    assert!(pod["volumes"][0]["hostPath"]["path"].is_string(), "an emptyDir is refused");
    let variables = app["env"].as_array().context("variables")?.iter();
    let variables = sorted(variables.map(|one| (text(&one["name"]), text(&one["value"]))));
    assert_eq!(variables, expected_variables(&directory)?);

    let file = deployment::file("at-start/compose.yaml");
    let services = &deployment::read_strictly("compose", &file)?["services"];
    let (bridge, app) = (&services["bridge"], &services["app"]);
    let (written, mounted) = (&bridge["volumes"][0], &app["volumes"][0]);
    let directory = text(&written["target"]);
    assert_eq!(bridge["command"], serde_json::json!(["env", "--directory", directory]));
    assert_eq!(mounted["target"], written["target"]);
    assert_eq!(
        (&mounted["source"], &mounted["read_only"]),
        (&written["source"], &Value::Bool(true))
    );
    let waits = &app["depends_on"]["bridge"]["condition"];
    assert_eq!(waits, "service_completed_successfully");
    let variables = app["environment"].as_object().context("variables")?.iter();
    let variables = sorted(variables.map(|(name, value)| (name.clone(), text(value))));
    assert_eq!(variables, expected_variables(&directory)?);

    let conf = deployment::text("at-start/systemd.conf")?;
    let variables = conf.lines().filter_map(|line| {
        let pair = line.strip_prefix("Environment=\"")?.strip_suffix('"')?;
        pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    });
    let variables = sorted(variables);
    let directory = conf.lines().find_map(|line| line.split("strata env --directory ").nth(1));
    let directory =
        directory.and_then(|rest| rest.split_whitespace().next()).context("no place")?;
    assert_eq!(variables, expected_variables(directory)?);
    // systemd reads it as part of a service.
    let folder = tempfile::tempdir()?;
    let part = folder.path().join("shop.service.d");
    fs::create_dir(&part)?;
    fs::write(folder.path().join("shop.service"), "[Service]\nExecStart=/bin/true\n")?;
    let verify = |text: &str| -> Result<String> {
        fs::write(part.join("strata.conf"), text)?;
        let mut verify = Command::new(places::required("systemd-analyze", "systemd")?);
        verify
            .args(["verify", "--man=no", "--recursive-errors=no", "shop.service"])
            .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
        let done = run(&mut verify)?;
        Ok(done.stdout + &done.stderr)
    };
    assert_eq!(verify(&conf)?, "");
    assert!(verify(&conf.replace("Environment=", "Environments="))?.contains("Environments"));
    Ok(())
}

#[test]
fn the_program_of_the_compose_file_compiles_and_runs() -> Result<()> {
    let _machine = machine::beside_others()?;
    let dotnet = runtimes::dotnet::dotnet()?;
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("Primes.dll");
    let source = deployment::file("compose/app/Primes.cs");
    let compiled = Running::from_command(dotnet.compile_command(&source, &program))?
        .wait(Duration::from_secs(120))?;
    assert!(compiled.status.success(), "{}{}", compiled.stdout, compiled.stderr);
    let mut command = dotnet.command(&program);
    command.arg("2");
    let ended = Running::from_command(command)?.wait(Duration::from_secs(60))?;
    assert!(ended.status.success(), "{}", ended.stderr);
    // There are so many primes up to 200,000.
    assert!(ended.stdout.starts_with("round 0: 17984 primes, first word 0"), "{}", ended.stdout);
    Ok(())
}

#[test]
fn what_the_dockerfile_copies_is_there() -> Result<()> {
    let _machine = machine::beside_others()?;
    let dockerfile = deployment::text("Dockerfile")?;
    let stages: Vec<&str> = dockerfile.split("\nFROM ").collect();
    let last = stages.last().context("a stage")?;
    // The image is the tree that the tests run, and nothing else.
    let copies: Vec<&str> = last.lines().filter(|line| line.starts_with("COPY")).collect();
    assert_eq!(copies, ["COPY --from=build /image/ /"]);
    assert!(last.starts_with("scratch\n") && !last.contains("\nRUN"));
    assert!(dockerfile.contains("deploy/image-root.sh target/dist/strata /image"));
    assert!(last.contains(&format!("ENTRYPOINT [\"{INSTALLED}\"]")));

    let root = places::workspace();
    let channel = fs::read_to_string(root.join("rust-toolchain.toml"))?;
    let channel = channel.split('"').nth(1).context("a channel")?.to_string();
    assert!(dockerfile.contains(&format!("FROM rust:{channel}-bookworm")), "not Rust {channel}");

    let ignored = deployment::text("Dockerfile.dockerignore")?;
    let kept: BTreeSet<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &kept {
        assert!(root.join(path).exists(), "{path} is not there");
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let (_, members) = manifest.split_once("members = [").context("members")?;
    let (members, _) = members.split_once(']').context("the end of the members")?;
    for member in members.split('"').skip(1).step_by(2) {
        let top = member.split('/').next().unwrap_or(member);
        assert!(kept.contains(top), "{member} would not be in the build");
    }
    Ok(())
}

#[test]
fn the_image_records_the_host_from_a_privileged_container() -> Result<()> {
    let _machine = machine::beside_others()?;
    let container = PrivilegedContainer::new(&places::strata_binary()?)?;
    let doctor = container.start(&["doctor"])?.wait(Duration::from_secs(60))?;
    print!("{}{}", doctor.stdout, doctor.stderr);
    if !doctor.status.success() {
        bail!("doctor ended with {}", doctor.status);
    }
    let busy = Running::start(&targets::c("shares").build()?, &["30"])?;
    let recorded = container
        .start(&[
            "record",
            "-d",
            "1",
            "-o",
            "/var/lib/strata/host.folded",
            "-o",
            "/var/lib/strata/host.svg",
        ])?
        .wait(Duration::from_secs(60))?;
    drop(busy);
    assert!(recorded.status.success(), "{}", recorded.stderr);
    let text = fs::read_to_string(container.state().join("host.folded"))?;
    let stacks = text_outputs::folded(&text)?;
    let in_target = |stack: &&text_outputs::Folded| {
        stack.frames.first().is_some_and(|frame| frame.contains("shares"))
            && stack.frames.iter().any(|frame| frame == "main")
    };
    let samples: u64 = stacks.iter().filter(in_target).map(|stack| stack.count).sum();
    println!("{samples} samples of a program on the host, named down to its main");
    assert!(samples > 0, "{text}");
    // The container has a host name of its own; the flame graph shows the host's.
    let picture = fs::read_to_string(container.state().join("host.svg"))?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    assert!(picture.contains(&format!(">{}  ", host.trim())), "it does not have the host's name");
    Ok(())
}

#[test]
fn the_images_daemon_is_healthy_samples_the_host_and_ends_on_sigterm() -> Result<()> {
    let _machine = machine::beside_others()?;
    let address = own_address();
    let container = PrivilegedContainer::new(&places::strata_binary()?)?;
    let metrics = format!("metrics.address={address}");
    let own = ["daemon", "--config", "/etc/strata/strata.toml", "--set", &metrics];
    let mut daemon = container.start(&own)?;
    let _busy = Running::start(&targets::c("shares").build()?, &["60"])?;
    let is_up = wait_until("the daemon is healthy", Duration::from_secs(60), || {
        !daemon.is_alive()
            || get(address, "/healthz").is_ok_and(|answer| answer.ends_with("\r\n\r\nok\n"))
    });
    let printed = |daemon: Running| daemon.wait(Duration::ZERO).map(|ended| ended.stderr);
    if is_up.is_err() || !daemon.is_alive() {
        bail!("the daemon is not healthy: {:?}", printed(daemon));
    }
    let sampled = || -> f64 {
        let metrics = get(address, "/metrics").unwrap_or_default();
        let line = metrics.lines().find_map(|line| line.strip_prefix("strata_samples_total "));
        line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    };
    wait_until("a period has its samples", Duration::from_secs(60), || sampled() > 0.0)?;
    println!("{} samples", sampled());
    daemon.signal(Signal::TERM)?;
    let ended = daemon.wait(Duration::from_secs(60))?;
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
    let kept = fs::read_dir(container.state().join("store"))?.count();
    assert!(kept > 0, "nothing is in the store");
    Ok(())
}

/// The answer to a GET, head and body.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn names(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}
