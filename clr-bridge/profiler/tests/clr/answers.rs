//! The bridge's answers to requests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use strata_bridge_protocol::control::{Outcome, request, wish};
use strata_bridge_protocol::field::CodeRangeRecord;
use strata_bridge_protocol::record::{MethodKind, MethodRecord, Record, Tier};
use strata_dotnet::ManagedImage;

use crate::support::*;

/// Where the code of the framework's libraries is mapped.
fn framework_code(target: &Target) -> Vec<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("maps");
    maps.lines()
        .filter(|line| {
            line.contains(" r-xp ")
                && line.contains("/Microsoft.NETCore.App/")
                && line.ends_with(".dll")
        })
        .map(range)
        .collect()
}

fn range(line: &str) -> (u64, u64) {
    let parse = |text| u64::from_str_radix(text, 16).expect("an address");
    let range = line.split(' ').next().expect("a range");
    let (start, end) = range.split_once('-').expect("a range");
    (parse(start), parse(end))
}

/// Words of the main thread's stack that point into the framework's code: mostly addresses to return
/// to.
fn callers_on_the_stack(target: &Target) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("maps");
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
    let (start, end) = range(stack);
    let mut bytes = vec![0; (end - start) as usize];
    let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("memory");
    memory.read_exact_at(&mut bytes, start).expect("the stack");
    let code = framework_code(target);
    let (words, _) = bytes.as_chunks::<8>();
    let mut found: Vec<u64> = words
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .filter(|word| code.iter().any(|(start, end)| (start..end).contains(&word)))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The bridge's answer for an address; `None` if the runtime knows no method there.
fn answer(watcher: &mut Watcher, ip: u64) -> Result<Option<MethodRecord>, Outcome> {
    match watcher.ask(request::RESOLVE_IP, ip, 0) {
        Outcome::Answered => {}
        other => return Err(other),
    }
    Ok(watcher.until("an answer", |entries| {
        entries.iter().rev().find_map(|entry| match &entry.record {
            Record::Method(method) if method.asked_ip == ip => Some(Some(method.clone())),
            Record::NotFound(answer) if answer.ip == ip => Some(None),
            _ => None,
        })
    }))
}

#[test]
fn callers_that_were_compiled_ahead_are_named_by_their_addresses() {
    for version in ["3.1", "9"] {
        let (target, mut watcher) = watched(version);
        let callers = callers_on_the_stack(&target);
        let mut names = Vec::new();
        for ip in callers {
            let Ok(Some(method)) = answer(&mut watcher, ip) else { continue };
            assert_eq!(method.kind(), Some(MethodKind::Resolved));
            assert_eq!(method.tier(), Tier::ReadyToRun, "{version}: {method:?}");
            let within = |range: &CodeRangeRecord| {
                (range.start..range.start + u64::from(range.size)).contains(&ip)
            };
            assert!(method.ranges.iter().any(within), "{version}: {method:?}");
            assert!(!method.ranges[0].code.is_empty());
            names.push(watcher.full_name(&method));
        }
        // The program waits in `Console.ReadLine`.
        let reader = |name: &String| name.starts_with("System.IO.");
        assert!(names.len() >= 4 && names.iter().any(reader), "{version}: {names:#?}");
        target.quit();
    }
}

#[test]
fn asking_about_code_that_never_ran_harms_nothing() {
    for version in ["3.1", "9"] {
        let (mut target, mut watcher) = watched(version);
        // With some methods named, the runtime is asked about what lies above them.
        for ip in callers_on_the_stack(&target) {
            answer(&mut watcher, ip).ok();
        }
        let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("memory");
        let (mut named, mut refused) = (0, 0);
        for (start, end) in framework_code(&target) {
            let step = ((end - start) / 100) | 1;
            for ip in (start + 16..end).step_by(step as usize) {
                // What could be an address to return to is one for the bridge.
                let mut before = [0; 8];
                memory.read_exact_at(&mut before, ip - 7).expect("code");
                if before.iter().any(|byte| matches!(byte, 0xe8 | 0xff)) {
                    continue;
                }
                match answer(&mut watcher, ip) {
                    Ok(Some(_)) => named += 1,
                    Ok(None) => {}
                    Err(outcome) => {
                        assert_eq!(outcome, Outcome::Failed);
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0, "{version}: {named} named, {refused} refused");
        target.tell("forms");
        target.quit();
    }
}

#[test]
fn compiled_and_dynamic_code_is_named_by_its_addresses_too() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        target.tell("dynamic Asked");
        for name in ["Burn", "Main", "Asked"] {
            let method = watcher.until(name, |entries| {
                entries.iter().find_map(|entry| match &entry.record {
                    Record::Method(method) if method.name == name => Some(method.clone()),
                    _ => None,
                })
            });
            let ip = method.ranges[0].start + 1;
            let answered = answer(&mut watcher, ip).expect("an answer").expect("a method");
            assert_eq!(answered.function, method.function, "{version} {name}");
            assert_eq!(answered.ranges, method.ranges, "{version} {name}");
        }
        assert_eq!(answer(&mut watcher, 0x10), Ok(None));
        assert_eq!(answer(&mut watcher, u64::MAX), Ok(None));
        target.quit();
    }
}

#[test]
fn a_method_has_a_map_from_its_code_to_its_il() {
    for version in versions() {
        let (target, mut watcher) = watched(version);
        let main = watcher.methods().find(|method| method.name == "Main").expect("Main").clone();
        let start = main.ranges[0].start;
        assert_eq!(watcher.ask(request::IL_MAP, start, main.function), Outcome::Answered);
        // What is no function of the runtime's, or no code of it, is not even looked at.
        assert_eq!(watcher.ask(request::IL_MAP, start, 16), Outcome::Failed);
        assert_eq!(watcher.ask(request::IL_MAP, 16, main.function), Outcome::Failed);
        let map = watcher.until("a map", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::IlMap(map) if map.function == main.function => Some(map.clone()),
                _ => None,
            })
        });
        assert_eq!(map.start, main.ranges[0].start, "{version}");
        assert!(map.entries.len() > 10, "{version}: {map:?}");
        assert!(map.entries.iter().any(|entry| entry.il == 0), "{version}: {map:?}");
        assert!(map.entries.iter().all(|entry| entry.native <= main.ranges[0].size), "{map:?}");
        target.quit();
    }
}

