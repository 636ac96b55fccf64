//! C++ functions without a linkage name, whose names have the scopes of their declarations.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use support::{Symbol, addr2line, compile, program, resolve, symbol, symbols};

/// The functions of `scopes.cc` that stay functions of their own.
const FUNCTIONS: [&str; 2] = ["main", "_ZN4shop6Runner2goEl"];

fn addresses(path: &Path) -> Vec<u64> {
    // Optimization may make clones of them: `….isra.0`.
    let is_one = |symbol: &Symbol| FUNCTIONS.contains(&symbol.name.split('.').next().unwrap());
    let functions = symbols(path).unwrap().into_iter().filter(is_one);
    functions.flat_map(|function| function.address..function.address + function.size).collect()
}

/// The names of all inlined frames of the functions.
fn inlined_names(path: &Path) -> BTreeSet<String> {
    let found = resolve(&fs::read(path).unwrap(), &addresses(path));
    let inlined = found.iter().filter_map(|found| found.frames.split_last());
    inlined.flat_map(|(_, inlined)| inlined.iter().map(|frame| frame.name.to_string())).collect()
}

/// The number of the line of `scopes.cc` that begins with `text`.
fn line(text: &str) -> usize {
    let source = fs::read_to_string(program("scopes.cc")).unwrap();
    let found = source.lines().position(|line| line.trim_start().starts_with(text));
    found.unwrap_or_else(|| panic!("scopes.cc has {text}")) + 1
}

fn assert_have_scopes(names: &BTreeSet<String>) {
    for name in [
        "Plain::Step::operator()",
        "shop::(anonymous namespace)::Box::get",
        "shop::fold",
        "shop::Runner::go::Local::step",
    ] {
        assert!(names.contains(name), "{name}: {names:#?}");
    }
    for (start, end) in [
        (format!("main::{{lambda:{}:", line("auto first = [](")), "}::operator()"),
        (format!("main::{{lambda:{}:", line("auto second = [](")), "}::operator()"),
        (format!("shop::Runner::go::{{lambda:{}:", line("[](long y)")), "}::operator()"),
        (format!("main::{{unnamed type:{}:", line("struct {")), "}::twist"),
        ("std::sort<".to_owned(), ">"),
        ("shop::apply<".to_owned(), ">"),
    ] {
        let is_it = |name: &String| name.starts_with(&start) && name.ends_with(end);
        assert!(names.iter().any(is_it), "{start}…{end}: {names:#?}");
    }
    // What has no scopes is what does not demangle.
    assert!(names.iter().all(|name| name.contains("::") || name.starts_with("_Z")), "{names:#?}");
}

#[test]
fn inlined_functions_without_a_linkage_name_have_their_scopes() {
    for (name, arguments) in [
        ("scopes", &["-g", "-O2"][..]),
        ("scopes-4", &["-gdwarf-4", "-O2"]),
        ("scopes-types", &["-gdwarf-4", "-fdebug-types-section", "-O2"]),
    ] {
        let Some(path) = compile("g++", "scopes.cc", name, arguments) else {
            return;
        };
        assert_have_scopes(&inlined_names(&path));
    }
}

#[test]
fn functions_of_other_units_have_their_scopes_after_link_time_optimization() {
    let Some(path) = compile("g++", "scopes.cc", "scopes-lto", &["-g", "-O2", "-flto"]) else {
        return;
    };
    assert_have_scopes(&inlined_names(&path));
}

#[test]
fn scopes_are_put_before_the_names_that_addr2line_prints() {
    let Some(path) = compile("g++", "scopes.cc", "scopes-same", &["-g", "-O2"]) else {
        return;
    };
    let addresses = addresses(&path);
    let Some(expected) = addr2line(&path, &addresses) else {
        return;
    };
    let found = resolve(&fs::read(&path).unwrap(), &addresses);
    let mut qualified = 0;
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.frames.len(), expected.len());
        for (frame, (theirs, _)) in found.frames.iter().zip(expected) {
            // binutils gives inlined functions without a linkage name their caller's.
            if *frame.system_name == **theirs || FUNCTIONS.contains(&&**theirs) {
                continue;
            }
            assert!(frame.system_name.ends_with(&format!("::{theirs}")), "{frame:?} {theirs}");
            qualified += 1;
        }
    }
    assert!(qualified > 100, "only {qualified} names with scopes");
}

#[test]
fn linkage_names_are_preferred() {
    let Some(path) = compile("clang++", "scopes.cc", "scopes-clang", &["-g", "-O2"]) else {
        return;
    };
    // clang gives all of them one.
    let found = resolve(&fs::read(&path).unwrap(), &addresses(&path));
    let (mut linkage_names, mut others) = (0, BTreeSet::new());
    for frame in found.iter().flat_map(|found| &found.frames) {
        if frame.system_name.starts_with("_Z") {
            linkage_names += 1;
        } else {
            others.insert(&*frame.system_name);
        }
    }
    assert!(linkage_names > 100 && others.iter().all(|name| *name == "main"), "{others:?}");
}

#[test]
fn names_of_c_stay_as_they_are() {
    let Some(path) = compile("gcc", "shop.c", "scopes-c", &["-g", "-O2"]) else {
        return;
    };
    let function = symbol(&path, "order_total");
    let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
    let found = resolve(&fs::read(&path).unwrap(), &addresses);
    let mut frames = found.iter().flat_map(|found| &found.frames);
    assert!(frames.all(|frame| !frame.name.contains(':')));
}
