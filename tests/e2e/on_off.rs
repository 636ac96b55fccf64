//! The on/off-CPU experiment: a server with a route that burns 100 ms and one that waits 100 ms, five
//! connections each. CPU time is the burning route's, off-CPU time the waiting one's, and of wall-clock
//! time each has as much.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use strata_tests::daemon::PATIENCE;
use strata_tests::running::{PerfMaps, Running, wait_until};
use strata_tests::runtimes::{self, Version, dotnet};
use strata_tests::stacks::{Stack, Stacks};
use strata_tests::strata::record;
use strata_tests::{machine, targets};

const CONNECTIONS: usize = 5;
const SECONDS: f64 = 10.0;

/// Asks for a route again and again until it has to end.
fn ask(socket: &Path, route: &str, has_ended: &AtomicBool, answers: &AtomicU32) -> Result<()> {
    let mut connection = UnixStream::connect(socket)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    while !has_ended.load(Ordering::Relaxed) {
        connection.write_all(format!("GET /{route} HTTP/1.1\r\n\r\n").as_bytes())?;
        let mut answer = [0; 256];
        if connection.read(&mut answer)? == 0 {
            anyhow::bail!("the server hung up");
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn seconds(stacks: &Stacks, is_wanted: impl Fn(&Stack) -> bool) -> f64 {
    let wanted = stacks.stacks.iter().filter(|stack| is_wanted(stack));
    wanted.map(|stack| stack.count as f64 / 1e9).sum()
}

/// What is expected of a server.
struct Expected {
    /// Names of what its routes call.
    routes: [&'static str; 2],
    /// The first function of a thread that serves a connection.
    start: &'static str,
    /// Of the time that each route has, what its threads spend in it at least. The rest is the clients', which
    /// may have to wait for a CPU.
    in_route: f64,
    /// Of the time of the waiting route, what its threads are blocked at least.
    blocked: f64,
    /// Its sums of waits are right to this part. Of threads that are switched often, waits are sampled.
    error: f64,
}

/// `command`: the server, given the path of its socket.
fn experiment(
    name: &str,
    command: impl FnOnce(&str) -> Result<Command>,
    expected: &Expected,
) -> Result<()> {
    let Expected { routes: [burns, waits], start, in_route, blocked, error } = *expected;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let mut server = Running::from_command(command(socket.to_str().context("a path")?)?)?;
    let _maps = PerfMaps::of([server.pid()]);
    server.wait_for_line("ready", PATIENCE)?;
    let has_ended = AtomicBool::new(false);
    let answers = [const { AtomicU32::new(0) }; 2];
    let (recorded, answered) = std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for (route, answers) in ["burns", "waits"].into_iter().zip(&answers) {
            for _ in 0..CONNECTIONS {
                clients.push(scope.spawn(|| ask(&socket, route, &has_ended, answers)));
            }
        }
        let all = || answers.iter().all(|count| count.load(Ordering::Relaxed) > 20);
        let recorded = wait_until("both routes answer", PATIENCE, all).and_then(|()| {
            let (began, before) = (Instant::now(), answers[1].load(Ordering::Relaxed));
            let recorded =
                record()?.pid(server.pid()).option("-e", "cpu,wall,off_cpu").seconds(SECONDS).run();
            let waits = answers[1].load(Ordering::Relaxed) - before;
            let each_second = f64::from(waits) / began.elapsed().as_secs_f64();
            Ok((recorded?, each_second))
        });
        has_ended.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client panicked")?;
        }
        recorded
    })?;
    recorded.print_losses();
    let profile = recorded.profile()?;
    let (cpu, wall, off_cpu) =
        (profile.stacks()?, profile.stacks_of("wall")?, profile.stacks_of("off_cpu")?);
    let has =
        |stack: &Stack, part: &str| stack.frames.iter().any(|frame| frame.name.contains(part));
    let is = |stack: &Stack, state: &str| stack.labels.get("state").is_some_and(|is| is == state);
    let on = [cpu.share_that(|stack| has(stack, burns)), cpu.share_that(|stack| has(stack, waits))];
    let leader = server.pid();
    let elapsed = seconds(&wall, |stack| stack.tid() == Some(leader));
    let of_wall = [burns, waits].map(|route| seconds(&wall, |stack| has(stack, route)));
    let off = [burns, waits]
        .map(|route| seconds(&off_cpu, |stack| has(stack, route) && is(stack, "blocked")));
    let whole = |stacks: &Stacks| {
        seconds(stacks, |stack| has(stack, waits) && has(stack, start) && is(stack, "blocked"))
    };
    // Each answer took 100 ms of waiting.
    let waited = answered * elapsed * 0.1;
    println!(
        "{name}: {elapsed:.2} s, {waited:.2} s waited by its own account; burns and waits: CPU {on:.3?}, wall {of_wall:.2?} s, off CPU {off:.2?} s; \
         whole: {:.2} s of wall, {:.2} s off CPU",
        whole(&wall),
        whole(&off_cpu)
    );
    assert!(on[0] >= 0.95, "{name}: CPU");
    let all = elapsed * CONNECTIONS as f64;
    // Of a thread that serves both routes by turns, as Go's do, how its time between two passes is divided is
    // known on average only.
    let most = if name == "Go" { 1.15 } else { 1.03 };
    let is_near = |seconds: &f64| (in_route..most).contains(&(seconds / all));
    assert!(of_wall.iter().all(is_near), "{name}: wall");
    assert!(off[0] < 0.01 * off[1], "{name}: off CPU");
    assert!(off[1] > blocked * all && off[1] < (1.0 + error) * all, "{name}: off CPU");
    assert!(off[1] < (1.0 + error) * waited, "{name}: more off CPU than it waited");
    assert!(whole(&off_cpu) > 0.97 * off[1], "{name}: stacks off CPU");
    // Both tell the same of the waits.
    let both = whole(&wall) / whole(&off_cpu);
    assert!((both - 1.0).abs() < 0.08 + error, "{name}: {both:.2}");
    Ok(())
}

#[test]
fn a_c_server_burns_in_one_route_and_waits_in_the_other() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("on_off").flag("-fomit-frame-pointer").flag("-pthread").build()?;
    let command = |socket: &str| {
        let mut command = Command::new(program);
        command.arg(socket);
        Ok(command)
    };
    let routes = ["burns", "waits"];
    let expected =
        Expected { routes, start: "start_thread", in_route: 0.75, blocked: 0.7, error: 0.03 };
    experiment("C", command, &expected)
}

