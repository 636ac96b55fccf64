//! When a process's metadata is read, and which of it is trusted.

use super::*;
use std::sync::{Mutex, mpsc};
use strata_agent::blocking_reader::{BlockingReader, Patience};
use strata_agent::kernel::perf_record::Event;

/// The time until a hanging read is given up.
const PATIENCE: Patience = Patience { limit: Duration::from_millis(500), threads: 4, of_one: 4 };

fn configuration(text: &str) -> Configuration {
    let inputs = strata_config::Inputs { file: Some(("test", text)), ..Default::default() };
    strata_config::load(&inputs).expect("a fine configuration").configuration
}

fn table_of(pids: &[u32]) -> ProcessTable {
    let mut table = ProcessTable::default();
    for pid in pids {
        table.insert_unknown(*pid, "program");
    }
    table
}

fn image_of(table: &ProcessTable, pid: u32) -> ImageId {
    table.get(pid).expect("it is there").image
}

/// Waits for all that was asked, however long a busy machine takes.
fn read_all(metadata: &mut ProcessMetadata, table: &ProcessTable) {
    while !metadata.asked.is_empty() {
        metadata.settle(table);
    }
}

fn seen_of(metadata: &ProcessMetadata, image: ImageId) -> &Seen {
    &metadata.kept.get(&image).expect("it was met").seen
}

#[test]
fn a_process_that_cannot_be_read_delays_no_other_and_is_not_tried_again() {
    let (_let_go, hang) = mpsc::channel::<()>();
    let hang = Mutex::new(hang);
    let reader = BlockingReader::new("test-metadata", PATIENCE, move |question: Question| {
        if question.pid == 7 {
            let _ = hang.lock().expect("no thread panics while it holds it").recv();
        }
        Seen { exe: Some(format!("/{}", question.wanted.variables.len())), ..Seen::default() }
    });
    let (table, plain) = (table_of(&[7, 8]), configuration(""));
    let (hangs, fine) = (image_of(&table, 7), image_of(&table, 8));
    let mut metadata = ProcessMetadata::with_reader(&plain, 10, reader);
    metadata.meet(&table, hangs, 7);
    metadata.meet(&table, fine, 8);
    assert!(!metadata.is_read(hangs), "it is on its way");
    while !metadata.is_read(fine) {
        metadata.settle(&table);
    }
    assert!(metadata.is_read(hangs), "nothing more comes");
    assert_eq!(seen_of(&metadata, fine).exe.as_deref(), Some("/0"));
    assert_eq!(seen_of(&metadata, hangs).exe, None);
    assert_eq!(metadata.readings(), Figures { given_up: 1, refused: 0, stuck: 1 });
    // A rule asks for one more variable.
    let rule = "[[rule]]\nmatch.env.TEAM = \"a\"\nservice = \"b\"\n";
    metadata.configure(&configuration(rule), &table);
    while !metadata.is_read(fine) {
        metadata.settle(&table);
    }
    assert_eq!(seen_of(&metadata, fine).exe.as_deref(), Some("/1"));
    assert_eq!(metadata.readings(), Figures { given_up: 1, refused: 0, stuck: 1 });
}

fn exec(pid: u32, name: &str) -> Event {
    Event::Comm { pid, tid: pid, name: name.into(), exec: true }
}

/// Answers with given contents of `/proc`.
fn reader_of(says: &Arc<Mutex<Seen>>) -> Reader {
    let says = says.clone();
    BlockingReader::new("test-metadata", PATIENCE, move |_| {
        says.lock().expect("no thread panics while it holds it").clone()
    })
}

fn seen(at: u64, exe: &str, environment: &str) -> Seen {
    let environment = environment.as_bytes().to_vec();
    let is_bare = environment.is_empty();
    Seen { at, exe: Some(exe.into()), is_bare, environment, ..Seen::default() }
}

