//! `strata doctor`: checks what a recording needs of this host, what is lost without it, and the
//! remedy.
//!
//! Code map:
//! - [`line`]: one finding: ok, degraded (and what is lost), missing (and what fixes it)
//! - [`environment`]: the user and container (root, Docker, …), hence which command fixes it
//! - [`host`], [`permissions`], [`perf`], [`symbols`], [`sandbox`]: the checks, by group
//! - [`process`]: `--pid`: what is known about one process
//! - [`parse`]: the kernel's texts, as pure functions; [`text`]: hostile names made harmless
//! - [`print`]: output for users and for programs
//!
//! Checks use the feature itself (create a map, open an event, open and parse a file) wherever that
//! is cheap: a setting only explains why it failed.
//!
//! Invariants: nothing on the host is changed. Every line that is not ok contains the remedy. Files
//! of a process are opened and parsed by the file service alone, never here.

mod environment;
mod host;
mod line;
mod parse;
mod perf;
mod permissions;
mod print;
mod process;
mod sandbox;
mod symbols;
mod text;

use std::ffi::OsString;
use std::io::IsTerminal;

pub use line::Line;

use crate::printing;
use environment::Environment;
use line::State;

/// Exit status: recording works.
pub const WORKS: i32 = 0;
/// Exit status: something is missing, recording cannot work.
pub const CANNOT_WORK: i32 = 1;

/// The options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question {
    /// Explain one process.
    pub pid: Option<u32>,
    pub json: bool,
}

/// Loads strata's BPF programs and unloads them again; reports what was loaded, or what failed.
pub type LoadPrograms<'a> = &'a dyn Fn() -> Result<Loaded, String>;

/// The programs that this kernel takes.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub found: String,
    /// One of them names the kernel's functions.
    pub names_kernel: bool,
    /// Those of some kinds, which it refuses, with its error.
    pub refused: Vec<(Part, String)>,
}

/// What has programs of its own, beside those of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    OffCpu,
    Wall,
    ClrEvents,
}

/// Runs `strata doctor`; the exit status.
pub fn run(question: Question, load_programs: LoadPrograms<'_>) -> anyhow::Result<i32> {
    let colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if let Some(pid) = question.pid {
        let Some(report) = process::examine(pid) else {
            anyhow::bail!("there is no process with pid {pid} (pids are those of the host)");
        };
        let text = if question.json {
            print::json_text(&report.to_json())
        } else {
            report.to_text(colour)
        };
        printing::print(&text)?;
        return Ok(WORKS);
    }
    let lines = all_lines(load_programs);
    let text = if question.json {
        print::json_text(&print::lines_as_json(&lines))
    } else {
        to_text(&lines, colour) + &print::verdict(&lines, colour)
    };
    printing::print(&text)?;
    let missing = lines.iter().any(|line| line.state() == State::Missing);
    Ok(if missing { CANNOT_WORK } else { WORKS })
}

/// What is missing for a recording; for `record`, when it could not start.
pub fn brief() -> Vec<Line> {
    let environment = Environment::read();
    let mut lines = host::lines(&environment);
    lines.extend(permissions::lines(&environment));
    lines.extend(perf::lines(&environment));
    lines.retain(|line| line.state() == State::Missing);
    lines
}

/// The same command as root, if `error` is for want of privileges that root would have here.
pub fn rerun_as_root(error: &anyhow::Error, arguments: &[OsString]) -> Option<String> {
    let is_of_the_store =
        matches!(error.downcast_ref(), Some(strata_query::QueryError::Denied { .. }));
    let is_denied = is_of_the_store
        || error.is::<strata_agent::engine::EngineError>()
        || error.is::<NeedsRoot>();
    if !is_denied {
        return None;
    }
    Environment::read().rerun_as_root(arguments.get(1..).unwrap_or_default())
}

/// Operations that need root, checked before they are tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NeedsRoot(pub String);

/// Lines as they are printed, with their fixes.
pub fn to_text(lines: &[Line], colour: bool) -> String {
    print::lines_as_text(&lines.iter().collect::<Vec<_>>(), colour)
}

fn all_lines(load_programs: LoadPrograms<'_>) -> Vec<Line> {
    let environment = Environment::read();
    let mut lines = host::lines(&environment);
    lines.extend(permissions::lines(&environment));
    lines.extend(perf::lines(&environment));
    // Where something is missing, that is why they would not load.
    let may_load = lines.iter().all(|line| line.state() != State::Missing);
    let loaded = may_load.then(load_programs);
    if let Some(loaded) = &loaded {
        lines.extend(host::programs(&environment.release, loaded));
    }
    let names_kernel = matches!(&loaded, Some(Ok(loaded)) if loaded.names_kernel);
    lines.extend(symbols::lines(&environment, names_kernel));
    lines.extend(sandbox::lines(&environment));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own calls change one thread, libc's all of them.
    fn become_nobody() {
        const NOBODY: libc::c_long = 65_534;
        // SAFETY: only this thread's credentials change; nothing of it is used afterwards.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0 as libc::c_long, 0 as libc::c_long), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
        }
    }

    #[test]
    fn without_root_what_is_missing_comes_with_the_command_that_fixes_it() {
        let thread = std::thread::spawn(|| {
            become_nobody();
            brief()
        });
        let lines = thread.join().expect("needs root: a thread gives it up");
        let names: Vec<&str> = lines.iter().map(|line| line.name).collect();
        assert_eq!(names, ["bpf()", "capabilities", "cpu-clock", "process events"]);
        let program = std::env::current_exe().expect("a path");
        for line in &lines {
            assert_eq!(line.state(), State::Missing);
            let fix = line.fix().expect("a fix");
            assert!(fix.contains(&format!("{} record", program.display())), "{fix}");
        }
        let text = to_text(&lines, false);
        assert!(text.contains("without CAP_BPF, CAP_PERFMON"), "{text}");
    }

    #[test]
    fn with_root_nothing_is_missing() {
        assert_eq!(brief(), []);
    }
}
