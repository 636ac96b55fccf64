//! Files that look like shared memory from outside and are not, and processes that use theirs
//! against the reader. Each stays mapped under the name that strata looks for, where that is
//! possible.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

use strata_bridge_protocol::layout::{
    MAIN_NAME, MAIN_SIZE, MainHeader, SEGMENT_NAME, SEGMENT_SIZE, SegmentHeader,
};

use crate::obey;

const ALL: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const ID: [u8; 16] = [5; 16];

pub fn play(what: &str) {
    match what {
        "unsealed" => keep(memfd(MAIN_SIZE, 0, 0), MAIN_SIZE),
        "shrinkable" => keep(memfd(MAIN_SIZE, 0, libc::F_SEAL_GROW | libc::F_SEAL_SEAL), MAIN_SIZE),
        "growable" => keep(memfd(MAIN_SIZE, 0, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL), MAIN_SIZE),
        "more seals possible" => {
            keep(memfd(MAIN_SIZE, 0, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW), MAIN_SIZE);
        }
        "read-only" => keep(memfd(MAIN_SIZE, 0, ALL | libc::F_SEAL_FUTURE_WRITE), MAIN_SIZE),
        "short" => keep(memfd(4096, 0, ALL), 4096),
        "long" => keep(memfd(1 << 40, 0, ALL), 4096),
        "huge pages" => keep(memfd(MAIN_SIZE, libc::MFD_HUGETLB, ALL), MAIN_SIZE),
        "tmpfs file" => keep(tmpfs_file(), MAIN_SIZE),
        "plain file" => keep(plain_file(), MAIN_SIZE),
        "zeros" => keep(File::options().read(true).write(true).open("/dev/zero"), 4096),
        "newer" => with_header(MainHeader { version: 2, ..MainHeader::new(ID) }),
        "older" => with_header(MainHeader { version: 0, ..MainHeader::new(ID) }),
        "size lie" => with_header(MainHeader { size: 1 << 40, ..MainHeader::new(ID) }),
        "segment lie" => with_header(MainHeader { segment_size: 7, ..MainHeader::new(ID) }),
        "holes" => holes(),
        "lease" => lease(),
        "inode lock" => inode_lock(),
        other => panic!("no hostility {other:?}"),
    }
}

/// A memfd with the main file's header.
fn memfd(size: usize, flags: u32, seals: i32) -> io::Result<File> {
    named_memfd(MAIN_NAME, &MainHeader::new(ID).to_bytes(), size, flags, seals)
}

