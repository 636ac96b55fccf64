//! A whole .NET 9 runtime, from a self-contained program with separate files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::packages::{Package, unpack};

const PROGRAM: Package = Package {
    name: "@azure/mcp-linux-x64@0.5.8",
    sha256: "376db4e32b7b544bb100e9660b6769000343c68863b90e3ba9cadc95860edc97",
    what: "the .NET 9 runtime",
};

const VERSION: &str = "9.0.7";
const RUNTIME_PACK: &str = "runtimepack.Microsoft.NETCore.App.Runtime.linux-x64/9.0.7";

/// Makes a runtime root, with a `dotnet` that any version's package has.
pub fn runtime(work: &Path, root: &Path, dotnet: &Path) -> Result<()> {
    let program = unpack(&PROGRAM, work, &["package/dist/*"])?.join("dist");
    let framework = root.join("shared/Microsoft.NETCore.App").join(VERSION);
    let host = root.join("host/fxr").join(VERSION);
    fs::create_dir_all(&framework)?;
    fs::create_dir_all(&host)?;
    fs::copy(dotnet, root.join("dotnet"))?;
    fs::copy(program.join("libhostfxr.so"), host.join("libhostfxr.so"))?;

    // The program's own manifest lists which of its files are the runtime's.
    let list = fs::read_to_string(program.join("azmcp.deps.json"))?;
    let pack = object_after(&list, &format!("\"{RUNTIME_PACK}\":"))
        .context("the program's file list has no runtime in it")?;
    for file in file_names_in(pack) {
        fs::rename(program.join(file), framework.join(file))
            .with_context(|| format!("{} lacks {file}", PROGRAM.name))?;
    }
    let name = format!("Microsoft.NETCore.App.Runtime.linux-x64/{VERSION}");
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
