//! The reader itself: carries out orders, one pass after the other, until strata has ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use strata_sandbox::capabilities;

use super::iterator::{goes_over_targets, link, read_threads};
use super::{Cost, Order, Report, Target};
use crate::processor_time::own_time;
use crate::random::Random;

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
    keep_only_what_reading_needs();
    // SAFETY: this process owns its standard input, a socket, and uses it only here.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let program = io::stdout();
    let walker = Walker {
        program: program.as_fd(),
        all: link(program.as_fd(), None)?,
        has_targets: goes_over_targets(program.as_fd()),
        links: HashMap::new(),
    };
    serve(socket, walker)
}

/// Carries out orders.
fn serve(mut socket: UnixStream, mut walker: Walker<'_>) -> io::Result<()> {
    /// Reports of repeated passes are this far apart.
    const REPORTS: Duration = Duration::from_millis(200);
    let mut random = Random::new();
    let (mut number, mut order) = (0, Order::default());
    let mut done = Cost::default();
    let mut reported = Instant::now();
    // Of the last pass over targets, and what the pause after it is multiplied by: drawn once, because
    // drawn again with each order the pauses would be shorter.
    let (mut began, mut last_cost, mut factor) = (Instant::now(), Duration::ZERO, 1.0);
    let mut used = own_time();
    loop {
        let until = match &order {
            Order { over_all: true, .. } => Some(Instant::now()),
            Order { repeated: None, .. } => None,
            Order { repeated: Some((_, pace)), .. } => {
                Some(began + pace.pause(last_cost).mul_f64(factor))
            }
        };
        if has_order(&socket, until)? {
            let Some(next) = Order::read(&mut socket)? else { return Ok(()) };
            if done.passes > 0 {
                report(&mut socket, number, &mut done)?;
            }
            (number, order) = next;
            continue;
        }
        let now = Instant::now();
        let is_over_all = std::mem::take(&mut order.over_all);
        let refused = match &order.repeated {
            _ if is_over_all => {
                read_threads(walker.all.as_fd())?;
                0
            }
            Some((targets, _)) => walker.walk(targets),
            None => 0,
        };
        let before = std::mem::replace(&mut used, own_time());
        let cost = used.saturating_sub(before);
        done += Cost { nanos: cost.as_nanos() as u64, passes: 1, refused };
        if !is_over_all {
            // What one over all threads costs is the engine's to make up for.
            (began, last_cost, factor) = (now, cost, random.factor());
        }
        if is_over_all || now.duration_since(reported) >= REPORTS {
            report(&mut socket, number, &mut done)?;
            reported = now;
        }
    }
}

fn report(socket: &mut UnixStream, order: u32, done: &mut Cost) -> io::Result<()> {
    socket.write_all(&Report { order, cost: std::mem::take(done) }.bytes())
}

/// Waits for an order: false at this time, or never without one.
fn has_order(socket: &UnixStream, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The program, and its links.
struct Walker<'a> {
    program: BorrowedFd<'a>,
    all: OwnedFd,
    /// Otherwise passes go over all threads alone.
    has_targets: bool,
    /// Of the targets of the last pass.
    links: HashMap<Target, OwnedFd>,
}

impl Walker<'_> {
    /// Returns how many could not be walked at all.
    fn walk(&mut self, targets: &[Target]) -> u32 {
        if !self.has_targets {
            return targets.len() as u32;
        }
        self.links.retain(|target, _| targets.contains(target));
        for target in targets {
            // One that is gone has no threads. One that cannot be walked now is with the next pass over
            // all threads.
            let link = match self.links.entry(*target) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match link(self.program, Some(*target)) {
                    Ok(link) => place.insert(link),
                    Err(_) => continue,
                },
            };
            _ = read_threads(link.as_fd());
        }
        0
    }
}

/// What root executes has all of its capabilities again: this takes CAP_BPF, for each run of the
/// iterator, or CAP_SYS_ADMIN on behalf of it. Best effort: without it a pass fails, and says so.
fn keep_only_what_reading_needs() {
    let _ = capabilities::keep_only(|held| match held.contains(CapabilitySet::BPF) {
        true => CapabilitySet::BPF,
        false => CapabilitySet::SYS_ADMIN,
    });
    let _ = rustix::thread::set_no_new_privs(true);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::kernel::thread_reader::{Pace, REPORT};

    #[test]
    fn passes_are_repeated_until_another_order_comes() -> anyhow::Result<()> {
        // None of its links can be made: a pass goes over no thread.
        let program = std::fs::File::open("/dev/null")?;
        let (ours, theirs) = UnixStream::pair()?;
        let serving = std::thread::spawn(move || {
            let walker = Walker {
                program: program.as_fd(),
                all: program.try_clone()?.into(),
                has_targets: true,
                links: HashMap::new(),
            };
            serve(theirs, walker)
        });
        let reports = |count: usize| {
            let mut reports = Vec::new();
            while reports.len() < count {
                let mut bytes = [0; REPORT];
                (&ours).read_exact(&mut bytes)?;
                reports.push(Report::of(&bytes));
            }
            io::Result::Ok(reports)
        };
        let pace = Pace { interval: Duration::from_millis(4), one_in: 114, ..Pace::default() };
        let order = Order { over_all: false, repeated: Some((vec![Target::Thread(1)], pace)) };
        (&ours).write_all(&order.bytes(1))?;
        for Report { order, cost } in reports(2)? {
            assert!(order == 1 && cost.passes > 1 && cost.nanos > 0, "{cost:?}");
        }
        // What was done for an order is reported before the next is carried out.
        std::thread::sleep(Duration::from_millis(50));
        (&ours).write_all(&order.bytes(2))?;
        let orders: Vec<u32> = reports(2)?.iter().map(|report| report.order).collect();
        assert!(orders == [1, 2] || orders == [1, 1], "{orders:?}");
        (&ours).write_all(&Order::default().bytes(3))?;
        ours.set_nonblocking(true)?;
        let all_written = || {
            std::thread::sleep(Duration::from_millis(300));
            let mut bytes = Vec::new();
            let end = (&ours).read_to_end(&mut bytes);
            assert!(end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
            bytes
        };
        all_written();
        assert!(all_written().is_empty());
        drop(ours);
        serving.join().expect("no panic")?;
        Ok(())
    }
}
