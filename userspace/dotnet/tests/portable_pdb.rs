//! Lines, held against what System.Reflection.Metadata reads and what the runtime's own stack traces
//! say. Needs the .NET runtimes.

mod support;

use std::path::Path;

use strata_dotnet::{Error, ManagedImage, PortablePdb};
use support::*;

/// Compares all points, documents and state machines; returns how many points there were.
fn compare(reference: &Path, assembly: &Path, pdb_file: Option<&Path>) -> usize {
    let file = open(assembly);
    let image = ManagedImage::open(&file).unwrap();
    let wanted = image.pdb().unwrap().id;
    let pdb = match pdb_file {
        Some(path) => PortablePdb::open(&open(path), wanted).unwrap(),
        None => image.embedded_pdb().unwrap().unwrap(),
    };
    let arguments: Vec<&Path> = [assembly].into_iter().chain(pdb_file).collect();
    let output = run("9", reference, &arguments);
    let mut expected = Vec::new();
    let mut kickoffs = 0;
    for line in output.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["id", id] => assert_eq!(pdb.id().to_string(), id),
            ["point", method, offset, document, line] => {
                let number = |text: &str| text.parse::<u32>().unwrap();
                expected.push((token(method), number(offset), document.to_owned(), number(line)));
            }
            ["kickoff", method, kickoff] => {
                assert_eq!(pdb.kickoff_of(token(method)), Some(token(kickoff)));
                kickoffs += 1;
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for row in 1..=pdb.methods() {
        let method = 0x0600_0000 | row;
        for point in pdb.lines_of(method) {
            let document = pdb.document(point.document).unwrap();
            found.push((method, point.il_offset, document, point.line));
        }
    }
    assert_eq!(found, expected);
    let all = (1..=pdb.methods()).filter(|row| pdb.kickoff_of(0x0600_0000 | row).is_some());
    assert_eq!(all.count(), kickoffs);
    assert_eq!(pdb.lines_of(0x0600_0000), []);
    assert_eq!(pdb.lines_of(0x06ff_ffff), []);
    assert_eq!(pdb.lines_of(0x0200_0001), []);
    found.len()
}

#[test]
fn points_and_documents_are_those_that_reflection_reads() {
    let folder = tempfile::tempdir().unwrap();
    let reference = compile(folder.path(), "Metadata.cs", &["-debug:portable"]);
    let mut points = compare(&reference, &reference, Some(&reference.with_extension("pdb")));
    for (number, options) in [
        &["-debug:embedded"][..],
        &["-debug:embedded", "-o-"],
        &["-debug:portable", "-deterministic-"],
        &["-debug:portable", "-o-", "-pathmap:/=/_/"],
    ]
    .iter()
    .enumerate()
    {
        let folder = folder.path().join(number.to_string());
        std::fs::create_dir(&folder).unwrap();
        let assembly = compile(&folder, "Lines.cs", options);
        let pdb = assembly.with_extension("pdb");
        points += compare(&reference, &assembly, pdb.exists().then_some(&pdb));
    }
    println!("{points} sequence points");
    assert!(points > 300);
}

/// The lines of real stack traces.
fn traces_agree(version: &str, options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let assembly = compile(folder.path(), "Lines.cs", options);
    let file = open(&assembly);
    let image = ManagedImage::open(&file).unwrap();
    let pdb = match image.embedded_pdb().unwrap() {
        Some(pdb) => pdb,
        None => {
            let pdb = open(&assembly.with_extension("pdb"));
            PortablePdb::open(&pdb, image.pdb().unwrap().id).unwrap()
        }
    };
    let mut compared = 0;
    for line in run(version, &assembly, &[]).lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let ["frame", method, offset, document, number] = words[..] else { continue };
        let expected = (document.to_owned(), number.parse::<u32>().unwrap());
        let found = pdb.line_at(token(method), offset.parse().unwrap());
        assert_eq!(found.unwrap_or_default(), expected, "{line}");
        compared += 1;
    }
    println!("{version} {options:?}: {compared} frames");
    assert!(compared > 20, "only {compared} frames");
}

#[test]
fn lines_are_those_of_the_runtimes_stack_traces() {
    traces_agree("9", &["-debug:portable"]);
    traces_agree("9", &["-debug:embedded", "-o-"]);
    traces_agree("3.1", &["-debug:embedded"]);
}

#[test]
fn a_pdb_of_another_build_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // The id is made from the content: the same source without optimisation is another build.
    let build = |name: &str, options: &[&str]| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        compile(&folder, "Lines.cs", options)
    };
    let one = build("one", &["-debug:portable"]);
    let other = build("other", &["-debug:portable", "-o-"]);
    let file = open(&one);
    let wanted = ManagedImage::open(&file).unwrap().pdb().unwrap().id;
    let open_pdb = |path: &Path| PortablePdb::open(&open(path), wanted);
    assert!(open_pdb(&one.with_extension("pdb")).is_ok());
    let refused = open_pdb(&other.with_extension("pdb"));
    assert!(matches!(refused, Err(Error::OtherBuild { wanted: asked, .. }) if asked == wanted));
    // An assembly is no PDB, and neither is text.
    assert!(matches!(open_pdb(&one), Err(Error::NotPortablePdb)));
    assert!(matches!(open_pdb(Path::new("/etc/passwd")), Err(Error::NotPortablePdb)));
}
