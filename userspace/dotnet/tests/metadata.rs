//! Names by token are those that System.Reflection.Metadata reads, for every method of large
//! assemblies. Needs the .NET runtimes.

mod support;

use std::path::Path;

use strata_dotnet::ManagedImage;
use support::*;

/// Compares everything; returns how many methods there were.
fn compare(reference: &Path, assembly: &Path) -> usize {
    let file = open(assembly);
    let image = ManagedImage::open(&file).unwrap();
    let metadata = image.metadata().unwrap();
    let mut methods = 0;
    for line in run("9", reference, &[assembly]).lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["mvid", mvid] => assert_eq!(hex(&image.mvid().unwrap()), mvid),
            ["assembly", name] => assert_eq!(metadata.assembly_name().as_deref(), Some(name)),
            ["method", number, class, name, class_params, method_params, signature] => {
                methods += 1;
                let method = image.method(token(number)).unwrap();
                assert_eq!(method.type_name, class, "{line}");
                assert_eq!(method.method_name, name, "{line}");
                assert_eq!(method.class_params.join(","), class_params, "{line}");
                assert_eq!(method.method_params.join(","), method_params, "{line}");
                assert_eq!(hex(&method.signature), signature, "{line}");
                for class in strata_dotnet::signature::type_tokens(&method.signature) {
                    let named =
                        metadata.type_name(class).is_some() || metadata.type_spec(class).is_some();
                    assert!(named, "{class:x} in {line}");
                }
            }
            ["type", number, name] => {
                assert_eq!(metadata.type_name(token(number)).as_deref(), Some(name));
            }
            ["member", number, name, signature] => {
                let method = image.method(token(number)).unwrap();
                assert_eq!(method.method_name, name);
                assert_eq!(hex(&method.signature), signature);
            }
            ["pdb", id, age, path] => {
                let pdb = image.pdb().unwrap();
                assert_eq!(pdb.id.to_string(), id);
                assert_eq!(pdb.age.to_string(), age);
                assert_eq!(pdb.path, path);
            }
            _ => {}
        }
    }
    methods
}

#[test]
fn every_method_has_the_name_that_reflection_gives_it() {
    let folder = tempfile::tempdir().unwrap();
    let reference = compile(folder.path(), "Metadata.cs", &[]);
    let compiler = dotnet().join("csc");
    let mut methods = 0;
    for assembly in [
        framework("3.1", "System.Private.CoreLib.dll"),
        framework("9", "System.Private.CoreLib.dll"),
        framework("9", "System.Linq.dll"),
        dotnet().join("10/framework/System.Private.CoreLib.dll"),
        compiler.join("csc.dll"),
        compiler.join("Microsoft.CodeAnalysis.CSharp.dll"),
        reference.clone(),
    ] {
        let found = compare(&reference, &assembly);
        assert!(found > 0);
        println!("{found} methods of {}", assembly.display());
        methods += found;
    }
    assert!(methods > 100_000, "{methods}");
}
