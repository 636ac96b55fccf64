//! Writer, owner and readers over real memfds, all in this process.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use strata_bridge_protocol::beside::{BesideError, ReaderWishes};
use strata_bridge_protocol::compaction::{Compaction, Turn};
use strata_bridge_protocol::contexts::Context;
use strata_bridge_protocol::control::{Outcome, request, wish};
use strata_bridge_protocol::event::Event;
use strata_bridge_protocol::field::{CodeRange, Measure, Sink};
use strata_bridge_protocol::layout::{
    CONTEXT_SLOTS, MAX_EVENT, RING_CELLS, RecordHeader, SEGMENT_DATA, SEGMENT_SIZE,
};
use strata_bridge_protocol::owning::{Owner, TakeError};
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{Budget, Limits, Reader, ReaderLosses};
use strata_bridge_protocol::record::{
    Encode, Enumerated, Method, MethodUnload, ModuleRecord, NotFound, Record, TypeRecord,
};
use strata_bridge_protocol::ring::RingPlaces;
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::{Count, Loss, State};
use strata_bridge_protocol::writer::{Lost, Writer};
use support::{main_files, method, reader};

const BUDGET: Budget = Budget { records: usize::MAX, bytes: usize::MAX };

fn writer_and_reader() -> (Writer, Reader<File>) {
    let writer = Writer::create().expect("memory");
    let reader = reader(std::process::id(), Some(writer.id()));
    (writer, reader)
}

/// The writer's main file, opened as another process would.
fn main_file(writer: &Writer) -> File {
    let is_ours = |file: &File| {
        let copy = file.try_clone().expect("a descriptor");
        Reader::new(copy, Limits::default()).is_ok_and(|reader| reader.id() == writer.id())
    };
    main_files(std::process::id()).into_iter().find(is_ours).expect("the writer's file is mapped")
}

fn ips(reader: &mut Reader<File>, budget: Budget) -> (Vec<u64>, bool) {
    let poll = reader.poll(budget, 0).expect("the log can be read");
    let ips = poll.entries.iter().map(|entry| match &entry.record {
        Record::NotFound(NotFound { ip }) => *ip,
        Record::Method(method) => method.function,
        other => panic!("no test wrote {other:?}"),
    });
    (ips.collect(), poll.more)
}

#[test]
fn what_is_appended_is_read_once() {
    let (writer, mut reader) = writer_and_reader();
    assert_eq!(ips(&mut reader, BUDGET).0, []);
    for ip in 1..=3 {
        writer.append(100 + ip, &NotFound { ip }).expect("room");
    }
    let poll = reader.poll(BUDGET, 0).expect("the log can be read");
    assert_eq!(poll.entries.iter().map(|entry| entry.time).collect::<Vec<_>>(), [101, 102, 103]);
    assert_eq!(ips(&mut reader, BUDGET).0, []);
    writer.append(0, &NotFound { ip: 4 }).expect("room");
    assert_eq!(ips(&mut reader, BUDGET), (vec![4], false));
    assert_eq!(reader.losses(), ReaderLosses::default());
}

#[test]
fn a_log_of_many_segments_is_read_in_order_in_small_pieces() {
    let (writer, mut reader) = writer_and_reader();
    let name = "x".repeat(3000);
    let count = 5000;
    for number in 0..count {
        if number % 100 == 0 {
            writer.prepare_log(0);
        }
        writer.append(0, &method(number, &name)).expect("room");
    }
    let status = reader.status().expect("the status can be read");
    assert!(status.segments >= 4, "{} segments", status.segments);
    assert_eq!(reader.missing_segments(&status), status.segments - 1);
    support::add_segments(&mut reader, std::process::id());
    assert_eq!(reader.missing_segments(&status), 0);
    let mut seen = Vec::new();
    loop {
        let (some, more) = ips(&mut reader, Budget { records: 100, bytes: 100_000 });
        assert!(some.len() <= 100);
        seen.extend(some);
        if !more {
            break;
        }
    }
    assert!(seen.into_iter().eq(0..count));
    assert_eq!(reader.losses(), ReaderLosses::default());
}

/// Reads in small pieces until a call says that all has been read that was there at first.
fn read_until_caught_up(reader: &mut Reader<File>) -> (u64, bool) {
    let mut records = 0;
    loop {
        let budget = Budget { records: 100, bytes: 100_000 };
        let poll = reader.poll(budget, 0).expect("the log can be read");
        records += poll.entries.len() as u64;
        if poll.caught_up || !poll.more {
            return (records, poll.caught_up);
        }
    }
}

