//! Objects that are created, unloaded and renamed while a reader is attached.

use strata_bridge_protocol::record::Record;

use crate::support::*;

#[test]
fn dynamic_methods_end_with_their_code() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        target.tell("compile 50");
        target.tell("collect");
        target.tell("collect");
        watcher.until("the end of dynamic methods", |entries| {
            let made: Vec<_> = entries
                .iter()
                .filter_map(|entry| match &entry.record {
                    Record::Method(m) if m.name.starts_with("Many") => {
                        Some((m.function, m.ranges[0].start))
                    }
                    _ => None,
                })
                .collect();
            let ended = entries
                .iter()
                .filter(|entry| {
                    matches!(&entry.record, Record::MethodUnload(m)
                        if made.contains(&(m.function, m.start)))
                })
                .count();
            (made.len() >= 50 && ended >= 40).then_some(())
        });
        target.quit();
    }
}

#[test]
fn an_assembly_that_is_collected_ends_with_its_methods() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        target.tell("collectible Short");
        let (module, function, start) = watcher.until("a method of it", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::Method(m) if m.name == "Twice" => {
                    Some((m.module, m.function, m.ranges[0].start))
                }
                _ => None,
            })
        });
        let twice = watcher.methods().find(|m| m.name == "Twice").expect("Twice").clone();
        assert_eq!(watcher.full_name(&twice), "Made.Short.Twice", "{version}");
        target.tell("collect");
        target.tell("collect");
        watcher.until("the end of the module", |entries| {
            let ends =
                |record: &Record| matches!(record, Record::ModuleUnload(m) if m.module == module);
            entries.iter().find(|entry| ends(&entry.record)).map(drop)
        });
        let ended = watcher.entries.iter().any(|entry| {
            matches!(&entry.record, Record::MethodUnload(m)
                if (m.function, m.start) == (function, start))
        });
        assert!(ended, "{version}");
        // And again, with ids that may be the same.
        target.tell("collectible Again");
        watcher.until("the next one", |entries| {
            let is = |record: &Record| matches!(record, Record::Type(t) if t.name == "Made.Again");
            entries.iter().find(|entry| is(&entry.record)).map(drop)
        });
        target.quit();
    }
}

#[test]
fn threads_come_with_their_names_and_go() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        target.tell("thread counter");
        let (id, tid) = watcher.until("the thread", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::Thread(thread) if thread.name == "counter" && thread.os_tid != 0 => {
                    Some((thread.managed_id, thread.os_tid))
                }
                _ => None,
            })
        });
        assert_ne!(tid, target.pid());
        target.tell("collect");
        watcher.until("its end", |entries| {
            let is = |record: &Record| matches!(record, Record::ThreadEnd(t) if t.managed_id == id);
            entries.iter().find(|entry| is(&entry.record)).map(drop)
        });
        // The main thread was there before, and has its slot.
        let domain =
            watcher.until("the main thread's context", |_| watcher_context(&target, target.pid()));
        let known = watcher
            .entries
            .iter()
            .any(|entry| matches!(&entry.record, Record::AppDomain(found) if found.id == domain));
        assert!(known && domain != 0, "{version}: {domain:#x}");
        target.quit();
    }
}

fn watcher_context(target: &Target, tid: u32) -> Option<u64> {
    Watcher::find(target).context(tid).map(|context| context.app_domain)
}

#[test]
fn an_application_can_say_which_service_it_is() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        let id = "12345678-9abc-def0-1234-56789abcdef0";
        target.tell(&format!("service {id} shop production 1.2"));
        let domain = watcher.until("the AppDomain", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::AppDomain(domain) if domain.service == "shop" => Some(domain.clone()),
                _ => None,
            })
        });
        assert_eq!(domain.runtime_id[..4], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!((domain.environment.as_str(), domain.version.as_str()), ("production", "1.2"));
        assert_eq!(domain.name, "clrhost", "{version}");
        target.tell("service nonsense other - 2");
        watcher.until("the last word", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::AppDomain(found) if found.service == "other" => {
                    assert_eq!(found.runtime_id, domain.runtime_id);
                    Some(())
                }
                _ => None,
            })
        });
        target.quit();
    }
}

#[test]
fn an_app_domain_keeps_its_identity_from_one_attach_to_the_next() {
    let (target, mut watcher) = watched("9");
    let identity = |watcher: &Watcher| {
        watcher.entries.iter().find_map(|entry| match &entry.record {
            Record::AppDomain(domain) if domain.name == "clrhost" => Some(domain.runtime_id),
            _ => None,
        })
    };
    let first = identity(&watcher).expect("an AppDomain");
    watcher.wish(strata_bridge_protocol::control::wish::DETACH);
    eventually("the end", || (target.footprint().memory == 0).then_some(()));
    attach_bridge(&target);
    let mut watcher = Watcher::find(&target);
    watcher.own();
    watcher.until_enumerated();
    assert_eq!(identity(&watcher), Some(first));
    target.quit();
}
