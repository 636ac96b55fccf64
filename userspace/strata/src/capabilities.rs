//! Drops capabilities that strata needs only to start, before it reads targets' data.
//!
//! CAP_SYS_ADMIN is close to root on the host. This process needs it for the kernel's statistics of
//! BPF run times, and to enter the host's UTS namespace; both are done once, at the start. From then
//! on this process parses data of targets: the memory of bridges, their logs, process events, names.
//! What needs it later is done by the [broker](strata_agent::kernel::broker), which starts before.

use std::io;

use strata_agent::host;

/// Numbers of `include/uapi/linux/capability.h`, Linux 5.17.
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

/// What stands in for CAP_SYS_ADMIN in all that is done while sampling: another CPU's events and
/// programs, other processes' files. Without them it has to stay.
const INSTEAD: [u32; 4] = [SYS_PTRACE, PERFMON, BPF, CHECKPOINT_RESTORE];

/// `struct __user_cap_header_struct`, version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_data_struct`; the second holds capabilities from 32 on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives CAP_SYS_ADMIN up: in this thread, and in those that it starts from now on. Programs that
/// root executes (the command of a recording) have all of root's rights again.
pub fn give_up_administration() {
    // Read while it may be.
    let _ = host::name();
    match without_administration() {
        Ok(true) => {}
        Ok(false) => tracing::info!(
            "CAP_SYS_ADMIN is kept: CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and \
             CAP_CHECKPOINT_RESTORE, which would do instead, were not all given"
        ),
        Err(error) => tracing::warn!("CAP_SYS_ADMIN could not be given up: {error}"),
    }
}

fn without_administration() -> io::Result<bool> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Data::default(); 2];
    // SAFETY: both are as the kernel expects them of version 3, and live through the call.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let has = |number: u32| {
        sets.get(number as usize / 32).is_some_and(|set| set.effective >> (number % 32) & 1 == 1)
    };
    if !has(SYS_ADMIN) {
        return Ok(true);
    }
    if !INSTEAD.into_iter().all(has) {
        return Ok(false);
    }
    let [low, _] = &mut sets;
    for set in [&mut low.effective, &mut low.permitted, &mut low.inheritable] {
        *set &= !(1 << SYS_ADMIN);
    }
    // SAFETY: as above; nothing is written to.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effective() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        u64::from_str_radix(line.expect("a line").trim(), 16).expect("a number")
    }

    /// Needs root, as strata does.
    #[test]
    fn a_thread_and_those_it_starts_go_on_without_administration() {
        let outside = effective();
        let (own, inherited) = std::thread::spawn(|| {
            assert!(without_administration().expect("the kernel lets it"));
            (effective(), std::thread::spawn(effective).join().expect("it ends"))
        })
        .join()
        .expect("it ends");
        assert_eq!(own, outside & !(1 << SYS_ADMIN));
        assert_eq!(inherited, own);
        assert_eq!(effective(), outside, "of that thread only");
    }
}
