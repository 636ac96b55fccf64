//! The variables that let a .NET process load strata's library at its start.
//!
//! A runtime has one main profiler and, since .NET 6, any number of notification profilers. Strata
//! registers as the main one where there is none: 3.1 and 5 support no other. Where there is one,
//! it stays, and strata is added to the notification profilers
//! (`ProfilingAPIUtility::InitializeProfiling`, src/coreclr/vm/profilinghelper.cpp).

use std::path::Path;

use crate::profilers::{Profiler, ProfilerRole, STRATA};
use crate::switches::Switches;

/// Loads everything from the first method on, without waiting for a reader.
pub const EAGER: &str = "STRATA_CLR_EAGER";

/// A variable to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub value: String,
}

/// The variables to set, and remarks on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    pub variables: Vec<Variable>,
    /// The main profiler that stays: on 3.1 and 5 strata is not loaded beside it.
    pub beside: Option<String>,
}

/// Why a process cannot be made to load strata's library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    #[error("profilers are switched off by {0}; take that out of the environment")]
    SwitchedOff(String),
    #[error("the library's path must be absolute, UTF-8 and without `=` and `;`")]
    Path,
}

/// The variables for a process with an environment like `/proc/PID/environ`: entries separated by
/// zero bytes.
pub fn environment(
    library: &Path,
    existing: &[u8],
    eager: bool,
) -> Result<Environment, EnvironmentError> {
    let switches = Switches::parse(existing);
    if let Some(variable) = switches.profilers_switched_off() {
        return Err(EnvironmentError::SwitchedOff(variable));
    }
    let path = library.to_str().filter(|path| path.starts_with('/') && !path.contains(['=', ';']));
    let path = path.ok_or(EnvironmentError::Path)?;
    let profilers = switches.profilers();
    let main = profilers.iter().find(|profiler| profiler.role == ProfilerRole::Main);
    let mut environment = match main.filter(|main| !main.is_strata()) {
        None => as_main(&switches, &profilers, path),
        Some(main) => Environment {
            variables: as_one_of_several(&switches, path),
            beside: Some(main.to_string()),
        },
    };
    if eager {
        environment.variables.push(Variable { name: EAGER, value: "1".to_owned() });
    }
    Ok(environment)
}

fn as_main(switches: &Switches, profilers: &[Profiler], path: &str) -> Environment {
    let is_in_list = |profiler: &Profiler| {
        profiler.is_strata() && profiler.role == ProfilerRole::NotificationOnly
    };
    if is_list_enabled(switches) && profilers.iter().any(is_in_list) {
        // Loaded by the list already; twice would be refused.
        return Environment::default();
    }
    let mut variables = vec![
        Variable { name: "CORECLR_ENABLE_PROFILING", value: "1".to_owned() },
        Variable { name: "CORECLR_PROFILER", value: STRATA.to_owned() },
        Variable { name: "CORECLR_PROFILER_PATH", value: path.to_owned() },
    ];
    if switches.get("CORECLR_PROFILER_PATH_64").is_some() {
        // It would take precedence.
        variables.push(Variable { name: "CORECLR_PROFILER_PATH_64", value: path.to_owned() });
    }
    Environment { variables, beside: None }
}

fn as_one_of_several(switches: &Switches, path: &str) -> Vec<Variable> {
    const WIDE: &str = "CORECLR_NOTIFICATION_PROFILERS_64";
    let name = if switches.get(WIDE).is_some() { WIDE } else { "CORECLR_NOTIFICATION_PROFILERS" };
    // A list that is switched off stays off: only strata's entry is added to nothing.
    let before = switches.get(name).filter(|_| is_list_enabled(switches)).unwrap_or("");
    let others = before.split(';').filter(|entry| {
        let class = entry.rsplit('=').next().unwrap_or("");
        !entry.is_empty() && !class.trim().eq_ignore_ascii_case(STRATA)
    });
    // 9 and later want a `;` behind the last entry too.
    let mut list: String = others.map(|entry| format!("{entry};")).collect();
    list += &format!("{path}={STRATA};");
    vec![
        Variable { name: "CORECLR_ENABLE_NOTIFICATION_PROFILERS", value: "1".to_owned() },
        Variable { name, value: list },
    ]
}

fn is_list_enabled(switches: &Switches) -> bool {
    switches.get("CORECLR_ENABLE_NOTIFICATION_PROFILERS") == Some("1")
}

/// The output format of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `export NAME='value'`, for any shell of POSIX.
    Shell,
    /// `ENV NAME="value"`
    Dockerfile,
}

