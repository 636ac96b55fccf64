//! A walk through a signature blob.
//!
//! One walk serves the blobs of metadata (ECMA-335 II.23.2) and the signatures of precompiled code,
//! which add a few elements: another module for what follows, and `__Canon` for any reference type
//! (`src/coreclr/vm/zapsig.cpp`). What is made of the types is a [`Visitor`]'s affair.
//!
//! Invariant: a walk is bounded in depth and in steps; a wrong blob ends it, nothing else.

use strata_bytes::Cursor;

use crate::compressed;
use crate::schema::TYPE_DEF_OR_REF;

/// `CorElementType` (`corhdr.h`).
pub mod element {
    pub const STRING: u8 = 0x0e;
    pub const PTR: u8 = 0x0f;
    pub const BYREF: u8 = 0x10;
    pub const VALUETYPE: u8 = 0x11;
    pub const CLASS: u8 = 0x12;
    pub const VAR: u8 = 0x13;
    pub const ARRAY: u8 = 0x14;
    pub const GENERICINST: u8 = 0x15;
    pub const FNPTR: u8 = 0x1b;
    pub const OBJECT: u8 = 0x1c;
    pub const SZARRAY: u8 = 0x1d;
    pub const MVAR: u8 = 0x1e;
    pub const CMOD_REQD: u8 = 0x1f;
    pub const CMOD_OPT: u8 = 0x20;
    /// In the runtime's own signatures: the address of a type.
    pub const INTERNAL: u8 = 0x21;
    /// The same of a modifier, behind a byte for whether it is required.
    pub const CMOD_INTERNAL: u8 = 0x22;
    pub const CANON_ZAPSIG: u8 = 0x3e;
    pub const MODULE_ZAPSIG: u8 = 0x3f;
    pub const SENTINEL: u8 = 0x41;
    pub const PINNED: u8 = 0x45;
}

/// Bits of a calling convention.
const GENERIC: u8 = 0x10;
const HAS_THIS: u8 = 0x20;
/// Conventions up to here are of methods (II.23.2.3); the others are of fields, locals, properties.
const LAST_METHOD_CONVENTION: u8 = 0x05;
const UNMANAGED: u8 = 0x09;

/// Of an array type (`MAX_RANK`, `src/coreclr/vm/array.h`).
const MAX_RANK: u32 = 32;

/// The types that are one byte.
fn simple_type(element: u8) -> Option<&'static str> {
    Some(match element {
        0x01 => "System.Void",
        0x02 => "System.Boolean",
        0x03 => "System.Char",
        0x04 => "System.SByte",
        0x05 => "System.Byte",
        0x06 => "System.Int16",
        0x07 => "System.UInt16",
        0x08 => "System.Int32",
        0x09 => "System.UInt32",
        0x0a => "System.Int64",
        0x0b => "System.UInt64",
        0x0c => "System.Single",
        0x0d => "System.Double",
        element::STRING => "System.String",
        0x16 => "System.TypedReference",
        0x18 => "System.IntPtr",
        0x19 => "System.UIntPtr",
        element::OBJECT => "System.Object",
        _ => return None,
    })
}

/// A type that a signature names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// TypeDef, TypeRef or TypeSpec.
    pub token: u32,
    /// The module of the token, as precompiled code counts them; 0 is the signature's own.
    pub module: u32,
    /// It modifies the type that follows, whose name it is no part of.
    pub modifier: bool,
}

/// The remaining budget of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes and numbers.
    pub steps: u32,
    /// Types within types.
    pub depth: u32,
}

/// A visitor of the types of a signature. The pieces passed to it, in order, form the type as text.
pub trait Visitor {
    /// The name of a type that is one byte, and what stands around others: "System.Int32", "[]".
    fn text(&mut self, _text: &str) {}

    /// A type variable, of the type or of the method.
    fn variable(&mut self, _of_method: bool, _position: u32) {}

