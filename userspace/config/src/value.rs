//! How values are written, read and shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use strata_kinds::{Kind, Kinds};

use crate::problem::nearest;
use crate::secret::Secret;

/// A value as it was written.
#[derive(Clone, PartialEq)]
pub enum Raw {
    /// Of a variable or a flag: text that may mean anything.
    Words(String),
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Raw>),
    /// A number with a fraction, or a date: nothing here takes one.
    Other(&'static str),
}

/// The error in a value, and a hint.
pub struct Wrong(pub String, pub Option<String>);

type Read<T> = Result<T, Wrong>;

fn expected<T>(what: &str) -> Read<T> {
    Err(Wrong(format!("expected {what}"), None))
}

/// A type of values.
pub trait Value: Sized {
    /// Errors do not repeat the value: it may be a secret.
    const SECRET: bool = false;
    fn read(raw: &Raw) -> Read<Self>;
    /// As TOML.
    fn show(&self) -> String;
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

impl Raw {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Words(text) | Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn integer(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            Self::Words(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    fn items(&self) -> Option<Vec<&str>> {
        match self {
            Self::Words(text) => {
                let items = inside(text.trim(), '[', ']').split(',').map(str::trim);
                let items = items.map(|item| inside(inside(item, '"', '"'), '\'', '\''));
                Some(items.filter(|item| !item.is_empty()).collect())
            }
            Self::List(items) => items.iter().map(Self::text).collect(),
            _ => None,
        }
    }
}

/// Without these around it, if they are: lists may be written as in the file.
fn inside(text: &str, open: char, close: char) -> &str {
    text.strip_prefix(open).and_then(|text| text.strip_suffix(close)).unwrap_or(text)
}

impl Value for bool {
    fn read(raw: &Raw) -> Read<Self> {
        match raw {
            Raw::Boolean(value) => Ok(*value),
            Raw::Words(text) if matches!(text.as_str(), "true" | "1") => Ok(true),
            Raw::Words(text) if matches!(text.as_str(), "false" | "0") => Ok(false),
            _ => expected("true or false"),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.integer().and_then(|number| Self::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => expected("a whole number"),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.text() {
            Some(text) => Ok(text.to_owned()),
            None => expected("text in quotes"),
        }
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

impl Value for PathBuf {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.text() {
            Some(text) if text.starts_with('/') => Ok(text.into()),
            _ => expected("an absolute path"),
        }
    }

    fn show(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl Value for Secret {
    const SECRET: bool = true;

    fn read(raw: &Raw) -> Read<Self> {
        match raw.text() {
            Some(text) if !text.chars().any(char::is_control) => Ok(Self::new(text)),
            _ => expected("text in quotes, on one line"),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for SocketAddr {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.text().and_then(|text| text.parse().ok()) {
            Some(address) => Ok(address),
            None => expected("an address and a port, as in \"127.0.0.1:9464\""),
        }
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// `""` is nothing.
impl<T: Value> Value for Option<T> {
    const SECRET: bool = T::SECRET;

    fn read(raw: &Raw) -> Read<Self> {
        if raw.text() == Some("") { Ok(None) } else { T::read(raw).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quoted(""), T::show)
    }
}

/// A value that `""` switches off. An empty variable sets nothing, so variables and flags have `off`.
pub(crate) struct Switchable<T>(pub Option<T>);

impl<T: Value> Value for Switchable<T> {
    const SECRET: bool = T::SECRET;

    fn read(raw: &Raw) -> Read<Self> {
        match raw {
            Raw::Words(text) if text == "off" => Ok(Self(None)),
            _ => Option::<T>::read(raw).map(Self),
        }
    }

    fn show(&self) -> String {
        self.0.show()
    }
}

impl Value for Vec<String> {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.items() {
            Some(items) => Ok(items.into_iter().map(str::to_owned).collect()),
            None => expected("a list of texts"),
        }
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Value for Vec<PathBuf> {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.items() {
            Some(items) if items.iter().all(|path| path.starts_with('/')) => {
                Ok(items.into_iter().map(PathBuf::from).collect())
            }
            _ => expected("a list of absolute paths"),
        }
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Value for Kinds {
    fn read(raw: &Raw) -> Read<Self> {
        let names = || Kind::ALL.into_iter().map(Kind::name);
        let Some(items) = raw.items() else {
            return expected("a list of sample types");
        };
        let kind = |item: &str| Kind::find(item).ok_or_else(|| item.to_owned());
        items.into_iter().map(kind).collect::<Result<Self, String>>().map_err(|item| {
            let all = names().collect::<Vec<_>>().join(", ");
            Wrong(
                format!("`{item}` is no sample type"),
                nearest(&item, names()).or(Some(format!("there are: {all}"))),
            )
        })
    }

    fn show(&self) -> String {
        format!("{:?}", self.iter().map(Kind::name).collect::<Vec<_>>())
    }
}

/// Units and their size, largest first.
const TIMES: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1000),
    ("B", 1),
];

fn measured(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let at = text.find(|character: char| !character.is_ascii_digit())?;
    let number: u64 = text.get(..at)?.parse().ok()?;
    let unit = text.get(at..)?.trim();
    // Of sizes, `KB` and `gib` are as clear.
    let is_it = |name: &str| {
        name == unit || name.len() > 1 && name.ends_with('B') && name.eq_ignore_ascii_case(unit)
    };
    let (_, size) = units.iter().find(|(name, _)| is_it(name))?;
    number.checked_mul(*size)
}

fn in_units(number: u64, units: &[(&str, u64)], least: &str) -> String {
    let whole = units.iter().find(|(_, size)| number >= *size && number.is_multiple_of(*size));
    whole.map_or_else(|| format!("0{least}"), |(name, size)| format!("{}{name}", number / size))
}

impl Value for Duration {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.text().and_then(|text| measured(text, &TIMES)) {
            Some(milliseconds) => Ok(Self::from_millis(milliseconds)),
            None => expected(
                "a time with its unit, as in \"500ms\", \"15s\", \"10m\", \"1h\" or \"7d\"",
            ),
        }
    }

    fn show(&self) -> String {
        quoted(&in_units(u64::try_from(self.as_millis()).unwrap_or(u64::MAX), &TIMES, "s"))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Value for Bytes {
    fn read(raw: &Raw) -> Read<Self> {
        match raw.integer().or_else(|| measured(raw.text()?, &SIZES)) {
            Some(bytes) => Ok(Self(bytes)),
            None => expected("a size with its unit, as in \"256MB\" or \"1GiB\""),
        }
    }

    fn show(&self) -> String {
        quoted(&in_units(self.0, &SIZES, "B"))
    }
}

/// An enumeration of words.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub const WORDS: &[&str] = &[$($word),+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl $crate::value::Value for $name {
            fn read(raw: &$crate::value::Raw) -> Result<Self, $crate::value::Wrong> {
                match <String as $crate::value::Value>::read(raw)?.as_str() {
                    $($word => Ok(Self::$variant),)+
                    other => Err($crate::value::wrong_word(other, Self::WORDS)),
                }
            }

            fn show(&self) -> String {
                format!("{:?}", self.name())
            }
        }
    };
}
pub(crate) use words;

pub(crate) fn wrong_word(word: &str, known: &[&str]) -> Wrong {
    let message = format!("expected one of {}", known.join(", "));
    Wrong(message, nearest(word, known.iter().copied()))
}
