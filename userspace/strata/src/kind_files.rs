//! The files of an output: one, or one for each kind of samples where its format shows one kind and
//! the profile has several.

use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_kinds::{Kind, Kinds};
use strata_profile::{Format, Profile, Times, WriteOptions, of_kind};

use crate::output;
use crate::user::User;

/// A file that is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OutputFile {
    pub path: PathBuf,
    pub format: Format,
    /// What it shows, where a file shows one kind and the profile has several.
    pub kind: Option<Kind>,
}

impl OutputFile {
    /// A title with the kind that the file shows.
    pub fn titled(&self, title: &str) -> String {
        match self.kind {
            Some(kind) => format!("{title}, {kind}"),
            None => title.to_owned(),
        }
    }

    /// Writes what the file shows of a profile. Returns the bytes written.
    pub fn write(
        &self,
        profile: &Profile,
        mut options: WriteOptions,
        user: Option<&User>,
    ) -> Result<u64> {
        let mut part = None;
        if let Some(kind) = self.kind {
            let column = column_of(profile, kind).and_then(|at| profile.sample_types.get(at));
            let name = column.map(|column| profile.string(column.name));
            let name = name.unwrap_or(kind.info().shown_column().own.name);
            options.sample_type = Some(name.to_owned());
            // A format in time shows all kinds of a profile whose times were kept.
            let shows_times = self.format.takes_all_kinds() && profile.timeline().is_some();
            part = shows_times.then(|| of_kind(profile, kind, Times::Kept));
        }
        output::write(&self.path, user, |out| {
            let profile = part.as_ref().unwrap_or(profile);
            Ok(strata_profile::write(profile, self.format, &options, out)?)
        })
    }
}

/// The files of outputs with these kinds of samples. `chooses`: what chooses one kind.
pub fn of_outputs(
    outputs: &[(PathBuf, Format)],
    kinds: Kinds,
    takes_all: impl Fn(Format) -> bool,
    chooses: &str,
) -> Result<Vec<OutputFile>> {
    let several = kinds.iter().count() > 1;
    let mut files = Vec::new();
    for (path, format) in outputs {
        if !several || takes_all(*format) {
            files.push(OutputFile { path: path.clone(), format: *format, kind: None });
            continue;
        }
        anyhow::ensure!(
            path != Path::new("-"),
            "{format} shows one kind, and the standard output takes one file: name a file, or \
             one kind with {chooses}"
        );
        files.extend(kinds.iter().map(|kind| OutputFile {
            path: named_for(path, kind),
            format: *format,
            kind: Some(kind),
        }));
    }
    Ok(files)
}

/// The kinds of a profile that are shown one by one: those of another tool's profile may not be
/// known.
pub fn kinds_of(profile: &Profile) -> Kinds {
    let shown = profile.kind_of(profile.shown_sample_type());
    shown.map_or(Kinds::NONE, |_| profile.kinds())
}

/// Whether one file of a format shows all kinds of a profile. Those in time show the kinds whose
/// times were kept; without any they show one kind.
pub fn takes_all(profile: &Profile, format: Format) -> bool {
    let is_timed = |kind: Kind| {
        profile.timeline().is_some_and(|mut ticks| ticks.any(|tick| tick.kind == kind))
    };
    match format {
        Format::Firefox | Format::PerfScript => profile.kinds().iter().all(is_timed),
        format => format.takes_all_kinds(),
    }
}

/// The column that is shown of a kind, or the first that a profile has of it.
pub fn column_of(profile: &Profile, kind: Kind) -> Option<usize> {
    let of_kind = || {
        let columns = 0..profile.sample_types.len();
        columns.filter(|&column| profile.kind_of(column) == Some(kind))
    };
    let name = kind.info().shown_column().own.name;
    let is_shown = |column: &usize| {
        let column = profile.sample_types.get(*column);
        column.is_some_and(|column| profile.string(column.name) == name)
    };
    of_kind().find(is_shown).or_else(|| of_kind().next())
}

/// The path with a kind before its ending.
fn named_for(path: &Path, kind: Kind) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // `.pb.gz` and `.json.gz` are one ending each.
    let endings = [".pb.gz", ".pprof.gz", ".json.gz"];
    let start = match endings.iter().find(|ending| name.ends_with(**ending)) {
        Some(ending) => name.len() - ending.len(),
        None => name.rfind('.').filter(|at| *at > 0).unwrap_or(name.len()),
    };
    let (stem, ending) = name.split_at(start);
    path.with_file_name(format!("{stem}.{kind}{ending}"))
}

#[cfg(test)]
mod tests {
    use strata_profile::{FrameKind, ProfileBuilder};

    use super::*;

    #[test]
    fn a_kinds_name_stands_before_the_ending() {
        for (path, named) in [
            ("/tmp/a.svg", "/tmp/a.off_cpu.svg"),
            ("a.b.folded", "a.b.off_cpu.folded"),
            ("a.json.gz", "a.off_cpu.json.gz"),
            ("a", "a.off_cpu"),
        ] {
            assert_eq!(named_for(Path::new(path), Kind::OffCpu), Path::new(named));
        }
    }

    #[test]
    fn a_format_that_shows_one_kind_has_a_file_for_each() {
        let kinds = [Kind::Cpu, Kind::Wall].into_iter().collect();
        let outputs = |name: &str| [(PathBuf::from(name), Format::Folded)];
        let files = |name: &str, kinds| {
            let files = of_outputs(&outputs(name), kinds, Format::takes_all_kinds, "--type");
            files.map(|files| files.into_iter().map(|file| file.path).collect::<Vec<_>>())
        };
        let two = files("a.folded", kinds).expect("files");
        assert_eq!(two, [Path::new("a.cpu.folded"), Path::new("a.wall.folded")]);
        let one = files("-", Kinds::NONE.with(Kind::Cpu, true)).expect("a file");
        assert_eq!(one, [Path::new("-")]);
        let error = files("-", kinds).expect_err("two files").to_string();
        assert!(error.contains("one kind with --type"), "{error}");
    }

    #[test]
    fn each_file_shows_its_kind() {
        let kinds = [Kind::Cpu, Kind::Wall].into_iter().collect();
        let mut builder = ProfileBuilder::of_kinds(kinds);
        for (kind, name, values) in
            [(Kind::Cpu, "burns", &[2, 20][..]), (Kind::Wall, "waits", &[7])]
        {
            let frame = builder.frame(FrameKind::Native, name, "", "", 0);
            let location = builder.location(0, None, &[frame]);
            let stack = builder.stack(&[location]);
            let labels = builder.labels(&[]);
            builder.add_of(kind, stack, labels, values);
        }
        let profile = builder.finish();
        assert_eq!(kinds_of(&profile), kinds);
        assert!(takes_all(&profile, Format::Pprof) && !takes_all(&profile, Format::Firefox));
        let directory = tempfile::tempdir().expect("a directory");
        let outputs = [(directory.path().join("a.folded"), Format::Folded)];
        let files = of_outputs(&outputs, kinds, |format| takes_all(&profile, format), "--type");
        let texts = files.expect("files").into_iter().map(|file| {
            file.write(&profile, WriteOptions::for_path(&file.path), None).expect("written");
            std::fs::read_to_string(&file.path).expect("it is there")
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["burns 20\n", "waits 7\n"]);
    }
}
