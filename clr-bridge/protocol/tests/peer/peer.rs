//! The other process of the tests: a correct writer, an owner, or a hostile process.
//!
//! It plays the role of its first argument, prints `ready` or the reason why it cannot, and
//! executes the lines of its standard input until the end of it.

mod hostile;

use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_bridge_protocol::event::Event;
use strata_bridge_protocol::field::Sink;
use strata_bridge_protocol::layout::MAIN_SIZE;
use strata_bridge_protocol::owning::Owner;
use strata_bridge_protocol::reader::file;
use strata_bridge_protocol::record::{Diagnostic, Encode, NotFound};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::writer::Writer;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["write"] => write(),
        ["flood", threads] => flood(threads.parse().expect("a number")),
        ["stuck"] => stuck(),
        ["own", path] => own(path),
        ["limited"] => limited(),
        ["hostile", what] => hostile::play(what),
        other => panic!("no role {other:?}"),
    }
}

/// Prints that the role can be played, and executes commands.
fn obey(mut answer: impl FnMut(&str) -> String) {
    println!("ready");
    for line in stdin().lock().lines() {
        println!("{}", answer(&line.expect("a line")));
    }
}

fn write() {
    let writer = Writer::create().expect("memory");
    let mut next = 0;
    obey(|line| match line {
        "append" => {
            next += 1;
            format!("{:?}", writer.append(monotonic_time(), &NotFound { ip: next }))
        }
        "owner?" => writer.owner_lives(monotonic_time()).to_string(),
        "beat" => writer.control().beat().to_string(),
        // Ten seconds later, for the writer.
        "owner later?" => writer.owner_lives(monotonic_time() + 11_000_000_000).to_string(),
        "close descriptors" => {
            // SAFETY: nothing of this program uses descriptors beyond the first three.
            let result = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            // The numbers are used again, by something else.
            let other = std::fs::File::open("/dev/null").expect("a file");
            std::mem::forget(other);
            result.to_string()
        }
        "fork" => forked(&writer),
        other => panic!("no command {other:?}"),
    });
}

/// What a forked child can do with its parent's writer.
fn forked(writer: &Writer) -> String {
    // SAFETY: this program has one thread here, and the child only looks and ends.
    match unsafe { libc::fork() } {
        0 => {
            let append = writer.append(0, &NotFound { ip: 666 });
            let push = writer.push(&Event::default());
            let register = writer.register_thread(5);
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            let mapped = maps.lines().filter(|line| line.contains("strata-clr")).count();
            let forked = writer.is_forked() && append.is_err() && push.is_err();
            let good = forked && register.is_err() && !writer.owner_lives(0) && mapped == 0;
            writer.prepare_log(0);
            writer.remove_thread(5);
            // SAFETY: ends the child without running what the parent registered.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writing.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            format!("child {status}, forked {}", writer.is_forked())
        }
    }
}

/// Threads that write as fast as they can, until they are stopped.
fn flood(threads: u64) {
    let writer = Arc::new(Writer::create().expect("memory"));
    writer.prepare_ring().expect("memory");
    for thread in 0..threads {
        let writer = Arc::clone(&writer);
        std::thread::spawn(move || {
            let frames = [thread; 24];
            for number in 0.. {
                let ip = thread << 32 | number;
                if writer.append(ip, &NotFound { ip }).is_err() {
                    break;
                }
                _ = writer.push(&Event { time: ip, frames: &frames, ..Event::default() });
            }
        });
    }
    obey(|_| String::new());
}

/// A record whose writer stops half-way.
struct Half {
    writing: AtomicBool,
    begun: AtomicBool,
}

impl Encode for Half {
    const KIND: u16 = NotFound::KIND;

    fn encode(&self, sink: &mut impl Sink) {
        sink.put(&[1; 4]);
        // The first time it is only measured.
        if self.writing.swap(true, Ordering::Relaxed) {
            self.begun.store(true, Ordering::Release);
            loop {
                std::thread::park();
            }
        }
        sink.put(&[1; 4]);
    }
}

/// One thread stands still within a record while others write on.
fn stuck() {
    let writer = Arc::new(Writer::create().expect("memory"));
    writer.append(1, &NotFound { ip: 1 }).expect("room");
    let half = Arc::new(Half { writing: false.into(), begun: false.into() });
    let (of_thread, half_of_thread) = (Arc::clone(&writer), Arc::clone(&half));
    std::thread::spawn(move || of_thread.append(2, &*half_of_thread));
    while !half.begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    writer.append(3, &Diagnostic { level: 1, text: "behind" }).expect("room");
    obey(|_| format!("{:?}", writer.append(4, &NotFound { ip: 4 })));
}

fn own(path: &str) {
    let file = file::open(path.as_ref()).expect("it can be opened");
    file::check_main(&file).expect("a main file");
    match Owner::take(file, "the peer") {
        Ok(mut owner) => obey(|_| format!("{:?}", owner.beat())),
        Err(error) => println!("{error}"),
    }
}

/// Sets a limit; the type of its number differs between the C libraries.
macro_rules! set_limit {
    ($what:expr, $bytes:expr) => {{
        let limit = libc::rlimit { rlim_cur: $bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is a valid structure.
        assert_eq!(unsafe { libc::setrlimit($what, &raw const limit) }, 0);
    }};
}

/// In a process that may not have files of the size that is needed, and then not the memory.
fn limited() {
    set_limit!(libc::RLIMIT_FSIZE, MAIN_SIZE as u64 - 1);
    let refused = Writer::create().expect_err("no memory").to_string();
    // Enough for the main file, not for a segment.
    set_limit!(libc::RLIMIT_FSIZE, MAIN_SIZE as u64);
    let refused_later = Writer::create().expect_err("no memory").to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let left = maps.lines().filter(|line| line.contains("strata-clr")).count();
    set_limit!(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);

    let writer = Writer::create().expect("memory");
    let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = pages.split(' ').next().and_then(|size| size.parse().ok()).expect("a size");
    set_limit!(libc::RLIMIT_AS, pages * 4096 + (2 << 20));
    let append = |now| writer.append(now, &NotFound { ip: 1 });
    let lost = (0..1 << 20).find_map(|_| append(0).err()).expect("it does not fit").to_string();
    set_limit!(libc::RLIMIT_AS, libc::RLIM_INFINITY);
    let soon = append(1000).is_ok();
    let later = append(2_000_000_000).is_ok();
    let memory = format!("{lost}, soon {soon}, later {later}");
    obey(|line| match line {
        "files?" => format!("{refused}; {refused_later}; {left} mappings left"),
        _ => memory.clone(),
    });
}
