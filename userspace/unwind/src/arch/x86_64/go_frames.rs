//! Rules of one function of Go on x86-64.
//!
//! The table holds how far RSP is below its value at the function's start, but not where RBP is
//! saved; Go's assembler writes one of two prologues (`cmd/internal/obj/x86/obj6.go`,
//! `preprocess`), and both put it just below the return address:
//!
//! - since Go 1.21 `push %rbp; mov %rsp,%rbp; sub $n,%rsp`
//! - before `sub $n,%rsp; mov %rbp,n-8(%rsp); lea n-8(%rsp),%rbp`
//!
//! Functions that move to another stack (`runtime.systemstack`, `runtime.asmcgocall`) keep their own
//! frame in RBP since Go 1.21, or set it to 0 where there is no caller (`runtime.mcall`). Before they
//! leave their caller's in it, which leads past that caller: theirs is found where the goroutine was
//! left ([`Kind::Goroutine`]).
//!
//! Invariant: rows ascend, and there are at most five for each range of the table.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use strata_abi::register;
use strata_abi::rule::{FLAG_FP_SAVED, FLAG_RA_IN_REGISTER, Kind, Packed, Rule};
use strata_golang::table::{FLAG_SP_WRITE, Function};
use strata_golang::{PclnTab, Version};

use crate::rules::{self, Rules};
use crate::window::Window;
use strata_bytes::ReadAt;

/// Functions longer than this that write SP are not decoded further.
const MAX_DECODED: u64 = 16 << 10;
const R12: u8 = 12;

/// What the kernel makes signal handlers return to.
pub(crate) fn is_go_restorer(table: &PclnTab<'_>, function: &Function) -> bool {
    function.end - function.entry <= 64
        && table.name(function).is_some_and(|name| {
            matches!(name.as_ref(), "runtime.sigreturn__sigaction" | "runtime.sigreturn")
        })
}

/// Adds the rows of a function.
pub(crate) fn go_function<R: ReadAt + ?Sized>(
    table: &PclnTab<'_>,
    function: &Function,
    window: &mut Window<'_, R>,
    rules: &mut Rules,
    rows: &mut Vec<(u64, u16)>,
) {
    Shape { rules, window, function }.rows(table, rows);
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
        let [switch, back] =
            if writes_sp || is_old_switch(name) { self.sp_writes() } else { [None; 2] };
        // Others align SP before they call.
        let back = back.filter(|_| name == SYSTEM_STACK);
        let mut saved_from = None;
        let mut last_delta = 0;
        for range in table.sp_deltas(self.function) {
            if last_delta == 0 && range.value > 0 && saved_from.is_none() {
                saved_from = self.rbp_saved_from(range.start, range.value);
            }
            last_delta = range.value;
            let restored = switch.and_then(|_| self.rbp_restored_from(range.end, range.value));
            let mut cuts = [Some(range.start), saved_from, switch, back, restored];
            cuts.sort_unstable();
            for pc in cuts.into_iter().flatten() {
                if pc < range.start || pc >= range.end {
                    continue;
                }
                let saved = range.value >= 8 && saved_from.is_some_and(|from| pc >= from);
                // Where RBP is saved and RSP is back at its first value, the function is about to
                // return on the stack it was called on. Where RBP is not, the second write says so.
                let switched = switch.is_some_and(|at| pc >= at)
                    && restored.is_none_or(|at| pc < at)
                    && match saved_from {
                        Some(_) => range.value != 0,
                        None => back.is_none_or(|at| pc < at),
                    };
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
        if matches!(name, SYSTEM_STACK | "runtime.asmcgocall") {
            return self.rules.packed(Packed::GOROUTINE);
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

    /// From which address on RBP is the caller's again in a range that ends where RSP is its first
    /// value, in functions that do not pop it: `mov n-8(%rsp),%rbp; add $n,%rsp`.
    fn rbp_restored_from(&mut self, end: u64, delta: i32) -> Option<u64> {
        let distance = delta.checked_sub(8)?;
        let mut code = match (distance, i8::try_from(distance)) {
            (0, _) => vec![0x48, 0x8b, 0x2c, 0x24],
            (_, Ok(byte)) => vec![0x48, 0x8b, 0x6c, 0x24, byte.cast_unsigned()],
            _ => [&[0x48, 0x8b, 0xac, 0x24][..], &distance.to_le_bytes()].concat(),
        };
        let restored = code.len() as u64;
        match i8::try_from(delta) {
            Ok(byte) => code.extend([0x48, 0x83, 0xc4, byte.cast_unsigned()]),
            Err(_) => code.extend([&[0x48, 0x81, 0xc4][..], &delta.to_le_bytes()].concat()),
        }
        let start = end.checked_sub(code.len() as u64)?;
        (self.window.code(start, code.len()) == code).then(|| start + restored)
    }

    /// The ends of the first two instructions that set RSP to something the table cannot follow.
    fn sp_writes(&mut self) -> [Option<u64>; 2] {
        let size = (self.function.end - self.function.entry).min(MAX_DECODED);
        let code = self.window.code(self.function.entry, size as usize);
        let decoder = Decoder::with_ip(64, code, self.function.entry, DecoderOptions::NONE);
        let mut writes = decoder.into_iter().filter(sets_stack_pointer);
        [writes.next(), writes.next()].map(|write| write.map(|instruction| instruction.next_ip()))
    }
}

/// Calls a function on the system stack.
const SYSTEM_STACK: &str = "runtime.systemstack";

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
            | SYSTEM_STACK
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
