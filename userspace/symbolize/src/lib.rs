//! Symbolization: code addresses of an aggregate become frames, and frames a profile.
//!
//! - [`symbolizer`]: flushes, one after the other, without waiting. [`gather`]: from an aggregate
//!   to [`task`]s, which a [`pool`] of threads runs. [`costs`]: which of them go
//!   first. [`lines`]: which files' debug information is worth reading; [`worker_memory`]: how much of
//!   it. [`known_symbols`]: symbols kept between flushes. [`late`]: places that a flush left without.
//! - [`file_client`]: requests to the file service, with deadlines.
//! - [`kernel`] asks the kernel for its names, else reads `/proc/kallsyms`.
//! - [`native`]: files that were mapped, with their debug files, parsed by the worker.
//! - [`managed`]: methods of .NET, from the bridge's records; [`assemblies`]: their files.
//! - [`jit`]: symbol files that JIT compilers write: perf maps and jitdump.
//! - [`related`]: facts about methods that only an assembly's instructions contain: where a VB
//!   lambda is written, which native function a stub calls.
//! - [`build`]: from symbolized samples to a profile. [`resolve`]: both steps, for the end of a
//!   recording.
//!
//! Invariant: an address without a symbol is kept as `module!0xaddress` or `[unknown]`, and counted.

pub mod assemblies;
pub mod build;
mod costs;
pub mod file_client;
mod gather;
pub mod jit;
pub mod kernel;
pub mod known_symbols;
pub mod late;
mod lines;
pub mod managed;
pub mod native;
pub mod pool;
pub mod related;
pub mod resolve;
pub mod symbolizer;
pub mod task;
mod worker_memory;

use std::path::Path;
use std::sync::Arc;

pub use strata_agent::frame::NamedFrame;

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

/// The module name of addresses that are in no file.
pub(crate) fn pseudo_module(path: &str) -> Arc<ModuleInfo> {
    Arc::new(ModuleInfo { path: path.into(), limit: u64::MAX, ..ModuleInfo::default() })
}

/// Characters of a name that are kept when memory is bounded.
pub(crate) const LONGEST_NAME: usize = 1024;

/// Code that a runtime made and that has no name.
pub(crate) const UNNAMED_CODE: &str = "[jit]";

const OWN_LIBRARY: &str = "[strata-clr]";

/// Counts of addresses without a symbol, for the summary.
#[derive(Clone, Debug, Default)]
pub struct Shortfalls {
    /// Code addresses without a symbol.
    pub unnamed: u64,
    /// Those of them whose files answered too late.
    pub late: u64,
    /// Files whose debug information took too much memory: they have no lines or inlined functions.
    pub without_lines: u64,
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
