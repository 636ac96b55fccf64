//! Opens perf events: of a CPU, and at an address of a process's code.
//!
//! The main process opens those of CPUs itself where the kernel takes CAP_PERFMON for it, and the
//! [`broker`](super::broker) what asks for CAP_SYS_ADMIN.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;

// Bits of `perf_event_attr`'s flag word.
const ATTR_DISABLED: u64 = 1;
const ATTR_MMAP: u64 = 1 << 8;
const ATTR_COMM: u64 = 1 << 9;
const ATTR_FREQ: u64 = 1 << 10;
const ATTR_TASK: u64 = 1 << 13;
const ATTR_WATERMARK: u64 = 1 << 14;
const ATTR_SAMPLE_ID_ALL: u64 = 1 << 18;
const ATTR_MMAP2: u64 = 1 << 23;
const ATTR_COMM_EXEC: u64 = 1 << 24;
const ATTR_USE_CLOCKID: u64 = 1 << 25;

/// `_IO('$', 0)`, `_IOW('$', 8, u32)` (include/uapi/linux/perf_event.h).
pub(super) const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
pub(super) const PERF_EVENT_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;

/// `struct perf_event_attr`, the first 112 bytes of it (PERF_ATTR_SIZE_VER5).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

impl Attributes {
    fn open(mut self, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
        self.size = size_of::<Self>() as u32;
        // SAFETY: a valid attribute block that states its own length; the result is checked.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const self,
                pid,
                cpu,
                -1i32,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner; descriptors fit 32 bits.
        Ok(unsafe { OwnedFd::from_raw_fd(event as i32) })
    }
}

/// An event of one CPU, disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuEvent {
    /// A timer, so many times a second.
    Clock { frequency: u64 },
    /// MMAP2, COMM, FORK and EXIT of all processes, with the monotonic clock. Its reader is woken
    /// at so many unread bytes.
    Processes { wakeup_bytes: u32 },
}

impl CpuEvent {
    pub(super) fn open(self, cpu: u32) -> io::Result<OwnedFd> {
        let attributes = match self {
            Self::Clock { frequency } => Attributes {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_CPU_CLOCK,
                period: frequency,
                flags: ATTR_DISABLED | ATTR_FREQ,
                ..Attributes::default()
            },
            Self::Processes { wakeup_bytes } => Attributes {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_DUMMY,
                sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
                flags: ATTR_DISABLED
                    | ATTR_MMAP
                    | ATTR_MMAP2
                    | ATTR_COMM
                    | ATTR_COMM_EXEC
                    | ATTR_TASK
                    | ATTR_WATERMARK
                    | ATTR_SAMPLE_ID_ALL
                    | ATTR_USE_CLOCKID,
                wakeup_watermark: wakeup_bytes,
                clockid: libc::CLOCK_MONOTONIC,
                ..Attributes::default()
            },
        };
        attributes.open(-1, i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?)
    }
}

/// A uprobe of one process, of the PMU with this number: needs CAP_SYS_ADMIN
/// (`perf_uprobe_event_init` in kernel/events/core.c, seen on 6.1 and 6.18).
pub(super) fn open_uprobe(pmu: u32, pid: u32, file: &CStr, offset: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: pmu,
        config1: file.as_ptr() as u64,
        config2: offset,
        ..Attributes::default()
    };
    attributes.open(i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?, -1)
}

/// The event runs the program from now on, until its last descriptor is closed.
pub(super) fn attach(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a plain ioctl on the event; the result is checked.
    let set =
        unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    enable(event)
}

pub(super) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an ioctl without argument; the result is checked.
    match unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether opening any event takes CAP_SYS_ADMIN. Debian's, Ubuntu's and Android's kernels know
/// levels from 3 on, at which CAP_PERFMON does not do (seen on Debian's 6.1).
pub fn needs_administration() -> bool {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    level.is_ok_and(|level| level.trim().parse::<i32>().is_ok_and(|level| level >= 3))
}
