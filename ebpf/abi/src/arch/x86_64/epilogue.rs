//! Epilogues recognized by their instructions, as Windows' unwinder does it: the CLR's compilers emit
//! unwind information for prologues only, and keep to this form on Linux too.
//!
//! An epilogue is `add rsp, N` or `lea rsp, [rbp - N]`, then pops, then `ret` or a jump out of
//! the method. Before the pops the body's rule holds; from there on the stack is what the
//! instructions say. (dotnet/runtime, docs/design/coreclr/botr/clr-abi.md, "Unwinding"; the
//! Windows x64 ABI, "Epilog code".)
//!
//! Invariant: bounded, without memory access, and without branches that the verifier would have
//! to follow twice.

use crate::rule::{Kind, Packed};

/// Bytes before the pc in a [`Code`]: what ran just before tells a jump out of a method from
/// one inside it.
pub const BYTES_BEFORE: u64 = 8;
/// 32 bytes of code, from [`BYTES_BEFORE`] before the pc on; zeros when they are not known.
pub type Code = [u64; 4];

/// Registers an epilogue may restore: RBX, RBP, R12 to R15, and two to spare.
const MOST_POPS: u32 = 8;

/// What is left to be undone at a pc inside an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// Words popped before the return address.
    pub pops: u64,
    /// Which of them, counted from 1, is RBP; 0 when it is restored already or never changed.
    pub fp_pop: u64,
}

/// 1 when `value` (below 2^63) is zero, else 0, without a branch.
#[inline(always)]
const fn is_zero(value: u64) -> u64 {
    value.wrapping_sub(1) >> 63
}

/// The epilogue that `code` is in, if it is in one.
#[inline(always)]
#[must_use]
pub fn at(code: &Code) -> Option<Epilogue> {
    let [before, mut low, mut middle, mut high] = *code;
    let mut pops = 0u64;
    let mut pops_to_fp = 1u64;
    let mut fp_popped = 0u64;
    let mut more = 1u64;
    for _ in 0..MOST_POPS {
        // `pop r64`: 58+r; with REX.B: 41 58+r.
        let short = is_zero((low & 0xf8) ^ 0x58);
        let long = is_zero((low & 0xf8ff) ^ 0x5841);
        more &= short | long;
        pops += more;
        fp_popped |= is_zero((low & 0xff) ^ 0x5d) & more;
        pops_to_fp += more & (fp_popped ^ 1);
        let bits = (8 + long * 8) * more;
        // Two shifts: one by 64 is none.
        low = low >> bits | middle << 1 << (63 - bits);
        middle = middle >> bits | high << 1 << (63 - bits);
        high >>= bits;
    }
    let returns = is_zero((low & 0xff) ^ 0xc3) | is_zero((low & 0xffff) ^ 0xc3f3);
    // `rex.W jmp r/m64` (48 FF /4): how the JIT marks a jump that leaves the method.
    let leaves = is_zero((low & 0x38_fff8) ^ 0x20_ff48);
    // `jmp rel32` leaves the method after pops or when the frame was given up just before.
    let jumps = is_zero((low & 0xff) ^ 0xe9) & (is_zero(pops) ^ 1 | frame_given_up(before));
    if returns | leaves | jumps == 0 {
        return None;
    }
    Some(Epilogue { pops, fp_pop: pops_to_fp & fp_popped.wrapping_neg() })
}

/// 1 when the eight bytes before an instruction end in `add rsp, imm8`, `add rsp, imm32`, or
/// `pop`.
#[inline(always)]
const fn frame_given_up(before: u64) -> u64 {
    let add_byte = is_zero((before >> 32 & 0xff_ffff) ^ 0xc4_8348);
    let add_long = is_zero((before >> 8 & 0xff_ffff) ^ 0xc4_8148);
    let pop = is_zero((before >> 56 & 0xff) ^ 0x5d);
    let pop_long = is_zero((before >> 48 & 0xf8ff) ^ 0x5841);
    add_byte | add_long | pop | pop_long
}

/// The rule of a *trampoline*: code that only calls, written at run time without any description
/// (CPython's, one for each function with `-X perf`: Python/asm_trampoline.S in 3.12 and 3.13).
///
/// ```text
/// sub $8,%rsp; call *%rcx; add $8,%rsp; ret
/// ```
///
/// It keeps no frame pointer, but what it will do to the stack is what it says. For a caller, `code`
/// is that behind the call, which cannot be mistaken: it is what runs next.
#[inline(always)]
#[must_use]
pub fn trampoline(code: &Code) -> Option<Packed> {
    const ADD_AND_RETURN: u64 = 0xc3_08c4_8348;
    const CALL: u64 = 0xd1ff;
    const ENTRY: u64 = 0x8348_d1ff_08ec_8348;
    let [before, at, ..] = *code;
    let adds = is_zero((at & 0xff_ffff_ffff) ^ ADD_AND_RETURN);
    let calls = is_zero((at & 0xff_ffff_ffff_ffff) ^ (ADD_AND_RETURN << 16 | CALL));
    let returns =
        is_zero((at & 0xff) ^ 0xc3) & is_zero((before >> 32) ^ (ADD_AND_RETURN & 0xffff_ffff));
    // Its top bit is set, as `is_zero` forbids.
    let enters = is_zero((at ^ ENTRY) >> 1 | (at ^ ENTRY) & 1);
    if adds | calls != 0 {
        return Packed::frame(Kind::Sp, 16, 0, 0);
    }
    if returns | enters != 0 {
        return Packed::frame(Kind::Sp, 8, 0, 0);
    }
    None
}