#[test]
fn what_was_read_after_an_exec_is_not_said_of_what_was_before() {
    let says = Arc::new(Mutex::new(seen(20, "/bin/new", "DD_SERVICE=new")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let mut table = table_of(&[7, 8]);
    let (before, other) = (image_of(&table, 7), image_of(&table, 8));
    metadata.meet(&table, before, 7);
    metadata.meet(&table, other, 8);
    read_all(&mut metadata, &table);
    // The events arrive later than the changes that they report: one before the reading, one after
    // it.
    table.apply(&exec(7, "new"), 15);
    table.apply(&exec(8, "next"), 25);
    for image in [before, other] {
        metadata.correct(&table, image);
    }
    assert_eq!(seen_of(&metadata, before).exe, None);
    assert!(seen_of(&metadata, before).environment.is_empty());
    assert_eq!(seen_of(&metadata, other).exe.as_deref(), Some("/bin/new"));
    let after = image_of(&table, 7);
    metadata.meet(&table, after, 7);
    read_all(&mut metadata, &table);
    metadata.correct(&table, after);
    assert_eq!(seen_of(&metadata, after).exe.as_deref(), Some("/bin/new"));
}

#[test]
fn what_is_known_of_a_process_holds_where_it_ends_before_it_is_read_again() {
    let says = Arc::new(Mutex::new(seen(10, "/bin/ends", "DD_SERVICE=ends")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let mut table = table_of(&[7, 8]);
    let (ends, stays) = (image_of(&table, 7), image_of(&table, 8));
    metadata.meet(&table, ends, 7);
    metadata.meet(&table, stays, 8);
    assert!(metadata.is_being_read(ends), "a profile waits for that");
    read_all(&mut metadata, &table);
    assert!(!metadata.is_being_read(ends));
    *says.lock().expect("no thread panics while it holds it") = Seen::default();
    let rule = "[[rule]]\nmatch.env.TEAM = \"a\"\nservice = \"b\"\n";
    metadata.configure(&configuration(rule), &table);
    table.end(7);
    read_all(&mut metadata, &table);
    assert_eq!(seen_of(&metadata, ends).environment, b"DD_SERVICE=ends");
    assert_eq!(seen_of(&metadata, stays).exe, None, "not even root may read it any more");
}

#[test]
fn a_process_read_in_the_middle_of_an_exec_is_read_again() {
    // The file is the new one's already, and its environment is not there yet.
    let says = Arc::new(Mutex::new(seen(10, "/bin/new", "")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let mut table = table_of(&[7, 8]);
    let (before, stays) = (image_of(&table, 7), image_of(&table, 8));
    metadata.meet(&table, before, 7);
    metadata.meet(&table, stays, 8);
    read_all(&mut metadata, &table);
    assert!(!metadata.is_read(before) && !metadata.is_read(stays));
    // One of them was on its way into it, the other one is it.
    table.apply(&exec(7, "new"), 11);
    metadata.correct(&table, before);
    assert_eq!(seen_of(&metadata, before).exe, None);
    *says.lock().expect("no thread panics while it holds it") =
        seen(30, "/bin/new", "DD_SERVICE=new");
    while !metadata.is_read(stays) {
        metadata.settle(&table);
    }
    assert_eq!(seen_of(&metadata, stays).environment, b"DD_SERVICE=new");
    assert!(metadata.is_read(before), "it has nothing left to be read");
}

#[test]
fn a_process_without_an_environment_is_let_be_in_the_end() {
    let says = Arc::new(Mutex::new(seen(10, "/bin/bare", "")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let table = table_of(&[7]);
    let image = image_of(&table, 7);
    metadata.meet(&table, image, 7);
    while !metadata.is_read(image) {
        metadata.settle(&table);
        // No wait takes seconds.
        if let Some(process) = metadata.kept.get_mut(&image) {
            process.again = process.again.map(|_| Instant::now());
        }
    }
    let process = metadata.kept.get(&image).expect("it was met");
    assert_eq!((process.readings, process.looks), (4, 3));
    assert_eq!(process.seen.exe.as_deref(), Some("/bin/bare"));
}

#[test]
fn a_title_in_the_place_of_an_environment_takes_no_variables() {
    let says = Arc::new(Mutex::new(seen(10, "/bin/served", "DD_SERVICE=shop")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let mut table = table_of(&[7, 8]);
    let (first, other) = (image_of(&table, 7), image_of(&table, 8));
    metadata.meet(&table, first, 7);
    read_all(&mut metadata, &table);
    let title = Seen { is_overwritten: true, is_bare: false, ..seen(20, "/bin/served", "") };
    *says.lock().expect("no thread panics while it holds it") = title;
    // All are read again.
    let rule = "[[rule]]\nmatch.env.TEAM = \"a\"\nservice = \"b\"\n";
    metadata.configure(&configuration(rule), &table);
    table.apply(&Event::Fork { pid: 9, parent: 7, tid: 9 }, 30);
    let forked = image_of(&table, 9);
    metadata.meet(&table, forked, 9);
    metadata.meet(&table, other, 8);
    read_all(&mut metadata, &table);
    for (image, environment) in
        [(first, "DD_SERVICE=shop"), (forked, "DD_SERVICE=shop"), (other, "")]
    {
        let kept = &seen_of(&metadata, image).environment;
        assert_eq!(String::from_utf8_lossy(kept), environment);
    }
}

#[test]
fn a_process_that_has_ended_is_not_read_and_not_waited_for() {
    let says = Arc::new(Mutex::new(seen(10, "/bin/bare", "")));
    let mut metadata = ProcessMetadata::with_reader(&configuration(""), 10, reader_of(&says));
    let mut table = table_of(&[7, 8]);
    let (first, second) = (image_of(&table, 7), image_of(&table, 8));
    metadata.meet(&table, first, 7);
    for pid in [7, 8] {
        table.apply(&Event::Exit { pid, tid: pid }, 20);
    }
    metadata.meet(&table, second, 8);
    assert!(metadata.is_read(second) && metadata.asked.len() == 1);
    read_all(&mut metadata, &table);
    assert!(metadata.is_read(first) && metadata.again.is_empty());
    assert_eq!(seen_of(&metadata, first).exe.as_deref(), Some("/bin/bare"));
}

#[test]
fn one_users_environments_leave_room_for_those_of_others() {
    const LARGE: usize = 16 << 10;
    let mut kept = Environments::default();
    let flood = (0..600).filter(|_| kept.replace(1000, 0, LARGE)).count();
    assert_eq!(flood * LARGE, Environments::MOST_OF_ONE);
    assert!(kept.replace(1001, 0, LARGE) && kept.replace(ROOT, 0, LARGE));
    // What is read again takes the place of what it was.
    assert!(kept.replace(1000, LARGE, LARGE) && !kept.replace(1000, 0, 1));
    let others = (2000..2600).filter(|user| kept.replace(*user, 0, LARGE)).count();
    assert_eq!((flood + 2 + others) * LARGE, Environments::MOST);
    let again = Environments::of([(7, 10), (7, 5), (8, 0)].into_iter());
    assert_eq!((again.all, again.by_owner.len()), (15, 1));
}

#[test]
fn the_host_is_called_what_the_configuration_says_else_by_its_name() {
    assert_eq!(host_of(&configuration("host = \"node-1\"\n")), "node-1");
    assert_eq!(host_of(&configuration("")), host::name());
}

/// Runtimes that know one container, of a user; and whether they have answered for the others.
struct Runtimes {
    owner: u32,
    have_answered: bool,
}

const KNOWN: &str = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";

impl Containers for Runtimes {
    fn of(&self, id: &str) -> Option<Known> {
        (id == KNOWN).then(|| Known { owner: self.owner, ..Known::default() })
    }

    fn is_unknown(&self, id: &str) -> bool {
        id != KNOWN && self.have_answered
    }
}

#[test]
fn a_users_groups_have_the_containers_of_that_user_only() {
    use strata_agent::processes::container::parse;
    let host = |id: &str| parse(&format!("0::/system.slice/docker-{id}.scope\n"));
    let user = |id: &str| parse(&format!("0::/user.slice/user@7.service/docker-{id}.scope\n"));
    let other = "1".repeat(64);
    let ask = |group: &Group, owner, have_answered| {
        let (id, known) = container_of(group, &Runtimes { owner, have_answered });
        (id == group.container.as_deref(), known.is_some())
    };
    assert_eq!(ask(&host(KNOWN), 0, true), (true, true));
    assert_eq!(ask(&host(&other), 0, false), (true, false));
    assert_eq!(ask(&user(KNOWN), 0, true), (false, false), "it is the host's");
    assert_eq!(ask(&user(KNOWN), 8, true), (false, false), "it is another user's");
    assert_eq!(ask(&user(KNOWN), 7, true), (true, true));
    assert_eq!(ask(&user(&other), 0, false), (false, false), "it may be the host's still");
    assert_eq!(ask(&user(&other), 0, true), (true, false), "a rootless one");
    assert_eq!(ask(&host(KNOWN), 7, true), (true, false), "a user's runtime says so");
}

#[test]
fn a_container_that_names_a_group_after_another_one_stays_what_it_is() {
    use strata_agent::processes::container::parse;
    let nested = |outer: &str, inner: &str| {
        parse(&format!("0::/system.slice/docker-{outer}.scope/docker-{inner}.scope\n"))
    };
    let other = "1".repeat(64);
    let runtimes = Runtimes { owner: 0, have_answered: true };
    let group = nested(&other, KNOWN);
    assert_eq!(container_of(&group, &runtimes), (Some(other.as_str()), None));
    // Of a runtime inside.
    let group = nested(KNOWN, &other);
    assert_eq!(container_of(&group, &runtimes), (Some(other.as_str()), None));
}
