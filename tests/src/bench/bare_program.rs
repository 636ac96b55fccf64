//! A bare BPF program: two `bpf_get_stack` calls and nothing else. Run beside strata at the same
//! frequency, it turns microseconds of this machine into a ratio that holds on any.
//!
//! Written as instructions, so that no BPF toolchain is needed and no compiler changes it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

use super::bpf_objects::{FdInfo, Runs, new_descriptor};
use crate::machine;

const MAP_CREATE: u32 = 0;
const PROG_LOAD: u32 = 5;
const PERCPU_ARRAY: u64 = 6;
const PERF_EVENT: u64 = 7;
const STACK_BYTES: i32 = 127 * 8;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const PERF_EVENT_IOC_ENABLE: u64 = 0x2400;
const PERF_EVENT_IOC_SET_BPF: u64 = 0x4004_2408;

/// The running program.
pub struct BareProgram {
    program: OwnedFd,
    _map: OwnedFd,
    _events: Vec<OwnedFd>,
}

impl BareProgram {
    /// Loads it and runs it on every CPU at this frequency.
    pub fn start(frequency: u64) -> Result<Self> {
        let map = create_map().context("the bare program's map")?;
        let program = load(&map).context("the bare program")?;
        let mut events = Vec::new();
        for cpu in 0..machine::cpus() {
            events.push(attach(&program, cpu, frequency).context("the bare program's event")?);
        }
        Ok(Self { program, _map: map, _events: events })
    }

    /// What it has cost so far.
    pub fn runs(&self) -> Runs {
        let Ok(info) = FdInfo::of(&self.program) else { return Runs::default() };
        let number = |name| info.number(name).unwrap_or(0);
        Runs { nanoseconds: number("run_time_ns"), count: number("run_cnt") }
    }
}

fn create_map() -> std::io::Result<OwnedFd> {
    let mut attribute = [0u64; 16];
    attribute[0] = PERCPU_ARRAY | 4 << 32; // map_type, key_size
    attribute[1] = STACK_BYTES as u64 | 1 << 32; // value_size, max_entries
    new_descriptor(MAP_CREATE, &mut attribute)
}

/// `struct bpf_insn` as one word: code, registers, offset, immediate.
pub fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(destination | source << 4) << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(immediate.cast_unsigned()) << 32
}

fn load(map: &OwnedFd) -> std::io::Result<OwnedFd> {
    const MOVE: u8 = 0xbf;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const ADD_IMMEDIATE: u8 = 0x07;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const EXIT_DISTANCE: i16 = 15;
    let get_stack = |flags: i32| {
        [
            instruction(MOVE, 1, 6, 0, 0),
            instruction(MOVE, 2, 7, 0, 0),
            instruction(MOVE_IMMEDIATE, 3, 0, 0, STACK_BYTES),
            instruction(MOVE_IMMEDIATE, 4, 0, 0, flags),
            instruction(CALL, 0, 0, 0, 67), // bpf_get_stack
        ]
    };
    let mut code = vec![
        instruction(MOVE, 6, 1, 0, 0),
        instruction(CALL, 0, 0, 0, 14), // bpf_get_current_pid_tgid
        instruction(0x15, 0, 0, EXIT_DISTANCE + 3, 0), // if r0 == 0, the idle task: end
        instruction(0x62, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = 0
        instruction(MOVE, 2, 10, 0, 0),
        instruction(ADD_IMMEDIATE, 2, 0, 0, -4),
        instruction(0x18, 1, 1, 0, map.as_raw_fd()), // r1 = map (BPF_PSEUDO_MAP_FD)
        instruction(0, 0, 0, 0, 0),
        instruction(CALL, 0, 0, 0, 1),  // bpf_map_lookup_elem
        instruction(0x15, 0, 0, 11, 0), // if r0 == 0: end
        instruction(MOVE, 7, 0, 0, 0),
    ];
    code.extend(get_stack(0));
    code.extend(get_stack(256)); // BPF_F_USER_STACK
    code.push(instruction(MOVE_IMMEDIATE, 0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    let license = c"Dual MIT/GPL";
    let mut attribute = [0u64; 16];
    attribute[0] = PERF_EVENT | (code.len() as u64) << 32; // prog_type, insn_cnt
    attribute[1] = code.as_ptr() as u64;
    attribute[2] = license.as_ptr() as u64;
    new_descriptor(PROG_LOAD, &mut attribute)
}

fn attach(program: &OwnedFd, cpu: usize, frequency: u64) -> std::io::Result<OwnedFd> {
    // struct perf_event_attr, version 0 (64 bytes): type, size, config, sample_freq, …, flags.
    let mut attribute = [0u64; 8];
    attribute[0] = u64::from(PERF_TYPE_SOFTWARE) | 64 << 32;
    attribute[1] = PERF_COUNT_SW_CPU_CLOCK;
    attribute[2] = frequency;
    attribute[5] = 1 << 10 | 1; // freq, disabled
    // SAFETY: the attribute block holds its own size and lives through the call.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attribute.as_ptr(),
            -1,
            cpu as i32,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let event = i32::try_from(event).unwrap_or(-1);
    if event < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor, and it has no other owner.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    // SAFETY: both requests take an integer, not a pointer.
    let results = unsafe {
        [
            libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()),
            libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0),
        ]
    };
    if results.iter().any(|r| *r < 0) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(event)
}
