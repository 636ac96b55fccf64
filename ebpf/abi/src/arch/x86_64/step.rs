//! The step on x86-64: a call leaves the return address just below the CFA.

use super::epilogue;
use super::register;
use crate::record::End;
use crate::rule::{self, Kind, Packed};
use crate::step::{EXACT, Frame, Machine};

/// Offsets in the ucontext that the kernel pushes for a signal (x86-64:
/// arch/x86/include/uapi/asm/sigcontext.h, `struct sigcontext_64` behind 40 bytes of
/// `uc_flags`, `uc_link` and `uc_stack`).
mod ucontext {
    pub const REGISTERS: u64 = 40;
    pub const RBP: u64 = REGISTERS + 80;
    pub const RBX: u64 = REGISTERS + 88;
    pub const RSP: u64 = REGISTERS + 120;
    pub const RIP: u64 = REGISTERS + 128;

    /// From the start of the registers, by DWARF number.
    pub const fn by_number(number: u8) -> u64 {
        match number {
            0 => 104,                                 // rax
            1 => 96,                                  // rdx
            2 => 112,                                 // rcx
            3 => 88,                                  // rbx
            4 => 72,                                  // rsi
            5 => 64,                                  // rdi
            6 => 80,                                  // rbp
            7 => 120,                                 // rsp
            _ => (number as u64).wrapping_sub(8) * 8, // r8..r15
        }
    }
}

/// Moves `frame` to its caller by `word`; `Some` when the stack ends at this frame.
#[inline(always)]
pub fn step<M: Machine>(machine: &mut M, frame: &mut Frame, word: Packed) -> Option<End> {
    if word.checks_epilogue()
        && frame.exact & EXACT != 0
        && let Some(code) = machine.code(frame.pc)
        && let Some(epilogue) = epilogue::at(&code)
    {
        return leave_epilogue(machine, frame, epilogue);
    }
    let kind = word.kind();
    if kind == Kind::Sp as u32 || kind == Kind::Fp as u32 {
        let base = if kind == Kind::Sp as u32 { frame.sp } else { frame.fp };
        let cfa = base.wrapping_add(word.cfa_offset());
        let grown = cfa.wrapping_sub(frame.sp) as i64;
        // The innermost function may have taken its return address off the stack (OCaml's `caml_c_call`).
        if grown <= 0 && (grown < 0 || frame.exact & EXACT == 0) {
            return Some(End::StackNotGrowing);
        }
        return to_caller(machine, frame, cfa, word);
    }
    uncommon_step(machine, frame, word)
}

#[inline(always)]
fn leave_epilogue<M: Machine>(
    machine: &mut M,
    frame: &mut Frame,
    epilogue: epilogue::Epilogue,
) -> Option<End> {
    if epilogue.fp_pop != 0 {
        match machine.read(frame.sp.wrapping_add(epilogue.fp_pop * 8 - 8)) {
            Some(fp) => frame.fp = fp,
            None => return Some(End::UnreadableStack),
        }
    }
    return_to(machine, frame, frame.sp.wrapping_add(epilogue.pops * 8 + 8))
}

/// The caller of a frame whose return address is just below `cfa`.
#[inline(always)]
fn to_caller<M: Machine>(
    machine: &mut M,
    frame: &mut Frame,
    cfa: u64,
    word: Packed,
) -> Option<End> {
    let fp_below = word.fp_below();
    if fp_below != 0 {
        match machine.read(cfa.wrapping_sub(fp_below)) {
            Some(fp) => frame.fp = fp,
            None => return Some(End::UnreadableStack),
        }
    }
    let extra_below = word.extra_below();
    if extra_below != 0 {
        frame.extra_at = cfa.wrapping_sub(extra_below);
    }
    return_to(machine, frame, cfa)
}

#[inline(always)]
fn return_to<M: Machine>(machine: &mut M, frame: &mut Frame, cfa: u64) -> Option<End> {
    let Some(pc) = machine.read(cfa.wrapping_sub(8)) else {
        return Some(End::UnreadableStack);
    };
    arrive(frame, pc, cfa)
}

