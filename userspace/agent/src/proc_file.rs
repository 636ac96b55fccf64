//! Small files of processes in `/proc`: their size is reported as 0, so there is nothing to ask for, and one
//! that is shorter than 2,048 bytes takes three system calls: open, one read, close.

use std::fs::File;
use std::io::{self, Read};

/// Nearly always enough for a whole file.
const USUAL: usize = 4096;

/// A file of a process as text; invalid UTF-8 is replaced. Only for files that are written as one record
/// (`status`, `cgroup`) or whose lines are shorter than 2,048 bytes (`uid_map`): of `maps` a part may be
/// shorter than that before the end.
pub fn text(pid: u32, name: &str) -> io::Result<String> {
    let file = File::open(format!("/proc/{pid}/{name}"))?;
    let bytes = read_all(file)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn read_all(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut part = [0; USUAL];
    loop {
        let read = match file.read(&mut part) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(part.get(..read).unwrap_or_default());
        // While records are left over, the kernel fills a page with those before them.
        if read < USUAL / 2 {
            return Ok(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives at most so many bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = self.1.min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn a_file_is_read_to_its_end() {
        let long: Vec<u8> = (0..20_000u32).map(|at| at as u8).collect();
        for length in [0, 1, 2047, 2048, 4095, 4096, 4097, 20_000] {
            for most in [2100, 4096] {
                let read = read_all(Slowly(&long[..length], most)).expect("it is read");
                assert_eq!(read, &long[..length]);
            }
        }
        let pid = std::process::id();
        let status = text(pid, "status").expect("it is there");
        assert!(status.ends_with('\n') && status.contains("\nnonvoluntary_ctxt_switches:"));
        assert!(text(pid, "no such file").is_err());
    }
}
