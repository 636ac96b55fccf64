//! Creates the shared files, inside the profiled process.
//!
//! A file gets its size and its header before it is sealed, and is sealed before it is mapped: a
//! reader that finds the mapping finds a complete file of fixed size. Memory is taken from the
//! kernel before it is written to ([`Mapping::populate`]), so that a lack of memory is an error
//! here and not a later SIGBUS (strict overcommit: mm/shmem.c, `shmem_inode_acct_blocks`).
//!
//! A forked child must not write into its parent's memory. The mappings are not inherited
//! (`MADV_DONTFORK`), which also keeps them out of the child's `/proc/PID/maps`; and before every
//! write [`ForkGuard`] is asked, a word in a page that is zero in a child (`MADV_WIPEONFORK`, Linux
//! 4.14), so that a child does not touch what it does not have. `vfork` shares the address space
//! until `exec`: there the child is its parent.
//!
//! Invariant: nothing here raises a signal, and what fails is undone.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::Region;

/// `memfd_create(2)`; the flag is from Linux 6.3, where `vm.memfd_noexec` may demand it.
const MFD_NOEXEC_SEAL: u32 = 8;

/// `madvise(2)`, from Linux 5.14: faults pages in for writing, and fails instead of signalling.
const MADV_POPULATE_WRITE: i32 = 23;

/// `madvise(2)`: frees the memory of a part of a file, which reads as zero from then on.
const MADV_REMOVE: i32 = 9;

/// Why a shared file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("{call} failed: {source}")]
    Call { call: &'static str, source: io::Error },
    #[error("the process may not write files of {needed} bytes (RLIMIT_FSIZE is {limit})")]
    FileSizeLimit { needed: u64, limit: u64 },
}

fn failed(call: &'static str) -> CreateError {
    CreateError::Call { call, source: io::Error::last_os_error() }
}

/// Makes a sealed file that starts with `header`.
pub fn create(name: &CStr, size: usize, header: &[u8]) -> Result<OwnedFd, CreateError> {
    check_file_size_limit(size as u64)?;
    let file = File::from(memfd(name)?);
    // SAFETY: the descriptor is open; no memory is involved.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) } != 0 {
        return Err(failed("ftruncate"));
    }
    file.write_all_at(header, 0).map_err(|source| CreateError::Call { call: "pwrite", source })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open; no memory is involved.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(failed("fcntl(F_ADD_SEALS)"));
    }
    Ok(file.into())
}

/// Beyond the limit, `ftruncate` kills with SIGXFSZ (fs/attr.c, `inode_newsize_ok`).
fn check_file_size_limit(needed: u64) -> Result<(), CreateError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(failed("getrlimit"));
    }
    if limit.rlim_cur < needed {
        return Err(CreateError::FileSizeLimit { needed, limit: limit.rlim_cur });
    }
    Ok(())
}

