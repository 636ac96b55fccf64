//! The display of generic arguments, and the part of a name that they belong to.

use std::ops::Range;

use super::inert::{MAX_NAME_BYTES, push};
use super::path::Segment;
use super::type_text;

/// The runtime's type argument for any reference type.
pub(super) const SHARED: &str = "System.__Canon";
/// More arguments are not shown. The longest function type of the framework has 17.
pub(super) const MOST: usize = 64;

/// One text for each argument: of a shared one the name that its parameter was declared with. All
/// of them together are looked at no further than a name may be long.
pub(super) fn shown<T: AsRef<str>>(arguments: &[T], parameters: &[T]) -> Vec<String> {
    let mut left = MAX_NAME_BYTES;
    (0..arguments.len().max(parameters.len()).min(MOST))
        .map(|position| {
            let given = arguments.get(position).map_or("", T::as_ref);
            let name = parameters.get(position).map_or("", T::as_ref);
            let (text, is_given) = match given {
                "" | SHARED => (name, false),
                _ => (given, true),
            };
            match left.checked_sub(text.len()) {
                None => "…".to_string(),
                Some(_) if text.is_empty() => format!("T{position}"),
                Some(less) => {
                    left = less;
                    if is_given { type_text::clean(text) } else { declared(text) }
                }
            }
        })
        .collect()
}

/// The name of a parameter in the source.
fn declared(name: &str) -> String {
    // VB copies the parameters of a method to the types it makes for it, as "SM$T" and "$CLS0"
    // (Roslyn, VisualBasic/Portable/Symbols/SynthesizedSymbols/GeneratedNameConstants.vb).
    if let Some(number) = name.strip_prefix("$CLS") {
        return format!("T{number}");
    }
    name.strip_prefix("SM$").unwrap_or(name).to_string()
}

/// Which arguments belong to which part of a type's name. Nested types repeat the parameters of
/// the types around them, but count only their own in their names (ECMA-335 I.10.7.2).
pub(super) fn distribute(segments: &[Segment<'_>], count: usize) -> Vec<Range<usize>> {
    let mut start = 0usize;
    let mut ranges: Vec<Range<usize>> = segments
        .iter()
        .map(|segment| {
            let end = start.saturating_add(segment.arity).min(count);
            let range = start..end;
            start = end;
            range
        })
        .collect();
    // Not every compiler counts.
    if let Some(last) = ranges.last_mut() {
        last.end = count;
    }
    ranges
}

/// "<A, B>"; nothing when there are none.
pub(super) fn push_list(text: &mut String, arguments: &[String]) {
    for (position, argument) in arguments.iter().enumerate() {
        push(text, if position == 0 { "<" } else { ", " });
        push(text, argument);
    }
    if !arguments.is_empty() {
        push(text, ">");
    }
}
