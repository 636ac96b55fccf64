//! A process that fakes the memory of strata's library, in one of many ways.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use strata_bridge_protocol::event::{Event, MAX_DETAIL, MAX_FRAMES};
use strata_bridge_protocol::field::IlMapEntry;
use strata_bridge_protocol::layout::{
    MAIN_NAME, MAIN_SIZE, MAX_SEGMENTS, MainHeader, RECORD_COMMITTED, RECORD_END, RING_CELL,
    RING_CELLS, RING_HEAD, RING_WORDS, RecordHeader, SEGMENT_DATA, SEGMENT_NAME, SEGMENT_SIZE,
    SEGMENT_TAIL, STATUS, SegmentHeader, StatusPage,
};
use strata_bridge_protocol::record::{Encode, IlMap, ThreadEnd, kind};
use strata_bridge_protocol::shared_file::create;
use strata_bridge_protocol::status::State;
use strata_bridge_protocol::writer::Writer;

const ID: [u8; 16] = [9; 16];

fn main() {
    let behaviour = std::env::args().nth(1).expect("a behaviour");
    match behaviour.as_str() {
        "random" => random(),
        "cycles" => cycles(),
        "millions" => fill(&thread_end()),
        "fat" => fill(&fat()),
        "reserved" => reserved(),
        "holes" => holes(),
        "promises" => promises(),
        "unsealed" => unsealed(),
        "huge-pages" => huge_pages(),
        "many" => many(),
        "holds" => std::mem::forget(main_file(&status(1, 0))),
        "execs" | "first-thread-ends" => std::mem::forget(main_file(&status(0, 0))),
        "another-version" => another_version(),
        "ring-flood" => ring_flood(),
        "ring-noise" => ring_noise(),
        other => panic!("no behaviour {other}"),
    }
    say_running();
    if behaviour == "holds" {
        hold(&std::env::args_os().nth(2).expect("a file that hangs"));
    }
    if behaviour == "execs" {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let error =
            std::os::unix::process::CommandExt::exec(std::process::Command::new("sleep").arg("60"));
        panic!("{error}");
    }
    if behaviour == "first-thread-ends" {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        // SAFETY: this thread does nothing any more.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    loop {
        std::thread::park();
    }
}

fn say_running() {
    use std::io::Write;
    println!("running");
    std::io::stdout().flush().expect("standard output");
}

/// Maps a file permanently.
fn map(file: &impl AsRawFd, size: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel finds room.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

fn status(segments: u64, committed: u64) -> StatusPage {
    StatusPage {
        state: State::Ready as u64,
        segments,
        committed: [committed; 64],
        ..StatusPage::zero()
    }
}

fn main_file(status: &StatusPage) -> OwnedFd {
    let file = create(MAIN_NAME, MAIN_SIZE, &MainHeader::new(ID).to_bytes()).expect("a main file");
    map(&file, MAIN_SIZE);
    let file = File::from(file);
    file.write_all_at(&status.to_bytes(), STATUS as u64).expect("writing");
    file.into()
}

/// A segment with this content behind its header.
fn segment(number: u32, content: &[u8]) -> OwnedFd {
    let header = SegmentHeader::new(ID, number).to_bytes();
    let file = create(SEGMENT_NAME, SEGMENT_SIZE, &header).expect("a segment");
    map(&file, SEGMENT_SIZE);
    let file = File::from(file);
    file.write_all_at(content, SEGMENT_DATA as u64).expect("writing");
    file.write_all_at(&(SEGMENT_SIZE as u64).to_le_bytes(), SEGMENT_TAIL as u64).expect("writing");
    file.into()
}

/// Maps something over a written page of a file that cannot be written back: the kernel waits for
/// that with this process's memory locked.
fn hold(path: &std::ffi::OsStr) {
    let file = File::options().read(true).write(true).open(path).expect("the file");
    let page = map(&file, 4096);
    // SAFETY: a page of this program's own mapping, which nothing else refers to.
    unsafe { page.write_volatile(1) };
    std::thread::sleep(std::time::Duration::from_millis(500));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: over that mapping alone.
    unsafe { libc::mmap(page.cast(), 4096, libc::PROT_NONE, flags, -1, 0) };
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count / 8).flat_map(|_| next().to_le_bytes()).collect()
}

