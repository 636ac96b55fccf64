//! The worker: a process that parses targets' files and can do nothing else.
//!
//! It takes one request at a time, so a crash is caused by the current file. A panic is contained
//! and answered. Invariant: no byte of a target's file is read before [`sandbox::enter`] succeeded.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::channel::{Channel, Envelope, MAX_MESSAGE, Wait};
use crate::jobs::{JobError, WorkerJobs};
use crate::protocol::{JobStatus, WorkerLimits, WorkerReply, WorkerRequest, kind};
use crate::sandbox;
use crate::target_file::TargetFile;

/// Bodies up to this size travel in the message, larger ones in the exchange file.
pub(crate) const MAX_INLINE: usize = MAX_MESSAGE - 64;
/// A request that a worker takes (addresses of one file).
const MAX_REQUEST: u64 = 64 << 20;
/// A worker that used this much processor time in all leaves, well before the kernel's limit.
const RETIRE_AFTER_SECONDS: i64 = 30;

/// How much more than by other jobs a file is read for a checksum: all of it.
const CHECKSUM_READS: u64 = 5;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Serves jobs on standard input until its other end is closed.
pub fn run_worker(jobs: &dyn WorkerJobs) -> io::Result<()> {
    let channel = Channel::from_socket(crate::child::enter(c"strata-worker")?);
    let mut buffer = vec![0; MAX_MESSAGE];
    let first = channel.receive(&mut buffer, true, Wait::Block)?;
    if first.length == 0 {
        return Ok(());
    }
    let limits = WorkerLimits::decode(buffer.get(..first.length).unwrap_or_default())
        .map_err(io::Error::other)?;
    let exchange = first.descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|message| *message.borrow_mut() = info.to_string());
    }));
    sandbox::enter(&limits)?;

    loop {
        let received = channel.receive(&mut buffer, true, Wait::Block)?;
        if received.length == 0 {
            return Ok(());
        }
        let message = buffer.get(..received.length).unwrap_or_default();
        let request = WorkerRequest::decode(message).map_err(io::Error::other)?;
        let body = match request.in_exchange {
            None => request.body.to_vec(),
            Some(length) => read_exchange(&exchange, length)?,
        };
        let factor = if request.kind == kind::FITS { CHECKSUM_READS } else { 1 };
        let budget = limits.read_bytes.saturating_mul(factor);
        let (status, mut answer) = serve(jobs, request.kind, &body, received.descriptors, budget);
        drop(body);
        let (status, in_exchange) = if answer.len() as u64 > limits.reply_bytes {
            answer.clear();
            (JobStatus::TooLarge, None)
        } else if answer.len() > MAX_INLINE {
            write_exchange(&exchange, &answer)?;
            let length = answer.len() as u64;
            answer = Vec::new();
            (status, Some(length))
        } else {
            (status, None)
        };
        give_memory_back();
        let retiring = used_up();
        let reply = WorkerReply { id: request.id, status, retiring, in_exchange, body: &answer };
        channel.send(&reply.encode(), &[], Wait::Block)?;
        if retiring {
            return Ok(());
        }
    }
}

/// One job. The files are closed before this returns: closing one may hang, and then it must be
/// this request that does not come back.
fn serve(
    jobs: &dyn WorkerJobs,
    kind: u8,
    body: &[u8],
    envelopes: Vec<OwnedFd>,
    budget: u64,
) -> (JobStatus, Vec<u8>) {
    let files: io::Result<Vec<TargetFile>> = envelopes
        .into_iter()
        .map(|socket| TargetFile::new(Envelope::from_socket(socket).open()?, budget))
        .collect();
    let files = match files {
        Ok(files) => files,
        Err(error) => return (JobStatus::ParseError, error.to_string().into_bytes()),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| jobs.run(kind, body, &files)));
    // What is read of a file that only grows, as those that JIT compilers write, is what it was.
    let is_as_it_was = |file: &TargetFile| match kind {
        kind::READ => file.is_unchanged() || file.has_grown(),
        _ => file.is_unchanged(),
    };
    if !files.iter().all(is_as_it_was) {
        return (JobStatus::Changed, Vec::new());
    }
    match outcome {
        Ok(Ok(answer)) => (JobStatus::Done, answer),
        Ok(Err(JobError::Parse(message))) => (JobStatus::ParseError, message.into_bytes()),
        Ok(Err(JobError::TooLarge)) => (JobStatus::TooLarge, Vec::new()),
        Err(_) => (JobStatus::Panicked, PANIC.with(RefCell::take).into_bytes()),
    }
}

/// Returns the allocator's free memory to the kernel: the daemon checks a worker's memory after
/// each answer.
fn give_memory_back() {
    // SAFETY: takes no pointers; allocations in use stay where they are.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

fn used_up() -> bool {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for the call, and the struct is plain data.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_utime.tv_sec.saturating_add(usage.ru_stime.tv_sec) > RETIRE_AFTER_SECONDS
}

fn read_exchange(exchange: &OwnedFd, length: u64) -> io::Result<Vec<u8>> {
    if length > MAX_REQUEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(exchange, rest, done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => done += length,
        }
    }
    Ok(bytes)
}

fn write_exchange(exchange: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    rustix::fs::ftruncate(exchange, 0)?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        done += rustix::io::pwrite(exchange, rest, done as u64)?;
    }
    Ok(())
}
