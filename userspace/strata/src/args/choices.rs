//! Options that take one of a few words.

use clap::ValueEnum;
use strata_profile::Format;

use crate::view::Shown;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ClrArg {
    /// Load the bridge into running processes, and detach it at the end
    Attach,
    /// Use it where a process has loaded it itself (see `strata env`)
    Environment,
    /// Leave .NET processes alone: frames of generated code have no names
    Off,
}

impl From<ClrArg> for strata_agent::managed::Policy {
    fn from(how: ClrArg) -> Self {
        match how {
            ClrArg::Attach => Self::Attach,
            ClrArg::Environment => Self::EnvironmentOnly,
            ClrArg::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FramesArg {
    /// Every frame
    All,
    /// Without the .NET runtime's own: its native code, and what it puts between a caller and an
    /// async continuation
    App,
}

impl From<FramesArg> for Shown {
    fn from(frames: FramesArg) -> Self {
        match frames {
            FramesArg::All => Self::All,
            FramesArg::App => Self::App,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FormatArg {
    Pprof,
    Svg,
    Folded,
    Perf,
    Firefox,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Pprof => Self::Pprof,
            FormatArg::Svg => Self::Svg,
            FormatArg::Folded => Self::Folded,
            FormatArg::Perf => Self::PerfScript,
            FormatArg::Firefox => Self::Firefox,
        }
    }
}
