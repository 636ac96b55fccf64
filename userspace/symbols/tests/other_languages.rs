//! Rust and Go programs built here, and Go with C.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use strata_symbols::{Options, Resolver};
use support::{addr2line, compile, place, resolve, run, symbols};

#[test]
fn rust_functions_have_their_paths_and_no_hash() {
    let default = &["-O", "-g"][..];
    let new = &["-O", "-g", "-Csymbol-mangling-version=v0"][..];
    for (name, arguments) in [("rust-default", default), ("rust-new", new)] {
        let built = compile("rustc", "shop.rs", name, arguments);
        let Some(path) = built else {
            return;
        };
        let total = symbols(&path)
            .unwrap()
            .into_iter()
            .find(|symbol| symbol.name.contains("Order") && symbol.name.contains("total"))
            .expect("the generic function");
        let bytes = fs::read(&path).unwrap();
        let addresses: Vec<u64> = (total.address..total.address + total.size).collect();
        let found = resolve(&bytes, &addresses);
        for found in &found {
            let outer = found.frames.last().unwrap();
            assert!(
                outer.name.starts_with("<shop::shop::Order<")
                    || outer.name.starts_with("shop::shop::Order<"),
                "{outer:?}"
            );
            assert!(outer.name.ends_with("::total"), "{outer:?}");
            assert_eq!(*outer.system_name, *total.name);
        }
        assert!(found.iter().any(|found| {
            found.frames.iter().any(|frame| frame.name.ends_with("price") && frame.line == Some(12))
        }));
        let expected = addr2line(&path, &addresses).unwrap();
        let mut same = 0;
        for (found, expected) in found.iter().zip(&expected) {
            let ours: Vec<String> = found
                .frames
                .iter()
                .map(|frame| frame.line.map_or("?".into(), |line| line.to_string()))
                .collect();
            let theirs: Vec<&str> =
                expected.iter().filter_map(|(_, place)| place.rsplit(':').next()).collect();
            same += usize::from(ours == theirs);
        }
        assert!(same * 100 >= addresses.len() * 98, "{same} of {} lines agree", addresses.len());
    }
}

fn go(name: &str, source: &str, arguments: &[&str]) -> Option<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../golang/tests/programs").join(source);
    let output = place(name);
    let mut all = vec!["build"];
    all.extend(arguments);
    all.extend(["-o", output.to_str()?, source.to_str()?]);
    run("go", &all)?;
    Some(output)
}

#[test]
fn a_stripped_go_program_has_names_lines_and_inlined_calls() {
    for (name, arguments) in [
        ("go-plain", &[][..]),
        ("go-stripped", &["-ldflags=-s -w"]),
        ("go-pie", &["-buildmode=pie", "-ldflags=-s -w"]),
    ] {
        let Some(path) = go(name, "plain.go", arguments) else {
            return;
        };
        let bytes = fs::read(&path).unwrap();
        let elf_bytes: &[u8] = &bytes;
        let elf = strata_symbols::ElfFile::open(&elf_bytes).unwrap();
        let text = *elf.section_by_name(".text").unwrap();
        let addresses: Vec<u64> = (text.address..text.address + text.size).step_by(3).collect();
        let mut resolver = Resolver::new(&elf_bytes, None, Options::default()).unwrap();
        let found = resolver.resolve(&addresses);
        let deep = found
            .iter()
            .filter(|found| {
                let names: Vec<&str> = found.frames.iter().map(|frame| &*frame.name).collect();
                names == ["main.leaf", "main.middle", "main.outer"]
            })
            .count();
        assert!(deep > 0, "{name}");
        let unknown = found.iter().filter(|found| found.frames.is_empty()).count();
        assert!(unknown * 100 < addresses.len(), "{name}: {unknown} of {}", addresses.len());
        assert!(resolver.report().go);
    }
}

#[test]
fn c_and_go_in_one_program_are_both_named() {
    let Some(path) = go("go-with-c", "with_c.go", &["-ldflags=-linkmode=external"]) else {
        return;
    };
    let listed = symbols(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let of = |wanted: &str| {
        let symbol = listed.iter().find(|symbol| symbol.name == wanted).unwrap();
        let found = resolve(&bytes, &[symbol.address + 1]);
        found[0].frames.last().unwrap().name.to_string()
    };
    assert_eq!(of("main.main"), "main.main");
    assert_eq!(of("_start"), "_start");
    assert_eq!(of("x_cgo_init"), "x_cgo_init");
    assert_eq!(of("runtime.goexit.abi0"), "runtime.goexit");
}

/// The function that holds the entry of `path`'s copy without module data, and whether Go was used.
fn without_module_data(path: &Path, name: &str) -> Option<(bool, Option<String>)> {
    let copy = place(name);
    let arguments = ["--rename-section", ".go.module=.gone"];
    let paths = [path.to_str()?, copy.to_str()?];
    run("objcopy", &[&arguments[..], &paths].concat())?;
    let bytes = fs::read(&copy).unwrap();
    let mut resolver = Resolver::new(&bytes, None, Options::default()).unwrap();
    let entry = resolver.elf().entry;
    let found = resolver.resolve(&[entry]);
    let frame = found[0].frames.last();
    Some((resolver.report().go, frame.map(|frame| frame.name.to_string())))
}

#[test]
fn a_go_table_whose_text_start_cannot_be_known_is_not_guessed() {
    let Some(inside) = go("go-inside", "plain.go", &["-ldflags=-s -w"]) else {
        return;
    };
    let Some(outside) = go("go-outside", "with_c.go", &["-ldflags=-s -w -linkmode=external"])
    else {
        return;
    };
    // Before Go 1.26 the module data has no section of its own, and renaming changes nothing.
    if let Some((true, name)) = without_module_data(&inside, "go-inside-bare") {
        assert_eq!(name.as_deref(), Some("_rt0_amd64_linux"));
    }
    if let Some((found, name)) = without_module_data(&outside, "go-outside-bare") {
        assert!(!found, "C's start-up code comes first: {name:?}");
    }
}
