//! How long a daemon's health probe takes, measured by a thread that waits for no CPU of its own: on
//! a busy machine a probe's turn comes late, which says nothing about the daemon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::daemon;

/// Asks `/healthz` again and again, until it is dropped or finished.
pub struct Prober {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<Duration>>>>,
}

impl Prober {
    pub fn start(address: SocketAddr, interval: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            go_before_others()?;
            let mut answers = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let asked = Instant::now();
                daemon::health_at(address).context("the daemon does not answer")?;
                answers.push(asked.elapsed());
                std::thread::sleep(interval);
            }
            Ok(answers)
        });
        Self { stop, thread: Some(thread) }
    }

    /// The time that each answer took, the shortest first. An error if there was one without.
    pub fn finish(mut self) -> Result<Vec<Duration>> {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().context("finished once")?;
        let mut answers = thread.join().map_err(|_| anyhow::anyhow!("the prober panicked"))??;
        answers.sort_unstable();
        Ok(answers)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// This thread alone: the lowest real-time priority goes before every program without one.
fn go_before_others() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the parameters are only read.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("real-time scheduling of the prober");
    }
    Ok(())
}
