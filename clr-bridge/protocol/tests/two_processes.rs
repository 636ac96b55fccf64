//! Two processes, one of which may be killed or hostile. Runs as root (`/proc/PID/map_files`).

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use strata_bridge_protocol::control::{request, wish};
use strata_bridge_protocol::layout::MAIN_SIZE;
use strata_bridge_protocol::owning::{Owner, TakeError};
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{Budget, HeaderError, Reader, ReaderLosses, file};
use strata_bridge_protocol::record::{NotFound, Record};
use strata_bridge_protocol::ring::RingPlaces;
use support::{Peer, add_segments, main_files, mapped, reader};

const SECOND: u64 = 1_000_000_000;

fn main_file(peer: &Peer) -> File {
    main_files(peer.pid()).pop().expect("the peer has a main file")
}

fn ips(reader: &mut Reader<File>, now: u64) -> Vec<u64> {
    let budget = Budget { records: usize::MAX, bytes: usize::MAX };
    let poll = reader.poll(budget, now).expect("the log can be read");
    assert!(!poll.more);
    let ip = |record| match record {
        Record::NotFound(NotFound { ip }) => Some(ip),
        _ => None,
    };
    poll.entries.into_iter().filter_map(|entry| ip(entry.record)).collect()
}

#[test]
fn a_reader_follows_another_process() {
    let mut peer = Peer::start(&["write"]).expect("a writer");
    let mut reader = reader(peer.pid(), None);
    let mut another = support::reader(peer.pid(), None);
    for expected in 1..=20 {
        assert_eq!(peer.tell("append"), "Ok(())");
        assert_eq!(ips(&mut reader, 0), [expected]);
    }
    assert_eq!(reader.status().expect("the status").pid, peer.pid());
    peer.tell("append");
    peer.kill();
    assert_eq!(ips(&mut reader, 0), [21], "what was written is drained");
    assert!(ips(&mut another, 0).into_iter().eq(1..=21), "each reader reads all");
}

#[test]
fn the_bridge_sees_its_owner_come_and_be_killed() {
    let mut peer = Peer::start(&["write"]).expect("a writer");
    let path = mapped(peer.pid(), "strata-clr").pop().expect("a main file");
    assert_eq!(peer.tell("owner?"), "false");
    let mut owner = Peer::start(&["own", path.to_str().expect("text")]).expect("an owner");
    assert_eq!(peer.tell("owner?"), "true");
    // A second one gets the holder's identity.
    match Owner::take(main_file(&peer), "a test") {
        Err(TakeError::Owned { name, pid }) => {
            assert_eq!((name.as_str(), pid), ("the peer", owner.pid()));
        }
        other => panic!("{other:?}"),
    }
    owner.kill();
    assert_eq!(peer.tell("owner?"), "false");
    let next = Owner::take(main_file(&peer), "a test").expect("the owner is gone");
    assert_eq!(peer.tell("owner?"), "true");
    next.release().expect("memory");
    assert_eq!(peer.tell("owner?"), "false");
}

#[test]
fn a_bridge_whose_descriptors_the_app_closed_goes_by_the_beat() {
    let mut peer = Peer::start(&["write"]).expect("a writer");
    let mut owner = Owner::take(main_file(&peer), "a test").expect("it has no owner");
    assert_eq!(peer.tell("close descriptors"), "0");
    for _ in 0..3 {
        owner.beat().expect("memory");
        assert_eq!(peer.tell("owner?"), "true");
    }
    assert_eq!(peer.tell("owner later?"), "false", "no beat for eleven seconds");
    owner.beat().expect("memory");
    assert_eq!(peer.tell("owner?"), "true");
    assert_eq!(peer.tell("append"), "Ok(())", "the mapping is still there");
}

