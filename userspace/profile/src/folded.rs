//! Folded stacks: `process;thread;root;…;leaf count`, a line for each distinct stack; without
//! the thread where it has its process's name.
//!
//! The format has no escapes, but names may hold its separators. They are written as `\x3b`
//! (`;`), `\x0a` and the like, as is every character that could act on a terminal, and read back
//! as they were. A name that happens to hold such an escape has its backslash escaped.
//!
//! Invariant: reading what was written gives the same names and counts. One line is one stack.

use std::borrow::Cow;
use std::io::Write;

use crate::builder::ProfileBuilder;
use crate::error::{ReadError, WriteError};
use crate::format::View;
use crate::kind::{FrameKind, is_marker};
use crate::model::{Label, LabelValue, LocationId, Profile};
use crate::text::{is_active, push_escape};
use crate::tree::{CallTree, Roots};

/// The most frames read from a line.
const DEEPEST_LINE: usize = 16 << 10;

/// Writes the values of one sample type.
pub fn write(profile: &Profile, sample_type: usize, mut out: impl Write) -> Result<(), WriteError> {
    let tree = CallTree::new(profile, Roots::ProcessThenComm, sample_type, None, View::WHOLE);
    let mut names = Vec::new();
    let mut line = String::new();
    for node in tree.nodes.iter().filter(|node| node.own > 0) {
        names.clear();
        let mut at = node;
        while at.depth > 0 {
            names.push(at.name);
            let Some(parent) = tree.nodes.get(at.parent as usize) else { break };
            at = parent;
        }
        line.clear();
        for &name in names.iter().rev() {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&escaped(profile.string(name)));
        }
        if line.is_empty() {
            line.push_str("[unknown]");
        }
        // Other readers treat such a line as a comment.
        if line.starts_with('#') {
            line.replace_range(..1, "\\x23");
        }
        writeln!(out, "{line} {}", node.own)?;
    }
    Ok(out.flush()?)
}

/// Reads folded stacks, of strata or of another tool. The first name of a line is taken for the
/// thread's, unless it is the only one; `_[k]` and `_[j]` at the end of a name mark kernel and JIT
/// code.
pub fn read(text: &str) -> Result<Profile, ReadError> {
    let mut builder = ProfileBuilder::new(&[("samples", "count")]);
    let comm_key = builder.string("comm");
    let mut locations: Vec<LocationId> = Vec::new();
    let mut found = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (names, count) = line.rsplit_once(' ').ok_or(ReadError::NotFolded { line: number })?;
        let count = read_count(count).ok_or(ReadError::NotFolded { line: number })?;
        let (comm, frames) = names.split_once(';').unwrap_or(("", names));
        locations.clear();
        for name in frames.split(';') {
            if locations.len() >= DEEPEST_LINE {
                let limit = DEEPEST_LINE;
                return Err(ReadError::TooLarge { what: "frames in a stack", limit });
            }
            locations.push(location(&mut builder, name));
        }
        locations.reverse();
        let labels = if comm.is_empty() {
            Vec::new()
        } else {
            let comm = builder.string(&unescaped(comm));
            vec![Label { key: comm_key, value: LabelValue::Text(comm) }]
        };
        let labels = builder.labels(&labels);
        let stack = builder.stack(&locations);
        builder.add(stack, labels, &[count]);
        found = true;
    }
    if found { Ok(builder.finish()) } else { Err(ReadError::Empty) }
}

fn location(builder: &mut ProfileBuilder, name: &str) -> LocationId {
    let (name, kind) = if let Some(name) = name.strip_suffix("_[k]") {
        (name, FrameKind::Kernel)
    } else if let Some(name) = name.strip_suffix("_[j]") {
        (name, FrameKind::Jit)
    } else if is_marker(name) {
        (name, FrameKind::Marker)
    } else {
        (name.strip_suffix("_[i]").unwrap_or(name), FrameKind::Native)
    };
    let name = unescaped(name);
    let frame = builder.frame(kind, if name.is_empty() { "[unknown]" } else { &name }, "", "", 0);
    builder.location(0, None, &[frame])
}

fn read_count(text: &str) -> Option<i64> {
    // Some tools scale counts and leave a fraction.
    text.parse().ok().or_else(|| {
        let count: f64 = text.parse().ok()?;
        count.is_finite().then_some(count.round() as i64)
    })
}

fn escaped(name: &str) -> Cow<'_, str> {
    if !name.chars().any(|character| character == ';' || character == '\\' || is_active(character))
    {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(name.len().saturating_add(8));
    for (at, character) in name.char_indices() {
        let rest = name.get(at..).unwrap_or_default();
        if character == ';' || is_active(character) || read_escape(rest).is_some() {
            push_escape(&mut text, character);
        } else {
            text.push(character);
        }
    }
    Cow::Owned(text)
}

fn unescaped(name: &str) -> Cow<'_, str> {
    if !name.contains('\\') {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let (character, length) = read_escape(rest).unwrap_or((first, first.len_utf8()));
        text.push(character);
        rest = rest.get(length..).unwrap_or_default();
    }
    Cow::Owned(text)
}

/// The character that an escape at the start of `text` stands for, and the escape's length.
fn read_escape(text: &str) -> Option<(char, usize)> {
    if let Some(rest) = text.strip_prefix("\\x") {
        let digits = rest.get(..2).filter(|digits| is_hexadecimal(digits))?;
        let code = u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)?;
        return Some((char::from(code), 4));
    }
    let rest = text.strip_prefix("\\u{")?;
    let end = rest.bytes().take(7).position(|byte| byte == b'}')?;
    let digits = rest.get(..end).filter(|digits| !digits.is_empty() && is_hexadecimal(digits))?;
    let character = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
    Some((character, digits.len().saturating_add(4)))
}

fn is_hexadecimal(digits: &str) -> bool {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::{escaped, unescaped};

    #[test]
    fn separators_in_a_name_are_escaped_and_come_back() {
        for (name, text) in [
            ("operator;", "operator\\x3b"),
            ("a\nb\x1b", "a\\x0ab\\x1b"),
            ("App\\Kernel::run", "App\\Kernel::run"),
            ("a\\x3b", "a\\x5cx3b"),
            ("\u{202e}x", "\\u{202e}x"),
            ("\\u{41}", "\\x5cu{41}"),
            ("\\x\\u{", "\\x\\u{"),
        ] {
            assert_eq!(escaped(name), text);
            assert_eq!(unescaped(text), name);
        }
    }
}
