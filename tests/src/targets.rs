//! The catalogue of native target programs and how each is built.
//!
//! Everything is `-O2 -fomit-frame-pointer` without debug info unless a test asks otherwise: as
//! distributions ship programs, and the hardest case for a profiler.

use std::path::PathBuf;

use anyhow::Result;

use crate::compile::{OUTPUT, Recipe};
use crate::places;

/// A C or C++ program to be built.
pub struct Native {
    name: String,
    source: PathBuf,
    compiler: &'static str,
    flags: Vec<String>,
    strip: bool,
    more_sources: Vec<PathBuf>,
}

/// The C program of this name.
pub fn c(name: &str) -> Native {
    Native {
        name: name.to_string(),
        source: places::target_sources().join(format!("c/{name}.c")),
        compiler: "gcc",
        flags: vec![],
        strip: false,
        more_sources: ["c/burn.h", "c/waits.h"]
            .map(|of| places::target_sources().join(of))
            .to_vec(),
    }
}

/// The C++ program with the three shares.
pub fn cpp_shares() -> Native {
    let source = places::target_sources().join("cpp/shares.cpp");
    Native { source, compiler: "g++", name: "shares_cpp".to_string(), ..c("shares") }
}

impl Native {
    /// Another name for the output: its process name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }

    /// One more compiler or linker flag.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Without any symbol.
    pub fn stripped(mut self) -> Self {
        self.strip = true;
        self
    }

    /// Built against musl, static unless a flag changes that.
    pub fn musl(mut self) -> Self {
        self.compiler = "musl-gcc";
        self.flag("-static")
    }

    /// As a shared library.
    pub fn library(self) -> Self {
        let name = format!("lib{}.so", self.name);
        self.named(&name).flag("-shared").flag("-fPIC")
    }

    /// Another file the output depends on, given to the linker.
    pub fn linked_with(mut self, library: PathBuf) -> Self {
        let folder = library.parent().map(|f| f.display().to_string()).unwrap_or_default();
        self.flags.push(library.display().to_string());
        self.flags.push(format!("-Wl,-rpath,{folder}"));
        self.more_sources.push(library);
        self
    }

    /// The path of the built program.
    pub fn build(self) -> Result<PathBuf> {
        let compiler = places::required(self.compiler, "build-essential musl-tools")?;
        let mut arguments: Vec<String> =
            ["-O2", "-fomit-frame-pointer", "-o", OUTPUT].map(String::from).to_vec();
        arguments.push(self.source.display().to_string());
        arguments.extend(self.flags);
        arguments.extend(["-pthread", "-ldl", "-lm"].map(String::from));
        let mut sources = vec![self.source];
        sources.extend(self.more_sources);
        Recipe {
            name: self.name,
            compiler,
            arguments,
            sources,
            directory: places::target_sources(),
            environment: vec![],
            strip: self.strip,
            output_is_a_folder: false,
        }
        .build()
    }
}

/// Calls through the PLT, with lazy binding and the given flags (the kind of PLT depends on them).
pub fn plt(name: &str, flags: &[&str]) -> Result<PathBuf> {
    let mut library = c("plt_library").named("plt").library().flag("-Wl,-z,lazy");
    let mut program = c("plt").named(name).flag("-Wl,-z,lazy").flag("-fno-builtin").flag("-fplt");
    for flag in flags {
        library = library.flag(*flag);
        program = program.flag(*flag);
    }
    program.linked_with(library.build()?).build()
}

/// The plugin of the `dlopen` program.
pub fn plugin() -> Result<PathBuf> {
    c("plugin").library().flag("-Wl,-z,lazy").build()
}

/// The Rust release program with the three shares.
pub fn rust_shares() -> Result<PathBuf> {
    let source = places::target_sources().join("rust/shares.rs");
    let flags = [
        "--edition",
        "2024",
        "-O",
        "-C",
        "force-frame-pointers=no",
        "-C",
        "symbol-mangling-version=v0",
        "-o",
        OUTPUT,
    ];
    let mut arguments: Vec<String> = flags.map(String::from).to_vec();
    arguments.push(source.display().to_string());
    Recipe {
        name: "shares_rust".to_string(),
        compiler: places::required("rustc", "rustup")?,
        arguments,
        sources: vec![source],
        directory: places::target_sources(),
        environment: vec![],
        strip: false,
        output_is_a_folder: false,
    }
    .build()
}

/// A Go program from its folder: `shares` or `cgo`.
pub fn go(folder: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
    go_of(places::required("go", "golang")?, folder, name, flags)
}

/// The same, built by Go 1.19.
pub fn go_1_19(folder: &str, name: &str) -> Result<PathBuf> {
    go_of(places::go_1_19()?, folder, name, &[])
}

fn go_of(compiler: PathBuf, folder: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let directory = places::target_sources().join("go").join(folder);
    let mut sources = vec![places::target_sources().join("c/burn.h")];
    for entry in std::fs::read_dir(&directory)? {
        sources.push(entry?.path());
    }
    sources.sort();
    let mut arguments: Vec<String> =
        ["build", "-buildvcs=false", "-o", OUTPUT].map(String::from).to_vec();
    arguments.extend(flags.iter().map(|f| f.to_string()));
    arguments.push(".".to_string());
    let environment = vec![
        ("CGO_CFLAGS_ALLOW", ".*".to_string()),
        ("GOFLAGS", String::new()),
        ("GOTOOLCHAIN", "local".to_string()),
    ];
    Recipe {
        name: name.to_string(),
        compiler,
        arguments,
        sources,
        directory,
        environment,
        strip: false,
        output_is_a_folder: false,
    }
    .build()
}
