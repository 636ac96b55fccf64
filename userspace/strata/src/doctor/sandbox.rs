//! The requirements of the file service, which opens and parses targets' files in separate
//! processes.

use std::io;

use strata_sandbox::{
    CacheConfig, CacheError, Config, FileError, FileService, Locator, Reply, Request,
};

use super::environment::Environment;
use super::line::{Group, Line};

const GROUP: Group = Group::Sandbox;
/// Open files for a host with many different programs: one each.
const ENOUGH_FILES: u64 = 4096;
const LOST_FILES: &str =
    "unwind rules and symbols of every file: frame pointers and addresses only";

pub fn lines(environment: &Environment) -> Vec<Line> {
    let mut lines = vec![seccomp(), resolve_in_root(environment)];
    match FileService::new(Config::default()) {
        Ok(mut service) => lines.extend([file_worker(&mut service), cache(&service)]),
        Err(error) => lines.push(no_worker(&error)),
    }
    lines.push(open_files());
    lines
}

/// Whether the kernel knows the action that ends a process which makes a forbidden call.
fn seccomp() -> Line {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_long = 2;
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the pointer is valid for the call, which only reads an action.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_GET_ACTION_AVAIL,
            0 as libc::c_long,
            &raw const action,
        )
    };
    if failed == 0 {
        return Line::ok(GROUP, "seccomp", "filters can end a process");
    }
    Line::degraded(
        GROUP,
        "seccomp",
        io::Error::last_os_error().to_string(),
        LOST_FILES,
        "boot a kernel built with CONFIG_SECCOMP_FILTER=y",
    )
}

/// openat2: paths are resolved below a target's root, or not at all.
fn resolve_in_root(environment: &Environment) -> Line {
    // SAFETY: plain numbers, valid when zeroed.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: a path with its NUL and a block of the length passed; the result is checked.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD as libc::c_long,
            c"/".as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    if fd >= 0 {
        // SAFETY: just opened, without another user.
        unsafe { libc::close(fd as i32) };
        return Line::ok(GROUP, "openat2", "paths stay below a target's root");
    }
    let fix =
        if environment.filtered { environment.filter_fix() } else { "boot a kernel from 5.6 on" };
    Line::degraded(GROUP, "openat2", io::Error::last_os_error().to_string(), LOST_FILES, fix)
}

/// The whole way: strata's own executable, opened by the opener and read in the sandbox.
fn file_worker(service: &mut FileService) -> Line {
    match read_own_file(service) {
        Ok(()) => Line::ok(GROUP, "file worker", "opens, reads and is sandboxed"),
        Err(error) => no_worker(&error),
    }
}

fn no_worker(error: &dyn std::error::Error) -> Line {
    Line::degraded(
        GROUP,
        "file worker",
        error.to_string(),
        LOST_FILES,
        "report it, with the output of: strata doctor --json",
    )
}

fn read_own_file(service: &mut FileService) -> Result<(), FileError> {
    let path = std::env::current_exe().map_err(|error| FileError::Parse(error.to_string()))?;
    let Reply::Opened(file) = service.call(Request::Open(Locator::Host { path }))? else {
        return Err(FileError::InvalidRequest("an answer to another question"));
    };
    match service.call(Request::Read { file, offset: 0, length: 4 })? {
        Reply::Bytes(bytes) if bytes == b"\x7fELF" => Ok(()),
        _ => Err(FileError::InvalidRequest("an answer to another question")),
    }
}

/// Where unwind tables are kept between runs.
fn cache(service: &FileService) -> Line {
    let name = "cache";
    let Some(trouble) = service.cache_trouble() else {
        let place = CacheConfig::default().directory;
        return Line::ok(GROUP, name, format!("{}, for unwind tables", place.display()));
    };
    let fix = match trouble {
        CacheError::Io { path, .. } => {
            format!("mkdir -p {0} && chmod 700 {0} (or set XDG_CACHE_HOME)", path.display())
        }
        CacheError::Owner { path, .. } => format!("sudo rm -r {}", path.display()),
        CacheError::Open { path, .. } => format!("chmod 700 {}", path.display()),
    };
    const LOST: &str = "speed at the start: unwind tables are built again in every run";
    Line::degraded(GROUP, name, trouble.to_string(), LOST, fix)
}

fn open_files() -> Line {
    let name = "open files";
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Line::ok(GROUP, name, "limit not known");
    }
    // Strata raises the limit as far as it may.
    let most = limit.rlim_max;
    if most >= ENOUGH_FILES {
        return Line::ok(GROUP, name, format!("up to {most}"));
    }
    Line::degraded(
        GROUP,
        name,
        format!("up to {most}"),
        format!("unwind rules and symbols beyond some {most} different files"),
        "ulimit -Hn 65536",
    )
}
