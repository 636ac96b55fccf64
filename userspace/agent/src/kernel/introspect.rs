//! The cost of strata's own BPF programs and maps, from the kernel's accounting.
//!
//! Everything is found through `/proc/self/fdinfo`: exactly what this process holds, without the
//! privilege that walking the whole host's programs needs (CAP_SYS_ADMIN).
//!
//! Invariant: read only; nothing here keeps a program or map alive.

use std::collections::BTreeMap;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapInfo, MapType};

/// A loaded program and what it has used so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramUse {
    pub id: u32,
    /// The kernel keeps the first 15 characters.
    pub name: String,
    /// Zero unless run-time statistics are on ([`enable_run_time_stats`]).
    pub run_time: Duration,
    /// As above.
    pub run_count: u64,
    /// Runs that the kernel left out because the program ran on that CPU already.
    pub missed: u64,
    /// Instructions the verifier went through.
    pub verified_instructions: u32,
    /// Bytes of machine code; 0 when it is interpreted or not known.
    pub machine_code_bytes: u32,
}

/// A map and the kernel memory it is charged with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapUse {
    pub id: u32,
    pub name: String,
    pub kind: MapType,
    pub bytes: u64,
}

/// The programs and maps of this process, each once, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUse {
    pub programs: Vec<ProgramUse>,
    pub maps: Vec<MapUse>,
}

impl KernelUse {
    /// Kernel memory of all maps.
    pub fn map_bytes(&self) -> u64 {
        self.maps.iter().map(|map| map.bytes).sum()
    }

    pub fn program(&self, name: &str) -> Option<&ProgramUse> {
        self.programs.iter().find(|program| program.name == name)
    }
}

/// The programs and maps this process holds descriptors of.
pub fn of_this_process() -> io::Result<KernelUse> {
    let mut programs = BTreeMap::new();
    let mut maps = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The descriptor that lists the directory, and others, may be gone by now.
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        match parse(&text) {
            Some(Held::Program { id }) if !programs.contains_key(&id) => {
                if let Ok(found) = program_of(number) {
                    programs.insert(id, found);
                }
            }
            Some(Held::Map { id, bytes }) if !maps.contains_key(&id) => {
                if let Ok(found) = map_of(number, bytes) {
                    maps.insert(id, found);
                }
            }
            _ => {}
        }
    }
    Ok(KernelUse { programs: programs.into_values().collect(), maps: maps.into_values().collect() })
}

/// Run-time statistics of all BPF programs are on as long as this lives.
#[derive(Debug)]
pub struct RunTimeStatistics {
    _enabled: OwnedFd,
}

/// Makes the kernel count and time every run of every BPF program, which costs some 20 ns a run.
/// Needs CAP_SYS_ADMIN.
pub fn enable_run_time_stats() -> io::Result<RunTimeStatistics> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(RunTimeStatistics { _enabled: unsafe { OwnedFd::from_raw_fd(fd) } })
}

/// What an entry of fdinfo is about.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    Program { id: u32 },
    Map { id: u32, bytes: u64 },
}

/// Formats: `bpf_prog_show_fdinfo` and `bpf_map_show_fdinfo` in kernel/bpf/syscall.c, Linux 6.12.
fn parse(text: &str) -> Option<Held> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().parse::<u64>().ok()
    };
    let id = |name| field(name).and_then(|id| u32::try_from(id).ok());
    // Links name their program too, and are not it.
    if field("link_id").is_some() {
        return None;
    }
    match (id("prog_id"), id("map_id")) {
        (Some(id), _) => Some(Held::Program { id }),
        (None, Some(id)) => Some(Held::Map { id, bytes: field("memlock").unwrap_or(0) }),
        (None, None) => None,
    }
}

/// What one program has used so far: without looking through all descriptors.
pub fn of_program(program: BorrowedFd<'_>) -> io::Result<ProgramUse> {
    program_of(program.as_raw_fd())
}

fn program_of(number: RawFd) -> io::Result<ProgramUse> {
    // SAFETY: only plain numbers; the kernel checks that the bytes it does not know are zero.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is `length` bytes long; a descriptor that was closed meanwhile, or is
    // something else by now, gives an error.
    let failed = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(number, (&raw mut info).cast(), &raw mut length)
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed.saturating_neg()));
    }
    let name: Vec<u8> =
        info.name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    Ok(ProgramUse {
        id: info.id,
        name: String::from_utf8_lossy(&name).into_owned(),
        run_time: Duration::from_nanos(info.run_time_ns),
        run_count: info.run_cnt,
        missed: info.recursion_misses,
        verified_instructions: info.verified_insns,
        machine_code_bytes: info.jited_prog_len,
    })
}

fn map_of(number: RawFd, bytes: u64) -> Result<MapUse, libbpf_rs::Error> {
    // SAFETY: used for this one question; if it was closed meanwhile, the answer is an error.
    let map = unsafe { BorrowedFd::borrow_raw(number) };
    let info = MapInfo::new(map)?;
    Ok(MapUse {
        id: info.info.id,
        name: info.name().unwrap_or_default().to_owned(),
        kind: info.map_type(),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::MapHandle;

    #[test]
    fn fdinfo_tells_programs_maps_and_links_apart() {
        let program = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nprog_id:\t14\nmemlock:\t4096\n";
        assert_eq!(parse(program), Some(Held::Program { id: 14 }));
        let map = "pos:\t0\nmap_type:\t2\nmemlock:\t16777568\nmap_id:\t31\n";
        assert_eq!(parse(map), Some(Held::Map { id: 31, bytes: 16_777_568 }));
        assert_eq!(parse("link_type:\ttracing\nlink_id:\t3\nprog_id:\t14\n"), None);
        assert_eq!(parse("pos:\t0\nflags:\t02\nmnt_id:\t15\n"), None);
    }

    #[test]
    fn a_map_of_this_process_is_found_with_its_memory() {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("strata_test"), 4, 4096, 16, &options)
            .expect("needs root: a map is created");
        let found = of_this_process().expect("fdinfo is readable");
        let found = found.maps.iter().find(|map| map.name == "strata_test").expect("found");
        assert_eq!(found.kind, MapType::Array);
        assert!(found.bytes >= 16 * 4096, "{} bytes", found.bytes);
        drop(map);
        let left = of_this_process().expect("fdinfo is readable");
        assert!(left.maps.iter().all(|map| map.name != "strata_test"));
    }

    #[test]
    fn run_time_statistics_are_on_as_long_as_asked_for() {
        enable_run_time_stats().expect("needs root: statistics are switched on");
    }
}
