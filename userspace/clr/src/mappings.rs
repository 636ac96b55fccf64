//! The mappings of a process that identify its runtime: libcoreclr, the C library, the shared
//! memory of strata's own library.
//!
//! `/proc/PID/maps` may be long (65,530 mappings by default, each with a path of up to 4 KiB), so
//! it is read piece by piece, keeps only what is looked for, and ends at [`MAX_TEXT`].

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::target::{Target, TargetError};

/// More of `/proc/PID/maps` is not read.
const MAX_TEXT: usize = 32 << 20;
/// A longer line is no line of the kernel's.
const MAX_LINE: usize = 16 << 10;
/// More mappings of shared memory than this are not kept; the library makes at most 65.
const MAX_SHARED: usize = 256;

/// A mapping of one of the memory files that strata's library makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedMapping {
    pub start: u64,
    pub end: u64,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    pub inode: u64,
    pub kind: SharedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedKind {
    /// The memory file with header, control page, contexts and ring.
    Main,
    /// A segment of the log.
    Log,
}

/// The C library a process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CLibrary {
    Glibc,
    Musl,
}

impl std::fmt::Display for CLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        })
    }
}

/// The findings in the mappings of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mappings {
    /// Path of libcoreclr.so as the process sees it.
    pub runtime: Option<Vec<u8>>,
    /// Memory files that only a runtime makes: that of its executable allocator (on by default since
    /// .NET 7), or the mark of its diagnostics server (.NET 10).
    pub runtime_memory: bool,
    pub c_library: Option<CLibrary>,
    /// The memory files of strata's library in this process, by address.
    pub shared: Vec<SharedMapping>,
    /// The text was longer than the limit.
    pub cut: bool,
}

