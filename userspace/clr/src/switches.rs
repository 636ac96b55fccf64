//! The settings in a process's environment that its runtime reads: where temporary files go,
//! whether diagnostics are switched off, which profilers are to be loaded.
//!
//! The bytes are the target's and untrusted: they explain why something is not possible, and where
//! to look. Whether it is possible is found by trying.

use crate::profilers::{Profiler, ProfilerRole};

/// More of an environment is not read (one string may have 128 KiB, all together some MiB).
pub const MAX_ENVIRONMENT: usize = 4 << 20;
/// Values longer than this are no switch and no path.
const MAX_VALUE: usize = 4096;

/// The variables that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switches {
    /// `TMPDIR`, when set and not empty.
    pub temporary_directory: Option<Vec<u8>>,
    /// Variables of the runtime, as set, without those of no interest here.
    variables: Vec<(String, String)>,
}

impl Switches {
    /// Reads the bytes of `/proc/PID/environ`. Of two variables with one name the first counts, as
    /// for `getenv`.
    pub fn parse(environment: &[u8]) -> Self {
        let mut switches = Self::default();
        for entry in environment.split(|&byte| byte == 0) {
            let Some(at) = entry.iter().position(|&byte| byte == b'=') else { continue };
            let (name, value) = (entry.get(..at), entry.get(at + 1..));
            let (Some(name), Some(value)) = (name, value) else { continue };
            if value.len() > MAX_VALUE {
                continue;
            }
            if name == b"TMPDIR" {
                if switches.temporary_directory.is_none() && !value.is_empty() {
                    switches.temporary_directory = Some(value.to_vec());
                }
                continue;
            }
            if let Ok(name) = std::str::from_utf8(name)
                && matters(name)
                && switches.get(name).is_none()
            {
                let value = String::from_utf8_lossy(value).into_owned();
                switches.variables.push((name.to_owned(), value));
            }
        }
        switches
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The variable that switches the diagnostics socket off, as `NAME=VALUE`
    /// (`ds_server_init`, src/native/eventpipe/ds-server.c).
    pub fn socket_switched_off(&self) -> Option<String> {
        self.switched_off(&["EnableDiagnostics", "EnableDiagnostics_IPC"])
    }

    /// The variable that keeps profilers from being loaded at start
    /// (`ProfilingAPIUtility::InitializeProfiling`, src/coreclr/vm/profilinghelper.cpp).
    pub fn profilers_switched_off(&self) -> Option<String> {
        self.switched_off(&["EnableDiagnostics", "EnableDiagnostics_Profiler"])
    }

    /// Whether the runtime names its code in a perf map from its start on (`PerfMap::Initialize`,
    /// src/coreclr/vm/perfmap.cpp).
    pub fn writes_perf_map(&self) -> bool {
        self.setting("PerfMapEnabled")
            .is_some_and(|(_, value)| number(value).is_some_and(|of| of != 0))
    }

    fn switched_off(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| {
            let (variable, value) = self.setting(name)?;
            (number(value) == Some(0)).then(|| format!("{variable}={value}"))
        })
    }

    /// A setting of the runtime, with its variable. 3.1 and 5 know the second prefix alone, later versions
    /// take the first when both are set.
    fn setting(&self, name: &str) -> Option<(String, &str)> {
        ["DOTNET_", "COMPlus_"].iter().find_map(|prefix| {
            let variable = format!("{prefix}{name}");
            let value = self.get(&variable)?;
            Some((variable, value))
        })
    }

    /// The profilers that the environment requests at start, strata's own among them.
    pub fn profilers(&self) -> Vec<Profiler> {
        let mut found = Vec::new();
        if self.first(&["CORECLR_ENABLE_PROFILING", "DOTNET_ENABLE_PROFILING"]) == Some("1") {
            let class = self.first(&["CORECLR_PROFILER", "DOTNET_PROFILER"]);
            let path = self.first(&[
                "CORECLR_PROFILER_PATH_64",
                "CORECLR_PROFILER_PATH",
                "DOTNET_PROFILER_PATH_64",
                "DOTNET_PROFILER_PATH",
            ]);
            if let Some(class) = class {
                found.push(Profiler::new(class, path.unwrap_or(""), ProfilerRole::Main));
            }
        }
        let list = self.first(&[
            "CORECLR_NOTIFICATION_PROFILERS_64",
            "CORECLR_NOTIFICATION_PROFILERS",
            "DOTNET_NOTIFICATION_PROFILERS_64",
            "DOTNET_NOTIFICATION_PROFILERS",
        ]);
        for entry in list.unwrap_or("").split(';').filter(|entry| !entry.is_empty()) {
            let (path, class) = entry.split_once('=').unwrap_or((entry, ""));
            found.push(Profiler::new(class, path, ProfilerRole::NotificationOnly));
        }
        found
    }

    fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }
}

fn matters(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("DOTNET_").or_else(|| name.strip_prefix("COMPlus_")) else {
        return name.starts_with("CORECLR_") || name.starts_with("STRATA_");
    };
    ["EnableDiagnostics", "PerfMap", "DiagnosticPorts", "DefaultDiagnosticPortSuspend"]
        .iter()
        .any(|known| rest.starts_with(known))
        || rest.contains("PROFIL")
}

/// A number as the runtime reads it: hexadecimal
/// (`CLRConfig::GetConfigDWORD`, src/coreclr/utilcode/clrconfig.cpp).
fn number(value: &str) -> Option<u32> {
    u32::from_str_radix(value.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[&str]) -> Switches {
        Switches::parse(variables.join("\0").as_bytes())
    }

    #[test]
    fn diagnostics_are_off_by_any_of_their_switches() {
        let all = of(&["PATH=/bin", "DOTNET_EnableDiagnostics=0"]);
        assert_eq!(all.socket_switched_off().as_deref(), Some("DOTNET_EnableDiagnostics=0"));
        assert!(all.profilers_switched_off().is_some());
        let socket = of(&["DOTNET_EnableDiagnostics_IPC=0x0", "COMPlus_EnableDiagnostics=1"]);
        assert!(socket.socket_switched_off().is_some());
        assert_eq!(socket.profilers_switched_off(), None);
        assert!(of(&["COMPlus_EnableDiagnostics=00"]).socket_switched_off().is_some());
        let both = of(&["DOTNET_EnableDiagnostics=1", "COMPlus_EnableDiagnostics=0"]);
        assert_eq!(both.socket_switched_off(), None);
        assert_eq!(of(&["DOTNET_EnableDiagnostics=no"]).socket_switched_off(), None);

        let writes = |variables: &[&str]| of(variables).writes_perf_map();
        assert!(writes(&["DOTNET_PerfMapEnabled=1"]) && writes(&["COMPlus_PerfMapEnabled=3"]));
        assert!(!writes(&["DOTNET_PerfMapEnabled=0", "COMPlus_PerfMapEnabled=1"]) && !writes(&[]));
    }

    #[test]
    fn another_profiler_is_named() {
        let found = of(&[
            "CORECLR_ENABLE_PROFILING=1",
            "CORECLR_PROFILER={846F5F1C-F9AE-4B07-969E-05C26BC060D8}",
            "CORECLR_PROFILER_PATH=/opt/datadog/Datadog.Trace.ClrProfiler.Native.so",
            "CORECLR_NOTIFICATION_PROFILERS=/a.so={BD1A650D-AC5D-4896-B64F-D6FA25D6B26A};/b.so={1};",
        ])
        .profilers();
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["Datadog's tracer", "Pyroscope", "b.so"]);
        assert_eq!(of(&["CORECLR_PROFILER={1}", "CORECLR_ENABLE_PROFILING=0"]).profilers(), []);
    }

    #[test]
    fn hostile_bytes_are_only_bytes() {
        let long = format!("TMPDIR=/{}", "x".repeat(5000));
        assert_eq!(of(&[&long, "=", "", "TMPDIR=", "X"]), Switches::default());
        let bytes = Switches::parse(
            b"TMPDIR=/\xff\xfe\0TMPDIR=/second\0CORECLR_\xff=1\0DOTNET_PerfMap=\xff",
        );
        assert_eq!(bytes.temporary_directory.as_deref(), Some(&b"/\xff\xfe"[..]));
        assert_eq!(bytes.get("DOTNET_PerfMap"), Some("\u{fffd}"));
    }
}
