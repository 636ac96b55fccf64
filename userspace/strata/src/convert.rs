//! `strata convert`: a profile in another format, offline.

use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context, Result};
use strata_profile::{Format, WriteOptions};

use crate::output;
use crate::view::Shown;

/// A profile larger than this is refused.
const MOST: u64 = 2 << 30;

pub fn run(input: &Path, to: &Path, format: Option<Format>, shown: Shown) -> Result<i32> {
    let format = Format::from_path(to).or(format).with_context(|| {
        format!(
            "the name `{}` does not tell a format: use one of .pb.gz .svg .folded .perf .json.gz, or \
             --format",
            to.display()
        )
    })?;
    let mut bytes = Vec::new();
    let read = if input == Path::new("-") {
        stdin().take(MOST).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(input).and_then(|file| file.take(MOST).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("`{}` cannot be read", input.display()))?;
    let profile = strata_profile::read(&bytes)
        .with_context(|| format!("`{}` is no profile that strata reads", input.display()))?;
    output::check([to], None)?;
    let title = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let options = WriteOptions { title, view: shown.view(), ..WriteOptions::for_path(to) };
    output::write(to, None, |out| Ok(strata_profile::write(&profile, format, &options, out)?))?;
    Ok(0)
}
