//! Rules for Go code, which has no call frame information: from the line table's stack deltas.
//!
//! The table tells how far RSP is below its value at the function's start. Where RBP is saved it
//! does not tell; Go's assembler writes one of two prologues (`cmd/internal/obj/x86/obj6.go`,
//! `preprocess`), and both put it just below the return address:
//!
//! - since Go 1.21 `push %rbp; mov %rsp,%rbp; sub $n,%rsp`
//! - before `sub $n,%rsp; mov %rbp,n-8(%rsp); lea n-8(%rsp),%rbp`
//!
//! Functions that move to another stack (`runtime.systemstack`, `runtime.asmcgocall`) keep the
//! caller's frame in RBP, or set it to 0 where there is no caller (`runtime.mcall`).
//!
//! Invariant: the line table yields ascending disjoint ranges; this adds no more rows than it has.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use strata_abi::rule::{FLAG_FP_SAVED, FLAG_RA_IN_REGISTER, Kind, Packed, Rule, register};
use strata_golang::table::{FLAG_SP_WRITE, Function};
use strata_golang::{ModuleData, PclnTab, Version};

use crate::coverage::Proposal;
use crate::elf::{Elf, Section};
use crate::limits::Limits;
use crate::read::ReadAt;
use crate::rules::{self, Rules};
use crate::window::Window;

/// Functions longer than this that write SP are not decoded further.
const MAX_DECODED: u64 = 16 << 10;
const R12: u8 = 12;

/// The line table's bytes and what is needed to read them.
pub(crate) struct LineTable {
    bytes: Vec<u8>,
    offset: usize,
    text_start: Option<u64>,
}

impl LineTable {
    /// Finds the line table of a Go program.
    pub fn read<R: ReadAt + ?Sized>(elf: &Elf, source: &R, limits: &Limits) -> Option<Self> {
        let named = [".gopclntab", ".data.rel.ro.gopclntab"];
        let is_go = [".go.buildinfo", ".go.module", ".note.go.buildid"];
        let (section, bytes, offset) = match named.iter().find_map(|name| elf.section(name)) {
            Some(section) => (section, elf.read_section(source, section, limits).ok()?, 0),
            None if is_go.iter().any(|name| elf.section(name).is_some()) => {
                [".rodata", ".data.rel.ro"].iter().find_map(|name| {
                    let section = elf.section(name)?;
                    let bytes = elf.read_section(source, section, limits).ok()?;
                    let offset = strata_golang::find_header(&bytes)?;
                    Some((section, bytes, offset))
                })?
            }
            None => return None,
        };
        let text_start = Self::text_start(elf, source, limits, section, &bytes, offset);
        Some(Self { bytes, offset, text_start })
    }

    fn text_start<R: ReadAt + ?Sized>(
        elf: &Elf,
        source: &R,
        limits: &Limits,
        table: &Section,
        bytes: &[u8],
        offset: usize,
    ) -> Option<u64> {
        let header = strata_golang::Header::parse(bytes.get(offset..)?).ok()?;
        let address = table.address.checked_add(offset as u64)?;
        let holders = [".go.module", ".noptrdata", ".data", ".data.rel.ro"];
        let found = holders.iter().find_map(|name| {
            let section = elf.section(name)?;
            let bytes = elf.read_section(source, section, limits).ok()?;
            ModuleData::find(&bytes, section.address, address, &header)
        });
        match found {
            Some(module) => Some(module.text),
            None if header.text_start != 0 => None,
            None => elf.section(".text").map(|section| section.address),
        }
    }
}

