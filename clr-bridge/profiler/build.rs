//! How the library is linked: its name, and which libraries it asks for.

#[path = "build/stand_ins.rs"]
mod stand_ins;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/stand_ins.rs");
    // The runtime can then be asked to load it by that name alone, and a process that has it mapped
    // never maps a second copy.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstrata_clr.so");
    // The runtime closes a profiler's library when it has detached. It stays mapped all the same: a
    // thread may be in `SetApplicationInfoForAppDomain`, and the next attach needs no file.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A missing symbol fails here, not in a target process.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    match (target("ENV").as_str(), target("ARCH").as_str()) {
        ("gnu", "x86_64") => stand_ins::link_for_glibc(),
        ("musl", _) => stand_ins::link_for_musl(),
        _ => {}
    }
}
