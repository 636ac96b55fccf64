//! The process that reads the iterator over threads, which walks their stacks while it is read.
//!
//! Reading another process's memory may fault on a file whose server never answers, and then sleeps
//! where SIGKILL does not reach it. So it is done by a process of its own, started from this
//! executable, that holds two descriptors: the iterator, and a socket. One that hangs is left
//! behind.
//!
//! Invariant: nothing here waits for that process.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use libbpf_rs::libbpf_sys;

/// The first argument of this executable as a reader.
pub const ARGUMENT: &str = "internal-threads";

/// A link to the loaded iterator program.
pub struct Link(OwnedFd);

impl Link {
    pub fn of(program: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: plain numbers; no options.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_raw_fd(),
                0,
                libbpf_sys::BPF_TRACE_ITER,
                std::ptr::null(),
            )
        };
        owned(fd).map(Self)
    }
}

/// The result of a call of libbpf: a new descriptor, or a negated error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A running reader.
pub struct Reader {
    child: Child,
    socket: UnixStream,
}

impl Reader {
    pub fn start(link: &Link) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // A process group of its own: a Ctrl-C on the terminal is for strata, which ends it.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(link.0.try_clone()?))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to read the iterator once.
    pub fn begin(&mut self) -> io::Result<()> {
        self.socket.write_all(&[1])
    }

    /// The CPU time of the pass that it was asked for, in nanoseconds, once it is over.
    pub fn result(&mut self) -> io::Result<Option<u64>> {
        let mut cost = [0; 8];
        match self.socket.read(&mut cost) {
            Ok(8) => Ok(Some(u64::from_ne_bytes(cost))),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it waits in the kernel.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('S' | 'D'))
    }

    /// Does nothing to one that has ended, whose number may be another process's by now.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.try_wait();
    }
}

/// Readers that were killed and have not ended yet.
#[derive(Default)]
pub struct Ending(Vec<Reader>);

impl Ending {
    pub fn add(&mut self, mut reader: Reader) {
        reader.kill();
        self.0.push(reader);
    }

    /// Takes away those that have ended meanwhile.
    pub fn reap(&mut self) {
        self.0.retain_mut(|reader| !reader.has_ended());
    }
}

/// Runs as a reader, until strata has ended.
pub fn run() -> io::Result<()> {
    const FIRST_UNWANTED: libc::c_uint = 3;
    // SAFETY: at the start of a process that has opened nothing beyond its standard descriptors.
    // The signal is for when the thread that started it ends.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_UNWANTED, libc::c_uint::MAX, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"strata-threads".as_ptr());
    }
    // SAFETY: this process owns its standard input, a socket, and uses it only here.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let link = io::stdout();
    let mut order = [0; 1];
    while socket.read(&mut order)? != 0 {
        let before = cpu_time();
        // SAFETY: a plain number.
        let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_fd().as_raw_fd()) };
        let mut pass = std::fs::File::from(owned(fd)?);
        // The program runs while its output, which is empty, is read.
        let mut output = [0; 64];
        loop {
            match pass.read(&mut output) {
                Ok(0) => break,
                Ok(_) => {}
                // After a million threads the kernel asks for another call.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        socket.write_all(&cpu_time().saturating_sub(before).to_ne_bytes())?;
    }
    Ok(())
}

/// Nanoseconds of a CPU that this thread has used.
fn cpu_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_reader_that_is_of_no_use_leaves_no_process() -> io::Result<()> {
        // This executable has no such test, and ends by itself.
        let link = Link(std::fs::File::open("/dev/null")?.into());
        let (mut ending, reader) = (Ending::default(), Reader::start(&link)?);
        let process = format!("/proc/{}", reader.pid());
        ending.add(reader);
        let end = Instant::now() + Duration::from_secs(10);
        while !ending.0.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            ending.reap();
        }
        assert!(!Path::new(&process).exists());
        Ok(())
    }
}
