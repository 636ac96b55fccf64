//! .NET of four versions, as `cargo xtask setup test` assembled them, and test programs as commands
//! that run on any of them.
//!
//! | version | how a program runs |
//! |---|---|
//! | 3.1, 9 | `dotnet exec Name.dll` of a runtime whose files lie apart |
//! | 8 | as a start-up hook of a single-file program, whose own `Main` is never reached |
//! | 10 | bundled with a trimmed framework into a single-file program of its own |
//!
//! Invariant: a program that a version cannot run is not skipped silently: [`DotNet::supports`]
//! returns the reason.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::assemblies::{Assembly, Framework};
use super::bundle;
use crate::places;

/// A version of .NET that programs run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V3_1,
    V8,
    V9,
    V10,
}

impl Version {
    pub const ALL: [Self; 4] = [Self::V3_1, Self::V8, Self::V9, Self::V10];

    fn folder(self) -> &'static str {
        match self {
            Self::V3_1 => "3.1",
            Self::V8 => "8",
            Self::V9 => "9",
            Self::V10 => "10",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".NET {}", self.folder())
    }
}

/// The assembled runtimes and compilers.
pub struct DotNet {
    folder: PathBuf,
}

/// Finds what the set-up assembled: in `STRATA_DOTNET`, else in the cache.
pub fn dotnet() -> Result<DotNet> {
    let folder = match std::env::var_os("STRATA_DOTNET") {
        Some(folder) => PathBuf::from(folder),
        None => places::cache("dotnet")?,
    };
    let needed = [
        "compile",
        "3.1/dotnet",
        "9/dotnet",
        "8/Sarif.Multitool",
        "10/host",
        "10/framework/System.Private.CoreLib.dll",
        "fsharp/fsc.exe",
    ];
    for file in needed {
        if !folder.join(file).is_file() {
            bail!("no {file} in {}: run `cargo xtask setup test`", folder.display());
        }
    }
    Ok(DotNet { folder })
}

impl DotNet {
    /// The versions at hand, oldest first.
    pub fn versions(&self) -> [Version; 4] {
        Version::ALL
    }

    /// Why a version cannot run this program, if so.
    pub fn supports(&self, version: Version, name: &str) -> std::result::Result<(), &'static str> {
        match (version, name) {
            // Its runtime library refers to System.Runtime.dll.
            (Version::V10, "Basic" | "Functional") => Err(
                "System.Runtime.dll no longer says where System.Object is: its forwards were trimmed away",
            ),
            _ => Ok(()),
        }
    }

    /// A command that runs the program of this name (see [`Assembly::program`]) with arguments.
    pub fn program(&self, version: Version, name: &str, arguments: &[&str]) -> Result<Command> {
        if let Err(reason) = self.supports(version, name) {
            bail!("{name} does not run on {version}: {reason}");
        }
        self.run(version, &Assembly::program(name), arguments)
    }

    /// A command that runs a program compiled as described.
    pub fn run(
        &self,
        version: Version,
        assembly: &Assembly,
        arguments: &[&str],
    ) -> Result<Command> {
        let mut command = match version {
            Version::V3_1 | Version::V9 => {
                let program = self.assembly(assembly)?;
                let mut command = Command::new(self.folder.join(version.folder()).join("dotnet"));
                command.arg("exec").arg(program).args(arguments);
                command
            }
            Version::V8 => {
                let hook = Assembly::csharp("StartupHook").library();
                let mut command = Command::new(self.folder.join("8/Sarif.Multitool"));
                command
                    .arg("--version")
                    .env("DOTNET_STARTUP_HOOKS", self.assembly(&hook)?)
                    .env("STRATA_TEST_PROGRAM", self.assembly(assembly)?)
                    .env("STRATA_TEST_ARGUMENTS", arguments.join("\n"));
                command
            }
            Version::V10 => {
                let mut command = Command::new(self.bundled(assembly)?);
                command.args(arguments);
                command
            }
        };
        settings(&mut command);
        Ok(command)
    }

    /// The path of the compiled file that the version loads: an assembly, or a bundle with it.
    pub fn built(&self, version: Version, assembly: &Assembly) -> Result<PathBuf> {
        match version {
            Version::V10 => self.bundled(assembly),
            _ => self.assembly(assembly),
        }
    }

    /// A library that a program of this version loads from its file.
    pub fn library(&self, version: Version, name: &str) -> Result<PathBuf> {
        let framework = match version {
            Version::V10 => Framework::Trimmed,
            _ => Framework::Standard,
        };
        Assembly::csharp(name).library().build(&self.folder, framework)
    }

    /// A command that runs a managed program on .NET 9.
    pub fn command(&self, assembly: &Path) -> Command {
        let mut command = Command::new(self.folder.join("9/dotnet"));
        command.arg("exec").arg(assembly);
        settings(&mut command);
        command
    }

    /// A command that compiles a C# file; the compiler is a .NET program itself.
    pub fn compile_command(&self, source: &Path, output: &Path) -> Command {
        let mut command = Command::new(self.folder.join("compile"));
        command.arg(output).arg(source);
        command
    }

    /// The C# compiler itself, on .NET 9.
    pub fn compiler(&self, source: &Path, output: &Path) -> Command {
        let compiler = self.folder.join("csc");
        let mut command = self.command(&compiler.join("csc.dll"));
        command
            .args(["-nologo", "-o+"])
            .arg(format!("-out:{}", output.display()))
            .arg(format!("@{}", compiler.join("refs.rsp").display()))
            .arg(source);
        command
    }

    /// A real .NET 10 program, trimmed and in a single file: a server that prints its version.
    pub fn real_program(&self) -> Command {
        let mut command = Command::new(self.folder.join("10/azmcp"));
        settings(&mut command);
        command
    }

    /// The recursion program, compiled once.
    pub fn recursion(&self) -> Result<PathBuf> {
        self.assembly(&Assembly::csharp("Recursion"))
    }

    /// Compiled for the frameworks whose files lie apart.
    fn assembly(&self, assembly: &Assembly) -> Result<PathBuf> {
        assembly.build(&self.folder, Framework::Standard)
    }

    fn bundled(&self, assembly: &Assembly) -> Result<PathBuf> {
        let program = assembly.build(&self.folder, Framework::Trimmed)?;
        bundle::bundle(&self.folder.join("10"), &program)
    }
}

/// What every .NET process here needs of its environment: there is no ICU.
fn settings(command: &mut Command) {
    command
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .env("DOTNET_CLI_TELEMETRY_OPTOUT", "1");
}

/// Writes a file that other processes may be about to write, too: with the same content.
pub(super) fn write_once(path: &Path, content: &[u8], executable: bool) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().context("a file in no folder")?;
    let unfinished = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(unfinished.path(), content)?;
    let mode = if executable { 0o755 } else { 0o644 };
    fs::set_permissions(unfinished.path(), fs::Permissions::from_mode(mode))?;
    unfinished.persist(path).with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}