#[test]
fn a_reader_has_caught_up_when_it_has_read_what_was_there_at_first() {
    let (writer, mut empty) = writer_and_reader();
    assert_eq!(read_until_caught_up(&mut empty), (0, true));
    let name = "x".repeat(3000);
    let mut count = 0;
    let append = |count: &mut u64| {
        writer.append(0, &method(*count, &name)).expect("room");
        writer.prepare_log(0);
        *count += 1;
    };
    let newest = || empty.status().expect("the status can be read").newest_segment;
    for segment in 0..3 {
        // In the middle of a segment, and when the next one is made ready.
        for is_ready in [false, true] {
            let is_reached = |count| count % 100 == 50 && newest() == segment;
            while if is_ready { newest() == segment } else { !is_reached(count) } {
                append(&mut count);
            }
            let mut late = reader(std::process::id(), Some(writer.id()));
            support::add_segments(&mut late, std::process::id());
            let read = read_until_caught_up(&mut late);
            assert_eq!(read, (count, true), "{segment} {is_ready}");
            append(&mut count);
            assert_eq!(read_until_caught_up(&mut late), (1, false), "once");
        }
    }
    // What comes meanwhile is not waited for.
    let mut late = reader(std::process::id(), Some(writer.id()));
    support::add_segments(&mut late, std::process::id());
    let (before, mut read) = (count, 0);
    let has_caught_up = (0..10_000).any(|_| {
        (0..10).for_each(|_| append(&mut count));
        support::add_segments(&mut late, std::process::id());
        let poll = late.poll(Budget { records: 12, bytes: 1 << 20 }, 0).expect("it can be read");
        read += poll.entries.len() as u64;
        poll.caught_up
    });
    assert!(has_caught_up && read >= before && read < count, "{read} of {before}, {count}");
}

#[test]
fn what_follows_a_segment_that_is_full_to_its_last_byte_is_read() {
    let (writer, mut reader) = writer_and_reader();
    let room = SEGMENT_SIZE - SEGMENT_DATA;
    let length = |name: &str| {
        let Measure { length, .. } = method(0, name).measure();
        (size_of::<RecordHeader>() + length).next_multiple_of(8)
    };
    // Records of a length that divides it.
    let names = (0..512).map(|length| "x".repeat(length));
    let name = names.into_iter().find(|name| room.is_multiple_of(length(name))).expect("a name");
    let fill = (room / length(&name)) as u64;
    // One more, in the next segment.
    for number in 0..=fill {
        writer.append(0, &method(number, &name)).expect("room");
    }
    let status = reader.status().expect("the status can be read");
    assert_eq!(status.committed(0), room as u64);
    support::add_segments(&mut reader, std::process::id());
    // The budget of a call ends where the segment does.
    let calls = (2..).find(|calls| fill.is_multiple_of(*calls)).expect("a divisor");
    let budget = Budget { records: (fill / calls) as usize, ..BUDGET };
    let read: Vec<u64> = (0..=calls).flat_map(|_| ips(&mut reader, budget).0).collect();
    assert!(read.iter().copied().eq(0..=fill), "{} of {fill}", read.len());
}

#[test]
fn a_full_log_loses_and_counts() {
    let (writer, reader) = writer_and_reader();
    let name = "x".repeat(4000);
    let lost = (0..100_000).find_map(|number| writer.append(0, &method(number, &name)).err());
    assert_eq!(lost, Some(Lost::Counted(Loss::LogFull)));
    // What is small still finds no room either: the log is over.
    assert_eq!(writer.append(0, &NotFound { ip: 1 }), Err(Lost::Counted(Loss::LogFull)));
    let status = reader.status().expect("the status can be read");
    assert_eq!((status.segments, status.lost(Loss::LogFull)), (64, 2));
}

/// Code of 64 bytes at an address of its own.
fn code_at(start: u64) -> [CodeRange<'static>; 1] {
    [CodeRange { start, size: 64, code: &[0x55, 0x48, 0x89, 0xe5] }]
}

/// What a reader takes to live, as strata applies records.
#[derive(Default)]
struct Alive {
    /// By start: function and name.
    methods: BTreeMap<u64, (u64, String)>,
    modules: BTreeMap<u64, String>,
    types: BTreeMap<(u64, u32), String>,
    confirmed: Option<BTreeSet<u64>>,
    enumerated: bool,
    gaps: u32,
}

impl Alive {
    /// Reads all there is, and looks for segments before each call.
    fn read(&mut self, reader: &mut Reader<File>) {
        loop {
            let status = reader.status().expect("the status can be read");
            if reader.missing_segments(&status) > 0 {
                support::add_segments(reader, std::process::id());
            }
            let poll = reader.poll(Budget::default(), 0).expect("the log can be read");
            if poll.gap {
                self.gaps += 1;
                self.confirmed = Some(BTreeSet::new());
            }
            poll.entries.into_iter().for_each(|entry| self.apply(entry.record));
            if poll.caught_up
                && let Some(confirmed) = self.confirmed.take()
            {
                self.methods.retain(|start, _| confirmed.contains(start));
            }
            if !poll.more {
                return;
            }
        }
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Method(method) => {
                let start = method.ranges[0].start;
                self.methods.insert(start, (method.function, method.name));
                if let Some(confirmed) = &mut self.confirmed {
                    confirmed.insert(start);
                }
            }
            Record::MethodUnload(gone) => drop(self.methods.remove(&gone.start)),
            Record::Module(module) => drop(self.modules.insert(module.module, module.path)),
            Record::ModuleUnload(gone) => {
                self.modules.remove(&gone.module);
                self.types.retain(|(module, _), _| *module != gone.module);
            }
            Record::Type(of) => drop(self.types.insert((of.module, of.token), of.name)),
            Record::Enumerated(_) => self.enumerated = true,
            Record::NotFound(_) => {}
            other => panic!("no test wrote {other:?}"),
        }
    }
}

