//! Facts about a method that only an assembly's instructions and tables contain: the method in
//! which a lambda is written when its name does not show it (VB), and the native function that a
//! stub calls.
//!
//! Invariant: for one question at most [`MAX_READ`] bytes of instructions are read, and tables are
//! walked through a few times.

use std::collections::BTreeSet;

use crate::il::{self, Reference, Use};
use crate::metadata::Metadata;
use crate::{ManagedImage, Statement};
use strata_bytes::Cursor;
use strata_ecma::signature::element;
use strata_ecma::{
    MEMBER_FORWARDED, METHOD_DEF_OR_REF, TYPE_DEF_OR_REF, compressed, row_of, table, table_of,
    token,
};

const MAX_READ: u64 = 4 << 20;
/// The fixed cost of examining a method, in bytes.
const METHOD_COST: u64 = 16;
/// Lambdas within lambdas.
const DEEPEST: usize = 8;
/// The most types that one type may have for its lambdas and async methods.
const MAX_NESTED: usize = 4096;

const LAMBDA: &str = "_Lambda$__";
const CLOSURE: &str = "_Closure$__";
const STATE_MACHINE: &str = "VB$StateMachine_";

fn method_token(row: u32) -> u32 {
    token(table::METHOD_DEF, row)
}

/// The method of the async or iterator body that a type holds, by the type's name:
/// "VB$StateMachine_3_Pay".
fn of_state_machine(type_name: &str) -> Option<&str> {
    type_name.strip_prefix(STATE_MACHINE)?.split_once('_').map(|(_, method)| method)
}

