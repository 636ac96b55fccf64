//! `strata stacks`: what the threads of a process wait for, and what cannot be known of it.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use strata_tests::running::{Running, run, wait_until};
use strata_tests::{machine, places, targets};

const PATIENCE: Duration = Duration::from_secs(60);

fn stacks(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(places::strata_binary()?);
    command.arg("stacks").args(arguments);
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    println!("{}{}", ended.stdout, ended.stderr);
    assert!(ended.status.success());
    Ok(ended.stdout)
}

#[test]
fn threads_at_the_same_place_are_one_entry_with_the_time_they_wait() -> Result<()> {
    let _machine = machine::beside_others()?;
    let script = "import threading, time\n\
                  lock = threading.Lock()\n\
                  lock.acquire()\n\
                  for _ in range(5): threading.Thread(target=lock.acquire, daemon=True).start()\n\
                  print('waiting', flush=True)\n\
                  time.sleep(600)\n";
    let mut command = Command::new(places::required("python3", "python3")?);
    command.args(["-c", script]);
    let mut target = Running::from_command(command)?;
    target.wait_for_line("waiting", PATIENCE)?;
    std::thread::sleep(Duration::from_secs(2));
    let pid = target.pid().to_string();
    let text = stacks(&[&pid])?;
    let entries: Vec<&str> =
        text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert!(entries[0].starts_with("5 threads \"") && entries[0].contains(", waiting for "));
    assert_eq!(text.matches("[kernel] ").count(), 2, "kernel frames are one line of an entry");
    let threads: serde_json::Value = serde_json::from_str(&stacks(&["--json", "--pid", &pid])?)?;
    let threads = threads.as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(threads.len(), 6);
    for thread in threads {
        assert_eq!(thread["state"], "S");
        // Where the kernel provides it.
        let waited = thread["waiting_seconds"].as_f64();
        assert!(waited.is_none_or(|waited| (1.0..120.0).contains(&waited)), "{waited:?}");
    }
    Ok(())
}

#[test]
fn of_a_go_program_it_says_that_waiting_goroutines_are_not_looked_at() -> Result<()> {
    let _machine = machine::beside_others()?;
    let target = Running::start(&targets::go("deadlock", "deadlock", &[])?, &[])?;
    std::thread::sleep(Duration::from_secs(1));
    let text = stacks(&[&target.pid().to_string()])?;
    assert!(text.contains("goroutines that wait") && text.contains("kill -QUIT"));
    Ok(())
}

/// Whether a process's main thread has ended.
fn is_zombie(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('Z'))
}

#[test]
fn threads_that_are_not_shown_are_counted_by_their_reason() -> Result<()> {
    let _machine = machine::beside_others()?;
    let mut zombie = Command::new("true").spawn()?;
    let pid = zombie.id().to_string();
    wait_until("it is a zombie", PATIENCE, || is_zombie(&pid))?;
    let text = stacks(&[&pid])?;
    zombie.wait()?;
    assert_eq!(
        text,
        format!("process {pid} has ended: a zombie until its parent reads its exit status\n")
    );
    // Not where the test runs in a pid namespace of its own.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert!(
            stacks(&["2"])?.starts_with("process 2 is a kernel thread and has no user stack: ")
        );
        let mut none = Command::new(places::strata_binary()?);
        let none = run(none.args(["stacks", "--comm", "kthreadd"]))?.stderr;
        assert!(none.contains("only kernel threads have such a name"), "{none}");
    }
    let ended_main = "import ctypes, threading, time\n\
                      threading.Thread(target=lambda: time.sleep(600)).start()\n\
                      ctypes.CDLL(None).pthread_exit(0)\n";
    let mut command = Command::new(places::required("python3", "python3")?);
    command.args(["-c", ended_main]);
    let target = Running::from_command(command)?;
    let pid = target.pid().to_string();
    wait_until("its main thread has ended", PATIENCE, || is_zombie(&pid))?;
    assert!(stacks(&[&pid])?.contains("\n1 more thread has ended\n"));
    Ok(())
}

/// Of several processes each is shown under a heading of its own, with its own threads.
#[test]
fn processes_are_chosen_by_name_and_all_are_shown() -> Result<()> {
    let _machine = machine::beside_others()?;
    let sleeper = targets::c("sleeper").named("sleeper_shown").build()?;
    let other = targets::c("sleeper").named("sleeper_other").build()?;
    let shown = [Running::start(&sleeper, &["600"])?, Running::start(&sleeper, &["600"])?];
    let other = Running::start(&other, &["600"])?;
    std::thread::sleep(Duration::from_secs(1));
    let of_name = stacks(&["--comm", "sleeper_shown"])?;
    for process in &shown {
        let heading = format!("process {} (sleeper_shown): 1 thread not running", process.pid());
        assert_eq!(of_name.matches(&heading).count(), 1, "{heading}");
    }
    assert_eq!(of_name.matches("process ").count(), 2);
    assert_eq!(of_name.matches("    main  (sleeper_shown)").count(), 2);
    let threads: serde_json::Value = serde_json::from_str(&stacks(&["--all", "--json"])?)?;
    let threads = threads.as_array().map_or(&[][..], Vec::as_slice);
    for process in shown.iter().chain([&other]) {
        let own: Vec<_> = threads.iter().filter(|thread| thread["pid"] == process.pid()).collect();
        assert_eq!(own.len(), 1);
        let has = |name: &str| own[0]["frames"].to_string().contains(name);
        assert!(has("main") && has("_start"), "{}", own[0]);
    }
    Ok(())
}
