//! Assemblies inside single-file programs are read where they lie. Needs the .NET runtimes.

mod support;

use std::path::PathBuf;

use strata_dotnet::bundle::FileKind;
use strata_dotnet::{Bundle, Error, ManagedImage, Part};
use support::*;

/// Lists a bundle and opens each assembly in it; returns how many there were, and how many
/// functions of precompiled code.
fn walk(path: PathBuf, version: u32) -> (usize, usize) {
    let file = open(&path);
    let bundle = Bundle::open(&file).unwrap();
    assert_eq!(bundle.major_version, version);
    let (mut assemblies, mut functions) = (0, 0);
    for entry in &bundle.files {
        assert_eq!(bundle.file_at(entry.offset).map(|found| &found.path), Some(&entry.path));
        if entry.kind != FileKind::Assembly {
            continue;
        }
        assemblies += 1;
        assert!(!entry.is_compressed());
        let part = Part::new(&file, entry.offset, entry.size);
        let image = ManagedImage::open(&part).unwrap();
        let name = image.metadata().unwrap().module_name().unwrap();
        assert!(entry.path.ends_with(&name), "{name} at {}", entry.path);
        assert!(image.mvid().is_some());
        assert!(image.method(0x0600_0001).is_some() || image.metadata().unwrap().rows(6) == 0);
        functions += image.runtime_functions().len();
        for function in image.runtime_functions().iter().step_by(5) {
            assert!(image.method_at_rva(function.begin).is_some(), "{}", entry.path);
        }
    }
    println!("{}: {assemblies} assemblies, {functions} functions", path.display());
    (assemblies, functions)
}

#[test]
fn a_single_file_program_of_8_is_read() {
    let (assemblies, _) = walk(dotnet().join("8/Sarif.Multitool"), 6);
    assert!(assemblies > 100);
}

#[test]
fn a_single_file_program_of_10_is_read() {
    let (assemblies, _) = walk(dotnet().join("10/azmcp"), 6);
    assert!(assemblies > 50);
}

#[test]
fn a_host_without_a_bundle_is_recognised() {
    let file = open(&dotnet().join("9/dotnet"));
    assert!(matches!(Bundle::open(&file), Err(Error::NotBundle)));
}
