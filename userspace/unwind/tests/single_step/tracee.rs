//! A program under `ptrace`, one instruction at a time: registers, memory, mappings.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use strata_unwind::read::FileReader;
use strata_unwind::unwinder::{AddressSpace, Mapping, Registers};
use strata_unwind::{Limits, UnwindTable, build};

pub struct Tracee {
    pub pid: i32,
    tables: HashMap<String, Option<Arc<UnwindTable>>>,
    pub names: Vec<(u64, u64, u64, String)>,
    pub space: AddressSpace,
}

/// What a stop of a thread was.
pub enum Stop {
    Gone { tid: i32 },
    Step { tid: i32 },
    Signal { tid: i32, number: i32 },
    Event { tid: i32 },
}

impl Tracee {
    #[expect(clippy::zombie_processes, reason = "drop waits for all children of this thread")]
    pub fn start(mut command: Command) -> Self {
        // SAFETY: between fork and exec only an async-signal-safe system call is made.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let pid = child.id() as i32;
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert!(libc::WIFSTOPPED(status), "the program did not start");
        let options =
            libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, pid, options as usize);
        let mut tracee =
            Self { pid, tables: HashMap::new(), names: Vec::new(), space: AddressSpace::default() };
        tracee.read_mappings();
        tracee
    }

    /// Runs to the program's entry point at full speed, past the dynamic linker.
    pub fn run_to_entry(&mut self) {
        let auxiliary = std::fs::read(format!("/proc/{}/auxv", self.pid)).unwrap();
        let words: Vec<u64> = auxiliary
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let pair = words.chunks_exact(2).find(|pair| pair[0] == libc::AT_ENTRY);
        let entry = pair.expect("every program has an entry point")[1];
        let code = self.word(entry).unwrap();
        const BREAKPOINT: u64 = 0xcc;
        poke(self.pid, entry, code & !0xff | BREAKPOINT);
        ptrace(libc::PTRACE_CONT, self.pid, 0);
        assert!(matches!(self.wait(), Some(Stop::Step { .. })), "the entry point was not reached");
        poke(self.pid, entry, code);
        // SAFETY: plain integers.
        let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.pid, (&raw mut all) as usize);
        all.rip = entry;
        ptrace(libc::PTRACE_SETREGS, self.pid, (&raw mut all) as usize);
        self.read_mappings();
    }

    pub fn step(&self, tid: i32, signal: i32) {
        ptrace(libc::PTRACE_SINGLESTEP, tid, signal as usize);
    }

    /// Waits for the next stop of any thread; `None` when all are gone.
    pub fn wait(&self) -> Option<Stop> {
        let mut status = 0;
        // SAFETY: waits for children of this thread only.
        let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if tid < 0 {
            return None;
        }
        if !libc::WIFSTOPPED(status) {
            return Some(Stop::Gone { tid });
        }
        Some(match (libc::WSTOPSIG(status), status >> 16) {
            (libc::SIGTRAP, 0) => Stop::Step { tid },
            (_, event) if event != 0 => Stop::Event { tid },
            (number, _) => Stop::Signal { tid, number },
        })
    }

    pub fn registers(&self, tid: i32) -> (Registers, u64) {
        // SAFETY: plain integers.
        let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, tid, (&raw mut all) as usize);
        let registers = [
            all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8, all.r9,
            all.r10, all.r11, all.r12, all.r13, all.r14, all.r15, all.rip,
        ];
        (registers, all.rax)
    }

    /// Reads as much of `buffer` as is there.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: buffer.len() };
        // SAFETY: `local` is our buffer; the kernel checks the other side.
        let read = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        read.max(0) as usize
    }

    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    pub fn read_mappings(&mut self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let mut mappings = Vec::new();
        self.names.clear();
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [range, permissions, offset, _, _, path @ ..] = fields.as_slice() else { continue };
            if !permissions.contains('x') {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end, offset) = (number(start), number(end), number(offset));
            let path = path.first().copied().unwrap_or_default();
            let table = self.table(path, start, end);
            let address = table.as_ref().and_then(|table| table.address_of_offset(offset));
            let bias = start.wrapping_sub(address.unwrap_or(start));
            self.names.push((start, end, bias, path.to_owned()));
            mappings.push(Mapping { start, end, bias, table: table.filter(|_| address.is_some()) });
        }
        self.space = AddressSpace::new(mappings);
    }

    fn table(&mut self, path: &str, start: u64, end: u64) -> Option<Arc<UnwindTable>> {
        if let Some(table) = self.tables.get(path) {
            return table.clone();
        }
        let table = if path == "[vdso]" {
            let mut image = vec![0; (end - start) as usize];
            self.read(start, &mut image);
            build(&image, &Limits::default()).ok()
        } else {
            let file = std::fs::File::open(path).ok();
            file.and_then(|file| build(&FileReader::new(file).unwrap(), &Limits::default()).ok())
        };
        let table = table.map(Arc::new);
        self.tables.insert(path.to_owned(), table.clone());
        table
    }

    /// File and address in its own numbering.
    pub fn place(&self, address: u64) -> (String, u64) {
        match self.names.iter().find(|(start, end, ..)| (*start..*end).contains(&address)) {
            Some((_, _, bias, path)) => (path.clone(), address - bias),
            None => ("?".to_owned(), address),
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // SAFETY: our own child; it may be gone already.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::__WNOTHREAD) > 0 {}
        }
    }
}

fn ptrace(request: libc::c_uint, tid: i32, data: usize) {
    // SAFETY: requests used here write at most a `user_regs_struct` to `data`.
    unsafe { libc::ptrace(request, tid, 0, data) };
}

fn poke(tid: i32, address: u64, word: u64) {
    // SAFETY: writes to the stopped program's memory only.
    unsafe { libc::ptrace(libc::PTRACE_POKETEXT, tid, address, word) };
}
