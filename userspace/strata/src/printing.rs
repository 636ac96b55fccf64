//! The output of commands: answers on standard output, messages on standard error.
//!
//! Invariant: a message that cannot be written is dropped. Standard error may be full or closed
//! (`2>&1 | head`), and neither a recording nor its command's exit status depends on it.

use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints; a reader that has seen enough (`| head`) is no error. The exit status.
pub fn print(text: &str) -> Result<i32> {
    print_to(stdout().lock(), text)
}

/// The same of a value as JSON.
pub fn json(value: &impl Serialize) -> Result<i32> {
    let text = serde_json::to_string_pretty(value).context("the answer cannot be written")?;
    print(&(text + "\n"))
}

fn print_to(mut out: impl Write, text: &str) -> Result<i32> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("the answer cannot be printed")
        }
        _ => Ok(0),
    }
}

/// Prints a line on standard error, as `eprintln!` would, without its panic where that fails.
macro_rules! message {
    ($($argument:tt)*) => { $crate::printing::message_text(&(format!($($argument)*) + "\n")) };
}
pub(crate) use message;

/// The same of a whole text, in one write: others write to a terminal too.
pub fn message_text(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Reports a file that was written.
pub fn written(path: &Path, bytes: u64) {
    if path != Path::new("-") {
        message!("{}  ({} KiB)", path.display(), bytes.div_ceil(1024));
    }
}

/// Samples a second of a process without a rule, and the most that rules ask for.
pub fn frequency(of_host: u32, highest: u32) -> String {
    if highest > of_host {
        format!("{of_host} Hz (up to {highest} Hz by rules)")
    } else {
        format!("{of_host} Hz")
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error_and_a_full_disk_is() {
        assert!(matches!(print_to(Failing(ErrorKind::BrokenPipe), "much\n"), Ok(0)));
        assert!(print_to(Failing(ErrorKind::StorageFull), "much\n").is_err());
        let mut message = Vec::new();
        assert!(matches!(print_to(&mut message, "all of it"), Ok(0)));
        assert_eq!(message, b"all of it");
    }
}