/// Appends like a program that has methods of its own, and makes and drops others: 300 bytes each.
struct Churn<'a> {
    writer: &'a Writer,
    made: u64,
}

const LASTING: u64 = 500;
const LASTING_AT: u64 = 0x1000_0000;
const DROPPED_AT: u64 = 0x2000_0000;
/// Methods that live at the same time.
const AT_A_TIME: u64 = 50;

impl<'a> Churn<'a> {
    fn start(writer: &'a Writer) -> Self {
        let module = ModuleRecord { module: 3, path: "app.dll".into(), ..Default::default() };
        writer.append(0, &module).expect("room");
        for token in 1..100 {
            let name = format!("Type{token}");
            let of = TypeRecord { module: 3, token, name, ..Default::default() };
            writer.append(0, &of).expect("room");
        }
        for number in 0..LASTING {
            let (name, code) = (format!("Lasting{number}"), code_at(LASTING_AT + number * 64));
            let method = Method { ranges: code[..].into(), ..method(number, &name) };
            writer.append(0, &method).expect("room");
        }
        writer.append(0, &Enumerated { epoch: 1 }).expect("room");
        Self { writer, made: 0 }
    }

    fn make(&mut self, count: u64) {
        let padding = "x".repeat(200);
        for _ in 0..count {
            let number = self.made;
            let start = DROPPED_AT + number % AT_A_TIME * 64;
            if let Some(before) = number.checked_sub(AT_A_TIME) {
                let gone = MethodUnload { function: 1_000_000 + before, start };
                self.writer.append(0, &gone).expect("room");
            }
            let (name, code) = (format!("Made{number}{padding}"), code_at(start));
            let method = Method { ranges: code[..].into(), ..method(1_000_000 + number, &name) };
            self.writer.append(0, &method).expect("room");
            self.made += 1;
        }
    }

    /// What lives now is what a reader has found.
    fn check(&self, alive: &Alive) {
        assert_eq!(alive.methods.len() as u64, LASTING + AT_A_TIME.min(self.made));
        for number in 0..LASTING {
            let found = &alive.methods[&(LASTING_AT + number * 64)];
            assert_eq!(found, &(number, format!("Lasting{number}")));
        }
        for number in self.made.saturating_sub(AT_A_TIME)..self.made {
            let (function, name) = &alive.methods[&(DROPPED_AT + number % AT_A_TIME * 64)];
            assert_eq!(*function, 1_000_000 + number);
            assert!(name.starts_with(&format!("Made{number}x")));
        }
        assert_eq!(alive.modules[&3], "app.dll");
        assert_eq!(alive.types.len(), 99);
        assert!(alive.enumerated);
    }
}

fn compact(compaction: &mut Compaction, writer: &Writer) -> u32 {
    let mut turns = 0;
    while compaction.turn(writer, 0) == Turn::More {
        turns += 1;
        assert!(turns < 100_000, "it ends");
    }
    turns
}

/// The memory of this process's segments with the writer's id, in bytes.
fn memory_of(reader: &Reader<File>) -> u64 {
    reader.segments().map(|file| 512 * file.metadata().expect("a file").blocks()).sum()
}

#[test]
fn a_log_of_a_program_that_drops_methods_stays_as_long_as_what_lives() {
    let (writer, mut keeps_up) = writer_and_reader();
    let mut compaction = Compaction::new();
    let (mut alive, mut churn) = (Alive::default(), Churn::start(&writer));
    let mut largest = 0;
    // 330 MB, more than all segments.
    for round in 0..100 {
        churn.make(10_000);
        compact(&mut compaction, &writer);
        alive.read(&mut keeps_up);
        churn.check(&alive);
        largest = largest.max(memory_of(&keeps_up));
        if round % 40 == 13 {
            let mut late = Alive::default();
            late.read(&mut reader(std::process::id(), Some(writer.id())));
            churn.check(&late);
            assert_eq!(late.gaps, 0, "it has read nothing yet");
        }
    }
    let status = keeps_up.status().expect("the status can be read");
    println!("{largest} bytes at most, {} segments", status.segments);
    assert!(largest <= 7 * SEGMENT_SIZE as u64, "{largest} bytes");
    assert!(status.segments <= 8, "{} segments", status.segments);
    assert!(status.oldest_segment > 64, "{}", status.oldest_segment);
    assert_eq!((alive.gaps, keeps_up.losses()), (0, ReaderLosses::default()));
    assert_eq!(Loss::ALL.iter().map(|loss| status.lost(*loss)).sum::<u64>(), 0);
}

