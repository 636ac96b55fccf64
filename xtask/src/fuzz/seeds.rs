//! Seeds of the fuzzers: small real files, made by this machine's compilers.
//!
//! Invariant: a seed is replaced on every run, inputs found by a fuzzer are kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::dotnet;
use crate::{project, run};

/// A Go program that profiles itself: its line table and its profile are both seeds.
const GO_PROGRAM: &str = r#"package main

import (
	"os"
	"runtime/pprof"
	"strings"
	"time"
)

func main() {
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		panic(err)
	}
	for start := time.Now(); time.Since(start) < time.Second; {
		strings.Repeat("strata", 10000)
	}
	pprof.StopCPUProfile()
}
"#;

const PERF_MAP: &str = "\
7f0000001000 40 LazyCompile:~burn /app/shares.js:12
7f0000001040 1c0 LazyCompile:*<anonymous> /app/shares.js:31:9
0x7f0000002000 0x20 int [app] Program::Main(string[])[Tier1]
7f0000003000 10 name with ; and \"quotes\" and <tags>
7f00000030
";

const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000040 T startup_64
ffffffff81234560 t vfs_read
ffffffffc0301000 t ext4_read\t[ext4]
ffffffffc0402000 t bpf_prog_6deef7357e7b4530_sample\t[bpf]
";

pub fn make() -> Result<()> {
    let corpus = project::root().join("fuzz/corpus");
    let work = project::target().join("fuzz-seeds");
    fs::create_dir_all(&work)?;
    for elf in elf_files(&work)? {
        for target in ["elf_symbols", "unwind_tables"] {
            plant(&corpus, target, &elf)?;
        }
    }
    for (target, text) in [("perf_map", PERF_MAP), ("kallsyms", KALLSYMS)] {
        let file = work.join(target);
        fs::write(&file, text)?;
        plant(&corpus, target, &file)?;
    }
    let dump = work.join("jit.dump");
    fs::write(&dump, jitdump())?;
    plant(&corpus, "jitdump", &dump)?;
    let method = work.join("method");
    fs::write(&method, method_code())?;
    plant(&corpus, "managed_code", &method)?;
    let memory = work.join("bridge-memory");
    fs::write(&memory, bridge_memory())?;
    plant(&corpus, "bridge_memory", &memory)?;
    go_seeds(&work, &corpus)?;
    dotnet_seeds(&work, &corpus)?;
    // No seed of its own: the fuzzer starts from nothing.
    fs::create_dir_all(corpus.join("unwind_bytes"))?;
    Ok(())
}

fn plant(corpus: &Path, target: &str, seed: &Path) -> Result<()> {
    let directory = corpus.join(target);
    fs::create_dir_all(&directory)?;
    let name = seed.file_name().unwrap_or_default().to_string_lossy();
    fs::copy(seed, directory.join(format!("seed-{name}")))
        .with_context(|| format!("cannot plant {}", seed.display()))?;
    Ok(())
}

