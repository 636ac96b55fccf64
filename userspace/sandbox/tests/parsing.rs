//! What workers make of real files: unwind tables, headers, names; and of files that are traps.
//! Needs root.

mod support;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_dotnet::PdbId;
use strata_sandbox::{
    CacheConfig, Config, FileError, FileService, IlPlace, ImagePlace, OpenFile, Refusal, Reply,
    Request,
};
use strata_symbols::{ElfFile, Options, Resolver};
use strata_unwind::{Limits, UnwindTable};
use support::*;

fn libc_path() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line =
        maps.lines().find(|line| line.contains("libc.so") || line.contains("libc-2")).unwrap();
    line.split_whitespace().last().unwrap().into()
}

fn unwind(service: &mut FileService, file: &Arc<OpenFile>) -> Result<Box<UnwindTable>, FileError> {
    match service.call(Request::UnwindTable {
        file: file.clone(),
        part: None,
        limits: Limits::default(),
    })? {
        Reply::UnwindTable(table) => Ok(table),
        other => panic!("no table: {other:?}"),
    }
}

fn facts(
    service: &mut FileService,
    file: &Arc<OpenFile>,
) -> Result<strata_sandbox::FileFacts, FileError> {
    match service.call(Request::Facts { file: file.clone() })? {
        Reply::Facts(facts) => Ok(facts),
        other => panic!("no facts: {other:?}"),
    }
}

#[test]
fn a_file_that_grows_is_read_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("perf-1.map");
    let mut written = std::fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut written, &vec![b'x'; 4 << 20]).unwrap();
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                std::io::Write::write_all(&mut written, b"1000 10 function\n").unwrap();
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        let mut service = service();
        let file = open_host(&mut service, path.to_str().unwrap()).unwrap();
        let pieces: Vec<_> = (0..20)
            .map(|_| service.call(Request::Read { file: file.clone(), offset: 0, length: 4 << 20 }))
            .collect();
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        for piece in pieces {
            assert_eq!(bytes(piece).len(), 4 << 20);
        }
    });
}

#[test]
fn a_worker_builds_the_table_that_the_library_builds() {
    must_be_root();
    let mut service = service();
    let file = open_host(&mut service, libc_path()).unwrap();
    let table = unwind(&mut service, &file).unwrap();
    let bytes = std::fs::read(libc_path()).unwrap();
    let expected = strata_unwind::build(bytes.as_slice(), &Limits::default()).unwrap();
    assert!(expected.row_count() > 1000);
    assert!(*table == expected);
}

#[test]
fn the_headers_of_libc_are_reported() {
    must_be_root();
    let mut service = service();
    let file = open_host(&mut service, libc_path()).unwrap();
    let facts = facts(&mut service, &file).unwrap();
    let bytes = std::fs::read(libc_path()).unwrap();
    let elf = ElfFile::open(&bytes).unwrap();
    assert!(facts.build_id.is_some());
    assert_eq!(facts.build_id, elf.build_id());
    assert_eq!(facts.debug_link, elf.debug_link());
    assert_eq!(facts.features, elf.features());
    assert!(facts.features.dynsym);
    assert_eq!(facts.address_of(0x40000), elf.address_of(0x40000));
}

#[test]
fn names_and_lines_come_back_as_the_resolver_gives_them() {
    must_be_root();
    let mut service = service();
    // The helper has symbols and lines of its own.
    for path in [Path::new(env!("CARGO_BIN_EXE_strata-sandbox-helper")), &libc_path()] {
        let bytes = std::fs::read(path).unwrap();
        let code = ElfFile::open(&bytes).unwrap().code_ranges();
        let addresses: Vec<u64> =
            code.iter().flat_map(|(start, end)| (*start..*end).step_by(4001)).collect();
        assert!(addresses.len() > 50);
        let mut resolver = Resolver::new(&bytes, None, Options::default()).unwrap();
        let expected = resolver.resolve(&addresses);
        let known = expected.iter().filter(|resolved| !resolved.frames.is_empty()).count();
        assert!(known > addresses.len() / 10, "{known} of {}", addresses.len());
        let file = open_host(&mut service, path).unwrap();
        let request = Request::Symbolize {
            file,
            debug: None,
            alternate: None,
            addresses,
            options: Options::default(),
        };
        match service.call(request) {
            Ok(Reply::Symbols(symbols)) => assert!(symbols.resolved == expected),
            other => panic!("no names: {other:?}"),
        }
    }
}

