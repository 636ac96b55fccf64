//! Targets that need a runtime: Python, Node, Java and .NET.
//!
//! Python, Node and Java are the machine's; .NET is what `cargo xtask setup test` assembled in the
//! cache.
//!
//! | module | holds |
//! |---|---|
//! | [`dotnet`] | a test program as a command, on any version of .NET |
//! | [`assemblies`] | C#, VB and F# programs, compiled once |
//! | [`bundle`] | a program appended to the executable that runs it |
//! | [`repack`] | such a file with compressed files and others inside |

pub mod assemblies;
pub mod bundle;
pub mod dotnet;
pub mod repack;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Result, bail};

use crate::compile::{OUTPUT, Recipe};
use crate::daemon::PATIENCE;
use crate::places;
use crate::running::Running;

pub use dotnet::{DotNet, Version, dotnet};

/// The Python shares, or the idle Python service.
pub fn python(script: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(python_interpreter()?);
    command.arg(places::target_sources().join("python").join(script)).args(arguments);
    Ok(command)
}

/// The interpreter itself: a version manager's `python3` is a shell script.
fn python_interpreter() -> Result<PathBuf> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let shim = places::required("python3", "python3")?;
    let done = Command::new(shim).args(["-c", "import sys; print(sys.executable)"]).output()?;
    let found = PathBuf::from(String::from_utf8(done.stdout)?.trim());
    Ok(FOUND.get_or_init(|| found).clone())
}

/// The Python shares on an interpreter of this version (`3.12`), if there is one: on the path, or of
/// pyenv.
pub fn python_of(version: &str, options: &[&str], arguments: &[&str]) -> Option<Command> {
    python_script_of(version, options, "shares.py", arguments)
}

/// As [`python_of`], another script.
pub fn python_script_of(
    version: &str,
    options: &[&str],
    script: &str,
    arguments: &[&str],
) -> Option<Command> {
    let name = format!("python{version}");
    let interpreter = pyenv_interpreter(version, &name).or_else(|| {
        let program = places::program(&[&name])?;
        let done = Command::new(program)
            .args(["-c", "import sys; print(sys.executable)"])
            .output()
            .ok()?;
        let found = PathBuf::from(String::from_utf8(done.stdout).ok()?.trim());
        (done.status.success() && found.is_file()).then_some(found)
    })?;
    let mut command = Command::new(interpreter);
    command.args(options);
    command.arg(places::target_sources().join("python").join(script)).args(arguments);
    Some(command)
}

fn pyenv_interpreter(version: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")))?;
    let releases = std::fs::read_dir(root.join("versions")).ok()?;
    releases.flatten().find_map(|release| {
        let is_wanted = release.file_name().to_string_lossy().starts_with(&format!("{version}."));
        let program = release.path().join("bin").join(name);
        (is_wanted && program.is_file()).then_some(program)
    })
}

/// The Node shares, with a perf map.
pub fn node(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(places::required("node", "nodejs")?);
    command.arg("--perf-basic-prof");
    command.arg(places::target_sources().join("node/shares.js")).args(arguments);
    Ok(command)
}

/// The Java shares, with frame pointers.
pub fn java(seconds: &str) -> Result<Command> {
    let source = places::target_sources().join("java/Shares.java");
    let classes = Recipe {
        name: "java_classes".to_string(),
        compiler: places::required("javac", "default-jdk-headless")?,
        arguments: vec!["-d".to_string(), OUTPUT.to_string(), source.display().to_string()],
        sources: vec![source],
        directory: places::target_sources(),
        environment: vec![],
        strip: false,
        output_is_a_folder: true,
    }
    .build()?;
    let mut command = Command::new(places::required("java", "default-jdk-headless")?);
    command.args(["-XX:+PreserveFramePointer", "-XX:+UseSerialGC"]);
    // Else the compiler inlines the burners into their callers.
    command.args(["-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Shares::burn*"]);
    command.arg("-cp").arg(classes);
    command.args(["Shares", seconds]);
    Ok(command)
}

/// Lets a running JVM (17 or newer) write its perf map; it does so when asked, not while it runs.
pub fn write_java_perf_map(pid: i32) -> Result<()> {
    let jcmd = places::required("jcmd", "default-jdk-headless")?;
    let mut command = Command::new(jcmd);
    command.args([&pid.to_string(), "Compiler.perfmap"]);
    let map = format!("/tmp/perf-{pid}.map");
    // Of another process that had its number.
    let _ = std::fs::remove_file(&map);
    let ended = Running::from_command(command)?.wait(PATIENCE)?;
    if !ended.status.success() || !Path::new(&map).exists() {
        bail!("jcmd wrote no {map}: {}{}", ended.stdout, ended.stderr);
    }
    Ok(())
}
