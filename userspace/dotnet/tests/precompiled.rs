//! Code addresses to methods, held against what the runtimes say themselves. Needs the .NET
//! runtimes.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use strata_dotnet::readytorun::Kind;
use strata_dotnet::{CodePart, ManagedImage, MethodRef};
use support::*;

/// An executable mapping of a file: start, end, offset.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: PathBuf,
}

fn mappings(output: &str) -> Vec<Mapping> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let executable = words.next()?.contains('x');
        let offset = words.next()?;
        let path = words.nth(2)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        executable.then_some(Mapping {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            path: path.into(),
        })
    };
    output.lines().filter_map(parse).filter(|mapping| mapping.path.is_absolute()).collect()
}

/// The type as the runtime writes it in its events: arguments in brackets.
fn as_the_runtime_says(method: &MethodRef) -> String {
    if method.class_args.is_empty() {
        return method.type_name.clone();
    }
    let arguments: Vec<&str> = method
        .class_args
        .iter()
        .map(|text| if text.is_empty() { "System.__Canon" } else { text })
        .collect();
    format!("{}[{}]", method.type_name, arguments.join(","))
}

fn runtime_agrees(version: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "EntryPoints.cs", &[]);
    let output = run(version, &program, &[]);
    let mappings = mappings(&output);
    let mut images = HashMap::new();
    let (mut compared, mut shared) = (0, 0);
    for line in output.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let ["entry", address, class, name, signature] = words[..] else { continue };
        let address = u64::from_str_radix(address, 16).unwrap();
        let Some(mapping) =
            mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
        else {
            continue;
        };
        let image = images.entry(&mapping.path).or_insert_with(|| {
            // The test is the whole process.
            ManagedImage::open(Box::leak(Box::new(open(&mapping.path)))).unwrap()
        });
        let rva = image.rva_of(address - mapping.start + mapping.offset).unwrap();
        let method = image.method_at_rva(rva).unwrap();
        assert_eq!(method.start_rva, rva, "{line}");
        assert_eq!(method.part, CodePart::Body);
        if method.shared {
            shared += 1;
            assert_eq!(
                (&*method.method_name, &*method.type_name),
                ("IL_STUB_PInvoke", ""),
                "{line}"
            );
            continue;
        }
        assert_eq!(method.method_name, name, "{line}");
        assert_eq!(as_the_runtime_says(&method), class, "{line}");
        let generic = signature.contains("<!!") || !method.method_params.is_empty();
        assert_eq!(method.method_args.is_empty(), !generic, "{line}: {method:?}");
        compared += 1;
    }
    println!("{version}: {compared} entry points in {} files, {shared} shared", images.len());
    assert!(compared > 300, "only {compared} entry points in files");
    // What the program's work leads through on every runtime.
    for used in
        ["System.Private.CoreLib.dll", "System.Linq.dll", "System.Text.RegularExpressions.dll"]
    {
        assert!(images.keys().any(|path| path.ends_with(used)), "nothing of {used}");
    }
    // P/Invoke stubs of .NET Core 3 only.
    assert!(shared <= if version == "3.1" { compared / 10 } else { 0 }, "{shared} are shared");
}

#[test]
fn the_runtime_3_1_enters_each_method_where_the_file_says() {
    runtime_agrees("3.1");
}

#[test]
fn the_runtime_9_enters_each_method_where_the_file_says() {
    runtime_agrees("9");
}

#[test]
fn every_piece_of_precompiled_code_has_a_method() {
    let mut functions = 0;
    let mut funclets = 0;
    let compiler = dotnet().join("csc");
    let more = ["csc.dll", "Microsoft.CodeAnalysis.dll", "Microsoft.CodeAnalysis.CSharp.dll"]
        .map(|name| compiler.join(name));
    let files = framework_files("3.1").into_iter().chain(framework_files("9")).chain(more);
    for path in files {
        let file = open(&path);
        // Reference assemblies and facades have no code; all have metadata.
        let image = ManagedImage::open(&file).unwrap();
        let Some(code) = image.native_code().unwrap() else { continue };
        assert_eq!(code.kind, Kind::Single);
        assert!(code.problems().is_empty(), "{}: {:?}", path.display(), code.problems());
        for function in image.runtime_functions() {
            functions += 1;
            for rva in [function.begin, function.end - 1] {
                let method = image.method_at_rva(rva).unwrap_or_else(|| {
                    panic!("nothing at {rva:x} of {}", path.display());
                });
                assert!(!method.method_name.is_empty() && method.assembly.is_none());
                let code = method.start_rva..method.start_rva + method.size;
                assert!(code.contains(&rva));
                assert_eq!(image.rva_of(image.offset_of(rva).unwrap()), Some(rva));
                // Arguments are as many as parameters, or none.
                for (arguments, parameters) in [
                    (&method.class_args, &method.class_params),
                    (&method.method_args, &method.method_params),
                ] {
                    assert_eq!(arguments.len(), parameters.len(), "{rva:x} {method:?}");
                }
                funclets += usize::from(method.part == CodePart::Funclet);
            }
        }
    }
    println!("{functions} functions, {} of them funclets", funclets / 2);
    assert!(functions > 250_000 && funclets > 10_000);
}

#[test]
fn addresses_outside_of_code_have_no_method() {
    let path = framework("9", "System.Linq.dll");
    let file = open(&path);
    let image = ManagedImage::open(&file).unwrap();
    let functions = image.runtime_functions();
    let (first, last) = (functions[0], functions[functions.len() - 1]);
    for rva in [0, 0x200, first.begin - 1, last.end, u32::MAX] {
        assert_eq!(image.method_at_rva(rva), None, "{rva:x}");
    }
    assert_eq!(image.rva_of(u64::MAX), None);
    assert_eq!(image.offset_of(u32::MAX), None);
}

/// Files that are no assemblies.
#[test]
fn other_files_are_refused() {
    for path in [Path::new("/proc/self/exe"), &dotnet().join("csc/refs.rsp")] {
        let bytes = std::fs::read(path).unwrap();
        assert!(matches!(ManagedImage::open(&bytes), Err(strata_dotnet::Error::NotPe)));
    }
}
