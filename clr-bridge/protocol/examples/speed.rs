//! What the shared memory costs: `cargo run --release -p strata-bridge-protocol --example speed`.
//!
//! Figures are CPU time, the best of several rounds: others would measure a busy host. Runs as root
//! (the reader opens the files through `/proc/self/map_files`).

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

use strata_bridge_protocol::contexts::Context;
use strata_bridge_protocol::event::Event;
use strata_bridge_protocol::field::{CodeRange, Texts};
use strata_bridge_protocol::owning::Owner;
use strata_bridge_protocol::reader::ring::RingReader;
use strata_bridge_protocol::reader::{Budget, Limits, Reader, ReaderLosses, file};
use strata_bridge_protocol::record::{Method, MethodKind, Tier};
use strata_bridge_protocol::ring::RingPlaces;
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::Loss;
use strata_bridge_protocol::writer::Writer;

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    for threads in [1, 2] {
        println!("ring push, 24 frames, {threads} thread(s): {:.1} ns", pushes(threads)?);
    }
    for threads in [1, 2] {
        println!("method append, {threads} thread(s): {:.1} ns", appends(threads)?);
    }
    println!("clock: {:.1} ns", best(|| per_call(100_000, |_| _ = monotonic_time())));
    contexts()?;
    ring_reader()?;
    for methods in [12_500, 100_000] {
        log_reader(methods)?;
    }
    Ok(())
}

fn best(mut round: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds that this thread has run.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds per call.
fn per_call(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let start = cpu_time();
    (0..calls).for_each(&mut call);
    (cpu_time() - start) / calls as f64
}

/// Nanoseconds per call when several threads call at once.
fn per_call_of(threads: u64, calls: u64, call: impl Fn(u64) + Sync) -> f64 {
    std::thread::scope(|scope| {
        let run = || scope.spawn(|| per_call(calls, &call));
        let running: Vec<_> = (0..threads).map(|_| run()).collect();
        let figures = running.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN));
        figures.sum::<f64>() / threads as f64
    })
}

/// The files of a writer in this process, opened as strata would.
fn open(name: &str) -> Result<Vec<File>, Box<dyn Error>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let lines = maps.lines().filter(|line| line.ends_with(&format!("memfd:{name} (deleted)")));
    let ranges = lines.filter_map(|line| line.split(' ').next());
    ranges
        .map(|range| Ok(file::open(&PathBuf::from(format!("/proc/self/map_files/{range}")))?))
        .collect()
}

fn main_file() -> Result<File, Box<dyn Error>> {
    open("strata-clr")?.pop().ok_or_else(|| "no main file".into())
}

/// As the bridge fills it for a method of a program.
fn method<'a>(function: u64, name: &'a str, ranges: &'a [CodeRange<'a>]) -> Method<'a> {
    Method {
        function,
        rejit: 0,
        module: 0x7f00_1234_5678,
        type_token: 0x0200_0012,
        token: 0x0600_0345,
        kind: MethodKind::Jitted as u8,
        tier: Tier::Tier1 as u8,
        app_domain: 0x55_5555,
        name,
        generic_parameters: Texts::default(),
        signature: &[0x20, 2, 1, 8, 0x12, 0x45],
        class_arguments: Texts::default(),
        method_arguments: Texts::default(),
        asked_ip: 0,
        ranges: ranges.into(),
    }
}

fn pushes(threads: u64) -> Result<f64, Box<dyn Error>> {
    let writer = Writer::create()?;
    writer.prepare_ring()?;
    let owner = Owner::take(main_file()?, "speed")?;
    let frames = [0x7f00_0000_0000; 24];
    // Four cells each: what fits without a reader, again and again.
    let calls = 4000 / threads;
    let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN)?;
    let figure = best(|| {
        _ = owner.set_ring_tail(ring.tail());
        let figure = per_call_of(threads, calls, |time| {
            _ = writer.push(&Event { kind: 1, time, tid: 5, frames: &frames, ..Event::default() });
        });
        let everything = Budget { records: usize::MAX, bytes: usize::MAX };
        _ = ring.poll(owner.file(), everything, &mut ReaderLosses::default());
        figure
    });
    let reader = Reader::new(main_file()?, Limits::default())?;
    assert_eq!(reader.status()?.lost(Loss::RingFull), 0);
    Ok(figure)
}