/// One line for each variable.
pub fn written(variables: &[Variable], form: Form) -> String {
    let line = |variable: &Variable| match form {
        Form::Shell => {
            format!("export {}='{}'\n", variable.name, variable.value.replace('\'', r"'\''"))
        }
        Form::Dockerfile => {
            let mut value = String::new();
            for letter in variable.value.chars() {
                if matches!(letter, '"' | '\\' | '$') {
                    value.push('\\');
                }
                value.push(letter);
            }
            format!("ENV {}=\"{value}\"\n", variable.name)
        }
    };
    variables.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "/opt/strata/libstrata_clr.so";

    fn of(existing: &[&str]) -> Environment {
        environment(Path::new(LIBRARY), existing.join("\0").as_bytes(), false).unwrap()
    }

    fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        let mut variables = environment.variables.iter();
        variables.find(|variable| variable.name == name).map(|variable| variable.value.as_str())
    }

    #[test]
    fn strata_is_the_main_profiler_where_there_is_no_other() {
        let alone = of(&["PATH=/bin"]);
        assert_eq!(value(&alone, "CORECLR_ENABLE_PROFILING"), Some("1"));
        assert_eq!(value(&alone, "CORECLR_PROFILER"), Some(STRATA));
        assert_eq!(value(&alone, "CORECLR_PROFILER_PATH"), Some(LIBRARY));
        assert_eq!((alone.variables.len(), alone.beside), (3, None));
        let off = of(&["CORECLR_ENABLE_PROFILING=0", "CORECLR_PROFILER_PATH_64=/other.so"]);
        assert_eq!(value(&off, "CORECLR_PROFILER_PATH_64"), Some(LIBRARY));
    }

    #[test]
    fn another_main_profiler_stays_and_strata_joins_the_list() {
        let main = [
            "CORECLR_ENABLE_PROFILING=1",
            "CORECLR_PROFILER={846F5F1C-F9AE-4B07-969E-05C26BC060D8}",
            "CORECLR_PROFILER_PATH=/dd.so",
        ];
        let beside = of(&main);
        assert_eq!(beside.beside.as_deref(), Some("Datadog's tracer"));
        assert_eq!(value(&beside, "CORECLR_PROFILER"), None);
        assert_eq!(value(&beside, "CORECLR_ENABLE_NOTIFICATION_PROFILERS"), Some("1"));
        let ours = format!("{LIBRARY}={STRATA};");
        assert_eq!(value(&beside, "CORECLR_NOTIFICATION_PROFILERS"), Some(ours.as_str()));

        let list = [
            "CORECLR_ENABLE_NOTIFICATION_PROFILERS=1",
            "CORECLR_NOTIFICATION_PROFILERS_64=/p.so={1}",
        ];
        let joined = of(&[&main[..], &list[..]].concat());
        let both = format!("/p.so={{1}};{LIBRARY}={STRATA};");
        assert_eq!(value(&joined, "CORECLR_NOTIFICATION_PROFILERS_64"), Some(both.as_str()));

        let off = of(&[&main[..], &["CORECLR_NOTIFICATION_PROFILERS=/p.so={1};"]].concat());
        assert_eq!(value(&off, "CORECLR_NOTIFICATION_PROFILERS"), Some(ours.as_str()));
    }

    #[test]
    fn strata_is_never_asked_for_twice() {
        let main = of(&["CORECLR_ENABLE_PROFILING=1", &format!("CORECLR_PROFILER={STRATA}")]);
        assert_eq!(value(&main, "CORECLR_NOTIFICATION_PROFILERS"), None);
        let listed = of(&[
            "CORECLR_ENABLE_NOTIFICATION_PROFILERS=1",
            &format!("CORECLR_NOTIFICATION_PROFILERS=/old.so={};", STRATA.to_lowercase()),
        ]);
        assert_eq!(listed.variables, []);
        let replaced = of(&[
            "CORECLR_ENABLE_PROFILING=1",
            "CORECLR_PROFILER={1}",
            "CORECLR_ENABLE_NOTIFICATION_PROFILERS=1",
            &format!("CORECLR_NOTIFICATION_PROFILERS=/old.so={STRATA};"),
        ]);
        let ours = format!("{LIBRARY}={STRATA};");
        assert_eq!(value(&replaced, "CORECLR_NOTIFICATION_PROFILERS"), Some(ours.as_str()));
    }

    #[test]
    fn what_cannot_work_is_said_beforehand() {
        let off = environment(Path::new(LIBRARY), b"DOTNET_EnableDiagnostics_Profiler=0", true);
        let reason = "DOTNET_EnableDiagnostics_Profiler=0".to_owned();
        assert_eq!(off, Err(EnvironmentError::SwitchedOff(reason)));
        for path in ["relative.so", "/a;b.so", "/a=b.so"] {
            assert_eq!(environment(Path::new(path), b"", false), Err(EnvironmentError::Path));
        }
    }

    #[test]
    fn shells_and_dockerfiles_read_the_values_as_they_are() {
        let variables = [Variable { name: "X", value: r#"it's "$HOME" \ {1};"#.to_owned() }];
        assert_eq!(
            written(&variables, Form::Dockerfile),
            "ENV X=\"it's \\\"\\$HOME\\\" \\\\ {1};\"\n"
        );
        let shell = written(&variables, Form::Shell);
        let done = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("{shell}printf %s \"$X\""))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), variables[0].value);
    }
}