/// Flags, a ring with committed events as the main file's part, and a log of one record of each
/// kind, as `strata_bridge_protocol::exercise` takes them apart and documents.
fn bridge_memory() -> Vec<u8> {
    const COMMITTED: u64 = 2 << 56;
    const END: u64 = 3 << 56;
    // The head; two events of one cell; what else lies there; the first event, of kind 7 with a frame.
    let ring = [2_u64, 1 << 24 | 4 | 2, 1 << 24 | 4 | 2, 0, 0, 0, 0, 0];
    let event = [7 | 1 << 16, 1000, 5, 1, 2, 3, 0x7f00_0000];
    let main: Vec<u8> = ring.iter().chain(&event).flat_map(|word| word.to_le_bytes()).collect();
    let mut bytes = vec![0];
    bytes.extend((main.len() as u16).to_le_bytes());
    bytes.extend(main);
    for kind in 1..=13_u64 {
        // Numbers, then texts and lists: lengths of 2 and 1 and 0.
        let mut fields = vec![1_u8; 8];
        fields.extend([0; 80]);
        fields.extend([2, 0, b'a', b'b', 1, 0, 1, 0, b'c', 0, 0, 1, 0]);
        fields.resize(176, 0);
        let word = 192 | kind << 32 | COMMITTED;
        bytes.extend(word.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(fields);
    }
    bytes.extend((64 | END).to_le_bytes());
    bytes
}

/// Two bytes of choices, then a .NET method with a frame pointer and a handler behind its body.
fn method_code() -> Vec<u8> {
    let choices = [0, 0];
    // push rbp; sub rsp, 16; lea rbp, [rsp + 16]; call; add rsp, 16; pop rbp; ret
    let body = [
        0x55, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8d, 0x6c, 0x24, 0x10, 0xe8, 0, 0, 0, 0, 0x48, 0x83,
        0xc4, 0x10, 0x5d, 0xc3,
    ];
    // push rbp; sub rsp, 16; mov rbp, [rdi]; call; add rsp, 16; pop rbp; ret
    let handler = [
        0x55, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8b, 0x2f, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x10,
        0x5d, 0xc3,
    ];
    [&choices[..], &body, &handler].concat()
}

/// One C program in the shapes that a parser meets: with and without debug information,
/// compressed, stripped, relocatable, shared.
fn elf_files(work: &Path) -> Result<Vec<PathBuf>> {
    let source = project::root().join("xtask/guest/known.c");
    let shapes: [(&str, &[&str]); 6] = [
        ("program", &["-O2", "-s"]),
        ("program-debug", &["-O2", "-g"]),
        ("program-compressed", &["-O2", "-g", "-gz=zlib"]),
        ("program-debug-frame", &["-O1", "-g", "-fno-asynchronous-unwind-tables"]),
        ("object.o", &["-O2", "-g", "-c"]),
        ("library.so", &["-O2", "-fPIC", "-shared", "-Wl,-z,now", "-Wl,--build-id"]),
    ];
    let mut files = Vec::new();
    for (name, flags) in shapes {
        let file = work.join(name);
        run::output_of(Command::new("cc").args(flags).arg("-o").arg(&file).arg(&source))?;
        files.push(file);
    }
    Ok(files)
}

fn go_seeds(work: &Path, corpus: &Path) -> Result<()> {
    let source = work.join("seed.go");
    let program = work.join("seed-go");
    fs::write(&source, GO_PROGRAM)?;
    let mut build = Command::new("go");
    build.current_dir(work).env("GOFLAGS", "").env("CGO_ENABLED", "0");
    build.args(["build", "-ldflags=-s -w", "-o"]).arg(&program).arg(&source);
    run::quietly("build a Go program", &mut build)?;

    let table = work.join("gopclntab");
    let mut cut = Command::new("objcopy");
    cut.args(["-O", "binary", "--only-section=.gopclntab"]).arg(&program).arg(&table);
    run::output_of(&mut cut)?;
    plant(corpus, "go_lines", &table)?;

    let profile = work.join("cpu.pprof.gz");
    run::quietly("profile it", Command::new(&program).arg(&profile))?;
    plant(corpus, "pprof_decode", &profile)?;
    // Plain as well: a mutation of compressed bytes rarely gets past the checksum.
    run::output_of(Command::new("gzip").args(["--decompress", "--force", "--keep"]).arg(&profile))?;
    plant(corpus, "pprof_decode", &work.join("cpu.pprof"))
}

/// A C# program with its PDB apart and inside, and small precompiled assemblies of each runtime.
/// The runtimes are large, so they are used when the tests have assembled them.
fn dotnet_seeds(work: &Path, corpus: &Path) -> Result<()> {
    let dotnet = dotnet::directory();
    let compiler = dotnet.join("compile");
    if !compiler.exists() {
        eprintln!("· no seeds from .NET: `cargo xtask setup test` assembles its runtimes");
        for target in ["ecma_image", "managed_image", "portable_pdb"] {
            fs::create_dir_all(corpus.join(target))?;
        }
        return Ok(());
    }
    let source = project::root().join("userspace/dotnet/tests/programs/Lines.cs");
    for kind in ["embedded", "portable"] {
        let program = work.join(format!("lines-{kind}.dll"));
        let mut compile = Command::new(&compiler);
        compile.arg(&program).arg(&source).arg(format!("-debug:{kind}"));
        run::quietly("compile a C# program", &mut compile)?;
        plant(corpus, "managed_image", &program)?;
    }
    plant(corpus, "portable_pdb", &work.join("lines-portable.pdb"))?;
    for (version, name) in
        [("3.1", "System.IO.Compression.Brotli.dll"), ("9", "System.Net.WebHeaderCollection.dll")]
    {
        let shared = dotnet.join(version).join("shared/Microsoft.NETCore.App");
        for runtime in fs::read_dir(&shared)? {
            let assembly = runtime?.path().join(name);
            plant(corpus, "ecma_image", &assembly)?;
            plant(corpus, "managed_image", &assembly)?;
            plant(corpus, "unwind_tables", &assembly)?;
        }
    }
    Ok(())
}

/// A jitdump of one function with lines (tools/perf/Documentation/jitdump-specification.txt).
fn jitdump() -> Vec<u8> {
    const HEADER_SIZE: u32 = 40;
    const X86_64: u32 = 62;
    let code: u64 = 0x7f00_0000_1000;
    let record = |kind: u32, body: &[u8]| {
        let size = 16 + body.len() as u32;
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &1_u64.to_le_bytes(), body].concat()
    };
    let name = |text: &str| [text.as_bytes(), &[0]].concat();
    let words =
        |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();

    let header: Vec<u8> = [0x4A69_5444, 1, HEADER_SIZE, X86_64, 0, 4321]
        .iter()
        .flat_map(|value: &u32| value.to_le_bytes())
        .chain(words(&[1, 0]))
        .collect();
    let lines = [
        words(&[code, 1, code]),
        12_u32.to_le_bytes().into(),
        0_u32.to_le_bytes().into(),
        name("app.js"),
    ];
    let process: Vec<u8> = [4321_u32, 4322].iter().flat_map(|value| value.to_le_bytes()).collect();
    let load = [process.clone(), words(&[code, code, 4, 1]), name("burn"), vec![0x90; 4]];
    let moved = [process, words(&[code, code, code + 0x1000, 4, 1])];
    [
        header,
        record(2, &lines.concat()),
        record(0, &load.concat()),
        record(1, &moved.concat()),
        record(3, &[]),
    ]
    .concat()
}
