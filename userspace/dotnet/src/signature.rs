//! Signature blobs: skipping types, the tokens in them, and types as text.
//!
//! One walk serves the blobs of metadata (ECMA-335 II.23.2) and the signatures of precompiled code,
//! which add a few elements: another module for what follows, and `__Canon` for any reference type
//! (`src/coreclr/vm/zapsig.cpp`).
//!
//! Invariant: a walk is bounded in depth and in steps, and text stops growing at
//! [`crate::MAX_NAME_BYTES`].

use crate::MAX_NAME_BYTES;
use crate::bytes::{Cursor, bound};
use crate::metadata::schema::{TYPE_DEF_OR_REF, table};

/// Deeper types are not believed.
const MAX_DEPTH: u32 = 64;
/// Steps of the walk through one signature that nobody else bounds.
const MAX_STEPS: u32 = 64 << 10;
/// More type arguments are not told.
pub(crate) const MAX_ARGUMENTS: u32 = 256;

mod element {
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
    pub const CANON_ZAPSIG: u8 = 0x3e;
    pub const MODULE_ZAPSIG: u8 = 0x3f;
    pub const SENTINEL: u8 = 0x41;
    pub const PINNED: u8 = 0x45;
}

/// The types that are one byte (`CorElementType`, `corhdr.h`).
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
        0x0e => "System.String",
        0x16 => "System.TypedReference",
        0x18 => "System.IntPtr",
        0x19 => "System.UIntPtr",
        0x1c => "System.Object",
        element::CANON_ZAPSIG => "System.__Canon",
        _ => return None,
    })
}

/// Where the names of types come from. Module 0 is the one that the signature is in.
pub(crate) trait TypeNames {
    fn type_name(&self, module: u32, token: u32) -> Option<String>;
}

/// What a walk leaves behind.
enum Output<'a> {
    Nothing,
    Tokens(Vec<u32>),
    Text { names: &'a dyn TypeNames, text: String, known: bool },
}

/// A walk through a signature.
pub(crate) struct Walk<'a> {
    cursor: Cursor<'a>,
    output: Output<'a>,
    steps: u32,
    /// The module of the tokens that follow.
    module: u32,
}

impl<'a> Walk<'a> {
    /// A walk of at most so many steps.
    pub fn new(signature: &'a [u8], steps: u32) -> Self {
        Self { cursor: Cursor::new(signature), output: Output::Nothing, steps, module: 0 }
    }

    /// The module of tokens outside of any module override.
    pub fn set_module(&mut self, module: u32) {
        self.module = module;
    }

