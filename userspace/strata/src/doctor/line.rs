//! One finding of the doctor.
//!
//! Invariant: a line that is not ok contains what is lost or missing, and the remedy.

/// What a finding is about; the order of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Kernel,
    Permissions,
    Perf,
    Symbols,
    Sandbox,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Permissions => "permissions",
            Self::Perf => "perf",
            Self::Symbols => "symbols",
            Self::Sandbox => "sandbox",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Ok,
    /// Recording works, and something is lost.
    Degraded,
    /// Recording cannot work.
    Missing,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Ok,
    Degraded { lost: String, fix: String },
    Missing { fix: String },
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub group: Group,
    pub name: &'static str,
    /// What was found.
    pub detail: String,
    finding: Finding,
}

impl Line {
    pub fn ok(group: Group, name: &'static str, detail: impl Into<String>) -> Self {
        Self { group, name, detail: detail.into(), finding: Finding::Ok }
    }

    pub fn degraded(
        group: Group,
        name: &'static str,
        detail: impl Into<String>,
        lost: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let finding = Finding::Degraded { lost: lost.into(), fix: fix.into() };
        Self { group, name, detail: detail.into(), finding }
    }

    pub fn missing(
        group: Group,
        name: &'static str,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { group, name, detail: detail.into(), finding: Finding::Missing { fix: fix.into() } }
    }

    pub fn state(&self) -> State {
        match self.finding {
            Finding::Ok => State::Ok,
            Finding::Degraded { .. } => State::Degraded,
            Finding::Missing { .. } => State::Missing,
        }
    }

    /// What a recording does not show.
    pub fn lost(&self) -> Option<&str> {
        match &self.finding {
            Finding::Degraded { lost, .. } => Some(lost),
            _ => None,
        }
    }

    /// The command that fixes it, or what to do where no command can.
    pub fn fix(&self) -> Option<&str> {
        match &self.finding {
            Finding::Ok => None,
            Finding::Degraded { fix, .. } | Finding::Missing { fix } => Some(fix),
        }
    }
}
