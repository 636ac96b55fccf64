//! The source form of an operator's method.

/// Operators of C# and VB (ECMA-335 I.10.3; Roslyn, `WellKnownMemberNames.cs`).
const NAMED: [(&str, &str); 42] = [
    ("Addition", "+"),
    ("BitwiseAnd", "&"),
    ("BitwiseOr", "|"),
    ("Decrement", "--"),
    ("Division", "/"),
    ("Equality", "=="),
    ("ExclusiveOr", "^"),
    ("Explicit", "explicit"),
    ("False", "false"),
    ("GreaterThan", ">"),
    ("GreaterThanOrEqual", ">="),
    ("Implicit", "implicit"),
    ("Increment", "++"),
    ("Inequality", "!="),
    ("LeftShift", "<<"),
    ("LessThan", "<"),
    ("LessThanOrEqual", "<="),
    ("LogicalAnd", "&&"),
    ("LogicalNot", "!"),
    ("LogicalOr", "||"),
    ("Modulus", "%"),
    ("Multiply", "*"),
    ("OnesComplement", "~"),
    ("RightShift", ">>"),
    ("Subtraction", "-"),
    ("True", "true"),
    ("UnaryNegation", "-"),
    ("UnaryPlus", "+"),
    ("UnsignedLeftShift", "<<"),
    ("UnsignedRightShift", ">>>"),
    // VB.
    ("Concatenate", "&"),
    ("Exponent", "^"),
    ("IntegerDivision", "\\"),
    ("Like", "Like"),
    // F# (fsharp, `src/Compiler/SyntaxTree/PrettyNaming.fs`).
    ("Append", "@"),
    ("ComposeLeft", "<<"),
    ("ComposeRight", ">>"),
    ("Dereference", "!"),
    ("PipeLeft", "<|"),
    ("PipeRight", "|>"),
    ("Range", ".."),
    ("RangeStep", ".. .."),
];

/// Compound assignments, from C# 14 on: "AdditionAssignment".
const ASSIGNMENT: &str = "Assignment";

/// The characters of which F# makes names of operators that have none.
const CHARACTERS: [(&str, &str); 24] = [
    ("Amp", "&"),
    ("At", "@"),
    ("Bang", "!"),
    ("Bar", "|"),
    ("Colon", ":"),
    ("Comma", ","),
    ("Divide", "/"),
    ("Dollar", "$"),
    ("Dot", "."),
    ("Equals", "="),
    ("Greater", ">"),
    ("Hash", "#"),
    ("Hat", "^"),
    ("LBrack", "["),
    ("LParen", "("),
    ("Less", "<"),
    ("Minus", "-"),
    ("Multiply", "*"),
    ("Percent", "%"),
    ("Plus", "+"),
    ("Qmark", "?"),
    ("RBrack", "]"),
    ("RParen", ")"),
    ("Twiddle", "~"),
];

/// "operator +" of "op_Addition".
pub(super) fn operator(method: &str) -> Option<String> {
    let name = method.strip_prefix("op_")?;
    let (checked, name) = match name.strip_prefix("Checked") {
        Some(name) => ("checked ", name),
        None => ("", name),
    };
    if let Some(sign) = named(name) {
        return Some(format!("operator {checked}{sign}"));
    }
    match name.strip_suffix(ASSIGNMENT) {
        Some("Increment") => Some(format!("operator {checked}++")),
        Some("Decrement") => Some(format!("operator {checked}--")),
        Some(name) => named(name).map(|sign| format!("operator {checked}{sign}=")),
        None => spelled(name),
    }
}

fn named(name: &str) -> Option<&'static str> {
    NAMED.iter().find_map(|(known, sign)| (*known == name).then_some(*sign))
}

/// "op_BangGreater" is `!>`.
fn spelled(name: &str) -> Option<String> {
    let mut rest = name;
    let mut signs = String::from("operator ");
    if name.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (known, sign) = CHARACTERS.iter().find(|(known, _)| rest.starts_with(known))?;
        signs.push_str(sign);
        rest = rest.strip_prefix(known)?;
    }
    Some(signs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_shown_as_they_are_written() {
        for (method, expected) in [
            ("op_Addition", "operator +"),
            ("op_Implicit", "operator implicit"),
            ("op_CheckedAddition", "operator checked +"),
            ("op_CheckedExplicit", "operator checked explicit"),
            ("op_UnsignedRightShift", "operator >>>"),
            ("op_AdditionAssignment", "operator +="),
            ("op_CheckedSubtractionAssignment", "operator checked -="),
            ("op_IncrementAssignment", "operator ++"),
            ("op_True", "operator true"),
            ("op_PipeRight", "operator |>"),
            ("op_GreaterGreaterEquals", "operator >>="),
        ] {
            assert_eq!(operator(method).as_deref(), Some(expected), "{method}");
        }
    }

    #[test]
    fn other_methods_are_no_operators() {
        for method in ["op_", "op_Erate", "Addition", "op_Checked", "op_Assignment"] {
            assert_eq!(operator(method), None, "{method}");
        }
    }
}
