//! Names of generated code: perf maps (`/tmp/perf-PID.map`) and jitdump files.
//!
//! Both lie in the target's own namespaces: the path in its root, the number as the process
//! itself sees it.

use std::path::PathBuf;
use std::sync::Arc;

use strata_profile::FrameKind;
use strata_sandbox::{Locator, OpenFile, ProcessRef, Reply, Request};
use strata_symbols::{JitDump, PerfMap};

use super::{Ask, NamedFrame};
use strata_agent::processes::innermost_pid;

/// Bytes read of one file at most, for a recording.
pub const MOST: u64 = 512 << 20;
/// And for who reads it every few seconds.
pub const MOST_OFTEN: u64 = 64 << 20;
const PIECE: u64 = 4 << 20;

/// What one process's compilers wrote.
#[derive(Default)]
pub struct JitNames {
    map: Option<PerfMap>,
    dump: Option<JitDump>,
}

impl JitNames {
    /// Reads what there is for a process, which may have ended; `most` bytes of each file.
    pub fn load(service: &mut dyn Ask, pid: u32, dump: Option<Arc<OpenFile>>, most: u64) -> Self {
        let mut names = Self::default();
        if let Some(map) = open_map(service, pid) {
            let mut parsed = PerfMap::default();
            read_pieces(service, &map, most, |piece| {
                parsed.feed(piece);
                true
            });
            names.map = Some(parsed);
        }
        if let Some(dump) = dump {
            let mut parsed = JitDump::default();
            read_pieces(service, &dump, most, |piece| parsed.feed(piece).is_ok());
            names.dump = Some(parsed);
        }
        names
    }

    pub fn name(&self, address: u64) -> Option<NamedFrame> {
        if let Some(symbol) = self.dump.as_ref().and_then(|dump| dump.lookup(address)) {
            let mut frame = NamedFrame::plain(FrameKind::Jit, symbol.name);
            frame.file = symbol.file.unwrap_or_default().into();
            frame.line = symbol.line.unwrap_or_default();
            return Some(frame);
        }
        let name = self.map.as_ref()?.lookup(address)?;
        Some(NamedFrame::plain(FrameKind::Jit, name))
    }
}

fn open_map(service: &mut dyn Ask, pid: u32) -> Option<Arc<OpenFile>> {
    let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let process = ProcessRef { pid, start_time: None };
    let inside = innermost_pid(pid).unwrap_or(pid);
    let locators = [
        Locator::InRoot { process, path: path(inside) },
        // The process is gone, or its map is written by somebody outside.
        Locator::Host { path: path(pid) },
    ];
    locators.into_iter().find_map(|locator| match service.ask(Request::Open(locator)) {
        Ok(Reply::Opened(file)) => Some(file),
        _ => None,
    })
}

fn read_pieces(
    service: &mut dyn Ask,
    file: &Arc<OpenFile>,
    most: u64,
    mut take: impl FnMut(&[u8]) -> bool,
) {
    let mut offset = 0;
    while offset < most {
        let request = Request::Read { file: file.clone(), offset, length: PIECE };
        let Ok(Reply::Bytes(piece)) = service.ask(request) else { return };
        if piece.is_empty() || !take(&piece) {
            return;
        }
        offset += piece.len() as u64;
    }
}
