//! The version of a runtime, from its path, its own answer or its library.

use std::fmt;

use strata_bridge_protocol::status::StatusRecord;

/// Version numbers as the product counts them: 9.0.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuntimeVersion {
    pub major: u16,
    pub minor: u16,
    pub patch: u16,
}

impl RuntimeVersion {
    /// Reads `9.0.7`, `9.0.7-rc.1`, `9.0.7+commit`.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+', ' ']).next()?;
        let mut numbers = numbers.split('.').map(str::parse::<u16>);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self { major, minor, patch: numbers.next().and_then(Result::ok).unwrap_or(0) })
    }

    /// From the place of libcoreclr.so in a shared installation:
    /// `…/Microsoft.NETCore.App/9.0.7/libcoreclr.so`. An app that brings its own runtime has none.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        let mut parts = path.rsplit(|&byte| byte == b'/');
        let (version, framework) = (parts.nth(1)?, parts.next()?);
        if framework != b"Microsoft.NETCore.App" {
            return None;
        }
        Self::parse(std::str::from_utf8(version).ok()?)
    }

    /// As reported by the runtime to the bridge: correct since .NET 5; before, a runtime reports
    /// 4.0.30319.
    pub fn of_status(status: &StatusRecord) -> Option<Self> {
        let [major, minor, patch, _] = status.runtime;
        (major >= 5).then_some(Self { major, minor, patch })
    }

    /// Whether notification profilers exist beside the main one (ICorProfilerCallback11, .NET 6;
    /// corprof.idl).
    pub fn has_notification_profilers(self) -> bool {
        self.major >= 6
    }

    /// Whether the diagnostics socket takes EnablePerfMap.
    pub fn has_perf_map_command(self) -> bool {
        self.major >= 8
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_what_follows_them() {
        let version = RuntimeVersion { major: 9, minor: 0, patch: 7 };
        for text in ["9.0.7", "9.0.7+3c29", "9.0.7-servicing.1", "9.0.7 @Commit: 3c"] {
            assert_eq!(RuntimeVersion::parse(text), Some(version));
        }
        assert_eq!(RuntimeVersion::parse("9"), None);
        assert_eq!(RuntimeVersion::parse("900000.0"), None);
        let path = b"/usr/share/dotnet/shared/Microsoft.NETCore.App/9.0.7/libcoreclr.so";
        assert_eq!(RuntimeVersion::of_path(path), Some(version));
        assert_eq!(RuntimeVersion::of_path(b"/app/libcoreclr.so"), None);
    }
}
