//! Type names, and what a compiler made each of their parts for.
//!
//! C#: Roslyn, `src/Compilers/CSharp/Portable/Symbols/Synthesized/GeneratedNames.cs` and
//! `GeneratedNameKind.cs`. VB: `GeneratedNameConstants.vb`. F#: `CompilerGlobalState.fs`.

use super::brackets::{enclosed, rsplit_outside, split_outside};

/// The meaning of one part of a type's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// A type written in the source.
    Named(&'a str),
    /// A type without a name in the source: what it is called, and its number.
    Anonymous(&'static str, &'a str),
    /// Holds lambdas and what they capture.
    Closure { captures: bool },
    /// The body of a method that waits or yields: the method's name in metadata.
    StateMachine(&'a str),
    /// An F# closure, which is one function.
    Function(&'a str),
    /// A helper of the compiler.
    Compiler(&'a str),
    /// Holds what belongs to no type: helpers, a module's functions.
    Holder(&'a str),
}

/// One part of a type's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment<'a> {
    pub part: Part<'a>,
    /// The generic parameters that it adds.
    pub arity: usize,
}

/// A type's name in pieces.
pub(super) struct Path<'a> {
    pub namespace: &'a str,
    pub segments: Vec<Segment<'a>>,
}

/// Deeper than types are nested in practice; deeper ones are dropped.
const MOST_SEGMENTS: usize = 32;

impl<'a> Path<'a> {
    pub fn parse(type_name: &'a str) -> Self {
        let mut pieces = split_outside(without_start_up(type_name), b'+');
        pieces.truncate(MOST_SEGMENTS);
        let mut namespace = "";
        if let Some(first) = pieces.first_mut()
            && let Some((before, name)) = rsplit_outside(first, b'.')
        {
            (namespace, *first) = (before, name);
        }
        let segments = pieces.into_iter().filter(|piece| !piece.is_empty()).map(segment).collect();
        Path { namespace, segments }
    }
}

/// Code that F# runs when a file of an assembly is first used is in types of their own:
/// "<StartupCode$Assembly>.$File".
fn without_start_up(type_name: &str) -> &str {
    type_name
        .strip_prefix("<StartupCode$")
        .and_then(|rest| rest.split_once(">."))
        .map_or(type_name, |(_, name)| name.strip_prefix('$').unwrap_or(name))
}

fn segment(text: &str) -> Segment<'_> {
    let (name, arity) = arity(text);
    Segment { part: part(name), arity }
}

/// Splits "Name`2" into "Name" and 2.
fn arity(text: &str) -> (&str, usize) {
    let split = text.rsplit_once('`').and_then(|(name, digits)| {
        // Types that hot reload has added end in their generation, "#1".
        let digits = digits.split_once('#').map_or(digits, |(digits, _)| digits);
        let counted = digits.bytes().all(|byte| byte.is_ascii_digit());
        Some((name, if counted { digits.parse().ok()? } else { return None }))
    });
    split.filter(|(name, _)| !name.is_empty()).unwrap_or((text, 0))
}

fn part(name: &str) -> Part<'_> {
    enclosed(name)
        .and_then(|(inner, rest)| csharp_part(inner, rest))
        .or_else(|| visual_basic_part(name))
        .or_else(|| fsharp_part(name))
        .unwrap_or(Part::Named(name))
}

fn csharp_part<'a>(inner: &'a str, rest: &'a str) -> Option<Part<'a>> {
    if inner.is_empty() {
        return csharp_part_without_method(rest);
    }
    if inner == "PrivateImplementationDetails" || inner == "Module" {
        return Some(Part::Holder(inner));
    }
    // Before C# 10 top-level statements were in "<Program>$".
    if rest == "$" {
        return Some(Part::Named(inner));
    }
    // A type that only its file sees: "<File>F0123456789ABCDEF__Name".
    if let Some((hash, name)) = rest.strip_prefix('F').and_then(|rest| rest.split_once("__"))
        && !name.is_empty()
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return Some(Part::Named(name));
    }
    // Other compilers and other times: "<Run>c__DisplayClass1", and mono's.
    if rest.starts_with("c__DisplayClass") || rest.starts_with("c__AnonStorey") {
        return Some(Part::Closure { captures: true });
    }
    if is_kind(rest, 'd') || rest.starts_with("c__Iterator") || rest.starts_with("c__async") {
        return Some(Part::StateMachine(inner));
    }
    None
}

