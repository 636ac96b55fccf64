//! What the programs know of a process, by pid: its entry, which leads to its unwind tables, its table of
//! thread contexts, and elapsed time of it that is not wanted.
//!
//! Invariant: removing what is not there is no error. The kernel gives entries too, to processes that are
//! forked, and takes them from those that execute another program.

use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, Pod};
use strata_abi::tables::Process;

use super::{LoadError, Programs, map, program};

#[repr(transparent)]
#[derive(Clone, Copy)]
struct ProcessValue(Process);
// SAFETY: `Process` is `repr(C)` without padding and any bytes are a value of it.
unsafe impl Pod for ProcessValue {}

/// The maps of all processes.
pub(super) struct Entries {
    processes: HashMap<MapData, u32, ProcessValue>,
    contexts: HashMap<MapData, u32, u64>,
    /// Counts processes that were given their parent's entry, where that is done: with what looks at
    /// tasks. Stacks of a CPU sample are copied without an entry.
    inherited: Option<Array<MapData, u64>>,
    /// With wall-clock or off-CPU time of all processes.
    unwanted: Option<HashMap<MapData, u32, u32>>,
}

impl Entries {
    pub(super) fn of(
        ebpf: &mut Ebpf,
        are_inherited: bool,
        has_elapsed: bool,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            processes: map(ebpf, "PROCESSES")?,
            contexts: map(ebpf, "CONTEXTS")?,
            inherited: are_inherited.then(|| inheriting(ebpf)).transpose()?,
            unwanted: has_elapsed.then(|| map(ebpf, "UNWANTED")).transpose()?,
        })
    }
}

/// From now on a process is given its parent's entry at its fork.
fn inheriting(ebpf: &mut Ebpf) -> Result<Array<MapData, u64>, LoadError> {
    const NAME: &str = "inherit_on_fork";
    const TRACEPOINT: &str = "sched_process_fork";
    let types = Btf::from_sys_fs().map_err(LoadError::Types)?;
    let program: &mut BtfTracePoint = program(ebpf, NAME)?;
    program
        .load(TRACEPOINT, &types)
        .and_then(|()| program.attach().map(drop))
        .map_err(|source| LoadError::Program { name: NAME, source })?;
    map(ebpf, "INHERITED")
}

impl Programs {
    pub fn set_process(&mut self, pid: u32, process: Process) -> Result<(), LoadError> {
        self.entries
            .processes
            .insert(pid, ProcessValue(process), 0)
            .map_err(|source| LoadError::Map { name: "PROCESSES", source })
    }

    /// The entry that a process was given at its fork: its parent's.
    pub fn inherited_by(&self, pid: u32) -> Option<Process> {
        self.entries.inherited.as_ref()?;
        self.entries.processes.get(&pid, 0).ok().map(|entry| entry.0)
    }

    /// As many processes again may be given their parent's entry.
    pub fn allow_inheriting(&mut self) {
        if let Some(inherited) = &mut self.entries.inherited
            && let Err(error) = inherited.set(0, 0, 0)
        {
            tracing::debug!(%error, "processes cannot be given their parents' entries");
        }
    }

    /// As if so many processes had been given their parent's entry.
    #[cfg(test)]
    pub fn set_inherited(&mut self, processes: u64) {
        let inherited = self.entries.inherited.as_mut().expect("it counts them");
        inherited.set(0, processes, 0).expect("it has a place");
    }

    /// Processes that have an entry, where some may have been given one.
    pub fn inheritors(&self) -> Vec<u32> {
        match self.entries.inherited {
            Some(_) => self.entries.processes.keys().filter_map(Result::ok).collect(),
            None => Vec::new(),
        }
    }

    /// A process's entry.
    #[cfg(test)]
    pub fn process(&self, pid: u32) -> Option<Process> {
        self.entries.processes.get(&pid, 0).ok().map(|entry| entry.0)
    }

    /// Removes a process's entry; a missing one is not an error.
    pub fn remove_process(&mut self, pid: u32) {
        match self.entries.processes.remove(&pid) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::debug!(pid, %error, "a process entry could not be removed"),
        }
    }

    /// Which of a process's elapsed time is not wanted (`UNWANTED_*`); 0: all is. False where there is no room:
    /// it is taken.
    pub fn set_unwanted(&mut self, pid: u32, kinds: u32) -> bool {
        let Some(unwanted) = &mut self.entries.unwanted else { return false };
        if kinds != 0 {
            return unwanted.insert(pid, kinds, 0).is_ok();
        }
        match unwanted.remove(&pid) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::debug!(pid, %error, "a process's kinds could not be reset"),
        }
        true
    }

    /// From now on samples of a process carry what its threads publish in the table at `address`.
    pub fn set_contexts(&mut self, pid: u32, address: u64) -> Result<(), LoadError> {
        self.entries
            .contexts
            .insert(pid, address, 0)
            .map_err(|source| LoadError::Map { name: "CONTEXTS", source })
    }

    /// Samples of a process carry no contexts any more.
    pub fn remove_contexts(&mut self, pid: u32) {
        match self.entries.contexts.remove(&pid) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::debug!(pid, %error, "a context entry could not be removed"),
        }
    }
}
