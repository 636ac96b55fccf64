//! From a row of call frame information to a rule on x86-64, expressions included.
//!
//! Compilers and hand-written assembly use a handful of expression shapes; these are recognised and
//! the rest is "unsupported". Invariant: a rule made here is equivalent to the row, or is marked
//! unsupported.

use gimli::{Encoding, EndianSlice, Format, LittleEndian, Operation};
use strata_abi::register;
use strata_abi::rule::{self, Kind, Packed, Rule};

use crate::frame_program::{Cfa, Part, Saved, State};
use crate::frame_section::Common;
use crate::rules::{self, Rules};

const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
/// Operations of an expression looked at.
const MAX_OPERATIONS: usize = 16;

type Op<'a> = Operation<EndianSlice<'a, LittleEndian>>;

/// The number of the rule for a state.
pub(crate) fn rule_of(state: &State, common: &Common, section: &[u8], rules: &mut Rules) -> u16 {
    // Others mark frames so that debuggers do not expect them to be at a higher address than the one
    // before: OCaml's stack switches, corosensei's.
    let is_kernels = !stack_pointer_is_cfa(state.sp)
        || matches!(state.return_address, Saved::Expression(_) | Saved::ValueExpression(_));
    if common.signal && is_kernels {
        return rules.packed(Packed::SIGNAL);
    }
    if let Some(word) = packed_of(state) {
        return rules.packed(word);
    }
    match state.return_address {
        Saved::Undefined => return rules.packed(Packed::END),
        // Only a signal restorer finds the return address anywhere but near the CFA.
        Saved::Expression(_) => return rules.packed(Packed::SIGNAL),
        _ => {}
    }
    if let Cfa::Expression(part) = state.cfa
        && let Some(threshold) = plt_threshold(operations(section, part).as_slice())
    {
        return rules.packed(Packed::plt(threshold));
    }
    match extended_of(state, section) {
        Some(rule) => rules.extended(rule),
        None => rules::UNSUPPORTED,
    }
}

/// The common case: CFA from RSP, RBP or RBX, the return address just below it.
#[inline(always)]
fn packed_of(state: &State) -> Option<Packed> {
    let Cfa::Register { register: base, offset } = state.cfa else { return None };
    let kind = match base {
        7 => Kind::Sp,
        6 => Kind::Fp,
        3 => Kind::Extra,
        _ => return None,
    };
    if state.return_address != Saved::Offset(-8) || !stack_pointer_is_cfa(state.sp) {
        return None;
    }
    let below = |saved| match saved {
        Saved::Unsaid | Saved::Undefined | Saved::Same => Some(0),
        Saved::Offset(offset) => match u32::try_from(offset.checked_neg()?) {
            Ok(below) if below != 0 => Some(below),
            _ => None,
        },
        _ => None,
    };
    Packed::frame(kind, u32::try_from(offset).ok()?, below(state.fp)?, below(state.extra)?)
}

fn stack_pointer_is_cfa(rsp: Saved) -> bool {
    matches!(rsp, Saved::Unsaid | Saved::Same | Saved::ValueOffset(0))
}

fn extended_of(state: &State, section: &[u8]) -> Option<Rule> {
    if !stack_pointer_is_cfa(state.sp) {
        return None;
    }
    let mut rule = Rule::default();
    match state.cfa {
        Cfa::Register { register: base, offset } => {
            rule.base = register_number(base)?;
            rule.cfa_offset = i32::try_from(offset).ok()?;
        }
        Cfa::Expression(part) => match operations(section, part).as_slice() {
            [Op::RegisterOffset { register: base, offset, .. }] => {
                rule.base = register_number(u64::from(base.0))?;
                rule.cfa_offset = i32::try_from(*offset).ok()?;
            }
            [
                Op::RegisterOffset { register: base, offset, .. },
                Op::Deref { size: 8, .. },
                Op::PlusConstant { value },
                Op::Deref { size: 8, .. },
                rest @ ..,
            ] => {
                rule.base = register_number(u64::from(base.0))?;
                rule.cfa_offset = i32::try_from(*offset).ok()?;
                rule.flags |= rule::FLAG_DEREF | rule::FLAG_DEREF_TWICE;
                rule.second = u32::try_from(*value).ok()?;
                rule.deref_add = added_constant(rest)?;
            }
            [
                Op::RegisterOffset { register: base, offset, .. },
                Op::Deref { size: 8, .. },
                rest @ ..,
            ] => {
                rule.base = register_number(u64::from(base.0))?;
                rule.cfa_offset = i32::try_from(*offset).ok()?;
                rule.flags |= rule::FLAG_DEREF;
                rule.deref_add = added_constant(rest)?;
            }
            [
                Op::RegisterOffset { register: base, offset, .. },
                Op::RegisterOffset { register: index, offset: 0, .. },
                scale,
                Op::Mul,
                Op::Plus,
                Op::Deref { size: 8, .. },
                rest @ ..,
            ] => {
                rule.base = register_number(u64::from(base.0))?;
                rule.cfa_offset = i32::try_from(*offset).ok()?;
                rule.flags |= rule::FLAG_INDEXED | rule::FLAG_DEREF;
                rule.index_register = register_number(u64::from(index.0))?;
                rule.second = u32::try_from(constant_of(scale)?).ok()?;
                rule.deref_add = added_constant(rest)?;
            }
            _ => return None,
        },
    }
    match state.return_address {
        Saved::Offset(-8) => {}
        Saved::Offset(offset) => {
            rule.flags |= rule::FLAG_RA_OFFSET;
            rule.ra_offset = i32::try_from(offset).ok()?;
        }
        Saved::Register(number) => {
            rule.flags |= rule::FLAG_RA_IN_REGISTER;
            rule.ra_register = register_number(number)?;
        }
        _ => return None,
    }
    let rbp = place(state.fp, state, section)?;
    // RBX is needed for one function of the dynamic linker only: where it is unknown, the rest of
    // the rule is still valid.
    let rbx = place(state.extra, state, section).unwrap_or(Place::Register);
    if let Place::AtFp(_) = rbp {
        rule.flags |= rule::FLAG_SAVES_AT_FP;
    }
    match rbp {
        Place::Register => {}
        Place::AtCfa(offset) | Place::AtFp(offset) => {
            rule.flags |= rule::FLAG_FP_SAVED;
            rule.fp_offset = offset;
        }
    }
    let at_fp = rule.flags & rule::FLAG_SAVES_AT_FP != 0;
    match (rbx, at_fp) {
        (Place::AtCfa(offset), false) | (Place::AtFp(offset), true) => {
            rule.flags |= rule::FLAG_EXTRA_SAVED;
            rule.extra_offset = offset;
        }
        (Place::AtFp(offset), false) if rbp == Place::Register => {
            rule.flags |= rule::FLAG_SAVES_AT_FP | rule::FLAG_EXTRA_SAVED;
            rule.extra_offset = offset;
        }
        _ => {}
    }
    Some(rule)
}

