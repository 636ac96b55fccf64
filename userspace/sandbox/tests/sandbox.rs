//! Workers hold no privilege, and a worker that hangs, crashes, lies or grows harms one request.
//! Needs root.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use strata_sandbox::{ChildKind, Config, Death, FileError, FileService, Locator, Reply, Request};
use support::*;

fn file(service: &mut FileService) -> std::sync::Arc<strata_sandbox::OpenFile> {
    open_host(service, "/bin/sleep").unwrap()
}

/// The worker still serves, or another does.
fn still_serves(service: &mut FileService) {
    let file = file(service);
    assert_eq!(bytes(service.call(Request::Read { file, offset: 0, length: 4 })), b"\x7fELF");
}

#[test]
fn a_worker_holds_no_privilege() {
    must_be_root();
    let mut service = service();
    let worker = bytes(service.call(custom(206, b"", &[])));
    let pid = pid_of(&service, ChildKind::Worker).unwrap();
    assert_eq!(worker, pid.to_le_bytes());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line =
            status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.split_once(':').unwrap().1.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(capabilities), 16), Ok(0), "{capabilities}");
    }
    assert_eq!(field("Uid:"), "65534 65534 65534 65534");
    assert_eq!(field("Gid:"), "65534 65534 65534 65534");
    assert_eq!(field("Groups:"), "");
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("Threads:"), "1");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for limit in [
        "Max core file size",
        "Max address space",
        "Max open files",
        "Max processes",
        "Max cpu time",
    ] {
        let line = limits.lines().find(|line| line.starts_with(limit)).unwrap();
        assert!(!line.contains("unlimited"), "{line}");
    }
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(descriptor.unwrap().path()).unwrap();
        let target = target.to_str().unwrap();
        let expected = ["socket:", "/dev/null", "/memfd:strata-exchange"];
        assert!(expected.iter().any(|start| target.starts_with(start)), "a worker holds {target}");
    }
}

#[test]
fn a_forbidden_call_kills_the_worker_and_nothing_else() {
    must_be_root();
    let mut service = service();
    // Opening a file, making a socket, mapping code, signalling init.
    for kind in [204, 209, 210, 211] {
        match service.call(custom(kind, b"", &[])) {
            Err(FileError::ChildDied(ChildKind::Worker, Death::SandboxViolation)) => {}
            other => panic!("kind {kind}: {other:?}"),
        }
        still_serves(&mut service);
    }
    let deaths = &service.statistics().deaths;
    assert_eq!(deaths.get(&(ChildKind::Worker, Death::SandboxViolation)), Some(&4));
}

#[test]
fn a_crash_a_hang_and_a_full_memory_cost_their_own_request_only() {
    must_be_root();
    let config =
        Config { read_timeout: Duration::from_secs(3), worker_memory: 256 << 20, ..config() };
    let mut service = FileService::new(config).unwrap();
    let file = file(&mut service);
    let read = |offset| Request::Read { file: file.clone(), offset, length: 4 };
    let outcomes = service.call_all(vec![
        read(0),
        custom(201, b"", &[]),
        read(0),
        custom(203, b"", &[]),
        read(0),
        custom(200, b"", &[]),
        read(0),
    ]);
    for index in [0, 2, 4, 6] {
        assert!(
            matches!(&outcomes[index], Ok(Reply::Bytes(bytes)) if bytes == b"\x7fELF"),
            "{:?}",
            outcomes[index]
        );
    }
    let died = |outcome: &Result<Reply, FileError>| match outcome {
        Err(FileError::ChildDied(ChildKind::Worker, death)) => *death,
        other => panic!("{other:?}"),
    };
    assert_eq!(died(&outcomes[1]), Death::OutOfMemory, "an abort");
    assert_eq!(died(&outcomes[3]), Death::OutOfMemory);
    assert!(
        matches!(outcomes[5], Err(FileError::TimedOut(ChildKind::Worker))),
        "{:?}",
        outcomes[5]
    );
}

