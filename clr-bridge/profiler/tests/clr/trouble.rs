//! The app is unharmed whatever happens to the bridge.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use strata_bridge_protocol::reader::Entry;
use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::Loss;

use crate::support::*;

/// E_OUTOFMEMORY
const NO_MEMORY: u32 = 0x8007_000e;
const MEGABYTE: u64 = 1 << 20;

fn limit(target: &Target, resource: libc::__rlimit_resource_t, bytes: u64) {
    let limits = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure lives during the call, and nothing is asked for.
    let set =
        unsafe { libc::prlimit(target.pid() as i32, resource, &limits, std::ptr::null_mut()) };
    assert_eq!(set, 0, "prlimit");
}

/// How many bytes of addresses a program has mapped.
fn address_space(target: &Target) -> u64 {
    let sizes = fs::read_to_string(format!("/proc/{}/statm", target.pid())).expect("its sizes");
    let pages: u64 = sizes.split(' ').next().and_then(|size| size.parse().ok()).expect("a size");
    pages * 4096
}

#[test]
fn a_program_starts_when_there_is_no_memory_for_the_bridge() {
    for version in versions() {
        let start = Start {
            loaded: Some(Loaded::AsMain),
            eager: true,
            file_size_limit: Some(MEGABYTE),
            ..Start::default()
        };
        let mut target = Target::start(version, start);
        assert_eq!(target.footprint().memory, 0, "{version}");
        assert_eq!(target.tell("forms"), "done");
        target.quit();
    }
}

#[test]
fn an_attach_without_memory_is_refused_and_the_next_one_works() {
    for version in versions() {
        let mut target = Target::start(version, Start::default());
        // A runtime that starts a thread or compiles a method without memory ends by itself.
        target.until_it_burns();
        let path = library().to_str().expect("a path of text");
        for resource in [libc::RLIMIT_FSIZE, libc::RLIMIT_AS] {
            // A runtime that runs needs a little memory, the library and its thread more.
            let most = match resource {
                libc::RLIMIT_AS => address_space(&target) + MEGABYTE / 2,
                _ => MEGABYTE,
            };
            limit(&target, resource, most);
            let result = attach(target.pid(), path);
            limit(&target, resource, libc::RLIM_INFINITY);
            // Without address space the library itself may not load.
            assert_ne!(result, 0, "{version}");
            if resource == libc::RLIMIT_FSIZE {
                assert_eq!(result, NO_MEMORY, "{version}: {result:#x}");
            }
            assert_eq!(target.footprint().memory, 0);
        }
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        watcher.own();
        watcher.until_enumerated();
        target.tell("forms");
        target.quit();
    }
}

#[test]
fn a_log_that_cannot_grow_loses_records_and_nothing_else() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        limit(&target, libc::RLIMIT_FSIZE, MEGABYTE);
        target.tell("compile 45000");
        let status = watcher.status();
        assert_eq!(status.segments, 1, "{version}");
        assert!(status.lost(Loss::LogMemory) > 0, "{version}: {status:?}");
        limit(&target, libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);
        // It is tried again after a second.
        watcher.until("a record after the trouble", |entries| {
            target.tell("dynamic After");
            let is = |record: &Record| matches!(record, Record::Method(m) if m.name == "After");
            entries.iter().find(|entry| is(&entry.record)).map(drop)
        });
        target.quit();
    }
}

#[test]
fn a_module_and_the_end_of_an_enumeration_that_were_lost_are_reported_later() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        let is_of = |entry: &Entry, name: &str| match &entry.record {
            Record::Module(module) => module.assembly == name,
            _ => false,
        };
        limit(&target, libc::RLIMIT_FSIZE, MEGABYTE);
        target.tell("compile 45000");
        // The ends of these methods fill what is left of the log, and so do the first of these modules.
        target.tell("collect");
        let names = (0..100).map(|number| format!("Made{number}"));
        let lost = names.into_iter().find(|name| {
            target.tell(&format!("collectible {name}"));
            watcher.disown();
            watcher.own();
            sleep(Duration::from_millis(500));
            watcher.read();
            !watcher.entries.iter().any(|entry| is_of(entry, name))
        });
        let lost = lost.unwrap_or_else(|| panic!("{version}: the log has room for all"));
        limit(&target, libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);
        watcher.until_enumerated();
        eventually("a log that grows again", || {
            target.tell("dynamic After");
            (watcher.status().segments > 1).then_some(())
        });
        // The enumeration for the next owner finds the module.
        watcher.disown();
        watcher.own();
        watcher.until("the module", |entries| {
            entries.iter().any(|entry| is_of(entry, &lost)).then_some(())
        });
        target.quit();
    }
}

#[test]
fn a_forked_child_writes_nothing() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        assert_eq!(target.tell("fork"), "child ended with 7", "{version}");
        target.tell("dynamic InParent");
        watcher.until("the parent's method", |entries| {
            let is = |record: &Record| matches!(record, Record::Method(m) if m.name == "InParent");
            entries.iter().find(|entry| is(&entry.record)).map(drop)
        });
        assert!(!watcher.methods().any(|method| method.name == "InChild"), "{version}");
        target.quit();
    }
}

#[test]
fn the_bridge_takes_no_signal_and_handles_none() {
    for version in versions() {
        let target = Target::start(version, Start::default());
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a field");
            let number = line.rsplit('\t').next().expect("a number").trim();
            u64::from_str_radix(number, 16).expect("a number")
        };
        let of_process = || fs::read_to_string(format!("/proc/{}/status", target.pid()));
        let before = field(&of_process().expect("a status"), "SigCgt:");
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        watcher.own();
        watcher.until_enumerated();
        assert_eq!(field(&of_process().expect("a status"), "SigCgt:"), before, "{version}");
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).expect("threads");
        let blocked: Vec<u64> = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
            .filter(|status| status.starts_with("Name:\tstrata-clr\n"))
            .map(|status| field(&status, "SigBlk:"))
            .collect();
        // All but KILL, STOP, and the two that the C library keeps to itself (32 and 33). The runtime
        // lets its own (34) through on every thread that calls it (PAL, `UnmaskActivationSignal`).
        let all = !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
        let own = 1 << 33;
        assert!(matches!(blocked[..], [mask] if mask | own == all), "{version}: {blocked:x?}");
        target.quit();
    }
}