#[test]
fn a_reader_that_was_overtaken_knows_what_lives_once_it_has_caught_up() {
    let (writer, mut slow) = writer_and_reader();
    let mut compaction = Compaction::new();
    let (mut alive, mut churn) = (Alive::default(), Churn::start(&writer));
    for gaps in 1..4 {
        churn.make(1000);
        alive.read(&mut slow);
        churn.check(&alive);
        // Other methods than before: at other addresses than what it knows.
        for _ in 0..12 {
            churn.make(10_007);
            compact(&mut compaction, &writer);
        }
        alive.read(&mut slow);
        churn.check(&alive);
        assert_eq!(alive.gaps, gaps);
    }
    assert_eq!(slow.losses(), ReaderLosses { gaps: 3, ..ReaderLosses::default() });
}

#[test]
fn a_reader_that_is_overtaken_in_the_middle_of_a_segment_takes_nothing_of_another() {
    let (writer, mut slow) = writer_and_reader();
    let mut compaction = Compaction::new();
    let (mut alive, mut churn) = (Alive::default(), Churn::start(&writer));
    // It reads some records each time, at other places of other segments.
    for round in 0..60_u64 {
        churn.make(4_000 + round * 37);
        compact(&mut compaction, &writer);
        support::add_segments(&mut slow, std::process::id());
        let budget = Budget { records: 500, bytes: 200_000 };
        let poll = slow.poll(budget, 0).expect("the log can be read");
        if poll.gap {
            alive.gaps += 1;
            alive.confirmed = Some(BTreeSet::new());
        }
        poll.entries.into_iter().for_each(|entry| alive.apply(entry.record));
    }
    assert!(alive.gaps > 2, "{}", alive.gaps);
    alive.read(&mut slow);
    churn.check(&alive);
    let losses = slow.losses();
    let others = ReaderLosses { gaps: 0, over_limit: false, ..losses };
    assert_eq!(others, ReaderLosses::default());
}

#[test]
fn a_writer_that_ends_in_the_middle_of_a_compaction_leaves_all_that_lives() {
    let (writer, mut keeps_up) = writer_and_reader();
    let mut compaction = Compaction::new();
    let (mut alive, mut churn) = (Alive::default(), Churn::start(&writer));
    churn.make(60_000);
    let mut turns = 0;
    loop {
        let turn = compaction.turn(&writer, 0);
        churn.make(20);
        turns += 1;
        alive.read(&mut keeps_up);
        churn.check(&alive);
        if turns % 8 != 0 && turn == Turn::More {
            continue;
        }
        // A reader that comes now finds the same.
        let mut late = Alive::default();
        let mut later = reader(std::process::id(), Some(writer.id()));
        later.process_ended();
        late.read(&mut later);
        churn.check(&late);
        if turn == Turn::Idle {
            break;
        }
    }
    assert!(turns > 10, "{turns} turns");
    assert!(writer.was_compacted());
}

#[test]
fn threads_that_append_while_the_log_is_compacted_lose_nothing() {
    const THREADS: u64 = 4;
    const EACH: u64 = 60_000;
    let (writer, mut keeps_up) = writer_and_reader();
    let done = AtomicUsize::new(0);
    let mut alive = Alive::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (writer, done) = (&writer, &done);
            scope.spawn(move || {
                let at = DROPPED_AT + thread * 0x100_0000;
                let name = format!("Of{thread}{}", "x".repeat(300));
                for number in 0..EACH {
                    let code = code_at(at + number % 7 * 64);
                    if number >= 7 {
                        let gone = MethodUnload { function: number - 7, start: code[0].start };
                        writer.append(0, &gone).expect("room");
                    }
                    let method = Method { ranges: code[..].into(), ..method(number, &name) };
                    writer.append(0, &method).expect("room");
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut compaction = Compaction::new();
        while done.load(Ordering::SeqCst) < THREADS as usize {
            compaction.turn(&writer, 0);
        }
        compact(&mut compaction, &writer);
    });
    alive.read(&mut keeps_up);
    let status = keeps_up.status().expect("the status can be read");
    assert!(status.oldest_segment > 4, "{}", status.oldest_segment);
    let mut late = Alive::default();
    late.read(&mut reader(std::process::id(), Some(writer.id())));
    for found in [alive, late] {
        assert_eq!(found.methods.len() as u64, THREADS * 7);
        for (start, (function, name)) in found.methods {
            let thread = (start - DROPPED_AT) / 0x100_0000;
            assert!(name.starts_with(&format!("Of{thread}x")) && function >= EACH - 7);
        }
    }
}

#[test]
fn a_record_that_was_never_finished_does_not_keep_the_log_long() {
    let writer = Writer::create().expect("memory");
    let mut compaction = Compaction::new();
    let mut churn = Churn::start(&writer);
    let unfinished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        _ = writer.append(0, &Panics(AtomicUsize::new(0)));
    }));
    assert!(unfinished.is_err());
    for _ in 0..12 {
        churn.make(10_000);
        compact(&mut compaction, &writer);
    }
    assert!(writer.was_compacted());
    let mut late = Alive::default();
    late.read(&mut reader(std::process::id(), Some(writer.id())));
    churn.check(&late);
}

