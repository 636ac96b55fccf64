//! Locates the files of a .NET process: assemblies and PDBs, as files or inside its program.
//!
//! A runtime names a module by the path it was loaded from. What lies in a single-file program has
//! no path of its own: it has its name there, or one below the program's folder. The program's
//! bundle is searched first, as the runtime does (`Bundle::Probe`, src/coreclr/vm/bundle.cpp).
//!
//! Invariant: names are a process's claims. They are compared with what a bundle lists, or opened
//! by the opener below the process's root, and never used otherwise.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use strata_sandbox::{FilePart, Locator, OpenFile, ProcessRef, Reply, Request};

use crate::file_client::Ask;
use strata_dotnet::Bundle;

/// A file, or a file inside it.
#[derive(Clone, Debug)]
pub struct Source {
    pub file: Arc<OpenFile>,
    pub part: Option<FilePart>,
}

/// The program that a process runs.
pub struct Program {
    pub file: Arc<OpenFile>,
    pub path: PathBuf,
}

/// The files of one process.
pub struct ProcessFiles {
    pub process: Option<ProcessRef>,
    program: Option<Program>,
    /// The contents of the program's bundle, once they were read.
    bundle: Option<Option<Bundle>>,
}

impl ProcessFiles {
    pub fn new(process: Option<ProcessRef>, program: Option<Program>) -> Self {
        Self { process, program, bundle: None }
    }

    pub fn into_program(self) -> Option<Program> {
        self.program
    }

    /// The assembly that a module was loaded from.
    pub fn assembly(&mut self, service: &mut dyn Ask, module: &str) -> Option<Source> {
        self.inside(service, Path::new(module))
            .or_else(|| self.open(service, &self.path_of(module)?))
    }

    /// A module's path, or the one it would have outside of the program.
    pub fn path_of(&self, module: &str) -> Option<PathBuf> {
        let module = Path::new(module);
        if module.is_absolute() {
            return Some(module.to_owned());
        }
        let inner = module.components().all(|part| matches!(part, Component::Normal(_)));
        let folder = self.program.as_ref()?.path.parent().filter(|_| inner)?;
        Some(folder.join(module))
    }

    /// A file inside the program: by its path there, or by that below the program's folder.
    pub fn inside(&mut self, service: &mut dyn Ask, path: &Path) -> Option<Source> {
        let program = self.program.as_ref()?;
        let path = match path.is_absolute() {
            true => path.strip_prefix(program.path.parent()?).ok()?,
            false => path,
        };
        let file = program.file.clone();
        let bundle = self.bundle.get_or_insert_with(|| {
            match service.ask(Request::Bundle { file: file.clone() }) {
                Ok(Reply::Bundle(bundle)) => Some(bundle),
                // Most programs are none.
                _ => None,
            }
        });
        let found = bundle.as_ref()?.files.iter().find(|entry| Path::new(&entry.path) == path)?;
        Some(Source { file, part: Some(FilePart::of(found)) })
    }

    /// A file as the process sees it.
    pub fn open(&self, service: &mut dyn Ask, path: &Path) -> Option<Source> {
        Some(Source { file: open(service, self.process, path)?, part: None })
    }
}

/// A file as the process sees it; when the process is gone, as the host does.
pub fn open(
    service: &mut dyn Ask,
    process: Option<ProcessRef>,
    path: &Path,
) -> Option<Arc<OpenFile>> {
    let inside = process.map(|process| Locator::InRoot { process, path: path.to_owned() });
    let outside = Locator::Host { path: path.to_owned() };
    inside.into_iter().chain([outside]).find_map(|locator| {
        match service.ask(Request::Open(locator)) {
            Ok(Reply::Opened(file)) => Some(file),
            _ => None,
        }
    })
}
