//! Values that are never shown: `Debug` and `Display` say `***`.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// A secret, or the file that holds it and is read again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Value(Secret),
    File(PathBuf),
}
