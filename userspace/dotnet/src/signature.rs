//! Types as text, from the signatures of metadata and of precompiled code.

use strata_bytes::{MAX_NAME_BYTES, bounded_str};
use strata_ecma::signature::{Budget, Named, Skip, Visitor, Walk, element, tokens_of_method};
use strata_ecma::{table, table_of};

/// Deeper types are rejected.
const MAX_DEPTH: u32 = 64;
/// Steps of the walk through one signature.
const MAX_STEPS: u32 = 64 << 10;
/// More type arguments are left out.
pub(crate) const MAX_ARGUMENTS: u32 = 256;

/// The source of the names of types. Module 0 is the one that the signature is in.
pub(crate) trait TypeNames {
    fn type_name(&self, module: u32, token: u32) -> Option<String>;
}

struct Text<'a> {
    names: &'a dyn TypeNames,
    text: String,
    known: bool,
}

impl Visitor for Text<'_> {
    fn text(&mut self, text: &str) {
        if self.text.len() <= MAX_NAME_BYTES {
            self.text.push_str(text);
        }
    }

    fn variable(&mut self, of_method: bool, position: u32) {
        self.text(if of_method { "!!" } else { "!" });
        self.text(&position.to_string());
    }

    fn named(&mut self, named: Named, _: &mut Budget) -> Option<()> {
        if !named.modifier && self.text.len() <= MAX_NAME_BYTES {
            match self.names.type_name(named.module, named.token) {
                Some(name) => self.text.push_str(&name),
                None => self.known = false,
            }
        }
        Some(())
    }
}

/// A walk of at most so many steps through a signature of precompiled code.
pub(crate) fn precompiled(signature: &[u8], steps: u32) -> Walk<'_> {
    Walk::precompiled(signature, Budget { steps, depth: MAX_DEPTH })
}

pub(crate) fn skip_type(walk: &mut Walk<'_>) -> Option<()> {
    walk.type_(&mut Skip)
}

/// A type as text; an empty one for a type of a module that is not known.
fn text_of(walk: &mut Walk<'_>, names: &dyn TypeNames) -> Option<String> {
    let mut visitor = Text { names, text: String::new(), known: true };
    walk.type_(&mut visitor)?;
    let Text { mut text, known, .. } = visitor;
    text.truncate(if known { bounded_str(&text).len() } else { 0 });
    Some(text)
}

/// A type argument as text; an empty one for a reference type, since code is shared by all of
/// those, and for a type of a module that is not known.
pub(crate) fn argument(walk: &mut Walk<'_>, names: &dyn TypeNames) -> Option<String> {
    if is_reference_type(*walk) {
        skip_type(walk)?;
        return Some(String::new());
    }
    text_of(walk, names)
}

fn is_reference_type(mut ahead: Walk<'_>) -> bool {
    let mut kind = ahead.byte();
    if kind == Some(element::MODULE_ZAPSIG) {
        kind = ahead.number().and_then(|_| ahead.byte());
    }
    if kind == Some(element::GENERICINST) {
        kind = ahead.byte();
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

/// The arguments of the generic instantiation at this place, as text. `None` leaves the walk
/// where it was: the type is another.
pub(crate) fn generic_arguments(walk: &mut Walk<'_>, names: &dyn TypeNames) -> Option<Vec<String>> {
    let mut ahead = *walk;
    let count = ahead.enter_arguments()?;
    let mut arguments = Vec::new();
    for position in 0..count {
        if position < MAX_ARGUMENTS {
            arguments.push(argument(&mut ahead, names)?);
        } else {
            skip_type(&mut ahead)?;
        }
    }
    *walk = ahead;
    Some(arguments)
}

/// The type tokens in a method's signature, each once, as far as it can be read.
#[must_use]
pub fn type_tokens(signature: &[u8]) -> Vec<u32> {
    let mut tokens = Vec::new();
    tokens_of_method(signature, |token| tokens.push(token));
    tokens.sort_unstable();
    tokens.dedup();
    tokens
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
    let mut walk = Walk::new(signature, Budget { steps: MAX_STEPS, depth: MAX_DEPTH });
    text_of(&mut walk, &OneModule(metadata)).filter(|text| !text.is_empty())
}

/// Whether a token names a TypeSpec, whose name is a signature.
#[must_use]
pub fn is_type_spec(token: u32) -> bool {
    table_of(token) == table::TYPE_SPEC
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
        text_of(&mut precompiled(signature, 1000), &Numbered)
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
            // A type of an unknown module.
            (&[0x3f, 9, 0x11, 0x08], ""),
        ] {
            assert_eq!(text(signature).as_deref(), Some(expected), "{signature:x?}");
        }
    }

    #[test]
    fn arguments_that_are_references_are_empty() {
        let argument = |signature: &[u8]| argument(&mut precompiled(signature, 1000), &Numbered);
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
        assert!(skip_type(&mut precompiled(&[0x1d, 0x1d, 0x08], 2)).is_none(), "too many steps");
    }

    #[test]
    fn the_types_in_a_method_signature_are_found() {
        // T instance M(class 2, valuetype 3<class 2>)
        let signature = [0x20, 2, 0x13, 0, 0x12, 0x08, 0x15, 0x11, 0x0d, 1, 0x12, 0x08];
        assert_eq!(type_tokens(&signature), [0x0100_0003, 0x0200_0002]);
        assert_eq!(type_tokens(&[]), []);
    }
}