#[test]
fn a_debug_file_fits_by_its_build_id_only() {
    must_be_root();
    let mut service = service();
    let helper = env!("CARGO_BIN_EXE_strata-sandbox-helper");
    let candidate = open_host(&mut service, helper).unwrap();
    let build_id = facts(&mut service, &candidate).unwrap().build_id;
    assert!(build_id.is_some());
    let mut fits = |build_id, link_crc| {
        let request = Request::Fits { candidate: candidate.clone(), build_id, link_crc };
        match service.call(request) {
            Ok(Reply::Fits(fits)) => fits,
            other => panic!("{other:?}"),
        }
    };
    assert!(fits(build_id, None));
    assert!(!fits(Some(vec![1; 20]), None));
    assert!(!fits(None, None));
    assert!(!fits(None, Some(12345)));
    let bytes = std::fs::read(helper).unwrap();
    let crc = strata_symbols::debug_files::checksum(&bytes);
    assert!(fits(None, crc));
}

#[test]
fn a_file_that_is_no_elf_is_an_error_and_the_worker_goes_on() {
    must_be_root();
    let mut service = service();
    let file = open_host(&mut service, "/etc/passwd").unwrap();
    assert!(matches!(unwind(&mut service, &file), Err(FileError::Parse(_))));
    assert!(matches!(facts(&mut service, &file), Err(FileError::Parse(_))));
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let file = open_host(&mut service, &empty).unwrap();
    assert!(matches!(unwind(&mut service, &file), Err(FileError::Parse(_))));
    assert!(service.statistics().deaths.is_empty());
    assert_eq!(service.statistics().parse_errors, 3);
}

/// libc with all sections (or segments) claiming to be as long as the sparse file allows.
fn sparse_elf(path: &Path, claims: bool) {
    const SIZE: u64 = 10 << 30;
    let mut bytes = std::fs::read(libc_path()).unwrap();
    if claims {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
        let (segments, sections) = (word(32), word(40));
        let (segment_count, section_count, name_section) = (half(56), half(60), half(62));
        for segment in 0..segment_count {
            let at = segments + segment * 56;
            bytes[at + 32..at + 40].copy_from_slice(&(9_u64 << 30).to_le_bytes());
            bytes[at + 40..at + 48].copy_from_slice(&(9_u64 << 30).to_le_bytes());
        }
        for section in (0..section_count).filter(|section| *section != name_section) {
            let at = sections + section * 64;
            bytes[at + 32..at + 40].copy_from_slice(&(9_u64 << 30).to_le_bytes());
        }
    }
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(SIZE).unwrap();
}