/// What precompiled images say of their code is what the runtime makes of it.
#[test]
fn maps_of_code_that_was_compiled_ahead_are_those_in_its_image() {
    for version in ["3.1", "9"] {
        let (target, mut watcher) = watched(version);
        let modules: Vec<_> = watcher
            .entries
            .iter()
            .filter_map(|entry| match &entry.record {
                Record::Module(module) => Some(module.clone()),
                _ => None,
            })
            .collect();
        let mut same = 0;
        for ip in callers_on_the_stack(&target) {
            let Ok(Some(method)) = answer(&mut watcher, ip) else { continue };
            let start = method.ranges[0].start;
            let module = modules.iter().find(|module| module.module == method.module).unwrap();
            if watcher.ask(request::IL_MAP, start, method.function) != Outcome::Answered {
                continue;
            }
            let map = watcher.until("a map", |entries| {
                entries.iter().find_map(|entry| match &entry.record {
                    Record::IlMap(map) if map.start == start => Some(map.clone()),
                    _ => None,
                })
            });
            let mut told: Vec<(u32, i32)> =
                map.entries.iter().map(|entry| (entry.native, entry.il)).collect();
            let file = fs::read(&module.path).expect("the image");
            let file = file.as_slice();
            let image = ManagedImage::open(&file).expect("an image");
            let rva = u32::try_from(start - module.base).expect("an address in the image");
            let (begin, mut read) = image.il_map_at_rva(rva).expect("a map in the image");
            assert_eq!(begin, rva);
            told.sort_unstable();
            read.sort_unstable();
            // The runtime leaves out calls within a statement.
            let is_known = |entry: &(u32, i32)| told.contains(entry);
            let mut begun = None;
            for entry in &read {
                assert!(is_known(entry) || begun == Some(entry.1), "{version}: {read:?} {told:?}");
                begun = Some(entry.1);
            }
            read.retain(is_known);
            assert_eq!(told, read, "{version} {}", method.name);
            same += 1;
        }
        assert!(same >= 4, "{version}: only {same} methods");
        target.quit();
    }
}

#[test]
fn made_up_ids_and_addresses_harm_nothing() {
    for version in versions() {
        let (mut target, mut watcher) = watched(version);
        let main = watcher.methods().find(|method| method.name == "Main").expect("Main").clone();
        let module = main.module;
        for number in [0, 1, 0x1000, main.function, main.ranges[0].start, module, u64::MAX] {
            assert_eq!(watcher.ask(request::IL_MAP, number, number), Outcome::Failed);
            assert_eq!(watcher.ask(request::APP_DOMAIN, number, number), Outcome::Failed);
            assert_eq!(watcher.ask(request::RESOLVE_IP, number, 0), Outcome::Answered);
            assert_eq!(watcher.ask(request::REBIND, number, number), Outcome::Unknown);
        }
        assert_eq!(target.tell("forms"), "done", "{version}");
        target.quit();
    }
}

#[test]
fn maps_come_with_every_compilation_when_they_are_wished_for() {
    for version in versions() {
        let mut target = Target::start(version, Start::default());
        attach_bridge(&target);
        let mut watcher = Watcher::find(&target);
        watcher.wish(wish::JIT_EVENTS | wish::IL_MAPS);
        watcher.until_enumerated();
        target.tell("spin 300");
        let count = |watcher: &Watcher, of_function: u64| {
            let is_map =
                |record: &Record| matches!(record, Record::IlMap(m) if m.function == of_function);
            watcher.entries.iter().filter(|entry| is_map(&entry.record)).count()
        };
        let main = watcher.methods().find(|method| method.name == "Main").expect("Main").function;
        assert_eq!(count(&watcher, main), 1, "{version}");
        target.quit();
    }
}

#[test]
fn a_hot_method_is_published_again_when_it_is_compiled_anew() {
    for version in versions() {
        let start = Start { loaded: Some(Loaded::AsMain), eager: true, ..Start::default() };
        let mut target = Target::start(version, start);
        target.tell("spin 1500");
        let mut watcher = Watcher::find(&target);
        watcher.read();
        let mut starts: Vec<u64> = watcher
            .methods()
            .filter(|method| method.name == "Step")
            .map(|method| method.ranges[0].start)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() >= 2, "{version}: {starts:x?}");
        target.quit();
    }
}

#[test]
fn code_that_takes_over_a_running_loop_is_known_as_such() {
    for version in versions() {
        if version == "3.1" {
            // On-stack replacement came with .NET 7.
            continue;
        }
        let start = Start { loaded: Some(Loaded::AsMain), eager: true, ..Start::default() };
        let mut target = Target::start(version, start);
        target.tell("osr 3000000");
        let mut watcher = Watcher::find(&target);
        let method = watcher.until("the replacement", |entries| {
            entries.iter().find_map(|entry| match &entry.record {
                Record::Method(method) if method.name == "Loop" && method.tier() == Tier::Osr => {
                    Some(method.clone())
                }
                _ => None,
            })
        });
        let range = &method.ranges[0];
        assert_eq!(range.code.len(), (range.size as usize).min(4096), "{version}");
        target.quit();
    }
}
