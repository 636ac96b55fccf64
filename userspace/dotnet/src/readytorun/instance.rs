//! Signatures of instantiated methods: which method, with which type arguments.
//!
//! Reference: "Method Signatures" in `docs/design/coreclr/botr/readytorun-format.md`.

use super::native_format::entry_point;
use crate::signature::{
    MAX_ARGUMENTS, TypeNames, argument, generic_arguments, precompiled, skip_type,
};
use strata_ecma::signature::Walk;

/// `ReadyToRunMethodSigFlags` (`readytorun.h`).
mod flag {
    pub const UNBOXING_STUB: u32 = 0x01;
    pub const INSTANTIATING_STUB: u32 = 0x02;
    pub const METHOD_INSTANTIATION: u32 = 0x04;
    pub const SLOT_INSTEAD_OF_TOKEN: u32 = 0x08;
    pub const MEMBER_REF_TOKEN: u32 = 0x10;
    pub const CONSTRAINED: u32 = 0x20;
    pub const OWNER_TYPE: u32 = 0x40;
    pub const UPDATE_CONTEXT: u32 = 0x80;
}

/// The most steps for one signature; real ones take some tens.
const MAX_STEPS: u32 = 16 << 10;

/// An instantiated method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// The module that the token is of; 0 is the image's own.
    pub module: u32,
    /// A MethodDef or MemberRef; `None` for a method named by its slot.
    pub token: Option<u32>,
    /// A stub that calls the method, not the method itself.
    pub stub: bool,
    /// Empty text stands for any reference type, and for what cannot be named; a generic value
    /// type is written `` Name`2[Argument,System.__Canon] ``, as the runtime does.
    pub class_args: Vec<String>,
    pub method_args: Vec<String>,
}

/// The first runtime function of the instance whose signature is at `at`. What reading it takes
/// is taken off the budget, whether it can be read or not.
pub(crate) fn entry_of(table: &[u8], at: usize, budget: &mut u32) -> Option<u32> {
    let mut walk = precompiled(table.get(at..)?, *budget);
    let outcome = read(&mut walk, None);
    *budget = walk.steps_left();
    outcome?;
    entry_point(walk.rest(), 0)
}

/// The instance whose signature is at `at`.
pub(crate) fn instance_at(table: &[u8], at: usize, names: &dyn TypeNames) -> Option<Instance> {
    read(&mut precompiled(table.get(at..)?, MAX_STEPS), Some(names))
}

fn read(walk: &mut Walk<'_>, names: Option<&dyn TypeNames>) -> Option<Instance> {
    let flags = walk.number()?;
    let has = |flag: u32| flags & flag != 0;
    let mut module = 0;
    if has(flag::UPDATE_CONTEXT) {
        module = walk.number()?;
        walk.set_module(module);
    }
    let mut class_args = Vec::new();
    if has(flag::OWNER_TYPE) {
        if !has(flag::UPDATE_CONTEXT) {
            module = walk.peek_module().unwrap_or(0);
        }
        match names.and_then(|names| generic_arguments(walk, names)) {
            Some(arguments) => class_args = arguments,
            None => skip_type(walk)?,
        }
    }
    let number = walk.number()?;
    let token = match (has(flag::SLOT_INSTEAD_OF_TOKEN), has(flag::MEMBER_REF_TOKEN)) {
        (true, _) => None,
        (false, true) => Some(0x0a00_0000 | number & 0x00ff_ffff),
        (false, false) => Some(0x0600_0000 | number & 0x00ff_ffff),
    };
    let mut method_args = Vec::new();
    if has(flag::METHOD_INSTANTIATION) {
        let count = walk.number()?;
        for position in 0..count {
            match names {
                Some(names) if position < MAX_ARGUMENTS => {
                    method_args.push(argument(walk, names)?);
                }
                _ => skip_type(walk)?,
            }
        }
    }
    if has(flag::CONSTRAINED) {
        skip_type(walk)?;
    }
    let stub = has(flag::UNBOXING_STUB) || has(flag::INSTANTIATING_STUB);
    Some(Instance { module, token, stub, class_args, method_args })
}