impl ManagedImage<'_> {
    /// The method that a VB lambda, or its async body, is written in: that of its type, and of the
    /// types beside it, which takes the lambda's address.
    #[must_use]
    pub fn method_around(&self, token: u32) -> Option<String> {
        let metadata = self.metadata()?;
        let mut left = MAX_READ;
        let mut lambda = self.lambda_of(metadata, token)?;
        for _ in 0..DEEPEST {
            let method = self.user_of(metadata, lambda, &mut left)?;
            let name = metadata.method_name(&metadata.method(method)?)?;
            let own_type = metadata.own_type_name(metadata.method(method)?.type_token)?;
            if let Some(outer) = self.lambda_of(metadata, method) {
                lambda = outer;
                continue;
            }
            return Some(match of_state_machine(&own_type) {
                // A type's name has no dots (Roslyn, `GeneratedNames.vb`).
                Some(method) => method.replace('-', "."),
                None => name,
            });
        }
        None
    }

    /// The lambda of a method that is one, or is its async body.
    fn lambda_of(&self, metadata: &Metadata, token: u32) -> Option<u32> {
        let method = metadata.method(token).filter(|_| table_of(token) == table::METHOD_DEF)?;
        if metadata.method_name(&method)?.starts_with(LAMBDA) {
            return Some(token);
        }
        let own_type = metadata.own_type_name(method.type_token)?;
        let lambda = of_state_machine(&own_type).filter(|name| name.starts_with(LAMBDA))?;
        let outer = metadata.enclosing_type(method.type_token)?;
        metadata.methods_of(outer).map(method_token).find(|token| {
            let name = metadata.method(*token).and_then(|method| metadata.method_name(&method));
            name.as_deref() == Some(lambda)
        })
    }

    /// The method that takes the address of a lambda.
    fn user_of(&self, metadata: &Metadata, lambda: u32, left: &mut u64) -> Option<u32> {
        let of_lambda = metadata.method(lambda)?;
        let mut written = of_lambda.type_token;
        for _ in 0..DEEPEST {
            let name = metadata.own_type_name(written)?;
            if !is_made(&name) {
                break;
            }
            written = metadata.enclosing_type(written)?;
        }
        let name = metadata.method_name(&of_lambda)?;
        for of_type in with_made_types(metadata, written) {
            for method in metadata.methods_of(of_type).map(method_token) {
                let takes = |reference: &Reference| {
                    reference.what == Use::Load
                        && is_method(metadata, reference.token, lambda, of_lambda.type_token, &name)
                };
                if self.references_of(method, left)?.iter().any(takes) {
                    return Some(method);
                }
            }
        }
        None
    }

    /// The methods named by a method's instructions. `None` when the budget is used up.
    fn references_of(&self, method: u32, left: &mut u64) -> Option<Vec<Reference>> {
        let code = self.instructions(method).unwrap_or_default();
        *left = left.checked_sub((code.len() as u64).saturating_add(METHOD_COST))?;
        Some(il::references(&code))
    }

    fn instructions(&self, method: u32) -> Option<Vec<u8>> {
        let rva = self.metadata()?.method(method)?.il_rva;
        if rva == 0 {
            return None;
        }
        let at_most = il::HEADER_BYTES as u64;
        // The last body of a section may be shorter than the longest header.
        let header = self.pe().read("method body", rva, at_most, at_most);
        let header = header.or_else(|_| self.pe().read("method body", rva, 1, 1)).ok()?;
        let (skipped, size) = il::extent(&header)?;
        self.pe().read("method body", rva.checked_add(skipped)?, size.into(), size.into()).ok()
    }

    /// The native function that a stub with this signature calls when it returns to a statement of
    /// this assembly.
    ///
    /// A stub serves all methods that are alike, and reveals only their signature, in which types
    /// may be addresses; the module that the runtime names for it is that of the first stub it made
    /// (`src/coreclr/vm/ilstubcache.cpp`: `CreateNewMethodDesc`, `GetOrCreateStubMethodTable`). So
    /// the caller decides: it is the native function that its statement calls, when the signatures
    /// agree, the statement calls nothing else (what else it calls may have been compiled into it),
    /// and the method calls no other that could be meant.
    #[must_use]
    pub fn import_of(&self, signature: &[u8], called_by: Statement) -> Option<String> {
        let metadata = self.metadata()?;
        // Stubs of delegates have a `this`, those of function pointers another convention.
        if signature.first() != Some(&0) {
            return None;
        }
        let references = self.references_of(called_by.method, &mut { MAX_READ })?;
        let named: BTreeSet<u32> = references.iter().map(|reference| reference.token).collect();
        let alike = |method: u32| {
            let method = metadata.method(method);
            method.is_some_and(|method| agree(signature, method.signature))
        };
        let meant: Vec<(u32, u32)> = metadata
            .imports()
            .filter(|(method, _)| named.contains(method) && alike(*method))
            .take(2)
            .collect();
        let [(method, name)] = meant[..] else { return None };
        let mut calls = references.iter().filter(|reference| {
            reference.what != Use::Load
                && (called_by.start..called_by.end).contains(&reference.offset)
        });
        let call = calls.next().filter(|_| calls.next().is_none())?;
        (call.token == method).then(|| metadata.string(name))?
    }
}

/// Whether a stub's signature can be that of a method. Its types are tokens that may count in another
/// module, or addresses (`src/coreclr/vm/siginfo.cpp`, `ConvertToInternalSignature`).
fn agree(stub: &[u8], method: &[u8]) -> bool {
    use element::{CLASS, CMOD_INTERNAL, CMOD_OPT, CMOD_REQD, INTERNAL, VALUETYPE};
    let (mut stub, mut method) = (Cursor::new(stub), Cursor::new(method));
    loop {
        let token = |cursor: &mut Cursor<'_>| compressed::unsigned(cursor).is_some();
        let walked = match (stub.u8(), method.u8()) {
            (None, None) => return true,
            (Some(INTERNAL), Some(CLASS | VALUETYPE)) => stub.u64().is_some() && token(&mut method),
            (Some(CMOD_INTERNAL), Some(CMOD_REQD | CMOD_OPT)) => {
                stub.u8().is_some() && stub.u64().is_some() && token(&mut method)
            }
            (Some(one), Some(other)) if one == other => {
                !matches!(one, CLASS | VALUETYPE | CMOD_REQD | CMOD_OPT)
                    || token(&mut stub) && token(&mut method)
            }
            _ => false,
        };
        if !walked {
            return false;
        }
    }
}