/// glibc 2.17 has no wrapper.
fn memfd(name: &CStr) -> Result<OwnedFd, CreateError> {
    let plain = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    for flags in [plain | MFD_NOEXEC_SEAL, plain] {
        // SAFETY: `name` is a C string that outlives the call.
        let result = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
        if let Ok(descriptor) = i32::try_from(result)
            && descriptor >= 0
        {
            // SAFETY: a descriptor that the kernel just made, and no other owner exists.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(failed("memfd_create"))
}

/// A shared mapping of a whole file.
///
/// Unmapped when dropped, but not in a forked child, where something else may lie in its place.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    guard: Arc<ForkGuard>,
}

impl Mapping {
    pub fn new(file: &OwnedFd, size: usize, guard: &Arc<ForkGuard>) -> Result<Self, CreateError> {
        let start = map(size, libc::MAP_SHARED, file.as_raw_fd())?;
        // SAFETY: just mapped, page-aligned, and unmapped only when this value is dropped.
        let region = unsafe { Region::new(start, size) };
        let mapping = Self { region, guard: Arc::clone(guard) };
        mapping.advise(libc::MADV_DONTFORK)?;
        // A core dump of the app need not have it, and a huge page would waste memory. Kernels
        // without transparent huge pages refuse the second.
        mapping.advise(libc::MADV_DONTDUMP)?;
        _ = mapping.advise(libc::MADV_NOHUGEPAGE);
        Ok(mapping)
    }

    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Takes memory for a part of the file; `offset` and `length` are multiples of a page. Kernels
    /// before 5.14 cannot, and take it when it is written to.
    pub fn populate(&self, offset: usize, length: usize) -> Result<(), CreateError> {
        for _ in 0..16 {
            match self.advise_part(MADV_POPULATE_WRITE, offset, length) {
                Err(CreateError::Call { source, .. }) => match source.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::EINVAL) => return Ok(()),
                    _ => return Err(CreateError::Call { call: "madvise", source }),
                },
                done => return done,
            }
        }
        Err(failed("madvise"))
    }

    /// Gives the memory of a part of the file back; `offset` and `length` are multiples of a page.
    /// The kernel refuses that for memory that the process has locked.
    pub fn free(&self, offset: usize, length: usize) -> Result<(), CreateError> {
        self.advise_part(MADV_REMOVE, offset, length)
    }

    fn advise(&self, advice: i32) -> Result<(), CreateError> {
        self.advise_part(advice, 0, self.region.length())
    }

    fn advise_part(&self, advice: i32, offset: usize, length: usize) -> Result<(), CreateError> {
        if offset.checked_add(length).is_none_or(|end| end > self.region.length()) {
            return Ok(());
        }
        // SAFETY: a part of the mapping by the check above; of the kinds of advice used, only that of
        // `free` changes its content, of which there are no references.
        let result = unsafe {
            libc::madvise(self.region.start().as_ptr().add(offset).cast(), length, advice)
        };
        if result != 0 { Err(failed("madvise")) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.guard.is_creator() {
            // SAFETY: mapped by `new` in this process; no reference outlives the mapping.
            unsafe { libc::munmap(self.region.start().as_ptr().cast(), self.region.length()) };
        }
    }
}

fn map(size: usize, flags: i32, descriptor: i32) -> Result<NonNull<u8>, CreateError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel finds room; nothing existing is replaced.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, descriptor, 0) };
    if start == libc::MAP_FAILED {
        return Err(failed("mmap"));
    }
    NonNull::new(start.cast()).ok_or_else(|| failed("mmap"))
}

/// Knows whether this is still the process that made it.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<u8>,
}

const GUARD_PAGE: usize = 4096;

// SAFETY: the page holds one atomic word that is not written after `new`.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    pub fn new() -> Result<Self, CreateError> {
        let page = map(GUARD_PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let guard = Self { page };
        // SAFETY: exactly the page just mapped.
        if unsafe { libc::madvise(page.as_ptr().cast(), GUARD_PAGE, libc::MADV_WIPEONFORK) } != 0 {
            return Err(failed("madvise(MADV_WIPEONFORK)"));
        }
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: page-aligned, mapped as long as the guard exists, only used as this atomic.
        unsafe { &*self.page.as_ptr().cast::<AtomicU64>() }
    }

    #[must_use]
    pub fn is_creator(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, not used afterwards.
        unsafe { libc::munmap(self.page.as_ptr().cast(), GUARD_PAGE) };
    }
}

/// 16 random bytes; without the kernel's help, bytes that differ between any two calls.
#[must_use]
pub fn random_id() -> [u8; 16] {
    let mut id = [0_u8; 16];
    // SAFETY: `id` is valid for writing its 16 bytes.
    let read = unsafe {
        libc::syscall(libc::SYS_getrandom, id.as_mut_ptr(), id.len(), libc::GRND_NONBLOCK)
    };
    if read != id.len() as libc::c_long {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id());
        let halves = [monotonic_time().to_le_bytes(), call.to_le_bytes()];
        for (to, from) in id.iter_mut().zip(halves.as_flattened()) {
            *to = *from;
        }
    }
    id
}

/// Nanoseconds of the monotonic clock: the time of records and events.
#[must_use]
pub fn monotonic_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