/// Where a saved register lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Register,
    AtCfa(i32),
    AtFp(i32),
}

fn place(saved: Saved, state: &State, section: &[u8]) -> Option<Place> {
    match saved {
        Saved::Unsaid | Saved::Undefined | Saved::Same => Some(Place::Register),
        Saved::Offset(offset) => Some(Place::AtCfa(i32::try_from(offset).ok()?)),
        Saved::Expression(part) => match operations(section, part).as_slice() {
            [Op::RegisterOffset { register: base, offset, .. }] => match (base.0, state.cfa) {
                (6, _) => Some(Place::AtFp(i32::try_from(*offset).ok()?)),
                (base, Cfa::Register { register, offset: cfa }) if u64::from(base) == register => {
                    Some(Place::AtCfa(i32::try_from(offset.checked_sub(cfa)?).ok()?))
                }
                _ => None,
            },
            _ => None,
        },
        Saved::ValueOffset(_) | Saved::Register(_) | Saved::ValueExpression(_) => None,
    }
}

fn register_number(number: u64) -> Option<u8> {
    u8::try_from(number).ok().filter(|number| *number < register::COUNT)
}

fn operations(section: &[u8], part: Part) -> Vec<Op<'_>> {
    let start = part.start as usize;
    let bytes = section.get(start..start.saturating_add(part.size as usize)).unwrap_or_default();
    let mut reader = EndianSlice::new(bytes, LittleEndian);
    let mut operations = Vec::new();
    while !reader.is_empty() && operations.len() <= MAX_OPERATIONS {
        match Operation::parse(&mut reader, ENCODING) {
            Ok(Operation::Nop) => {}
            Ok(operation) => operations.push(operation),
            // An expression truncated here must not look like a whole one.
            Err(_) => return Vec::new(),
        }
    }
    operations
}

/// What is added after a dereference: nothing, `plus_uconst N`, or a constant and `plus`/`minus`.
fn added_constant(rest: &[Op<'_>]) -> Option<i32> {
    let value = match rest {
        [] => 0,
        [Op::PlusConstant { value }] => i64::try_from(*value).ok()?,
        [constant, Op::Plus] => constant_of(constant)?,
        [constant, Op::Minus] => constant_of(constant)?.checked_neg()?,
        _ => return None,
    };
    i32::try_from(value).ok()
}

fn constant_of(operation: &Op<'_>) -> Option<i64> {
    match operation {
        Op::UnsignedConstant { value } => i64::try_from(*value).ok(),
        Op::SignedConstant { value } => Some(*value),
        _ => None,
    }
}

/// The linkers' expression for lazy PLT stubs:
/// `rsp + 8 + (((rip & 15) >= threshold) << 3)`.
fn plt_threshold(operations: &[Op<'_>]) -> Option<u32> {
    let [
        Op::RegisterOffset { register: sp, offset: 8, .. },
        Op::RegisterOffset { register: ip, offset: 0, .. },
        mask,
        Op::And,
        threshold,
        Op::Ge,
        shift,
        Op::Shl,
        Op::Plus,
    ] = operations
    else {
        return None;
    };
    let threshold = constant_of(threshold)?;
    (sp.0 == 7
        && ip.0 == 16
        && constant_of(mask) == Some(15)
        && constant_of(shift) == Some(3)
        && (0..16).contains(&threshold))
    .then_some(threshold as u32)
}
