//! What a failed test printed, as far as it is shown again at the end of the whole.
//!
//! Invariant: the last [`PRINTED`] lines, none of them of a backtrace: with `RUST_BACKTRACE` set, one
//! is longer than that, and comes after the message.

use std::collections::VecDeque;

/// So many lines are kept.
const PRINTED: usize = 40;
/// What a backtrace ends with when it is not the full one.
const OMITTED: &str = "note: Some details are omitted, run with `RUST_BACKTRACE=full`";

#[derive(Debug, Default)]
pub struct Printed {
    lines: VecDeque<String>,
    /// The line before was one of a backtrace.
    is_backtrace: bool,
}

impl Printed {
    pub fn keep(&mut self, line: &str) {
        let begins = matches!(line.trim(), "stack backtrace:" | "Stack backtrace:");
        let was_backtrace = self.is_backtrace;
        self.is_backtrace = begins || was_backtrace && is_of_frame(line);
        if self.is_backtrace || was_backtrace && line.starts_with(OMITTED) {
            return;
        }
        if self.lines.len() >= PRINTED {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// `   4: a::function`, or `             at ./a/file.rs:5:72`.
fn is_of_frame(line: &str) -> bool {
    let rest = line.trim_start();
    let is_numbered = || {
        let number = rest.split_once(": ").map(|(number, _)| number);
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    rest.len() < line.len() && (rest.starts_with("at ") || is_numbered())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> Vec<String> {
        let mut printed = Printed::default();
        text.lines().for_each(|line| printed.keep(line));
        printed.lines().map(str::to_owned).collect()
    }

    /// As libtest and std print it with RUST_BACKTRACE=1, with fewer frames.
    const PANICS: &str = r"before

thread '<unnamed>' (3454) panicked at src/lib.rs:8:57:
in a thread
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5
   1: core::panicking::panic_fmt
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/panicking.rs:80:14
  10: bt::tests::thread::{{closure}}
             at ./src/lib.rs:8:57
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
between

thread 'tests::panics' (3452) panicked at src/lib.rs:4:47:
assertion `left == right` failed: a sentence
of two lines
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
";

    #[test]
    fn backtraces_of_panics_are_left_out() {
        let expected = [
            "before",
            "",
            "thread '<unnamed>' (3454) panicked at src/lib.rs:8:57:",
            "in a thread",
            "between",
            "",
            "thread 'tests::panics' (3452) panicked at src/lib.rs:4:47:",
            "assertion `left == right` failed: a sentence",
            "of two lines",
            "  left: 1",
            " right: 2",
        ];
        assert_eq!(kept(PANICS), expected);
    }

    #[test]
    fn the_causes_of_an_error_are_kept_without_its_backtrace() {
        // As anyhow prints it.
        let text = r"Error: outer

Caused by:
    0: reading
    1: No such file or directory (os error 2)

Stack backtrace:
   0: <E as anyhow::context::ext::StdError>::ext_context
             at /root/.cargo/registry/src/index.crates.io/anyhow-1.0.104/src/backtrace.rs:10:14
  27: clone3
             at ./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S:81:0
  at
last";
        let expected = [
            "Error: outer",
            "",
            "Caused by:",
            "    0: reading",
            "    1: No such file or directory (os error 2)",
            "",
            "  at",
            "last",
        ];
        assert_eq!(kept(text), expected);
    }

    #[test]
    fn a_message_before_a_backtrace_of_any_length_is_kept() {
        let frames: String = (0..1000)
            .map(|number| format!("{number:4}: a::function\n             at ./a.rs:1:1\n"))
            .collect();
        assert_eq!(kept(&format!("message\nstack backtrace:\n{frames}")), ["message"]);
        // And lines alone are limited.
        let lines: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        let lines = kept(&lines);
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (PRINTED, Some("line 999")));
    }
}
