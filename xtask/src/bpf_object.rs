//! The committed BPF object: builds it, and checks that it matches its sources.
//!
//! `ebpf/strata.bpf.o` is kept beside its sources with `ebpf/strata.bpf.digest`, so that a build of
//! strata needs no BPF toolchain. The digest covers the sources, the flags and the linker's
//! version; when it differs, the object is rebuilt. CI always rebuilds it and compares.
//!
//! Invariant: the object does not depend on where it is built. Cargo gives a crate outside the
//! workspace an identity that contains its absolute path, and rustc writes paths into line
//! information: the sources are therefore copied to one fixed place before they are compiled.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::setup::{self, Profile, bpf_toolchain, rust_toolchain};
use crate::{project, run};

/// Flags of the BPF build. `--btf`: aya refuses an object without. `v3`: 32-bit ALU and jumps,
/// in every kernel we support. The memcpy flag keeps LLVM's expansion one the verifier accepts.
const FLAGS: &[&str] = &[
    "-Cdebuginfo=2",
    "-Clink-arg=--btf",
    "-Ctarget-cpu=v3",
    "-Clink-arg=--disable-expand-memcpy-in-order",
    // The machine whose kernel runs the object: chooses among directories named `arch`.
    "--cfg=bpf_target_arch=\"x86_64\"",
];
const TARGET: &str = "bpfel-unknown-none";
/// The binary of `ebpf/programs`.
const BINARY: &str = "strata";
/// Where the sources are compiled: part of the object's identity, see above.
const BUILD_PLACE: &str = "/var/tmp/strata-bpf-build";
const SOURCE_KINDS: &[&str] = &["rs", "toml", "lock"];

fn object() -> PathBuf {
    project::root().join("ebpf/strata.bpf.o")
}

fn digest_file() -> PathBuf {
    project::root().join("ebpf/strata.bpf.digest")
}

/// Where the object with diagnostics lies, once [`build_debug`] has made it.
fn debug_object() -> PathBuf {
    project::cache().join("strata-debug.bpf.o")
}

/// Makes the committed object current: nothing to do as long as its digest is.
pub fn ensure() -> Result<()> {
    match why_stale()? {
        None => Ok(()),
        Some(why) => {
            eprintln!("· the BPF object needs to be built: {why}");
            rebuild()
        }
    }
}

/// Builds the object from its sources and puts it in place.
pub fn rebuild() -> Result<()> {
    let built = compile(&[])?;
    let old = fs::read(object()).ok();
    install(&built, &object())?;
    let digests = Digests { sources: sources_digest()?, object: run::sha256_of(&object())? };
    fs::write(digest_file(), digests.text(&bpf_toolchain::versions()?))?;
    let changed = old != fs::read(object()).ok();
    let state = if changed { "new: commit it with its digest" } else { "unchanged" };
    eprintln!("· ebpf/strata.bpf.o: {} bytes, {state}", fs::metadata(object())?.len());
    Ok(())
}

/// Builds the variant with aya-log compiled in, beside the committed one.
pub fn build_debug() -> Result<()> {
    let built = compile(&["--features", "log"])?;
    install(&built, &debug_object())?;
    eprintln!("· {}", debug_object().display());
    Ok(())
}

/// Proves that the committed object is what its sources give, byte for byte.
pub fn check() -> Result<()> {
    let built = compile(&[])?;
    let committed = fs::read(object()).context("cannot read ebpf/strata.bpf.o")?;
    let fresh = fs::read(&built)?;
    if committed == fresh {
        if let Some(why) = why_stale()? {
            bail!(
                "the BPF object is right, its digest file is not ({why}): run `cargo xtask build --bpf-only` and commit it"
            );
        }
        eprintln!("· ebpf/strata.bpf.o is what its sources give");
        return Ok(());
    }
    let differs = committed.iter().zip(&fresh).take_while(|(a, b)| a == b).count();
    let recorded = fs::read_to_string(digest_file()).unwrap_or_default();
    let recorded =
        recorded.lines().find_map(|line| line.strip_prefix("# built by ")).unwrap_or("?");
    bail!(
        "ebpf/strata.bpf.o is not what its sources give: {} bytes committed, {} built, first \
         difference at byte {differs}.\n  committed object: {recorded}\n  this machine:     {}\n\
         Run `cargo xtask build --bpf-only` and commit the object with its digest; the one \
         just built is {}",
        committed.len(),
        fresh.len(),
        bpf_toolchain::versions()?,
        built.display()
    )
}

struct Digests {
    sources: String,
    object: String,
}

impl Digests {
    fn read() -> Option<Self> {
        let text = fs::read_to_string(digest_file()).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|rest| rest.trim().to_owned())
        };
        Some(Digests { sources: field("sources ")?, object: field("object ")? })
    }

    fn text(&self, versions: &str) -> String {
        format!(
            "# strata.bpf.o and what it was built from; written by `cargo xtask build`.\n\
             # built by {versions}\nsources {}\nobject  {}\n",
            self.sources, self.object
        )
    }
}

fn why_stale() -> Result<Option<String>> {
    let Some(digests) = Digests::read() else {
        return Ok(Some("there is no digest file beside it".to_owned()));
    };
    if !object().exists() {
        return Ok(Some("it is not there".to_owned()));
    }
    if digests.sources != sources_digest()? {
        return Ok(Some("its sources changed".to_owned()));
    }
    if digests.object != run::sha256_of(&object())? {
        return Ok(Some("it is not the object its digest file names".to_owned()));
    }
    Ok(None)
}