/// A record whose encoding panics when it is written.
struct Panics(AtomicUsize);

impl Encode for Panics {
    const KIND: u16 = 8;

    fn encode(&self, sink: &mut impl Sink) {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) == 0, "for the test");
        sink.put(&[0; 8]);
    }
}

#[test]
fn what_lives_may_be_more_than_the_smallest_log() {
    let (writer, mut keeps_up) = writer_and_reader();
    let mut compaction = Compaction::new();
    let (mut alive, name) = (Alive::default(), "x".repeat(400));
    let mut turns = 0;
    // 60 MB that live.
    for number in 0..120_000_u64 {
        let code = code_at(LASTING_AT + number * 64);
        let method = Method { ranges: code[..].into(), ..method(number, &name) };
        writer.append(0, &method).expect("room");
        if number % 1000 == 0 {
            turns += compact(&mut compaction, &writer);
            alive.read(&mut keeps_up);
        }
    }
    alive.read(&mut keeps_up);
    assert_eq!(alive.methods.len(), 120_000);
    let status = keeps_up.status().expect("the status can be read");
    println!("{turns} turns, limit {}, {} segments", compaction.limit(), status.segments);
    assert!(status.oldest_segment < 32, "it is not appended again and again");
    assert!(compaction.limit() > 8, "{}", compaction.limit());
    assert!(status.segments < 40, "{}", status.segments);
}

#[test]
fn threads_that_append_at_once_lose_nothing() {
    let (writer, mut reader) = writer_and_reader();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let writer = &writer;
            scope.spawn(move || {
                for number in 0..5000 {
                    let function = thread << 32 | number;
                    let name = "x".repeat(number as usize % 300);
                    writer.append(0, &method(function, &name)).expect("room");
                }
            });
        }
    });
    support::add_segments(&mut reader, std::process::id());
    let seen = ips(&mut reader, BUDGET).0;
    for thread in 0..8 {
        let of_thread = seen.iter().filter(|function| **function >> 32 == thread);
        assert!(of_thread.map(|function| function & 0xffff_ffff).eq(0..5000));
    }
    assert_eq!(seen.len(), 8 * 5000);
}

/// A `NotFound` whose writer waits half-way for a word.
struct Slow {
    measured: AtomicBool,
    go_on: Mutex<Receiver<()>>,
}

impl Encode for Slow {
    const KIND: u16 = NotFound::KIND;

    fn encode(&self, sink: &mut impl Sink) {
        sink.put(&[7; 4]);
        if self.measured.swap(true, Ordering::Relaxed) {
            self.go_on.lock().expect("no panic").recv().expect("the test goes on");
        }
        sink.put(&[0; 4]);
    }
}

#[test]
fn a_record_that_is_finished_late_is_not_lost() {
    let (writer, mut reader) = writer_and_reader();
    let patience = 2_000_000_000;
    let (go_on, receiver) = channel();
    let slow = Slow { measured: false.into(), go_on: Mutex::new(receiver) };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| writer.append(1, &slow));
        while !slow.measured.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let mut poll = |now| {
            let poll = reader.poll(BUDGET, now).expect("the log can be read");
            poll.entries.into_iter().map(|entry| entry.record).collect::<Vec<_>>()
        };
        // Wait until the record is reserved, too. However often the reader has met it by then, no
        // time has passed.
        while writer.append(2, &NotFound { ip: 2 }).is_ok()
            && poll(0).contains(&NotFound { ip: 2 }.into())
        {}
        for quarter in 1..4 {
            assert_eq!(poll(quarter * patience / 4), []);
        }
        let behind = poll(patience);
        assert!(
            !behind.is_empty() && behind.iter().all(|record| *record == NotFound { ip: 2 }.into())
        );
        assert_eq!(poll(patience), []);
        go_on.send(()).expect("the thread waits");
        thread.join().expect("no panic").expect("room");
        assert_eq!(poll(patience), [NotFound { ip: 0x0707_0707 }.into()]);
        assert_eq!(poll(patience), []);
    });
    assert_eq!(reader.losses(), ReaderLosses { late: 1, ..ReaderLosses::default() });
}

#[test]
fn the_status_tells_what_the_bridge_said() {
    let (writer, reader) = writer_and_reader();
    writer.status().set_runtime([9, 0, 7, 1], 15, ".NET 9.0.7, a text that is far too long for it");
    writer
        .status()
        .set_bridge("0.1.0 ümläüte und noch viel mehr, so dass der Rest nicht mehr passt");
    writer.status().set_state(State::Ready);
    writer.status().count(Count::Methods, 3);
    writer.status().lost(Loss::RuntimeCall, 2);
    writer.status().set_obeyed(4, 5);
    let status = reader.status().expect("the status can be read");
    assert_eq!(status.state, Some(State::Ready));
    assert_eq!((status.runtime, status.interface), ([9, 0, 7, 1], 15));
    assert_eq!(status.pid, std::process::id());
    assert_eq!(status.runtime_text, ".NET 9.0.7, a text that is far too long for it");
    assert!(status.bridge_text.starts_with("0.1.0 ümläüte") && status.bridge_text.len() <= 64);
    assert_eq!((status.count(Count::Methods), status.lost(Loss::RuntimeCall)), (3, 2));
    assert_eq!((status.obeyed, status.segments), ((4, 5), 1));
    assert!(status.created > 0 && status.created <= monotonic_time());
}