fn named_memfd(
    name: &CStr,
    header: &[u8],
    size: usize,
    flags: u32,
    seals: i32,
) -> io::Result<File> {
    // SAFETY: a C string that outlives the call.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just made, and no other owner exists.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.set_len(size as u64)?;
    // Huge pages cannot be written to.
    _ = file.write_all_at(header, 0);
    // SAFETY: the descriptor is open; no memory is involved.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

fn with_header(header: MainHeader) {
    keep(named_memfd(MAIN_NAME, &header.to_bytes(), MAIN_SIZE, 0, ALL), MAIN_SIZE);
}

/// A file in the host's tmpfs that has the right size and header.
fn tmpfs_file() -> io::Result<File> {
    let path = format!("/dev/shm/strata-abi-test-{}", std::process::id());
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.set_len(MAIN_SIZE as u64)?;
    file.write_all_at(&MainHeader::new(ID).to_bytes(), 0)?;
    Ok(file)
}

/// A file on whatever file system programs lie on.
fn plain_file() -> io::Result<File> {
    let path = std::env::current_exe()?.with_extension(format!("plain-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.set_len(MAIN_SIZE as u64)?;
    Ok(file)
}

fn map(file: &File, size: usize, protection: i32) -> io::Result<*mut u8> {
    // SAFETY: a new mapping where the kernel finds room.
    let start =
        unsafe { libc::mmap(null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}

/// Maps a file where it can be found, or returns the reason why not.
fn keep(file: io::Result<File>, size: usize) {
    let file = match file {
        Ok(file) => file,
        Err(error) => return println!("{error}"),
    };
    match map(&file, size, libc::PROT_READ) {
        Ok(_) => obey(|_| String::new()),
        Err(error) => println!("{error}"),
    }
}

fn whole() -> (File, File) {
    let main = memfd(MAIN_SIZE, 0, ALL).expect("memory");
    let header = SegmentHeader::new(ID, 0).to_bytes();
    let segment = named_memfd(SEGMENT_NAME, &header, SEGMENT_SIZE, 0, ALL).expect("memory");
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    map(&main, MAIN_SIZE, writable).expect("a mapping");
    map(&segment, SEGMENT_SIZE, writable).expect("a mapping");
    (main, segment)
}

/// Seals do not forbid holes: on command, everything is punched out and filled with random bytes,
/// again and again.
fn holes() {
    let files = whole();
    let mut files = Some(files);
    obey(|_| {
        let (main, segment) = files.take().expect("handed over once");
        std::thread::spawn(move || {
            let rubbish = vec![0x5a; 64 << 10];
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            for round in 0_u64.. {
                for (file, size) in [(&main, MAIN_SIZE), (&segment, SEGMENT_SIZE)] {
                    // SAFETY: the descriptor is open; no memory is involved.
                    unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, size as libc::off_t) };
                    _ = file.write_all_at(&rubbish, round % 20 * 4096);
                }
            }
        });
        "punching".to_owned()
    });
}

/// A lease on the main file: opening it blocks.
fn lease() {
    let file = memfd(MAIN_SIZE, 0, ALL).expect("memory");
    map(&file, MAIN_SIZE, libc::PROT_READ).expect("a mapping");
    // Opened anew: the kernel does not count the descriptor of `memfd_create` as one that writes.
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = File::options().read(true).write(true).open(again).expect("it can be opened");
    // SAFETY: a handler that the kernel knows; the signal that breaks the lease would end us.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // SAFETY: the descriptor is open; no memory is involved.
    let result =
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK as libc::c_int) };
    if result != 0 {
        return println!("no lease: {}", io::Error::last_os_error());
    }
    obey(|_| String::new());
}

/// `linux/userfaultfd.h`
mod userfaultfd {
    pub const API: u64 = 0xaa;
    pub const IOCTL_API: u64 = 0xc018_aa3f;
    pub const IOCTL_REGISTER: u64 = 0xc020_aa00;
    pub const REGISTER_MODE_MISSING: u64 = 1;
}

/// Holds the inode lock of its main file for ever: by a `write` to it from memory whose page never
/// comes.
fn inode_lock() {
    let (main, _segment) = whole();
    // SAFETY: no memory is involved.
    let handler = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if handler < 0 {
        return println!("no userfaultfd: {}", io::Error::last_os_error());
    }
    let handler = handler as i32;
    // SAFETY: a new mapping where the kernel finds room.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    let mut api = [userfaultfd::API, 0, 0];
    let mut register = [page as u64, 4096, userfaultfd::REGISTER_MODE_MISSING, 0];
    // SAFETY: the structures have the sizes that the numbers of the calls say.
    unsafe {
        assert_eq!(libc::ioctl(handler, userfaultfd::IOCTL_API as _, api.as_mut_ptr()), 0);
        assert_eq!(
            libc::ioctl(handler, userfaultfd::IOCTL_REGISTER as _, register.as_mut_ptr()),
            0
        );
    }
    let page = page as usize;
    let file = main.try_clone().expect("a descriptor");
    std::thread::spawn(move || {
        // SAFETY: the page is mapped; the kernel waits for it, and with it this thread.
        unsafe { libc::pwrite(file.as_raw_fd(), page as *const libc::c_void, 4096, 1 << 20) };
    });
    // Another write shows that the lock is held.
    let file = main.try_clone().expect("a descriptor");
    let (send, held) = std::sync::mpsc::channel();
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::thread::spawn(move || send.send(file.write_all_at(&[0], 1 << 20).is_ok()));
    if held.recv_timeout(std::time::Duration::from_millis(300)).is_ok() {
        return println!("the lock is not held");
    }
    obey(|_| String::new());
}
