//! The table of prerequisites: how each is detected, the Debian packages that provide it, and the
//! reason.
//!
//! Recognised by its files and not by package names: a Go or a JDK installed by other means is
//! accepted. Invariant: every package's line states the reason for it.

use super::debian::{Found, Need};

pub const RECORD: &[Need] = &[
    Need {
        why: "links Rust programs, compiles libbpf",
        found: Found::Programs(&["cc", "make", "pkg-config"]),
        packages: &["gcc", "libc6-dev", "make", "pkg-config"],
    },
    Need {
        why: "libbpf reads ELF files with it",
        found: Found::File("/usr/include/libelf.h"),
        packages: &["libelf-dev"],
    },
    Need {
        why: "libbpf reads compressed kernel configurations with it",
        found: Found::File("/usr/include/zlib.h"),
        packages: &["zlib1g-dev"],
    },
    Need {
        why: "links the bridge for .NET processes on musl, and programs to profile",
        found: Found::Programs(&["musl-gcc"]),
        packages: &["musl-tools"],
    },
];

pub const BPF: &[Need] = &[
    Need {
        why: "links Rust programs, bpf-linker among them",
        found: Found::Programs(&["cc", "c++"]),
        packages: &["gcc", "g++", "libc6-dev"],
    },
    Need {
        why: "bpf-linker is a shell around LLVM, of the same major version as rustc's",
        found: Found::File("/usr/lib/llvm-22/include/llvm-c/Core.h"),
        packages: &["llvm-22-dev"],
    },
    Need {
        why: "LLVM's own list of link libraries names it",
        found: Found::File("/usr/lib/llvm-22/lib/libPolly.a"),
        packages: &["libpolly-22-dev"],
    },
    Need {
        why: "llvm-strip takes the debug sections out of the BPF object",
        found: Found::File("/usr/lib/llvm-22/bin/llvm-strip"),
        packages: &["llvm-22"],
    },
    Need {
        why: "LLVM links to it",
        found: Found::File("/usr/include/zlib.h"),
        packages: &["zlib1g-dev"],
    },
];

pub const TEST: &[Need] = &[
    Need { why: "C++ programs to profile", found: Found::Programs(&["c++"]), packages: &["g++"] },
    Need {
        why: "Go and cgo programs to profile, `go tool pprof` as a second reader",
        found: Found::Programs(&["go"]),
        packages: &["golang-go"],
    },
    Need {
        why: "a JavaScript program to profile",
        found: Found::AnyProgram(&["node", "nodejs"]),
        packages: &["nodejs"],
    },
    Need {
        why: "brings the .NET runtimes, which registry packages contain",
        found: Found::Programs(&["npm"]),
        packages: &["npm"],
    },
    Need {
        why: "a Python program to profile",
        found: Found::Programs(&["python3"]),
        packages: &["python3"],
    },
    Need {
        why: "a Java program to profile",
        found: Found::Programs(&["java", "javac"]),
        packages: &["default-jdk-headless"],
    },
    Need {
        why: "the profiler whose figures ours are compared with",
        found: Found::Programs(&["perf"]),
        packages: &["linux-perf"],
    },
    Need {
        why: "splits, strips and rewrites the ELF files of tests",
        found: Found::Programs(&["objcopy", "strip", "readelf"]),
        packages: &["binutils"],
    },
    Need {
        why: "puts what debug files have in common into one of its own, as distributions do",
        found: Found::Programs(&["dwz"]),
        packages: &["dwz"],
    },
    Need {
        why: "sees what a tracer sees of a program that is sampled",
        found: Found::Programs(&["strace"]),
        packages: &["strace"],
    },
    Need {
        why: "makes disks that run full",
        found: Found::Programs(&["mkfs.ext4", "losetup"]),
        packages: &["e2fsprogs", "mount"],
    },
    Need {
        why: "compresses a .gnu_debugdata section",
        found: Found::Programs(&["xz"]),
        packages: &["xz-utils"],
    },
    Need {
        why: "a real container to profile",
        found: Found::Programs(&["runc"]),
        packages: &["runc"],
    },
    Need {
        why: "a browser that flame graphs are looked at in",
        found: Found::Programs(&["chromium-headless-shell"]),
        packages: &["chromium-headless-shell"],
    },
    Need {
        why: "reads the unit in deploy/ as it will be read",
        found: Found::Programs(&["systemd-analyze"]),
        packages: &["systemd"],
    },
    Need {
        why: "the authorities that are put into the container image",
        found: Found::File("/etc/ssl/certs/ca-certificates.crt"),
        packages: &["ca-certificates"],
    },
];

pub const FUZZ: &[Need] = &[
    Need {
        why: "links the fuzz targets, libFuzzer is C++",
        found: Found::Programs(&["cc", "c++"]),
        packages: &["gcc", "g++", "libc6-dev"],
    },
    Need {
        why: "cuts seeds out of programs",
        found: Found::Programs(&["objcopy"]),
        packages: &["binutils"],
    },
    Need {
        why: "a Go line table and a pprof to start from",
        found: Found::Programs(&["go"]),
        packages: &["golang-go"],
    },
];

pub const EMULATOR: &[Need] = &[Need {
    why: "boots other kernels",
    found: Found::Programs(&["qemu-system-x86_64"]),
    packages: &["qemu-system-x86"],
}];