#[test]
fn wishes_and_requests_arrive_and_are_answered() {
    let (writer, reader) = writer_and_reader();
    assert_eq!(writer.control().wishes(), None);
    assert!(!writer.owner_lives(0));
    let mut owner = Owner::take(main_file(&writer), "a test").expect("it has no owner");
    assert!(writer.owner_lives(0));
    let mut rates = [0; 32];
    rates[31] = 97;
    owner.wish(wish::JIT_EVENTS, rates).expect("memory");
    let wishes = writer.control().wishes().expect("there are wishes");
    assert!(wishes.has(wish::JIT_EVENTS) && !wishes.has(wish::IL_MAPS));
    assert_eq!((wishes.rates, wishes.owner_name.as_str()), (rates, "a test"));
    writer.status().set_obeyed(wishes.epoch, wishes.generation);
    assert!(owner.is_obeyed(&reader.status().expect("the status can be read")));

    assert_eq!(writer.control().next_request(wishes.epoch), None);
    let requests = [(request::RESOLVE_IP, 0x7f00, 0), (request::IL_MAP, 5, 6)];
    let sent = owner.request(&requests).expect("memory");
    let [first, second] = *sent else { panic!("no room: {sent:?}") };
    let outcome = |sequence| owner.outcomes().expect("memory").of(sequence);
    let asked = writer.control().next_request(wishes.epoch).expect("a request");
    assert_eq!((asked.sequence, asked.kind, asked.first), (first, request::RESOLVE_IP, 0x7f00));
    assert_eq!(outcome(first), None);
    writer.control().answer(&asked, Outcome::Answered);
    let asked = writer.control().next_request(wishes.epoch).expect("another request");
    assert_eq!((asked.sequence, asked.first, asked.second), (second, 5, 6));
    writer.control().answer(&asked, Outcome::Failed);
    assert_eq!(outcome(first), Some(Outcome::Answered));
    assert_eq!(outcome(second), Some(Outcome::Failed));
    assert_eq!(writer.control().next_request(wishes.epoch), None);

    owner.release().expect("memory");
    assert!(!writer.owner_lives(0));
    assert_eq!(writer.control().wishes().map(|wishes| wishes.flags), Some(0));
}

#[test]
fn wishes_of_readers_beside_the_owner_reach_it_and_end_with_them() {
    let (writer, _reader) = writer_and_reader();
    let owner = Owner::take(main_file(&writer), "a daemon").expect("it has no owner");
    let wishes = || owner.readers_wishes().expect("memory");
    assert_eq!(wishes(), 0);
    let one = ReaderWishes::take(main_file(&writer)).expect("a place");
    assert_eq!(wishes(), 0);
    one.wish(wish::LOCKS | wish::ALLOCATIONS).expect("memory");
    assert_eq!(wishes(), wish::LOCKS | wish::ALLOCATIONS);
    // Only what is about events is taken from a reader.
    let other = ReaderWishes::take(main_file(&writer)).expect("a place");
    other.wish(wish::EXCEPTIONS | wish::DETACH | wish::JIT_EVENTS | 1 << 40).expect("memory");
    assert_eq!(wishes(), wish::LOCKS | wish::ALLOCATIONS | wish::EXCEPTIONS);
    drop(one);
    assert_eq!(wishes(), wish::EXCEPTIONS);
    let places: Vec<_> =
        std::iter::from_fn(|| ReaderWishes::take(main_file(&writer)).ok()).collect();
    assert_eq!(places.len(), 15, "one place is taken still");
    assert!(matches!(ReaderWishes::take(main_file(&writer)), Err(BesideError::Full)));
    drop(places);
    assert_eq!(wishes(), wish::EXCEPTIONS);
    drop(other);
    assert_eq!(wishes(), 0);
    assert!(writer.owner_lives(0), "no reader has taken the owner's lock");
}

#[test]
fn a_full_request_ring_refuses_until_answers_come() {
    let (writer, _reader) = writer_and_reader();
    let mut owner = Owner::take(main_file(&writer), "a test").expect("it has no owner");
    let epoch = owner.wishes().epoch;
    let mut ask = |ips: Range<u64>| {
        let wanted: Vec<_> = ips.map(|ip| (request::RESOLVE_IP, ip, 0)).collect();
        owner.request(&wanted).expect("memory").len()
    };
    // The second ones go round the end of the slots.
    assert_eq!([ask(0..100), ask(100..300), ask(256..300)], [100, 156, 0]);
    for ip in 0..256 {
        let asked = writer.control().next_request(epoch).expect("a request");
        assert_eq!(asked.first, ip);
        writer.control().answer(&asked, Outcome::Answered);
    }
    assert_eq!(writer.control().next_request(epoch), None);
    assert_eq!([ask(0..100), ask(100..300)], [100, 156], "there is room again");
    for ip in 0..256 {
        let asked = writer.control().next_request(epoch).expect("a request");
        assert_eq!(asked.first, ip);
        writer.control().answer(&asked, Outcome::Answered);
        if ip == 99 {
            // Round the end of the slots in one call.
            assert_eq!(ask(256..1000), 100);
        }
    }
    let asked = writer.control().next_request(epoch).expect("a request");
    assert_eq!(asked.first, 256);
}

