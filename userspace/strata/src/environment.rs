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
        Form::Dockerfile => Path::new("/opt/strata").join(below(directory, &library)),
    };
    let environment = environment::environment(&inside, b"", false)?;
    let mut text = String::new();
    if form == Form::Dockerfile {
        text += &format!("# the library: {}\n", library.display());
        text += &format!("COPY {} {}\n", below(directory, &library).display(), inside.display());
    }
    text += &environment::written(&environment.variables, form);
    printing::print(&text)
}

/// Where the library lies in the directory that it was put into, which is that of the image's build.
fn below(directory: &Path, library: &Path) -> PathBuf {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    library.strip_prefix(directory).unwrap_or(library).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_copies_the_library_from_where_it_was_put() {
        let folder = tempfile::tempdir().expect("a directory");
        let library = folder.path().canonicalize().expect("it is there").join("glibc/library.so");
        assert_eq!(below(folder.path(), &library), Path::new("glibc/library.so"));
    }
}
