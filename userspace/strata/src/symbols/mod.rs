//! Names for places: every unique address of a recording is resolved once, at its end.
//!
//! - [`asking`]: whoever waits for the worker's answers.
//! - [`assemblies`]: where the files of a .NET process are.
//! - [`kernel`] reads `/proc/kallsyms`.
//! - [`managed`]: methods of .NET, by what the bridge has said.
//! - [`native`]: files that were mapped, with their debug files, parsed by the worker.
//! - [`related`]: what only the instructions of an assembly tell of its methods.
//! - [`jit`]: what JIT compilers write about their code: perf maps and jitdump files.
//! - [`vdso`]: the kernel's own page for user mode.
//!
//! Invariant: what has no name keeps its place: `module!0xoffset`, `[unknown]`; and is counted.

mod asking;
pub mod assemblies;
pub mod jit;
pub mod kernel;
pub mod managed;
pub mod native;
pub mod related;
pub mod vdso;

use std::path::Path;
use std::sync::Arc;

use strata_profile::FrameKind;

pub use self::asking::Ask;

/// One function at a place; several when functions were inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    pub kind: FrameKind,
    pub name: Arc<str>,
    /// Empty when it is the same.
    pub system_name: Arc<str>,
    pub file: Arc<str>,
    pub line: u32,
}

impl NamedFrame {
    pub fn plain(kind: FrameKind, name: &str) -> Self {
        let none: Arc<str> = "".into();
        Self { kind, name: name.into(), system_name: none.clone(), file: none, line: 0 }
    }
}

/// The mapping that a file's places are shown in.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModuleInfo {
    pub path: String,
    pub build_id: String,
    /// Executable address range in the file's own numbering, and its file offset.
    pub start: u64,
    pub limit: u64,
    pub offset: u64,
}

impl ModuleInfo {
    /// Strata's own library has another name in each process: there would be no end of modules.
    pub fn of(path: &Path) -> Self {
        let path = match strata_clr::has_librarys_name(path) {
            true => OWN_LIBRARY.to_owned(),
            false => path.display().to_string(),
        };
        Self { path, ..Self::default() }
    }
}

const OWN_LIBRARY: &str = "[strata-clr]";

/// What could not be named, for the summary.
#[derive(Clone, Debug, Default)]
pub struct Shortfalls {
    /// Places without a name.
    pub unnamed: u64,
    /// In words, each once.
    pub problems: Vec<String>,
}

impl Shortfalls {
    pub fn problem(&mut self, text: String) {
        const MOST: usize = 100;
        if self.problems.len() < MOST && !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }
}
