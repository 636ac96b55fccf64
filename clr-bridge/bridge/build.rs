//! Names the library in its own header: the runtime can then be told to load it by that name alone,
//! and a process that has it mapped never maps a second copy.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstrata_clr.so");
    // The runtime closes a profiler's library when it has detached. It stays mapped all the same: a
    // thread may be in `SetApplicationInfoForAppDomain`, and the next attach needs no file.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
