//! Generated code: its size, the runtime that made it, and the source of its symbols.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use strata_sandbox::{FileService, Locator, ProcessRef, Reply, Request};
use strata_symbols::PerfMap;

use super::files::is_file;
use super::runtime::Runtime;
use crate::doctor::parse::CodeMapping;
use crate::doctor::text::printable;

/// More of a perf map is not read here.
const MOST_READ: u64 = 64 << 20;
const PIECE: u64 = 4 << 20;

/// A file that names generated code.
#[derive(Clone, Debug)]
pub struct NameSource {
    pub path: String,
    pub bytes: u64,
    /// Functions in it, where it was read.
    pub functions: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Generated {
    pub regions: u64,
    pub bytes: u64,
    pub runtime: Runtime,
    pub perf_map: Option<NameSource>,
    /// Why there is no perf map, with the path that was tried.
    pub no_perf_map: Option<String>,
    pub jitdump: Option<String>,
    /// strata may ask the runtime itself.
    pub attachable: bool,
    /// Of a .NET process: the state of strata's bridge in it.
    pub bridge: Option<String>,
    /// What to do for names.
    pub fix: String,
}

impl Generated {
    pub fn has_names(&self) -> bool {
        self.attachable || self.perf_map.is_some() || self.jitdump.is_some()
    }
}

/// `None` when all code is from files.
pub fn examine(
    service: &mut FileService,
    process: ProcessRef,
    inner_pid: u32,
    mappings: &[CodeMapping],
    runtime: Runtime,
) -> Option<Generated> {
    let regions: Vec<&CodeMapping> =
        mappings.iter().filter(|mapping| !is_file(mapping) && !is_kernels(mapping)).collect();
    let jitdump = mappings.iter().find(|mapping| is_jitdump(&mapping.path));
    if regions.is_empty() && jitdump.is_none() {
        return None;
    }
    let runtime = match runtime {
        Runtime::Unknown if is_clr(process.pid) => Runtime::DotNet,
        known => known,
    };
    let refusal = (runtime == Runtime::DotNet).then(|| attaching(process.pid));
    let bridge = (runtime == Runtime::DotNet).then(|| bridge_in(process.pid)).flatten();
    let (perf_map, no_perf_map) = match perf_map(service, process, inner_pid) {
        Ok(found) => (Some(found), None),
        Err(why) => (None, Some(why)),
    };
    Some(Generated {
        regions: regions.len() as u64,
        bytes: regions.iter().map(|region| region.end.saturating_sub(region.start)).sum(),
        runtime,
        perf_map,
        no_perf_map,
        jitdump: jitdump.map(|mapping| printable(&mapping.path)),
        attachable: matches!(refusal, Some(Ok(()))),
        bridge,
        fix: match refusal {
            Some(Err(why)) => format!(
                "strata cannot attach: {why}. Or {}",
                runtime.naming(process.pid, inner_pid)
            ),
            _ => runtime.naming(process.pid, inner_pid),
        },
    })
}

/// Whether a process is a CLR that none of its executable mappings shows: a single-file program.
fn is_clr(pid: u32) -> bool {
    matches!(strata_clr::discover(pid), Ok(Some(_)))
}

/// Whether strata may attach to a .NET process, as far as that is known without trying.
fn attaching(pid: u32) -> Result<(), String> {
    match strata_clr::discover(pid) {
        Ok(Some(process)) => crate::ps::refusal(&process).map_or(Ok(()), Err),
        Ok(None) => Err("its runtime cannot be found".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The state of the bridge in a .NET process, where it is one.
fn bridge_in(pid: u32) -> Option<String> {
    let process = strata_clr::discover(pid).ok().flatten()?;
    Some(printable(crate::ps::bridge_of(&process).text.as_bytes()))
}

/// Pages the kernel puts into every process.
fn is_kernels(mapping: &CodeMapping) -> bool {
    matches!(&mapping.path[..], b"[vdso]" | b"[vsyscall]" | b"[uprobes]" | b"[uprobes-trampoline]")
}

/// Writers of jitdump map its first page executable so that profilers find it.
fn is_jitdump(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"jit-") && name.ends_with(b".dump")
}

/// The perf map: in the process's root by its own number, or on the host by the host's.
fn perf_map(
    service: &mut FileService,
    process: ProcessRef,
    inner_pid: u32,
) -> Result<NameSource, String> {
    let path = |pid: u32| PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let inside = path(inner_pid);
    let tries = [
        (inside.clone(), Locator::InRoot { process, path: inside.clone() }),
        (path(process.pid), Locator::Host { path: path(process.pid) }),
    ];
    let mut why = None;
    for (path, locator) in tries {
        match service.call(Request::Open(locator)) {
            Ok(Reply::Opened(file)) => {
                let bytes = file.identity().size;
                let mut map = PerfMap::default();
                let mut offset = 0;
                while offset < bytes.min(MOST_READ) {
                    let request = Request::Read { file: file.clone(), offset, length: PIECE };
                    let Ok(Reply::Bytes(piece)) = service.call(request) else { break };
                    if piece.is_empty() {
                        break;
                    }
                    map.feed(&piece);
                    offset = offset.saturating_add(piece.len() as u64);
                }
                let functions = (offset >= bytes).then_some(map.len() as u64);
                let path = printable(path.as_os_str().as_bytes());
                return Ok(NameSource { path, bytes, functions });
            }
            Ok(_) => {}
            Err(error) => {
                why.get_or_insert_with(|| error.to_string());
            }
        }
    }
    let shown = printable(OsStr::as_bytes(inside.as_os_str()));
    Err(format!("{shown} in its root: {}", why.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_jitdump_is_recognised() {
        assert!(is_jitdump(b"/tmp/.debug/jit/x/jit-77.dump"));
        assert!(!is_jitdump(b"/usr/lib/jit-77.so"));
    }
}
