//! What the built libraries require of a system, and that they load beside either C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// The library as it is shipped.
fn shipped(target: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "strata-clr-profiler", "--message-format=json"]);
    build.args(["--profile", "bridge", "--target", target]).current_dir(workspace());
    if target.ends_with("-musl") {
        build.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", "musl-gcc").env(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
            "-Ctarget-feature=-crt-static",
        );
    }
    let built = build.output().expect("starting cargo");
    let printed = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{target} does not build: {printed}");
    library_in(&String::from_utf8_lossy(&built.stdout))
}

fn output(command: &mut Command) -> String {
    let done = command.output().expect("starting a tool");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// What stands in brackets or behind a word of `readelf`'s lines.
fn needed(library: &Path) -> Vec<String> {
    output(Command::new("readelf").arg("-d").arg(library))
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_string()))
        .collect()
}

fn load_with(compiler: &str, library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clr/programs/load.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clr");
    fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join(format!("load-{compiler}"));
    output(Command::new(compiler).arg("-o").arg(&program).arg(&source).arg("-ldl"));
    let printed = Command::new(&program).arg(library).output().expect("starting the program");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "good\n", "{}", printed.status);
    assert_eq!(String::from_utf8_lossy(&printed.stderr), "");
}

/// Every process that strata attaches to maps the library. What keeps the runtime's ids from being used
/// after an unload takes 20 KB of it; names with type arguments and the owners of locks take as much, and
/// the compaction of the log 30 KB, windows of allocations and stacks by the runtime 10 KB. It grows by
/// pages.
const MOST_BYTES: u64 = 608_000;

#[test]
fn the_glibc_library_loads_and_asks_for_no_glibc_after_2_17() {
    let library = shipped("x86_64-unknown-linux-gnu");
    let allowed = ["libc.so.6", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];
    for name in needed(&library) {
        assert!(allowed.contains(&name.as_str()), "needs {name}");
    }
    let symbols = output(Command::new("readelf").args(["-V", "--wide"]).arg(&library));
    let mut newest = (0, 0);
    for version in symbols.split("GLIBC_").skip(1) {
        let number: String =
            version.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let mut parts = number.split('.').map(|part| part.parse::<u32>().expect("a number"));
        let version = (parts.next().expect("major"), parts.next().unwrap_or(0));
        newest = newest.max(version);
    }
    assert!(newest > (2, 0) && newest <= (2, 17), "asks for glibc {newest:?}");
    let size = fs::metadata(&library).expect("the library").len();
    assert!(size < MOST_BYTES, "{size} bytes");
    load_with("cc", &library);
}

#[test]
fn the_musl_library_loads_and_needs_nothing_but_musl() {
    let library = shipped("x86_64-unknown-linux-musl");
    assert_eq!(needed(&library), ["libc.so"]);
    let size = fs::metadata(&library).expect("the library").len();
    assert!(size < MOST_BYTES, "{size} bytes");
    load_with("musl-gcc", &library);
}

#[test]
fn only_the_three_entry_points_are_exported() {
    let library = shipped("x86_64-unknown-linux-gnu");
    let symbols = output(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(&library));
    let mut exported: Vec<&str> = symbols
        .lines()
        .filter(|line| line.contains(" GLOBAL ") && !line.contains(" UND "))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    exported.sort_unstable();
    let expected = ["DllCanUnloadNow", "DllGetClassObject", "SetApplicationInfoForAppDomain"];
    assert_eq!(exported, expected);
}
