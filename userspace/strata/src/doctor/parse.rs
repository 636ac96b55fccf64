//! The kernel's texts about itself and its processes, as pure functions.
//!
//! Invariant: names in these texts may be chosen by a hostile process; nothing panics on them.

use strata_sandbox::process_text::Stat;
pub use strata_sandbox::process_text::status_field;

/// "6.18.44-cloud" → (6, 18).
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A set of capabilities of `/proc/PID/status`, such as `CapEff`.
pub fn capabilities(status: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(status_field(status, name)?, 16).ok()
}

/// The first number of a CPU list such as "0-3,8".
pub fn first_cpu(list: &str) -> Option<u32> {
    list.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

/// How many CPUs a list such as "0-3,8" names.
pub fn count_cpus(list: &str) -> u32 {
    let range = |part: &str| -> Option<u32> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').filter_map(range).fold(0, u32::saturating_add)
}

/// The chosen one of a list such as "none [integrity] confidentiality".
pub fn chosen(list: &str) -> Option<&str> {
    list.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// A mount of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    pub point: &'a str,
    pub filesystem: &'a str,
    /// Options of the filesystem (not of the mount).
    pub options: &'a str,
}

pub fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let mut after = after.splitn(3, ' ');
        let filesystem = after.next()?;
        let options = after.nth(1)?;
        Some(Mount { point, filesystem, options })
    })
}

/// The value of an option in a list such as "rw,hidepid=2".
pub fn option<'a>(options: &'a str, name: &str) -> Option<&'a str> {
    options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

/// A value of `/etc/os-release`.
pub fn release_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim_matches('"'))
}

/// Whether a line of `/proc/kallsyms` has an address.
pub fn has_address(line: &str) -> bool {
    line.split(' ').next().is_some_and(|address| address.bytes().any(|byte| byte != b'0'))
}

/// An executable mapping of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
    /// As the kernel prints it, " (deleted)" included; empty for anonymous memory.
    pub path: Vec<u8>,
}

pub fn code_mappings(maps: &[u8]) -> Vec<CodeMapping> {
    maps.split(|&byte| byte == b'\n').filter_map(code_mapping).collect()
}

fn code_mapping(line: &[u8]) -> Option<CodeMapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let range = text()?;
    if text()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = text()?;
    let device = text()?;
    let inode = text()?;
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    Some(CodeMapping {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        offset: hexadecimal(offset)?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        path: path.to_vec(),
    })
}

/// When a process started, by its `/proc/PID/stat`: in clock ticks since boot.
pub fn start_time(stat: &[u8]) -> Option<u64> {
    Stat::parse(stat)?.start_time()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_a_suffix() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("5.10.0-28-amd64"), Some((5, 10)));
        assert_eq!(version("7.2"), Some((7, 2)));
        assert_eq!(version("6"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        let status = "Name:\tCapEff:\nUid:\t0\t0\t0\t0\nCapPrm:\t0000000000000003\n\
                      CapEff:\t000001fffeffffff\nSeccomp:\t2\n";
        assert_eq!(capabilities(status, "CapEff"), Some(0x1ff_feff_ffff));
        assert_eq!(capabilities(status, "CapPrm"), Some(3));
        assert_eq!(capabilities(status, "CapAmb"), None);
        assert_eq!(status_field(status, "Seccomp"), Some("2"));
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!((first_cpu("0-3,8\n"), count_cpus("0-3,8\n")), (Some(0), 5));
        assert_eq!((first_cpu("2"), count_cpus("2")), (Some(2), 1));
        assert_eq!((first_cpu(""), count_cpus("")), (None, 0));
    }

    #[test]
    fn the_chosen_lockdown_mode_is_found() {
        assert_eq!(chosen("none [integrity] confidentiality\n"), Some("integrity"));
        assert_eq!(chosen("nothing"), None);
    }

    #[test]
    fn mounts_come_with_their_options() {
        let text = "22 27 0:21 / /proc rw,relatime shared:7 - proc proc rw,hidepid=2\n\
                    38 31 0:38 / /sys/fs/cgroup rw - cgroup2 none rw\n";
        let found: Vec<Mount> = mounts(text).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].point, found[0].filesystem), ("/proc", "proc"));
        assert_eq!(option(found[0].options, "hidepid"), Some("2"));
        assert_eq!(option(found[1].options, "hidepid"), None);
    }

    #[test]
    fn hidden_kernel_addresses_are_recognised() {
        assert!(!has_address("0000000000000000 T _stext"));
        assert!(has_address("ffffffff81000000 T _stext"));
    }

    #[test]
    fn code_mappings_keep_odd_names() {
        let maps = b"7f00-7f10 r-xp 00001000 fe:01 1234    /opt/my app/\xff x.so (deleted)\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \n7f20-7f30 rwxp 00000000 00:00 0 \n";
        let found = code_mappings(maps);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].path, b"/opt/my app/\xff x.so (deleted)");
        assert_eq!((found[0].device, found[0].inode), ((0xfe, 1), 1234));
        assert!(found[1].path.is_empty());
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) b) {}\n", fields.join(" "));
        assert_eq!(start_time(stat.as_bytes()), Some(22));
        assert_eq!(start_time(b"7 (a"), None);
    }
}
