//! The engine's side of the thread reader.
//!
//! Invariant: nothing here waits for the reader.

use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::{ARGUMENT, Order, REPORT, Report};

/// A running reader.
pub struct Reader {
    child: Child,
    socket: UnixStream,
}

impl Reader {
    pub fn start(program: BorrowedFd<'_>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // A process group of its own: a Ctrl-C on the terminal is for strata, which ends it.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(program.try_clone_to_owned()?))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child, socket: ours })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It goes over to this order after the pass that it is at.
    pub fn order(&mut self, number: u32, order: &Order) -> io::Result<()> {
        self.socket.write_all(&order.bytes(number))
    }

    /// What it has done.
    pub fn reports(&mut self) -> io::Result<Vec<Report>> {
        // Each is written at once, so they arrive whole.
        let mut bytes = [0; 32 * REPORT];
        let mut reports = Vec::new();
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    let why = "the process that reads threads has ended";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok(length) => {
                    let (all, _) = bytes.get(..length).unwrap_or_default().as_chunks::<REPORT>();
                    reports.extend(all.iter().map(Report::of));
                    if length < bytes.len() {
                        return Ok(reports);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(reports),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether it waits in the kernel, or was stopped.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('S' | 'D' | 'T' | 't'))
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

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::kernel::thread_reader::Cost;

    #[test]
    fn all_reports_are_taken_until_the_reader_has_ended() -> io::Result<()> {
        let (ours, mut theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut reader = Reader { child: Command::new("true").spawn()?, socket: ours };
        assert_eq!(reader.reports()?, []);
        let written: Vec<Report> =
            (0..70).map(|order| Report { order, cost: Cost::default() }).collect();
        for report in &written {
            theirs.write_all(&report.bytes())?;
        }
        assert_eq!(reader.reports()?, written);
        // A process that another test is starting may hold the socket for a moment, so dropping it ends nothing.
        theirs.shutdown(Shutdown::Both)?;
        let ended = reader.reports().map_err(|error| error.kind());
        assert_eq!(ended, Err(io::ErrorKind::UnexpectedEof));
        Ok(())
    }

    #[test]
    fn a_reader_that_is_of_no_use_leaves_no_process() -> io::Result<()> {
        // This executable has no such test, and ends by itself.
        let program = std::fs::File::open("/dev/null")?;
        let (mut ending, reader) = (Ending::default(), Reader::start(program.as_fd())?);
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
