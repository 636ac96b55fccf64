//! How wide the terminal is, and texts that fit it.

use std::io::Write;
use std::os::fd::AsRawFd;

/// Columns of the terminal that this is; `None` for a file or a pipe.
pub fn columns(of: &impl AsRawFd) -> Option<usize> {
    // SAFETY: a zeroed `winsize` is valid, and the call only writes to it.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let asked = libc::ioctl(of.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size);
        (asked == 0).then_some(size)
    };
    size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// At most `limit` characters; the last is `…` where the text was longer.
pub fn cut(text: &str, limit: Option<usize>) -> String {
    match limit {
        Some(limit) => strata_profile::text::shortened(text, limit.max(1)).into_owned(),
        None => text.to_owned(),
    }
}

/// Lines that are longer than the terminal go on in the next line, below their second column. Without a
/// terminal they stay whole.
pub fn wrapped(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    text.lines().map(|line| wrapped_line(line, columns) + "\n").collect()
}

fn wrapped_line(line: &str, columns: usize) -> String {
    let indent = second_column(line).filter(|indent| *indent < columns / 2).unwrap_or(0);
    let (mut wrapped, mut width) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if width + length > columns && width > indent {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', indent));
            width = indent;
        }
        wrapped.push_str(word);
        width += word.chars().count();
    }
    wrapped
}

/// Where the text after the first gap of two spaces begins, or after leading ones.
fn second_column(line: &str) -> Option<usize> {
    let gap = line.find("  ")?;
    let rest = line.get(gap..)?.trim_start();
    Some(line.get(..line.len() - rest.len())?.chars().count())
}

/// `1 process`, `2 processes`.
pub fn counted(count: u64, noun: &str) -> String {
    let number = crate::printing::grouped(count);
    match count {
        1 => format!("1 {noun}"),
        _ if noun.ends_with('s') || noun.ends_with("sh") || noun.ends_with("ch") => {
            format!("{number} {noun}es")
        }
        _ => format!("{number} {noun}s"),
    }
}

/// Below a list that was cut: how many rows are missing.
pub fn print_more(indent: usize, more: usize, out: &mut dyn Write) -> std::io::Result<()> {
    match more {
        0 => Ok(()),
        more => writeln!(out, "{:indent$}… and {} more", "", crate::printing::grouped(more as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(counted(1, "process"), "1 process");
        assert_eq!(counted(0, "process"), "0 processes");
        assert_eq!(counted(2, "batch"), "2 batches");
        assert_eq!(counted(1_200, "sample"), "1,200 samples");
    }

    #[test]
    fn what_does_not_fit_goes_on_below_its_column() {
        let line = "memory    67 MB of 256 MB (own 23 MB, kernel 40 MB)";
        let expected =
            "memory    67 MB of 256 MB\n          (own 23 MB, kernel\n          40 MB)\n";
        assert_eq!(wrapped(line, Some(28)), expected);
        assert_eq!(wrapped("    a b c", Some(6)), "    a b c\n".replace(" b c", "\nb c"));
        assert_eq!(wrapped(line, None), line);
        let word = "a-word-that-is-longer-than-the-terminal";
        assert_eq!(wrapped(word, Some(10)), format!("{word}\n"));
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        assert_eq!(cut("abcdef", Some(4)), "abc…");
        assert_eq!(cut("abcdef", None), "abcdef");
    }
}
