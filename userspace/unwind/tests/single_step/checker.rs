//! Steps a program and compares, instruction by instruction.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use strata_abi::epilogue::{BYTES_BEFORE, Code};
use strata_abi::record::{End, FRAME_ADDRESS};
use strata_unwind::unwinder::{Interrupted, LeftGoroutine, Lookup, Registers, unwind};

use crate::shadow::{Shadow, Step, decode};
use crate::tracee::{Stop, Tracee};

const MAX_FRAMES: usize = 1024;
/// Stack read at once.
const WINDOW: usize = 2048;

/// Mappings are read anew so often when no method was added; stubs are never known.
const MOST_REFRESHES: u32 = 200;

/// A new thread is known as such within so many instructions.
const NEW_THREAD: u64 = 8;

#[derive(Default)]
pub struct Report {
    pub steps: u64,
    /// Stacks taken for true after a scheduler's switch.
    pub switches: BTreeMap<(String, u64), u64>,
    pub excepted: BTreeMap<&'static str, u64>,
    /// By file and address: how often, and what was wrong first.
    pub failures: BTreeMap<(String, u64), (u64, String)>,
}

impl Report {
    pub fn wrong(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }
}

pub struct Checker {
    tracee: Tracee,
    threads: HashMap<i32, Shadow>,
    decoded: HashMap<u64, Step>,
    report: Report,
    frames: Vec<u64>,
    /// The program's stacks are switched by a scheduler of its own.
    pub switches_stacks: bool,
    /// It is built by a Go before 1.21.
    pub is_old_go: bool,
    /// Leave out the dynamic linker's start, which other tests have checked.
    pub from_entry: bool,
    pub max_steps: u64,
    refreshes: u32,
}

impl Checker {
    pub fn new(mut command: Command) -> Self {
        command.env("GODEBUG", "asyncpreemptoff=1").env("GOMAXPROCS", "1");
        Self::with(Tracee::start(command))
    }

    /// Checks the main thread of a running .NET program.
    pub fn attach(pid: i32) -> Self {
        Self::with(Tracee::attach(pid))
    }

    fn with(tracee: Tracee) -> Self {
        Self {
            tracee,
            threads: HashMap::new(),
            decoded: HashMap::new(),
            report: Report::default(),
            frames: Vec::new(),
            switches_stacks: false,
            is_old_go: false,
            from_entry: false,
            max_steps: 1_000_000,
            refreshes: 0,
        }
    }

    pub fn run(mut self) -> Report {
        if self.from_entry {
            self.tracee.run_to_entry();
        }
        self.check(self.tracee.pid);
        self.tracee.step(self.tracee.pid, 0);
        while let Some(stop) = self.tracee.wait() {
            match stop {
                Stop::Gone { tid } => {
                    self.threads.remove(&tid);
                }
                Stop::Event { tid } => self.tracee.step(tid, 0),
                Stop::Signal { tid, number } => {
                    let known = self.threads.contains_key(&tid);
                    // A new thread reports itself with a stop signal.
                    let signal = if known && number != libc::SIGSTOP { number } else { 0 };
                    let sp = self.tracee.registers(tid).0[7];
                    self.threads.entry(tid).or_default().signal =
                        (signal != 0).then_some((signal as u64, sp));
                    if !known {
                        self.check(tid);
                    }
                    self.tracee.step(tid, signal);
                }
                Stop::Step { tid } => {
                    self.check(tid);
                    if self.report.steps >= self.max_steps {
                        break;
                    }
                    self.tracee.step(tid, 0);
                }
            }
        }
        self.report
    }

    /// Checks the stack at the instruction a thread is about to run.
    fn check(&mut self, tid: i32) {
        let (registers, number) = self.tracee.registers(tid);
        let (pc, sp) = (registers[16], registers[7]);
        if !self.tracee.is_mapped(pc) {
            self.tracee.read_mappings();
        }
        let top = self.tracee.word(sp).unwrap_or(0);
        let mut shadow = self.threads.remove(&tid).unwrap_or_default();
        shadow.advance(&registers, top);
        let tracee = &self.tracee;
        let step = *self.decoded.entry(pc).or_insert_with(|| {
            let mut bytes = [0; 16];
            let read = tracee.read(pc, &mut bytes);
            decode(pc, &bytes[..read])
        });
        shadow.next = Some(step.effect);
        let goroutine = if self.is_old_go { self.tracee.left_goroutine(tid) } else { None };
        let mut end = unwind_now(&self.tracee, &registers, goroutine, &mut self.frames);
        self.report.steps += 1;
        let unknown = |frames: &[u64]| frames.iter().any(|frame| tracee.is_unknown(*frame));
        if unknown(&self.frames)
            && (self.tracee.has_compiled_more() || self.refreshes < MOST_REFRESHES)
        {
            self.refreshes += u32::from(!self.tracee.has_compiled_more());
            self.tracee.read_mappings();
            end = unwind_now(&self.tracee, &registers, goroutine, &mut self.frames);
        }
        if !shadow.agrees(&self.frames) || end != End::Complete {
            let place = self.tracee.place(pc);
            let complete = end == End::Complete;
            let switched = self.switches_stacks
                && complete
                && (shadow.may_be_elsewhere() || shadow.is_cut(&self.frames));
            let new_thread = tid != self.tracee.pid && shadow.age < NEW_THREAD;
            if (shadow.age == 0 || switched) && complete {
                *self.report.switches.entry(place).or_default() += 1;
                shadow.adopt(&self.frames);
            } else if let Some(reason) = exception(&place.0, &shadow, end, new_thread)
                .or_else(|| exception_of_runtime(&self.tracee, pc))
            {
                *self.report.excepted.entry(reason).or_default() += 1;
            } else {
                let expected: Vec<u64> = shadow.callers.iter().rev().copied().collect();
                let what = format!(
                    "{end:?}, sp {sp:#x}, after {:x?}\n      expected {}\n      unwound  {}",
                    shadow.last,
                    self.describe(&expected),
                    self.describe(self.frames.get(1..).unwrap_or_default())
                );
                self.report.failures.entry(place).or_insert((0, what)).0 += 1;
            }
        }
        shadow.about_to(pc, step, number);
        self.threads.insert(tid, shadow);
    }

