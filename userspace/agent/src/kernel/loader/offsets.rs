//! Where the BPF programs find fields of the kernel's structs, by its own type information: a table for each
//! purpose.
//!
//! Invariant: the global of a field that is not known stays 0, which its program takes for "not there".

use aya::{EbpfLoader, Pod};

use crate::kernel::type_info::{KernelTypes, TypeError};

/// A global of the programs, and the struct and the field whose offset it holds.
pub(super) struct Field {
    global: &'static str,
    of: &'static str,
    field: &'static str,
    /// The programs do not work without it.
    is_needed: bool,
}

const fn needed(global: &'static str, of: &'static str, field: &'static str) -> Field {
    Field { global, of, field, is_needed: true }
}

const fn optional(global: &'static str, of: &'static str, field: &'static str) -> Field {
    Field { global, of, field, is_needed: false }
}

/// Whether a task has a program in its memory, and its number in a process's namespace.
pub(super) const MEMORY: [Field; 5] = [
    needed("TASK_MM", "task_struct", "mm"),
    needed("MM_START_CODE", "mm_struct", "start_code"),
    needed("TASK_THREAD_PID", "task_struct", "thread_pid"),
    needed("PID_LEVEL", "pid", "level"),
    needed("PID_NUMBERS", "pid", "numbers"),
];

/// The thread pointer of a thread's program, on machines where it is known.
pub(super) fn thread_pointer() -> Option<Field> {
    strata_abi::arch::THREAD_POINTER
        .map(|field| needed("TASK_THREAD_POINTER", "task_struct", field))
}

/// Addresses that the kernel has replaced for probes: all of them, or none in a kernel without uprobes.
pub(super) const PROBES: [Field; 7] = [
    needed("TASK_UTASK", "task_struct", "utask"),
    needed("UTASK_SLOT", "uprobe_task", "xol_vaddr"),
    needed("UTASK_INSTRUCTION", "uprobe_task", "vaddr"),
    needed("UTASK_INSTANCES", "uprobe_task", "return_instances"),
    needed("INSTANCE_STACK", "return_instance", "stack"),
    needed("INSTANCE_ORIGINAL", "return_instance", "orig_ret_vaddr"),
    needed("INSTANCE_NEXT", "return_instance", "next"),
];

/// A task that is not the current one.
pub(super) const TASKS: [Field; 4] = [
    needed("TASK_TGID", "task_struct", "tgid"),
    needed("TASK_PID", "task_struct", "pid"),
    needed("TASK_STATE", "task_struct", "__state"),
    needed("TASK_COMM", "task_struct", "comm"),
];

/// What a task has done, for passes over threads.
pub(super) const ACTIVITY: [Field; 11] = [
    needed("TASK_FLAGS", "task_struct", "flags"),
    // Absent in kernels for a single CPU.
    optional("TASK_ON_CPU", "task_struct", "on_cpu"),
    needed("TASK_ON_RQ", "task_struct", "on_rq"),
    // Since 6.12.
    optional("TASK_DELAYED", "task_struct", "se.sched_delayed"),
    needed("TASK_VOLUNTARY", "task_struct", "nvcsw"),
    needed("TASK_INVOLUNTARY", "task_struct", "nivcsw"),
    needed("TASK_START", "task_struct", "start_time"),
    needed("TASK_RUN", "task_struct", "se.sum_exec_runtime"),
    // With CONFIG_SCHED_INFO, as distributions have it.
    optional("TASK_DELAY", "task_struct", "sched_info.run_delay"),
    needed("TASK_CRED", "task_struct", "cred"),
    needed("CRED_UID", "cred", "uid"),
];

/// The offsets of a table, each as large as its global.
pub(super) struct Offsets<T>(Vec<(&'static str, T)>);

impl<T: From<u32> + Pod> Offsets<T> {
    pub fn none() -> Self {
        Self(Vec::new())
    }

    pub fn read(
        types: &KernelTypes,
        fields: impl IntoIterator<Item = Field>,
    ) -> Result<Self, TypeError> {
        let mut offsets = Vec::new();
        for Field { global, of, field, is_needed } in fields {
            match types.offset_of(of, field) {
                Ok(offset) => offsets.push((global, offset.into())),
                Err(error) if is_needed => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Self(offsets))
    }

    pub fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (global, offset) in &self.0 {
            loader.override_global(global, offset, true);
        }
    }
}
