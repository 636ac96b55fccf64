//! Real runtimes, their files, and C# programs that say what is true about them.
//!
//! `cargo xtask test` assembles the runtimes; without them the tests fail and say so.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use strata_bytes::FileAt;

/// Where the runtimes are.
pub fn dotnet() -> PathBuf {
    let directory = std::env::var_os("STRATA_DOTNET").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/dotnet"),
        PathBuf::from,
    );
    assert!(
        directory.join("9/dotnet").exists(),
        "no .NET runtimes in {}: `cargo xtask setup test` assembles them",
        directory.display()
    );
    directory.canonicalize().unwrap()
}

/// A file of the framework of a version.
pub fn framework(version: &str, name: &str) -> PathBuf {
    let shared = dotnet().join(version).join("shared/Microsoft.NETCore.App");
    let versions = std::fs::read_dir(shared).unwrap();
    versions.map(|entry| entry.unwrap().path().join(name)).find(|path| path.exists()).unwrap()
}

/// The precompiled assemblies of a runtime.
pub fn framework_files(version: &str) -> Vec<PathBuf> {
    let core = framework(version, "System.Private.CoreLib.dll");
    let mut files: Vec<PathBuf> = std::fs::read_dir(core.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "dll"))
        .collect();
    files.sort();
    files
}

pub fn open(path: &Path) -> FileAt {
    FileAt::new(File::open(path).unwrap()).unwrap()
}

/// A program of `tests/programs`, compiled into a folder.
pub fn compile(folder: &Path, program: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
    let output = folder.join(program).with_extension("dll");
    let mut compile = Command::new(dotnet().join("compile"));
    compile.arg(&output).arg(source).args(options);
    say(&mut compile);
    output
}

/// The same of a VB program.
pub fn compile_visual_basic(folder: &Path, program: &str, optimised: bool) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
    let output = folder.join(program).with_extension("dll");
    let compiler = dotnet().join("csc");
    let references = compiler.join("references");
    let mut compile = Command::new(dotnet().join("9/dotnet"));
    compile.arg("exec").arg("--runtimeconfig").arg(compiler.join("csc.runtimeconfig.json"));
    compile.arg(compiler.join("vbc.dll"));
    compile.args(["-nologo", "-optioninfer+", "-define:_MYTYPE=\"Empty\""]);
    compile.arg(if optimised { "-optimize+" } else { "-debug+" });
    compile.arg(format!("-sdkpath:{}", references.display()));
    let runtime = references.join("Microsoft.VisualBasic.Core.dll");
    compile.arg(format!("-vbruntime:{}", runtime.display()));
    for reference in std::fs::read_dir(&references).unwrap() {
        let path = reference.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "dll") {
            compile.arg(format!("-r:{}", path.display()));
        }
    }
    compile.arg(format!("-out:{}", output.display())).arg(source);
    say(&mut compile);
    let configuration = r#"{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"},"rollForward":"LatestMajor"}}"#;
    std::fs::write(output.with_extension("runtimeconfig.json"), configuration).unwrap();
    output
}

/// A program's output on a runtime.
pub fn run(version: &str, program: &Path, arguments: &[&Path]) -> String {
    let mut run = Command::new(dotnet().join(version).join("dotnet"));
    run.arg("exec").arg(program).args(arguments);
    say(&mut run)
}

fn say(command: &mut Command) -> String {
    command.env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
    command.env("DOTNET_CLI_TELEMETRY_OPTOUT", "1").env("DOTNET_EnableDiagnostics", "0");
    let done = command.output().unwrap();
    let printed = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.status.success(),
        "{command:?}: {printed}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    printed
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn token(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap()
}
