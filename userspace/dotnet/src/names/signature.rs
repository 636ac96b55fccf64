//! Signature blobs (ECMA-335 II.23.2) to text.
//!
//! Invariant: a walk is bounded in depth and in steps, and text stops growing at
//! [`MAX_NAME_BYTES`].

use std::borrow::Cow;
use std::fmt;

use super::inert::{MAX_NAME_BYTES, inert, push};

/// Deeper types are not believed.
const DEEPEST: usize = 32;
/// Elements of one signature.
const MOST_ELEMENTS: usize = 4096;
/// Parameters of one method. The runtime allows more; nobody reads them.
const MOST_PARAMETERS: usize = 256;
/// Sizes and bounds of an array type, and its rank (`MAX_RANK`, `src/coreclr/vm/array.h`).
const MOST_DIMENSIONS: u32 = 32;

/// The types of a method, as the runtime writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    pub return_type: String,
    pub parameters: Vec<String>,
    /// Types that modify the return type, such as that of init accessors.
    pub return_modifiers: Vec<String>,
    pub has_this: bool,
    pub generic_parameters: u32,
}

impl fmt::Display for Signature {
    /// "System.Void (System.Int32, MyApp.Order&)"
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.return_type, self.parameters.join(", "))
    }
}

/// Where the names in a signature come from.
pub trait TypeNames {
    /// The raw name of a TypeDef or TypeRef.
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>>;

    /// The signature that a TypeSpec stands for.
    fn type_spec(&self, _token: u32) -> Option<&[u8]> {
        None
    }

    /// The name of a generic parameter of the type.
    fn type_parameter(&self, _position: u32) -> Option<&str> {
        None
    }

    /// The name of a generic parameter of the method.
    fn method_parameter(&self, _position: u32) -> Option<&str> {
        None
    }
}

/// The signature of a method.
#[must_use]
pub fn decode(blob: &[u8], names: &impl TypeNames) -> Option<Signature> {
    let mut walk = Walk { rest: blob, names, elements: MOST_ELEMENTS };
    let (signature, _) = walk.method(DEEPEST)?;
    Some(signature)
}

/// A type, such as a TypeSpec stands for.
#[must_use]
pub fn decode_type(blob: &[u8], names: &impl TypeNames) -> Option<String> {
    let mut walk = Walk { rest: blob, names, elements: MOST_ELEMENTS };
    let mut text = String::new();
    walk.type_(&mut text, DEEPEST)?;
    Some(inert(&text))
}

/// The types that are one byte (`CorElementType`, corhdr.h).
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
        _ => return None,
    })
}

mod element {
    pub const PTR: u8 = 0x0f;
    pub const BYREF: u8 = 0x10;
    pub const VALUETYPE: u8 = 0x11;
    pub const CLASS: u8 = 0x12;
    pub const VAR: u8 = 0x13;
    pub const ARRAY: u8 = 0x14;
    pub const GENERICINST: u8 = 0x15;
    pub const FNPTR: u8 = 0x1b;
    pub const SZARRAY: u8 = 0x1d;
    pub const MVAR: u8 = 0x1e;
    pub const CMOD_REQD: u8 = 0x1f;
    pub const CMOD_OPT: u8 = 0x20;
    pub const INTERNAL: u8 = 0x21;
    pub const CMOD_INTERNAL: u8 = 0x22;
    pub const SENTINEL: u8 = 0x41;
    pub const PINNED: u8 = 0x45;
}

/// Bits of a calling convention.
const GENERIC: u8 = 0x10;
const HAS_THIS: u8 = 0x20;
/// Conventions up to here are of methods (II.23.2.3); the others are of fields, locals, properties.
const LAST_METHOD_CONVENTION: u8 = 0x05;
const UNMANAGED: u8 = 0x09;

struct Walk<'a, N> {
    rest: &'a [u8],
    names: &'a N,
    elements: usize,
}

