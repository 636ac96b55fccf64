//! Names of generated code: perf maps (`/tmp/perf-PID.map`) and jitdump files.
//!
//! Both lie in the target's own namespaces: the path in its root, the number as the process itself
//! sees it. They grow: each is read on from its position at the last flush.
//!
//! Invariant: only a file that belongs to the process's user or to root is trusted: every user can
//! write to `/tmp`, and symbols must come from a user who could write into the process anyway.

use std::path::PathBuf;
use std::sync::Arc;

use strata_agent::processes::credentials::Credentials;
use strata_profile::FrameKind;
use strata_sandbox::{FileIdentity, Locator, OpenFile, ProcessRef, Reply, Request};
use strata_symbols::{JitDump, PerfMap};

use crate::NamedFrame;
use crate::file_client::Ask;

/// Bytes read of one file at a flush, for a recording: at its end, all of it.
pub const MOST: u64 = 512 << 20;
/// And at each of many flushes.
pub const MOST_OFTEN: u64 = 64 << 20;
const PIECE: u64 = 4 << 20;

/// A file that is read as it grows.
struct Growing<P> {
    file: FileIdentity,
    offset: u64,
    parsed: P,
}

/// The symbol files of one process's JIT compilers, as far as they were read.
#[derive(Default)]
pub struct JitFiles {
    map: Option<Growing<PerfMap>>,
    dump: Option<Growing<JitDump>>,
    is_dump_broken: bool,
}

/// Whether the file is the one that was read, longer at most.
fn has_only_grown(before: &FileIdentity, offset: u64, now: &FileIdentity) -> bool {
    before.device == now.device && before.inode == now.inode && now.size >= offset
}

impl JitFiles {
    /// Reads the files of a process, which may have ended; `most` bytes of each file.
    pub fn read_on(
        &mut self,
        service: &mut dyn Ask,
        pid: u32,
        credentials: Option<Credentials>,
        dump: Option<&Arc<OpenFile>>,
        most: u64,
    ) {
        if let Some(file) = open_map(service, pid, credentials) {
            let map = growing(&mut self.map, &file);
            read_pieces(service, &file, &mut map.offset, most, |piece| {
                map.parsed.feed(piece);
                true
            });
        }
        if let Some(file) = dump.filter(|file| is_believed(credentials, file)) {
            if self.dump.as_ref().is_some_and(|dump| dump.file.inode != file.identity().inode) {
                self.is_dump_broken = false;
            }
            let dump = growing(&mut self.dump, file);
            if !self.is_dump_broken {
                let mut is_broken = false;
                read_pieces(service, file, &mut dump.offset, most, |piece| {
                    is_broken = dump.parsed.feed(piece).is_err();
                    !is_broken
                });
                self.is_dump_broken = is_broken;
            }
        }
    }

    pub fn name(&self, address: u64) -> Option<NamedFrame> {
        let dump = self.dump.as_ref();
        if let Some(symbol) = dump.and_then(|dump| dump.parsed.lookup(address)) {
            let mut frame = NamedFrame::plain(FrameKind::Jit, symbol.name);
            frame.file = symbol.file.unwrap_or_default().into();
            frame.line = symbol.line.unwrap_or_default();
            return Some(frame);
        }
        let name = self.map.as_ref()?.parsed.lookup(address)?;
        Some(NamedFrame::plain(FrameKind::Jit, name))
    }

    /// Bytes that what was read takes.
    pub fn memory(&self) -> usize {
        let map = self.map.as_ref().map_or(0, |map| map.parsed.memory());
        // More is read of a dump than is kept of it.
        map + self
            .dump
            .as_ref()
            .map_or(0, |dump| usize::try_from(dump.offset).unwrap_or(usize::MAX))
    }
}

/// The state of a file: reset when it is another one, or was truncated.
fn growing<'a, P: Default>(
    kept: &'a mut Option<Growing<P>>,
    file: &Arc<OpenFile>,
) -> &'a mut Growing<P> {
    let now = file.identity();
    let goes_on = kept.as_ref().is_some_and(|kept| has_only_grown(&kept.file, kept.offset, &now));
    if !goes_on {
        *kept = None;
    }
    let fresh = || Growing { file: now, offset: 0, parsed: P::default() };
    kept.get_or_insert_with(fresh)
}

fn is_believed(credentials: Option<Credentials>, file: &OpenFile) -> bool {
    match credentials {
        Some(credentials) => credentials.believes(file.owner()),
        // For a process that exited before its credentials were read.
        None => file.owner() == 0,
    }
}

fn open_map(
    service: &mut dyn Ask,
    pid: u32,
    credentials: Option<Credentials>,
) -> Option<Arc<OpenFile>> {
    let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let process = ProcessRef { pid, start_time: None };
    let inside = credentials.map_or(pid, |credentials| credentials.inner_pid);
    let locators = [
        Locator::InRoot { process, path: path(inside) },
        // The process is gone, or its map is written by a program outside of its root.
        Locator::Host { path: path(pid) },
    ];
    locators.into_iter().find_map(|locator| match service.ask(Request::Open(locator)) {
        Ok(Reply::Opened(file)) if is_believed(credentials, &file) => Some(file),
        _ => None,
    })
}

fn read_pieces(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    offset: &mut u64,
    most: u64,
    mut take: impl FnMut(&[u8]) -> bool,
) {
    let end = offset.saturating_add(most);
    while *offset < end {
        let request = Request::Read { file: file.clone(), offset: *offset, length: PIECE };
        let Ok(Reply::Bytes(piece)) = service.ask(request) else { return };
        if piece.is_empty() {
            return;
        }
        let goes_on = take(&piece);
        *offset += piece.len() as u64;
        if !goes_on {
            return;
        }
    }
}
