//! The host's name.
//!
//! The kernel has a name for each UTS namespace, and returns that of the caller's: in a container
//! the container's. With the host's PID namespace strata sees the kernel's threads, and they are in
//! the host's UTS namespace. (So is process 1, but its namespaces may be closed even to root.)

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

/// Read once, at the first call.
pub fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| of_the_kernel().or_else(|| own().ok()).unwrap_or_default())
}

/// In the reader's namespace.
fn own() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned())
}

/// The name that the kernel's threads have, if their namespace is another and strata may enter it.
fn of_the_kernel() -> Option<String> {
    // The parent of all kernel threads; in another PID namespace it may be any process.
    if fs::read("/proc/2/comm").ok()? != b"kthreadd\n" {
        return None;
    }
    let namespace = Path::new("/proc/2/ns/uts");
    if fs::read_link(namespace).ok()? == fs::read_link("/proc/self/ns/uts").ok()? {
        return None;
    }
    within(namespace).ok().filter(|name| !name.is_empty())
}

/// The name in another namespace. It is entered by a thread that ends then: the others stay.
fn within(namespace: &Path) -> io::Result<String> {
    let namespace = File::open(namespace)?;
    let reading = thread::Builder::new().name("host-name".into()).spawn(move || {
        // SAFETY: the file is open; what changes is this thread's namespace alone.
        match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUTS) } {
            0 => own(),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    reading.join().unwrap_or_else(|_| Err(io::Error::other("the thread that reads it has died")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_host_has_a_name() {
        assert!(!name().is_empty());
        assert_eq!(name(), name().trim());
    }

    /// Needs CAP_SYS_ADMIN, as strata does.
    #[test]
    fn the_name_in_another_namespace_is_read_and_the_own_one_stays() {
        let before = own().expect("the kernel has one");
        let (sender, ready) = mpsc::channel();
        let (done, wait) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            let name = "another-host";
            // SAFETY: the namespace is this thread's own, and the length passed is the name's.
            let made = unsafe {
                libc::unshare(libc::CLONE_NEWUTS) == 0
                    && libc::sethostname(name.as_ptr().cast(), name.len()) == 0
            };
            // SAFETY: takes nothing, cannot fail.
            let thread = unsafe { libc::gettid() };
            sender.send((made, thread)).expect("the caller waits");
            let _ = wait.recv();
        });
        let (made, thread) = ready.recv().expect("it tells");
        assert!(made, "needs root: it may make a namespace");
        let namespace = format!("/proc/self/task/{thread}/ns/uts");
        let found = within(Path::new(&namespace)).expect("it may be entered");
        assert_eq!(found, "another-host");
        assert_eq!(own().expect("the kernel has one"), before);
        drop(done);
        other.join().expect("it ends");
    }
}