/// Bytes before the pc, of eight that lie within a trampoline if the pc is behind its call.
pub const TRAMPOLINE_BEFORE: u64 = 3;

/// The code that those eight bytes are a part of; the rest is not known.
#[inline(always)]
#[must_use]
pub const fn code_after_call(bytes: u64) -> Code {
    let before = TRAMPOLINE_BEFORE * 8;
    [bytes << (64 - before), bytes >> before, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `code` with `before` ending where `after` starts.
    fn code(before: &[u8], after: &[u8]) -> Code {
        let mut bytes = [0u8; 32];
        bytes[8 - before.len()..8].copy_from_slice(before);
        bytes[8..8 + after.len()].copy_from_slice(after);
        let mut words = [0u64; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap());
        }
        words
    }

    #[test]
    fn a_return_alone_is_the_end_of_an_epilogue() {
        assert_eq!(at(&code(&[0x5d], &[0xc3])), Some(Epilogue { pops: 0, fp_pop: 0 }));
    }

    #[test]
    fn pops_are_counted_and_the_frame_pointer_among_them_is_found() {
        // pop rbx; pop r14; pop r15; pop rbp; ret
        let pops = [0x5b, 0x41, 0x5e, 0x41, 0x5f, 0x5d, 0xc3];
        assert_eq!(at(&code(&[], &pops)), Some(Epilogue { pops: 4, fp_pop: 4 }));
        assert_eq!(at(&code(&[], &pops[1..])), Some(Epilogue { pops: 3, fp_pop: 3 }));
        // pop r13 has rbp's low byte, and is not rbp
        assert_eq!(at(&code(&[], &[0x41, 0x5d, 0xc3])), Some(Epilogue { pops: 1, fp_pop: 0 }));
        // six registers and a return: 10 bytes
        let six = [0x5b, 0x41, 0x5c, 0x41, 0x5d, 0x41, 0x5e, 0x41, 0x5f, 0x5d, 0xc3];
        assert_eq!(at(&code(&[], &six)), Some(Epilogue { pops: 6, fp_pop: 6 }));
    }

    #[test]
    fn jumps_out_of_a_method_are_epilogues_and_jumps_inside_are_not() {
        // rex.W jmp rax
        assert_eq!(at(&code(&[], &[0x48, 0xff, 0xe0])), Some(Epilogue { pops: 0, fp_pop: 0 }));
        // rex.W jmp [rip + 1]
        assert!(at(&code(&[], &[0x48, 0xff, 0x25, 1, 0, 0, 0])).is_some());
        // jmp rax: a switch
        assert_eq!(at(&code(&[], &[0xff, 0xe0])), None);
        // jmp rel32
        assert_eq!(at(&code(&[0x90], &[0xe9, 1, 0, 0, 0])), None);
        assert!(at(&code(&[0x48, 0x83, 0xc4, 0x28], &[0xe9, 1, 0, 0, 0])).is_some());
        assert!(at(&code(&[0x48, 0x81, 0xc4, 0, 1, 0, 0], &[0xe9, 1, 0, 0, 0])).is_some());
        assert!(at(&code(&[], &[0x5d, 0xe9, 1, 0, 0, 0])).is_some());
    }

    #[test]
    fn a_trampoline_is_followed_at_each_of_its_instructions() {
        // sub $8,%rsp; call *%rcx; add $8,%rsp; ret: CPython 3.12 and 3.13, and the next one
        let one = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
        let two = [one, one].concat();
        let frame = |cfa| Packed::frame(Kind::Sp, cfa, 0, 0);
        for (offset, cfa) in [(0, 8), (4, 16), (6, 16), (10, 8)] {
            let (before, after) = two.split_at(offset);
            let before = &before[before.len().saturating_sub(8)..];
            assert_eq!(trampoline(&code(before, after)), frame(cfa), "at {offset}");
        }
        // A frame of another size, a return after something else, and nothing at all.
        assert_eq!(trampoline(&code(&[], &[0x48, 0x83, 0xc4, 0x18, 0xc3])), None);
        assert_eq!(trampoline(&code(&[0x5d], &[0xc3])), None);
        assert_eq!(trampoline(&[0; 4]), None);
        let around_call = &one[6 - TRAMPOLINE_BEFORE as usize..];
        let around_call = u64::from_le_bytes(around_call.try_into().unwrap());
        assert_eq!(trampoline(&code_after_call(around_call)), frame(16), "all that is read");
    }

    #[test]
    fn other_code_is_not_an_epilogue() {
        assert_eq!(at(&code(&[], &[0x48, 0x89, 0xc3])), None);
        assert_eq!(at(&code(&[], &[0x48, 0x83, 0xc4, 0x28, 0xc3])), None);
        // a pop that nothing like a return follows
        assert_eq!(at(&code(&[], &[0x58, 0x90])), None);
        assert_eq!(at(&[0; 4]), None);
    }
}
