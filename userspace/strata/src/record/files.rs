//! The files of a recording, under names that no other recording has.

use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_profile::Format;

use super::Plan;
use crate::kind_files::{self, OutputFile};
use crate::output;
use crate::user::User;

impl Plan {
    /// The files to write. Of several kinds, each has its own flame graph and folded stacks; the
    /// other formats take all.
    pub fn files(&self) -> Result<Vec<OutputFile>> {
        kind_files::of_outputs(&self.outputs, self.kinds, Format::takes_all_kinds, "-e")
    }
}

/// The names with a number behind them if another recording has one of them already: one number
/// for all.
pub fn free_names(files: Vec<OutputFile>, user: Option<&User>) -> Vec<OutputFile> {
    for number in 1..1_000 {
        let numbered: Vec<OutputFile> = files
            .iter()
            .map(|file| OutputFile { path: with_number(&file.path, file.format, number), ..*file })
            .collect();
        let is_free = |file: &&OutputFile| output::claim(&file.path, user).unwrap_or(true);
        let claimed: Vec<_> = numbered.iter().take_while(is_free).collect();
        if claimed.len() == numbered.len() {
            return numbered;
        }
        for file in claimed {
            output::release(&file.path, user);
        }
    }
    files
}

/// `strata-20260131-235959.pb.gz` as `strata-20260131-235959-2.pb.gz`.
fn with_number(path: &Path, format: Format, number: u32) -> PathBuf {
    let name = path.to_string_lossy();
    match name.strip_suffix(&format!(".{}", format.extension())) {
        Some(base) if number > 1 => format!("{base}-{number}.{}", format.extension()).into(),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_recording_of_the_same_second_gets_names_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let file = |path, format| OutputFile { path, format, kind: None };
        let wanted = || vec![file(at("s.pb.gz"), Format::Pprof), file(at("s.svg"), Format::Svg)];
        assert_eq!(free_names(wanted(), None), wanted());
        std::fs::write(at("s.pb.gz"), "first").expect("it is written");
        // Only the picture of the first is still empty, which is taken all the same.
        let second = free_names(wanted(), None);
        assert_eq!(
            second,
            [file(at("s-2.pb.gz"), Format::Pprof), file(at("s-2.svg"), Format::Svg)]
        );
        output::release(&at("s.pb.gz"), None);
        output::release(&at("s-2.svg"), None);
        assert!(at("s.pb.gz").exists() && !at("s-2.svg").exists());
    }
}
