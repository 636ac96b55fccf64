//! Method names: accessors, operators, constructors, lambdas, local functions.

use super::arguments::push_list;
use super::brackets::{enclosed, rsplit_outside};
use super::inert::push;
use super::operators::operator;

/// A method as its source has it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The method, or the one that a lambda or local function is in.
    pub method: String,
    pub within: Within,
    /// Initialises a type.
    pub is_static: bool,
}

/// The part of a method.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Within {
    #[default]
    Itself,
    Lambda {
        captures: bool,
    },
    Local(String),
}

/// The context of the name.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The type, without anything that surrounds it.
    pub owner: &'a str,
    /// The method that a lambda is in when its name does not contain it (VB).
    pub enclosing: Option<&'a str>,
    /// In a type that holds what a lambda captures.
    pub captures: bool,
    /// Part of a type's name, where compilers write "-" for ".".
    pub in_type_name: bool,
    pub shape: Shape,
}

/// Which accessor a method could be, by its signature.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Whether it is known to return a value.
    pub gives: Option<bool>,
    pub parameters: Option<usize>,
    /// May only be used in initialisers.
    pub init: bool,
}

/// How VB names a lambda's method (Roslyn, `GeneratedNameConstants.vb`).
pub(super) const VISUAL_BASIC_LAMBDA: &str = "_Lambda$__";

/// Compilers nest names three deep.
const DEEPEST: usize = 8;

impl Member {
    pub fn parse(name: &str, place: Place<'_>) -> Self {
        Self::parse_within(name, place, DEEPEST)
    }

    fn parse_within(name: &str, place: Place<'_>, depth: usize) -> Self {
        let nested = depth.checked_sub(1).and_then(|depth| {
            Self::csharp(name, place, depth).or_else(|| Self::visual_basic(name, place, depth))
        });
        nested.unwrap_or_else(|| Self::written(name, place))
    }

    fn csharp(name: &str, place: Place<'_>, depth: usize) -> Option<Self> {
        let (inner, rest) = enclosed(name)?;
        if inner.is_empty() {
            // Calls a method of the base class for a lambda: "<>n__0".
            return rest
                .starts_with("n__")
                .then(|| Member { method: "base".to_string(), ..Self::default() });
        }
        let place = Place { shape: Shape::default(), ..place };
        let of_method = |within| Member { within, ..Self::parse_within(inner, place, depth) };
        // "<Main>" and "<Clone>$" are the compiler's own methods, the rest belongs to one.
        if rest.is_empty() || rest == "$" {
            return Some(Self::parse_within(inner, place, depth));
        }
        if rest.starts_with("b__") || rest.starts_with("m__") {
            return Some(of_method(Within::Lambda { captures: place.captures }));
        }
        let local = rest.strip_prefix("g__")?;
        let name = match local.split_once('|') {
            Some((name, _)) => name,
            // The first C# 7 compilers wrote the numbers without a separator.
            None => local.trim_end_matches(|last: char| last.is_ascii_digit() || last == '_'),
        };
        Some(of_method(Within::Local(name.to_string())))
    }

    fn visual_basic(name: &str, place: Place<'_>, depth: usize) -> Option<Self> {
        name.strip_prefix(VISUAL_BASIC_LAMBDA)?;
        let Some(enclosing) = place.enclosing else {
            return Some(Member { method: "Lambda".to_string(), ..Self::default() });
        };
        let place = Place { enclosing: None, shape: Shape::default(), ..place };
        Some(Member {
            within: Within::Lambda { captures: false },
            ..Self::parse_within(enclosing, place, depth)
        })
    }