#[test]
fn a_panic_is_contained_and_reported() {
    must_be_root();
    let mut service = service();
    let before = bytes(service.call(custom(206, b"", &[])));
    match service.call(custom(202, b"", &[])) {
        Err(FileError::Panicked(message)) => {
            assert!(message.contains("a fault of the parser"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bytes(service.call(custom(206, b"", &[]))), before, "the same worker goes on");
    assert_eq!(service.statistics().panics, 1);
}

#[test]
fn a_worker_that_talks_nonsense_is_replaced() {
    must_be_root();
    let mut service = service();
    match service.call(custom(212, b"", &[])) {
        Err(FileError::ChildDied(ChildKind::Worker, Death::BadMessage)) => {}
        other => panic!("{other:?}"),
    }
    still_serves(&mut service);
}

#[test]
fn a_file_that_failed_is_left_alone_and_others_are_not() {
    must_be_root();
    let mut service = service();
    let bad = file(&mut service);
    let good = open_host(&mut service, "/bin/cat").unwrap();
    assert!(matches!(service.call(custom(201, b"", &[&bad])), Err(FileError::ChildDied(..))));
    assert!(matches!(service.call(custom(201, b"", &[&bad])), Err(FileError::FailedBefore(_))));
    assert_eq!(service.statistics().deaths.values().sum::<u64>(), 1);
    // Another kind of work on it, and the same kind on another file.
    still_serves(&mut service);
    assert!(matches!(service.call(custom(201, b"", &[&good])), Err(FileError::ChildDied(..))));
}

#[test]
fn the_slow_files_of_one_process_hold_up_no_other_process() {
    must_be_root();
    let mut service = service();
    let program = Path::new("/bin/sleep");
    let [slow, other] = [Sleeper::start(program), Sleeper::start(program)].map(|sleeper| {
        let (start, end) = sleeper.mapping("/sleep");
        let file = open(&mut service, Locator::Mapped { process: sleeper.process(), start, end });
        (sleeper, file.unwrap())
    });
    let of_slow: Vec<_> = (0..4).map(|_| service.submit(custom(208, b"", &[&slow.1]))).collect();
    let of_other = service.submit(Request::Read { file: other.1.clone(), offset: 0, length: 4 });
    let mut order = Vec::new();
    while order.len() < 5 {
        service.wait();
        for (id, outcome) in service.drain() {
            assert!(matches!(outcome, Ok(Reply::Bytes(_))), "{outcome:?}");
            order.push(id);
        }
    }
    let before = order.iter().take_while(|id| **id != of_other).count();
    assert!(before <= 1, "{before} slow files came first: {order:?}");
    assert!(of_slow.iter().all(|id| order.contains(id)));
}

#[test]
fn a_worker_that_grew_leaves_and_gives_its_memory_back() {
    must_be_root();
    let mut service = service();
    let first = bytes(service.call(custom(206, b"", &[])));
    bytes(service.call(custom(213, &[20], &[])));
    assert_eq!(bytes(service.call(custom(206, b"", &[]))), first, "20 MiB are no reason to leave");
    bytes(service.call(custom(213, &[70], &[])));
    assert_ne!(bytes(service.call(custom(206, b"", &[]))), first, "90 MiB are");
    assert!(service.statistics().peak_worker_memory_bytes > 90 << 20);
    assert!(service.statistics().deaths.is_empty());
}

#[test]
fn a_large_answer_arrives_whole() {
    must_be_root();
    let mut service = service();
    let answer = bytes(service.call(custom(205, &[60], &[])));
    assert_eq!(answer.len(), 60 << 20);
    assert!(answer.iter().all(|byte| *byte == 7));
}

#[test]
fn an_answer_beyond_the_limit_is_refused_by_the_worker_already() {
    must_be_root();
    let mut service = FileService::new(Config { reply_bytes: 2 << 20, ..config() }).unwrap();
    assert_eq!(bytes(service.call(custom(205, &[2], &[]))).len(), 2 << 20);
    assert!(matches!(service.call(custom(205, &[3], &[])), Err(FileError::ReplyTooLarge(_))));
}

#[test]
fn a_request_longer_than_a_message_arrives_whole() {
    must_be_root();
    let mut service = service();
    for length in [0, 1, 65_000, 65_536, 5_000_000] {
        let body: Vec<u8> = (0..length).map(|i| (i % 253) as u8).collect();
        assert!(bytes(service.call(custom(207, &body, &[]))) == body, "{length}");
    }
}

#[test]
fn idle_children_end_and_come_back_when_needed() {
    must_be_root();
    let mut service =
        FileService::new(Config { idle: Duration::from_millis(50), ..config() }).unwrap();
    still_serves(&mut service);
    assert!(!service.children().is_empty());
    let until = Instant::now() + Duration::from_secs(10);
    while !service.children().is_empty() {
        assert!(Instant::now() < until, "{:?}", service.children());
        service.wait();
        assert!(service.drain().is_empty());
    }
    assert_eq!(service.next_deadline(), None, "an idle service wants nothing");
    assert!(service.statistics().ended_processor_time > Duration::ZERO);
    still_serves(&mut service);
    assert!(service.statistics().deaths.is_empty());
}

#[test]
fn a_second_worker_helps_while_the_first_is_held_up() {
    must_be_root();
    let mut service = service();
    let file = file(&mut service);
    let slow = service.submit(custom(208, b"", &[]));
    let quick = service.submit(Request::Read { file, offset: 0, length: 4 });
    let mut order = Vec::new();
    while order.len() < 2 {
        service.wait();
        order.extend(service.drain().into_iter().map(|(id, outcome)| {
            outcome.unwrap();
            id
        }));
    }
    assert_eq!(order, [quick, slow]);
}

#[test]
fn an_executable_that_does_not_serve_fails_requests_instead_of_spinning() {
    must_be_root();
    let mut config = config();
    config.command.opener = vec!["internal-broken".into()];
    config.command.worker = vec!["internal-broken".into()];
    let mut service = FileService::new(config).unwrap();
    assert!(open_host(&mut service, "/bin/sleep").is_err());
    assert!(service.call(custom(207, b"x", &[])).is_err());
    let mut config = support::config();
    config.command.program = "/does/not/exist".into();
    let mut service = FileService::new(config).unwrap();
    assert!(matches!(
        open_host(&mut service, "/bin/sleep"),
        Err(FileError::Spawn(ChildKind::Opener, _))
    ));
    assert!(matches!(
        service.call(custom(207, b"x", &[])),
        Err(FileError::Spawn(ChildKind::Worker, _))
    ));
}