    fn describe(&self, addresses: &[u64]) -> String {
        let places = addresses.iter().take(6).map(|address| {
            let (file, place) = self.tracee.place(*address);
            format!("{}+{place:#x}", file.rsplit('/').next().unwrap_or_default())
        });
        format!("{} deep: {}", addresses.len(), places.collect::<Vec<_>>().join(" "))
    }
}

/// Why a stack may be wrong at an instruction.
fn exception(file: &str, shadow: &Shadow, end: End, new_thread: bool) -> Option<&'static str> {
    // glibc describes the registers; musl's last instruction has moved the stack already.
    if end == End::UnsupportedRule || shadow.is_about_to_jump_elsewhere() {
        return Some("longjmp has its target's registers in registers that are not followed");
    }
    if new_thread {
        return Some("a new thread before the instruction from which on it is known as one");
    }
    if file.contains("libgcc_s") {
        return Some("the C++ runtime writes over its own frame to land in a handler");
    }
    None
}

/// Why a stack may be wrong at an instruction of the CLR's own code.
fn exception_of_runtime(tracee: &Tracee, pc: u64) -> Option<&'static str> {
    // push rbp; mov r10, rdi; mov r11, rsi; test byte [r10 + 0x30], 2
    const RESTORES: [u8; 12] =
        [0x55, 0x49, 0x89, 0xfa, 0x49, 0x89, 0xf3, 0x41, 0xf6, 0x42, 0x30, 0x02];
    const RESTORES_SIZE: usize = 0x100;
    const JUMP_THROUGH_CELL: [u8; 2] = [0xff, 0x25];
    if !tracee.is_runtime() {
        return None;
    }
    let mut code = [0; RESTORES_SIZE + RESTORES.len()];
    let read = tracee.read(pc.saturating_sub(RESTORES_SIZE as u64), &mut code);
    if code[..read].windows(RESTORES.len()).any(|bytes| bytes == RESTORES) {
        return Some("RtlRestoreContext does not say that it pushes RBP");
    }
    let mut rest = [0; 64];
    tracee.read(pc, &mut rest);
    if tracee.is_method(pc) && without_pops(&rest).starts_with(&JUMP_THROUGH_CELL) {
        return Some("`jmp [rip + N]` ends a method, which the step does not know");
    }
    let native = !tracee.is_method(pc) && !tracee.is_unknown(pc);
    (native && only_leaves(pc, &rest))
        .then_some("the compiler of an old libcoreclr did not describe epilogues")
}

/// Whether these are the last instructions of a function, or of a way through it that has no frame.
fn only_leaves(pc: u64, code: &[u8]) -> bool {
    const MOST: usize = 8;
    let instructions = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).into_iter().take(MOST);
    for instruction in instructions {
        match instruction.mnemonic() {
            Mnemonic::Ret | Mnemonic::Jmp => return true,
            Mnemonic::Call | Mnemonic::INVALID => return false,
            _ if instruction.op0_kind() == OpKind::NearBranch64 => return false,
            _ => {}
        }
    }
    false
}

fn without_pops(mut code: &[u8]) -> &[u8] {
    while let [0x41, 0x58..=0x5f, rest @ ..] | [0x58..=0x5f, rest @ ..] = code {
        code = rest;
    }
    code
}

/// Unwinds from registers, memory read a window at a time.
fn unwind_now(
    tracee: &Tracee,
    registers: &Registers,
    goroutine: Option<LeftGoroutine>,
    frames: &mut Vec<u64>,
) -> End {
    let mut window = [0; WINDOW];
    let (mut start, mut length) = (0, 0);
    let mut read = |address: u64| {
        let mut offset = address.wrapping_sub(start);
        if offset.saturating_add(8) > length {
            start = address;
            length = tracee.read(address, &mut window) as u64;
            offset = 0;
        }
        let bytes = window.get(offset as usize..offset as usize + 8)?;
        (offset + 8 <= length).then(|| u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    let mut lookup = |pc| -> Lookup { tracee.lookup(pc) };
    frames.clear();
    let at = Interrupted { registers, code: code_at(tracee, registers[16]), goroutine };
    let end = unwind(&mut lookup, &mut read, at, MAX_FRAMES, frames);
    frames.iter_mut().for_each(|frame| *frame &= FRAME_ADDRESS);
    end
}

/// The code around a pc.
fn code_at(tracee: &Tracee, pc: u64) -> Code {
    let mut bytes = [0; size_of::<Code>()];
    tracee.read(pc.wrapping_sub(BYTES_BEFORE), &mut bytes);
    let (words, _) = bytes.as_chunks::<8>();
    let mut code = Code::default();
    code.iter_mut().zip(words).for_each(|(to, word)| *to = u64::from_le_bytes(*word));
    code
}
