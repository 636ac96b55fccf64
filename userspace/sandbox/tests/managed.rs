//! What workers make of .NET files: names and lines as the library gives them, also of what lies
//! inside single-file programs; and of files that are traps. Needs root and the .NET runtimes.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use strata_dotnet::{Bundle, ManagedImage, PdbId};
use strata_sandbox::{
    AssemblyCode, FileError, FilePart, FileService, IlPlace, ImagePlace, ManagedFacts,
    ManagedLines, ManagedNames, OpenFile, Reply, Request,
};
use strata_symbols::FileAt;
use strata_unwind::{Limits, UnwindTable};
use support::*;

fn dotnet() -> PathBuf {
    let directory = std::env::var_os("STRATA_DOTNET").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/dotnet"),
        PathBuf::from,
    );
    assert!(
        directory.join("9/dotnet").exists(),
        "no .NET runtimes in {}: `cargo xtask setup test` assembles them",
        directory.display()
    );
    directory.canonicalize().unwrap()
}

fn core_library() -> PathBuf {
    let shared = dotnet().join("9/shared/Microsoft.NETCore.App");
    let version = std::fs::read_dir(shared).unwrap().next().unwrap().unwrap();
    version.path().join("System.Private.CoreLib.dll")
}

fn read(path: &Path) -> FileAt {
    FileAt::new(std::fs::File::open(path).unwrap()).unwrap()
}

fn names(
    service: &mut FileService,
    file: &Arc<OpenFile>,
    part: Option<FilePart>,
    places: Vec<ImagePlace>,
) -> Result<ManagedNames, FileError> {
    match service.call(Request::ManagedNames { file: file.clone(), part, places })? {
        Reply::ManagedNames(names) => Ok(names),
        other => panic!("no names: {other:?}"),
    }
}

fn facts(
    service: &mut FileService,
    file: &Arc<OpenFile>,
    part: Option<FilePart>,
) -> Result<ManagedFacts, FileError> {
    match service.call(Request::ManagedFacts { file: file.clone(), part })? {
        Reply::ManagedFacts(facts) => Ok(facts),
        other => panic!("no facts: {other:?}"),
    }
}

fn lines(
    service: &mut FileService,
    file: &Arc<OpenFile>,
    part: Option<FilePart>,
    pdb: PdbId,
    places: &[IlPlace],
) -> Result<ManagedLines, FileError> {
    let places = places.to_vec();
    match service.call(Request::ManagedLines { file: file.clone(), part, pdb, places })? {
        Reply::ManagedLines(lines) => Ok(lines),
        other => panic!("no lines: {other:?}"),
    }
}

/// Code of an image that is in none of its methods.
fn stub_of(image: &ManagedImage<'_>) -> u32 {
    let last = image.runtime_functions().iter().map(|function| function.end).max().unwrap();
    (last..).step_by(8).find(|rva| image.is_code(*rva)).unwrap()
}

