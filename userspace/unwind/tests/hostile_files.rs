//! Files that lie: nothing panics, nothing takes long, and what is written can be read back.

use std::path::Path;

use strata_abi::rule::Packed;
use strata_unwind::FileAt;
use strata_unwind::{Limits, UnwindTable, build, bytes, fuzz_build};

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// xorshift64*: the same mutations in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutate(random: &mut Random, bytes: &mut [u8], within: std::ops::Range<usize>) {
    for _ in 0..1 + random.below(8) {
        let at = within.start + random.below(within.len());
        let Some(byte) = bytes.get_mut(at) else { continue };
        *byte = match random.below(4) {
            0 => 0xff,
            1 => 0,
            2 => *byte ^ (1 << random.below(8)),
            _ => random.next() as u8,
        };
    }
}

fn section(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(bytes).unwrap();
    let (offset, size) = file.section_by_name(name).unwrap().file_range().unwrap();
    offset as usize..(offset + size) as usize
}

#[test]
fn mutated_call_frame_information_never_panics() {
    let original = read("/lib64/ld-linux-x86-64.so.2");
    let frames = section(&original, ".eh_frame");
    let mut random = Random(0x5eed);
    for _ in 0..3000 {
        let mut bytes = original.clone();
        mutate(&mut random, &mut bytes, frames.clone());
        fuzz_build(&bytes);
    }
}

/// Without `.eh_frame` all code is read instruction by instruction.
#[test]
fn mutated_code_never_panics() {
    let mut original = read("/lib64/ld-linux-x86-64.so.2");
    let code = section(&original, ".text");
    let frames = section(&original, ".eh_frame");
    original[frames].fill(0);
    let mut random = Random(0xc0de);
    for _ in 0..30 {
        let mut bytes = original.clone();
        for _ in 0..20 {
            mutate(&mut random, &mut bytes, code.clone());
        }
        fuzz_build(&bytes);
    }
}

#[test]
fn mutated_headers_never_panic() {
    let original = read("/lib64/ld-linux-x86-64.so.2");
    let length = original.len();
    let mut random = Random(0xe1f);
    for _ in 0..3000 {
        let mut bytes = original.clone();
        // The headers of sections lie at the end.
        let within = if random.below(2) == 0 { 0..1024 } else { length - 2048..length };
        mutate(&mut random, &mut bytes, within);
        fuzz_build(&bytes);
    }
}

#[test]
fn a_cut_file_is_an_error_or_a_smaller_table() {
    let original = read("/lib64/ld-linux-x86-64.so.2");
    for size in (0..original.len()).step_by(1009) {
        fuzz_build(&original[..size]);
    }
}

fn table_of(path: &str) -> UnwindTable {
    let source = FileAt::new(std::fs::File::open(Path::new(path)).unwrap()).unwrap();
    build(&source, &Limits::default()).unwrap()
}

#[test]
fn a_table_survives_being_written_and_read() {
    let table = table_of("/lib/x86_64-linux-gnu/libc.so.6");
    assert_eq!(bytes::from_bytes(&bytes::to_bytes(&table)).unwrap(), table);
}

#[test]
fn a_damaged_table_is_not_read() {
    let written = bytes::to_bytes(&table_of("/bin/true"));
    for at in 0..written.len() {
        let mut damaged = written.clone();
        damaged[at] ^= 0x10;
        // The reserved word of the header is the only one without meaning.
        assert!(bytes::from_bytes(&damaged).is_err() || (12..16).contains(&at), "byte {at}");
    }
}

/// The parser of untrusted files may have been taken over by one: then the digest is right.
#[test]
fn a_table_that_lies_under_a_right_digest_is_not_read_or_is_harmless() {
    let written = bytes::to_bytes(&table_of("/bin/true"));
    let mut random = Random(0xd1e);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut damaged = written.clone();
        mutate(&mut random, &mut damaged, 32..written.len());
        let digest = xxhash_rust::xxh3::xxh3_64(&damaged[32..]);
        damaged[24..32].copy_from_slice(&digest.to_le_bytes());
        let Ok(table) = bytes::from_bytes(&damaged) else { continue };
        read += 1;
        for piece in &table.pieces {
            for address in (piece.start()..piece.end()).step_by(61) {
                assert!(table.rules.contains(&table.lookup(address)));
            }
        }
    }
    assert!(read > 0, "every mutation was refused: this tests nothing");
}

#[test]
fn a_quota_on_rules_leaves_the_rest_unsupported_and_counts_it() {
    let source = read("/lib/x86_64-linux-gnu/libc.so.6");
    let limits = Limits { max_rules: 20, ..Limits::default() };
    let table = build(&source, &limits).unwrap();
    assert_eq!(table.rules.len(), 20);
    assert!(table.statistics.refused_rows > 0);
    assert!(table.rules.contains(&strata_abi::rule::Rule::simple(Packed::UNSUPPORTED)));
}

#[test]
fn a_quota_on_rows_cuts_the_table_and_says_so() {
    let source = read("/lib/x86_64-linux-gnu/libc.so.6");
    let limits = Limits { max_rows: 1000, ..Limits::default() };
    let table = build(&source, &limits).unwrap();
    assert!(table.row_count() <= 1000);
    assert_eq!(table.statistics.truncated, 1);
}

#[test]
fn a_text_file_is_no_program() {
    assert!(build(b"#!/bin/sh\n".as_slice(), &Limits::default()).is_err());
}
