//! Unwind rules: from one frame's registers to its caller's.
//!
//! A rule is one `u32` wherever it can be (the kernel's pc cache holds that word): a kind,
//! the offset of the CFA in words, and where the caller's frame pointer and *extra register* are
//! saved below the CFA. What does not fit (large frames, stack realignment, hand-written assembly)
//! takes the extended form: the word then holds the rule's own number, and the kernel reads the
//! rest of [`Rule`] from the rule array.
//!
//! The encoding is the same on every machine. Which registers it names (the extra one: RBX on
//! x86-64) and what a step does with a rule is the machine's: [`crate::arch`].
//!
//! Invariant: a packed word of zero means "no rule here" and never "a frame of size 0".

/// How the caller is found. The values are part of the kernel contract and of the cache file.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No table knows this code: follow the frame pointer.
    None = 0,
    /// CFA = stack pointer + offset.
    Sp = 1,
    /// CFA = frame pointer + offset.
    Fp = 2,
    /// The outermost frame of a stack (`_start`, a thread's start, `runtime.goexit`).
    End = 3,
    /// A signal frame: the interrupted registers are in the ucontext at the stack
    /// pointer.
    Signal = 4,
    /// A lazy PLT stub, which has pushed a word once `pc & 15` has reached the offset field.
    Plt = 5,
    /// Code known to keep a frame-pointer chain (JIT code).
    FramePointer = 6,
    /// As `FramePointer`, but the caller is on another stack (`asmcgocall`, `systemstack` since Go 1.21).
    StackSwitch = 7,
    /// CFA = extra register + offset (x86-64: `_dl_runtime_resolve`).
    Extra = 8,
    /// See [`Rule`]: the word holds the rule's number.
    Extended = 9,
    /// Call frame information strata cannot express; the stack ends here and is counted.
    Unsupported = 10,
    /// Code of a runtime that says what it generates, but not this yet: found as if no mapping
    /// covered it, so that the stack is copied and unwound once the runtime has published it.
    Unannounced = 11,
    /// The caller is where the thread left its goroutine for the system stack, in a function that does
    /// not save its caller's frame pointer (`systemstack` and `asmcgocall` before Go 1.21).
    Goroutine = 12,
}

const OFFSET_SHIFT: u32 = 4;
const OFFSET_BITS: u32 = 14;
const FP_SHIFT: u32 = OFFSET_SHIFT + OFFSET_BITS;
const EXTRA_SHIFT: u32 = FP_SHIFT + 4;

/// See [`Packed::with_epilogue_check`]. Rules of kind `Sp`, `Fp` and `Extended` may have it.
const EPILOGUE_CHECK: u32 = 1 << 31;

/// Largest CFA offset of a packed rule, in bytes.
pub const MAX_PACKED_OFFSET: u32 = ((1 << OFFSET_BITS) - 1) * 8;
/// Largest distance below the CFA of a saved register of a packed rule, in bytes.
pub const MAX_PACKED_SAVE: u32 = 15 * 8;
/// A rule number is 16 bits wide, in rows and in extended words.
pub const MAX_RULES: u32 = 1 << 16;

/// A rule in one word.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Packed(pub u32);

impl Packed {
    pub const NONE: Self = Self(Kind::None as u32);
    pub const END: Self = Self(Kind::End as u32);
    pub const SIGNAL: Self = Self(Kind::Signal as u32);
    pub const FRAME_POINTER: Self = Self(Kind::FramePointer as u32);
    pub const STACK_SWITCH: Self = Self(Kind::StackSwitch as u32);
    pub const UNSUPPORTED: Self = Self(Kind::Unsupported as u32);
    pub const UNANNOUNCED: Self = Self(Kind::Unannounced as u32);
    pub const GOROUTINE: Self = Self(Kind::Goroutine as u32);

    /// A rule of kind `Sp`, `Fp` or `Extra`. Offsets in bytes: the CFA's above the base register,
    /// the saved registers' below the CFA (0: not saved, the register is the caller's).
    /// `None` when something does not fit; the rule is then an extended one.
    #[must_use]
    pub const fn frame(kind: Kind, cfa: u32, fp_below: u32, extra_below: u32) -> Option<Self> {
        if cfa > MAX_PACKED_OFFSET
            || fp_below > MAX_PACKED_SAVE
            || extra_below > MAX_PACKED_SAVE
            || (cfa | fp_below | extra_below) & 7 != 0
        {
            return None;
        }
        Some(Self(
            kind as u32
                | (cfa / 8) << OFFSET_SHIFT
                | (fp_below / 8) << FP_SHIFT
                | (extra_below / 8) << EXTRA_SHIFT,
        ))
    }