/// Right headers, and nothing right behind them.
fn random() {
    let main = File::from(main_file(&status(64, u64::MAX)));
    let noise = random_bytes(MAIN_SIZE - 4096);
    main.write_all_at(&noise, 4096).expect("writing");
    let noise = random_bytes(SEGMENT_SIZE - SEGMENT_DATA);
    std::mem::forget((0..8).map(|number| segment(number, &noise)).collect::<Vec<_>>());
    std::mem::forget(main);
}

fn record(kind: u16, length: u32, state: u8) -> [u8; size_of::<RecordHeader>()] {
    RecordHeader { length, kind, flags: 0, state, time: 1 }.to_bytes()
}

/// Records whose lengths are nothing, too large, or lead nowhere.
fn cycles() {
    let lengths = [0, 8, 7, 1 << 31, u32::MAX, 16, SEGMENT_SIZE as u32];
    for number in 0..MAX_SEGMENTS {
        let length = lengths[number % lengths.len()];
        let content = record(kind::THREAD, length, RECORD_COMMITTED).repeat(1000);
        std::mem::forget(segment(number as u32, &content));
    }
    std::mem::forget(main_file(&status(u64::MAX, u64::MAX)));
}

fn encoded(value: &impl Encode, kind: u16) -> Vec<u8> {
    let mut fields = Vec::new();
    value.encode(&mut fields);
    let length = (size_of::<RecordHeader>() + fields.len()).next_multiple_of(8);
    let mut bytes = record(kind, length as u32, RECORD_COMMITTED).to_vec();
    bytes.extend(fields);
    bytes.resize(length, 0);
    bytes
}

fn thread_end() -> Vec<u8> {
    encoded(&ThreadEnd { managed_id: 7 }, kind::THREAD_END)
}

fn fat() -> Vec<u8> {
    let entries = vec![IlMapEntry::default(); 8192];
    encoded(&IlMap { function: 1, rejit: 0, start: 1, entries: &entries }, kind::IL_MAP)
}

/// As many segments as there may be, full of one record.
fn fill(record: &[u8]) {
    let mut content = record.repeat((SEGMENT_SIZE - SEGMENT_DATA - 8) / record.len());
    content
        .extend(RecordHeader { state: RECORD_END, ..RecordHeader::zero() }.to_bytes()[..8].iter());
    for number in 0..MAX_SEGMENTS {
        std::mem::forget(segment(number as u32, &content));
    }
    std::mem::forget(main_file(&status(MAX_SEGMENTS as u64, u64::MAX)));
}

/// Records that are begun and never finished.
fn reserved() {
    let content = record(kind::THREAD, 16, 1).repeat((SEGMENT_SIZE - SEGMENT_DATA) / 16);
    for number in 0..MAX_SEGMENTS {
        std::mem::forget(segment(number as u32, &content));
    }
    std::mem::forget(main_file(&status(MAX_SEGMENTS as u64, u64::MAX)));
}

/// Punches holes into everything while it is being read.
fn holes() {
    let record = thread_end();
    let content = record.repeat((SEGMENT_SIZE - SEGMENT_DATA) / record.len());
    let main = main_file(&status(MAX_SEGMENTS as u64, u64::MAX));
    let segments: Vec<OwnedFd> = (0..8).map(|number| segment(number, &content)).collect();
    std::thread::spawn(move || {
        let punch = |file: &OwnedFd, size: usize| {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open; no memory of this program is involved.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, size as libc::off_t) };
        };
        loop {
            segments.iter().for_each(|file| punch(file, SEGMENT_SIZE));
            punch(&main, MAIN_SIZE);
            for (number, file) in segments.iter().enumerate() {
                let file = File::from(file.try_clone().expect("a descriptor"));
                let header = SegmentHeader::new(ID, number as u32).to_bytes();
                let _ = file.write_all_at(&header, 0);
                let _ = file.write_all_at(&content, SEGMENT_DATA as u64);
            }
            let file = File::from(main.try_clone().expect("a descriptor"));
            let _ = file.write_all_at(&MainHeader::new(ID).to_bytes(), 0);
            let _ = file.write_all_at(&status(8, u64::MAX).to_bytes(), STATUS as u64);
        }
    });
}

