//! The files of a store and their names.
//!
//! `NUMBER.open` is the segment that is written, `NUMBER.seg` a sealed one, `NUMBER.merged` its
//! merges over time, `NUMBER.rollup` the hours of that segment and others after it, `NUMBER.new`
//! merges or a roll-up half written, `NUMBER.damaged` a segment that cannot be read, `NUMBER.names`
//! symbols that were known late; numbers are sixteen hexadecimal digits and only grow. `lock` is
//! held by the writer.

use std::fs::{DirEntry, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// How a file of a store is created: private to its user, because the directory may be an existing one
/// that others may read.
pub(crate) fn creating() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

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
    Damaged,
    Names,
}

impl Name {
    const ALL: [Self; 7] = [
        Self::Open,
        Self::Sealed,
        Self::Merged,
        Self::Rollup,
        Self::New,
        Self::Damaged,
        Self::Names,
    ];

    fn ending(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Sealed => "seg",
            Self::Merged => "merged",
            Self::Rollup => "rollup",
            Self::New => "new",
            Self::Damaged => "damaged",
            Self::Names => "names",
        }
    }

    pub(crate) fn path(self, directory: &Path, number: u64) -> PathBuf {
        directory.join(format!("{number:016x}.{}", self.ending()))
    }
}

/// The number and the name of a file, if they are a store's.
fn parsed(file: &DirEntry) -> Option<(u64, Name)> {
    let name = file.file_name();
    let (number, ending) = name.to_str()?.split_once('.')?;
    let name = Name::ALL.into_iter().find(|name| name.ending() == ending)?;
    let number = u64::from_str_radix(number, 16).ok().filter(|_| number.len() == 16)?;
    Some((number, name))
}

/// The files of a store that no other process changes, with their lengths.
pub(crate) fn list(directory: &Path) -> Result<Vec<(u64, Name, u64)>, StoreError> {
    let io = || StoreError::io("read", directory);
    let mut found = Vec::new();
    for file in std::fs::read_dir(directory).map_err(io())? {
        let file = file.map_err(io())?;
        let Some((number, name)) = parsed(&file) else { continue };
        // Gone between the two calls, or nothing that a store makes.
        let Some(facts) = file.metadata().ok().filter(Metadata::is_file) else { continue };
        found.push((number, name, facts.len()));
    }
    found.sort_unstable_by_key(|&(number, ..)| number);
    Ok(found)
}

/// The numbers of the segments and of the roll-ups, oldest first, also while a writer works.
///
/// A file that gets another name while a directory is read may be met under neither. Each segment
/// is renamed once, when it is sealed, so one of two readings has it.
pub(crate) fn numbers(directory: &Path) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
    let (mut segments, mut rollups) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        add_numbers(directory, &mut segments, &mut rollups)?;
    }
    for numbers in [&mut segments, &mut rollups] {
        numbers.sort_unstable();
        numbers.dedup();
    }
    Ok((segments, rollups))
}

fn add_numbers(
    directory: &Path,
    segments: &mut Vec<u64>,
    rollups: &mut Vec<u64>,
) -> Result<(), StoreError> {
    let io = || StoreError::io("read", directory);
    for file in std::fs::read_dir(directory).map_err(io())? {
        let file = file.map_err(io())?;
        let Some((number, name)) = parsed(&file) else { continue };
        // Further calls by name (`stat`) would miss a file that is being renamed.
        if file.file_type().is_ok_and(|kind| !kind.is_file()) {
            continue;
        }
        match name {
            Name::Open | Name::Sealed => segments.push(number),
            Name::Rollup => rollups.push(number),
            Name::Merged | Name::New | Name::Damaged | Name::Names => {}
        }
    }
    Ok(())
}

/// The files of late symbols, the oldest first.
pub(crate) fn names_files(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let io = || StoreError::io("read", directory);
    let mut numbers = Vec::new();
    for file in std::fs::read_dir(directory).map_err(io())? {
        let found = parsed(&file.map_err(io())?);
        numbers.extend(found.filter(|(_, name)| *name == Name::Names).map(|(number, _)| number));
    }
    numbers.sort_unstable();
    Ok(numbers.into_iter().map(|number| Name::Names.path(directory, number)).collect())
}

/// The names that a part may have: a segment is sealed by renaming it.
pub(crate) fn candidates(directory: &Path, number: u64, part: Part) -> Vec<PathBuf> {
    let names: &[Name] = match part {
        Part::Profiles => &[Name::Sealed, Name::Open, Name::Sealed],
        Part::Merged => &[Name::Merged],
        Part::Rollup => &[Name::Rollup],
    };
    names.iter().map(|name| name.path(directory, number)).collect()
}

/// Distinguishes a file from another one that got its name later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// Length and time of the last write, of a file that grows no more: an inode is used again.
    last: Option<(u64, i64, i64)>,
}

impl Identity {
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self, StoreError> {
        let facts = file.metadata().map_err(StoreError::io("read", path))?;
        let grows = path.extension().is_some_and(|end| end == Name::Open.ending());
        let last = (facts.len(), facts.mtime(), facts.mtime_nsec());
        let last = (!grows).then_some(last);
        Ok(Self { device: facts.dev(), inode: facts.ino(), last })
    }
}

/// Opens a file that was examined before, with [`StoreError::is_gone`] if another file has its name
/// now.
pub(crate) fn open_again(path: &Path, identity: Identity) -> Result<File, StoreError> {
    let file = open_moved(path)?;
    if Identity::of(&file, path)? != identity {
        return Err(StoreError::io("open", path)(std::io::ErrorKind::NotFound.into()));
    }
    Ok(file)
}

/// Opens a file that may have been sealed since its name was found.
fn open_moved(path: &Path) -> Result<File, StoreError> {
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
