//! Iterators over threads: made of the loaded program, which runs for each thread while one is read.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use super::Target;

/// A link to the loaded iterator program, whose iterators go over a target's threads, or over all.
pub(super) fn link(program: BorrowedFd<'_>, target: Option<Target>) -> io::Result<OwnedFd> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(target) = target {
        let (pid, tid) = match target {
            Target::Process(pid) => (pid, 0),
            Target::Thread(tid) => (0, tid),
        };
        info.task = libbpf_sys::bpf_iter_link_info__bindgen_ty_3 { tid, pid, pid_fd: 0 };
        options.iter_info = &raw mut info;
        options.iter_info_len = size_of_val(&info) as u32;
    }
    // SAFETY: the options and what they point to live until the call returns.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            &raw const options,
        )
    };
    owned(fd)
}

/// Whether the program can be linked and run: the kernel lets an iterator sleep, and no filter of system
/// calls refuses one. It runs for no thread.
pub fn check(program: BorrowedFd<'_>) -> io::Result<()> {
    iterator(link(program, None)?.as_fd()).map(drop)
}

/// What runs the program of a link for each thread while it is read.
fn iterator(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: a plain number.
    owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })
}

/// The result of a call of libbpf: a new descriptor, or a negated error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the kernel has iterators over some threads. Before Linux 6.1, the number of a process is
/// one word too many, but that of a thread is not read and its link goes over all threads.
pub(super) fn goes_over_targets(program: BorrowedFd<'_>) -> bool {
    let this = Target::Process(std::process::id());
    match link(program, Some(this)) {
        Ok(_) => true,
        Err(error) => !matches!(error.raw_os_error(), Some(libc::E2BIG | libc::EINVAL)),
    }
}

/// Has the program run for each thread of a link.
pub(super) fn read_threads(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut pass = std::fs::File::from(iterator(link)?);
    // The program runs while its output, which is empty, is read.
    let mut output = [0; 64];
    loop {
        match pass.read(&mut output) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // After a million threads the kernel asks for another call.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
