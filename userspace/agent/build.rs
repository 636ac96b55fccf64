//! Links what the static libelf of newer distributions needs in turn: zstd, for compressed sections
//! (Debian 13, Ubuntu 24.04; that of Debian 12 needs nothing). libbpf-sys names libelf and zlib only.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBBPF_SYS_LIBRARY_PATH");
    println!("cargo:rerun-if-changed=build.rs");
    let directories = std::env::var("LIBBPF_SYS_LIBRARY_PATH").unwrap_or_default();
    for directory in directories.split(':').filter(|directory| !directory.is_empty()) {
        let Ok(libelf) = std::fs::read(Path::new(directory).join("libelf.a")) else { continue };
        println!("cargo:rerun-if-changed={directory}/libelf.a");
        if libelf.windows(CALLS.len()).any(|bytes| bytes == CALLS) {
            println!("cargo:rustc-link-search=native={directory}");
            println!("cargo:rustc-link-lib=static=zstd");
        }
        return;
    }
}

/// A function of zstd's.
const CALLS: &[u8] = b"ZSTD_createCCtx";