#[test]
fn a_python_server_burns_in_one_route_and_waits_in_the_other() -> Result<()> {
    const VERSIONS: [&str; 2] = ["3.12", "3.13"];
    let _machine = machine::alone()?;
    let found = VERSIONS
        .into_iter()
        .find_map(|version| runtimes::python_script_of(version, &["-X", "perf"], "on_off.py", &[]));
    let Some(python) = found else {
        strata_skip::skipped!("no Python with `-X perf`: {VERSIONS:?}");
        return Ok(());
    };
    let command = |socket: &str| {
        let mut python = python;
        python.arg(socket);
        Ok(python)
    };
    let routes = ["py::burns", "py::waits"];
    let expected =
        Expected { routes, start: "start_thread", in_route: 0.75, blocked: 0.7, error: 0.03 };
    experiment("Python", command, &expected)
}

#[test]
fn a_go_server_burns_in_one_route_and_waits_in_the_other() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::go("onoff", "onoff", &[])?;
    let command = |socket: &str| {
        let mut command = Command::new(program);
        // A thread for each goroutine that burns: others would wait in Go's scheduler, on no thread.
        command.arg(socket).env("GOMAXPROCS", "16");
        Ok(command)
    };
    let routes = ["main.burns", "main.waits"];
    let expected =
        Expected { routes, start: "runtime.goexit", in_route: 0.75, blocked: 0.7, error: 0.1 };
    experiment("Go", command, &expected)
}

#[test]
fn a_dotnet_server_burns_in_one_route_and_waits_in_the_other() -> Result<()> {
    let _machine = machine::alone()?;
    let dotnet = dotnet()?;
    let is_wanted =
        |version: &Version| machine::is_long() || [Version::V3_1, Version::V9].contains(version);
    for version in dotnet.versions().into_iter().filter(is_wanted) {
        let command = |socket: &str| dotnet.program(version, "OnOffServer", &[socket]);
        let routes = ["OnOffServer.Burns", "OnOffServer.Waits"];
        // `Task.Wait` begins with spinning, and yields its CPU to the five that burn by that.
        let expected =
            Expected { routes, start: "start_thread", in_route: 0.75, blocked: 0.02, error: 0.03 };
        experiment(&version.to_string(), command, &expected)?;
    }
    Ok(())
}
