//! Arbitrary and damaged bytes: an error or a profile, never a panic, never much memory.

mod support;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use strata_profile::pprof::{self, Limits};
use strata_profile::{
    Format, Profile, ProfileBuilder, ReadError, WriteOptions, read, summary, text, write,
};
use support::{described, everything};

/// Whatever is read can be written in every form.
fn write_all(profile: &Profile) {
    // A damaged count may ask for a million events of perf-script text: legal, but slow here.
    let events = profile.counting_sample_type().map_or(0, |counting| profile.total(counting));
    for format in
        Format::ALL.into_iter().filter(|&format| format != Format::PerfScript || events < 1_000)
    {
        let options = WriteOptions { compressed: false, ..WriteOptions::default() };
        write(profile, format, &options, std::io::sink()).unwrap();
    }
    let _ = summary::summarize(profile, 0, 10);
}

fn plain(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    pprof::encode_plain(profile, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(profile) = pprof::decode(&bytes) {
            write_all(&profile);
        }
        if let Ok(profile) = read(&bytes) {
            write_all(&profile);
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "([a-z\\\\;{}x0-9 ]{0,12} ?[0-9]{0,2}\n?){0,8}") {
        if let Ok(profile) = read(text.as_bytes()) {
            write_all(&profile);
        }
    }

    #[test]
    fn any_name_survives_folded_and_pprof(comm in "\\PC{1,15}", names in proptest::collection::vec(any::<String>(), 1..6)) {
        let mut builder = ProfileBuilder::new(&[("samples", "count")]);
        let thread = builder.thread(1, 2, &comm, &comm, "");
        let names: Vec<String> = names.into_iter().map(|name| format!("f{name}f")).collect();
        let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
        let locations: Vec<_> = borrowed.iter().map(|name| support::native(&mut builder, name)).collect();
        let stack = builder.stack(&locations);
        let labels = builder.thread_labels(thread);
        builder.add(stack, labels, &[7]);
        let profile = builder.finish();
        prop_assert_eq!(described(&pprof::decode(&plain(&profile)).unwrap()), described(&profile));

        let mut folded = Vec::new();
        write(&profile, Format::Folded, &WriteOptions::default(), &mut folded).unwrap();
        let again = read(&folded).unwrap();
        let sample = again.samples().next().unwrap();
        let read_names: Vec<&str> = again
            .stack(sample.stack)
            .map(|id| again.string(again.frames(again.location(id))[0].name))
            .collect();
        prop_assert_eq!(read_names, borrowed);
        prop_assert_eq!(again.string(again.identity(sample.labels).comm), comm);
    }

    #[test]
    fn shown_text_has_nothing_active(any in any::<String>()) {
        let shown = text::sanitize_for_terminal(&any);
        prop_assert!(!shown.chars().any(char::is_control));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_profile_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = small();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(profile) = pprof::decode(&bytes) {
            write_all(&profile);
        }
        bytes.truncate(cut.index(bytes.len()));
        if let Ok(profile) = pprof::decode(&bytes) {
            write_all(&profile);
        }
    }
}

fn small() -> Vec<u8> {
    let mut builder = support::recording();
    let thread = builder.thread(1, 1, "app", "app", "box");
    support::add(&mut builder, thread, &["leaf", "main"], 2);
    support::add(&mut builder, thread, &["main"], 1);
    plain(&builder.finish())
}

#[test]
fn a_gzip_bomb_stops_at_the_limit() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..64 {
        bomb.write_all(&vec![0_u8; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let refused = pprof::decode_with_limits(&bomb, &limits);
    assert!(matches!(refused, Err(ReadError::TooLarge { what: "bytes", .. })), "{refused:?}");
}

#[test]
fn too_many_of_anything_is_refused() {
    let bytes = plain(&everything());
    for limits in [
        Limits { entries: 4, ..Limits::default() },
        Limits { depth: 1, ..Limits::default() },
        Limits { stack_nodes: 2, ..Limits::default() },
        Limits { sample_types: 1, ..Limits::default() },
        Limits { bytes: 100, ..Limits::default() },
    ] {
        let refused = pprof::decode_with_limits(&bytes, &limits);
        assert!(matches!(refused, Err(ReadError::TooLarge { .. })), "{limits:?}: {refused:?}");
    }
}

#[test]
fn a_file_cut_short_is_an_error() {
    let mut bytes = Vec::new();
    pprof::encode(&everything(), &mut bytes).unwrap();
    bytes.truncate(bytes.len() / 2);
    assert!(matches!(pprof::decode(&bytes), Err(ReadError::Gzip(_))));
}

#[test]
fn ids_of_another_profile_find_nothing() {
    let full = everything();
    let empty = support::recording().finish();
    for sample in full.samples() {
        assert!(empty.labels(sample.labels).is_empty());
        assert_eq!(empty.stack(sample.stack).count(), 0);
    }
    for &location in full.locations() {
        assert!(empty.frames(location).is_empty());
    }
}

#[test]
fn values_that_overflow_stay_at_the_largest() {
    let mut builder = ProfileBuilder::new(&[("samples", "count")]);
    let thread = builder.thread(1, 1, "app", "app", "");
    let labels = builder.thread_labels(thread);
    for name in ["a", "b"] {
        let location = support::native(&mut builder, name);
        let stack = builder.stack(&[location]);
        builder.add(stack, labels, &[i64::MAX]);
        builder.add(stack, labels, &[i64::MAX]);
    }
    let negative = support::native(&mut builder, "negative");
    let negative = builder.stack(&[negative]);
    builder.add(negative, labels, &[i64::MIN]);
    let profile = builder.finish();
    write_all(&profile);
    assert_eq!(summary::summarize(&profile, 0, 1).total, i64::MAX);
}
