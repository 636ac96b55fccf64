//! Libraries that exist for linking only: empty functions under the names that the bridge uses.
//!
//! A linker takes for each symbol the newest version that the library it links against has; the
//! result then asks for that version. With stand-ins for glibc whose functions have the versions of
//! glibc 2.17, the result asks for those, on whatever glibc the machine has. **Invariant:** a
//! function that is not in the list does not link.
//!
//! What is weak in Rust's standard library (`gettid`, `statx` and the like, each with another way
//! where it is missing) has no version then, and is found in any glibc that has it. The `stat` family
//! was not exported before glibc 2.33; `src/old_glibc.rs` has it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with its functions, by version.
struct Library {
    file: &'static str,
    soname: &'static str,
    versions: &'static [(&'static str, &'static [&'static str])],
}

const GLIBC: [Library; 3] = [
    Library {
        file: "c",
        soname: "libc.so.6",
        versions: &[
            (
                "GLIBC_2.2.5",
                &[
                    "__cxa_finalize",
                    "__errno_location",
                    "abort",
                    "bcmp",
                    "calloc",
                    "close",
                    "dl_iterate_phdr",
                    "fcntl",
                    "free",
                    "ftruncate",
                    "getcwd",
                    "getenv",
                    "getpid",
                    "getrlimit",
                    "lseek64",
                    "madvise",
                    "malloc",
                    "memcmp",
                    "memmove",
                    "memset",
                    "mmap",
                    "mmap64",
                    "munmap",
                    "nanosleep",
                    "open64",
                    "posix_memalign",
                    "prctl",
                    "pthread_attr_destroy",
                    "pthread_attr_init",
                    "pwrite64",
                    "read",
                    "readlink",
                    "realloc",
                    "sched_yield",
                    "sigdelset",
                    "sigfillset",
                    "strlen",
                    "syscall",
                    "write",
                    "writev",
                ],
            ),
            ("GLIBC_2.3", &["realpath"]),
            ("GLIBC_2.10", &["fallocate", "fallocate64"]),
            ("GLIBC_2.14", &["memcpy"]),
            ("GLIBC_2.17", &["clock_gettime"]),
        ],
    },
    // Part of libc since 2.34, and an empty library with these versions there.
    Library {
        file: "pthread",
        soname: "libpthread.so.0",
        versions: &[(
            "GLIBC_2.2.5",
            &[
                "pthread_attr_setstacksize",
                "pthread_create",
                "pthread_getspecific",
                "pthread_join",
                "pthread_key_create",
                "pthread_key_delete",
                "pthread_setspecific",
                "pthread_sigmask",
            ],
        )],
    },
    Library {
        file: "ld",
        soname: "ld-linux-x86-64.so.2",
        versions: &[("GLIBC_2.3", &["__tls_get_addr"])],
    },
];

/// Lets the linker find, under the name of `libgcc_s`, the unwinder that comes with Rust's musl target.
/// It becomes part of the library, which then needs musl alone; glibc's `libgcc_s`, which is what
/// a build machine has, would not load beside musl.
pub fn link_for_musl() {
    let variable = |name: &str| std::env::var(name).expect("cargo sets it");
    let sysroot = Command::new(variable("RUSTC"))
        .args(["--print", "sysroot"])
        .output()
        .expect("asking rustc for its folder");
    let sysroot = String::from_utf8(sysroot.stdout).expect("a path of text");
    let unwinder = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(variable("TARGET"))
        .join("lib/self-contained/libunwind.a");
    assert!(unwinder.is_file(), "no {}: `rustup target add` has it", unwinder.display());
    let script = format!("GROUP ( {} )\n", unwinder.display());
    let folder = folder();
    std::fs::write(folder.join("libgcc_s.so"), script).expect("writing a linker script");
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
}

/// Lets the linker find stand-ins for glibc 2.17 before all others.
pub fn link_for_glibc() {
    let folder = folder();
    for library in &GLIBC {
        make(library, &folder);
    }
    // Other names that Rust's libc asks for: they lead to the same three.
    let [c, pthread, ld] = ["c", "pthread", "ld"].map(|name| file(&folder, name));
    let group = format!("GROUP ( {c} AS_NEEDED ( {pthread} {ld} ) )\n");
    for name in ["c", "pthread", "dl", "rt", "util", "m"] {
        let script = folder.join(format!("lib{name}.so"));
        std::fs::write(script, &group).expect("writing a linker script");
    }
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
}

fn folder() -> PathBuf {
    let out = std::env::var("OUT_DIR").expect("cargo says where");
    let folder = Path::new(&out).join("stand-ins");
    std::fs::create_dir_all(&folder).expect("a folder for the libraries");
    folder
}

fn file(folder: &Path, name: &str) -> String {
    folder.join(format!("lib{name}_stand_in.so")).display().to_string()
}

fn make(library: &Library, folder: &Path) {
    let (mut code, mut script) = (String::from(".text\n"), String::new());
    let mut before = "";
    for (version, functions) in library.versions {
        writeln!(script, "{version} {{ global:").expect("writing to a string");
        for function in *functions {
            writeln!(code, ".globl {function}\n.type {function},@function\n{function}: ret")
                .expect("writing to a string");
            writeln!(script, "  {function};").expect("writing to a string");
        }
        writeln!(script, "}} {before};").expect("writing to a string");
        before = version;
    }
    let source = folder.join(format!("{}.s", library.file));
    let versions = folder.join(format!("{}.map", library.file));
    std::fs::write(&source, code).expect("writing assembly");
    std::fs::write(&versions, script).expect("writing a version script");
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_string());
    let made = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-nostartfiles", "-Wl,--build-id=none"])
        .arg(format!("-Wl,-soname,{}", library.soname))
        .arg(format!("-Wl,--version-script,{}", versions.display()))
        .arg("-o")
        .arg(file(folder, library.file))
        .arg(&source)
        .status();
    assert!(made.is_ok_and(|made| made.success()), "{linker} cannot make {}", library.soname);
}