/// Proposes rows for all of Go's functions; returns how many functions there are.
pub(crate) fn propose<R: ReadAt + ?Sized>(
    table: &LineTable,
    elf: &Elf,
    source: &R,
    limits: &Limits,
    rules: &mut Rules,
) -> (Proposal, u64) {
    let mut proposal = Proposal::default();
    let bytes = table.bytes.get(table.offset..).unwrap_or_default();
    let Ok(table) = PclnTab::parse(bytes, table.text_start) else { return (proposal, 0) };
    let mut window = Window::new(elf, source, limits.max_section);
    let mut count = 0;
    for function in table.functions() {
        if proposal.rows.len() > limits.max_rows as usize || count >= u64::from(limits.max_entries)
        {
            break;
        }
        count += 1;
        if is_signal_restorer(&table, &function) {
            restorer(&function, rules.packed(Packed::SIGNAL), &mut proposal);
            continue;
        }
        let first = proposal.rows.len();
        let mut shape = Shape { rules, window: &mut window, function: &function };
        shape.rows(&table, &mut proposal.rows);
        proposal.close(function.entry, function.end, first);
    }
    (proposal, count)
}

fn is_signal_restorer(table: &PclnTab<'_>, function: &Function) -> bool {
    function.end - function.entry <= 64
        && table.name(function).is_some_and(|name| {
            matches!(name.as_ref(), "runtime.sigreturn__sigaction" | "runtime.sigreturn")
        })
}

/// The kernel makes the restorer's first byte the signal handler's return address, and callers
/// are looked up by the byte before: that byte, padding of the function before, is its too.
fn restorer(function: &Function, signal: u16, proposal: &mut Proposal) {
    if let Some(before) = proposal.fills.last_mut()
        && before.end == function.entry
        && before.rows.end == proposal.rows.len()
    {
        proposal.rows.push((function.entry - 1, signal));
        before.rows.end += 1;
    }
    proposal.single(function.entry, function.end, signal);
}

struct Shape<'s, 'a, R: ReadAt + ?Sized> {
    rules: &'s mut Rules,
    window: &'s mut Window<'a, R>,
    function: &'s Function,
}

impl<R: ReadAt + ?Sized> Shape<'_, '_, R> {
    fn rows(&mut self, table: &PclnTab<'_>, rows: &mut Vec<(u64, u16)>) {
        let writes_sp = self.function.flags & FLAG_SP_WRITE != 0;
        // All functions of interest are written in assembly; old tables do not say which are.
        let is_special = self.function.flags != 0 || table.header().version <= Version::Go116;
        let name = if is_special { table.name(self.function) } else { None };
        let name = name.as_deref().unwrap_or_default();
        let starts = name.starts_with("_rt0_") && !name.starts_with("_rt0_amd64_lib");
        // Its caller is the signal restorer, and beyond that the code that was interrupted.
        let handles_signals = name.starts_with("runtime.sigtramp");
        if starts || table.is_top_frame(self.function) && !handles_signals {
            let end = self.rules.packed(Packed::END);
            rows.push((self.function.entry, end));
            return;
        }
        let switch = if writes_sp || is_old_switch(name) { self.first_sp_write() } else { None };
        let mut saved_from = None;
        let mut last_delta = 0;
        for range in table.sp_deltas(self.function) {
            if last_delta == 0 && range.value > 0 && saved_from.is_none() {
                saved_from = self.rbp_saved_from(range.start, range.value);
            }
            last_delta = range.value;
            let mut cuts = [Some(range.start), saved_from, switch];
            cuts.sort_unstable();
            for pc in cuts.into_iter().flatten() {
                if pc < range.start || pc >= range.end {
                    continue;
                }
                let saved = range.value >= 8 && saved_from.is_some_and(|from| pc >= from);
                // Where RBP is saved and RSP is back at its first value, the function is about to
                // return on the stack it was called on.
                let switched =
                    switch.is_some_and(|at| pc >= at) && (range.value != 0 || saved_from.is_none());
                let rule = if switched {
                    self.after_switch(saved, name)
                } else {
                    self.frame(range.value, saved)
                };
                rows.push((pc, rule));
            }
        }
    }