    /// A method written in the source.
    fn written(name: &str, place: Place<'_>) -> Self {
        if name == ".ctor" || name == ".cctor" || (place.in_type_name && is_constructor(name)) {
            return Member {
                method: place.owner.to_string(),
                within: Within::Itself,
                is_static: name.ends_with("cctor"),
            };
        }
        let dotted = if place.in_type_name { Some(name.replace('-', ".")) } else { dotted(name) };
        let mut name = dotted.as_deref().unwrap_or(name);
        let mut method = String::new();
        if let Some((interface, last)) = rsplit_outside(name, b'.')
            && !interface.is_empty()
            && !last.is_empty()
        {
            spaced(interface, &mut method);
            push(&mut method, ".");
            name = last;
        }
        match accessor(name, place.shape).or_else(|| operator(name)) {
            Some(shown) => push(&mut method, &shown),
            None => spaced(name, &mut method),
        }
        Member { method, ..Self::default() }
    }

    /// The name with generic arguments: of the method, and of a local function in it.
    pub fn push_to(&self, text: &mut String, of_method: &[String], of_local: &[String]) {
        push(text, &self.method);
        push_list(text, of_method);
        match &self.within {
            Within::Itself => {}
            Within::Lambda { captures: true } => push(text, "_AnonymousMethod"),
            Within::Lambda { captures: false } => push(text, "_Lambda"),
            Within::Local(name) => {
                push(text, ".");
                push(text, name);
            }
        }
        push_list(text, of_local);
        if self.is_static {
            push(text, " (static)");
        }
    }
}

/// "System.IDisposable.Dispose" of F#'s "System-IDisposable-Dispose". F# methods may have any
/// characters in their names; only an interface's name before the last dash identifies these.
fn dotted(name: &str) -> Option<String> {
    let (interface, method) = name.rsplit_once('-')?;
    let pieces = || interface.split('-').map(|piece| piece.split('`').next().unwrap_or_default());
    let mut last = pieces().next_back()?.chars();
    let is_interface = last.next() == Some('I') && last.next().is_some_and(char::is_uppercase);
    let is_identifier = |piece: &str| {
        !piece.is_empty() && piece.chars().all(|one| one.is_alphanumeric() || one == '_')
    };
    if !is_interface || !is_identifier(method) || !pieces().all(is_identifier) {
        return None;
    }
    let mut shown: String = pieces().flat_map(|piece| [piece, "."]).collect();
    shown.push_str(method);
    Some(shown)
}

fn is_constructor(name: &str) -> bool {
    name == "-ctor" || name == "-cctor"
}

/// "Total.get" of "get_Total".
fn accessor(name: &str, shape: Shape) -> Option<String> {
    let (kind, property) = name.split_once('_')?;
    let takes = |most: usize| shape.parameters.is_none_or(|count| count == most);
    let (fits, kind) = match kind {
        "get" => (shape.gives != Some(false), "get"),
        "set" => (
            shape.gives != Some(true) && shape.parameters != Some(0),
            if shape.init { "init" } else { "set" },
        ),
        "add" | "remove" => (shape.gives != Some(true) && takes(1), kind),
        "raise" => (true, "raise"),
        _ => return None,
    };
    if !fits || property.is_empty() || is_snake_case(kind, property, shape) {
        return None;
    }
    let is_indexer = property == "Item" && matches!(kind, "get" | "set" | "init");
    Some(format!("{}.{kind}", if is_indexer { "this[]" } else { property }))
}

/// Whether what looks like an accessor is a method whose name is written so: `get_user(id)`,
/// `raise_error(text)`. Properties may begin with a small letter; but only `Item` has an index, and
/// events that are raised begin with a capital.
fn is_snake_case(kind: &str, property: &str, shape: Shape) -> bool {
    let own_parameters = usize::from(kind != "get");
    property.starts_with(char::is_lowercase)
        && (kind == "raise" || shape.parameters.is_some_and(|count| count > own_parameters))
}

/// Interfaces with several arguments have no space after the comma.
fn spaced(name: &str, text: &mut String) {
    let mut depth = 0usize;
    for (at, character) in name.char_indices() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        text.push(character);
        let next_is_space = name.get(at + 1..).is_some_and(|rest| rest.starts_with(' '));
        if character == ',' && depth > 0 && !next_is_space {
            text.push(' ');
        }
    }
}
