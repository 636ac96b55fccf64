//! The files of a store and their names.
//!
//! `NUMBER.open` is the segment that is written, `NUMBER.seg` a sealed one, `NUMBER.merged` its
//! merges over time, `NUMBER.rollup` the hours of that segment and others after it, `NUMBER.new`
//! merges or a roll-up half written; numbers are sixteen hexadecimal digits and only grow. `lock`
//! is held by the writer.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Sealed or open.
    Profiles,
    Merged,
    Rollup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Open,
    Sealed,
    Merged,
    Rollup,
    New,
}

impl Name {
    const ALL: [Self; 5] = [Self::Open, Self::Sealed, Self::Merged, Self::Rollup, Self::New];

    fn ending(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Sealed => "seg",
            Self::Merged => "merged",
            Self::Rollup => "rollup",
            Self::New => "new",
        }
    }

    pub(crate) fn path(self, directory: &Path, number: u64) -> PathBuf {
        directory.join(format!("{number:016x}.{}", self.ending()))
    }
}

/// The files of a store, with their lengths.
pub(crate) fn list(directory: &Path) -> Result<Vec<(u64, Name, u64)>, StoreError> {
    let io = || StoreError::io("read", directory);
    let mut found = Vec::new();
    for file in std::fs::read_dir(directory).map_err(io())? {
        let file = file.map_err(io())?;
        let name = file.file_name();
        let Some((number, ending)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let name = Name::ALL.into_iter().find(|name| name.ending() == ending);
        let number = u64::from_str_radix(number, 16).ok().filter(|_| number.len() == 16);
        let (Some(name), Some(number)) = (name, number) else { continue };
        // Gone between the two calls, or nothing that a store makes.
        let Some(facts) = file.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
        found.push((number, name, facts.len()));
    }
    found.sort_unstable_by_key(|&(number, ..)| number);
    Ok(found)
}

/// The numbers of the segments and of the roll-ups, oldest first.
pub(crate) fn numbers(directory: &Path) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
    let (mut segments, mut rollups) = (Vec::new(), Vec::new());
    for (number, name, _) in list(directory)? {
        match name {
            Name::Open | Name::Sealed => segments.push(number),
            Name::Rollup => rollups.push(number),
            Name::Merged | Name::New => {}
        }
    }
    segments.dedup();
    Ok((segments, rollups))
}

/// Where a part may be: a segment is sealed by giving it another name.
pub(crate) fn candidates(directory: &Path, number: u64, part: Part) -> Vec<PathBuf> {
    let names: &[Name] = match part {
        Part::Profiles => &[Name::Sealed, Name::Open, Name::Sealed],
        Part::Merged => &[Name::Merged],
        Part::Rollup => &[Name::Rollup],
    };
    names.iter().map(|name| name.path(directory, number)).collect()
}

/// Opens a file that may have been sealed since its name was found.
pub(crate) fn open_moved(path: &Path) -> Result<File, StoreError> {
    match File::open(path) {
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound
                && path.extension().is_some_and(|end| end == Name::Open.ending()) =>
        {
            let sealed = path.with_extension(Name::Sealed.ending());
            File::open(sealed).map_err(StoreError::io("open", path))
        }
        other => other.map_err(StoreError::io("open", path)),
    }
}
