//! The type tokens that a signature blob names (ECMA-335, II.23.2).
//!
//! The blob comes from the process's own metadata; a wrong one ends the walk, nothing else.

/// Nested types that are followed; deeper ones are left out.
const DEEPEST: u32 = 32;

const CLASS: u8 = 0x12;
const VALUE_TYPE: u8 = 0x11;

/// Gives every type token of a method's signature to `each`.
pub fn tokens_of_method(blob: &[u8], each: &mut impl FnMut(u32)) {
    let _ = Walk { rest: blob, each }.method(DEEPEST);
}

/// Gives every type token of a type specification to `each`.
pub fn tokens_of_type(blob: &[u8], each: &mut impl FnMut(u32)) {
    let _ = Walk { rest: blob, each }.type_(DEEPEST);
}

struct Walk<'a, F> {
    rest: &'a [u8],
    each: &'a mut F,
}

/// `None` ends the walk: the blob is over, or wrong.
impl<F: FnMut(u32)> Walk<'_, F> {
    fn method(&mut self, depth: u32) -> Option<()> {
        const GENERIC: u8 = 0x10;
        if self.byte()? & GENERIC != 0 {
            self.number()?;
        }
        let parameters = self.number()?;
        for _ in 0..=parameters {
            self.type_(depth)?;
        }
        Some(())
    }

    fn type_(&mut self, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        loop {
            match self.byte()? {
                // Void to String, typed reference, native integers, object.
                0x01..=0x0e | 0x16 | 0x18 | 0x19 | 0x1c => return Some(()),
                CLASS | VALUE_TYPE => return self.token(),
                // Type variables.
                0x13 | 0x1e => return self.number().map(drop),
                0x14 => return self.array(depth),
                0x15 => return self.instance(depth),
                0x1b => return self.method(depth),
                // Custom modifiers stand before the type.
                0x1f | 0x20 => self.token()?,
                // Pointer, reference, vector, sentinel, pinned: the type follows.
                0x0f | 0x10 | 0x1d | 0x41 | 0x45 => {}
                // In the runtime's own signatures: a type handle (corhdr.h, ELEMENT_TYPE_INTERNAL).
                0x21 => return self.skip(size_of::<usize>()),
                // And a modifier of that kind, with a byte that says whether it is required.
                0x22 => self.skip(1 + size_of::<usize>())?,
                _ => return None,
            }
        }
    }

    fn instance(&mut self, depth: u32) -> Option<()> {
        match self.byte()? {
            CLASS | VALUE_TYPE => self.token()?,
            0x21 => self.skip(size_of::<usize>())?,
            _ => return None,
        }
        for _ in 0..self.number()? {
            self.type_(depth)?;
        }
        Some(())
    }

    fn array(&mut self, depth: u32) -> Option<()> {
        self.type_(depth)?;
        self.number()?;
        // Sizes, then lower bounds.
        for _ in 0..2 {
            for _ in 0..self.number()? {
                self.number()?;
            }
        }
        Some(())
    }

    /// A compressed TypeDefOrRef token.
    fn token(&mut self) -> Option<()> {
        const TABLES: [u32; 3] = [0x0200_0000, 0x0100_0000, 0x1b00_0000];
        let coded = self.number()?;
        let table = TABLES.get(coded as usize & 3)?;
        let row = coded >> 2;
        if row != 0 {
            (self.each)(table | row);
        }
        Some(())
    }

    /// A compressed number.
    fn number(&mut self) -> Option<u32> {
        let first = u32::from(self.byte()?);
        let more = match first {
            0x00..=0x7f => return Some(first),
            0x80..=0xbf => 1,
            0xc0..=0xdf => 3,
            _ => return None,
        };
        let mut value = first & if more == 1 { 0x3f } else { 0x1f };
        for _ in 0..more {
            value = value << 8 | u32::from(self.byte()?);
        }
        Some(value)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(blob: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        tokens_of_method(blob, &mut |token| tokens.push(token));
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
}
