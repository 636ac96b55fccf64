//! The environment block of a process: raw bytes that the process chose.
//!
//! Of a name that is there twice the first counts, as for `getenv`; a variable that is set to
//! nothing counts as not set.

use crate::destinations;
use crate::known_variables::Known;
use crate::types;

/// The most that is read of a block. The kernel allows more.
pub const MAX_BLOCK: usize = 256 * 1024;

pub const PYROSCOPE_APPLICATION_NAME: &str = "PYROSCOPE_APPLICATION_NAME";
pub const PYROSCOPE_LABELS: &str = "PYROSCOPE_LABELS";
pub const DD_SERVICE: &str = "DD_SERVICE";
pub const DD_ENV: &str = "DD_ENV";
pub const DD_VERSION: &str = "DD_VERSION";
pub const DD_TAGS: &str = "DD_TAGS";
pub const OTEL_SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
pub const OTEL_RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

const NAMING: [&str; 8] = [
    PYROSCOPE_APPLICATION_NAME,
    PYROSCOPE_LABELS,
    DD_SERVICE,
    DD_ENV,
    DD_VERSION,
    DD_TAGS,
    OTEL_SERVICE_NAME,
    OTEL_RESOURCE_ATTRIBUTES,
];

/// `/proc/PID/environ`: `NAME=value` strings, each ended by a zero byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    block: &'a [u8],
    unread: usize,
}

impl<'a> Environment<'a> {
    pub fn new(block: &'a [u8]) -> Self {
        let Some(head) = block.get(..MAX_BLOCK).filter(|head| head.len() < block.len()) else {
            return Self { block, unread: 0 };
        };
        // The last string may be truncated: half a value is ignored.
        let end = head.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        Self { block: block.get(..end).unwrap_or_default(), unread: block.len() - end }
    }

    /// Bytes over [`MAX_BLOCK`].
    pub fn unread(&self) -> usize {
        self.unread
    }

    pub fn variables(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.block.split(|byte| *byte == 0).filter_map(|string| {
            let at = string.iter().position(|byte| *byte == b'=')?;
            Some((string.get(..at)?, string.get(at + 1..)?))
        })
    }

    /// The value of any variable.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let (_, value) = self.variables().find(|(known, _)| *known == name.as_bytes())?;
        (!value.is_empty()).then_some(value)
    }

    /// The variables of the block that strata uses, in one pass over it.
    pub(crate) fn known(&self) -> Known<'a> {
        let mut known = Known::new(self.unread);
        for (name, value) in self.variables() {
            if !(name.starts_with(b"DD_")
                || name.starts_with(b"OTEL_")
                || name.starts_with(b"PYROSCOPE_"))
            {
                continue;
            }
            let Some(name) = name_of(name) else { continue };
            known.note(name, value);
        }
        known
    }
}

fn name_of(name: &[u8]) -> Option<&'static str> {
    let all =
        NAMING.into_iter().chain(types::variables()).chain(destinations::VARIABLES.iter().copied());
    all.into_iter().find(|known| known.as_bytes() == name)
}

/// Variables of a build's source, which Datadog links profiles with.
pub const GIT: [&str; 2] = ["DD_GIT_REPOSITORY_URL", "DD_GIT_COMMIT_SHA"];

/// How a variable of a process's environment is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The value is used.
    Value,
    /// Only that it is set: endpoints and credentials.
    Name,
    Nothing,
}

/// What a variable is used for. `own_destination`: some rule lets a target choose its destination.
pub fn use_of(name: &[u8], own_destination: bool) -> Use {
    let git = || GIT.iter().any(|known| known.as_bytes() == name);
    match name_of(name) {
        Some(known) if destinations::VARIABLES.contains(&known) && !own_destination => Use::Name,
        Some(_) => Use::Value,
        None if git() => Use::Value,
        None => Use::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_counts_and_nothing_is_no_value() {
        let environment =
            Environment::new(b"DD_SERVICE=a\0DD_SERVICE=b\0DD_ENV=\0X=1=2\0odd\0=x\0");
        assert_eq!(environment.get("DD_SERVICE"), Some(&b"a"[..]));
        assert_eq!(environment.get("DD_ENV"), None);
        assert_eq!(environment.get("X"), Some(&b"1=2"[..]));
        assert_eq!(environment.get("odd"), None);
        let known = environment.known();
        assert_eq!(known.text("DD_SERVICE").as_deref(), Some("a"));
        assert_eq!(known.text("X"), None);
        assert_eq!(known.names().collect::<Vec<_>>(), ["DD_SERVICE"]);
    }

    #[test]
    fn a_block_without_its_last_zero_is_read() {
        assert_eq!(Environment::new(b"A=1\0B=2").get("B"), Some(&b"2"[..]));
    }

    #[test]
    fn of_a_block_over_the_limit_whole_variables_are_read_and_the_rest_is_counted() {
        let mut block = b"DD_ENV=a\0DD_SERVICE=".to_vec();
        block.resize(MAX_BLOCK + 10, b'x');
        let environment = Environment::new(&block);
        assert_eq!(environment.get("DD_ENV"), Some(&b"a"[..]));
        assert_eq!(environment.get("DD_SERVICE"), None);
        assert_eq!(environment.unread(), MAX_BLOCK + 10 - 8);
    }

    #[test]
    fn what_is_not_text_is_made_text() {
        let environment = Environment::new(b"DD_SERVICE=a\xffb\0");
        assert_eq!(environment.known().text("DD_SERVICE").as_deref(), Some("a\u{fffd}b"));
    }
}
