//! A disk of its own, ext4 on a loop device, that can stop answering: it is frozen as for a snapshot.
//! A block device of its own, whose reads take as long as those of the file below it.
//!
//! Invariant: a disk answers again when its guard is dropped, and also when the test is killed: a child
//! thaws it at the end of a pipe that the test holds.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use crate::places;

/// Room for what a test writes.
const BYTES: u64 = 64 << 20;

/// Mounted until it is dropped.
pub struct Disk {
    path: PathBuf,
    /// Folders elsewhere that are on it.
    bound: Vec<PathBuf>,
    thawing: Option<Child>,
    _image: NamedTempFile,
}

fn run(command: &mut Command) -> Result<()> {
    let ended = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

impl Disk {
    /// Mounts a new one at this folder, which is created.
    pub fn mounted(path: &Path) -> Result<Self> {
        let image = NamedTempFile::new().context("an image")?;
        image.as_file().set_len(BYTES).context("its size")?;
        run(Command::new(places::required("mkfs.ext4", "e2fsprogs")?).arg("-q").arg(image.path()))?;
        std::fs::create_dir_all(path).context("a folder")?;
        run(Command::new("mount").args(["-o", "loop"]).arg(image.path()).arg(path))?;
        Ok(Self { path: path.to_owned(), bound: Vec::new(), thawing: None, _image: image })
    }

    /// Makes a folder elsewhere a folder of this disk.
    pub fn bind(&mut self, folder: &Path) -> Result<()> {
        let own = self.path.join(format!("bound-{}", self.bound.len()));
        std::fs::create_dir(&own).context("a folder")?;
        std::fs::create_dir_all(folder).context("a folder")?;
        run(Command::new("mount").arg("--bind").arg(own).arg(folder))?;
        self.bound.push(folder.to_owned());
        Ok(())
    }

    /// Leaves no room on it, not even for a directory.
    pub fn fill(&self) -> Result<()> {
        let mut file = std::fs::File::create(self.path.join("filler")).context("a file")?;
        for size in [1 << 20, 1 << 10] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        Ok(())
    }

    /// Whatever writes to it waits from now on.
    pub fn freeze(&mut self) -> Result<()> {
        let fsfreeze = places::required("fsfreeze", "util-linux")?;
        let thaw = "cat; exec \"$1\" --unfreeze \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", thaw, "sh"]).arg(&fsfreeze).arg(&self.path).stdin(Stdio::piped());
        // Not ended with the test, by a terminal or a runner of tests.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        self.thawing = Some(command.spawn().context("starting what thaws the disk")?);
        run(Command::new(fsfreeze).arg("--freeze").arg(&self.path))
    }

    pub fn thaw(&mut self) -> Result<()> {
        let mut thawing = self.thawing.take().context("it is not frozen")?;
        drop(thawing.stdin.take());
        ensure!(thawing.wait()?.success(), "the disk stays frozen");
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // One that is not frozen has nothing to thaw.
        let _ = self.thaw();
        for path in self.bound.iter().rev().chain([&self.path]) {
            if let Err(error) = run(Command::new("umount").arg("--lazy").arg(path)) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// A read-only block device whose content is a file's, until it is dropped.
pub struct BlockDevice {
    path: PathBuf,
}

impl BlockDevice {
    pub fn of(file: &Path) -> Result<Self> {
        let mut command = Command::new(places::required("losetup", "mount")?);
        command.args(["--find", "--show", "--read-only"]).arg(file);
        let ended = command.output().with_context(|| format!("starting {command:?}"))?;
        ensure!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(Self { path: String::from_utf8(ended.stdout)?.trim().into() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("{error:#}");
        }
    }
}
