//! The files behind mappings, as the kernel names them.
//!
//! A mapping names its file by device and inode. That is enough to recognise the same file in
//! another process, which saves opening it again; which content it has is known only from its
//! identity after opening (`strata_sandbox::FileIdentity`). Where the two disagree (stacked file
//! systems show other numbers to `stat`), the file is opened for each process anew.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kernel::perf_record::MappedInode;

/// A file of [`MappedFiles`]. Numbers of dropped files may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// One file as mappings name it.
#[derive(Clone, Debug)]
pub struct MappedFile {
    pub inode: MappedInode,
    pub path: Arc<[u8]>,
}

#[derive(Default)]
pub struct MappedFiles {
    files: HashMap<FileId, MappedFile>,
    next: u32,
    /// By device and inode.
    shared: HashMap<(u32, u32, u64), FileId>,
    paths: HashMap<Arc<[u8]>, ()>,
}

impl MappedFiles {
    /// The file behind a mapping; a new one when it was not seen before.
    pub fn intern(&mut self, inode: MappedInode, path: &[u8]) -> FileId {
        let named = inode.inode != 0;
        if named
            && let Some(&known) = self.shared.get(&key_of(&inode))
            && self.files.get(&known).is_some_and(|file| is_same(&file.inode, &inode))
        {
            return known;
        }
        let path = match self.paths.get_key_value(path) {
            Some((path, ())) => path.clone(),
            None => {
                let path: Arc<[u8]> = path.into();
                self.paths.insert(path.clone(), ());
                path
            }
        };
        let mut id = FileId(self.next);
        while self.files.contains_key(&id) {
            id.0 = id.0.wrapping_add(1);
        }
        self.next = id.0.wrapping_add(1);
        self.files.insert(id, MappedFile { inode, path });
        if named {
            self.shared.insert(key_of(&inode), id);
        }
        id
    }

    pub fn get(&self, id: FileId) -> Option<&MappedFile> {
        self.files.get(&id)
    }

    /// From now on mappings of this inode are a new file: it changed, or its device and inode
    /// cannot be trusted to mean the same file in every process.
    pub fn forget(&mut self, id: FileId) {
        if let Some(file) = self.files.get(&id)
            && self.shared.get(&key_of(&file.inode)) == Some(&id)
        {
            self.shared.remove(&key_of(&file.inode));
        }
    }
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Drops files that nothing refers to any more.
    pub fn retain(&mut self, is_kept: impl Fn(FileId) -> bool) {
        self.files.retain(|id, _| is_kept(*id));
        let files = &self.files;
        self.shared.retain(|_, id| files.contains_key(id));
        self.paths.retain(|path, ()| Arc::strong_count(path) > 1);
    }
}

fn key_of(inode: &MappedInode) -> (u32, u32, u64) {
    (inode.major, inode.minor, inode.inode)
}

/// Whether two inodes of one number are the same. `/proc/PID/maps` has no generations.
fn is_same(known: &MappedInode, named: &MappedInode) -> bool {
    known.generation == named.generation || known.generation == 0 || named.generation == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_read_from_proc_is_the_one_of_its_events_and_a_reused_inode_is_not() {
        let mut files = MappedFiles::default();
        let of = |generation| MappedInode { major: 8, minor: 1, inode: 7, generation };
        let first = files.intern(of(5), b"/lib/x.so");
        assert_eq!(files.intern(of(0), b"/lib/x.so"), first);
        let second = files.intern(of(6), b"/lib/y.so");
        assert_ne!(second, first);
        assert_eq!(files.intern(of(6), b"/lib/y.so"), second);
        assert_eq!(files.intern(of(0), b"/lib/y.so"), second);
    }
}
