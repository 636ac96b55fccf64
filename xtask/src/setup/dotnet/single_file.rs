//! .NET 8 and .NET 10 as single-file programs: the runtime linked into the executable, the
//! assemblies appended to it.
//!
//! ```text
//! 8/Sarif.Multitool        a program that runs our code as a start-up hook
//! 10/azmcp                 a real program, trimmed
//! 10/host                  its executable without the appended files
//! 10/framework/*.dll       the framework's assemblies among those
//! 10/runtimeconfig.json    its configuration
//! ```
//!
//! A test program for .NET 10 is `host` with the framework and the program appended, as the SDK's
//! bundler does it (`strata-tests` does that); it is compiled against the trimmed framework, so that
//! what was trimmed away is an error of the compiler and not of a test.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::bundle::{Bundle, Kind};
use super::packages::{Package, make_executable, unpack};
use crate::run;

const EIGHT: Package = Package {
    name: "@microsoft/sarif-multitool-linux@5.7.0",
    sha256: "27d8e3e96dde578a23b7c45035b8d741fece5731e2700aa068015b8c44d1514e",
    what: "a single-file program with the .NET 8 runtime",
};

const TEN: Package = Package {
    name: "@azure/mcp-linux-x64@2.0.5",
    sha256: "59e49713045a8c78c4915a6368bfc7688e7e9032a74d1fdf6caaa24d05a4dbdb",
    what: "a single-file program with the .NET 10 runtime",
};

pub fn eight(work: &Path, into: &Path) -> Result<()> {
    let files = unpack(&EIGHT, work, &["package/Sarif.Multitool", "package/README.md"])?;
    make_executable(&files.join("Sarif.Multitool"))?;
    starts(&files.join("Sarif.Multitool"))?;
    fs::rename(files, into)?;
    Ok(())
}

pub fn ten(work: &Path, into: &Path) -> Result<()> {
    let files = unpack(&TEN, work, &["package/dist/azmcp", "package/LICENSE"])?;
    let program = files.join("azmcp");
    fs::rename(files.join("dist/azmcp"), &program)?;
    fs::remove_dir(files.join("dist"))?;
    make_executable(&program)?;
    starts(&program)?;

    let bytes = fs::read(&program)?;
    let bundle = Bundle::parse(&bytes).context("reading the single-file program")?;
    let framework = files.join("framework");
    fs::create_dir(&framework)?;
    for file in &bundle.files {
        let is_framework =
            file.path.starts_with("System.") || file.path.starts_with("Microsoft.Win32.");
        if file.kind == Kind::Assembly && is_framework && !file.path.contains('/') {
            fs::write(framework.join(file.path), file.content(&bytes)?)?;
        }
        if file.kind == Kind::RuntimeConfiguration {
            fs::write(files.join("runtimeconfig.json"), file.content(&bytes)?)?;
        }
    }
    if !framework.join("System.Private.CoreLib.dll").is_file() {
        bail!("{} has no System.Private.CoreLib.dll", TEN.name);
    }
    let host = bundle.host(&bytes).context("the program has no executable part")?;
    fs::write(files.join("host"), host)?;
    make_executable(&files.join("host"))?;
    fs::rename(files, into)?;
    Ok(())
}

/// Runs it: a program that does not start must not reach a test.
fn starts(program: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1").arg("--version");
    run::output_of(&mut command).map(drop)
}
