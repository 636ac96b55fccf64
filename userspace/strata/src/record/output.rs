//! Files that belong to the right user and never follow a link.
//!
//! strata runs as root, and often for somebody else (`sudo`). Files are created with that user's
//! own rights, so a prepared directory or link can lead nowhere the user could not write anyway;
//! a link in the file's own place is refused outright. The content goes to a new file beside the
//! target first, so that a full disk leaves nothing half-written under the target's name.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::launch::User;

/// Takes a user's rights on files for the life of the value (of this thread only).
struct AsUser {
    active: bool,
}

impl AsUser {
    fn new(user: Option<&User>) -> Self {
        let Some(user) = user else { return Self { active: false } };
        // SAFETY: plain numbers; these calls report no errors and affect this thread only.
        unsafe {
            libc::setfsgid(user.gid);
            libc::setfsuid(user.uid);
        }
        Self { active: true }
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        if self.active {
            // SAFETY: as above.
            unsafe {
                libc::setfsuid(libc::geteuid());
                libc::setfsgid(libc::getegid());
            }
        }
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Says at the start, not after the recording, that a file cannot be written.
pub fn check(path: &Path, user: Option<&User>) -> Result<()> {
    if path == Path::new("-") {
        return Ok(());
    }
    let _rights = AsUser::new(user);
    refuse_links(path)?;
    let folder = folder_of(path);
    let name = beside(path, "check");
    let probe = create_new(&name).with_context(|| {
        format!(
            "`{}` cannot be written: no file can be created in `{}`. Choose another place with \
             --output",
            path.display(),
            folder.display()
        )
    })?;
    drop(probe);
    fs::remove_file(&name).ok();
    Ok(())
}

fn refuse_links(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => bail!(
            "`{}` is a symbolic link: strata does not write through links. Remove it or choose \
             another --output",
            path.display()
        ),
        Ok(found) if found.is_dir() => {
            bail!("`{}` is a directory: name a file in it with --output", path.display())
        }
        Ok(found) if !found.is_file() => bail!(
            "`{}` is not a regular file; for a pipe use `--output -` and redirect",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// A name for a temporary file in the same directory.
fn beside(path: &Path, purpose: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{purpose}.{}", std::process::id()));
    folder_of(path).join(name)
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .mode(0o644)
        .open(path)
}

/// Writes one file, or the standard output for `-`. Returns the bytes written.
pub fn write(
    path: &Path,
    user: Option<&User>,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<u64> {
    if path == Path::new("-") {
        let mut out = Counting { to: BufWriter::new(io::stdout().lock()), bytes: 0 };
        content(&mut out)?;
        out.flush().context("writing to the standard output failed")?;
        return Ok(out.bytes);
    }
    let _rights = AsUser::new(user);
    refuse_links(path)?;
    let temporary = beside(path, "part");
    let result = write_beside(path, &temporary, content);
    if result.is_err() {
        fs::remove_file(&temporary).ok();
    }
    result
}

fn write_beside(
    path: &Path,
    temporary: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<u64> {
    let failed = || format!("writing `{}` failed", path.display());
    let file = create_new(temporary).with_context(failed)?;
    let mut out = Counting { to: BufWriter::new(&file), bytes: 0 };
    content(&mut out).with_context(failed)?;
    out.flush().with_context(failed)?;
    let bytes = out.bytes;
    drop(out);
    fs::rename(temporary, path).with_context(failed)?;
    Ok(bytes)
}

struct Counting<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.to.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