impl Mappings {
    pub fn read(target: &Target) -> Result<Self, TargetError> {
        let file = target.open_file("maps")?;
        let mut found = Self::default();
        let mut pending: Vec<u8> = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        let mut total = 0;
        loop {
            let length = match rustix::io::read(file.as_fd(), &mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(target.error("maps", errno)),
            };
            total += length;
            if total > MAX_TEXT {
                found.cut = true;
                break;
            }
            for piece in
                chunk.get(..length).unwrap_or_default().split_inclusive(|&byte| byte == b'\n')
            {
                match piece.split_last() {
                    Some((b'\n', line)) if pending.is_empty() => found.take(line),
                    Some((b'\n', end)) => {
                        pending.extend(end);
                        found.take(&pending);
                        pending.clear();
                    }
                    _ if pending.len() + piece.len() <= MAX_LINE => pending.extend(piece),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    pub(crate) fn take(&mut self, line: &[u8]) {
        let Some(mapping) = Line::parse(line) else { return };
        let name = mapping.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
        match name {
            b"libcoreclr.so" if self.runtime.is_none() => {
                self.runtime = Some(mapping.path.to_vec());
            }
            b"memfd:doublemapper" | b"memfd:dotnet_ipc_created" => self.runtime_memory = true,
            b"memfd:strata-clr" => self.keep(&mapping, SharedKind::Main),
            b"memfd:strata-clr-log" => self.keep(&mapping, SharedKind::Log),
            _ if self.c_library.is_none() => self.c_library = c_library(name),
            _ => {}
        }
    }

    /// Keeps a mapping of the library's, which maps its files from their start. A strata that reads
    /// them has the control pages alone mapped (`strata_bridge_protocol::owning`), and no library.
    fn keep(&mut self, line: &Line<'_>, kind: SharedKind) {
        let is_further_piece = || self.shared.iter().any(|one| one.inode == line.inode);
        if line.offset != 0 && !is_further_piece() {
            return;
        }
        if self.shared.len() < MAX_SHARED {
            let Line { start, end, device, inode, .. } = *line;
            self.shared.push(SharedMapping { start, end, device, inode, kind });
        } else {
            self.cut = true;
        }
    }
}

/// The dynamic linker and the C library by their file names: `ld-linux-x86-64.so.2`, `libc.so.6`,
/// `libc-2.31.so`, `ld-musl-x86_64.so.1`, `libc.musl-x86_64.so.1`.
fn c_library(name: &[u8]) -> Option<CLibrary> {
    const GLIBC: [&[u8]; 3] = [b"ld-linux", b"libc.so.6", b"libc-2."];
    const MUSL: [&[u8]; 2] = [b"ld-musl-", b"libc.musl-"];
    if MUSL.iter().any(|start| name.starts_with(start)) {
        Some(CLibrary::Musl)
    } else if GLIBC.iter().any(|start| name.starts_with(start)) {
        Some(CLibrary::Glibc)
    } else {
        None
    }
}

/// One line of `/proc/PID/maps`; newlines in paths are escaped by the kernel.
struct Line<'a> {
    start: u64,
    end: u64,
    /// Into the file.
    offset: u64,
    device: (u32, u32),
    inode: u64,
    path: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let range = std::str::from_utf8(fields.next()?).ok()?;
        let offset = std::str::from_utf8(fields.nth(1)?).ok()?;
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let inode = std::str::from_utf8(fields.next()?).ok()?;
        let path = fields.next()?.trim_ascii_start();
        let (start, end) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode: inode.parse().ok()?,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> Mappings {
        let mut found = Mappings::default();
        text.lines().for_each(|line| found.take(line.as_bytes()));
        found
    }

    #[test]
    fn the_runtime_the_c_library_and_the_shared_memory_are_found() {
        let found = of_text(
            "00400000-00410000 r--p 00000000 fe:01 11 /usr/bin/dotnet\n\
             7f00-7f10 r-xp 00001000 fe:01 12    /opt/my net/shared/Microsoft.NETCore.App/9.0.7/libcoreclr.so\n\
             7f10-7f20 rwxs 00000000 00:01 2050 /memfd:doublemapper (deleted)\n\
             7f20-7f30 rw-s 00000000 00:01 77 /memfd:strata-clr (deleted)\n\
             7f30-7f40 rw-s 00000000 00:01 78 /memfd:strata-clr-log (deleted)\n\
             7f40-7f50 r-xp 00000000 fe:01 13 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
             7ff0-7fff rw-p 00000000 00:00 0 [stack]\n",
        );
        let runtime = found.runtime.unwrap();
        assert!(runtime.ends_with(b"/opt/my net/shared/Microsoft.NETCore.App/9.0.7/libcoreclr.so"));
        assert!(found.runtime_memory && !found.cut);
        assert_eq!(found.c_library, Some(CLibrary::Glibc));
        let first = found.shared.first().unwrap();
        assert_eq!((first.start, first.end, first.kind), (0x7f20, 0x7f30, SharedKind::Main));
        assert_eq!((first.device, first.inode), ((0, 1), 77));
        assert_eq!(found.shared.last().map(|mapping| mapping.kind), Some(SharedKind::Log));
    }

    #[test]
    fn a_reader_of_shared_memory_has_none_of_its_own() {
        let reader = "7f20-7f30 rw-s 00001000 00:01 77 /memfd:strata-clr (deleted)\n";
        assert_eq!(of_text(reader).shared, []);
        // A mapping in pieces is one, whichever file's comes before.
        let pieces = "7f00-7f10 rw-s 00000000 00:01 78 /memfd:strata-clr (deleted)\n\
             7f10-7f18 rw-s 00000000 00:01 77 /memfd:strata-clr (deleted)\n\
             7f18-7f20 rw-s 00008000 00:01 77 /memfd:strata-clr (deleted)\n\
             7f20-7f30 rw-s 00001000 00:01 79 /memfd:strata-clr (deleted)\n";
        let starts: Vec<u64> = of_text(pieces).shared.iter().map(|one| one.start).collect();
        assert_eq!(starts, [0x7f00, 0x7f10, 0x7f18]);
    }

    #[test]
    fn musl_is_distinguished_from_glibc() {
        assert_eq!(c_library(b"ld-musl-x86_64.so.1"), Some(CLibrary::Musl));
        assert_eq!(c_library(b"ld-linux-x86-64.so.2"), Some(CLibrary::Glibc));
        assert_eq!(c_library(b"libc-2.31.so"), Some(CLibrary::Glibc));
        assert_eq!(c_library(b"libcoreclr.so"), None);
    }

    #[test]
    fn shared_memory_without_end_is_cut() {
        let line = "7f20-7f30 rw-s 00000000 00:01 77 /memfd:strata-clr-log (deleted)\n";
        let found = of_text(&line.repeat(1000));
        assert!(found.cut && found.shared.len() == MAX_SHARED);
    }

    #[test]
    fn a_process_that_is_no_clr_has_no_runtime() {
        let target = Target::open(std::process::id()).unwrap();
        let found = Mappings::read(&target).unwrap();
        assert_eq!(found.runtime, None);
        assert_eq!(found.c_library, Some(CLibrary::Glibc));
        assert!(found.shared.is_empty() && !found.runtime_memory && !found.cut);
    }
}