/// Names segments that are nowhere, among very many mappings.
fn promises() {
    std::mem::forget(main_file(&status(MAX_SEGMENTS as u64, u64::MAX)));
    // Neighbours with different protection cannot be merged: 60,000 lines of /proc/PID/maps.
    let (count, page) = (60_000, 4096);
    // SAFETY: a new mapping, of which every other page is made readable.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = libc::mmap(std::ptr::null_mut(), count * page, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        for number in (0..count).step_by(2) {
            libc::mprotect(start.add(number * page), page, libc::PROT_READ);
        }
    }
}

fn plain_memfd(name: &CStr, flags: libc::c_uint, size: usize) -> Option<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    // SAFETY: a descriptor that was just made, without another owner.
    let file = (file >= 0).then(|| unsafe { File::from_raw_fd(file) })?;
    file.set_len(size as u64).ok()?;
    Some(file)
}

/// Could shrink under its reader.
fn unsealed() {
    let file = plain_memfd(MAIN_NAME, libc::MFD_ALLOW_SEALING, MAIN_SIZE).expect("a memfd");
    file.write_all_at(&MainHeader::new(ID).to_bytes(), 0).expect("writing");
    map(&file, MAIN_SIZE);
    std::mem::forget(file);
}

fn huge_pages() {
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    if let Some(file) = plain_memfd(MAIN_NAME, flags, MAIN_SIZE) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that is never touched.
        unsafe {
            libc::mmap(std::ptr::null_mut(), MAIN_SIZE, protection, flags, file.as_raw_fd(), 0)
        };
        std::mem::forget(file);
    }
}

/// Thousands of files of the right names.
fn many() {
    for number in 0..400 {
        let mut header = MainHeader::new(ID);
        header.ring_cells = number;
        let file = create(MAIN_NAME, MAIN_SIZE, &header.to_bytes()).expect("a file");
        map(&file, MAIN_SIZE);
        let file = create(SEGMENT_NAME, SEGMENT_SIZE, &[]).expect("a file");
        map(&file, SEGMENT_SIZE);
    }
}

/// Pushes the largest events as fast as it can.
fn ring_flood() {
    let writer = Writer::create().expect("memory");
    writer.prepare_ring().expect("memory");
    writer.status().set_events(1, u64::MAX);
    writer.status().set_state(State::Ready);
    std::thread::spawn(move || {
        let frames = [7; MAX_FRAMES];
        let detail = [0xff; MAX_DETAIL];
        let event = Event { kind: 3, frames: &frames, detail: &detail, ..Event::default() };
        loop {
            let _ = writer.push(&event);
        }
    });
}

/// A ring in which nothing holds together, and whose head moves.
fn ring_noise() {
    let status = StatusPage { event_kinds: u64::MAX, counts: [u64::MAX; 32], ..status(0, 0) };
    let main = File::from(main_file(&status));
    let noise = random_bytes(RING_CELLS * (8 + RING_CELL));
    main.write_all_at(&noise, RING_WORDS as u64).expect("writing");
    std::thread::spawn(move || {
        for head in (0..u64::MAX).step_by(1234) {
            let _ = main.write_all_at(&head.to_le_bytes(), RING_HEAD as u64);
        }
    });
}

fn another_version() {
    let mut header = MainHeader::new(ID);
    header.version = 99;
    let file = create(MAIN_NAME, MAIN_SIZE, &header.to_bytes()).expect("a file");
    map(&file, MAIN_SIZE);
    std::mem::forget(file);
}