#[test]
fn the_core_library_s_methods_come_back_as_the_library_names_them() {
    must_be_root();
    let mut service = service();
    let path = core_library();
    let source = read(&path);
    let image = ManagedImage::open(&source).unwrap();
    let functions = image.runtime_functions();
    let places: Vec<ImagePlace> = functions
        .iter()
        .step_by(7)
        .flat_map(|function| {
            let offset = image.offset_of(function.end - 1).unwrap();
            [ImagePlace::Address(function.begin), ImagePlace::Offset(offset)]
        })
        .chain([ImagePlace::Address(stub_of(&image)), ImagePlace::Address(0)])
        .chain([ImagePlace::Offset(u64::MAX)])
        .collect();
    let file = open_host(&mut service, &path).unwrap();
    let start = Instant::now();
    let found = names(&mut service, &file, None, places.clone()).unwrap();
    println!("{} places in {:?}", places.len(), start.elapsed());
    let mut types = 0;
    for (place, method) in places.iter().zip(&found.methods) {
        let address = match place {
            ImagePlace::Address(address) => Some(*address),
            ImagePlace::Offset(offset) => image.rva_of(*offset),
        };
        let expected = address.and_then(|address| image.method_at_rva(address));
        let Some(expected) = expected else {
            assert!(method.as_ref().is_none_or(|method| method.stub));
            continue;
        };
        let method = method.as_ref().unwrap();
        assert_eq!(method.token, expected.token);
        assert_eq!(*method.type_name, *expected.type_name);
        assert_eq!(*method.method_name, *expected.method_name);
        assert_eq!(method.signature, expected.signature);
        assert!(method.class_args.iter().map(|text| &**text).eq(&expected.class_args));
        assert!(method.method_params.iter().map(|text| &**text).eq(&expected.method_params));
        assert_eq!((method.start_rva, method.size), (expected.start_rva, expected.size));
        for token in strata_dotnet::signature::type_tokens(&method.signature) {
            assert!(found.type_name(token).is_some_and(|name| !name.is_empty()), "{token:x}");
            types += 1;
        }
    }
    assert!(types > 1000);
    let [.., stub, beginning, end] = found.methods.as_slice() else { panic!("too few") };
    let stub = stub.as_ref().unwrap();
    assert!(stub.stub && &*stub.method_name == "runtime call", "{stub:?}");
    assert_eq!([beginning, end], [&None, &None]);

    let facts = facts(&mut service, &file, None).unwrap();
    assert_eq!(facts.assembly.as_deref(), Some("System.Private.CoreLib"));
    assert_eq!(facts.mvid, image.mvid());
    assert_eq!(facts.pdb.as_ref(), image.pdb());
    assert_eq!(facts.code, AssemblyCode::Precompiled);
    assert!(service.statistics().deaths.is_empty());
}

#[test]
fn assemblies_inside_a_single_file_program_are_read_where_they_lie() {
    must_be_root();
    let mut service = service();
    let path = dotnet().join("8/Sarif.Multitool");
    let source = read(&path);
    let expected = Bundle::open(&source).unwrap();
    let file = open_host(&mut service, &path).unwrap();
    let bundle = match service.call(Request::Bundle { file: file.clone() }) {
        Ok(Reply::Bundle(bundle)) => bundle,
        other => panic!("no bundle: {other:?}"),
    };
    assert_eq!(bundle, expected);
    let entry =
        bundle.files.iter().find(|entry| entry.path == "System.Private.CoreLib.dll").unwrap();
    let part = Some(FilePart { offset: entry.offset, length: entry.size, unpacked: None });
    let facts = facts(&mut service, &file, part).unwrap();
    assert_eq!(facts.assembly.as_deref(), Some("System.Private.CoreLib"));
    let inside = strata_dotnet::Part::new(&source, entry.offset, entry.size);
    let image = ManagedImage::open(&inside).unwrap();
    let function = image.runtime_functions()[1000];
    let places = vec![ImagePlace::Address(function.begin)];
    let found = names(&mut service, &file, part, places).unwrap();
    let expected = image.method_at_rva(function.begin).unwrap();
    assert_eq!(*found.methods[0].as_ref().unwrap().method_name, *expected.method_name);
    // A part beyond the end, and one that is no assembly.
    for (offset, length) in [(u64::MAX, 10), (0, u64::MAX), (entry.offset + 1, 4096)] {
        let part = Some(FilePart { offset, length, unpacked: None });
        let outcome = names(&mut service, &file, part, vec![ImagePlace::Address(0)]);
        assert!(matches!(outcome, Err(FileError::Parse(_))), "{outcome:?}");
    }
}

fn table(
    service: &mut FileService,
    file: &Arc<OpenFile>,
    part: Option<FilePart>,
) -> Result<UnwindTable, FileError> {
    let limits = Limits::default();
    match service.call(Request::UnwindTable { file: file.clone(), part, limits })? {
        Reply::UnwindTable(table) => Ok(*table),
        other => panic!("no table: {other:?}"),
    }
}

