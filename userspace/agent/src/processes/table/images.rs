//! Images: the programs that processes have run, each with the file that it was started from and the
//! jitdump file that its JIT compiler writes.
//!
//! Invariant: an image stays while its process runs it, and after that while something refers to it
//! ([`ProcessTable::retain_images`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Backing, ProcessTable};
use crate::image_id::ImageId;
use crate::processes::mapped::{FileId, MappedFiles};

#[derive(Clone, Debug)]
pub struct Image {
    pub pid: u32,
    pub comm: Arc<str>,
    /// The file it was started from: the first one it mapped.
    pub program: Option<FileId>,
    /// When it began, by the clock of events; 0 if it was there before them.
    pub started: u64,
    /// When the process became another image, by the clock of events: readings of `/proc` since
    /// then are of that one.
    pub replaced: Option<u64>,
}

/// The file that a process was started from.
#[derive(Clone, Copy, Debug)]
pub struct MappedProgram<'a> {
    pub file: FileId,
    pub path: &'a [u8],
}

impl MappedProgram<'_> {
    /// The name of a file inside the program, when it is known by a path: by one below the
    /// program's folder, or by its own.
    pub fn name_inside<'a>(&self, path: &'a str) -> Option<&'a str> {
        if !path.starts_with('/') {
            return Some(path);
        }
        let folder = self.path.iter().rposition(|byte| *byte == b'/')?;
        let folder = std::str::from_utf8(self.path.get(..=folder)?).ok()?;
        path.strip_prefix(folder)
    }
}

/// All images that are kept.
#[derive(Default)]
pub(super) struct Images {
    by_id: HashMap<ImageId, Image>,
    next: u32,
    /// Images that map a jitdump file: JIT compilers map it to make its path known.
    jitdumps: HashMap<ImageId, FileId>,
}

impl Images {
    pub(super) fn get(&self, id: ImageId) -> Option<&Image> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ImageId) -> Option<&mut Image> {
        self.by_id.get_mut(&id)
    }

    /// The files that images refer to.
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        let programs = self.by_id.values().filter_map(|image| image.program);
        programs.chain(self.jitdumps.values().copied())
    }

    pub(super) fn add(&mut self, pid: u32, comm: &str, started: u64) -> ImageId {
        let mut id = ImageId(self.next);
        while self.by_id.contains_key(&id) {
            id.0 = id.0.wrapping_add(1);
        }
        self.next = id.0.wrapping_add(1);
        let comm = comm.into();
        self.by_id.insert(id, Image { pid, comm, program: None, started, replaced: None });
        id
    }

    /// The process of an image maps this.
    pub(super) fn note_mapped(&mut self, image: ImageId, backing: Backing, files: &MappedFiles) {
        let Backing::File(id) = backing else { return };
        let Some(file) = files.get(id) else { return };
        if is_jitdump(&file.path) {
            self.jitdumps.insert(image, id);
        }
        // Exec maps the program first, and below its libraries; only assemblies may lie lower.
        if let Some(image) = self.by_id.get_mut(&image)
            && image.program.is_none()
            && !file.path.ends_with(b".dll")
        {
            image.program = Some(id);
        }
    }
}

impl ProcessTable {
    pub fn image_count(&self) -> usize {
        self.images.by_id.len()
    }

    /// Drops images that nothing refers to any more; those of processes stay.
    pub fn retain_images(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        let current: HashSet<ImageId> =
            self.processes.values().map(|process| process.image).collect();
        let Images { by_id, jitdumps, .. } = &mut self.images;
        by_id.retain(|id, _| current.contains(id) || is_kept(*id));
        jitdumps.retain(|id, _| by_id.contains_key(id));
    }

    pub fn image(&self, id: ImageId) -> Option<&Image> {
        self.images.get(id)
    }

    /// Whether its process has ended, or runs another image.
    pub fn has_ended(&self, image: ImageId) -> bool {
        let process = self.image(image).and_then(|image| self.get(image.pid));
        process.is_none_or(|process| process.exited || process.image != image)
    }

    pub fn program_of(&self, image: ImageId) -> Option<MappedProgram<'_>> {
        let file = self.image(image)?.program?;
        Some(MappedProgram { file, path: &self.files.get(file)?.path })
    }

    pub fn jitdump_of(&self, image: ImageId) -> Option<FileId> {
        self.images.jitdumps.get(&image).copied()
    }
}

/// `jit-PID.dump`, by the convention of perf's jitdump format.
pub(super) fn is_jitdump(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"jit-") && name.ends_with(b".dump")
}

#[cfg(test)]
mod tests {
    use super::super::Mapping;
    use super::super::tests::{existing, file, mapped};
    use super::*;
    use crate::kernel::perf_record::{Event, MappedInode};

    #[test]
    fn an_image_ends_with_its_process_or_with_the_next_image() {
        let mut table = ProcessTable::default();
        table.insert_unknown(7, "sh");
        let (pid, tid) = (8, 8);
        let image = |table: &ProcessTable| table.get(pid).map(|process| process.image).unwrap();
        table.apply(&Event::Fork { pid, parent: 7, tid }, 5);
        let forked = image(&table);
        assert!(!table.has_ended(forked));
        let name = b"ls".as_slice().into();
        table.apply(&Event::Comm { pid, tid, name, exec: true }, 6);
        // A program that has not mapped anything has not begun.
        table.apply(&mapped(pid, 0x1000, b"/bin/ls"), 7);
        let executed = image(&table);
        assert!(table.has_ended(forked) && !table.has_ended(executed));
        table.apply(&Event::Exit { pid, tid }, 8);
        assert!(table.has_ended(executed));
        let started = |image| table.image(image).map(|image| image.started);
        assert_eq!((started(forked), started(executed)), (Some(5), Some(6)));
        let lasting = table.get(7).map(|process| process.image).unwrap();
        assert_eq!((table.has_ended(lasting), started(lasting)), (false, Some(0)));
    }

    #[test]
    fn the_program_is_the_first_file_that_is_no_assembly_and_children_have_it_too() {
        let mut table = ProcessTable::default();
        let mut mapped = |number: u64, path: &[u8]| {
            let inode = MappedInode { major: 8, minor: 1, inode: number, generation: 0 };
            let backing = table.backing(inode, path).expect("a file");
            Mapping { backing, ..file(number << 16, (number << 16) + 0x1000, 0) }
        };
        let mappings = [mapped(1, b"/app/A.dll"), mapped(2, b"/app/host"), mapped(3, b"/lib/c.so")];
        table.insert_existing(existing(7, "host"), mappings.to_vec());
        table.apply(&Event::Fork { pid: 8, tid: 8, parent: 7 }, 1);
        for pid in [7, 8] {
            let image = table.get(pid).expect("a process").image;
            let program = table.program_of(image).expect("a program");
            assert_eq!(program.path, b"/app/host");
            for (path, name) in [
                ("/app/B.dll", Some("B.dll")),
                ("/app/fr/B.dll", Some("fr/B.dll")),
                ("B.dll", Some("B.dll")),
                ("/other/B.dll", None),
            ] {
                assert_eq!(program.name_inside(path), name);
            }
        }
    }
}