    pub fn steps_left(&self) -> u32 {
        self.steps
    }

    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest()
    }

    /// A compressed number. Whatever is read is a step, so that a budget bounds all of a walk.
    pub fn number(&mut self) -> Option<u32> {
        self.steps = self.steps.checked_sub(1)?;
        self.cursor.compressed()
    }

    fn byte(&mut self) -> Option<u8> {
        self.steps = self.steps.checked_sub(1)?;
        self.cursor.u8()
    }

    /// Skips a type.
    pub fn skip_type(&mut self) -> Option<()> {
        self.read_type(MAX_DEPTH)
    }

    /// A type argument as text; an empty one for a reference type, since code is shared by all of
    /// those, and for a type of a module that is not known.
    pub fn argument(&mut self, names: &'a dyn TypeNames) -> Option<String> {
        if self.is_reference_type() {
            self.skip_type()?;
            return Some(String::new());
        }
        self.type_text(names)
    }

    fn is_reference_type(&self) -> bool {
        let mut ahead = self.cursor;
        let mut kind = ahead.u8();
        if kind == Some(element::MODULE_ZAPSIG) {
            kind = ahead.compressed().and_then(|_| ahead.u8());
        }
        if kind == Some(element::GENERICINST) {
            kind = ahead.u8();
        }
        matches!(
            kind,
            Some(
                element::CANON_ZAPSIG
                    | element::STRING
                    | element::OBJECT
                    | element::CLASS
                    | element::SZARRAY
                    | element::ARRAY
            )
        )
    }

    /// A type as text; an empty one for a type of a module that is not known.
    pub fn type_text(&mut self, names: &'a dyn TypeNames) -> Option<String> {
        self.output = Output::Text { names, text: String::new(), known: true };
        let outcome = self.read_type(MAX_DEPTH);
        match std::mem::replace(&mut self.output, Output::Nothing) {
            Output::Text { mut text, known, .. } => {
                outcome?;
                bound(&mut text);
                Some(if known { text } else { String::new() })
            }
            _ => None,
        }
    }

    /// The module of the type at this place, when the signature names one.
    pub fn peek_module(&self) -> Option<u32> {
        let mut ahead = self.cursor;
        (ahead.u8()? & 0x7f == element::MODULE_ZAPSIG).then(|| ahead.compressed())?
    }

    /// The arguments of the generic instantiation at this place, as text. `None` leaves the walk
    /// where it was: the type is another.
    pub fn generic_arguments(&mut self, names: &'a dyn TypeNames) -> Option<Vec<String>> {
        let mut ahead =
            Walk { cursor: self.cursor, output: Output::Nothing, steps: self.steps, ..*self };
        if self.peek_module().is_some() {
            ahead.byte()?;
            ahead.module = ahead.number()?;
        }
        if ahead.byte()? & 0x7f != element::GENERICINST {
            return None;
        }
        ahead.skip_type()?;
        ahead.module = self.module;
        let mut arguments = Vec::new();
        for position in 0..ahead.number()? {
            if position < MAX_ARGUMENTS {
                arguments.push(ahead.argument(names)?);
            } else {
                ahead.skip_type()?;
            }
        }
        self.cursor = ahead.cursor;
        self.steps = ahead.steps;
        Some(arguments)
    }

    fn write(&mut self, piece: &str) {
        if let Output::Text { text, .. } = &mut self.output
            && text.len() <= MAX_NAME_BYTES
        {
            text.push_str(piece);
        }
    }

    fn token(&mut self) -> Option<()> {
        let token = TYPE_DEF_OR_REF.token(self.number()?)?;
        match &mut self.output {
            Output::Nothing => {}
            Output::Tokens(tokens) => tokens.push(token),
            Output::Text { names, text, known } => {
                if text.len() <= MAX_NAME_BYTES {
                    match names.type_name(self.module, token) {
                        Some(name) => text.push_str(&name),
                        None => *known = false,
                    }
                }
            }
        }
        Some(())
    }

    fn read_type(&mut self, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let kind = self.byte()? & 0x7f;
        if let Some(name) = simple_type(kind) {
            self.write(name);
            return Some(());
        }
        match kind {
            element::PTR => self.suffixed(depth, "*"),
            element::BYREF => self.suffixed(depth, "&"),
            element::SZARRAY => self.suffixed(depth, "[]"),
            element::PINNED | element::SENTINEL => self.read_type(depth),
            element::VALUETYPE | element::CLASS => self.token(),
            element::VAR => self.parameter("!"),
            element::MVAR => self.parameter("!!"),
            element::ARRAY => self.array(depth),
            element::GENERICINST => self.generic_instance(depth),
            element::FNPTR => {
                self.write("method ");
                self.method(depth)
            }
            element::CMOD_REQD | element::CMOD_OPT => {
                // A modifier is no part of the name.
                let output = match &mut self.output {
                    Output::Text { .. } => std::mem::replace(&mut self.output, Output::Nothing),
                    _ => Output::Nothing,
                };
                let outcome = self.token();
                if matches!(output, Output::Text { .. }) {
                    self.output = output;
                }
                outcome?;
                self.read_type(depth)
            }
            element::MODULE_ZAPSIG => {
                let outer = self.module;
                self.module = self.number()?;
                let outcome = self.read_overridden(depth, outer);
                self.module = outer;
                outcome
            }
            _ => None,
        }
    }

    /// A type whose own tokens belong to another module, but not those of its type arguments.
    fn read_overridden(&mut self, depth: u32, outer: u32) -> Option<()> {
        if self.cursor.rest().first().map(|kind| kind & 0x7f) != Some(element::GENERICINST) {
            return self.read_type(depth);
        }
        self.byte()?;
        self.read_type(depth.checked_sub(1)?)?;
        self.module = outer;
        self.arguments(depth)
    }

    fn generic_instance(&mut self, depth: u32) -> Option<()> {
        self.read_type(depth)?;
        self.arguments(depth)
    }

    fn arguments(&mut self, depth: u32) -> Option<()> {
        let count = self.number()?;
        self.write("[");
        for number in 0..count {
            if number > 0 {
                self.write(",");
            }
            self.read_type(depth)?;
        }
        self.write("]");
        Some(())
    }

    fn suffixed(&mut self, depth: u32, suffix: &str) -> Option<()> {
        self.read_type(depth)?;
        self.write(suffix);
        Some(())
    }

    fn parameter(&mut self, mark: &str) -> Option<()> {
        let number = self.number()?;
        self.write(mark);
        self.write(&number.to_string());
        Some(())
    }

    fn array(&mut self, depth: u32) -> Option<()> {
        self.read_type(depth)?;
        let rank = self.number()?;
        self.write("[");
        // 32 is the most that the runtime allows (`MAX_RANK`, `src/coreclr/vm/array.h`).
        for _ in 1..rank.min(32) {
            self.write(",");
        }
        self.write("]");
        for _ in 0..2 {
            let count = self.number()?;
            for _ in 0..count {
                self.number()?;
            }
        }
        Some(())
    }

    /// A method's signature: convention, parameters, return type.
    fn method(&mut self, depth: u32) -> Option<()> {
        let convention = self.byte()?;
        if convention & 0x10 != 0 {
            self.number()?;
        }
        let count = self.number()?;
        self.read_type(depth)?;
        self.write(" *(");
        for number in 0..count {
            if number > 0 {
                self.write(",");
            }
            self.read_type(depth)?;
        }
        self.write(")");
        Some(())
    }
}