    /// A lazy PLT stub whose push has run once `pc & 15` has reached `threshold`.
    #[must_use]
    pub const fn plt(threshold: u32) -> Self {
        Self(Kind::Plt as u32 | (threshold & 15) << OFFSET_SHIFT)
    }

    /// The word of the extended rule with this number.
    #[must_use]
    pub const fn extended(number: u16) -> Self {
        Self(Kind::Extended as u32 | (number as u32) << OFFSET_SHIFT)
    }

    /// The same rule for code that leaves its frame by the Windows convention (what the CLR's
    /// compilers emit): in a leaf frame, an epilogue is recognized by the instructions at the pc,
    /// and the rule is for everywhere else.
    #[must_use]
    pub const fn with_epilogue_check(self) -> Self {
        Self(self.0 | EPILOGUE_CHECK)
    }

    #[inline(always)]
    #[must_use]
    pub const fn checks_epilogue(self) -> bool {
        self.0 & EPILOGUE_CHECK != 0
    }

    #[inline(always)]
    #[must_use]
    pub const fn kind(self) -> u32 {
        self.0 & 15
    }

    /// The raw offset field: words above the base, a PLT threshold, or a rule number.
    #[inline(always)]
    #[must_use]
    pub const fn field(self) -> u32 {
        (self.0 & !EPILOGUE_CHECK) >> OFFSET_SHIFT
    }

    #[inline(always)]
    #[must_use]
    pub const fn cfa_offset(self) -> u64 {
        ((self.0 >> OFFSET_SHIFT) & ((1 << OFFSET_BITS) - 1)) as u64 * 8
    }

    /// Bytes below the CFA at which the frame pointer is saved; 0 when it is not.
    #[inline(always)]
    #[must_use]
    pub const fn fp_below(self) -> u64 {
        ((self.0 >> FP_SHIFT) & 15) as u64 * 8
    }

    /// Bytes below the CFA at which the extra register is saved; 0 when it is not.
    #[inline(always)]
    #[must_use]
    pub const fn extra_below(self) -> u64 {
        ((self.0 >> EXTRA_SHIFT) & 15) as u64 * 8
    }
}

/// The CFA is what lies at `base + cfa_offset`, plus `deref_add`. With another base than the frame pointer it
/// is on another stack, and may lie below the frame.
pub const FLAG_DEREF: u8 = 1;
/// Saved registers lie relative to the frame pointer, not to the CFA (stack realignment).
pub const FLAG_SAVES_AT_FP: u8 = 2;
/// The return address is in register `ra_register` (`vfork`); only in a leaf frame.
pub const FLAG_RA_IN_REGISTER: u8 = 4;
/// The frame pointer is saved at `fp_offset` (0 is a place too).
pub const FLAG_FP_SAVED: u8 = 8;
/// The extra register is saved at `extra_offset`.
pub const FLAG_EXTRA_SAVED: u8 = 16;
/// The return address is not where calls leave it but at CFA + `ra_offset`.
pub const FLAG_RA_OFFSET: u8 = 32;
/// `index_register` times `second` is added to `base + cfa_offset` (hand-written assembly that keeps
/// the caller's stack pointer behind an array).
pub const FLAG_INDEXED: u8 = 64;
/// With `FLAG_DEREF`, never with `FLAG_INDEXED`: what lies there is an address; the CFA is what lies at that
/// plus `second`, plus `deref_add` (OCaml 5's fibers: the stack pointer of the parent of a stack).
pub const FLAG_DEREF_TWICE: u8 = 128;

/// A whole rule, as the kernel's rule array holds it.
///
/// Rules whose word is not of kind `Extended` leave the other fields zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Rule {
    pub packed: Packed,
    /// DWARF number of the register the CFA counts from. Registers other than the stack pointer,
    /// the frame pointer and the extra one are known in leaf frames and their callers only.
    pub base: u8,
    pub flags: u8,
    pub ra_register: u8,
    pub index_register: u8,
    pub cfa_offset: i32,
    pub deref_add: i32,
    pub fp_offset: i32,
    pub extra_offset: i32,
    pub ra_offset: i32,
    /// What [`FLAG_INDEXED`] or [`FLAG_DEREF_TWICE`] says.
    pub second: u32,
}

const _: () = assert!(size_of::<Rule>() == 32);
const _: () = assert!(align_of::<Rule>() == 4);

impl Rule {
    #[must_use]
    pub const fn simple(packed: Packed) -> Self {
        Self {
            packed,
            base: 0,
            flags: 0,
            ra_register: 0,
            index_register: 0,
            cfa_offset: 0,
            deref_add: 0,
            fp_offset: 0,
            extra_offset: 0,
            ra_offset: 0,
            second: 0,
        }
    }

    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.packed.kind() == Kind::Extended as u32
    }
}
