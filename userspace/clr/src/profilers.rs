//! CLR profilers, and the names of common ones.

use std::fmt;

use crate::diagnostics::ClassId;

/// The class id of strata's own library, as variables want it.
pub const STRATA: &str = "{8A4D1E52-6F0B-4C39-9B7E-D5C1A7F23E60}";

/// The same as the runtime has it in memory.
pub const STRATA_CLASS: ClassId = ClassId::from_fields(0x8a4d_1e52_6f0b_4c39_9b7e_d5c1_a7f2_3e60);

/// SONAME of strata's own library.
pub const STRATA_LIBRARY: &str = "libstrata_clr.so";

/// How a runtime loads a profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProfilerRole {
    /// The one that may change code. A process has at most one.
    Main,
    /// A notification profiler: receives events and nothing else; since .NET 6 a process may have
    /// several.
    NotificationOnly,
}

/// A profiler as the environment of a process names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profiler {
    /// `{…}`, upper case.
    pub class: String,
    pub path: String,
    pub role: ProfilerRole,
}

/// Class ids from the documentation of each product.
const KNOWN: [(&str, &str); 7] = [
    (STRATA, "strata"),
    ("{846F5F1C-F9AE-4B07-969E-05C26BC060D8}", "Datadog's tracer"),
    ("{918728DD-259F-4A6A-AC2B-B85E1B658318}", "OpenTelemetry's instrumentation"),
    ("{BD1A650D-AC5D-4896-B64F-D6FA25D6B26A}", "Pyroscope"),
    ("{36032161-FFC0-4B61-B559-F6C5D41BAE5A}", "New Relic's agent"),
    ("{FA65FE15-F085-4681-9B20-95E04F6C03CC}", "Elastic's agent"),
    ("{324F817A-7420-4E6D-B3C1-143FBED6D855}", "Microsoft's instrumentation engine"),
];

impl Profiler {
    pub fn new(class: &str, path: &str, role: ProfilerRole) -> Self {
        Self { class: class.trim().to_ascii_uppercase(), path: path.to_owned(), role }
    }

    pub fn is_strata(&self) -> bool {
        self.class == STRATA
    }
}

impl fmt::Display for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = KNOWN.iter().find(|(class, _)| *class == self.class);
        let file = self.path.rsplit('/').next().filter(|file| !file.is_empty());
        let name = known.map(|(_, name)| *name).or(file).unwrap_or(&self.class);
        // The environment is the target's: nothing of it may move a terminal's cursor.
        name.chars().filter(|character| !character.is_control()).try_for_each(|c| write!(f, "{c}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_of_the_class_are_the_same_class() {
        let digits: String = STRATA.chars().filter(char::is_ascii_hexdigit).collect();
        let fields = u128::from_str_radix(&digits, 16).unwrap();
        assert_eq!(ClassId::from_fields(fields), STRATA_CLASS);
        assert_eq!(STRATA_CLASS.0.first_chunk(), Some(&[0x52, 0x1e, 0x4d, 0x8a, 0x0b, 0x6f]));
    }

    #[test]
    fn an_unknown_profiler_goes_by_its_file_and_cannot_write_on_a_terminal() {
        let profiler = Profiler::new("{1}", "/opt/\u{1b}[2Jx.so", ProfilerRole::Main);
        assert_eq!(profiler.to_string(), "[2Jx.so");
        assert!(Profiler::new(&STRATA.to_lowercase(), "", ProfilerRole::Main).is_strata());
    }
}