/// The type tokens in a method's signature, each once, as far as it can be read.
#[must_use]
pub fn type_tokens(signature: &[u8]) -> Vec<u32> {
    let mut walk = Walk::new(signature, MAX_STEPS);
    walk.output = Output::Tokens(Vec::new());
    let _ = walk.method(MAX_DEPTH);
    match walk.output {
        Output::Tokens(mut tokens) => {
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        }
        _ => Vec::new(),
    }
}

/// A type of one module as text, as in a TypeSpec.
#[must_use]
pub fn type_text(metadata: &crate::Metadata, signature: &[u8]) -> Option<String> {
    struct OneModule<'a>(&'a crate::Metadata);
    impl TypeNames for OneModule<'_> {
        fn type_name(&self, module: u32, token: u32) -> Option<String> {
            (module == 0).then(|| self.0.type_name(token))?
        }
    }
    let names = OneModule(metadata);
    Walk::new(signature, MAX_STEPS).type_text(&names).filter(|text| !text.is_empty())
}

/// Whether a token names a TypeSpec, whose name is a signature.
#[must_use]
pub fn is_type_spec(token: u32) -> bool {
    token >> 24 == u32::from(table::TYPE_SPEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered;
    impl TypeNames for Numbered {
        fn type_name(&self, module: u32, token: u32) -> Option<String> {
            (module < 9).then(|| format!("M{module}.T{token:x}"))
        }
    }

    fn text(signature: &[u8]) -> Option<String> {
        Walk::new(signature, 1000).type_text(&Numbered)
    }

    #[test]
    fn types_are_written_as_the_runtime_names_them() {
        for (signature, expected) in [
            (&[0x08][..], "System.Int32"),
            (&[0x1d, 0x0e], "System.String[]"),
            (&[0x14, 0x08, 3, 0, 0], "System.Int32[,,]"),
            (&[0x14, 0x08, 2, 1, 5, 2, 0, 0], "System.Int32[,]"),
            (&[0x0f, 0x01], "System.Void*"),
            (&[0x12, 0x08], "M0.T2000002"),
            (&[0x15, 0x11, 0x08, 2, 0x08, 0x13, 0], "M0.T2000002[System.Int32,!0]"),
            (&[0x1e, 1], "!!1"),
            (&[0x20, 0x09, 0x08], "System.Int32"),
            (&[0x3f, 7, 0x11, 0x08], "M7.T2000002"),
            // The arguments of a generic type of another module are of this one again.
            (&[0x3f, 7, 0x15, 0x11, 0x08, 1, 0x11, 0x0c], "M7.T2000002[M0.T2000003]"),
            (&[0x1b, 0, 1, 0x01, 0x08], "method System.Void *(System.Int32)"),
            (&[0x3e], "System.__Canon"),
            // A type of a module nobody knows.
            (&[0x3f, 9, 0x11, 0x08], ""),
        ] {
            assert_eq!(text(signature).as_deref(), Some(expected), "{signature:x?}");
        }
    }

    #[test]
    fn arguments_that_are_references_are_empty() {
        let argument = |signature: &[u8]| Walk::new(signature, 1000).argument(&Numbered);
        for reference in [
            &[0x3e][..],
            &[0x0e],
            &[0x1d, 0x08],
            &[0x12, 0x08],
            &[0x15, 0x12, 0x08, 1, 0x08],
            &[0x3f, 7, 0x15, 0x12, 0x08, 1, 0x08],
        ] {
            assert_eq!(argument(reference).as_deref(), Some(""), "{reference:x?}");
        }
        let value = [0x15, 0x11, 0x08, 2, 0x3e, 0x08];
        assert_eq!(argument(&value).as_deref(), Some("M0.T2000002[System.__Canon,System.Int32]"));
    }

    #[test]
    fn broken_signatures_are_no_types() {
        for signature in [&[][..], &[0x15], &[0x15, 0x11, 0x08, 0xdf, 0xff, 0xff, 0xff], &[0x77]] {
            assert_eq!(text(signature), None);
        }
        assert_eq!(text(&[0x1d; 500]), None, "too deep");
        assert!(Walk::new(&[0x1d, 0x1d, 0x08], 2).skip_type().is_none(), "too many steps");
    }

    #[test]
    fn the_types_in_a_method_signature_are_found() {
        // T instance M(class 2, valuetype 3<class 2>)
        let signature = [0x20, 2, 0x13, 0, 0x12, 0x08, 0x15, 0x11, 0x0d, 1, 0x12, 0x08];
        assert_eq!(type_tokens(&signature), [0x0100_0003, 0x0200_0002]);
        assert_eq!(type_tokens(&[]), []);
    }
}