    /// A named type. A visitor that walks the signature of a TypeSpec does so within the budget.
    /// `None` ends the walk.
    fn named(&mut self, named: Named, budget: &mut Budget) -> Option<()>;
}

/// A visitor that ignores the types.
pub struct Skip;

impl Visitor for Skip {
    fn named(&mut self, _: Named, _: &mut Budget) -> Option<()> {
        Some(())
    }
}

/// Gives the token of every named type to a function; modifiers count too.
pub struct Tokens<F>(pub F);

impl<F: FnMut(u32)> Visitor for Tokens<F> {
    fn named(&mut self, named: Named, _: &mut Budget) -> Option<()> {
        if crate::row_of(named.token) != 0 {
            (self.0)(named.token);
        }
        Some(())
    }
}

/// Of a walk that only wants tokens.
const TOKENS: Budget = Budget { steps: 64 << 10, depth: 32 };

/// Gives the token of every type in a method's signature to `each`, as far as it can be read.
pub fn tokens_of_method(blob: &[u8], each: impl FnMut(u32)) {
    let _ = Walk::new(blob, TOKENS).method(&mut Tokens(each));
}

/// Gives the token of every type in the signature of a type to `each`, as far as it can be read.
pub fn tokens_of_type(blob: &[u8], each: impl FnMut(u32)) {
    let _ = Walk::new(blob, TOKENS).type_(&mut Tokens(each));
}

/// The start of a method's signature; the return type and the parameters follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodHead {
    pub has_this: bool,
    pub generic_parameters: u32,
    pub parameters: u32,
}

/// A walk through a signature. Every `None` means that the blob is over, wrong, or beyond the budget.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    cursor: Cursor<'a>,
    steps: u32,
    depth: u32,
    /// The module of the tokens that follow.
    module: u32,
    precompiled: bool,
}

impl<'a> Walk<'a> {
    /// A signature of metadata.
    #[must_use]
    pub fn new(blob: &'a [u8], budget: Budget) -> Self {
        let Budget { steps, depth } = budget;
        Self { cursor: Cursor::new(blob), steps, depth, module: 0, precompiled: false }
    }

    /// A signature of precompiled code.
    #[must_use]
    pub fn precompiled(blob: &'a [u8], budget: Budget) -> Self {
        Self { precompiled: true, ..Self::new(blob, budget) }
    }

    /// The module of tokens outside of any module override.
    pub fn set_module(&mut self, module: u32) {
        self.module = module;
    }

