//! The executable that the tests' services start: opener and worker as in strata, and jobs that
//! only a test wants: to hang, crash, use up memory, or violate the protocol.

use std::process::ExitCode;

use strata_sandbox::{
    JobError, Lane, StandardJobs, TargetFile, WorkerJobs, run_opener, run_worker,
};

struct TestJobs;

impl WorkerJobs for TestJobs {
    fn run(&self, kind: u8, body: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError> {
        match kind {
            200 => loop {
                std::hint::spin_loop();
            },
            201 => std::process::abort(),
            202 => panic!("a fault of the parser"),
            203 => {
                let mut memory: Vec<Vec<u8>> = Vec::new();
                loop {
                    memory.push(vec![1; 64 << 20]);
                }
            }
            // A forbidden call.
            204 => Ok(std::fs::read("/etc/passwd").map(|_| b"read".to_vec()).unwrap_or_default()),
            // A large answer, of as many MiB as the body asks for.
            205 => Ok(vec![7; usize::from(body.first().copied().unwrap_or(0)) << 20]),
            // Memory that stays, as many MiB as the body asks for.
            213 => {
                vec![7_u8; usize::from(body.first().copied().unwrap_or(0)) << 20].leak();
                Ok(Vec::new())
            }
            // Its own status, as the kernel sees it, cannot be read from inside; the pid can.
            206 => Ok(std::process::id().to_le_bytes().to_vec()),
            207 => Ok(body.to_vec()),
            // A slow file: a second and a half of work.
            208 => {
                let start = std::time::Instant::now();
                while start.elapsed().as_millis() < 1500 {
                    std::hint::spin_loop();
                }
                Ok(Vec::new())
            }
            // SAFETY: the worker is single-threaded and about to die of it.
            209 => unsafe {
                libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
                Ok(b"made a socket".to_vec())
            },
            // SAFETY: plain system calls on memory of our own.
            210 => unsafe {
                let executable = libc::PROT_READ | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), 4096, executable, flags, -1, 0);
                Ok(b"mapped code".to_vec())
            },
            // SAFETY: signal 0 only asks whether the process is there.
            211 => unsafe {
                libc::kill(1, 0);
                Ok(b"signalled".to_vec())
            },
            // SAFETY: duplicates nothing, only writes to the daemon beside the worker's own code.
            212 => unsafe {
                for descriptor in 0..16 {
                    let text = b"nonsense of a worker that was taken over";
                    let mut part =
                        libc::iovec { iov_base: text.as_ptr() as *mut _, iov_len: text.len() };
                    let mut message: libc::msghdr = std::mem::zeroed();
                    message.msg_iov = &mut part;
                    message.msg_iovlen = 1;
                    libc::sendmsg(descriptor, &message, libc::MSG_NOSIGNAL);
                }
                Ok(Vec::new())
            },
            kind => StandardJobs.run(kind, body, files),
        }
    }
}

/// A worker that was taken over: it answers everything with well-packed nonsense.
struct Liar;

impl WorkerJobs for Liar {
    fn run(&self, kind: u8, _: &[u8], files: &[TargetFile]) -> Result<Vec<u8>, JobError> {
        let seed = files.first().map_or(0, TargetFile::size);
        Ok(match seed % 4 {
            0 => Vec::new(),
            1 => vec![0xff; 3000],
            // Counts that claim far more than follows.
            2 => [[kind; 4], [0xff; 4], [0; 4], [0xff; 4]].concat(),
            _ => vec![1; 200_000],
        })
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let outcome = match mode.to_str() {
        Some("internal-opener") => {
            let lane =
                arguments.next().and_then(|lane| Lane::from_argument(lane.as_encoded_bytes()));
            lane.map_or(Err(std::io::ErrorKind::InvalidInput.into()), run_opener)
        }
        Some("internal-worker") => run_worker(&TestJobs),
        Some("internal-liar") => run_worker(&Liar),
        Some("internal-broken") => Ok(()),
        Some("internal-sleep") => sleep_in_root(arguments.next().unwrap_or_default().as_ref()),
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn sleep_in_root(root: &std::path::Path) -> std::io::Result<()> {
    std::os::unix::fs::chroot(root)?;
    std::env::set_current_dir("/")?;
    std::thread::sleep(std::time::Duration::from_secs(1000));
    Ok(())
}