#[test]
fn a_forked_child_cannot_write_into_its_parents_memory() {
    let mut peer = Peer::start(&["write"]).expect("a writer");
    let mut reader = reader(peer.pid(), None);
    peer.tell("append");
    assert_eq!(peer.tell("fork"), "child 0, forked false");
    peer.tell("append");
    assert_eq!(ips(&mut reader, 0), [1, 2]);
}

#[test]
fn limits_of_the_app_are_errors_not_signals() {
    let mut peer = Peer::start(&["limited"]).expect("a process");
    let output = peer.tell("files?");
    assert!(output.contains("may not write files of 2097152 bytes"), "{output}");
    assert!(output.contains("may not write files of 4194304 bytes"), "{output}");
    assert!(output.ends_with("0 mappings left"), "{output}");
    // Records are lost, and memory is asked for again a second later.
    assert_eq!(peer.tell("memory?"), "no memory for the log, soon false, later true");
}

#[test]
fn a_record_that_was_never_finished_is_stepped_over() {
    let mut peer = Peer::start(&["stuck"]).expect("a writer");
    let mut patient = reader(peer.pid(), None);
    let mut at_the_end = reader(peer.pid(), None);
    // The process lives: what may still be finished is waited for, and so is what lies behind it.
    assert_eq!(ips(&mut patient, 0), [1]);
    assert_eq!(ips(&mut patient, SECOND), []);
    assert_eq!(peer.tell("append"), "Ok(())");
    assert_eq!(ips(&mut patient, 2 * SECOND), [4]);
    assert_eq!(ips(&mut patient, 9 * SECOND), []);
    assert_eq!(patient.losses(), ReaderLosses::default(), "it may still come");
    peer.kill();
    patient.process_ended();
    at_the_end.process_ended();
    assert_eq!(ips(&mut patient, 9 * SECOND), []);
    assert_eq!(ips(&mut at_the_end, 0), [1, 4]);
    let lost = ReaderLosses { unfinished: 1, ..ReaderLosses::default() };
    assert_eq!((patient.losses(), at_the_end.losses()), (lost, lost));
}

#[test]
fn a_writer_killed_at_any_moment_leaves_all_it_had_written() {
    let threads = 4;
    for round in 0..20 {
        let mut peer = Peer::start(&["flood", &threads.to_string()]).expect("a writer");
        let mut reader = reader(peer.pid(), None);
        let ring_file = main_file(&peer);
        let mut ring = RingReader::new(&ring_file, RingPlaces::MAIN).expect("a ring");
        std::thread::sleep(Duration::from_micros(500 + 777 * round));
        // New segments may have come, and come no more.
        add_segments(&mut reader, peer.pid());
        peer.kill();
        reader.process_ended();
        ring.process_ended();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for ip in ips(&mut reader, 0) {
            let next = seen.entry(ip >> 32).or_default();
            assert_eq!(ip & 0xffff_ffff, *next, "a thread's records have no gap");
            *next += 1;
        }
        let losses = reader.losses();
        assert!(losses.unfinished <= threads, "{losses:?}");
        assert_eq!((losses.malformed, losses.broken_segments, losses.late), (0, 0, 0));
        let mut losses = ReaderLosses::default();
        let budget = Budget { records: usize::MAX, bytes: usize::MAX };
        let events = ring.poll(&ring_file, budget, &mut losses).expect("the ring can be read");
        assert!(events.events.iter().all(|event| event.frames == [event.time >> 32; 24]));
        assert!(losses.unfinished <= threads && losses.ring_restarts == 0, "{losses:?}");
    }
}

// Files that are not what they seem.

/// Mappings of a process in whose line this stands, whatever they are of.
fn any_mapping(pid: u32, part: &str) -> PathBuf {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps can be read");
    let line = maps.lines().find(|line| line.contains(part)).expect("a mapping");
    let range = line.split(' ').next().expect("a range");
    PathBuf::from(format!("/proc/{pid}/map_files/{range}"))
}

