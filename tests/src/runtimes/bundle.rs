//! Makes a single-file .NET program, as the SDK's bundler does: the executable that holds the
//! runtime, then each assembly, then a manifest of them, whose offset is in the executable.
//!
//! Format: src/native/corehost/bundle/{header,file_entry}.h and
//! src/installer/managed/Microsoft.NET.HostModel/Bundle/{Manifest,FileEntry}.cs of .NET 6 and newer.
//! Invariant: a path handed out names a complete file, named by the digest of what is in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::dotnet::write_once;
use crate::places;

/// SHA-256 of ".net core bundle"; the eight bytes before it are the manifest's offset.
pub(super) const MARK: [u8; 32] = [
    0x8b, 0x12, 0x02, 0xb9, 0x6a, 0x61, 0x20, 0x38, 0x72, 0x7b, 0x93, 0x02, 0x14, 0xd7, 0xa0, 0x32,
    0x13, 0xf5, 0xb9, 0xe6, 0xef, 0xae, 0x33, 0x18, 0xee, 0x3b, 0x2d, 0xce, 0x24, 0xb3, 0x6a, 0xae,
];

/// The name of the assembly that the executable was bundled with: a field of 1,024 bytes.
const BOUND_NAME: &[u8] = b"azmcp.dll\0";

const MAJOR: u32 = 6;

/// Assemblies are mapped from the file: they begin on a page.
const ALIGNMENT: usize = 4096;

struct File {
    name: String,
    content: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Assembly = 1,
    Dependencies = 3,
    RuntimeConfiguration = 4,
}

/// The bundle of a program (`Name.dll` and the assemblies beside it), made if it is not in the
/// cache; `parts` has the executable and the framework.
pub(super) fn bundle(parts: &Path, program: &Path) -> Result<PathBuf> {
    let name = program.file_stem().and_then(|n| n.to_str()).context("a program without a name")?;
    let own = program.parent().context("a program in no folder")?;
    let mut files = assemblies(own)?;
    let mut digest = Sha256::new();
    digest.update(fs::read_to_string(parts.join("layout")).unwrap_or_default());
    for file in &files {
        digest.update(&file.content);
    }
    let digest: String = digest.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
    let folder = places::cache("targets")?.join(format!("{name}-10-{digest}"));
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    let framework = assemblies(&parts.join("framework"))?;
    let dependencies = dependencies(&files, &framework);
    files.extend(framework);
    files.push(File {
        name: format!("{name}.runtimeconfig.json"),
        content: configuration(&fs::read(parts.join("runtimeconfig.json"))?)?,
        kind: Kind::RuntimeConfiguration,
    });
    files.push(File {
        name: format!("{name}.deps.json"),
        content: dependencies,
        kind: Kind::Dependencies,
    });
    let host = fs::read(parts.join("host"))?;
    let bundled = append(host, &files, name)?;
    fs::create_dir_all(&folder)?;
    let symbols = own.join(format!("{name}.pdb"));
    if symbols.exists() {
        write_once(&folder.join(format!("{name}.pdb")), &fs::read(symbols)?, false)?;
    }
    write_once(&path, &bundled, true)?;
    Ok(path)
}

fn assemblies(folder: &Path) -> Result<Vec<File>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "dll") {
            let name = path.file_name().and_then(|n| n.to_str()).context("not a text")?.to_string();
            files.push(File { name, content: fs::read(&path)?, kind: Kind::Assembly });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Its settings for the runtime, without the frameworks that are left out.
fn configuration(original: &[u8]) -> Result<Vec<u8>> {
    let mut configuration: serde_json::Value = serde_json::from_slice(original)?;
    let frameworks = configuration
        .pointer_mut("/runtimeOptions/includedFrameworks")
        .and_then(|f| f.as_array_mut())
        .context("a configuration without frameworks")?;
    frameworks.retain(|framework| framework["name"] == "Microsoft.NETCore.App");
    Ok(serde_json::to_vec(&configuration)?)
}

/// The list of assemblies that the host makes its search path from.
fn dependencies(own: &[File], framework: &[File]) -> Vec<u8> {
    let names = |files: &[File]| -> serde_json::Value {
        files
            .iter()
            .map(|file| (file.name.clone(), json!({})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let target = ".NETCoreApp,Version=v10.0/linux-x64";
    let list = json!({
        "runtimeTarget": { "name": target, "signature": "" },
        "compilationOptions": {},
        "targets": { target: {
            "program/1.0.0": {
                "dependencies": { "framework": "1.0.0" },
                "runtime": names(own),
            },
            "framework/1.0.0": { "runtime": names(framework) },
        } },
        "libraries": {
            "program/1.0.0": { "type": "project", "serviceable": false, "sha512": "" },
            "framework/1.0.0": { "type": "runtimepack", "serviceable": false, "sha512": "" },
        },
    });
    list.to_string().into_bytes()
}

fn append(mut bundle: Vec<u8>, files: &[File], name: &str) -> Result<Vec<u8>> {
    let mark = find(&bundle, &MARK).context("the executable has no bundle mark")?;
    let place = mark.checked_sub(8).context("a mark at the start")?;
    bind(&mut bundle, name)?;
    let mut manifest = vec![];
    let mut places = [(0_u64, 0_u64); 2];
    for file in files {
        bundle.resize(bundle.len().next_multiple_of(ALIGNMENT), 0);
        let (start, size) = (bundle.len() as u64, file.content.len() as u64);
        match file.kind {
            Kind::Assembly => {}
            Kind::Dependencies => places[0] = (start, size),
            Kind::RuntimeConfiguration => places[1] = (start, size),
        }
        bundle.extend_from_slice(&file.content);
        manifest.extend(start.to_le_bytes());
        manifest.extend(size.to_le_bytes());
        manifest.extend(0_u64.to_le_bytes()); // not compressed
        manifest.push(file.kind as u8);
        push_string(&mut manifest, &file.name)?;
    }
    let header = bundle.len() as u64;
    bundle.extend(MAJOR.to_le_bytes());
    bundle.extend(0_u32.to_le_bytes());
    bundle.extend(i32::try_from(files.len())?.to_le_bytes());
    push_string(&mut bundle, "strata-tests")?;
    for (start, size) in places {
        bundle.extend(start.to_le_bytes());
        bundle.extend(size.to_le_bytes());
    }
    bundle.extend(0_u64.to_le_bytes()); // flags
    bundle.extend(manifest);
    bundle
        .get_mut(place..mark)
        .context("the executable is short")?
        .copy_from_slice(&header.to_le_bytes());
    Ok(bundle)
}

/// Writes which assembly the executable starts.
fn bind(executable: &mut [u8], name: &str) -> Result<()> {
    let at = find(executable, BOUND_NAME).context("the executable is bound to no assembly")?;
    if executable.get(at + 1..).is_some_and(|rest| find(rest, BOUND_NAME).is_some()) {
        bail!("it is not clear where the executable keeps its assembly's name");
    }
    let mut field = format!("{name}.dll\0").into_bytes();
    field.resize(field.len().max(BOUND_NAME.len()), 0);
    let end = at + field.len();
    executable.get_mut(at..end).context("a name beyond the end")?.copy_from_slice(&field);
    Ok(())
}

/// The length goes first, in seven bits.
pub(super) fn push_string(bytes: &mut Vec<u8>, text: &str) -> Result<()> {
    let length = u8::try_from(text.len())?;
    if length > 0x7f {
        bail!("{text} is too long a name");
    }
    bytes.push(length);
    bytes.extend_from_slice(text.as_bytes());
    Ok(())
}

pub(super) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
