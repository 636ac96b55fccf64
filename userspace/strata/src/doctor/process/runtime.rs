//! The runtime of a process, and what makes it write the names of its functions.
//!
//! Recognised by the files that a process runs code from: their names may be chosen by a hostile
//! process, and are only compared.

use crate::doctor::parse::{self, CodeMapping};

/// A runtime whose functions are not those of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    DotNet,
    Java,
    Node,
    /// With its version, where the name of a file shows it.
    Python(Option<(u32, u32)>),
    Erlang,
    Php,
    Unknown,
}

/// The first version of CPython with `-X perf`.
const PYTHON_WITH_NAMES: (u32, u32) = (3, 12);

/// Functions that an interpreter runs, and that have no names.
#[derive(Clone, Debug)]
pub struct Interpreted {
    pub runtime: Runtime,
    /// What to do for names.
    pub fix: String,
}

impl Runtime {
    pub fn of(mappings: &[CodeMapping]) -> Self {
        let names = || {
            mappings
                .iter()
                .map(|mapping| mapping.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
        };
        let maps = |start: &str| names().any(|name| name.starts_with(start.as_bytes()));
        let runs = |program: &str| names().any(|name| is_of(name, program));
        if maps("libcoreclr") || maps("libclrjit") || maps("memfd:doublemapper") {
            Self::DotNet
        } else if maps("libjvm.so") {
            Self::Java
        } else if runs("node") || runs("nodejs") {
            Self::Node
        } else if runs("python") {
            Self::Python(names().filter(|name| is_of(name, "python")).find_map(python_version))
        } else if names().any(is_erlang) {
            Self::Erlang
        } else if runs("php") || runs("phpdbg") {
            Self::Php
        } else {
            Self::Unknown
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::DotNet => ".NET",
            Self::Java => "Java",
            Self::Node => "Node.js",
            Self::Python(_) => "Python",
            Self::Erlang => "Erlang",
            Self::Php => "PHP",
            Self::Unknown => "unknown",
        }
    }

    /// What makes it write the names of its code.
    pub fn naming(self, pid: u32, inner_pid: u32) -> String {
        match self {
            Self::DotNet => "restart it with DOTNET_PerfMapEnabled=1 in its environment".to_owned(),
            Self::Java => format!(
                "jcmd {pid} Compiler.perfmap (JDK 17 and later; start it with -XX:+PreserveFramePointer for whole stacks)"
            ),
            Self::Node => "restart it as: node --perf-basic-prof".to_owned(),
            Self::Python(version) => python_naming(version),
            Self::Erlang => {
                "restart it with ERL_FLAGS=\"+JPperf true\" in its environment (OTP 25 and later), for \
                 names and frame pointers"
                    .to_owned()
            }
            Self::Php => {
                "opcache.jit_debug=16 names what is compiled; PHP's JIT compilers keep no frame pointers: \
                 stacks end in `[incomplete]` in their code"
                    .to_owned()
            }
            Self::Unknown => {
                format!(
                    "switch on what makes its runtime write /tmp/perf-{inner_pid}.map or a jitdump file"
                )
            }
        }
    }

    /// Of a runtime that interprets its functions: why they have no names. Its generated code, if
    /// any, has none.
    pub fn interpreted(self) -> Option<Interpreted> {
        let fix = match self {
            Self::Python(version) => python_naming(version),
            Self::Php => {
                "nothing to do: strata has no names of functions that PHP interprets".to_owned()
            }
            _ => return None,
        };
        Some(Interpreted { runtime: self, fix })
    }
}

/// Whether a file is a program of this name or its library, with a version at most: `python3.13t`,
/// `php-fpm8.2`, `libnode.so.108`. Other programs have names that only begin so: `node_exporter`.
fn is_of(name: &[u8], program: &str) -> bool {
    let name = without_deleted(name);
    let (name, is_library) = match name.strip_prefix(b"lib") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let Some(rest) = name.strip_prefix(program.as_bytes()) else { return false };
    match (rest.windows(3).position(|part| part == b".so"), is_library) {
        (Some(end), true) => is_version(rest.get(..end).unwrap_or_default()),
        (None, true) => false,
        (_, false) => is_version(rest),
    }
}

/// `8.2`, `-fpm8.2`, `3.13t`, `3.11-dbg`, or nothing.
fn is_version(text: &[u8]) -> bool {
    let flavours = ["-fpm", "-cgi", "-dbg"].map(str::as_bytes);
    let stripped =
        |flavour: &[u8]| text.strip_prefix(flavour).or_else(|| text.strip_suffix(flavour));
    let text = flavours.into_iter().find_map(stripped).unwrap_or(text);
    // CPython's ABI flags: free-threaded, debug, pymalloc, wide characters.
    let flags = text.iter().rev().take_while(|byte| b"tdmu".contains(byte)).count();
    let digits = text.get(..text.len() - flags).unwrap_or_default();
    text.is_empty()
        || !digits.is_empty() && digits.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

/// `beam.smp`, `beam.debug.smp`.
fn is_erlang(name: &[u8]) -> bool {
    let name = without_deleted(name);
    name.starts_with(b"beam.") && (name.ends_with(b".smp") || name.ends_with(b".emu"))
}

fn without_deleted(name: &[u8]) -> &[u8] {
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

/// CPython reads the variable as it reads the option (`Python/initconfig.c`, 3.12).
fn python_naming(version: Option<(u32, u32)>) -> String {
    let restart = "restart it as: python3 -X perf, or with PYTHONPERFSUPPORT=1 in its environment";
    match version {
        Some(version) if version >= PYTHON_WITH_NAMES => restart.to_owned(),
        Some((major, minor)) => {
            format!(
                "names need Python 3.12 or later and `python3 -X perf`: this is {major}.{minor}"
            )
        }
        None => format!("{restart} (3.12 and later)"),
    }
}

/// `python3.11`, `libpython3.11.so.1.0` → (3, 11).
fn python_version(name: &[u8]) -> Option<(u32, u32)> {
    let name = without_deleted(name);
    let name = name.strip_prefix(b"lib").unwrap_or(name).strip_prefix(b"python")?;
    parse::version(std::str::from_utf8(name).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::parse::code_mappings;

    fn runtime(path: &str) -> Runtime {
        let maps = format!("1000-2000 r-xp 00000000 fe:01 7 {path}\n");
        Runtime::of(&code_mappings(maps.as_bytes()))
    }

    #[test]
    fn runtimes_are_known_by_their_files() {
        for (path, known) in [
            ("/opt/dotnet/shared/libcoreclr.so", Runtime::DotNet),
            ("/memfd:doublemapper (deleted)", Runtime::DotNet),
            ("/usr/lib/jvm/lib/server/libjvm.so", Runtime::Java),
            ("/usr/bin/node", Runtime::Node),
            ("/usr/bin/python3.11", Runtime::Python(Some((3, 11)))),
            ("/usr/local/lib/libpython3.13.so.1.0", Runtime::Python(Some((3, 13)))),
            ("/opt/bin/python3", Runtime::Python(None)),
            ("/opt/lib/libpython3.so", Runtime::Python(None)),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", Runtime::Erlang),
            ("/usr/bin/php8.2", Runtime::Php),
            ("/usr/sbin/php-fpm8.2", Runtime::Php),
            ("/usr/lib/apache2/modules/libphp8.2.so", Runtime::Php),
            ("/usr/bin/cat", Runtime::Unknown),
            ("/usr/bin/node (deleted)", Runtime::Node),
            ("/usr/lib/x86_64-linux-gnu/libnode.so.108", Runtime::Node),
            ("/usr/bin/python3.12 (deleted)", Runtime::Python(Some((3, 12)))),
            ("/usr/bin/python3.13t", Runtime::Python(Some((3, 13)))),
            ("/usr/bin/python3.11-dbg", Runtime::Python(Some((3, 11)))),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.debug.smp", Runtime::Erlang),
            ("/usr/bin/php7.4-fpm", Runtime::Php),
            ("/usr/bin/php-cgi8.2", Runtime::Php),
        ] {
            assert_eq!(runtime(path), known, "{path}");
        }
    }

    #[test]
    fn a_program_whose_name_begins_as_a_runtimes_is_another() {
        for path in [
            "/usr/bin/php-fpm_exporter",
            "/usr/bin/node_exporter",
            "/usr/bin/nodeset",
            "/usr/bin/python-agent",
            "/usr/lib/libphpcpp.so.2.4",
            "/usr/bin/beam.server",
        ] {
            assert_eq!(runtime(path), Runtime::Unknown, "{path}");
        }
    }

    #[test]
    fn python_has_names_from_3_12_on() {
        let fix = |path: &str| runtime(path).interpreted().expect("an interpreter").fix;
        assert!(fix("/usr/bin/python3.12").starts_with("restart it as: python3 -X perf"));
        assert!(!fix("/usr/bin/python3.12").contains("and later"));
        assert!(fix("/usr/bin/python3").ends_with("(3.12 and later)"));
        for old in ["/usr/bin/python3.9", "/usr/bin/python2.7"] {
            assert!(fix(old).starts_with("names need Python 3.12"), "{old}");
        }
    }

    #[test]
    fn erlang_and_php_say_what_becomes_of_their_code() {
        assert!(Runtime::Erlang.naming(7, 7).contains("ERL_FLAGS=\"+JPperf true\""));
        assert!(Runtime::Php.naming(7, 7).contains("[incomplete]"));
        assert!(Runtime::Php.interpreted().is_some() && Runtime::Erlang.interpreted().is_none());
    }
}
