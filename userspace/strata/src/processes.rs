//! The list of processes with the most of a value: in the report of a recording, and in an answer of
//! the store.

use std::io::Write;

use strata_profile::processes::{MoreProcesses, ProcessShare};
use strata_profile::text::{sanitize_for_terminal, shortened};

use crate::printing::grouped;
use crate::terminal::{counted, cut};

/// A line for each row, and one for those without a row.
pub fn print(
    rows: &[ProcessShare],
    more: MoreProcesses,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    for row in rows {
        writeln!(out, "{}", cut(&format!("{:5.1}%  {}", row.percent, described(row)), width))?;
    }
    if more.processes > 0 {
        let processes = counted(more.processes as u64, "more process");
        writeln!(out, "{:5.1}%  in {processes}", more.percent)?;
    }
    Ok(())
}

/// `nginx [4711]  in 3f29c0ffee00`, `true (940 processes)`
fn described(row: &ProcessShare) -> String {
    let which = match (row.pid, row.processes) {
        (Some(pid), _) => format!(" [{pid}]"),
        (None, 1) => String::new(),
        (None, many) => format!(" ({} processes)", grouped(many as u64)),
    };
    let container = match row.container.get(..12).unwrap_or(&row.container) {
        "" => String::new(),
        container => format!("  in {}", sanitize_for_terminal(container)),
    };
    format!("{}{which}{container}", shortened(&sanitize_for_terminal(&row.name), 90))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_processes_of_a_name_are_counted_and_those_without_a_row_too() {
        let row = |pid, name: &str, processes, percent| ProcessShare {
            pid,
            name: name.to_owned(),
            container: "3f29c0ffee001234".to_owned(),
            processes,
            value: 1,
            percent,
        };
        let rows = [row(None, "true", 940, 80.0), row(Some(7), "sh", 1, 19.5)];
        let mut text = Vec::new();
        print(&rows, MoreProcesses { processes: 1_200, percent: 0.5 }, None, &mut text)
            .expect("memory takes it");
        assert_eq!(
            String::from_utf8_lossy(&text),
            " 80.0%  true (940 processes)  in 3f29c0ffee00\n \
             19.5%  sh [7]  in 3f29c0ffee00\n  0.5%  in 1,200 more processes\n"
        );
    }
}
