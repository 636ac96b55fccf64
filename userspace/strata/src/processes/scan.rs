//! The state at the start, from `/proc`.

use std::fs;

use super::table::{Mapping, ProcessTable};
use crate::kernel::perf_record::MappedInode;

/// Reads every process of the host into the table; those that are there already stay.
pub fn scan(table: &mut ProcessTable) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let mut found = 0;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        found += usize::from(scan_process(table, pid));
    }
    found
}

/// Reads one process into the table; false when it is gone, or a kernel thread. One that has ended
/// and was not waited for is gone: nothing tells when somebody does.
pub fn scan_process(table: &mut ProcessTable, pid: u32) -> bool {
    // Processes may end at any moment: what cannot be read is not there.
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return false };
    let Some(Stat { comm, state, parent }) = stat(pid) else { return false };
    if maps.is_empty() && (parent == KTHREADD || state == "Z") {
        return false;
    }
    let mut mappings = Vec::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let Some(found) = parse_line(line) else { continue };
        if let Some(backing) = table.backing(found.inode, found.path) {
            mappings.push(Mapping {
                start: found.start,
                end: found.end,
                offset: found.offset,
                backing,
            });
        }
    }
    table.insert_existing(pid, parent, &comm, mappings);
    true
}

/// Parent of all kernel threads.
const KTHREADD: u32 = 2;

struct Stat {
    comm: String,
    state: String,
    parent: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain some.
    let open = text.iter().position(|&byte| byte == b'(')?;
    let close = text.iter().rposition(|&byte| byte == b')')?;
    let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { comm, state, parent })
}

struct Line<'a> {
    start: u64,
    end: u64,
    offset: u64,
    inode: MappedInode,
    path: &'a [u8],
}

/// One line of `/proc/PID/maps`, when it is an executable mapping.
fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let protection = fields.next()?;
    if protection.get(2) != Some(&b'x') {
        return None;
    }
    let offset = std::str::from_utf8(fields.next()?).ok()?;
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let inode = std::str::from_utf8(fields.next()?).ok()?;
    let path = fields.next().unwrap_or_default();
    let spaces = path.iter().take_while(|&&byte| byte == b' ').count();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    Some(Line {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: MappedInode {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
            generation: 0,
        },
        path: path.get(spaces..).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_spaces_is_read_whole() {
        let line = b"7f00-7f10 r-xp 00001000 fe:01 1234    /opt/my app/lib x.so (deleted)";
        let line = parse_line(line).expect("a valid line");
        assert_eq!((line.start, line.end, line.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!(line.inode.inode, 1234);
        assert_eq!(line.path, b"/opt/my app/lib x.so (deleted)");
    }

    #[test]
    fn data_mappings_are_left_out() {
        assert!(parse_line(b"7f00-7f10 rw-p 00001000 fe:01 1234 /lib/x.so").is_none());
    }

    #[test]
    fn a_process_that_only_waits_to_be_waited_for_is_gone() {
        let mut child = std::process::Command::new("/bin/true").spawn().expect("it starts");
        let is_zombie = || stat(child.id()).is_some_and(|stat| stat.state == "Z");
        while !is_zombie() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!scan_process(&mut ProcessTable::default(), child.id()));
        child.wait().expect("it was there");
    }

    #[test]
    fn this_process_is_found_with_its_own_code() {
        let mut table = ProcessTable::default();
        assert!(scan_process(&mut table, std::process::id()));
        let process = table.get(std::process::id()).expect("found");
        let here = this_process_is_found_with_its_own_code as fn() as usize as u64;
        assert!(process.space.mapping_of(here).is_some());
    }
}
