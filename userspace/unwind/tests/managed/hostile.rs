//! PE files that lie: nothing panics, nothing takes long, and what is written can be read back.

use strata_abi::rule::{Kind, Packed};
use strata_unwind::{BuildError, Limits, build, build_part, bytes, fuzz_build};

/// A PE file of one section with functions, unwind information, a CLR header and stubs.
fn image() -> Vec<u8> {
    const HEADERS: u32 = 0x400;
    const TEXT: u32 = 0x10400;
    let mut file = vec![0; HEADERS as usize];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x80_u32.to_le_bytes());
    put(0x80, b"PE\0\0");
    put(0x84, &(0x8664_u16 ^ 0x7b79).to_le_bytes());
    // One section, an optional header of 240 bytes with 16 directories.
    put(0x86, &1_u16.to_le_bytes());
    put(0x94, &240_u16.to_le_bytes());
    put(0x98, &0x20b_u16.to_le_bytes());
    put(0x98 + 108, &16_u32.to_le_bytes());
    let directory = |number: usize| 0x98 + 112 + 8 * number;
    put(directory(3), &[(TEXT + 0x100).to_le_bytes(), 36_u32.to_le_bytes()].concat());
    put(directory(14), &[(TEXT + 0x180).to_le_bytes(), 72_u32.to_le_bytes()].concat());
    let section = 0x98 + 240;
    put(section, b".text\0\0\0");
    for (n, word) in [0x400, TEXT, 0x400, HEADERS].iter().enumerate() {
        put(section + 8 + 4 * n, &word.to_le_bytes());
    }
    put(section + 36, &0x6000_0020_u32.to_le_bytes());

    let mut text = vec![0xcc_u8; 0x400];
    let mut put = |at: usize, bytes: &[u8]| text[at..at + bytes.len()].copy_from_slice(bytes);
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    // Three functions; the last is chained to the first.
    let entry = |start: u32, end: u32, information: u32| {
        words(&[TEXT + start, TEXT + end, TEXT + information])
    };
    put(
        0x100,
        &[entry(0x200, 0x240, 0), entry(0x240, 0x260, 0x20), entry(0x280, 0x290, 0x40)].concat(),
    );
    // push rbp at 1, allocate 32 at 5.
    put(0, &[1, 5, 2, 0, 5, 0x32, 1, 0x50]);
    // push rbp at 1, allocate 0x1000 at 8, the frame pointer at 16: RSP + 0x1000.
    put(0x20, &[1, 16, 6, 0xf5, 16, 0x0b, 0, 1, 0, 0, 8, 0x01, 0, 2, 1, 0x50]);
    // Chained: another 64 bytes at 4.
    put(0x40, &[0x21, 4, 1, 0, 4, 0x72, 0, 0]);
    put(0x48, &entry(0x200, 0x240, 0));
    // The CLR's header names the ReadyToRun header, which names the stubs.
    put(0x180 + 64, &words(&[TEXT + 0x1d0, 40]));
    put(0x1d0, b"RTR\0");
    put(0x1d4, &words(&[9, 0, 1, 106, TEXT + 0x300, 0x20]));
    put(0x300, &[0x33, 0xc0, 0x6a, 1, 0xff, 0x35, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0]);
    file.extend_from_slice(&text);
    file
}

fn rule(address: u64) -> (Kind, u64, u64) {
    let table = build(&image(), &Limits::default()).unwrap();
    let word = table.lookup(address).packed;
    let kind = [Kind::None, Kind::Sp, Kind::Fp].into_iter().find(|k| *k as u32 == word.kind());
    (kind.unwrap(), word.cfa_offset(), word.fp_below())
}

#[test]
fn functions_chains_frame_registers_gaps_and_stubs_have_their_rules() {
    const START: u64 = 0x10600;
    assert_eq!(rule(START), (Kind::Sp, 8, 0));
    assert_eq!(rule(START + 1), (Kind::Sp, 16, 16));
    assert_eq!(rule(START + 5), (Kind::Sp, 48, 16));
    assert_eq!(rule(START + 0x48), (Kind::Sp, 0x1010, 16));
    // From RBP, and the extension of the CLR for frames larger than the format allows.
    assert_eq!(rule(START + 0x50), (Kind::Fp, 0x10, 16));
    // Between functions lies one without a frame.
    assert_eq!(rule(START + 0x60), (Kind::Sp, 8, 0));
    // The chained part goes on where the first function's prologue ends.
    assert_eq!(rule(START + 0x80), (Kind::Sp, 48, 16));
    assert_eq!(rule(START + 0x84), (Kind::Sp, 112, 16));
    assert_eq!(rule(START + 0x100), (Kind::Sp, 8, 0));
    assert_eq!(rule(START + 0x104), (Kind::Sp, 16, 0));
    assert_eq!(rule(START + 0x10a), (Kind::Sp, 24, 0));
}

