//! Signature blobs (ECMA-335 II.23.2) to text.
//!
//! Invariant: a walk is bounded in depth and in steps, and text stops growing at
//! [`MAX_NAME_BYTES`].

use std::borrow::Cow;
use std::fmt;

use strata_ecma::signature::{Budget, Named, Visitor, Walk};
use strata_ecma::{table, table_of};

use super::inert::{MAX_NAME_BYTES, inert, push};

/// Elements of one signature, and types within types; more are rejected.
const BUDGET: Budget = Budget { steps: 4096, depth: 32 };
/// Parameters of one method. The runtime allows more; a reader wants fewer.
const MOST_PARAMETERS: u32 = 256;
/// Modifiers of one return type that are kept.
const MOST_MODIFIERS: usize = 16;

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
    let mut walk = Walk::new(blob, BUDGET);
    let head = walk.method_head()?;
    let mut signature = Signature {
        has_this: head.has_this,
        generic_parameters: head.generic_parameters,
        ..Signature::default()
    };
    while let Some(token) = walk.modifier()? {
        if signature.return_modifiers.len() == MOST_MODIFIERS {
            continue;
        }
        let mut budget = Budget { steps: walk.steps_left(), depth: 1 };
        let mut text = Text { names, text: String::new() };
        text.named(Named { token, module: 0, modifier: false }, &mut budget)?;
        signature.return_modifiers.push(inert(&text.text));
    }
    signature.return_type = one(&mut walk, names)?;
    let mut bytes = 0;
    for position in 0..head.parameters {
        if position == MOST_PARAMETERS || bytes > MAX_NAME_BYTES {
            signature.parameters.push("…".to_string());
            break;
        }
        let parameter = one(&mut walk, names)?;
        bytes += parameter.len();
        signature.parameters.push(parameter);
    }
    Some(signature)
}

/// A type, such as a TypeSpec stands for.
#[must_use]
pub fn decode_type(blob: &[u8], names: &impl TypeNames) -> Option<String> {
    one(&mut Walk::new(blob, BUDGET), names)
}

fn one(walk: &mut Walk<'_>, names: &impl TypeNames) -> Option<String> {
    let mut text = Text { names, text: String::new() };
    walk.type_(&mut text)?;
    Some(inert(&text.text))
}

struct Text<'a, N> {
    names: &'a N,
    text: String,
}

impl<N: TypeNames> Visitor for Text<'_, N> {
    fn text(&mut self, text: &str) {
        push(&mut self.text, text);
    }

    fn variable(&mut self, of_method: bool, position: u32) {
        let (name, mark) = match of_method {
            true => (self.names.method_parameter(position), "!!"),
            false => (self.names.type_parameter(position), "!"),
        };
        match name {
            Some(name) => push(&mut self.text, name),
            None => push(&mut self.text, &format!("{mark}{position}")),
        }
    }

    fn named(&mut self, named: Named, budget: &mut Budget) -> Option<()> {
        if named.modifier {
            return Some(());
        }
        let names = self.names;
        if table_of(named.token) == table::TYPE_SPEC
            && let Some(blob) = names.type_spec(named.token)
        {
            let depth = budget.depth.checked_sub(1)?;
            let mut inner = Walk::new(blob, Budget { depth, ..*budget });
            let outcome = inner.type_(self);
            budget.steps = inner.steps_left();
            return outcome;
        }
        let name = match table_of(named.token) {
            table::TYPE_SPEC => None,
            _ => names.type_name(named.token),
        };
        push(&mut self.text, name.as_deref().unwrap_or("?"));
        Some(())
    }
}
