//! BPF programs that do nothing, at tracepoints: what counting run times costs by itself, which every
//! program's count contains, and how often the tracepoint is reached.
//!
//! Raw tracepoints, as the kernel dispatches `tp_btf` programs too.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};

use super::bare_program::instruction;
use super::bpf_objects::{FdInfo, Runs, new_descriptor};

const PROG_LOAD: u32 = 5; // enum bpf_cmd, include/uapi/linux/bpf.h
const RAW_TRACEPOINT_OPEN: u32 = 17;
const RAW_TRACEPOINT: u64 = 17; // enum bpf_prog_type

/// A program that runs, and its place.
pub struct BareTracepoint {
    program: OwnedFd,
    _link: OwnedFd,
}

impl BareTracepoint {
    pub fn at(tracepoint: &CStr) -> Result<Self> {
        let code = [instruction(0xb7, 0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)]; // return 0
        let license = c"Dual MIT/GPL";
        let mut attribute = [0u64; 16];
        attribute[0] = RAW_TRACEPOINT | (code.len() as u64) << 32; // prog_type, insn_cnt
        attribute[1] = code.as_ptr() as u64;
        attribute[2] = license.as_ptr() as u64;
        let program = new_descriptor(PROG_LOAD, &mut attribute).context("an empty program")?;
        let mut attribute = [0u64; 16];
        attribute[0] = tracepoint.as_ptr() as u64;
        attribute[1] = program.as_raw_fd() as u64;
        let link = new_descriptor(RAW_TRACEPOINT_OPEN, &mut attribute)
            .with_context(|| format!("an empty program at {tracepoint:?}"))?;
        Ok(Self { program, _link: link })
    }

    /// What it has cost so far.
    pub fn runs(&self) -> Runs {
        let Ok(info) = FdInfo::of(&self.program) else { return Runs::default() };
        let number = |name| info.number(name).unwrap_or(0);
        Runs { nanoseconds: number("run_time_ns"), count: number("run_cnt") }
    }
}