    #[must_use]
    pub fn steps_left(&self) -> u32 {
        self.steps
    }

    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest()
    }

    /// The element at this place.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.cursor.rest().first().map(|element| self.plain(*element))
    }

    /// The module that the type at this place names before itself.
    #[must_use]
    pub fn peek_module(&self) -> Option<u32> {
        let mut ahead = *self;
        (ahead.byte()? == element::MODULE_ZAPSIG).then(|| ahead.number())?
    }

    /// Precompiled code marks some elements with the highest bit.
    fn plain(&self, element: u8) -> u8 {
        if self.precompiled { element & 0x7f } else { element }
    }

    /// A compressed number. Whatever is read is a step.
    pub fn number(&mut self) -> Option<u32> {
        self.steps = self.steps.checked_sub(1)?;
        compressed::unsigned(&mut self.cursor)
    }

    /// An element.
    pub fn byte(&mut self) -> Option<u8> {
        self.steps = self.steps.checked_sub(1)?;
        let element = self.cursor.u8()?;
        Some(self.plain(element))
    }

    /// The token of a modifier at this place, if there is one.
    pub fn modifier(&mut self) -> Option<Option<u32>> {
        match self.peek() {
            Some(element::CMOD_REQD | element::CMOD_OPT) => {
                self.byte()?;
                let coded = self.number()?;
                TYPE_DEF_OR_REF.token(coded).map(Some)
            }
            _ => Some(None),
        }
    }

    /// The begin of a method's signature.
    pub fn method_head(&mut self) -> Option<MethodHead> {
        let convention = self.byte()?;
        let kind = convention & 0x0f;
        if kind > LAST_METHOD_CONVENTION && kind != UNMANAGED {
            return None;
        }
        let generic_parameters = if convention & GENERIC != 0 { self.number()? } else { 0 };
        let parameters = self.number()?;
        let has_this = convention & HAS_THIS != 0;
        Some(MethodHead { has_this, generic_parameters, parameters })
    }

    /// A method's signature: "return *(parameter,parameter)".
    pub fn method<V: Visitor>(&mut self, visitor: &mut V) -> Option<()> {
        let head = self.method_head()?;
        self.type_(visitor)?;
        visitor.text(" *(");
        for number in 0..head.parameters {
            if number > 0 {
                visitor.text(",");
            }
            self.type_(visitor)?;
        }
        visitor.text(")");
        Some(())
    }

    /// A type.
    pub fn type_<V: Visitor>(&mut self, visitor: &mut V) -> Option<()> {
        self.depth = self.depth.checked_sub(1)?;
        self.element(visitor)?;
        self.depth += 1;
        Some(())
    }

    fn element<V: Visitor>(&mut self, visitor: &mut V) -> Option<()> {
        let kind = self.byte()?;
        if let Some(name) = simple_type(kind) {
            visitor.text(name);
            return Some(());
        }
        match kind {
            element::PTR => self.suffixed(visitor, "*"),
            element::BYREF => self.suffixed(visitor, "&"),
            element::SZARRAY => self.suffixed(visitor, "[]"),
            element::PINNED | element::SENTINEL => self.type_(visitor),
            element::VALUETYPE | element::CLASS => self.named(visitor, false),
            element::VAR | element::MVAR => {
                let position = self.number()?;
                visitor.variable(kind == element::MVAR, position);
                Some(())
            }
            element::ARRAY => self.array(visitor),
            element::GENERICINST => {
                self.type_(visitor)?;
                self.arguments(visitor)
            }
            element::FNPTR => {
                visitor.text("method ");
                self.method(visitor)
            }
            element::CMOD_REQD | element::CMOD_OPT => {
                self.named(visitor, true)?;
                self.type_(visitor)
            }
            element::INTERNAL => {
                visitor.text("?");
                self.cursor.take(size_of::<u64>()).map(drop)
            }
            element::CMOD_INTERNAL => {
                self.cursor.take(1 + size_of::<u64>())?;
                self.type_(visitor)
            }
            element::CANON_ZAPSIG if self.precompiled => {
                visitor.text("System.__Canon");
                Some(())
            }
            element::MODULE_ZAPSIG if self.precompiled => {
                let outer = self.module;
                self.module = self.number()?;
                self.overridden(visitor, outer)?;
                self.module = outer;
                Some(())
            }
            _ => None,
        }
    }

    /// A type whose own token belongs to another module, but not those of its type arguments.
    fn overridden<V: Visitor>(&mut self, visitor: &mut V, outer: u32) -> Option<()> {
        if self.peek() != Some(element::GENERICINST) {
            return self.type_(visitor);
        }
        self.byte()?;
        self.type_(visitor)?;
        self.module = outer;
        self.arguments(visitor)
    }

    fn named<V: Visitor>(&mut self, visitor: &mut V, modifier: bool) -> Option<()> {
        let token = TYPE_DEF_OR_REF.token(self.number()?)?;
        let mut budget = Budget { steps: self.steps, depth: self.depth };
        visitor.named(Named { token, module: self.module, modifier }, &mut budget)?;
        self.steps = budget.steps;
        Some(())
    }

    fn suffixed<V: Visitor>(&mut self, visitor: &mut V, suffix: &str) -> Option<()> {
        self.type_(visitor)?;
        visitor.text(suffix);
        Some(())
    }

    fn arguments<V: Visitor>(&mut self, visitor: &mut V) -> Option<()> {
        visitor.text("[");
        for number in 0..self.number()? {
            if number > 0 {
                visitor.text(",");
            }
            self.type_(visitor)?;
        }
        visitor.text("]");
        Some(())
    }

    fn array<V: Visitor>(&mut self, visitor: &mut V) -> Option<()> {
        self.type_(visitor)?;
        let rank = self.number()?;
        visitor.text("[");
        for _ in 1..rank.min(MAX_RANK) {
            visitor.text(",");
        }
        visitor.text("]");
        // Sizes, then lower bounds.
        for _ in 0..2 {
            let count = self.number()?;
            if count > MAX_RANK && !self.precompiled {
                return None;
            }
            for _ in 0..count {
                self.number()?;
            }
        }
        Some(())
    }

    /// Skips the generic instantiation at this position up to its arguments, and returns their
    /// number. `None` leaves the position unchanged: it is another type.
    pub fn enter_arguments(&mut self) -> Option<u32> {
        let mut ahead = *self;
        if ahead.peek_module().is_some() {
            ahead.byte()?;
            ahead.module = ahead.number()?;
        }
        if ahead.byte()? != element::GENERICINST {
            return None;
        }
        ahead.type_(&mut Skip)?;
        ahead.module = self.module;
        let count = ahead.number()?;
        *self = ahead;
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn method(blob: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        tokens_of_method(blob, |token| tokens.push(token));
        tokens
    }

    #[test]
    fn a_signature_of_primitives_names_no_type() {
        // static void M(int, string)
        assert_eq!(method(&[0x00, 2, 0x01, 0x08, 0x0e]), []);
    }

    #[test]
    fn classes_and_value_types_are_named() {
        // instance TypeDef 2 M(TypeRef 5[], ref TypeSpec 1)
        let blob = [0x20, 2, 0x12, 2 << 2, 0x1d, 0x11, 5 << 2 | 1, 0x10, 0x12, 1 << 2 | 2];
        assert_eq!(method(&blob), [0x0200_0002, 0x0100_0005, 0x1b00_0001]);
    }

    #[test]
    fn a_generic_instance_names_itself_and_its_arguments() {
        // static TypeRef 3<TypeDef 300, !!0> M<T>()
        let blob = [0x10, 1, 0, 0x15, 0x12, 3 << 2 | 1, 2, 0x11, 0x84, 0xb0, 0x1e, 0];
        assert_eq!(method(&blob), [0x0100_0003, 0x0200_0000 | 300]);
    }

    #[test]
    fn custom_modifiers_and_array_shapes_are_passed_over() {
        // static int modreq(TypeRef 1)[2 dimensions, sizes 3 and 4] M(TypeRef 2)
        let blob = [0x00, 1, 0x14, 0x1f, 5, 0x08, 2, 2, 3, 4, 0, 0x12, 9];
        assert_eq!(method(&blob), [0x0100_0001, 0x0100_0002]);
    }

    #[test]
    fn a_blob_that_ends_early_or_nests_without_end_ends_the_walk() {
        for length in 0..8 {
            method(&[0x20, 2, 0x12, 8, 0x1d, 0x11, 21, 0x10][..length]);
        }
        assert_eq!(method(&[0x15; 4096]), []);
        let mut deep = vec![0x00, 0];
        deep.extend([0x14; 4096]);
        assert_eq!(method(&deep), []);
        assert_eq!(method(&[0x00, 0xdf, 0xff, 0xff, 0xff, 0x01]), []);
    }

    #[test]
    fn elements_of_precompiled_code_are_none_in_metadata() {
        let walk = |blob: &[u8]| Walk::new(blob, TOKENS).type_(&mut Skip);
        let precompiled = |blob: &[u8]| Walk::precompiled(blob, TOKENS).type_(&mut Skip);
        for blob in [&[0x3e][..], &[0x3f, 7, 0x12, 8], &[0x88]] {
            assert_eq!((walk(blob), precompiled(blob)), (None, Some(())), "{blob:x?}");
        }
    }
}
