//! Builds a target program once: the output's folder is named by a digest of the compiler's
//! version, its arguments and every source, so that nothing is rebuilt needlessly and nothing stale
//! runs.
//!
//! Invariant: a path handed out names a complete file (outputs are renamed into place). Tests that
//! need one at the same time compile it once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::places;

/// Stands in a recipe's arguments for the path of the output.
pub const OUTPUT: &str = "{output}";

/// How to make one file.
pub struct Recipe {
    /// The output's file name: also the process name the target will have.
    pub name: String,
    pub compiler: PathBuf,
    pub arguments: Vec<String>,
    /// Every file whose content the output depends on.
    pub sources: Vec<PathBuf>,
    /// Where the compiler runs.
    pub directory: PathBuf,
    pub environment: Vec<(&'static str, String)>,
    /// Remove all symbols afterwards.
    pub strip: bool,
    /// The output is a folder (Java classes), not a file.
    pub output_is_a_folder: bool,
}

impl Recipe {
    /// The path of the output, compiled if it is not in the cache.
    pub fn build(&self) -> Result<PathBuf> {
        let folder = places::cache("targets")?.join(format!("{}-{}", self.name, self.digest()?));
        let output = folder.join(&self.name);
        if output.exists() {
            return Ok(output);
        }
        let lock = folder.with_extension("lock");
        let lock =
            fs::File::create(&lock).with_context(|| format!("creating {}", lock.display()))?;
        lock.lock().with_context(|| format!("waiting for the compiler of {}", self.name))?;
        if output.exists() {
            return Ok(output);
        }
        let unfinished = tempfile::tempdir_in(places::cache("targets")?)?;
        self.compile(&unfinished.path().join(&self.name))?;
        fs::create_dir_all(&folder)?;
        fs::rename(unfinished.path().join(&self.name), &output)
            .context("putting a target into the cache")?;
        Ok(output)
    }

    fn compile(&self, output: &Path) -> Result<()> {
        if self.output_is_a_folder {
            fs::create_dir_all(output)?;
        }
        let path = output.to_string_lossy();
        let arguments = self.arguments.iter().map(|a| a.replace(OUTPUT, &path));
        let mut command = Command::new(&self.compiler);
        command.args(arguments).current_dir(&self.directory);
        command.envs(self.environment.iter().map(|(k, v)| (*k, v.as_str())));
        let done =
            command.output().with_context(|| format!("starting {}", self.compiler.display()))?;
        if !done.status.success() {
            let output = [done.stdout, done.stderr].concat();
            bail!(
                "compiling {} failed: {command:?}\n{}",
                self.name,
                String::from_utf8_lossy(&output)
            );
        }
        if self.strip {
            let status = Command::new("strip").arg("--strip-all").arg(output).status()?;
            if !status.success() {
                bail!("strip {} failed", output.display());
            }
        }
        Ok(())
    }

    fn digest(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(compiler_version(&self.compiler)?);
        for argument in &self.arguments {
            hash.update(argument);
            hash.update([0]);
        }
        hash.update([u8::from(self.strip)]);
        for source in &self.sources {
            hash.update(fs::read(source).with_context(|| format!("reading {}", source.display()))?);
        }
        Ok(hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect())
    }
}

fn compiler_version(compiler: &Path) -> Result<Vec<u8>> {
    let is_go = compiler.file_name().is_some_and(|n| n == "go");
    let argument = if is_go { "version" } else { "--version" };
    let done = Command::new(compiler)
        .arg(argument)
        .output()
        .with_context(|| format!("asking {} for its version", compiler.display()))?;
    Ok([done.stdout, done.stderr].concat())
}
