//! Builds strata's library for CLRs by a cargo of its own, and hands the bytes to the crate.
//!
//! The library has another profile (small, unwinding) and other targets than what it is put into, so
//! it cannot be an ordinary dependency. `STRATA_BRIDGE_LIBRARY` (and `STRATA_BRIDGE_LIBRARY_MUSL`)
//! name ready-made files instead.
//!
//! Clippy, the tests, the release and `dist` each run this script. All hand cargo the same target
//! directory, `bridge` in the outer one, so that link-time optimization runs once for each target.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "strata-clr-profiler";
const FILE: &str = "libstrata_clr.so";

struct Kind {
    constant: &'static str,
    target: &'static str,
    variable: &'static str,
}

const GLIBC: Kind = Kind {
    constant: "GLIBC",
    target: "x86_64-unknown-linux-gnu",
    variable: "STRATA_BRIDGE_LIBRARY",
};

const MUSL: Kind = Kind {
    constant: "MUSL",
    target: "x86_64-unknown-linux-musl",
    variable: "STRATA_BRIDGE_LIBRARY_MUSL",
};

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    let output = PathBuf::from(variable("OUT_DIR"));
    const SOURCES: [&str; 6] = [
        "clr-bridge/profiler",
        "clr-bridge/protocol",
        "userspace/bytes",
        "userspace/ecma",
        "Cargo.toml",
        "rust-toolchain.toml",
    ];
    for path in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    let mut source = String::new();
    for kind in [GLIBC, MUSL] {
        println!("cargo:rerun-if-env-changed={}", kind.variable);
        let library = match env::var_os(kind.variable) {
            Some(path) => {
                println!("cargo:rerun-if-changed={}", Path::new(&path).display());
                Some(PathBuf::from(path))
            }
            None if kind.constant == "MUSL" => musl(&root, &output),
            None => match build(&root, &output, &kind, &[]) {
                Ok(library) => Some(library),
                Err(why) => panic!("{why}"),
            },
        };
        let value = match library {
            Some(path) => {
                let copy = output.join(format!("{}.so", kind.target));
                fs::copy(&path, &copy)
                    .unwrap_or_else(|error| panic!("copying {}: {error}", path.display()));
                format!("Some(include_bytes!({:?}))", copy.display().to_string())
            }
            None => "None".to_owned(),
        };
        source += &format!("const {}: Option<&[u8]> = {value};\n", kind.constant);
    }
    fs::write(output.join("libraries.rs"), source).expect("writing libraries.rs");
}

/// The library for musl, where its target and a linker for it are installed.
fn musl(root: &Path, output: &Path) -> Option<PathBuf> {
    let libraries = Command::new(variable("RUSTC"))
        .args(["--print", "target-libdir", "--target", MUSL.target])
        .current_dir(root)
        .output()
        .ok()?;
    let folder = PathBuf::from(String::from_utf8(libraries.stdout).ok()?.trim());
    // A target that is installed later is seen by the next build.
    println!("cargo:rerun-if-changed={}", folder.display());
    let has_target = folder.is_dir();
    let has_linker =
        env::split_paths(&env::var_os("PATH")?).any(|folder| folder.join("musl-gcc").is_file());
    if !has_target || !has_linker {
        println!(
            "cargo:warning=without {} (rustup target add {}; musl-tools) strata cannot attach to .NET on musl",
            if has_target { "musl-gcc" } else { "Rust's musl target" },
            MUSL.target
        );
        return None;
    }
    // The library takes the C library from the process it is loaded into.
    let settings = [
        ("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=-crt-static"),
        ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", "musl-gcc"),
    ];
    match build(root, output, &MUSL, &settings) {
        Ok(library) => Some(library),
        Err(why) => {
            println!("cargo:warning={why}; strata cannot attach to .NET on musl");
            None
        }
    }
}

fn build(
    root: &Path,
    output: &Path,
    kind: &Kind,
    settings: &[(&str, &str)],
) -> Result<PathBuf, String> {
    let target_folder = target_directory(output).join("bridge");
    let mut command = Command::new(variable("CARGO"));
    command
        .current_dir(root)
        .args(["build", "--locked", "--package", PACKAGE, "--profile", "bridge"])
        .args(["--target", kind.target, "--target-dir"])
        .arg(&target_folder);
    // What the outer cargo, its user or clippy set for their own build is not meant for this one.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            command.env_remove(name);
        }
    }
    command.envs(settings.iter().copied());
    let status = command.status().map_err(|error| format!("starting cargo: {error}"))?;
    if !status.success() {
        return Err(format!("{PACKAGE} does not build for {}", kind.target));
    }
    Ok(target_folder.join(kind.target).join("bridge").join(FILE))
}

/// The outer build's target directory: the one above `OUT_DIR` that cargo has marked as a cache.
/// Where there is no mark, the library is built once per profile.
fn target_directory(output: &Path) -> &Path {
    output.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).unwrap_or(output)
}

/// Variables that steer a build, without those that say where cargo and its registries are.
fn is_of_the_outer_build(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
    ];
    const REMOVED: [&str; 16] = [
        "CARGO",
        "CLIPPY_",
        "DEBUG",
        "DEP_",
        "HOST",
        "LLVM_PROFILE_FILE",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "TARGET",
        "MAKEFLAGS",
        "MFLAGS",
    ];
    !KEPT.iter().any(|kept| name.starts_with(kept))
        && REMOVED.iter().any(|removed| match removed.ends_with('_') || *removed == "CARGO" {
            true => name.starts_with(removed),
            false => name == *removed || name.starts_with(&format!("{removed}_")),
        })
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}