fn appends(threads: u64) -> Result<f64, Box<dyn Error>> {
    let code = [0x55; 96];
    let ranges = [CodeRange { start: 0x7f00_0000_1000, size: 420, code: &code }];
    let writer = Writer::create()?;
    Ok(best(|| {
        writer.prepare_log(0);
        per_call_of(threads, 4000 / threads, |function| {
            _ = writer.append(function, &method(function, "ReadOrdersAsync", &ranges));
        })
    }))
}

fn contexts() -> Result<(), Box<dyn Error>> {
    let writer = Writer::create()?;
    let slot = writer.register_thread(77)?;
    let figure = best(|| {
        per_call(100_000, |span| {
            _ = writer.set_context(slot, &Context { span, ..Context::default() });
        })
    });
    println!("context set: {figure:.1} ns");
    let mut tid = 1000;
    let figure = best(|| {
        per_call(1000, |_| {
            tid += 1;
            _ = writer.register_thread(tid);
            writer.remove_thread(tid);
        })
    });
    println!("thread registered and removed: {figure:.1} ns");
    Ok(())
}

fn ring_reader() -> Result<(), Box<dyn Error>> {
    let writer = Writer::create()?;
    writer.prepare_ring()?;
    let owner = Owner::take(main_file()?, "speed")?;
    let mut ring = RingReader::new(owner.file(), RingPlaces::MAIN)?;
    let frames = [0x7f00_0000_0000; 24];
    let mut taken = 0;
    let figure = best(|| {
        for time in 0..4000 {
            _ = writer.push(&Event { kind: 1, time, tid: 5, frames: &frames, ..Event::default() });
        }
        let everything = Budget { records: usize::MAX, bytes: usize::MAX };
        let start = cpu_time();
        if let Ok(events) = ring.poll(owner.file(), everything, &mut ReaderLosses::default()) {
            _ = owner.set_ring_tail(events.tail);
            taken = events.events.len();
        }
        (cpu_time() - start) / 4000.0
    });
    println!("event taken: {figure:.1} ns ({taken} at once)");
    Ok(())
}

fn log_reader(methods: u64) -> Result<(), Box<dyn Error>> {
    let writer = Writer::create()?;
    let code = [0x55; 96];
    let ranges = [CodeRange { start: 0x7f00_0000_1000, size: 420, code: &code }];
    let start = cpu_time();
    for function in 0..methods {
        if function % 1000 == 0 {
            writer.prepare_log(function);
        }
        writer.append(function, &method(function, "ReadOrdersAsync", &ranges))?;
    }
    let appended = cpu_time() - start;
    let figure = best(|| read_log(methods).unwrap_or(f64::NAN));
    let reader = Reader::new(main_file()?, Limits::default())?;
    let status = reader.status()?;
    let bytes: u64 = (0..status.segments).map(|segment| status.committed(segment)).sum();
    println!(
        "{methods} methods: {:.1} MB of log, {} segment(s), appended in {:.1} ms, read in {:.1} ms",
        bytes as f64 / 1e6,
        status.segments,
        appended / 1e6,
        figure / 1e6,
    );
    Ok(())
}

/// Nanoseconds to open and read a whole log.
fn read_log(methods: u64) -> Result<f64, Box<dyn Error>> {
    let start = cpu_time();
    let mut reader = Reader::new(main_file()?, Limits::default())?;
    for segment in open("strata-clr-log")? {
        file::check_segment(&segment)?;
        reader.add_segment(segment)?;
    }
    let mut read = 0;
    loop {
        let poll = reader.poll(Budget::default(), 0)?;
        read += poll.entries.len() as u64;
        if !poll.more {
            break;
        }
    }
    assert_eq!(read, methods);
    Ok(cpu_time() - start)
}