#[test]
fn a_table_of_an_image_survives_being_written_and_read() {
    let table = build(&image(), &Limits::default()).unwrap();
    assert_eq!(bytes::from_bytes(&bytes::to_bytes(&table)).unwrap(), table);
    assert!(table.rules.iter().any(|rule| rule.packed.checks_epilogue()));
}

#[test]
fn unwind_information_that_makes_no_sense_leaves_its_function_unsupported() {
    let mut file = image();
    // Version 3, and a chain that leads to itself.
    file[0x400] = 3;
    file[0x400 + 0x48 + 8..][..4].copy_from_slice(&0x10440_u32.to_le_bytes());
    let table = build(&file, &Limits::default()).unwrap();
    assert_eq!(table.lookup(0x10600).packed, Packed::UNSUPPORTED);
    assert_eq!(table.lookup(0x10680).packed, Packed::UNSUPPORTED);
    assert_eq!(table.statistics.unsupported_rows, 2);
}

#[test]
fn an_image_for_another_machine_says_so() {
    let mut file = image();
    file[0x84..0x86].copy_from_slice(&0x14c_u16.to_le_bytes());
    assert!(matches!(build(&file, &Limits::default()), Err(BuildError::OtherMachine)));
    file[0x80] = 0;
    assert!(matches!(build(&file, &Limits::default()), Err(BuildError::NotProgram)));
}

#[test]
fn an_image_inside_a_file_is_read_where_it_lies_and_nowhere_else() {
    let limits = Limits::default();
    let alone = build(&image(), &limits).unwrap();
    let size = image().len() as u64;
    let file = [&[0xcc; 77][..], &image(), &[0xcc; 500]].concat();
    let inside = build_part(&file, 77..77 + size, &limits).unwrap();
    assert_eq!((&inside.pieces, &inside.rules), (&alone.pieces, &alone.rules));
    for (inside, alone) in inside.loads.iter().zip(&alone.loads) {
        assert_eq!(inside.offset, alone.offset + 77);
        assert_eq!(inside.file_size, alone.file_size);
    }
    // Bytes behind the part are not the image's.
    let cut = build_part(&file, 77..77 + size - 1, &limits);
    let alone = build(&image()[..image().len() - 1], &limits);
    assert_eq!(cut.map(|table| table.pieces).ok(), alone.map(|table| table.pieces).ok());
    for range in [0..u64::MAX, 76..77 + size, u64::MAX..u64::MAX, 78..78] {
        assert!(build_part(&file, range.clone(), &limits).is_err(), "{range:?}");
    }
    for length in 0..file.len() {
        fuzz_build(&[&77_u64.to_le_bytes()[..], &file[..length]].concat());
    }
}

#[test]
fn a_cut_image_is_an_error_or_a_smaller_table() {
    let file = image();
    for length in 0..file.len() {
        fuzz_build(&file[..length]);
    }
}

#[test]
fn mutated_images_never_panic() {
    let original = image();
    let mut state = 0x5eed_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    // Bytes that mean something, twice as often as others.
    let meaningful: Vec<usize> =
        (0..original.len()).filter(|at| original[*at] != 0 && original[*at] != 0xcc).collect();
    for _ in 0..30_000 {
        let mut file = original.clone();
        for _ in 0..1 + random() % 6 {
            let at = match random() % 3 {
                0 => random() % file.len(),
                _ => (meaningful[random() % meaningful.len()] + random() % 3).min(file.len() - 1),
            };
            file[at] = match random() % 4 {
                0 => 0xff,
                1 => 0,
                2 => file[at] ^ (1 << (random() % 8)),
                _ => random() as u8,
            };
        }
        fuzz_build(&file);
    }
}
