//! `strata convert`: a profile in another format, offline.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use strata_kinds::Kinds;
use strata_profile::{Format, WriteOptions};

use crate::kind_files;
use crate::output;
use crate::printing;
use crate::view::Shown;

/// A profile larger than this is refused.
const MOST: u64 = 2 << 30;

#[derive(Debug)]
pub struct Question {
    pub input: PathBuf,
    pub output: PathBuf,
    pub format: Option<Format>,
    /// The sample type to show; of several kinds each has a file without one.
    pub value: Option<String>,
    pub shown: Shown,
}

pub fn run(question: &Question) -> Result<i32> {
    let (input, to) = (&question.input, &question.output);
    let format = Format::from_path(to).or(question.format).with_context(|| {
        format!(
            "`{}` has no known extension: use .pb.gz, .svg, .folded, .perf or .json.gz, or set \
             --format",
            to.display()
        )
    })?;
    let mut bytes = Vec::new();
    let read = if input == Path::new("-") {
        stdin().take(MOST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(input).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("`{}` cannot be read", input.display()))?;
    if bytes.len() as u64 > MOST {
        bail!(
            "`{}` is larger than {} GiB, the most that is converted",
            input.display(),
            MOST >> 30
        );
    }
    let profile = strata_profile::read(&bytes)
        .with_context(|| format!("`{}` is no profile that strata reads", input.display()))?;
    let kinds = match question.value {
        Some(_) => Kinds::NONE,
        None => kind_files::kinds_of(&profile),
    };
    let takes_all = |format| kind_files::takes_all(&profile, format);
    let files = kind_files::of_outputs(&[(to.clone(), format)], kinds, takes_all, "--value")?;
    output::check(files.iter().map(|file| file.path.as_path()), None)?;
    for file in &files {
        let title = input.file_name().unwrap_or_default().to_string_lossy();
        let options = WriteOptions {
            title: file.titled(&title),
            sample_type: question.value.clone(),
            view: question.shown.view(),
            ..WriteOptions::for_path(&file.path)
        };
        let written = file.write(&profile, options, None)?;
        // They are not of the name that was given.
        if file.kind.is_some() {
            printing::written(&file.path, written);
        }
    }
    Ok(0)
}