#[test]
fn an_assembly_inside_a_program_has_the_unwind_table_it_has_outside() {
    must_be_root();
    let mut service = service();
    let path = dotnet().join("8/Sarif.Multitool");
    let source = read(&path);
    let bundle = Bundle::open(&source).unwrap();
    let file = open_host(&mut service, &path).unwrap();
    let host = table(&mut service, &file, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["System.Private.CoreLib.dll", "System.Threading.dll"] {
        let entry = bundle.files.iter().find(|entry| entry.path == name).unwrap();
        let content = entry.unpack(&source).unwrap();
        let alone = folder.path().join(name);
        std::fs::write(&alone, &content).unwrap();
        let alone = open_host(&mut service, &alone).unwrap();
        let expected = table(&mut service, &alone, None).unwrap();
        assert!(expected.pieces.iter().map(|piece| piece.rows.len()).sum::<usize>() > 100);

        // Where it lies, its offsets are the program's.
        let part = FilePart { offset: entry.offset, length: entry.size, unpacked: None };
        for _ in 0..2 {
            let inside = table(&mut service, &file, Some(part)).unwrap();
            assert_ne!(inside, host);
            assert_eq!((&inside.pieces, &inside.rules), (&expected.pieces, &expected.rules));
            for (inside, outside) in inside.loads.iter().zip(&expected.loads) {
                assert_eq!(inside.offset, outside.offset + entry.offset);
                assert_eq!(inside.address, outside.address);
            }
        }

        let mut packed =
            flate2::write::DeflateEncoder::new(b"before".to_vec(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &content).unwrap();
        let packed = packed.finish().unwrap();
        let length = packed.len() as u64 - 6;
        let compressed = folder.path().join("compressed");
        std::fs::write(&compressed, packed).unwrap();
        let compressed = open_host(&mut service, &compressed).unwrap();
        let mut of = |unpacked| {
            let part = FilePart { offset: 6, length, unpacked: Some(unpacked) };
            table(&mut service, &compressed, Some(part))
        };
        assert_eq!(of(entry.size).unwrap(), expected);
        for wrong in [0, entry.size - 1, entry.size + 1, u64::MAX] {
            assert!(matches!(of(wrong), Err(FileError::Parse(_))), "{wrong}");
        }
    }
    // Parts that are no programs, or not there.
    let json = bundle.files.iter().find(|entry| entry.path.ends_with(".json")).unwrap();
    for (offset, length) in [(u64::MAX, 10), (json.offset, json.size), (5, u64::MAX), (0, 0)] {
        let part = FilePart { offset, length, unpacked: None };
        let outcome = table(&mut service, &file, Some(part));
        assert!(matches!(outcome, Err(FileError::Parse(_))), "{outcome:?}");
    }
    assert!(service.statistics().deaths.is_empty());
}

fn compile(folder: &Path, debug: &str) -> PathBuf {
    let output = folder.join("Lines.dll");
    let source = "../dotnet/tests/programs/Lines.cs";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let mut compile = Command::new(dotnet().join("compile"));
    assert!(compile.arg(&output).arg(source).arg(debug).status().unwrap().success());
    output
}

/// Some places in each of the first methods.
fn il_places() -> Vec<IlPlace> {
    let offsets = [0, 1, 9, 40, u32::MAX];
    (1..=40_u32)
        .rev()
        .flat_map(|row| offsets.map(|il_offset| IlPlace { token: 0x0600_0000 | row, il_offset }))
        .collect()
}

#[test]
fn lines_come_out_of_pdbs_beside_and_inside_the_assembly() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let places = il_places();
    let assembly = compile(folder.path(), "-debug:portable");
    let file = open_host(&mut service, &assembly).unwrap();
    let first = facts(&mut service, &file, None).unwrap();
    let wanted = first.pdb.unwrap();
    assert!(!first.has_embedded_pdb);
    assert_eq!(first.code, AssemblyCode::Il);
    let pdb_file = open_host(&mut service, &wanted.path).unwrap();
    let outside = lines(&mut service, &pdb_file, None, wanted.id, &places).unwrap();
    let pdb = strata_dotnet::PortablePdb::open(&read(Path::new(&wanted.path)), wanted.id).unwrap();
    for (place, line) in places.iter().zip(&outside.lines) {
        let expected = pdb.line_at(place.token, place.il_offset);
        let line = line.as_ref().map(|(document, line)| (document.to_string(), *line));
        assert_eq!(line, expected);
    }
    assert!(outside.lines.iter().flatten().count() > 30);
    // Of another build.
    let refused = lines(&mut service, &pdb_file, None, PdbId([1; 20]), &places);
    assert!(
        matches!(&refused, Err(FileError::Parse(text)) if text.contains("another build")),
        "{refused:?}"
    );
    // None inside.
    let refused = lines(&mut service, &file, None, wanted.id, &places);
    assert!(matches!(refused, Err(FileError::Parse(_))));

    let assembly = compile(folder.path(), "-debug:embedded");
    let file = open_host(&mut service, &assembly).unwrap();
    let second = facts(&mut service, &file, None).unwrap();
    assert!(second.has_embedded_pdb);
    let wanted = second.pdb.unwrap().id;
    let inside = lines(&mut service, &file, None, wanted, &places).unwrap();
    assert_eq!(inside, outside);
    let refused = lines(&mut service, &file, None, PdbId([1; 20]), &places);
    assert!(matches!(refused, Err(FileError::Parse(_))));
}

#[test]
fn a_compressed_part_is_unpacked_as_far_as_it_says() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let assembly = compile(folder.path(), "-debug:embedded");
    let content = std::fs::read(&assembly).unwrap();
    let mut encoder =
        flate2::write::DeflateEncoder::new(b"before".to_vec(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, &content).unwrap();
    let packed = encoder.finish().unwrap();
    let path = folder.path().join("packed");
    std::fs::write(&path, &packed).unwrap();
    let file = open_host(&mut service, &path).unwrap();
    let length = packed.len() as u64 - 6;
    let size = content.len() as u64;
    let mut of = |unpacked| {
        let part = Some(FilePart { offset: 6, length, unpacked: Some(unpacked) });
        facts(&mut service, &file, part)
    };
    assert_eq!(of(size).unwrap().assembly.as_deref(), Some("Lines"));
    for wrong in [0, size - 1, size + 1, u64::MAX] {
        assert!(matches!(of(wrong), Err(FileError::Parse(_))), "{wrong}");
    }
}

#[test]
fn other_files_and_huge_claims_are_errors_and_the_worker_goes_on() {
    must_be_root();
    let mut service = service();
    let folder = tempfile::tempdir().unwrap();
    let sparse = folder.path().join("sparse.dll");
    let mut bytes = std::fs::read(core_library()).unwrap();
    bytes.truncate(4096);
    // Directories and sections that claim all that a number can.
    for at in (0x178..0x400).step_by(4) {
        bytes[at + 3] = 0x7f;
    }
    std::fs::write(&sparse, &bytes).unwrap();
    std::fs::OpenOptions::new().write(true).open(&sparse).unwrap().set_len(10 << 30).unwrap();
    for path in [Path::new("/etc/passwd"), &sparse, Path::new("/bin/ls")] {
        let file = open_host(&mut service, path).unwrap();
        let outcomes = [
            facts(&mut service, &file, None).map(|_| ()),
            names(&mut service, &file, None, vec![ImagePlace::Address(0x1000)]).map(|_| ()),
            lines(&mut service, &file, None, PdbId([0; 20]), &il_places()).map(|_| ()),
            service.call(Request::Bundle { file }).map(|_| ()),
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(FileError::Parse(_))), "{}: {outcome:?}", path.display());
        }
    }
    let statistics = service.statistics();
    assert!(statistics.timeouts.is_empty() && statistics.deaths.is_empty());
    assert!(statistics.peak_worker_memory_bytes < 300 << 20);
}
