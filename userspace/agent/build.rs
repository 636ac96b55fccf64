//! What the static libelf of newer distributions lacks: libbpf-sys names libelf and zlib only.
//!
//! That of Debian 13 and Ubuntu 24.04 calls zstd, for compressed sections. That of Debian 13 also
//! calls functions of elfutils' `libeu`, which is in no package: see `src/kernel/libelf.rs`. That of
//! Debian 12 needs nothing.

use std::collections::HashSet;
use std::path::Path;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBBPF_SYS_LIBRARY_PATH");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(libelf_without_search_tree)");
    let directories = std::env::var("LIBBPF_SYS_LIBRARY_PATH").unwrap_or_default();
    let directories = directories.split(':').filter(|directory| !directory.is_empty());
    let paths: Vec<_> =
        directories.map(|directory| Path::new(directory).join("libelf.a")).collect();
    let Some(libelf) = paths.iter().find(|path| path.exists()) else {
        // Until it is installed, this runs at each build.
        return paths.iter().for_each(|path| watch(path));
    };
    watch(libelf);
    let missing = std::fs::read(libelf).map(|bytes| undefined(&bytes)).unwrap_or_default();
    if missing.contains("ZSTD_createCCtx") {
        let directory = libelf.parent().unwrap_or(Path::new("/"));
        println!("cargo:rustc-link-search=native={}", directory.display());
        println!("cargo:rustc-link-lib=static=zstd");
    }
    if missing.contains("eu_search_tree_init") {
        println!("cargo:rustc-cfg=libelf_without_search_tree");
    }
}

fn watch(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}

/// The symbols that members of an archive name and none defines.
fn undefined(archive: &[u8]) -> HashSet<String> {
    let (mut named, mut defined) = (HashSet::new(), HashSet::new());
    let Ok(members) = ArchiveFile::parse(archive) else { return named };
    for member in members.members().flatten() {
        let Ok(file) = member.data(archive).and_then(object::File::parse) else { continue };
        for symbol in file.symbols().filter(ObjectSymbol::is_global) {
            let into = if symbol.is_undefined() { &mut named } else { &mut defined };
            into.extend(symbol.name().map(str::to_owned));
        }
    }
    named.retain(|name| !defined.contains(name));
    named
}
