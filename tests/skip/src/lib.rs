//! How a test reports that it, or a part of it, cannot run here.
//!
//! The test harness knows no result for that, so the test returns and passes. It first prints
//! `skipped: NAME: REASON`, which `cargo xtask test` takes off the passed tests and shows with the
//! totals. It bypasses the harness's capture, which would hide the output of a passing test.

use std::fmt::Arguments;
use std::io::Write;

/// Reports that the calling test is skipped: `skipped!("no node here ({error})")`.
#[macro_export]
macro_rules! skipped {
    ($($reason:tt)*) => {
        $crate::report(::std::format_args!($($reason)*))
    };
}

/// What [`skipped!`] calls.
pub fn report(reason: Arguments) {
    let thread = std::thread::current();
    // On its own line: the harness may have begun one with the test's name.
    let line = format!("\n{}\n", line(thread.name().unwrap_or("a test"), &reason.to_string()));
    // Nothing can be printed where standard output is closed.
    _ = std::io::stdout().lock().write_all(line.as_bytes());
}

fn line(test: &str, reason: &str) -> String {
    let reason: Vec<&str> = reason.split_whitespace().collect();
    format!("skipped: {test}: {}", reason.join(" "))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_reason_of_several_lines_becomes_one() {
        assert_eq!(line("a::b", "no go:\n  not found\n"), "skipped: a::b: no go: not found");
    }
}
