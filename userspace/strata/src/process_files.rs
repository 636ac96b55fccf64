//! Files of `/proc` as text, and the process of a thread.
//!
//! Some of them hold the name of a process or thread, which may be any bytes: the kernel cuts it at 15,
//! in the middle of a character too.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// A file as text; invalid UTF-8 is replaced.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// The process of a thread, by the thread's number, as `top -H` shows it.
pub fn process_of(thread: u32) -> Result<u32> {
    let status = text(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let process = process.and_then(|process| process.trim().parse().ok());
    process.with_context(|| format!("there is no process {thread}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_name_is_not_utf8_has_its_process() {
        let found = std::thread::spawn(|| {
            let name = c"abc\xc3";
            // SAFETY: the name ends with a zero byte; both calls have no other preconditions.
            let tid = unsafe {
                libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                libc::gettid()
            };
            let name = text("/proc/thread-self/comm").expect("it is there");
            (name, process_of(u32::try_from(tid).expect("it is positive")).ok())
        });
        let (name, process) = found.join().expect("it ends");
        assert_eq!(name, "abc\u{fffd}\n");
        assert_eq!(process, Some(std::process::id()));
        assert!(process_of(u32::MAX).is_err());
    }
}
