//! Where a value comes from.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// What is there on this host decides the default.
    Found,
    File {
        file: Arc<str>,
        line: usize,
        column: usize,
    },
    Variable(String),
    Flag(String),
}

impl Origin {
    /// The precedence of its layer: the highest wins.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Flag(_) => 4,
            Self::Variable(name) if name.starts_with("STRATA_") => 3,
            Self::Variable(_) => 2,
            Self::File { .. } => 1,
            Self::Default | Self::Found => 0,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::Found => formatter.write_str("default, as it is there on this host"),
            Self::File { file, line, .. } => write!(formatter, "{file}:{line}"),
            Self::Variable(name) => write!(formatter, "variable {name}"),
            Self::Flag(name) => write!(formatter, "flag {name}"),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    pub origin: Origin,
}