#[test]
fn what_an_owner_before_asked_is_not_answered_to_the_next() {
    let (writer, _reader) = writer_and_reader();
    let mut before = Owner::take(main_file(&writer), "first").expect("it has no owner");
    let wanted: Vec<_> = (0..100).map(|ip| (request::RESOLVE_IP, ip, 0)).collect();
    assert_eq!(before.request(&wanted).expect("memory").len(), 100);
    let epoch = before.wishes().epoch;
    let asked = writer.control().next_request(epoch).expect("a request");
    writer.control().answer(&asked, Outcome::Answered);
    drop(before);
    let mut next = Owner::take(main_file(&writer), "second").expect("the first is gone");
    let epoch = writer.control().wishes().expect("wishes").epoch;
    assert_eq!(epoch, next.wishes().epoch);
    assert_eq!(writer.control().next_request(epoch), None);
    assert_eq!(next.request(&[(request::RESOLVE_IP, 1000, 0)]).expect("memory").len(), 1);
    let asked = writer.control().next_request(epoch).expect("a request");
    assert_eq!(asked.first, 1000);
}

#[test]
fn a_second_owner_gets_the_name_of_the_first() {
    let (writer, _reader) = writer_and_reader();
    let first = Owner::take(main_file(&writer), "strata record").expect("it has no owner");
    match Owner::take(main_file(&writer), "another") {
        Err(TakeError::Owned { name, pid }) => {
            assert_eq!((name.as_str(), pid), ("strata record", std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    Owner::take(main_file(&writer), "another").expect("the first is gone");
}

fn event(number: u64, frames: &[u64]) -> Event<'_> {
    Event { kind: 7, time: number, tid: 5, values: [number, 1], frames, ..Event::default() }
}

#[test]
fn events_are_taken_in_order_round_and_round() {
    let (writer, _reader) = writer_and_reader();
    assert_eq!(writer.push(&event(0, &[])), Err(Lost::Counted(Loss::RingAbsent)));
    writer.prepare_ring().expect("memory");
    let owner = Owner::take(main_file(&writer), "a test").expect("it has no owner");
    let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN).expect("a ring");
    owner.set_ring_tail(ring.tail()).expect("memory");
    let mut losses = ReaderLosses::default();
    let frames: Vec<u64> = (0..1000).collect();
    let mut pushed = 0;
    let mut taken = 0;
    for round in 0..400 {
        for _ in 0..round {
            // Of all sizes, so that events lie across the end of the ring.
            let depth = (pushed * 7 % 1000) as usize;
            let mut event = event(pushed, &frames[..depth]);
            event.detail = &[1, 2, 3];
            writer.push(&event).expect("room");
            pushed += 1;
            if pushed % 50 > 0 {
                continue;
            }
            let budget = Budget { records: 20, bytes: 1 << 20 };
            loop {
                let events = ring.poll(owner.file(), budget, &mut losses).expect("memory");
                owner.set_ring_tail(events.tail).expect("memory");
                for event in events.events {
                    assert_eq!(event.time, taken);
                    let depth = (taken * 7 % 1000) as usize;
                    assert_eq!(
                        (event.frames.as_slice(), &event.detail[..]),
                        (&frames[..depth], &[1, 2, 3][..])
                    );
                    taken += 1;
                }
                if !events.more {
                    break;
                }
            }
        }
    }
    assert!(pushed - taken < 50 && taken > 70_000, "{pushed} {taken}");
    assert_eq!(losses, ReaderLosses::default());
}

#[test]
fn a_full_ring_drops_the_new_and_counts() {
    let (writer, reader) = writer_and_reader();
    writer.prepare_ring().expect("memory");
    let owner = Owner::take(main_file(&writer), "a test").expect("it has no owner");
    let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN).expect("a ring");
    owner.set_ring_tail(ring.tail()).expect("memory");
    // Three cells each.
    let frames = [1; 15];
    assert_eq!(event(0, &frames).length(), Some(168));
    let fit = RING_CELLS as u64 / 3;
    for number in 0..fit {
        writer.push(&event(number, &frames)).expect("room");
    }
    for number in 0..5 {
        assert_eq!(writer.push(&event(number, &frames)), Err(Lost::Counted(Loss::RingFull)));
    }
    let status = reader.status().expect("the status can be read");
    assert_eq!(status.lost(Loss::RingFull), 5);
    let mut losses = ReaderLosses::default();
    let events = ring.poll(owner.file(), BUDGET, &mut losses).expect("memory");
    assert_eq!(events.events.len() as u64, fit);
    assert_eq!(writer.push(&event(0, &frames)), Err(Lost::Counted(Loss::RingFull)));
    owner.set_ring_tail(events.tail).expect("memory");
    writer.push(&event(0, &frames)).expect("room again");
    let frames = vec![0; MAX_EVENT / 8];
    assert_eq!(writer.push(&event(0, &frames)), Err(Lost::Counted(Loss::EventTooLong)));
}

#[test]
fn many_threads_push_and_every_event_is_whole() {
    let (writer, _reader) = writer_and_reader();
    writer.prepare_ring().expect("memory");
    let owner = Owner::take(main_file(&writer), "a test").expect("it has no owner");
    let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN).expect("a ring");
    owner.set_ring_tail(ring.tail()).expect("memory");
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let pushers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let (writer, done) = (&writer, &done);
                scope.spawn(move || {
                    let mut pushed = 0;
                    for number in 0..50_000 {
                        let value = thread << 32 | number;
                        let frames = vec![value; 1 + number as usize % 40];
                        pushed += u64::from(writer.push(&event(value, &frames)).is_ok());
                    }
                    done.fetch_add(1, Ordering::Release);
                    pushed
                })
            })
            .collect();
        let mut last = [None; 4];
        let mut taken = 0;
        let mut losses = ReaderLosses::default();
        loop {
            let over = done.load(Ordering::Acquire) == 4;
            let events = ring.poll(owner.file(), Budget::default(), &mut losses).expect("memory");
            owner.set_ring_tail(events.tail).expect("memory");
            for event in &events.events {
                assert!(event.frames.iter().all(|frame| *frame == event.time), "{event:?}");
                let (thread, number) = ((event.time >> 32) as usize, event.time & 0xffff_ffff);
                assert_eq!(event.frames.len(), 1 + number as usize % 40);
                assert!(last[thread].is_none_or(|last| last < number), "in order");
                last[thread] = Some(number);
                taken += 1;
            }
            if over && events.events.is_empty() {
                break;
            }
        }
        let pushed: u64 = pushers.into_iter().map(|p| p.join().expect("no panic")).sum();
        assert_eq!((taken, losses), (pushed, ReaderLosses::default()));
    });
}