    fn frame(&mut self, delta: i32, saved: bool) -> u16 {
        match u32::try_from(delta) {
            Ok(delta) => {
                let cfa = delta.saturating_add(8);
                let below = if saved { 16 } else { 0 };
                match Packed::frame(Kind::Sp, cfa, below, 0) {
                    Some(word) => self.rules.packed(word),
                    None => self.rules.extended(large_frame(cfa, saved)),
                }
            }
            // syscall.rawVforkSyscall pops its return address into R12 around the system call.
            Err(_) if delta == -8 => self.rules.extended(Rule {
                base: register::RSP,
                flags: FLAG_RA_IN_REGISTER,
                ra_register: R12,
                ..Rule::default()
            }),
            Err(_) => rules::UNSUPPORTED,
        }
    }

    /// The rule once the function is on another stack.
    fn after_switch(&mut self, saved: bool, name: &str) -> u16 {
        if saved {
            return self.rules.packed(Packed::STACK_SWITCH);
        }
        // These never return to the code they were called from; a new stack begins.
        if matches!(
            name,
            "gogo" | "runtime.gogo" | "runtime.mcall" | "runtime.morestack" | "runtime.clone"
        ) {
            return self.rules.packed(Packed::END);
        }
        rules::UNSUPPORTED
    }

    /// From which address on RBP lies at CFA - 16, given where RSP first moved and by how much.
    fn rbp_saved_from(&mut self, moved: u64, delta: i32) -> Option<u64> {
        let before = moved.checked_sub(1)?;
        let code = self.window.code(before, 10);
        let distance = i64::from(delta) - 8;
        match *code {
            [PUSH_RBP, ..] if delta == 8 => Some(moved),
            // mov %rbp, distance(%rsp), with a distance of one or of four bytes
            [_, 0x48, 0x89, 0x6c, 0x24, byte, ..] if i64::from(byte.cast_signed()) == distance => {
                Some(moved + 5)
            }
            [_, 0x48, 0x89, 0xac, 0x24, a, b, c, d, ..]
                if i64::from(i32::from_le_bytes([a, b, c, d])) == distance =>
            {
                Some(moved + 8)
            }
            // mov %rbp, (%rsp)
            [_, 0x48, 0x89, 0x2c, 0x24, ..] if distance == 0 => Some(moved + 4),
            _ => None,
        }
    }

    /// The end of the first instruction that sets RSP to something the table cannot follow.
    fn first_sp_write(&mut self) -> Option<u64> {
        let size = (self.function.end - self.function.entry).min(MAX_DECODED);
        let code = self.window.code(self.function.entry, size as usize);
        let decoder = Decoder::with_ip(64, code, self.function.entry, DecoderOptions::NONE);
        decoder.into_iter().find(sets_stack_pointer).map(|instruction| instruction.next_ip())
    }
}

const PUSH_RBP: u8 = 0x55;

fn sets_stack_pointer(instruction: &iced_x86::Instruction) -> bool {
    if instruction.op0_kind() != OpKind::Register || instruction.op0_register() != Register::RSP {
        return false;
    }
    match instruction.mnemonic() {
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => false,
        Mnemonic::Add | Mnemonic::Sub => instruction.op1_kind() == OpKind::Register,
        Mnemonic::Lea => instruction.memory_base() != Register::RSP,
        _ => true,
    }
}

/// Functions that switch stacks, for Go before 1.17, whose table does not mark them.
fn is_old_switch(name: &str) -> bool {
    matches!(
        name,
        "gogo"
            | "runtime.gogo"
            | "runtime.mcall"
            | "runtime.systemstack"
            | "runtime.morestack"
            | "runtime.asmcgocall"
            | "runtime.cgocallback"
            | "runtime.cgocallback_gofunc"
            | "runtime.clone"
            | "runtime.nanotime1"
            | "runtime.walltime1"
            | "runtime.sigfwd"
    )
}

fn large_frame(cfa: u32, saved: bool) -> Rule {
    Rule {
        base: register::RSP,
        cfa_offset: i32::try_from(cfa).unwrap_or(i32::MAX),
        flags: if saved { FLAG_FP_SAVED } else { 0 },
        fp_offset: if saved { -16 } else { 0 },
        ..Rule::default()
    }
}