fn csharp_part_without_method(rest: &str) -> Option<Part<'_>> {
    for (prefix, name) in
        [("f__AnonymousType", "AnonymousType"), ("f__AnonymousDelegate", "AnonymousDelegate")]
    {
        if let Some(number) = rest.strip_prefix(prefix) {
            return Some(Part::Anonymous(name, number));
        }
    }
    // Delegates of lambdas that no type of the framework fits: "<>A{00000008}", "<>F{00000004}".
    if rest.starts_with("A{") || rest.starts_with("F{") {
        return Some(Part::Anonymous("AnonymousDelegate", ""));
    }
    if rest.starts_with("c__DisplayClass") {
        return Some(Part::Closure { captures: true });
    }
    if is_kind(rest, 'c') {
        return Some(Part::Closure { captures: false });
    }
    // Collections made of collection expressions, inline arrays and the like: "z__ReadOnlyArray".
    let (_, name) = rest.split_once("__")?;
    Some(Part::Compiler(name))
}

/// "d", "d__7", "d#1".
fn is_kind(rest: &str, kind: char) -> bool {
    rest.strip_prefix(kind)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("__") || rest.starts_with('#'))
}

fn visual_basic_part(name: &str) -> Option<Part<'_>> {
    if let Some(numbers) = name.strip_prefix("_Closure$__") {
        return Some(Part::Closure { captures: !numbers.is_empty() });
    }
    let name = name.strip_prefix("VB$")?;
    if let Some(rest) = name.strip_prefix("StateMachine_") {
        let (number, method) = rest.split_once('_')?;
        // Those of lambdas have no number.
        let counted = number.bytes().all(|byte| byte.is_ascii_digit());
        return (counted && !method.is_empty()).then_some(Part::StateMachine(method));
    }
    for (prefix, shown) in
        [("AnonymousType_", "AnonymousType"), ("AnonymousDelegate_", "AnonymousDelegate")]
    {
        if let Some(number) = name.strip_prefix(prefix) {
            return Some(Part::Anonymous(shown, number));
        }
    }
    None
}

/// "total@12", "total@12-1".
fn fsharp_part(name: &str) -> Option<Part<'_>> {
    let (function, line) = name.rsplit_once('@')?;
    let is_line = line.starts_with(|first: char| first.is_ascii_digit())
        && line.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (!function.is_empty() && is_line).then_some(Part::Function(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(type_name: &str) -> Vec<Part<'_>> {
        Path::parse(type_name).segments.iter().map(|segment| segment.part).collect()
    }

    #[test]
    fn every_part_is_recognised_by_its_mark() {
        use Part::*;
        for (type_name, expected) in [
            ("Shop.Cart+Line", vec![Named("Cart"), Named("Line")]),
            ("Shop.Order+<>c", vec![Named("Order"), Closure { captures: false }]),
            ("Order+<>c__3`1", vec![Named("Order"), Closure { captures: false }]),
            ("Order+<>c__DisplayClass3_0", vec![Named("Order"), Closure { captures: true }]),
            ("Order+<Pay>d__7", vec![Named("Order"), StateMachine("Pay")]),
            (
                "Order+<>c+<<Run>b__3_0>d",
                vec![Named("Order"), Closure { captures: false }, StateMachine("<Run>b__3_0")],
            ),
            ("<>f__AnonymousType0`2", vec![Anonymous("AnonymousType", "0")]),
            ("<>z__ReadOnlyArray`1", vec![Compiler("ReadOnlyArray")]),
            ("<PrivateImplementationDetails>", vec![Holder("PrivateImplementationDetails")]),
            ("<Program>F3A__Hidden", vec![Named("Hidden")]),
            ("<Program>$", vec![Named("Program")]),
            ("Till+_Closure$__", vec![Named("Till"), Closure { captures: false }]),
            ("Till+_Closure$__1-0", vec![Named("Till"), Closure { captures: true }]),
            ("Till+VB$StateMachine_3_Pay", vec![Named("Till"), StateMachine("Pay")]),
            (
                "Till+VB$StateMachine___Lambda$__6-0",
                vec![Named("Till"), StateMachine("_Lambda$__6-0")],
            ),
            ("VB$AnonymousType_0`1", vec![Anonymous("AnonymousType", "0")]),
            ("Module+total@12-1", vec![Named("Module"), Function("total@12-1")]),
            ("<StartupCode$App>.$Program", vec![Named("Program")]),
            // Unexpected marks are names from the source.
            ("A`b", vec![Named("A`b")]),
            ("<", vec![Named("<")]),
            ("a@b", vec![Named("a@b")]),
        ] {
            assert_eq!(parts(type_name), expected, "{type_name}");
        }
    }

    #[test]
    fn arity_marks_are_read() {
        let path = Path::parse("N.Outer`1+Inner`12+<Go>d__1`3#1");
        let arities: Vec<usize> = path.segments.iter().map(|segment| segment.arity).collect();
        assert_eq!((path.namespace, arities), ("N", vec![1, 12, 3]));
    }
}
