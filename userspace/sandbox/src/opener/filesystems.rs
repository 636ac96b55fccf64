//! Which mounts may hang on access, found without accessing them.
//!
//! `statfs` on a FUSE mount asks its server. The type of a mount is therefore read from mountinfo,
//! by the mount id that `statx` returns without asking the file system's server. Mount ids are
//! unique over all mount namespaces, but come back after an unmount, so what is known is kept for
//! seconds only.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};

use crate::identity::answers_locally;

/// How long an answer is cached.
const FRESH: Duration = Duration::from_secs(10);
/// More mounts than this are not looked at: unknown, so slow.
const MAX_MOUNTINFO: usize = 4 << 20;
/// More mounts than this are not remembered.
const MAX_MOUNTS: usize = 1 << 16;

/// Whether opening a file on this filesystem may hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manners {
    /// Implemented by this kernel alone.
    Local,
    /// An overlay: as good as its layers, which cannot be seen.
    Overlay,
    /// A server other than this kernel answers, or it is unknown.
    MayHang,
}

#[derive(Debug, Default)]
pub struct Mounts {
    known: HashMap<u64, Manners>,
    since: Option<Instant>,
}

impl Mounts {
    /// Whether a mount may hang. `process` is the directory of a process that sees it.
    pub fn manners(&mut self, mount: u64, process: Option<BorrowedFd<'_>>) -> Manners {
        if self.since.is_none_or(|since| since.elapsed() > FRESH) || self.known.len() > MAX_MOUNTS {
            self.known.clear();
            self.since = Some(Instant::now());
        }
        if let Some(manners) = self.known.get(&mount) {
            return *manners;
        }
        if let Some(process) = process {
            self.read(process, "mountinfo");
        }
        if !self.known.contains_key(&mount) {
            self.read(rustix::fs::CWD, "/proc/self/mountinfo");
        }
        // Mounts of the kernel's own (memfd) and detached ones are in no mountinfo.
        *self.known.entry(mount).or_insert(Manners::MayHang)
    }

    fn read(&mut self, directory: BorrowedFd<'_>, name: &str) {
        let Ok(file) = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        else {
            return;
        };
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        while bytes.len() < MAX_MOUNTINFO {
            match rustix::io::read(&file, &mut chunk) {
                Ok(length) if length > 0 => bytes.extend(chunk.iter().take(length)),
                _ => break,
            }
        }
        for line in bytes.split(|byte| *byte == b'\n') {
            if let Some((mount, manners)) = parse_line(line) {
                self.known.insert(mount, manners);
            }
        }
    }
}

/// `36 35 98:0 /root /mount rw,noatime master:1 - ext4 /dev/sda rw`; spaces within a field are
/// escaped, so the separator cannot be faked.
fn parse_line(line: &[u8]) -> Option<(u64, Manners)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let manners = match kind {
        b"overlay" => Manners::Overlay,
        kind if answers_locally(kind) => Manners::Local,
        _ => Manners::MayHang,
    };
    Some((mount, manners))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_found_after_the_separator() {
        let line = br"36 35 98:0 /mnt1 /mnt\040-\040ext4 rw,noatime master:1 shared:2 - fuse.x /dev/root rw";
        assert_eq!(parse_line(line), Some((36, Manners::MayHang)));
        assert_eq!(parse_line(b"1 1 0:2 / / rw - ext4 x rw"), Some((1, Manners::Local)));
        assert_eq!(parse_line(b"2 1 0:3 / / rw - overlay x rw"), Some((2, Manners::Overlay)));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"2 1 0:3 / / rw -"), None);
    }

    #[test]
    fn a_mount_that_is_not_listed_may_hang() {
        assert_eq!(Mounts::default().manners(u64::MAX, None), Manners::MayHang);
    }
}