/// The result of opening or checking a hostile process's mapping.
fn refusal(what: &str, part: &str) -> String {
    let peer = Peer::start(&["hostile", what]).expect("a hostile process");
    let opened = file::open(&any_mapping(peer.pid(), part));
    opened.and_then(|file| file::check_main(&file)).expect_err("it is refused").to_string()
}

/// The result of checking alone, had it been opened.
fn refusal_when_open(what: &str, part: &str) -> String {
    let peer = Peer::start(&["hostile", what]).expect("a hostile process");
    let path = any_mapping(peer.pid(), part);
    let file = File::options().read(true).write(true).open(path).expect("it can be opened");
    file::check_main(&file).expect_err("it is refused").to_string()
}

#[test]
fn a_file_that_can_change_its_size_is_refused() {
    for what in ["unsealed", "shrinkable", "growable", "more seals possible"] {
        let output = refusal(what, "memfd:strata-clr");
        assert!(output.starts_with("not sealed against shrinking and growing"), "{what}: {output}");
    }
    assert!(refusal("read-only", "memfd:strata-clr").starts_with("sealed against writing"));
}

#[test]
fn a_file_of_another_size_is_refused() {
    assert_eq!(refusal("short", "memfd:strata-clr"), "4096 bytes instead of 2097152");
    assert_eq!(refusal("long", "memfd:strata-clr"), "1099511627776 bytes instead of 2097152");
}

#[test]
fn a_file_that_is_no_memfd_is_refused() {
    let elsewhere = "not in the kernel's own tmpfs, where memfds are";
    let tmpfs_file = "/dev/shm/strata-abi-test";
    assert_eq!(refusal("plain file", ".plain-"), elsewhere);
    assert_eq!(refusal("tmpfs file", tmpfs_file), elsewhere);
    assert_eq!(refusal_when_open("plain file", ".plain-"), "not a file that can be sealed");
    // Such files can only be sealed against sealing. A shared mapping of zeros is one of them.
    assert!(refusal_when_open("tmpfs file", tmpfs_file).starts_with("not sealed"));
    assert!(refusal("zeros", "/dev/zero").starts_with("not sealed"));
    // By their device and name they are not even looked at.
    for what in ["plain file", "zeros", "tmpfs file"] {
        let peer = Peer::start(&["hostile", what]).expect("a hostile process");
        assert_eq!(mapped(peer.pid(), "strata-clr"), Vec::<PathBuf>::new());
    }
}

#[test]
fn huge_pages_are_refused() {
    let pool = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pool).unwrap_or_default();
    // One huge page for this test, if the kernel has any; given back below.
    let wanted = before.trim().parse::<u64>().map(|count| (count + 1).to_string());
    _ = wanted.map(|wanted| std::fs::write(pool, wanted));
    let peer = Peer::start(&["hostile", "huge pages"]);
    _ = std::fs::write(pool, before.trim());
    match peer {
        Ok(peer) => {
            let path = any_mapping(peer.pid(), "strata-clr");
            assert!(matches!(file::open(&path), Err(file::Refused::NoMemfd)));
            let file = File::options().read(true).write(true).open(path).expect("it can be opened");
            let output = file::check_main(&file).expect_err("it is refused").to_string();
            assert!(output.starts_with("not on tmpfs (file system 0x958458f6)"), "{output}");
            assert_eq!(mapped(peer.pid(), "strata-clr"), Vec::<PathBuf>::new());
        }
        Err(why) => strata_skip::skipped!("this kernel gives no huge pages ({why})"),
    }
}

#[test]
fn headers_that_lie_and_other_versions_are_distinguished() {
    assert!(refusal("newer", "memfd:strata-clr").contains("newer bridge (memory layout 2"));
    assert!(refusal("older", "memfd:strata-clr").contains("restart the process"));
    for what in ["size lie", "segment lie"] {
        let output = refusal(what, "memfd:strata-clr");
        assert_eq!(output, HeaderError::Contradiction.to_string(), "{what}");
    }
}

