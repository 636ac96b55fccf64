//! The local store of profiles: a directory that one process writes and any number read.
//!
//! [`Store`] takes profiles, each with a [`Head`] that describes its origin; [`Reader`] answers a
//! [`Selection`] with one merged [`strata_profile::Profile`], which every writer of that crate can
//! write, and compares two of them. Nothing here is asynchronous: a daemon calls it from a thread
//! that may wait for a disk.
//!
//! # Code map
//! `store` the writer and its lock, with retention and recovery; `writing` one segment as it is written;
//! `merging` merges over time, `rollup` brings the hours of a day together; `reader` runs queries,
//! on several threads by `parallel`; `selection` selects the profiles of a query; `segment` finds
//! the records of a file; `record`, `body`, `dictionary` (written), `tables` (read back), `series`,
//! `wire` the format; `late` symbols that were known after their frames were stored; `directory` file
//! names.
//!
//! # Format, version 2
//! A directory holds `lock` and, for every segment, `NUMBER.seg` (`NUMBER.open` while it is
//! written) and `NUMBER.merged`. NUMBER is sixteen hexadecimal digits and grows. A segment holds
//! the profiles of about an hour; `NUMBER.merged` holds, for the profiles of that segment alone,
//! merges over whole hours and whole five minutes since 1970. `NUMBER.rollup` holds the hours of
//! the segment of that number and of those that follow it, of 24 hours at most. `NUMBER.names`
//! holds late symbols.
//!
//! All files have one form: the sixteen bytes `strata-store`, `02 00 00 00` (the version), then
//! records without gaps. A record is a header of 48 bytes, numbers little-endian, and a payload:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `SREC` |
//! | 4 | 1 | kind: 1 series, 2 profile, 3 index, 4 trailer, 5 members, 6 names |
//! | 5 | 1 | 1 if the payload is an LZ4 block |
//! | 6 | 2 | of a profile in a roll-up: whose, a position in the list of members; else 0 |
//! | 8 | 4 | series: its number, from 0 in the order of the series' records; of names: how many |
//! | 12 | 4 | seconds merged: 0 for a profile as it came, 300, 3600 |
//! | 16 | 8 | start, nanoseconds since 1970; of a trailer: where the index begins in the file |
//! | 24 | 8 | end; of names: that of the last profile without them |
//! | 32 | 4 | bytes of the payload as it lies here |
//! | 36 | 4 | and decompressed, at most 64 MiB |
//! | 40 | 4 | low half of the XXH3 of the payload as it lies here |
//! | 44 | 4 | low half of the XXH3 of the 44 bytes before |
//!
//! In payloads a *number* is LEB128, a *signed* one zigzag LEB128, a *text* a number of bytes and
//! UTF-8, a *list* a number of items and the items.
//!
//! - **Series**, before its first profile: service, kind (texts), labels (list of two texts,
//!   sorted), sample types (list of name and unit), default sample type, period type and unit
//!   (texts), period (signed).
//! - **Profile**: the number of bytes of the dictionary's part, that part, the samples' part.
//!   The *dictionary* belongs to all series of one service in the file, and each record adds what
//!   it is the first to need. Five tables, each as the number of its first new entry, how many
//!   there are, and those; entry 0 is the empty one and never written:
//!   strings (text); mappings (path, build id); locations (mapping, list of frames: name, system
//!   name, file, line, kind); stacks (how much smaller the caller's number is than its own,
//!   location), which makes them a prefix tree; label sets (list of four signed: key, 0 for a text
//!   or 1 for a number, the text's or the number's value, unit). Texts are numbers of strings.
//!   The *samples*, in columns: runtime id and host (strings), how many profiles were merged,
//!   overflows, how many sample types, how many samples; stacks, ascending, and label sets, each
//!   as the signed difference to the one before; for each sample type a number and the values as
//!   signed multiples of it; 0, or 1 and the samples in time: how many, then label sets, stacks,
//!   times in nanoseconds since the start, values and weights, as signed differences. The value is
//!   that of the sample type that is no count: nanoseconds on a CPU or waiting.
//! - **Members**, first in a roll-up: list of the segments it stands for: number, the first and
//!   the last start of a profile (signed).
//! - **Index**, when a segment is sealed: list of series as above; list of members as above; list
//!   of profiles: series, seconds merged, in a roll-up the member, start (difference, signed), end
//!   minus start (signed), where its record begins (difference), bytes of the record.
//! - **Trailer**: no payload; the last record of a sealed file.
//! - **Names**, the records of `NUMBER.names`: list of texts; list of symbols: key, path, build id,
//!   list of frames as of a location. Texts are positions among this record's.
//!
//! A frame without a symbol that may get one later has a key as its system name, `late:` and
//! sixteen hexadecimal digits. Answers have its symbol if there is one under that key, and its name
//! without the key if not. The daemon draws keys at random and only it knows them: what a target
//! writes into its files (paths, build ids, names) never finds a symbol.
//!
//! A roll-up's record stands only for its member: when that segment is dropped, it is left out of
//! every answer, and the file goes with its last member.
//!
//! A dictionary belongs to a service and not to the whole segment, because queries do: an hour of
//! one service is read without a byte of the other forty-nine. Addresses are not kept (see
//! `dictionary`): a location is its functions, lines and file.
//!
//! # Crash safety
//! A record is one write. A process killed at any moment leaves whole records and at most one torn
//! one; readers stop before it, and the next writer truncates it, writes the index and seals.
//! Without an index or with a damaged one, the headers are enough to find everything. Merges get
//! their name when they are whole and on the disk. When the host loses power, what was written in
//! the last [`Options::sync_every`] may be gone. Damage within a record costs it and what follows
//! of the same service in that segment; it is counted in [`Answer::damaged`]. Damaged merges and
//! roll-ups cost nothing: what they stand for is read instead. Damaged late symbols cost these: their
//! frames are as they were. A segment that does not even begin
//! as one is put aside as `NUMBER.damaged`, which goes when it is too old, or first when there is
//! no room. A store that has a file of another version is not opened, and left as it is.
//!
//! # The cost of a query
//! A day of fifty services that are profiled every fifteen seconds (288,000 profiles, 33 million
//! samples, 14,000 records of 33 MB that are read for it) takes half a second of processor time,
//! which up to four threads share, a service at a time; one service's day takes 15 ms. In memory are
//! the answer (40 MB, which grows with what is different in it, not with time), one service's
//! records of one file for each thread, and half of the answer once more while threads' parts are
//! put together. To compare two hours of all fifty takes as long and 170 MB: two answers and a tree
//! of both. The benchmark (`cargo bench -p strata-store`) asks these questions.
//!
//! A writer keeps the dictionaries of the open segment in memory ([`Store::dictionaries`]), up to
//! about [`Options::dictionary_bytes`]. Those that have no room are read back from the file for each
//! profile, in about half a millisecond; a service with ever new names begins a new segment.
//!
//! # Design choices
//! LZ4 by `lz4_flex`, because it decodes in safe Rust, within a given size, and needs no C
//! compiler for the static builds; columns and dictionaries have taken out most of what a stronger
//! coder would find. XXH3 because it costs nothing beside a write. The lock is the standard
//! library's file lock, which ends with its process.
//!
//! Invariant: nothing in a file makes a reader panic, loop or take memory beyond a constant
//! multiple of the file's real size.

mod body;
mod dictionary;
mod directory;
mod error;
mod late;
mod merging;
mod parallel;
mod reader;
mod record;
mod rollup;
mod segment;
mod selection;
mod series;
mod store;
mod tables;
mod wire;
mod writing;

pub use error::{Damage, StoreError};
pub use late::{LateFrame, LateSymbol};
pub use reader::{Answer, Comparison, Holding, Reader};
pub use selection::{Exactly, Pattern, Selection};
pub use series::Head;
pub use store::{Counters, Options, Store};
pub use tables::Detail;
