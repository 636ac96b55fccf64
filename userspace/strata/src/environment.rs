//! Loading the bridge at a process's start: `strata env`, and children of `strata record`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_clr::CLibrary;
use strata_clr::environment::{self, Form, Variable};

use crate::printing;

/// Where the library lies for processes that load it themselves: only root can write there.
pub const DIRECTORY: &str = "/run/strata";

/// The variables for a child of this process, which load the bridge from the first method on.
pub fn for_child() -> Result<Vec<Variable>> {
    let library = strata_clr::install(Path::new(DIRECTORY), CLibrary::Glibc)?;
    let mut existing: Vec<u8> = Vec::new();
    for (name, value) in std::env::vars_os() {
        let entry: [OsString; 3] = [name, "=".into(), value];
        existing.extend(entry.into_iter().flat_map(OsString::into_vec));
        existing.push(0);
    }
    Ok(environment::environment(&library, &existing, true)?.variables)
}

/// Prints the variables; the exit status.
pub fn print(directory: &Path, form: Form, musl: bool) -> Result<i32> {
    let c_library = if musl { CLibrary::Musl } else { CLibrary::Glibc };
    let library = strata_clr::install(directory, c_library)
        .with_context(|| format!("the bridge cannot be put into `{}`", directory.display()))?;
    let inside = match form {
        Form::Shell => library.clone(),
        // As the image will have it.
        Form::Dockerfile => PathBuf::from("/opt/strata/libstrata_clr.so"),
    };
    let environment = environment::environment(&inside, b"", false)?;
    let mut text = String::new();
    if form == Form::Dockerfile {
        text += &format!("# the library: {}\n", library.display());
        text += &format!("COPY libstrata_clr.so {}\n", inside.display());
    }
    text += &environment::written(&environment.variables, form);
    printing::print(&text)
}
