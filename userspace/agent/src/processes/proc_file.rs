//! Small files of processes in `/proc`, read with three system calls: they have no size to ask for, and
//! the kernel writes all of such a file at each read.

use std::fs::File;
use std::io::{self, Read};

/// Larger than such a file is, nearly always.
const USUAL: usize = 4096;

/// A file of a process as text; what is no text is replaced.
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
        // While lines are left over, the kernel fills a page with those before them.
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
