//! Names the library in its own header: the runtime can then be told to load it by that name alone,
//! and a process that has it mapped never maps a second copy.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstrata_clr.so");
    println!("cargo:rerun-if-changed=build.rs");
}
