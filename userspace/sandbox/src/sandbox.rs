//! Drops a worker's privileges before it reads the first byte of a target's file.
//!
//! Afterwards it can compute, read descriptors passed to it and answer: it cannot open a file, make
//! a socket, start a thread or program, map code, or signal any process but itself. A forbidden
//! system call kills it ([`crate::Death::SandboxViolation`]), since no intact parser makes one.
//!
//! The filter is written with seccompiler (the sandbox of Firecracker and Cloud Hypervisor) and
//! not by hand: it checks the architecture word and compares arguments in full 64 bits, both
//! easily forgotten in hand-written BPF. libseccomp would be a C library to ship.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, Gid, Uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::capabilities;
use crate::protocol::WorkerLimits;

/// The user "nobody" of every distribution.
const NOBODY: u32 = 65_534;
/// Descriptors a worker may hold: three standard ones, socket, exchange file, envelopes, files.
const MAX_OPEN_FILES: u64 = 24;
/// A backstop in case the daemon, which has the deadlines, is stopped.
const MAX_PROCESSOR_SECONDS: u64 = 120;

/// Drops all privileges. On an error the process must not read any target's file.
pub fn enter(limits: &WorkerLimits) -> io::Result<()> {
    // Users, capabilities and filters belong to threads: another thread would keep them.
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a worker must be the only thread of its process"));
    }
    std::env::set_current_dir("/")?;
    drop_users_and_capabilities()?;
    // Changing the user cleared it (prctl(2)).
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    for (resource, limit) in [
        (Resource::As, limits.address_space),
        (Resource::Fsize, limits.reply_bytes),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Cpu, MAX_PROCESSOR_SECONDS),
    ] {
        rustix::process::setrlimit(
            resource,
            Rlimit { current: Some(limit), maximum: Some(limit) },
        )?;
    }
    let program = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

fn drop_users_and_capabilities() -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        // In a container without CAP_SETPCAP or CAP_SETUID these fail, and the rest must suffice:
        // no capability and no system call that opens a file.
        for capability in CapabilitySet::all().iter() {
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
        let group = Gid::from_raw(NOBODY);
        let user = Uid::from_raw(NOBODY);
        let changed = rustix::thread::set_thread_groups(&[])
            .and_then(|()| rustix::thread::set_thread_res_gid(group, group, group))
            .and_then(|()| rustix::thread::set_thread_res_uid(user, user, user));
        match changed {
            Ok(()) | Err(rustix::io::Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(capabilities::keep_only(|_| CapabilitySet::empty())?)
}

/// The calls a parser's process needs; `None` for those whose arguments do not matter.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let always = [
        // Files and answers.
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_ftruncate,
        libc::SYS_close,
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        // Memory.
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Time, hash seeds, own usage.
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_getrusage,
        libc::SYS_getpid,
        libc::SYS_gettid,
        // Locks of the allocator; signals and the end of a process.
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        always.into_iter().map(|call| (call, Vec::new())).collect();

    let executable = libc::PROT_EXEC as u64;
    let never_code = || -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        let operator = SeccompCmpOp::MaskedEq(executable);
        let condition = SeccompCondition::new(2, SeccompCmpArgLen::Qword, operator, 0)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    rules.insert(libc::SYS_mmap, never_code()?);
    rules.insert(libc::SYS_mprotect, never_code()?);

    // abort() signals its own thread; no other process may be signalled.
    let own = u64::from(std::process::id());
    let only_own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![only_own])?]);

    // Debug builds of the standard library ask whether a descriptor is open before closing it.
    let asks =
        SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, libc::F_GETFD as u64)?;
    rules.insert(libc::SYS_fcntl, vec![SeccompRule::new(vec![asks])?]);

    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_a_program_the_kernel_would_take() {
        let program = filter().unwrap();
        assert!(program.len() > 30 && program.len() < 4096, "{}", program.len());
    }
}
