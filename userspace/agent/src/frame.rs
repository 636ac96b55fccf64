//! A frame: one function at a code address.

use std::sync::Arc;

use strata_profile::FrameKind;

/// One function at a code address; several when functions were inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    pub kind: FrameKind,
    pub name: Arc<str>,
    /// Empty when it is the same.
    pub system_name: Arc<str>,
    pub file: Arc<str>,
    pub line: u32,
}

impl NamedFrame {
    pub fn plain(kind: FrameKind, name: &str) -> Self {
        let none: Arc<str> = "".into();
        Self { kind, name: name.into(), system_name: none.clone(), file: none, line: 0 }
    }

    /// A frame of managed code.
    pub fn managed(name: &str, system_name: &str) -> Self {
        let mut frame = Self::plain(FrameKind::Managed, name);
        if system_name != name {
            frame.system_name = system_name.into();
        }
        frame
    }
}
