//! Spools of exporters that are no longer configured: their batches are neither sent nor dropped.
//!
//! They are reported and never touched: an exporter may have been removed by mistake, or for a day.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::spool;

/// The most folders and files examined; a spool has far fewer.
const MOST: usize = 100_000;
/// The name prefix of spools of targets with a destination of their own.
pub const OF_TARGETS: &str = "own-";
/// The most folders reported.
const MOST_TOLD: usize = 20;

/// A spool that no exporter has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedSpool {
    pub folder: PathBuf,
    pub files: u64,
    /// What they take on the disk.
    pub bytes: u64,
}

impl fmt::Display for OrphanedSpool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, megabytes) = (self.folder.display(), self.bytes as f64 / 1e6);
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        write!(
            out,
            "{folder} has {} batches ({megabytes:.1} MB) and no exporter uses it: nothing of it is sent or \
             dropped. An exporter with the name `{name}` sends what is not too old; `rm -r {folder}` drops it",
            self.files
        )
    }
}

/// The folders below `spools` that hold something, are none of `used`, and are no other strata's.
pub fn find(spools: &Path, used: &HashSet<&Path>) -> Vec<OrphanedSpool> {
    let mut left = Vec::new();
    // It does not exist before the first batch.
    let Ok(folders) = fs::read_dir(spools) else { return left };
    for folder in folders.flatten().take(MOST) {
        let path = folder.path();
        let is_folder = folder.file_type().is_ok_and(|kind| kind.is_dir());
        // It will be used again when its target is sampled.
        let is_targets = folder.file_name().as_encoded_bytes().starts_with(OF_TARGETS.as_bytes());
        if !is_folder || is_targets || used.contains(path.as_path()) {
            continue;
        }
        if spool::is_in_use(&path) {
            continue;
        }
        let mut leftover = OrphanedSpool { folder: path, files: 0, bytes: 0 };
        for file in fs::read_dir(&leftover.folder).into_iter().flatten().flatten().take(MOST) {
            if let Ok(facts) = file.metadata()
                && facts.is_file()
                && facts.len() > 0
            {
                leftover.files += 1;
                leftover.bytes = leftover.bytes.saturating_add(facts.blocks().saturating_mul(512));
            }
        }
        if leftover.files > 0 {
            left.push(leftover);
        }
    }
    left.sort_by(|a, b| a.folder.cmp(&b.folder));
    left
}

/// Reports them in the log.
pub fn warn(spools: &Path, used: &HashSet<&Path>) {
    let left = find(spools, used);
    for leftover in left.iter().take(MOST_TOLD) {
        tracing::warn!("{leftover}");
    }
    if let Some(more) = left.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        tracing::warn!("{} has {more} more folders that no exporter uses", spools.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_exporter_uses_is_reported_with_its_size_and_what_to_do() {
        let spools = tempfile::tempdir().expect("a folder");
        for (folder, file, bytes) in [
            ("pyroscope", "0000000000000001.batch", 5000),
            ("gone", "0000000000000001.batch", 5000),
            ("gone", "0000000000000002.batch", 7),
            ("gone", "lock", 0),
            ("empty", "lock", 0),
            ("own-pyroscope-17", "0000000000000001.batch", 5000),
        ] {
            let folder = spools.path().join(folder);
            fs::create_dir_all(&folder).expect("it can be made");
            fs::write(folder.join(file), vec![7; bytes]).expect("it can be written");
        }
        fs::write(spools.path().join("no-folder"), b"x").expect("it can be written");
        let pyroscope = spools.path().join("pyroscope");
        let used = HashSet::from([pyroscope.as_path()]);
        let left = find(spools.path(), &used);
        let [gone] = left.as_slice() else { panic!("{left:?}") };
        assert_eq!((gone.folder.as_path(), gone.files), (spools.path().join("gone").as_path(), 2));
        assert!(gone.bytes >= 5007, "{gone:?}");
        let text = gone.to_string();
        assert!(text.contains("2 batches") && text.contains("`gone`"), "{text}");
        assert!(text.contains(&format!("rm -r {}", gone.folder.display())), "{text}");
        assert!(find(&spools.path().join("nothing"), &used).is_empty());

        let other = spool::Spool::open(&spools.path().join("gone"), 1 << 20).expect("it is free");
        let batch = spools.path().join("gone/0000000000000003.batch");
        fs::write(batch, [7; 7]).expect("it can be written");
        assert_eq!(find(spools.path(), &used), [], "another strata sends it");
        drop(other);
        assert_eq!(find(spools.path(), &used).len(), 1);
    }
}
