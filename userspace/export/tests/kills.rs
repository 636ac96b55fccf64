//! `kill -9` at random moments, in the middle of sending and of writing to the spool: afterwards
//! every batch that was kept arrives, and twice only where an answer was lost.
//!
//! The one that is killed is this test binary, run again as `a_child_that_delivers`. It names a
//! batch on its output as soon as it is on disk, or delivered.

mod queue_support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_support::server::{Act, Server, ok};
use queue_support::{batch, health, plan, repeated};
use strata_export::Secret;
use strata_export::{Clock, Queues};
use tokio::sync::oneshot;
use uuid::Uuid;

const SPOOL: &str = "STRATA_TEST_SPOOL";
const SERVER: &str = "STRATA_TEST_SERVER";
/// Bytes of a batch. None are given if there is no such variable.
const LENGTH: &str = "STRATA_TEST_LENGTH";

/// The child's number, which it sends in every request.
const NUMBER: &str = "STRATA_TEST_NUMBER";

const CONCURRENCY: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other tests here, which kill it"]
async fn a_child_that_delivers() {
    let spool = std::env::var(SPOOL).unwrap();
    let length = std::env::var(LENGTH).ok().map(|text| text.parse::<usize>().unwrap());
    let mut plan = plan(&std::env::var(SERVER).unwrap(), Path::new(&spool));
    plan.destination.headers =
        vec![("x-child".to_owned(), Secret::new(std::env::var(NUMBER).unwrap()))];
    plan.concurrency = CONCURRENCY;
    plan.spool_size = 4 << 30;
    plan.waits.first = Duration::from_millis(20);
    plan.waits.longest = Duration::from_millis(100);
    let delivery = Queues::start(vec![plan], Clock::real()).await.unwrap();
    say(&format!("corrupt {}", health(&delivery).drops.corrupt.batches));
    loop {
        let Some(length) = length else {
            let health = health(&delivery);
            if health.oldest.is_none() && health.spooled == 0 {
                say(&format!("dropped {}", health.drops.batches()));
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let given: Vec<Uuid> = (0..4)
            .map(|_| {
                let batch = batch(Clock::real().nanos(), length);
                let id = batch.id;
                delivery.enqueue("exporter", batch).unwrap();
                id
            })
            .collect();
        while health(&delivery).queued > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(health(&delivery).drops.memory_full.batches, 0);
        for id in given {
            say(&format!("kept {id}"));
        }
        // Not all at once: a spool of gigabytes would only make the test long.
        while health(&delivery).spooled > 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// On a line of its own; the test harness writes there too.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn child(server: &Server, spool: &Path, number: usize, length: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "a_child_that_delivers", "--ignored", "--nocapture"])
        .env(SPOOL, spool)
        .env(SERVER, server.url())
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped());
    if let Some(length) = length {
        command.env(LENGTH, length.to_string());
    }
    command.spawn().unwrap()
}

/// The children's messages.
#[derive(Debug, Default)]
struct Reported {
    kept: BTreeSet<Uuid>,
    corrupt: u64,
    /// Of the last child.
    last_corrupt: u64,
    dropped: Option<u64>,
}

impl Reported {
    /// Everything up to the end of the child's output. A line that the kill cut short is none.
    fn listen(&mut self, child: &mut Child, begun: oneshot::Sender<()>) {
        let mut begun = Some(begun);
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let Ok(line) = line else { break };
            match line.split_once(' ') {
                Some(("kept", id)) => self.kept.extend(Uuid::parse_str(id).ok()),
                Some(("corrupt", count)) => {
                    self.last_corrupt = count.parse().unwrap();
                    self.corrupt += self.last_corrupt;
                    // It is not waited for in the last round.
                    begun.take().map(|begun| begun.send(()));
                }
                Some(("dropped", count)) => self.dropped = Some(count.parse().unwrap()),
                _ => {}
            }
        }
    }
}

/// How often a child is killed: more in the long run.
fn rounds() -> usize {
    if std::env::var_os("STRATA_TEST_LONG").is_some() { 400 } else { 40 }
}

/// Runs a child for a random time after it has begun to work, and kills it.
async fn round(
    server: &Server,
    spool: &Path,
    number: usize,
    length: usize,
    reported: &mut Reported,
) {
    let mut child = child(server, spool, number, Some(length));
    let pid = child.id();
    let mut listening = std::mem::take(reported);
    let (begun, has_begun) = oneshot::channel();
    let listener = tokio::task::spawn_blocking(move || {
        listening.listen(&mut child, begun);
        child.wait().unwrap();
        listening
    });
    // Some are killed while they look at what the one before them left.
    if fastrand::u32(0..8) > 0 {
        has_begun.await.unwrap();
    }
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..100_000))).await;
    kill(pid);
    *reported = listener.await.unwrap();
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Lets a last child send what is left, and judges.
async fn judge(server: &Server, spool: &Path, mut reported: Reported, rounds: usize) {
    server.act(|_, _| ok());
    let mut last = child(server, spool, rounds, None);
    let reported = tokio::task::spawn_blocking(move || {
        reported.listen(&mut last, oneshot::channel().0);
        assert!(last.wait().unwrap().success());
        reported
    });
    let reported = tokio::time::timeout(Duration::from_secs(120), reported).await.unwrap().unwrap();
    // A kill tears at most one write, which was not confirmed yet. Nothing else is missing.
    assert!(reported.corrupt <= rounds as u64);
    assert_eq!(reported.dropped, Some(reported.last_corrupt));
    let mut arrivals: BTreeMap<Uuid, Vec<(usize, bool)>> = BTreeMap::new();
    for arrival in server.arrivals() {
        // A body that came is whole: it repeats its id.
        assert!(arrival.body == repeated(arrival.id, arrival.body.len()));
        arrivals.entry(arrival.id).or_default().push((arrival.child, arrival.is_taken));
    }
    let lost: Vec<_> = reported.kept.iter().filter(|id| !arrivals.contains_key(id)).collect();
    assert!(lost.is_empty(), "{} of {} are lost", lost.len(), reported.kept.len());
    let mut answers_lost_in = BTreeMap::new();
    for (id, times) in &arrivals {
        for pair in times.windows(2) {
            let [(first, is_taken), (second, _)] = pair else { continue };
            // Answered, and sent again by the same process: never.
            assert!(!is_taken || first < second, "{id} came again: {times:?}");
            if *is_taken {
                *answers_lost_in.entry(*first).or_insert(0) += 1;
            }
        }
    }
    // Answers that a kill can take: those of the requests under way.
    for (child, count) in &answers_lost_in {
        assert!(*count <= CONCURRENCY, "{count} duplicates of child {child}");
    }
    let came: usize = arrivals.values().map(Vec::len).sum();
    println!(
        "{rounds} kills: {} batches kept, {} arrived, {} twice or more, {} torn writes",
        reported.kept.len(),
        arrivals.len(),
        came - arrivals.len(),
        reported.corrupt
    );
    assert!(!reported.kept.is_empty());
}

#[tokio::test]
async fn a_kill_in_the_middle_of_sending_loses_nothing() {
    let (server, folder) = (Server::up().await, tempfile::tempdir().unwrap());
    server.act(|_, _| match fastrand::u32(0..20) {
        0 => Act::HangUp,
        1 => Act::Answer(503, Vec::new()),
        _ => Act::Late(Duration::from_micros(fastrand::u64(0..8000)), 200),
    });
    let mut reported = Reported::default();
    let rounds = rounds();
    for number in 0..rounds {
        round(&server, folder.path(), number, 2_000, &mut reported).await;
    }
    judge(&server, folder.path(), reported, rounds).await;
}

#[tokio::test]
async fn a_kill_in_the_middle_of_writing_loses_nothing_that_was_kept() {
    let (server, folder) = (Server::down().await, tempfile::tempdir().unwrap());
    let mut reported = Reported::default();
    let rounds = rounds();
    for number in 0..rounds {
        round(&server, folder.path(), number, 1_000_000, &mut reported).await;
    }
    server.rise().await;
    judge(&server, folder.path(), reported, rounds).await;
}
