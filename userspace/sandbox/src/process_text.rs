//! Parses `/proc/PID/stat` and `/proc/PID/status`, field by field.
//!
//! Invariant: a process chooses the name in them; no text causes a panic or is taken for another
//! field.

/// `/proc/PID/stat`, and that of a thread (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
pub struct Stat<'a> {
    pub name: &'a [u8],
    /// From field 3 on.
    rest: &'a str,
}

impl<'a> Stat<'a> {
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        // The name is in parentheses and may itself contain some, and spaces.
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = text.get(open.checked_add(1)?..close)?;
        let rest = std::str::from_utf8(text.get(close.checked_add(1)?..)?).ok()?;
        Some(Self { name, rest })
    }

    /// A field by its number in the manual page, of those behind the name.
    #[must_use]
    pub fn field(&self, number: usize) -> Option<&'a str> {
        self.rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }

    /// The same as a number.
    #[must_use]
    pub fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// When the process started, in clock ticks since boot.
    #[must_use]
    pub fn start_time(&self) -> Option<u64> {
        self.number(22)
    }

    /// Whether it is a thread of the kernel (`PF_KTHREAD`: include/linux/sched.h, Linux 6.12).
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        self.number(9).is_some_and(|flags| flags & 0x0020_0000 != 0)
    }
}

/// A field of `/proc/PID/status`.
#[must_use]
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A field of `/proc/PID/status` that is an amount of memory, in bytes.
#[must_use]
pub fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let kibibytes = status_field(status, name)?.strip_suffix("kB")?.trim_end();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_parentheses() {
        let stat =
            b"7 (a) b) c)) S 1 7 7 0 -1 2097152 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 10 184467\n";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!(stat.name, b"a) b) c)");
        assert_eq!((stat.field(3), stat.number(4)), (Some("S"), Some(1)));
        assert_eq!(stat.start_time(), Some(4242));
        assert!(stat.is_kernel_thread());
        assert_eq!((stat.field(2), stat.field(99)), (None, None));
        for broken in [&b""[..], b"7 (a", b"7 a)", b")("] {
            assert!(Stat::parse(broken).and_then(|stat| stat.start_time()).is_none());
        }
    }

    #[test]
    fn fields_of_a_status_are_found_by_their_whole_name() {
        let status = "Name:\tVmRSS:\nVmRSSx:\t7 kB\nVmRSS:\t  12 kB\nNSpid:\t7\t1\n";
        assert_eq!(status_bytes(status, "VmRSS"), Some(12 * 1024));
        assert_eq!(status_field(status, "NSpid"), Some("7\t1"));
        assert_eq!(status_bytes(status, "Name"), None);
    }
}