#[test]
fn a_thread_keeps_its_slot_until_it_ends() {
    let (writer, reader) = writer_and_reader();
    let context = |app_domain| Context { app_domain, trace: [1, 2], ..Context::default() };
    let read = |tid| reader.context(tid).expect("memory");
    assert_eq!(read(77), None);
    let slot = writer.register_thread(77).expect("room");
    assert_eq!(writer.register_thread(77), Ok(slot));
    assert_eq!(read(77), Some(Context::default()));
    writer.set_context(slot, &context(9)).expect("the slot is there");
    assert_eq!((read(77), writer.context(slot)), (Some(context(9)), Some(context(9))));
    writer.remove_thread(77);
    assert_eq!((read(77), writer.context(slot)), (None, None));
    let lost = writer.set_context(slot, &context(9));
    assert_eq!(lost, Err(Lost::Counted(Loss::ContextContended)), "the slot is not its own");
    // A thread that gets the same place finds it empty.
    let slot = writer.register_thread(77).expect("room");
    assert_eq!(writer.context(slot), Some(Context::default()));
}

#[test]
fn threads_come_and_go_and_are_found() {
    let (writer, reader) = writer_and_reader();
    // Ten thousand threads in all, a thousand at a time.
    for tid in 1..10_000_u32 {
        let slot = writer.register_thread(tid).expect("room");
        let context = Context { app_domain: u64::from(tid), ..Context::default() };
        writer.set_context(slot, &context).expect("its own");
        if tid > 1000 {
            writer.remove_thread(tid - 1000);
        }
        if tid % 97 == 0 {
            for live in tid.saturating_sub(999).max(1)..=tid {
                let found = reader.context(live).expect("memory").expect("a live thread");
                assert_eq!(found.app_domain, u64::from(live));
            }
        }
    }
    assert_eq!(reader.status().expect("memory").lost(Loss::ContextFull), 0);
    assert_eq!(reader.context(5).expect("memory"), None);
    // More than there are slots.
    let registered = (1..6000).filter(|tid| writer.register_thread(*tid).is_ok()).count();
    assert!((2000..=CONTEXT_SLOTS).contains(&registered), "{registered}");
}

#[test]
fn dropping_a_writer_leaves_nothing_behind() {
    let count = |writer: &Writer| {
        let id = writer.id();
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(id.len(), 32);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().filter(|line| line.contains("strata-clr")).count()
    };
    // Other tests of this process have writers too: what counts is that hundreds do not add up.
    let mut most = 0;
    for _ in 0..300 {
        let writer = Writer::create().expect("memory");
        writer.append(0, &NotFound { ip: 1 }).expect("room");
        most = most.max(count(&writer));
    }
    assert!(most < 250, "{most} mappings");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    assert!(descriptors < 250, "{descriptors} descriptors");
}
