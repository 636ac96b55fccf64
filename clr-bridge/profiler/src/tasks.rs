//! Threads of this process, as the kernel shows them.

use std::ffi::CStr;
use std::io::Write;

/// The runtime's name for the thread that runs finalizers, and unloads.
const FINALIZER: &[u8] = b".NET Finalizer";

/// The calling thread.
pub fn own() -> u32 {
    // SAFETY: no arguments; not every C library that this runs on has a function for it.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// The name that the kernel has of the calling thread, padded with zeros.
pub fn own_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: a place for 16 bytes, as prctl(2) writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// A number of the calling thread that no other thread has while it lives, without a system call.
pub fn key() -> u64 {
    // SAFETY: every libc has it; only the place matters, which each thread has its own.
    unsafe { libc::__errno_location() as u64 }
}

/// The finalizer thread sleeps, or there is none by that name.
pub fn finalizer_sleeps() -> bool {
    let Some(folder) = File::open(c"/proc/self/task") else { return true };
    let mut all_sleep = true;
    let mut entries = [0u8; 4096];
    loop {
        let room = (entries.as_mut_ptr(), entries.len());
        // SAFETY: an open folder, and a buffer of that length.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, folder.0, room.0, room.1) };
        let Some(mut rest) = usize::try_from(read).ok().and_then(|read| entries.get(..read)) else {
            return all_sleep;
        };
        if rest.is_empty() {
            return all_sleep;
        }
        while let Some((name, next)) = first_entry(rest) {
            rest = next;
            if let Some(tid) = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
                all_sleep &= !is_finalizer(tid) || sleeps(tid);
            }
        }
    }
}

/// The name of the first entry, and the other entries: `struct linux_dirent64` (getdents(2)).
fn first_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = entries.get(LENGTH..LENGTH + 2)?.try_into().ok().map(u16::from_le_bytes)?;
    let name = entries.get(NAME..usize::from(length))?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((name.get(..end)?, entries.get(usize::from(length)..)?))
}

/// Opened by number: the stand-ins for the C library at the link have no names for it.
struct File(libc::c_long);

impl File {
    fn open(path: &CStr) -> Option<File> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL.
        let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (file >= 0).then_some(File(file))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, and closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

fn is_finalizer(tid: u32) -> bool {
    let mut bytes = [0; 512];
    name_and_state(&mut bytes, tid).is_some_and(|(name, _)| name == FINALIZER)
}

/// Whether a thread sleeps. One that has ended does.
pub fn sleeps(tid: u32) -> bool {
    let mut bytes = [0; 512];
    match name_and_state(&mut bytes, tid) {
        Some((_, state)) => matches!(state, b'S' | b'I' | b'Z' | b'X'),
        None => true,
    }
}

/// From `tid (name) state ...`.
fn name_and_state(bytes: &mut [u8; 512], tid: u32) -> Option<(&[u8], u8)> {
    let mut room = [0u8; 64];
    write!(&mut room[..], "/proc/self/task/{tid}/stat\0").ok()?;
    let path = CStr::from_bytes_until_nul(&room).ok()?;
    let file = File::open(path)?;
    // SAFETY: an open file, and a buffer of that length.
    let read = unsafe { libc::syscall(libc::SYS_read, file.0, bytes.as_mut_ptr(), bytes.len()) };
    let stat = bytes.get(..usize::try_from(read).ok()?)?;
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    Some((stat.get(open + 1..close)?, *stat.get(close + 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_thread_does_not_sleep_and_another_does() {
        assert!(!sleeps(own()));
        assert!(sleeps(u32::MAX >> 1));
        assert!(finalizer_sleeps());
    }
}
