//! Type names with arguments, as the runtime writes them, and as source code does.
//!
//! "Ns.Pair`2[System.Int32,System.__Canon]" is `Ns.Pair<System.Int32, __Canon>`. Reflection's form
//! with an assembly for each argument ("[[System.Int32, mscorlib],…]") is understood, too.

use super::arguments::{SHARED, distribute, push_list};
use super::inert::{front, inert, push};
use super::member::{Member, Place};
use super::path::{Part, Path};

/// Arguments of arguments; deeper ones are not shown.
const DEEPEST: usize = 32;
/// Types in one text.
const MOST_TYPES: usize = 1024;

/// A type's name as in source code, safe to show.
#[must_use]
pub fn type_name(raw: &str) -> String {
    inert(&clean(raw))
}

pub(super) fn clean(raw: &str) -> String {
    let mut reader = Reader { rest: front(raw), types: MOST_TYPES };
    let mut text = reader.read(DEEPEST).unwrap_or_default();
    // What is not a type is shown as it came.
    push(&mut text, reader.rest);
    text
}

/// A type without arguments, or with these.
fn shown(name: &str, arguments: &[String]) -> String {
    if name == SHARED {
        return "__Canon".to_string();
    }
    let path = Path::parse(name);
    let ranges = distribute(&path.segments, arguments.len());
    let mut text = String::from(path.namespace);
    let mut owner = "";
    let mut captures = false;
    for (segment, range) in path.segments.iter().zip(ranges) {
        if !text.is_empty() {
            push(&mut text, ".");
        }
        let own = arguments.get(range).unwrap_or_default();
        match segment.part {
            Part::Named(name) | Part::Function(name) => {
                owner = name;
                push(&mut text, name);
                push_list(&mut text, own);
            }
            Part::Anonymous(name, number) => {
                push(&mut text, name);
                push(&mut text, number);
            }
            Part::Closure { captures: does } => {
                captures = does;
                push(&mut text, "Closure");
                push_list(&mut text, own);
            }
            Part::StateMachine(method) => {
                let place = Place { owner, captures, in_type_name: true, ..Place::default() };
                Member::parse(method, place).push_to(&mut text, own, &[]);
            }
            Part::Compiler(name) | Part::Holder(name) => {
                push(&mut text, name);
                push_list(&mut text, own);
            }
        }
    }
    text
}

struct Reader<'a> {
    rest: &'a str,
    types: usize,
}

impl<'a> Reader<'a> {
    /// The text of the type at this place. `None` when the text is nested too deep.
    fn read(&mut self, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        self.types = self.types.checked_sub(1)?;
        if let Some(pointer) = self.function_pointer() {
            return Some(pointer);
        }
        let name = self.name();
        let mut arguments = vec![];
        if self.rest.starts_with('[') && !self.is_array() {
            self.skip('[');
            while !self.rest.is_empty() && !self.skip(']') {
                arguments.push(self.argument(depth)?);
                self.skip(',');
            }
        }
        let mut text = shown(name, &arguments);
        push(&mut text, self.suffix());
        Some(text)
    }

    /// One argument, perhaps in brackets of its own with an assembly.
    fn argument(&mut self, depth: usize) -> Option<String> {
        if !self.skip('[') {
            return self.read(depth);
        }
        let text = self.read(depth)?;
        let end = self.rest.find(']').unwrap_or(self.rest.len());
        self.advance(end);
        self.skip(']');
        Some(text)
    }

    /// "method System.Void *(System.Int32)" stays as it is.
    fn function_pointer(&mut self) -> Option<String> {
        let after = self.rest.strip_prefix("method ")?;
        let (result, parameters) = after.split_once(" *(")?;
        let mut depth = 1usize;
        let closing = parameters.bytes().position(|byte| {
            match byte {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        let end = "method ".len() + result.len() + " *(".len() + closing + 1;
        let mut text = self.rest.get(..end)?.to_string();
        self.advance(end);
        push(&mut text, self.suffix());
        Some(text)
    }

    /// A name ends where arguments, an array's rank, or the next argument begin. Names of methods
    /// within names are in angle brackets and may have any of these.
    fn name(&mut self) -> &'a str {
        let mut angles = 0usize;
        let end = self.rest.bytes().position(|byte| {
            match byte {
                b'<' => angles += 1,
                b'>' => angles = angles.saturating_sub(1),
                _ => {}
            }
            angles == 0 && matches!(byte, b'[' | b']' | b',' | b'*' | b'&')
        });
        let end = end.unwrap_or(self.rest.len());
        let name = self.rest.get(..end).unwrap_or_default();
        self.advance(end);
        name.trim_start()
    }

    /// Whether "[" begins a rank: "[]", "[,]", "[*]".
    fn is_array(&self) -> bool {
        let inside = self.rest.trim_start_matches('[').trim_start_matches([',', '*']);
        inside.starts_with(']') && !self.rest.starts_with("[[")
    }

    /// Ranks, pointers, references.
    fn suffix(&mut self) -> &'a str {
        let start = self.rest;
        loop {
            let before = self.rest.len();
            if !self.skip('*') && !self.skip('&') && self.rest.starts_with('[') && self.is_array() {
                let end = self.rest.find(']').map_or(self.rest.len(), |at| at + 1);
                self.advance(end);
            }
            if self.rest.len() == before {
                return start.get(..start.len() - before).unwrap_or_default();
            }
        }
    }

    fn skip(&mut self, character: char) -> bool {
        match self.rest.strip_prefix(character) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_shown_as_they_are_written() {
        for (raw, expected) in [
            ("System.Int32", "System.Int32"),
            ("Ns.Pair`2[System.Int32,System.__Canon]", "Ns.Pair<System.Int32, __Canon>"),
            ("A`1+B`1[System.Int32,System.Byte]", "A<System.Int32>.B<System.Byte>"),
            ("A`1+B[System.Int32]", "A<System.Int32>.B"),
            ("A`1[B`1[System.Int32][]]", "A<B<System.Int32>[]>"),
            ("System.Int32[]", "System.Int32[]"),
            ("System.Int32[,,][]&", "System.Int32[,,][]&"),
            ("System.Int32*[*]", "System.Int32*[*]"),
            ("A`1[System.Int32[,]]", "A<System.Int32[,]>"),
            ("A`2[[System.Int32, System.Private.CoreLib],[B, C]]", "A<System.Int32, B>"),
            ("Shop.Payment+<Pay>d__7", "Shop.Payment.Pay"),
            ("Shop.Payment+<Pay>d__7`1[System.Int32]", "Shop.Payment.Pay<System.Int32>"),
            ("A`1[<>f__AnonymousType0`2[System.Int32,B]]", "A<AnonymousType0>"),
            (
                "A`1[method System.Void *(System.Int32,B)]",
                "A<method System.Void *(System.Int32,B)>",
            ),
            ("", ""),
        ] {
            assert_eq!(type_name(raw), expected, "{raw}");
        }
    }

    #[test]
    fn what_is_no_type_stays_a_bounded_text() {
        for raw in ["[", "]", "A[", "A[B", "A]B", "A`1[,]", "a,b", "<", "method ", "A[[B"] {
            let _ = type_name(raw);
        }
        assert!(type_name(&"A[".repeat(5000)).len() <= super::super::MAX_NAME_BYTES);
    }
}
