//! How wide the terminal is, and texts that fit it.

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
    fn what_does_not_fit_is_cut() {
        assert_eq!(cut("abcdef", Some(4)), "abc…");
        assert_eq!(cut("abcdef", None), "abcdef");
    }
}
