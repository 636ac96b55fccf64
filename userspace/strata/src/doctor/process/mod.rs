//! `strata doctor --pid`: how one process is profiled, and what is missing and why.
//!
//! - [`resolved`]: its metadata from `/proc`
//! - [`files`]: the files that it runs code from: how each is opened, unwound and symbolized
//! - [`generated`]: generated code, and the source of its symbols
//! - [`runtime`]: the runtime, and what makes it write the names of its functions
//! - [`show`]: the report as text and as JSON
//!
//! Invariant: the process is only read; it may end at any moment, and what cannot be read then is
//! reported, not an error.

mod files;
mod generated;
mod identity;
mod runtime;
mod show;

use std::io;

use strata_sandbox::{Config, FileService, ProcessRef};

use super::environment::{Capability, Environment};
use super::line::State;
use super::parse::{self, CodeMapping};
use files::FileReport;
use generated::Generated;
use identity::ResolvedProcess;
use runtime::{Interpreted, Runtime};

/// The whole report.
pub struct Report {
    who: ResolvedProcess,
    /// Why its mappings could not be read, and what to do.
    trouble: Option<(String, String)>,
    files: Vec<FileReport>,
    generated: Option<Generated>,
    /// Functions without names that are interpreted.
    interpreted: Option<Interpreted>,
}

/// Looks at a process of the host; `None` when there is none. A thread's number means its process.
pub fn examine(pid: u32) -> Option<Report> {
    let who = identity::read(pid)?;
    let mut report =
        Report { who, trouble: None, files: Vec::new(), generated: None, interpreted: None };
    if report.who.kernel_thread || report.who.ended {
        return Some(report);
    }
    let mappings = match read_mappings(report.who.pid) {
        Ok(mappings) => mappings,
        Err(error) => {
            let fix = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    Environment::read().privilege_fix(&[Capability::SYS_PTRACE])
                }
                _ => "look again: the process has just ended".to_owned(),
            };
            report.trouble = Some((format!("its mappings cannot be read: {error}"), fix));
            return Some(report);
        }
    };
    let mut service = match FileService::new(Config::default()) {
        Ok(service) => service,
        Err(error) => {
            report.trouble = Some((error.to_string(), "strata doctor".to_owned()));
            return Some(report);
        }
    };
    let process = ProcessRef { pid: report.who.pid, start_time: report.who.start_time };
    report.files = files::examine(&mut service, process, &mappings);
    let runtime = Runtime::of(&mappings);
    let inner_pid = report.who.inner_pid();
    report.generated = generated::examine(&mut service, process, inner_pid, &mappings, runtime);
    // Python's trampolines are generated code.
    if !report.generated.as_ref().is_some_and(Generated::has_names) {
        report.interpreted = runtime.interpreted();
    }
    Some(report)
}

fn read_mappings(pid: u32) -> io::Result<Vec<CodeMapping>> {
    std::fs::read(format!("/proc/{pid}/maps")).map(|maps| parse::code_mappings(&maps))
}

impl Report {
    /// The shortest answer to "why don't I see it?".
    fn verdict(&self) -> (State, String) {
        if self.who.kernel_thread {
            return (State::Ok, "a kernel thread: its stacks are the kernel's alone".to_owned());
        }
        if self.who.ended {
            return (
                State::Missing,
                "it has ended; its parent has not asked for its status yet".to_owned(),
            );
        }
        if let Some((trouble, _)) = &self.trouble {
            return (State::Missing, trouble.clone());
        }
        if self.files.first().is_some_and(|program| program.is_32_bit) {
            let why = "a program of 32 bits: only 64-bit x86-64 code is unwound and named";
            return (State::Missing, why.to_owned());
        }
        let mut parts = Vec::new();
        let mut worst = State::Ok;
        let total = self.files.len();
        let mut say = |count: usize, state: State, text: &str| {
            if count > 0 {
                worst = worst.max(state);
                parts.push(format!("{count} of {total} files {text}"));
            }
        };
        let count = |test: &dyn Fn(&&FileReport) -> bool| self.files.iter().filter(test).count();
        say(
            count(&|file| file.is_without_rules()),
            State::Missing,
            "without unwind rules: frame pointers only",
        );
        say(
            count(&|file| file.symbols_state() == State::Missing),
            State::Missing,
            "without symbols: addresses only",
        );
        say(
            count(&|file| file.symbols_state() == State::Degraded),
            State::Degraded,
            "with exported symbols only",
        );
        if let Some(generated) = &self.generated
            && !generated.has_names()
        {
            worst = worst.max(State::Degraded);
            parts.push("generated code without names".to_owned());
        }
        if let Some(interpreted) = &self.interpreted {
            worst = worst.max(State::Degraded);
            parts.push(format!("{} functions without names", interpreted.runtime.name()));
        }
        if parts.is_empty() {
            return (State::Ok, "every file has unwind rules and symbols".to_owned());
        }
        (worst, parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_explained_with_its_files() {
        let report = examine(std::process::id()).expect("this process");
        assert!(report.trouble.is_none());
        let own = std::env::current_exe().expect("a path");
        let own = own.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(report.files.iter().any(|file| file.path.contains(&own)));
        let json = report.to_json();
        assert_eq!(json["pid"], std::process::id());
        assert!(report.to_text(false).contains(&own));
    }

    #[test]
    fn functions_that_python_interprets_are_missed_although_no_code_is_generated() {
        let mut report = examine(std::process::id()).expect("this process");
        report.files.clear();
        report.generated = None;
        assert_eq!(report.verdict().0, State::Ok);
        report.interpreted = Runtime::Python(Some((3, 12))).interpreted();
        let verdict = "Python functions without names".to_owned();
        assert_eq!(report.verdict(), (State::Degraded, verdict));
        assert!(report.to_text(false).contains("restart it as: python3 -X perf"));
        assert_eq!(report.to_json()["interpreted"]["runtime"], "Python");
    }

    #[test]
    fn a_kernel_thread_is_recognised() {
        let report = examine(2).expect("kthreadd");
        assert!(report.who.kernel_thread);
        assert_eq!(report.verdict().0, State::Ok);
    }

    #[test]
    fn a_pid_without_a_process_is_an_error() {
        // Beyond the largest pid there can be.
        assert!(examine(4_194_305).is_none());
    }
}