#[test]
fn ten_sparse_gigabytes_cost_neither_time_nor_memory() {
    must_be_root();
    // A debug build would take long for the gigabyte of the default.
    let config = Config { read_bytes: 64 << 20, ..config() };
    let mut service = FileService::new(config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for claims in [false, true] {
        let path = folder.path().join(format!("sparse-{claims}"));
        sparse_elf(&path, claims);
        let file = open_host(&mut service, &path).unwrap();
        assert_eq!(file.identity().size, 10 << 30);
        let outcomes = [
            unwind(&mut service, &file).map(|_| ()),
            facts(&mut service, &file).map(|_| ()),
            service
                .call(Request::Symbolize {
                    file: file.clone(),
                    debug: None,
                    alternate: None,
                    addresses: (0..100).map(|i| 0x26000 + i * 1000).collect(),
                    options: Options::default(),
                })
                .map(|_| ()),
        ];
        for (step, outcome) in outcomes.into_iter().enumerate() {
            assert!(
                matches!(outcome, Ok(()) | Err(FileError::Parse(_))),
                "claims {claims}, step {step}: {outcome:?}"
            );
        }
    }
    let statistics = service.statistics();
    assert!(statistics.timeouts.is_empty() && statistics.deaths.is_empty());
    assert!(
        statistics.peak_worker_memory_bytes < 600 << 20,
        "{}",
        statistics.peak_worker_memory_bytes
    );
}

#[test]
fn a_file_that_shrinks_and_grows_while_read_harms_no_worker() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("moving");
    let whole = std::fs::read(libc_path()).unwrap();
    std::fs::write(&path, &whole).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mover = std::thread::spawn({
        let (stop, path, whole) = (stop.clone(), path.clone(), whole.clone());
        move || {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            let mut length = 0;
            while !stop.load(Ordering::Relaxed) {
                length = (length * 7 + 4099) % whole.len();
                file.set_len(length as u64).unwrap();
                file.write_all_at(&whole[length..], length as u64).unwrap();
            }
        }
    });
    let mut changed = 0;
    for _ in 0..6 {
        let file = open_host(&mut service, &path).unwrap();
        match unwind(&mut service, &file) {
            // Lucky, or the file was seen while it was short.
            Ok(_) | Err(FileError::Parse(_)) => {}
            Err(FileError::Refused { refusal: Refusal::Changed, .. }) => changed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    mover.join().unwrap();
    assert!(changed > 0, "the file was never seen to change");
    assert!(service.statistics().deaths.is_empty());
}

#[test]
fn tables_are_kept_on_disk_and_found_by_the_next_service() {
    must_be_root();
    let folder = tempfile::tempdir().unwrap();
    let cache = CacheConfig { directory: folder.path().join("cache"), max_bytes: 1 << 30 };
    let start = || FileService::new(Config { cache: Some(cache.clone()), ..config() }).unwrap();
    let mut first = start();
    let file = open_host(&mut first, libc_path()).unwrap();
    if file.trust() != strata_sandbox::IdentityTrust::Persistent {
        strata_skip::skipped!(
            "libc lies on a filesystem whose identities do not last ({:?})",
            file.trust()
        );
        return;
    }
    let built = unwind(&mut first, &file).unwrap();
    assert_eq!(first.statistics().cache.stored, 1);
    drop(first);
    let mut second = start();
    let file = open_host(&mut second, libc_path()).unwrap();
    assert!(unwind(&mut second, &file).unwrap() == built);
    assert_eq!(second.statistics().cache.hits, 1);
    assert_eq!(second.statistics().jobs_done, 0, "no worker was needed");
    // On a filesystem in memory identities do not last.
    let memory = PathBuf::from(format!("/dev/shm/strata-test-{}", std::process::id()));
    std::fs::copy(libc_path(), &memory).unwrap();
    let file = open_host(&mut second, &memory);
    std::fs::remove_file(&memory).unwrap();
    unwind(&mut second, &file.unwrap()).unwrap();
    assert_eq!(second.statistics().cache.stored, 0);
}

#[test]
fn a_cache_that_cannot_be_used_is_reported_and_not_fatal() {
    must_be_root();
    let cache = Some(CacheConfig { directory: "/proc/strata".into(), max_bytes: 1 << 30 });
    let mut service = FileService::new(Config { cache, ..config() }).unwrap();
    assert!(service.cache_trouble().is_some());
    let file = open_host(&mut service, libc_path()).unwrap();
    unwind(&mut service, &file).unwrap();
}

#[test]
fn lies_of_a_worker_are_refused() {
    must_be_root();
    let mut config = config();
    config.command.worker = vec!["internal-liar".into()];
    let mut service = FileService::new(config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default();
    for size in 0..4 {
        let path = folder.path().join(size.to_string());
        std::fs::write(&path, vec![0; size]).unwrap();
        let file = open_host(&mut service, &path).unwrap();
        let outcomes = service.call_all(vec![
            Request::UnwindTable { file: file.clone(), part: None, limits: Limits::default() },
            Request::Facts { file: file.clone() },
            Request::Fits { candidate: file.clone(), build_id: None, link_crc: None },
            Request::Symbolize {
                file: file.clone(),
                debug: None,
                alternate: None,
                addresses: vec![1, 2, 3],
                options,
            },
            Request::ManagedFacts { file: file.clone(), part: None },
            Request::ManagedNames {
                file: file.clone(),
                part: None,
                places: vec![ImagePlace::Offset(1)],
            },
            Request::ManagedLines {
                file: file.clone(),
                part: None,
                pdb: PdbId([0; 20]),
                places: vec![IlPlace { token: 1, il_offset: 2 }],
            },
            Request::Bundle { file: file.clone() },
        ]);
        for outcome in outcomes {
            let refused = matches!(
                outcome,
                Err(FileError::BadTable(_) | FileError::BadReply(..) | FileError::ReplyTooLarge(_))
            );
            assert!(refused, "size {size}: {outcome:?}");
        }
        let again = service.call(Request::Facts { file });
        assert!(
            matches!(again, Err(FileError::FailedBefore(_))),
            "it is not believed a second time"
        );
    }
}
