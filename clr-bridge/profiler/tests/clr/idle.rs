//! What an attached bridge costs when nothing happens, and that it leaves when its owner was killed.

use std::fs;
use std::time::{Duration, Instant};

use strata_bridge_protocol::control::request;

use super::support::*;

/// The bridge's thread, if it is there: how often it has slept, and its CPU time in nanoseconds.
fn cost(target: &Target) -> Option<(u64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).ok()?;
    let is_ours = |name: String| name.trim_end() == "strata-clr";
    let thread = tasks
        .flatten()
        .map(|task| task.path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(is_ours))?;
    let status = fs::read_to_string(thread.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    let time = fs::read_to_string(thread.join("schedstat")).ok()?;
    Some((line.trim().parse().ok()?, time.split(' ').next()?.parse().ok()?))
}

#[test]
fn an_idle_bridge_sleeps_and_answers_at_once() {
    const SETTLED: Duration = Duration::from_secs(12);
    const WATCHED: Duration = Duration::from_secs(20);
    let mut watched: Vec<_> = versions().into_iter().map(|v| (v, self::watched(v))).collect();
    std::thread::sleep(SETTLED);
    let cost_of = |target: &Target| cost(target).expect("the bridge's thread");
    let before: Vec<_> = watched.iter().map(|(_, (target, _))| cost_of(target)).collect();
    std::thread::sleep(WATCHED);
    for ((version, (target, watcher)), before) in watched.iter_mut().zip(before) {
        let after = cost_of(target);
        let (slept, busy) = (after.0 - before.0, after.1 - before.1);
        let share = busy as f64 / WATCHED.as_nanos() as f64;
        println!("{version}: {slept} wake-ups in {WATCHED:?}, {:.4} % of a core", 100.0 * share);
        assert!(slept <= 10, "{version}: {slept} wake-ups in {WATCHED:?}");
        assert!(share <= 0.0002, "{version}: {share} of a core");

        // It is woken for every question, and not looked for by the clock.
        let start = Instant::now();
        for _ in 0..20 {
            watcher.ask(request::RESOLVE_IP, 16, 0);
        }
        println!("{version}: 20 questions in {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(4), "{version}: {:?}", start.elapsed());
    }
}

#[test]
fn a_bridge_whose_owner_is_gone_leaves_by_itself_and_can_come_again() {
    for version in versions() {
        let target = Target::start(version, Start::default());
        for round in 0..2 {
            attach_bridge(&target);
            let mut watcher = Watcher::find(&target);
            watcher.own();
            watcher.until_enumerated();
            assert!(cost(&target).is_some(), "{version}: no thread");
            watcher.disown();
            let start = Instant::now();
            let what = format!("{version}: the end of a bridge without an owner, {round}");
            eventually(&what, || {
                let gone = cost(&target).is_none() && target.footprint().memory == 0;
                gone.then_some(())
            });
            println!("{version}: it left {:?} after its owner", start.elapsed());
            let files = files_of(target.pid());
            let is_ours = |file: &String| file.contains("strata-clr") || file.contains(SONAME);
            assert!(!files.iter().any(is_ours), "{version}: {files:?}");
        }
        target.quit();
    }
}

#[test]
fn a_bridge_that_the_process_has_loaded_stays_without_an_owner() {
    let start = Start { loaded: Some(Loaded::AsMain), ..Start::default() };
    let target = Target::start("9", start);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    watcher.until_enumerated();
    watcher.disown();
    std::thread::sleep(Duration::from_secs(12));
    watcher.own();
    watcher.until_enumerated();
    target.quit();
}
