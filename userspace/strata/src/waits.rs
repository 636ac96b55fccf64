//! Where threads waited, as lists: in the report of a recording, and in an answer of the store.

use std::io::Write;

use strata_kinds::{Kind, Shape};
use strata_profile::Profile;
use strata_profile::text::{sanitize_for_terminal, shortened};
use strata_profile::waits::{self, WaitShare, Waits};

use crate::processes;
use crate::terminal::{cut, print_more};

/// Waits outside of a system call.
const NO_CALL: &str = "(none: page faults, and stopped or preempted threads)";

/// The kind of a sample type whose values are waits, with the `most` largest of each list.
pub fn of_type(profile: &Profile, sample_type: usize, most: usize) -> Option<(Kind, Waits)> {
    let kind = profile.kind_of(sample_type)?;
    let is_time = kind.info().duration_column().is_some_and(|column| {
        profile.first_column_of(kind).is_some_and(|first| first + column == sample_type)
    });
    let waits = kind.info().shape == Shape::Blocked && is_time;
    waits.then(|| (kind, waits::summarize(profile, sample_type, most)))
}

/// The states in one line, idle threads in another, then lists by function, by system call, and by
/// process where there are several.
pub fn print(
    waits: &Waits,
    kind: Kind,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if waits.states.is_empty() {
        return Ok(());
    }
    // Of waits that the CLR reports neither is known.
    let has_names = |shares: &[WaitShare]| shares.iter().any(|share| !share.name.is_empty());
    if has_names(&waits.states) {
        let states: Vec<_> = waits
            .states
            .iter()
            .map(|state| format!("{} {:.1}%", described(&state.name), state.percent))
            .collect();
        writeln!(out, "{}", cut(&states.join(", "), width))?;
    }
    let idle = waits.idle.iter().map(|kind| format!("{} {:.1}%", kind.name, kind.percent));
    let idle: Vec<_> = idle.collect();
    if !idle.is_empty() {
        writeln!(out, "{}", cut(&format!("idle threads: {}", idle.join(", ")), width))?;
    }
    // Of elapsed time a part is no wait.
    let of_functions = if kind == Kind::Wall { " wall" } else { "waits" };
    writeln!(out, "\n {of_functions}  function")?;
    for function in &waits.functions {
        writeln!(out, "{}", cut(&line(function), width))?;
    }
    print_more(8, waits.more_functions, out)?;
    if has_names(&waits.states) || has_names(&waits.system_calls) {
        writeln!(out, "\n waits  system call")?;
        for call in &waits.system_calls {
            writeln!(out, "{}", cut(&line(call), width))?;
        }
        print_more(8, waits.more_system_calls, out)?;
    }
    if waits.processes.len() > 1 {
        writeln!(out, "\n waits  process")?;
        processes::print(&waits.processes, waits.more_processes, width, out)?;
    }
    Ok(())
}

fn line(share: &WaitShare) -> String {
    let module = match share.module.as_str() {
        "" => String::new(),
        module => format!("  ({})", sanitize_for_terminal(module)),
    };
    let name = if share.name.is_empty() { NO_CALL } else { &share.name };
    format!("{:5.1}%  {}{module}", share.percent, shortened(&sanitize_for_terminal(name), 90))
}

/// A state with what it means where its name does not say it.
fn described(state: &str) -> &str {
    match state {
        "runnable" => "runnable (without a CPU)",
        "uninterruptible" => "uninterruptible (disk, or vfork)",
        "" => "state unknown",
        state => state,
    }
}
