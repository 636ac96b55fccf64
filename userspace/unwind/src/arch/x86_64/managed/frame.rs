//! What a frame looks like at one instruction, and its unwind rule.

use strata_abi::register;
use strata_abi::rule::{FLAG_FP_SAVED, Kind, Packed, Rule};

/// What the CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Sp,
    Fp,
    /// Another register, by its DWARF number.
    Register(u8),
}

/// Where the caller's frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub base: Base,
    /// Bytes from the base up to the CFA.
    pub cfa: u32,
    /// Bytes below the CFA at which RBP is saved; 0 when it is still the caller's.
    pub fp_below: u32,
}

impl Frame {
    /// Just after a call.
    pub const ENTRY: Self = Self { base: Base::Sp, cfa: 8, fp_below: 0 };
    /// The body of a method that keeps a frame pointer: RBP points to the caller's RBP.
    pub const FRAME_POINTER: Self = Self { base: Base::Fp, cfa: 16, fp_below: 16 };

    /// Its rule. RBX is not among what rules of managed code say: only the dynamic linker's
    /// resolver counts a CFA from it, and that never calls managed code.
    pub fn rule(self) -> Rule {
        let kind = match self.base {
            Base::Sp => Some(Kind::Sp),
            Base::Fp => Some(Kind::Fp),
            Base::Register(_) => None,
        };
        if let Some(kind) = kind
            && let Some(word) = Packed::frame(kind, self.cfa, self.fp_below, 0)
        {
            return Rule::simple(word.with_epilogue_check());
        }
        let (Ok(cfa_offset), Ok(fp_below)) = (self.cfa.try_into(), i32::try_from(self.fp_below))
        else {
            return Rule::simple(Packed::UNSUPPORTED);
        };
        Rule {
            packed: Packed::extended(0).with_epilogue_check(),
            base: match self.base {
                Base::Sp => register::RSP,
                Base::Fp => register::RBP,
                Base::Register(number) => number,
            },
            cfa_offset,
            flags: if fp_below == 0 { 0 } else { FLAG_FP_SAVED },
            fp_offset: -fp_below,
            ..Rule::default()
        }
    }
}

/// Rules by offset, ascending; each holds up to the next.
#[derive(Default)]
pub(super) struct Rows(pub Vec<(u32, Rule)>);

impl Rows {
    /// From `offset` on this frame holds. Offsets ascend.
    pub fn add(&mut self, offset: u32, frame: Frame) {
        self.add_rule(offset, frame.rule());
    }

    pub fn add_rule(&mut self, offset: u32, rule: Rule) {
        if let Some((last, last_rule)) = self.0.last_mut()
            && *last == offset
        {
            *last_rule = rule;
        } else if self.0.last().is_none_or(|(_, last)| *last != rule) {
            self.0.push((offset, rule));
        }
    }
}