/// SHA-256 over names and contents of the sources in a fixed order, line endings normalised,
/// and over what else decides the object.
fn sources_digest() -> Result<String> {
    let mut everything = Vec::new();
    for (name, file) in sources()? {
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let lines = text.split(|&byte| byte == b'\n');
        let lines: Vec<&[u8]> =
            lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
        let text = lines.join(&b'\n');
        writeln!(everything, "{name} {}", text.len())?;
        everything.extend_from_slice(&text);
    }
    writeln!(everything, "flags {} linker {}", FLAGS.join(" "), bpf_toolchain::LINKER_VERSION)?;
    let mut hash = Command::new("sha256sum");
    hash.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = hash.spawn().context("cannot start sha256sum (coreutils)")?;
    child.stdin.take().context("sha256sum has no standard input")?.write_all(&everything)?;
    let line = String::from_utf8(child.wait_with_output()?.stdout)?;
    Ok(line.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

/// The sources by their names below the root, sorted: the programs, the layouts they share
/// with userspace, the pinned compiler.
fn sources() -> Result<Vec<(String, PathBuf)>> {
    let root = project::root();
    let mut files = vec![("rust-toolchain.toml".to_owned(), root.join("rust-toolchain.toml"))];
    for directory in ["ebpf/programs", "ebpf/abi"] {
        collect(directory, &root.join(directory), &mut files)?;
    }
    files.sort();
    Ok(files)
}

fn collect(name: &str, directory: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let full = format!("{name}/{base}");
        if path.is_dir() {
            if base != "target" && base != "tests" {
                collect(&full, &path, files)?;
            }
        } else if path
            .extension()
            .is_some_and(|kind| SOURCE_KINDS.iter().any(|known| kind == *known))
        {
            files.push((full, path));
        }
    }
    Ok(())
}

/// Compiles the programs and strips the object of debug sections; BTF stays.
fn compile(extra: &[&str]) -> Result<PathBuf> {
    setup::ensure(Profile::Bpf)?;
    let place = claim_build_place()?;
    // Another clone may be building: one at a time, until this function returns.
    let lock = fs::File::create(place.join("lock"))?;
    lock.lock().with_context(|| format!("cannot lock {BUILD_PLACE}"))?;
    copy_sources(&place)?;
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    for (from, to) in paths_to_hide(&place)? {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let target = place.join("target");
    let mut cargo = project::cargo();
    cargo
        .current_dir(place.join("ebpf/programs"))
        .args(["build", "--release", "--locked", "--target", TARGET, "-Z", "build-std=core"])
        .args(extra)
        // `-Z build-std` on the pinned stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", bpf_toolchain::linker())
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_RUSTFLAGS");
    run::quietly("build the BPF programs", &mut cargo)?;
    let built = target.join(TARGET).join("release").join(BINARY);
    let stripped = target.join("strata.bpf.o");
    let mut strip = Command::new(bpf_toolchain::strip());
    strip.arg("--strip-debug").arg("-o").arg(&stripped).arg(&built);
    run::output_of(&mut strip)?;
    Ok(stripped)
}

/// A directory with a known name in a place that every user can write to: it must be ours alone.
fn claim_build_place() -> Result<PathBuf> {
    let place = PathBuf::from(BUILD_PLACE);
    match fs::DirBuilder::new().mode(0o700).create(&place) {
        Ok(()) => return Ok(place),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create {BUILD_PLACE}")),
    }
    let found = fs::symlink_metadata(&place)?;
    let us = fs::metadata("/proc/self")?.uid();
    if !found.is_dir() || found.uid() != us || found.mode() & 0o077 != 0 {
        bail!(
            "{BUILD_PLACE} is there and is not a directory of this user alone: remove it, then run this again"
        );
    }
    Ok(place)
}

/// Copies the sources, and leaves alone what did not change so that cargo's work is kept.
fn copy_sources(place: &Path) -> Result<()> {
    let mut files = sources()?;
    // The layout crate inherits from the workspace; of its other members nothing is needed.
    let workspace = fs::read_to_string(project::root().join("Cargo.toml"))?;
    let manifest = only_member(&workspace, "ebpf/abi")?;
    write_if_changed(&place.join("Cargo.toml"), manifest.as_bytes())?;
    let mut kept: Vec<PathBuf> = Vec::new();
    for (name, file) in files.drain(..) {
        let copy = place.join(&name);
        fs::create_dir_all(copy.parent().unwrap_or(place))?;
        write_if_changed(&copy, &fs::read(&file)?)?;
        kept.push(copy);
    }
    // A file deleted at its source must not live on here.
    let mut copies = Vec::new();
    collect("ebpf", &place.join("ebpf"), &mut copies)?;
    for (_, copy) in copies {
        if !kept.contains(&copy) {
            fs::remove_file(copy)?;
        }
    }
    Ok(())
}

/// The workspace manifest with `members` cut down to one.
fn only_member(manifest: &str, member: &str) -> Result<String> {
    let (before, rest) = manifest.split_once("members = [").context("Cargo.toml has no members")?;
    let (_, after) = rest.split_once(']').context("the members of Cargo.toml do not end")?;
    Ok(format!("{before}members = [\"{member}\"]{after}"))
}

fn write_if_changed(file: &Path, content: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

/// Paths of this machine that would reach the object's line information.
fn paths_to_hide(place: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut hidden = vec![
        (place.to_path_buf(), "/strata".to_owned()),
        (rust_toolchain::sysroot()?, "/rust".to_owned()),
    ];
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    if let Some(registries) = home.map(|home| home.join("registry/src")) {
        for registry in fs::read_dir(registries).into_iter().flatten().filter_map(Result::ok) {
            hidden.push((registry.path(), "/crates".to_owned()));
        }
    }
    Ok(hidden)
}

/// Puts a file in place whole: a reader sees the old object or the new one.
fn install(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, &new)?;
    fs::rename(&new, to).with_context(|| format!("cannot write {}", to.display()))
}