#[test]
fn a_lease_does_not_make_the_opener_wait() {
    let peer = match Peer::start(&["hostile", "lease"]) {
        Ok(peer) => peer,
        Err(why) => panic!("no lease on a memfd: {why}"),
    };
    let start = Instant::now();
    let path = any_mapping(peer.pid(), "memfd:strata-clr");
    let refused = file::open(&path).expect_err("it is leased");
    assert_eq!(refused.to_string(), "the process holds a lease on the file");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn holes_under_the_seals_cost_only_the_process_its_own_data() {
    let mut peer = Peer::start(&["hostile", "holes"]).expect("a hostile process");
    let mut reader = reader(peer.pid(), None);
    let mut owner = Owner::take(main_file(&peer), "a test").expect("it can be owned");
    assert_eq!(peer.tell("go"), "punching");
    let mut rounds = 0;
    let mut slowest = Duration::ZERO;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let round = Instant::now();
        reader.poll(Budget::default(), rounds * SECOND).expect("holes can be read");
        reader.context(5).expect("holes can be read");
        reader.status().expect("holes can be read");
        owner.wish(wish::JIT_EVENTS, [1; 32]).expect("holes can be written");
        _ = owner.request(&[(request::RESOLVE_IP, 1, 2)]);
        _ = owner.outcomes().expect("holes can be read").of(1);
        let mut losses = ReaderLosses::default();
        let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN).expect("holes can be read");
        let events = ring.poll(owner.file(), Budget::default(), &mut losses).expect("readable");
        owner.set_ring_tail(events.tail).expect("holes can be written");
        if rounds % 10 == 0 {
            // No process can become the owner of a file whose header is gone.
            let path = mapped(peer.pid(), "strata-clr").pop().expect("a mapping");
            _ = file::check_main(&file::open(&path).expect("it can be opened"));
            drop(owner);
            owner = Owner::take(file::open(&path).expect("opened"), "a test").expect("owned");
        }
        rounds += 1;
        slowest = slowest.max(round.elapsed());
    }
    eprintln!("{rounds} rounds, the slowest took {slowest:?}; {:?}", reader.losses());
    assert!(rounds > 10 && slowest < Duration::from_secs(1), "{rounds} rounds, {slowest:?}");
}

/// A descriptor that a child has between fork and exec would keep the lock.
#[test]
fn an_owner_that_is_dropped_has_let_go() {
    let peer = Peer::start(&["write"]).expect("a writer");
    for _ in 0..50 {
        let owner = Owner::take(main_file(&peer), "a test").expect("it has no owner");
        let copy = owner.file().try_clone().expect("a descriptor");
        drop(owner);
        let next = Owner::take(main_file(&peer), "a test").expect("it has no owner");
        next.release().expect("memory");
        drop(copy);
    }
}

/// A `write` by the process can hold its file's inode lock for ever. The owner takes none.
#[test]
fn a_process_that_locks_its_own_file_stalls_no_other() {
    let peer = match Peer::start(&["hostile", "inode lock"]) {
        Ok(peer) => peer,
        Err(why) => return strata_skip::skipped!("{why}"),
    };
    let (send, done) = std::sync::mpsc::channel();
    let pid = peer.pid();
    std::thread::spawn(move || {
        let mut reader = reader(pid, None);
        reader.poll(Budget::default(), 0).expect("the log can be read");
        let file = main_files(pid).pop().expect("a main file");
        assert!(file.as_raw_fd() > 0);
        let mut owner = Owner::take(file, "a test").expect("it can be owned");
        owner.wish(wish::JIT_EVENTS, [0; 32]).expect("it can be written");
        owner.request(&[(request::RESOLVE_IP, 1, 2)]).expect("it can be written");
        owner.set_ring_tail(5).expect("it can be written");
        owner.release().expect("it can be written");
        send.send(MAIN_SIZE).expect("the test waits");
    });
    done.recv_timeout(Duration::from_secs(10)).expect("the owner is not stalled");
}
