//! What a flame graph shows.
//!
//! The data always has all frames: a view decides by a frame's name and position, so that a profile
//! can be shown either way later.

use strata_profile::idle::Idle;
use strata_profile::{FrameKind, FrameView, View};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Shown {
    #[default]
    All,
    /// Without the .NET runtime's own frames, and without idle threads.
    App,
}

impl Shown {
    pub fn view(self) -> View {
        match self {
            Self::All => View::default(),
            Self::App => View { hidden: is_of_the_runtime, idle: Idle::Hidden },
        }
    }
}

/// Native files of the runtime and its hosts.
const NATIVE: [&str; 6] = [
    "libcoreclr.so",
    "libclrjit.so",
    "libhostfxr.so",
    "libhostpolicy.so",
    "libclrgc.so",
    "libstrata_clr.so",
];

fn is_of_the_runtime(frame: &FrameView<'_>) -> bool {
    match frame.kind {
        FrameKind::Managed => strata_dotnet::names::plumbing(frame.name),
        FrameKind::Native => {
            let file = frame.mapping.rsplit('/').next().unwrap_or_default();
            NATIVE.contains(&file) || file == "dotnet"
        }
        FrameKind::Kernel | FrameKind::Jit | FrameKind::Marker => false,
    }
}
