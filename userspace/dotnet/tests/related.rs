//! Facts found in methods' instructions: the method in which a VB lambda is written, compared with
//! the program's own output; the native function that a statement calls. Needs the .NET runtimes.

mod support;

use std::collections::HashMap;

use strata_dotnet::{ManagedImage, Statement};
use support::*;

#[test]
fn the_method_that_a_lambda_is_written_in_is_found() {
    for optimised in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_visual_basic(folder.path(), "Lambdas.vb", optimised);
        let file = open(&program);
        let image = ManagedImage::open(&file).unwrap();
        let printed = run("9", &program, &[]);
        let mut count = 0;
        for line in printed.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let [number, expected, name] = words[..] else { panic!("{line}") };
            let around = image.method_around(token(number));
            assert_eq!(around.as_deref(), Some(expected), "{name}, optimised: {optimised}");
            count += 1;
        }
        assert!(count >= 18, "{printed}");
        // Everything else is no lambda.
        let methods = 1..image.metadata().unwrap().rows(strata_ecma::table::METHOD_DEF);
        let lambda = |row: &u32| image.method_around(0x0600_0000 | row).is_some();
        let lambdas = methods.filter(lambda).count();
        assert!((17..=count + 4).contains(&lambdas), "{lambdas} of {count}");
    }
}

#[test]
fn what_a_stub_calls_is_named_only_when_it_can_be_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "Imports.cs", &[]);
    let file = open(&program);
    let image = ManagedImage::open(&file).unwrap();
    let printed = run("9", &program, &[]);
    let methods: HashMap<&str, (u32, u32)> = printed
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split('\t').collect();
            (words[0], (token(words[1]), words[2].parse().unwrap()))
        })
        .collect();
    let signature = |name: &str| image.method(methods[name].0).unwrap().signature;
    // Each call is five bytes long, and the return behind it one.
    let calls = |name: &str, stub: &[u8], from_end: Option<u32>| {
        let (method, end) = methods[name];
        let start = from_end.map_or(0, |length| end - length);
        image.import_of(stub, Statement { method, start, end })
    };
    let last = Some(6);
    let of_text = signature("first");
    assert_eq!(calls("CallsFirst", &of_text, last).as_deref(), Some("first"));
    assert_eq!(
        calls("CallsRenamed", &signature("renamed"), last).as_deref(),
        Some("its_real_name")
    );
    assert_eq!(calls("CallsFirst", &of_text, None), None, "the statement calls something else");
    assert_eq!(
        calls("CallsBoth", &of_text, last),
        None,
        "the method calls several of one signature"
    );
    assert_eq!(calls("CallsDifferent", &of_text, last).as_deref(), Some("second"));
    assert_eq!(calls("CallsManaged", &of_text, None), None);
    assert_eq!(calls("CallsIndirectly", &of_text, last), None);
    assert_eq!(calls("only", &of_text, None), None, "without instructions");
    assert_eq!(calls("CallsFirst", &signature("only"), last), None, "another signature");
    // Of a delegate, of a function pointer, of one with any number of arguments.
    for convention in [0x20, 0x01, 0x05] {
        let mut signature = of_text.clone();
        signature[0] = convention;
        assert_eq!(calls("CallsFirst", &signature, last), None);
    }

    // Where the runtime has made addresses of types: so in .NET Core 3.1.
    let own = signature("withType");
    let mut made: Vec<u8> = own.iter().copied().take_while(|byte| *byte != 0x12).collect();
    made.extend([0x21, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(own.len() < made.len());
    assert_eq!(calls("CallsWithType", &own, last).as_deref(), Some("withType"));
    assert_eq!(calls("CallsWithType", &made, last).as_deref(), Some("withType"));
    made.truncate(made.len() - 1);
    assert_eq!(calls("CallsWithType", &made, last), None);
}