#[inline(always)]
fn arrive(frame: &mut Frame, pc: u64, sp: u64) -> Option<End> {
    // Where threads and programs start, rules say so (`Kind::End`).
    if pc == 0 {
        return Some(if is_top_of_a_stack(sp) { End::Complete } else { End::NoReturnAddress });
    }
    frame.pc = pc;
    frame.sp = sp;
    // An exact frame's caller is `CALLED`.
    frame.exact = (frame.exact & EXACT) << 1;
    if frame.exact == 0 {
        frame.context = 0;
    }
    frame.by_pointer = 0;
    None
}

/// Whether a stack may begin here: coroutines (Ruby's, Crystal's) put a return address of 0 at the very end of
/// whole pages. Anywhere else, zeros are memory that has been misread as a stack.
#[inline(always)]
const fn is_top_of_a_stack(sp: u64) -> bool {
    sp.wrapping_add(MOST_ABOVE) & (PAGE - 1) <= MOST_ABOVE + MOST_BEYOND
}

const PAGE: u64 = 4096;
/// What a coroutine's maker leaves above its first frame at most.
const MOST_ABOVE: u64 = 255;
/// How far a stack of whole pages from `malloc` lies behind a page's start.
const MOST_BEYOND: u64 = 32;

#[inline(always)]
fn uncommon_step<M: Machine>(machine: &mut M, frame: &mut Frame, word: Packed) -> Option<End> {
    let kind = word.kind();
    if kind == Kind::None as u32
        || kind == Kind::FramePointer as u32
        || kind == Kind::StackSwitch as u32
    {
        return follow_frame_pointer(machine, frame, kind == Kind::StackSwitch as u32);
    }
    if kind == Kind::End as u32 {
        return Some(End::Complete);
    }
    if kind == Kind::Plt as u32 {
        let pushed = (frame.pc & 15) >= (word.field() & 15) as u64;
        let cfa = frame.sp.wrapping_add(if pushed { 16 } else { 8 });
        return return_to(machine, frame, cfa);
    }
    if kind == Kind::Extra as u32 {
        let Some(base) = extra(machine, frame) else {
            return Some(End::UnreadableStack);
        };
        // No compiler's frames count from it on the stack of their callee: in OCaml 5's code it holds the
        // stack pointer while C runs on another stack, above or below.
        return to_caller(machine, frame, base.wrapping_add(word.cfa_offset()), word);
    }
    if kind == Kind::Signal as u32 {
        return leave_signal(machine, frame);
    }
    if kind == Kind::Extended as u32 {
        return extended_step(machine, frame, word);
    }
    if kind == Kind::Goroutine as u32
        && let Some(sp) = machine.left_goroutine(frame.fp)
    {
        return return_to(machine, frame, sp.wrapping_add(8));
    }
    Some(End::UnsupportedRule)
}

#[inline(always)]
fn follow_frame_pointer<M: Machine>(
    machine: &mut M,
    frame: &mut Frame,
    other_stack: bool,
) -> Option<End> {
    let fp = frame.fp;
    // The ABI marks the outermost frame with a frame pointer of zero. That is the end of a chain, which has
    // led here; where none has, and no rule says that it has just been set, the register may hold any number,
    // such as that of `_start`, which nothing has changed since in a program without frame pointers.
    if fp == 0 {
        let is_chain = frame.by_pointer != 0 || other_stack;
        return Some(if is_chain { End::Complete } else { End::BrokenChain });
    }
    if fp & 7 != 0 || (!other_stack && (fp.wrapping_sub(frame.sp) as i64) < 0) {
        return Some(End::BrokenChain);
    }
    let (Some(caller), Some(pc)) = (machine.read(fp), machine.read(fp.wrapping_add(8))) else {
        return Some(End::BrokenChain);
    };
    frame.fp = caller;
    let end = arrive(frame, pc, fp.wrapping_add(16));
    frame.by_pointer = 1;
    end
}

