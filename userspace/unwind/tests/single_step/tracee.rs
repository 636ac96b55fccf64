//! A program under `ptrace`, one instruction at a time: registers, memory, mappings.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use strata_abi::rule::{Kind, Packed, Rule};
use strata_unwind::managed::{MethodCode, STUB_REACH, method_rules, stub_at};
use strata_unwind::unwinder::{AddressSpace, LeftGoroutine, Lookup, Mapping, Registers};
use strata_unwind::{FileAt, ReadAt};
use strata_unwind::{Limits, UnwindTable, build, build_part};

use crate::runtime;

pub struct Tracee {
    pub pid: i32,
    tables: HashMap<String, Option<Arc<UnwindTable>>>,
    pub names: Vec<(u64, u64, u64, String)>,
    space: AddressSpace,
    /// What a runtime has compiled; `None` in programs that have none.
    methods: Option<BTreeMap<u64, Method>>,
    /// The length of its perf map when it was read.
    map_size: u64,
}

/// Code that a runtime has compiled.
struct Method {
    size: u32,
    name: String,
    rules: Vec<(u32, Rule)>,
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
        let mut tracee = Self::new(pid);
        tracee.read_mappings();
        tracee
    }

    fn new(pid: i32) -> Self {
        Self {
            pid,
            tables: HashMap::new(),
            names: Vec::new(),
            space: AddressSpace::default(),
            methods: None,
            map_size: 0,
        }
    }

    /// Stops the main thread of a running .NET program.
    pub fn attach(pid: i32) -> Self {
        ptrace(libc::PTRACE_SEIZE, pid, libc::PTRACE_O_EXITKILL as usize);
        ptrace(libc::PTRACE_INTERRUPT, pid, 0);
        let mut tracee = Self::new(pid);
        tracee.methods = Some(BTreeMap::new());
        assert!(matches!(tracee.wait(), Some(Stop::Event { .. })), "the program did not stop");
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

    /// Where a thread of a Go program left its goroutine (`runtime/runtime2.go`, Go 1.9 to 1.24).
    pub fn left_goroutine(&self, tid: i32) -> Option<LeftGoroutine> {
        const CURRENT: u64 = 0xc0;
        // SAFETY: plain integers.
        let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, tid, (&raw mut all) as usize);
        let thread = self.word(self.word(all.fs_base.checked_sub(8)?)?.checked_add(0x30)?)?;
        let goroutine = self.word(thread.checked_add(CURRENT)?)?;
        let (sp, fp) = (self.word(goroutine.checked_add(0x38)?)?, self.word(goroutine + 0x68)?);
        (sp != 0).then_some(LeftGoroutine { sp, fp })
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

    /// Reads what is mapped and compiled now.
    pub fn read_mappings(&mut self) {
        self.read_methods();
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
            let table = self.table(path, start, end, offset);
            let address = table.as_ref().and_then(|table| table.address_of_offset(offset));
            let bias = start.wrapping_sub(address.unwrap_or(start));
            self.names.push((start, end, bias, path.to_owned()));
            mappings.push(Mapping { start, end, bias, table: table.filter(|_| address.is_some()) });
        }
        self.space = AddressSpace::new(mappings);
    }

    fn read_methods(&mut self) {
        let Some(mut known) = self.methods.take() else { return };
        self.map_size = runtime::map_size(self.pid);
        for compiled in runtime::compiled(self.pid) {
            let same =
                |method: &Method| method.size == compiled.size && method.name == compiled.name;
            if compiled.is_stub() || known.get(&compiled.start).is_some_and(same) {
                continue;
            }
            let mut code = vec![0; compiled.size as usize];
            let read = self.read(compiled.start, &mut code);
            code.truncate(read);
            let rules = method_rules(&MethodCode {
                size: compiled.size,
                bytes: &code,
                is_replacement: compiled.is_replacement(),
                replaced_frame: None,
            });
            let (size, name) = (compiled.size, compiled.name);
            known.insert(compiled.start, Method { size, name, rules });
        }
        self.methods = Some(known);
    }

    fn method(&self, address: u64) -> Option<(u64, &Method)> {
        let (start, method) = self.methods.as_ref()?.range(..=address).next_back()?;
        (address - start < u64::from(method.size)).then_some((*start, method))
    }

    pub fn lookup(&self, address: u64) -> Lookup {
        if let Some((start, method)) = self.method(address) {
            let after =
                method.rules.partition_point(|(offset, _)| start + u64::from(*offset) <= address);
            return Lookup::Rule(method.rules[after - 1].1);
        }
        match self.space.lookup(address) {
            Lookup::FramePointer if self.methods.is_some() => Lookup::Rule(self.stub(address)),
            other => other,
        }
    }

    /// The rule of generated code that is no method.
    fn stub(&self, address: u64) -> Rule {
        let mut code = [0; 2 * STUB_REACH];
        let read = self.read(address - STUB_REACH as u64, &mut code);
        let Some(stub) = stub_at(&code[..read], STUB_REACH) else {
            return Rule::simple(Packed::frame(Kind::Sp, 8, 0, 0).unwrap());
        };
        let offset = (STUB_REACH - stub.start) as u32;
        let after = stub.rules.partition_point(|(from, _)| *from <= offset);
        stub.rules[after - 1].1
    }

    pub fn is_mapped(&self, address: u64) -> bool {
        self.space.mapping(address).is_some()
    }

    /// Whether its perf map has grown since it was read.
    pub fn has_compiled_more(&self) -> bool {
        self.methods.is_some() && runtime::map_size(self.pid) != self.map_size
    }

    pub fn is_runtime(&self) -> bool {
        self.methods.is_some()
    }

    pub fn is_method(&self, address: u64) -> bool {
        self.method(address).is_some()
    }

    /// Generated code that is no method that we know.
    pub fn is_unknown(&self, address: u64) -> bool {
        self.methods.is_some()
            && self.method(address).is_none()
            && self.space.mapping(address).is_none_or(|mapping| mapping.table.is_none())
    }

    fn table(&mut self, path: &str, start: u64, end: u64, offset: u64) -> Option<Arc<UnwindTable>> {
        let inside = self.assembly(path, offset);
        let key = match inside {
            Some(inside) => format!("{path}+{inside:#x}"),
            None => path.to_owned(),
        };
        if let Some(table) = self.tables.get(&key) {
            return table.clone();
        }
        let limits = Limits::default();
        let table = if path == "[vdso]" {
            let mut image = vec![0; (end - start) as usize];
            self.read(start, &mut image);
            build(&image, &limits).ok()
        } else {
            let file = std::fs::File::open(path).ok();
            let source = file.map(|file| FileAt::new(file).unwrap());
            source.and_then(|source| match inside {
                Some(inside) => build_part(&source, inside..source.len(), &limits).ok(),
                None => build(&source, &limits).ok(),
            })
        };
        let table = table.map(Arc::new);
        self.tables.insert(key, table.clone());
        table
    }

    /// Where in the mapping's first page of a single-file .NET program an assembly starts.
    fn assembly(&self, path: &str, offset: u64) -> Option<u64> {
        if self.methods.is_none() || offset == 0 {
            return None;
        }
        let mut page = [0; 2 * 4096];
        std::fs::File::open(path).ok()?.read_exact_at(&mut page, offset).ok()?;
        let starts = (0..4096).step_by(16).find(|start| {
            let header = page[start + 0x3c..start + 0x40].try_into().map(u32::from_le_bytes);
            let signature = header.ok().and_then(|at| page.get(start + at as usize..));
            page[*start..].starts_with(b"MZ")
                && signature.is_some_and(|signature| signature.starts_with(b"PE\0\0"))
        })?;
        Some(offset + starts as u64)
    }

    /// File and address in its own numbering.
    pub fn place(&self, address: u64) -> (String, u64) {
        if let Some((start, method)) = self.method(address) {
            return (method.name.clone(), address - start);
        }
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
