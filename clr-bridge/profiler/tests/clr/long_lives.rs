//! Programs that make and drop code for longer than the log lasts.

use std::collections::BTreeMap;
use std::time::Instant;

use strata_bridge_protocol::layout::SEGMENT_SIZE;
use strata_bridge_protocol::reader::Entry;
use strata_bridge_protocol::record::Record;
use strata_bridge_protocol::status::{Loss, State};

use crate::support::*;

/// Segments that are given back before a test ends: more than a log of little that lives may have.
const GIVEN_BACK: u64 = 6;

/// What lives, by the records.
#[derive(Debug, Default, PartialEq, Eq)]
struct Living {
    /// By start: function and name.
    methods: BTreeMap<u64, (u64, String)>,
    modules: BTreeMap<u64, String>,
    types: BTreeMap<(u64, u32), String>,
    threads: BTreeMap<u64, u32>,
    domains: BTreeMap<u64, String>,
}

impl Living {
    fn of(entries: &[Entry]) -> Self {
        let mut living = Self::default();
        for entry in entries {
            match &entry.record {
                Record::Method(method) => {
                    let Some(range) = method.ranges.first() else { continue };
                    let named = (method.function, method.name.clone());
                    living.methods.insert(range.start, named);
                }
                Record::MethodUnload(gone) => drop(living.methods.remove(&gone.start)),
                Record::Module(module) => {
                    living.modules.insert(module.module, module.path.clone());
                }
                Record::ModuleUnload(gone) => {
                    living.modules.remove(&gone.module);
                    living.types.retain(|(module, _), _| *module != gone.module);
                }
                Record::Type(of) => {
                    living.types.insert((of.module, of.token), of.name.clone());
                }
                Record::Thread(thread) => {
                    living.threads.insert(thread.managed_id, thread.os_tid);
                }
                Record::ThreadEnd(gone) => drop(living.threads.remove(&gone.managed_id)),
                Record::AppDomain(domain) => {
                    living.domains.insert(domain.id, domain.name.clone());
                }
                _ => {}
            }
        }
        living
    }

    fn has(&self, name: &str) -> bool {
        self.methods.values().any(|(_, known)| known == name)
    }
}

/// Lets the program make and drop methods until so many segments have been given back in all.
/// Returns the most memory that the log took.
fn drop_methods(target: &mut Target, watcher: &mut Watcher, given_back: u64) -> u64 {
    let letters = "x".repeat(1000);
    let mut largest = 0;
    for _ in 0..200 {
        target.tell(&format!("compile 1000 {letters}"));
        target.tell("collect");
        watcher.read();
        largest = largest.max(watcher.log_memory());
        if watcher.status().oldest_segment >= given_back {
            return largest;
        }
    }
    panic!("no segments are given back: {:?}", watcher.status());
}

#[test]
fn the_log_of_a_program_that_drops_methods_stays_short_and_has_what_lives() {
    for version in versions() {
        let began = Instant::now();
        let (mut target, mut watcher) = watched(version);
        target.tell("collectible Short");
        let mut slow = Watcher::find(&target);
        slow.read();
        let largest = drop_methods(&mut target, &mut watcher, GIVEN_BACK);
        target.tell("collect");
        // One that comes late finds the same, and one that has read nothing meanwhile; once nothing is
        // made or dropped any more: the runtime compiles hot methods again, and drops code, in threads
        // of its own.
        let mut late = Watcher::find(&target);
        let mut of_late = Living::default();
        eventually("the same for all three", || {
            watcher.read();
            late.read();
            slow.read();
            of_late = Living::of(&late.entries);
            let is_same = [&watcher, &slow].iter().all(|one| Living::of(&one.entries) == of_late);
            is_same.then_some(())
        });
        assert_eq!((slow.gaps, late.gaps, watcher.gaps), (1, 0, 0), "{version}");
        for name in ["Main", "Dynamic", "Burn"] {
            assert!(of_late.has(name), "{version}: no {name}");
        }
        let status = watcher.status();
        let lost: u64 = Loss::ALL.iter().map(|loss| status.lost(*loss)).sum();
        assert_eq!(lost, 0, "{version}: {status:?}");
        println!(
            "{version}: {} records read by the first, {} by a late one; {} methods live; at most {largest} bytes, {} segments in use; {:?}",
            watcher.entries.len(),
            late.entries.len(),
            of_late.methods.len(),
            status.segments,
            began.elapsed()
        );
        assert!(late.entries.len() * 2 < watcher.entries.len(), "{version}");
        assert!(largest <= 7 * SEGMENT_SIZE as u64, "{version}: {largest} bytes");
        target.quit();
    }
}

#[test]
fn an_owner_of_an_older_version_gets_a_log_that_was_never_compacted() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        watcher.own_as_an_older_one();
        let letters = "x".repeat(1000);
        while watcher.status().segments < 7 {
            target.tell(&format!("compile 1000 {letters}"));
            watcher.read();
        }
        let status = watcher.status();
        assert_eq!((status.oldest_segment, status.state), (0, Some(State::Ready)), "{version}");
        watcher.disown();
        watcher.own();
        drop_methods(&mut target, &mut watcher, 1);
        // What was given back it would miss, so it attaches anew.
        watcher.own_as_an_older_one();
        eventually("the end of the bridge", || {
            (watcher.status().state == Some(State::Detached)).then_some(())
        });
        watcher.disown();
        drop(watcher);
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        watcher.own();
        watcher.own_as_an_older_one();
        watcher.until_enumerated();
        assert!(Living::of(&watcher.entries).has("Main"), "{version}");
        assert_eq!(watcher.status().oldest_segment, 0, "{version}");
        target.quit();
    }
}
