//! The library for musl, in a program on musl. No .NET for musl is at hand.

mod support;

use std::process::Command;

use strata_clr::{CLibrary, bridge_library};

#[test]
fn the_library_for_musl_is_loaded_by_a_program_on_musl() {
    let Some(content) = bridge_library::content(CLibrary::Musl) else {
        strata_skip::skipped!(
            "built without musl; `rustup target add x86_64-unknown-linux-musl` and musl-tools add it"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libstrata_clr.so");
    std::fs::write(&library, content).unwrap();
    let program = folder.path().join("load");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/load.c");
    let built = Command::new("musl-gcc").arg("-o").arg(&program).arg(source).status().unwrap();
    assert!(built.success());
    let done = Command::new(program).arg(&library).output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    println!("{printed}");
    assert!(done.status.success());
    // Loaded, found, called: it refuses a class that is not its own.
    assert_eq!(printed.trim(), "80040111");
    let glibc = bridge_library::content(CLibrary::Glibc).unwrap();
    assert_ne!(glibc, content);
}
