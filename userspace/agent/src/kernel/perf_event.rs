//! Opens perf events: of a CPU, and at an address of a process's code.
//!
//! The main process opens those of CPUs itself where the kernel takes CAP_PERFMON for it, and the
//! [`broker`](super::broker) what asks for CAP_SYS_ADMIN.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The file with the type number of the uprobe PMU.
pub(crate) const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

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

/// `_IO('$', 0)`, `_IO('$', 1)`, `_IOW('$', 4, u64)`, `_IOW('$', 8, u32)`
/// (include/uapi/linux/perf_event.h).
pub(super) const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;
const PERF_EVENT_IOC_PERIOD: libc::Ioctl = 0x4008_2404;
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

/// Whether this process may have probes in others; none is made. An event without a file is refused last
/// of all, as invalid (kernel/events/core.c, `perf_uprobe_event_init`).
pub fn try_probes() -> io::Result<()> {
    let kind = std::fs::read_to_string(UPROBE_PMU)?;
    let kind = kind.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    let attributes = Attributes { kind, flags: ATTR_DISABLED, ..Attributes::default() };
    // Of this very process, on any CPU.
    match attributes.open(0, -1) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

/// An event of one CPU, disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuEvent {
    /// A timer, so many times a second.
    Clock { frequency: u64 },
    /// MMAP2, COMM (if names are wanted), FORK and EXIT of all processes, with the monotonic clock.
    /// Its reader is woken at so many unread bytes.
    Processes { wakeup_bytes: u32, has_names: bool },
}

impl CpuEvent {
    pub(super) fn open(self, cpu: u32) -> io::Result<OwnedFd> {
        let attributes = match self {
            Self::Clock { frequency } => Attributes {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_CPU_CLOCK,
                // Refused above kernel.perf_event_max_sample_rate; a period would be throttled instead,
                // and samples be lost that nothing counts.
                period: frequency,
                flags: ATTR_DISABLED | ATTR_FREQ,
                ..Attributes::default()
            },
            Self::Processes { wakeup_bytes, has_names } => Attributes {
                kind: PERF_TYPE_SOFTWARE,
                config: PERF_COUNT_SW_DUMMY,
                sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
                flags: ATTR_DISABLED
                    | ATTR_MMAP
                    | ATTR_MMAP2
                    | if has_names { ATTR_COMM | ATTR_COMM_EXEC } else { 0 }
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

/// Of a clock, in nanoseconds. The kernel makes a period of a clock's frequency when it is opened, and
/// only then (`perf_swevent_init_hrtimer` in kernel/events/core.c).
pub fn period(frequency: u64) -> u64 {
    1_000_000_000 / frequency.max(1)
}

/// A clock ticks so many times a second from now on.
pub(super) fn set_frequency(clock: BorrowedFd<'_>, frequency: u64) -> io::Result<()> {
    let period = period(frequency);
    // SAFETY: an ioctl that reads eight bytes, which live through the call; the result is checked.
    match unsafe { libc::ioctl(clock.as_raw_fd(), PERF_EVENT_IOC_PERIOD, &raw const period) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
    switch(event, PERF_EVENT_IOC_ENABLE)
}

/// The event stays open, and keeps its program.
pub(super) fn disable(event: BorrowedFd<'_>) -> io::Result<()> {
    switch(event, PERF_EVENT_IOC_DISABLE)
}

fn switch(event: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<()> {
    // SAFETY: an ioctl without argument; the result is checked.
    match unsafe { libc::ioctl(event.as_raw_fd(), request, 0) } {
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    const PAGE: usize = 4096;
    const PAGES: usize = 1 + 16;
    /// Of a record: a header, and a thread.
    const RECORD: u64 = 16;
    /// `data_head` in `struct perf_event_mmap_page`.
    const HEAD: usize = 1024;

    /// The records of a clock.
    struct Ticks(*mut libc::c_void);

    impl Ticks {
        fn of(clock: BorrowedFd<'_>) -> Self {
            let (length, protection) = (PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE);
            let (flags, fd) = (libc::MAP_SHARED, clock.as_raw_fd());
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
            assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            Self(at)
        }

        fn count(&self) -> u64 {
            // SAFETY: aligned, and mapped as long as this.
            let head = unsafe { &*self.0.cast::<u8>().add(HEAD).cast::<AtomicU64>() };
            head.load(Ordering::Acquire) / RECORD
        }

        /// In so many milliseconds or a little more, by the time that they took.
        fn per_second(&self, millis: u64) -> f64 {
            let (before, began) = (self.count(), Instant::now());
            std::thread::sleep(Duration::from_millis(millis));
            (self.count() - before) as f64 / began.elapsed().as_secs_f64()
        }
    }

    impl Drop for Ticks {
        fn drop(&mut self) {
            // SAFETY: what was mapped, which is used no more.
            unsafe { libc::munmap(self.0, PAGES * PAGE) };
        }
    }

    /// Needs root, as strata does.
    #[test]
    fn an_open_clock_is_stopped_and_goes_on_at_another_frequency() -> io::Result<()> {
        let clock = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_CPU_CLOCK,
            period: 100,
            sample_type: PERF_SAMPLE_TID,
            flags: ATTR_DISABLED | ATTR_FREQ,
            ..Attributes::default()
        };
        let clock = clock.open(-1, 0)?;
        let ticks = Ticks::of(clock.as_fd());
        enable(clock.as_fd())?;
        let slow = ticks.per_second(300);
        disable(clock.as_fd())?;
        let none = ticks.per_second(100);
        set_frequency(clock.as_fd(), 1_000)?;
        enable(clock.as_fd())?;
        let fast = ticks.per_second(300);
        set_frequency(clock.as_fd(), 100)?;
        let slow_again = ticks.per_second(300);
        println!("{slow:.0}, {none:.0}, {fast:.0} and {slow_again:.0} ticks a second");
        // However late this process is, the clock is not: ten times as often is at least four times.
        assert!(slow > 0.0 && slow_again > 0.0 && none == 0.0);
        assert!(fast > 4.0 * slow && fast > 4.0 * slow_again && fast < 2_000.0);
        Ok(())
    }
}
