//! The memory that the CLR bridge shares with strata: its bytes, its writer, its reader.
//!
//! The bridge runs inside a .NET process and makes a main file and log segments, all sealed memfds
//! that stay mapped. strata finds them in `/proc/PID/maps`, opens them through
//! `/proc/PID/map_files` and trusts nothing in them.
//!
//! | who | starts at |
//! |---|---|
//! | the bridge | [`writer::Writer`]: log, ring, contexts, status, control |
//! | strata, any number of readers | [`reader::file`] and [`reader::Reader`]: log, status, contexts |
//! | the bridge's own thread | [`compaction::Compaction`]: keeps the log as long as what lives |
//! | strata, a reader with wishes | [`beside::ReaderWishes`] |
//! | strata, the owner | [`owning::Owner`]: wishes, requests; [`reader::ring::RingReader`]: events |
//! | both | [`record`], [`event`] and [`clr_event`]: what is reported; [`status`], [`control`]: the bridge's state, the owner's wishes |
//!
//! Below these: [`layout`] (every number), [`field`] (a record's bytes), [`decode_error`], [`log`] and [`ring`]
//! (appending and pushing without a lock), [`life`] (what a record begins or ends), [`table`],
//! [`contexts`], [`owner`] (the lock), `control_pages`
//! (writing without a wait), [`doorbell`],
//! [`shared_file`] (memfds, seals, forks), [`memory`] (what the algorithms run on: mapped memory,
//! or a model checker's).
//!
//! # Rules
//!
//! - Everything is little-endian. Offsets count from the start of their file. What is not named is
//!   zero, and ignored by readers.
//! - A file is complete before it is sealed, and sealed (shrink, grow, seal) before it is mapped:
//!   what is found can neither be unfinished nor change its size.
//! - Each page has one writer: the bridge, or the owner. The doorbell is the only word that both
//!   write. A reader beside the owner writes its own wishes and nothing else ([`beside`]).
//! - The bridge never waits for a reader. What has no room is dropped and counted
//!   ([`status::Loss`]).
//! - Version 1 means exactly the numbers below; the header repeats them so that a file explains
//!   itself, and a header with others is refused. A reader of another version reports which side is
//!   newer, and that the process has to be restarted ([`reader::HeaderError`]).
//!
//! # Main file
//!
//! `memfd:strata-clr`, 2 MiB. The ring's pages get memory when events are first wished for, those of
//! watched objects when these are.
//!
//! | offset | bytes | written by | what |
//! |---:|---:|---|---|
//! | 0x000000 | 128 | none | header |
//! | 0x001000 | 256 | owner | wishes |
//! | 0x001200 | 16 | owner | ring tail `u64`, the same checked `u64` (complement of its bytes reversed) |
//! | 0x001240 | 8 | owner | beat `u64`: counted up whenever the owner looks |
//! | 0x001280 | 8 | both | doorbell `u32`, 4 bytes zero: the futex that the bridge's thread sleeps on ([`doorbell`]) |
//! | 0x001400 | 16 × 64 | readers | wishes of readers beside the owner |
//! | 0x002000 | 256 × 32 | owner | request slots |
//! | 0x004000 | 4096 | bridge | status |
//! | 0x005000 | 8 | bridge | sequence of the last request handled `u64` |
//! | 0x005800 | 256 × 8 | bridge | answers: sequence (lower 56 bits) << 8, outcome |
//! | 0x006000 | 8 | bridge | ring head `u64`, in cells |
//! | 0x006040 | 8 | bridge | the last whole tail that was seen `u64` |
//! | 0x010000 | 4096 × 64 | bridge | thread contexts |
//! | 0x050000 | 16384 × 8 | bridge | words of the ring's cells |
//! | 0x070000 | 16384 × 64 | bridge | cells of the ring |
//! | 0x170000 | 8 | bridge | sampled objects that found no place in the table `u64` |
//! | 0x171000 | 8192 × 8 | bridge | watched objects: serial number `u32`, shift `u8`, 1 if in use `u8`, collections survived `u16` ([`objects`]) |
//! | 0x181000 | | | zero, for what comes later |
//!
//! **Header**
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `[u8; 8]` | `STRTCLR\0` |
//! | 8 | `u32` | version: 1 |
//! | 12 | `u32` | size of the header: 128 |
//! | 16 | `u64` | size of the file |
//! | 24 | `[u8; 16]` | random id, repeated in every segment |
//! | 40 | `u64` | size of a segment |
//! | 48 | `u32` × 6 | segments at most, request slots, context slots, size of a context slot, cells, size of a cell |
//! | 72 | `u32` × 8 | offsets of control, requests, status, answers, contexts, ring head, ring words, ring cells |
//! | 104 | 24 bytes | zero |
//!
//! **Wishes**: the owner's writes are copies, so half of a change can be met; the checksum (FNV-1a,
//! 64 bits) then does not fit, and the bridge looks again.
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u64` | checksum of the other 248 bytes |
//! | 8 | `u32` | epoch: each owner has another; 0 for none |
//! | 12 | `u32` | the owner's pid, for display |
//! | 16 | `u64` | generation: counted up with every change |
//! | 24 | `u64` | flags ([`control::wish`]) |
//! | 32 | `[u8; 32]` | the owner's name, for display |
//! | 64 | `u32` × 32 | rates of event types |
//! | 192 | `u64` | what the owner's reader can do ([`control::capability`]); 0 in older versions |
//! | 200 | 56 bytes | zero |
//!
//! **Wishes of a reader**: the owner reads those whose byte is locked, and adds them to its own
//! ([`beside`]); the bridge does not read them.
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u64` | checksum of the other 56 bytes |
//! | 8 | `u64` | flags: events ([`control::wish::EVENTS`]) |
//! | 16 | 48 bytes | zero |
//!
//! **Request slot**: request *n* of an epoch lies in slot *n* mod 256; an owner has at most 256
//! open.
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u64` | sequence: epoch << 32, number from 1 |
//! | 8 | `u64` × 2 | two arguments |
//! | 24 | `u32` | kind ([`control::request`]) |
//! | 28 | `u32` | lower half of the checksum of the slot with this field zero |
//!
//! **Status**
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u64` | state ([`status::State`]) |
//! | 8 | `u64` | pid in the process's own PID namespace |
//! | 16 | `u64` | when the file was made: nanoseconds of the monotonic clock |
//! | 24 | `u16` × 4 | version of the runtime: major, minor, build, revision |
//! | 32 | `u64` | which `ICorProfilerInfo` the bridge obtained |
//! | 40 | `u64` | segments that exist |
//! | 48 | `u64` | wishes in force: epoch << 32, generation |
//! | 64 | `[u8; 64]` × 2 | texts: the runtime, the bridge |
//! | 192 | `u64` | address of the function that is called with events ([`clr_event`]); 0: none |
//! | 200 | `u64` | kinds of events that can be wished for: a bit each, by [`clr_event::kind`] |
//! | 208 | `u64` × 2 | positions in the log of the oldest and of the newest segment |
//! | 256 | `u64` × 32 | losses by cause ([`status::Loss`]) |
//! | 512 | `u64` × 32 | counts ([`status::Count`]) |
//! | 1024 | `u64` × 64 | committed bytes of each segment, in whichever order: a hint that there is something new |
//!
//! **Thread context**: the slot of a thread is the first of 16 from `(tid × 0x9e3779b9 mod 2³²) >>
//! 20` on (round the table) whose tid is its own; a tid of 0 ends the search, `u32::MAX` (a thread
//! that is gone) does not.
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u32` | tid in the thread's innermost PID namespace |
//! | 4 | `u32` | sequence: odd while the slot is being written |
//! | 8 | `u64` | AppDomain |
//! | 16 | `u64` | label set |
//! | 24 | `u64` | span |
//! | 32 | `u64` × 2 | trace, upper half first |
//! | 48 | `u64` | root span |
//! | 56 | `u64` | generation: how many threads have had the slot |
//!
//! **Ring**: positions count cells and only grow. Position *p* means cell *p* mod 16384 in pass
//! *p* / 16384 + 1. An event takes whole cells, also round the end; the word of its first cell is
//! pass << 24 | cells << 2 | state (1 reserved, 2 committed). An event:
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u16` | kind |
//! | 2 | `u16` | frames |
//! | 4 | `u32` | bytes of detail |
//! | 8 | `u64` | nanoseconds of the monotonic clock |
//! | 16 | `u32` | tid in the thread's innermost PID namespace |
//! | 20 | `u32` | flags ([`clr_event::snapshot`]) |
//! | 24 | `u64` | AppDomain |
//! | 32 | `u64` × 2 | the thread's name, 16 bytes |
//! | 48 | `u64` each | frames, innermost first: addresses in managed code |
//! | | bytes | detail: the beginning of the event's block ([`clr_event::Block::used`]) |
//!
//! # Log segments
//!
//! `memfd:strata-clr-log`, 4 MiB each, at most 64, made when they are needed. Memory is taken 256
//! KiB at a time. Appended to by many threads at once, read by any process. What compaction has
//! emptied gives its memory back and is used again at the end of the log ([`compaction`]).
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `[u8; 8]` | `STRTLOG\0` |
//! | 8 | `u32` | version: 1 |
//! | 12 | `u32` | number, from 0 |
//! | 16 | `[u8; 16]` | the main file's id |
//! | 32 | `u64` | size of the file |
//! | 40 | `u64` | stamp: even while it is a part of the log, odd when it was given back; another each time |
//! | 48 | `u64` | position in the log; with stamp 0 its number |
//! | 64 | `u64` | tail: how far the segment is reserved (for writers; readers go by the records) |
//! | 128 | | records |
//!
//! **Record**: begins at a multiple of 8, ends within its segment.
//!
//! | offset | type | what |
//! |---:|---|---|
//! | 0 | `u32` | length with this header, a multiple of 8, at most 128 KiB |
//! | 4 | `u16` | kind ([`record::kind`]) |
//! | 6 | `u8` | flags: 1 if a text or list was truncated |
//! | 7 | `u8` | state: 0 free, 1 reserved, 2 committed, 3 nothing more in this segment |
//! | 8 | `u64` | nanoseconds of the monotonic clock (not with state 3) |
//! | 16 | | fields, in the order in which [`record`] lists them, packed; then padding |
//!
//! Fields: integers as they are; a text is a `u16` length and UTF-8, at most 4096 bytes; a byte
//! string likewise; a list is a `u16` count and its items (texts: 64, code ranges: 64, IL map
//! entries: 8192 at most). A code range is `u64` start, `u32` size, byte string; an IL map entry is
//! `u32` native, `i32` IL.
//!
//! **A writer that stops half-way.** The first word of a record is reserved, with its length, in
//! one atomic step, so whatever happens to a thread, what follows its record can be found. A reader
//! stops at a reserved record; it steps over it when the process has ended, or after two seconds,
//! and then looks at it again each time, because a stopped thread may go on. A thread that is
//! killed thus costs its own record, which is counted ([`reader::ReaderLosses::unfinished`]). In
//! the ring a reserved event of a living process is waited for: its cells may still be written. The
//! ring can fill behind it, which is counted by the bridge.
//!
//! # The owner
//!
//! Ring, wishes and requests have one owner: the process that holds the open-file-description write
//! lock on byte 0 of the main file ([`owner`]). The kernel releases it when its holder dies. A reader
//! that has wishes of its own holds such a lock on one of the bytes 1 to 16.

pub mod beside;
pub mod clr_event;
pub mod collection;
pub mod compaction;
pub mod contexts;
pub mod control;
mod control_pages;
pub mod decode_error;
pub mod doorbell;
pub mod event;
pub mod exercise;
pub mod field;
pub mod layout;
pub mod life;
pub mod log;
pub mod memory;
pub mod objects;
pub mod owner;
pub mod owning;
pub mod reader;
pub mod record;
pub mod ring;
pub mod shared_file;
pub mod status;
pub mod table;
pub mod writer;
