//! Names of types and methods by token, as the metadata has them.
//!
//! A type is named `Namespace.Outer+Inner`, with the arity marks it was compiled with.
//!
//! Invariant: chains (nested types, scopes) are followed a bounded number of steps, so that a cycle
//! ends.

use super::Metadata;
use strata_bytes::{bounded_str, bounded_text};
use strata_ecma::{MEMBER_REF_PARENT, RESOLUTION_SCOPE, row_of, table, table_of};

/// Deeper nesting is rejected.
const MAX_NESTING: usize = 64;
/// The most generic parameters returned for one type or method.
const MAX_GENERIC_PARAMS: usize = 256;

/// A method's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method<'a> {
    /// Of the MethodDef or MemberRef.
    pub token: u32,
    /// The type it belongs to: TypeDef, TypeRef or TypeSpec; 0 when the metadata does not say.
    pub type_token: u32,
    /// Offset of its name in the string heap.
    name: u32,
    /// Its signature (ECMA-335 II.23.2.1).
    pub signature: &'a [u8],
    /// Where its IL is, 0 for none.
    pub il_rva: u32,
}

impl Metadata {
    /// The name of a TypeDef or TypeRef.
    #[must_use]
    pub fn type_name(&self, token: u32) -> Option<String> {
        let mut parts = Vec::new();
        let mut namespace = None;
        let mut token = token;
        for _ in 0..MAX_NESTING {
            let row = row_of(token);
            let (name, space, outer) = match table_of(token) {
                table::TYPE_DEF => (
                    self.cell(table::TYPE_DEF, row, 1)?,
                    self.cell(table::TYPE_DEF, row, 2)?,
                    self.enclosing_type(token),
                ),
                table::TYPE_REF => (
                    self.cell(table::TYPE_REF, row, 1)?,
                    self.cell(table::TYPE_REF, row, 2)?,
                    RESOLUTION_SCOPE
                        .token(self.cell(table::TYPE_REF, row, 0)?)
                        .filter(|scope| table_of(*scope) == table::TYPE_REF),
                ),
                _ => return None,
            };
            parts.push(self.string(name)?);
            namespace = self.string(space).filter(|space| !space.is_empty());
            match outer {
                Some(outer) => token = outer,
                None => break,
            }
        }
        let mut text = namespace.map(|space| space + ".").unwrap_or_default();
        for (number, part) in parts.iter().rev().enumerate() {
            if number > 0 {
                text.push('+');
            }
            text.push_str(part);
            text.truncate(bounded_str(&text).len());
        }
        Some(text)
    }

    pub(crate) fn enclosing_type(&self, token: u32) -> Option<u32> {
        self.reader().enclosing_type(token)
    }

    /// The names of the generic parameters of a TypeDef or MethodDef. A nested type repeats those
    /// of the types around it.
    #[must_use]
    pub fn generic_params(&self, token: u32) -> Vec<String> {
        let names = self.reader().generic_parameters(token).take(MAX_GENERIC_PARAMS);
        names.map(|(_, name)| bounded_text(name).into_owned()).collect()
    }

    /// A MethodDef, or a MemberRef that names a method.
    #[must_use]
    pub fn method(&self, token: u32) -> Option<Method<'_>> {
        let row = row_of(token);
        match table_of(token) {
            table::METHOD_DEF => Some(Method {
                token,
                type_token: self.reader().declaring_type(row).unwrap_or(0),
                name: self.cell(table::METHOD_DEF, row, 3)?,
                signature: self.blob(self.cell(table::METHOD_DEF, row, 4)?).unwrap_or_default(),
                il_rva: self.cell(table::METHOD_DEF, row, 0)?,
            }),
            table::MEMBER_REF => Some(Method {
                token,
                type_token: self.member_ref_type(self.cell(table::MEMBER_REF, row, 0)?),
                name: self.cell(table::MEMBER_REF, row, 1)?,
                signature: self.blob(self.cell(table::MEMBER_REF, row, 2)?).unwrap_or_default(),
                il_rva: 0,
            }),
            _ => None,
        }
    }

    #[must_use]
    pub fn method_name(&self, method: &Method<'_>) -> Option<String> {
        self.string(method.name)
    }

    fn member_ref_type(&self, parent: u32) -> u32 {
        match MEMBER_REF_PARENT.token(parent) {
            Some(token) if table_of(token) == table::METHOD_DEF => {
                self.reader().declaring_type(token).unwrap_or(0)
            }
            Some(token) => token,
            None => 0,
        }
    }

    /// The signature of a TypeSpec (ECMA-335 II.23.2.14).
    #[must_use]
    pub fn type_spec(&self, token: u32) -> Option<&[u8]> {
        if table_of(token) != table::TYPE_SPEC {
            return None;
        }
        self.reader().type_spec(token)
    }
}