#[inline(always)]
fn leave_signal<M: Machine>(machine: &mut M, frame: &mut Frame) -> Option<End> {
    let at = frame.sp;
    let (Some(pc), Some(sp), Some(fp)) = (
        machine.read(at.wrapping_add(ucontext::RIP)),
        machine.read(at.wrapping_add(ucontext::RSP)),
        machine.read(at.wrapping_add(ucontext::RBP)),
    ) else {
        return Some(End::UnreadableStack);
    };
    frame.fp = fp;
    frame.extra_at = at.wrapping_add(ucontext::RBX);
    let end = arrive(frame, pc, sp);
    frame.context = at.wrapping_add(ucontext::REGISTERS);
    frame.exact = EXACT;
    end
}

#[inline(always)]
fn extra<M: Machine>(machine: &mut M, frame: &Frame) -> Option<u64> {
    if frame.extra_at == 0 { Some(frame.extra) } else { machine.read(frame.extra_at) }
}

#[inline(always)]
fn any_register<M: Machine>(machine: &mut M, frame: &Frame, number: u8) -> Option<u64> {
    if number == register::RSP {
        return Some(frame.sp);
    }
    if number == register::RBP {
        return Some(frame.fp);
    }
    if number == register::RBX {
        return extra(machine, frame);
    }
    if frame.exact == 0 || number >= register::COUNT {
        return None;
    }
    if frame.context != 0 {
        return machine.read(frame.context.wrapping_add(ucontext::by_number(number)));
    }
    machine.register(number)
}

#[inline(always)]
fn extended_step<M: Machine>(machine: &mut M, frame: &mut Frame, word: Packed) -> Option<End> {
    let Some(rule) = machine.extended(word.field() as u16) else {
        return Some(End::UnsupportedRule);
    };
    let Some(base) = any_register(machine, frame, rule.base) else {
        return Some(End::UnsupportedRule);
    };
    let mut cfa = base.wrapping_add(rule.cfa_offset as i64 as u64);
    if rule.flags & rule::FLAG_INDEXED != 0 {
        let Some(index) = any_register(machine, frame, rule.index_register) else {
            return Some(End::UnsupportedRule);
        };
        cfa = cfa.wrapping_add(index.wrapping_mul(rule.second as u64));
    }
    if rule.flags & rule::FLAG_DEREF != 0 {
        let mut value = machine.read(cfa);
        if rule.flags & rule::FLAG_DEREF_TWICE != 0
            && let Some(first) = value
        {
            value = machine.read(first.wrapping_add(rule.second as u64));
        }
        match value {
            Some(value) => cfa = value.wrapping_add(rule.deref_add as i64 as u64),
            None => return Some(End::UnreadableStack),
        }
    }
    // A stack pointer that is loaded through another register than the frame pointer (by which realigned
    // frames find theirs) is that of another stack, which may lie anywhere.
    let switches = rule.flags & rule::FLAG_DEREF != 0 && rule.base != register::RBP;
    if !switches && (cfa.wrapping_sub(frame.sp) as i64) < 0 {
        return Some(End::StackNotGrowing);
    }
    let saves = if rule.flags & rule::FLAG_SAVES_AT_FP != 0 { frame.fp } else { cfa };
    let pc = if rule.flags & rule::FLAG_RA_IN_REGISTER != 0 {
        any_register(machine, frame, rule.ra_register)
    } else if rule.flags & rule::FLAG_RA_OFFSET != 0 {
        machine.read(cfa.wrapping_add(rule.ra_offset as i64 as u64))
    } else {
        machine.read(cfa.wrapping_sub(8))
    };
    let Some(pc) = pc else {
        return Some(End::UnreadableStack);
    };
    if rule.flags & rule::FLAG_EXTRA_SAVED != 0 {
        frame.extra_at = saves.wrapping_add(rule.extra_offset as i64 as u64);
    }
    if rule.flags & rule::FLAG_FP_SAVED != 0 {
        match machine.read(saves.wrapping_add(rule.fp_offset as i64 as u64)) {
            Some(fp) => frame.fp = fp,
            None => return Some(End::UnreadableStack),
        }
    }
    arrive(frame, pc, cfa)
}