impl<N: TypeNames> Walk<'_, N> {
    fn method(&mut self, depth: usize) -> Option<(Signature, bool)> {
        let convention = self.byte()?;
        let kind = convention & 0x0f;
        if kind > LAST_METHOD_CONVENTION && kind != UNMANAGED {
            return None;
        }
        let generic_parameters = if convention & GENERIC != 0 { self.number()? } else { 0 };
        let count = self.number()?;
        let mut signature = Signature {
            has_this: convention & HAS_THIS != 0,
            generic_parameters,
            ..Signature::default()
        };
        signature.return_modifiers = self.modifiers()?;
        signature.return_type = self.one(depth)?;
        let mut bytes = 0;
        for position in 0..count as usize {
            if position == MOST_PARAMETERS || bytes > MAX_NAME_BYTES {
                signature.parameters.push("…".to_string());
                return Some((signature, false));
            }
            let parameter = self.one(depth)?;
            bytes += parameter.len();
            signature.parameters.push(parameter);
        }
        Some((signature, true))
    }

    fn one(&mut self, depth: usize) -> Option<String> {
        let mut text = String::new();
        self.type_(&mut text, depth)?;
        Some(inert(&text))
    }

    /// The modifiers at this place.
    fn modifiers(&mut self) -> Option<Vec<String>> {
        let mut modifiers = vec![];
        while let Some(element::CMOD_REQD | element::CMOD_OPT) = self.rest.first().copied() {
            self.byte()?;
            let mut text = String::new();
            self.token(&mut text, 1)?;
            modifiers.push(inert(&text));
        }
        Some(modifiers)
    }

    fn type_(&mut self, text: &mut String, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let kind = self.byte()?;
        if let Some(name) = simple_type(kind) {
            push(text, name);
            return Some(());
        }
        match kind {
            element::PTR => self.suffixed(text, depth, "*"),
            element::BYREF => self.suffixed(text, depth, "&"),
            element::SZARRAY => self.suffixed(text, depth, "[]"),
            element::SENTINEL | element::PINNED => self.type_(text, depth),
            element::VALUETYPE | element::CLASS => self.token(text, depth),
            element::VAR => {
                let position = self.number()?;
                let names = self.names;
                push_parameter(text, names.type_parameter(position), "!", position);
                Some(())
            }
            element::MVAR => {
                let position = self.number()?;
                let names = self.names;
                push_parameter(text, names.method_parameter(position), "!!", position);
                Some(())
            }
            element::ARRAY => self.array(text, depth),
            element::GENERICINST => self.instance(text, depth),
            element::FNPTR => self.function_pointer(text, depth),
            // A modifier is no part of the name.
            element::CMOD_REQD | element::CMOD_OPT => {
                self.token(&mut String::new(), depth)?;
                self.type_(text, depth)
            }
            // The runtime's own signatures have pointers to its types (corhdr.h).
            element::INTERNAL => {
                push(text, "?");
                self.skip(size_of::<u64>())
            }
            element::CMOD_INTERNAL => {
                self.skip(1 + size_of::<u64>())?;
                self.type_(text, depth)
            }
            _ => None,
        }
    }

    fn suffixed(&mut self, text: &mut String, depth: usize, suffix: &str) -> Option<()> {
        self.type_(text, depth)?;
        push(text, suffix);
        Some(())
    }

    /// A TypeDefOrRefOrSpec (II.23.2.8).
    fn token(&mut self, text: &mut String, depth: usize) -> Option<()> {
        const TABLES: [u32; 3] = [0x0200_0000, 0x0100_0000, 0x1b00_0000];
        const TYPE_SPEC: u32 = 0x1b00_0000;
        let depth = depth.checked_sub(1)?;
        let coded = self.number()?;
        let table = *TABLES.get(coded as usize & 3)?;
        let token = table | coded >> 2;
        let names = self.names;
        if table == TYPE_SPEC {
            let Some(blob) = names.type_spec(token) else {
                push(text, "?");
                return Some(());
            };
            let mut inner = Walk { rest: blob, names, elements: self.elements };
            let outcome = inner.type_(text, depth);
            self.elements = inner.elements;
            return outcome;
        }
        match names.type_name(token) {
            Some(name) => push(text, &name),
            None => push(text, "?"),
        }
        Some(())
    }

    fn instance(&mut self, text: &mut String, depth: usize) -> Option<()> {
        self.type_(text, depth)?;
        let count = self.number()?;
        push(text, "[");
        for position in 0..count {
            if position > 0 {
                push(text, ",");
            }
            self.type_(text, depth)?;
        }
        push(text, "]");
        Some(())
    }

    fn array(&mut self, text: &mut String, depth: usize) -> Option<()> {
        self.type_(text, depth)?;
        let rank = self.number()?;
        push(text, "[");
        for _ in 1..rank.min(MOST_DIMENSIONS) {
            push(text, ",");
        }
        push(text, "]");
        // Sizes, then lower bounds.
        for _ in 0..2 {
            let count = self.number()?;
            if count > MOST_DIMENSIONS {
                return None;
            }
            for _ in 0..count {
                self.number()?;
            }
        }
        Some(())
    }

    fn function_pointer(&mut self, text: &mut String, depth: usize) -> Option<()> {
        let (signature, complete) = self.method(depth)?;
        push(text, "method ");
        push(text, &signature.return_type);
        push(text, " *(");
        push(text, &signature.parameters.join(","));
        push(text, ")");
        complete.then_some(())
    }

    /// A compressed number (II.23.2). Whatever is read is an element, so that their number bounds
    /// the whole walk.
    fn number(&mut self) -> Option<u32> {
        let first = u32::from(self.byte()?);
        let (more, mut value) = match first {
            0x00..=0x7f => return Some(first),
            0x80..=0xbf => (1, first & 0x3f),
            0xc0..=0xdf => (3, first & 0x1f),
            _ => return None,
        };
        for _ in 0..more {
            value = value << 8 | u32::from(self.byte()?);
        }
        Some(value)
    }

    fn byte(&mut self) -> Option<u8> {
        self.elements = self.elements.checked_sub(1)?;
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }
}

fn push_parameter(text: &mut String, name: Option<&str>, mark: &str, position: u32) {
    match name {
        Some(name) => push(text, name),
        None => push(text, &format!("{mark}{position}")),
    }
}