/// A type, and the types in it that the compiler made, and those in them.
fn with_made_types(metadata: &Metadata, written: u32) -> Vec<u32> {
    let mut all = vec![written];
    let mut level = BTreeSet::from([written]);
    for _ in 0..DEEPEST {
        let inner: BTreeSet<u32> = metadata
            .nested_types()
            .filter(|(_, outer)| level.contains(outer))
            .map(|(nested, _)| nested)
            .filter(|nested| metadata.own_type_name(*nested).is_some_and(|name| is_made(&name)))
            .take(MAX_NESTED)
            .collect();
        all.extend(&inner);
        level = inner;
    }
    all
}

fn is_made(type_name: &str) -> bool {
    type_name.starts_with(CLOSURE) || type_name.starts_with(STATE_MACHINE)
}

/// Whether a token of an instruction means a method. Those of generic types and methods are named
/// by their instance.
fn is_method(metadata: &Metadata, token: u32, method: u32, of_type: u32, name: &str) -> bool {
    let token = match table_of(token) {
        table::METHOD_SPEC => metadata
            .cell(table::METHOD_SPEC, row_of(token), 0)
            .and_then(|generic| METHOD_DEF_OR_REF.token(generic))
            .unwrap_or(0),
        _ => token,
    };
    if token == method {
        return true;
    }
    let Some(reference) = metadata.method(token).filter(|_| table_of(token) == table::MEMBER_REF)
    else {
        return false;
    };
    let parent = match metadata.type_spec(reference.type_token) {
        Some(spec) => generic_of(spec).unwrap_or(0),
        None => reference.type_token,
    };
    parent == of_type && metadata.method_name(&reference).as_deref() == Some(name)
}

/// The type that an instance of a generic type is of (ECMA-335 II.23.2.12).
fn generic_of(spec: &[u8]) -> Option<u32> {
    let mut cursor = Cursor::new(spec);
    (cursor.u8()? == element::GENERICINST).then_some(())?;
    cursor.u8()?;
    TYPE_DEF_OR_REF.token(compressed::unsigned(&mut cursor)?)
}

impl Metadata {
    /// A type's name without its enclosing types.
    fn own_type_name(&self, token: u32) -> Option<String> {
        (table_of(token) == table::TYPE_DEF).then_some(())?;
        self.string(self.cell(table::TYPE_DEF, row_of(token), 1)?)
    }

    /// The rows of a type's methods.
    fn methods_of(&self, token: u32) -> std::ops::Range<u32> {
        let row = row_of(token);
        let first = self.cell(table::TYPE_DEF, row, 5).unwrap_or(1);
        let end = self.rows(table::METHOD_DEF).saturating_add(1);
        let next = self.cell(table::TYPE_DEF, row.saturating_add(1), 5).unwrap_or(end);
        first..next.min(end)
    }

    /// Every nested type, and the one it is in.
    fn nested_types(&self) -> impl Iterator<Item = (u32, u32)> {
        let token = |row| token(table::TYPE_DEF, row);
        (1..=self.rows(table::NESTED_CLASS)).filter_map(move |row| {
            let nested = self.cell(table::NESTED_CLASS, row, 0)?;
            Some((token(nested), token(self.cell(table::NESTED_CLASS, row, 1)?)))
        })
    }

    /// Methods that are native functions, and where the functions' names are.
    fn imports(&self) -> impl Iterator<Item = (u32, u32)> {
        (1..=self.rows(table::IMPL_MAP)).filter_map(|row| {
            let method = MEMBER_FORWARDED.token(self.cell(table::IMPL_MAP, row, 1)?)?;
            let name = self.cell(table::IMPL_MAP, row, 2)?;
            (table_of(method) == table::METHOD_DEF).then_some((method, name))
        })
    }
}
