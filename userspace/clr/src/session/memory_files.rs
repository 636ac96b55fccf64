//! The memory files that strata's library has mapped in a process, opened by their mappings.
//!
//! A file is found by its name in `/proc/PID/maps`, and any process can give a mapping such a name.
//! So it is opened only when it lies on the device of all memfds, where the kernel alone answers;
//! and read only after its size, seals and header were checked
//! ([`strata_bridge_protocol::reader::file`]).

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use strata_bridge_protocol::reader::file;

use crate::mappings::{Mappings, SharedKind, SharedMapping};
use crate::target::Target;

/// More main files of one process are not looked at.
const MAX_MAINS: usize = 8;

/// The device of memfds, major and minor as in `/proc/PID/maps`.
fn memfd_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let device = file::memfd_device().ok()?;
        Some((libc::major(device), libc::minor(device)))
    })
}

/// Opens what a process has mapped at exactly this range.
pub fn open(target: &Target, mapping: &SharedMapping) -> Result<File, file::Refused> {
    if Some(mapping.device) != memfd_device() {
        return Err(file::Refused::NotSealable);
    }
    // Through the process's own directory: the path cannot come to mean another process.
    file::open(&PathBuf::from(format!(
        "/proc/self/fd/{}/map_files/{:x}-{:x}",
        target.directory().as_raw_fd(),
        mapping.start,
        mapping.end
    )))
}

/// The main files among these mappings, each once.
pub fn mains(shared: &[SharedMapping]) -> Vec<SharedMapping> {
    distinct(shared, SharedKind::Main, &HashSet::new()).take(MAX_MAINS).collect()
}

/// Segments of the log that are mapped and were not looked at before.
pub fn segments(mappings: &Mappings, known: &HashSet<u64>) -> Vec<SharedMapping> {
    distinct(&mappings.shared, SharedKind::Log, known).collect()
}

/// A file that is mapped in several pieces is named by its first.
fn distinct(
    shared: &[SharedMapping],
    kind: SharedKind,
    known: &HashSet<u64>,
) -> impl Iterator<Item = SharedMapping> {
    let mut seen = known.clone();
    shared.iter().filter(move |one| one.kind == kind && seen.insert(one.inode)).copied()
}
