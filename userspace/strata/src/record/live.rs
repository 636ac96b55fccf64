//! The progress of a recording: one line that is redrawn on a terminal, occasional lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::printing::grouped;
use crate::terminal::{columns, counted, cut};

/// The figures of the line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub samples: u64,
    pub processes: usize,
    pub lost: u64,
    pub incomplete: u64,
}

pub struct Live {
    started: Instant,
    duration: Option<Duration>,
    shown: bool,
    terminal: bool,
    quiet: bool,
    last_plain: Instant,
}

/// Between two lines when the output is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

impl Live {
    pub fn new(duration: Option<Duration>, quiet: bool) -> Self {
        let now = Instant::now();
        Self {
            started: now,
            duration,
            shown: false,
            terminal: stderr().is_terminal(),
            quiet,
            last_plain: now,
        }
    }

    pub fn update(&mut self, figures: Figures) {
        if self.quiet {
            return;
        }
        let columns = if self.terminal { columns(&stderr()) } else { None };
        let line = self.line(figures, columns);
        if self.terminal {
            // Back to the start, the line, and whatever the last one had more.
            let _ = write!(stderr(), "\r{line}\x1b[K");
            self.shown = true;
        } else if self.last_plain.elapsed() >= PLAIN_EVERY {
            self.last_plain = Instant::now();
            let _ = writeln!(stderr(), "{line}");
        }
    }

    fn line(&self, figures: Figures, columns: Option<usize>) -> String {
        let elapsed = clock(self.started.elapsed());
        let of = self.duration.map(|all| format!(" of {}", clock(all))).unwrap_or_default();
        fitting(&format!("{elapsed}{of}"), figures, columns)
    }

    /// Clears the line, so that other text can be printed.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    /// A line of its own, above the live one.
    pub fn say(&mut self, text: &str) {
        self.clear();
        if !self.quiet {
            let _ = writeln!(stderr(), "{text}");
        }
    }
}

/// As much of the line as the terminal has columns for: what is needed least goes first. A line that
/// wraps would not be renewed but repeated.
fn fitting(time: &str, figures: Figures, columns: Option<usize>) -> String {
    let samples = counted(figures.samples, "sample");
    let lost = format!("{} lost", grouped(figures.lost));
    let processes = counted(figures.processes as u64, "process");
    let share = 100.0 * figures.incomplete as f64 / figures.samples.max(1) as f64;
    let incomplete = match figures.incomplete {
        0 => String::new(),
        _ => format!("{share:.1} % of stacks incomplete"),
    };
    let candidates = [
        format!("recording {time}  {samples}  {processes}  {lost}  {incomplete}"),
        format!("recording {time}  {samples}  {lost}  {incomplete}"),
        format!("recording {time}  {samples}  {lost}"),
        format!("{time}  {samples}  {lost}"),
    ];
    // The last column stays free: some terminals wrap when it is written.
    let fits =
        |line: &&String| columns.is_none_or(|columns| line.trim_end().chars().count() < columns);
    let [.., shortest] = &candidates;
    let line = candidates.iter().find(fits).unwrap_or(shortest).trim_end();
    cut(line, columns.map(|columns| columns.saturating_sub(1)))
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m{:02}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_the_terminal() {
        let figures = Figures { samples: 1_234_567, processes: 1, lost: 12, incomplete: 99_999 };
        let time = "1h00m01s of 12h00m00s";
        assert_eq!(
            fitting(time, figures, Some(200)),
            "recording 1h00m01s of 12h00m00s  1,234,567 samples  1 process  12 lost  8.1 % of stacks \
             incomplete"
        );
        assert_eq!(
            fitting(time, figures, Some(80)),
            "recording 1h00m01s of 12h00m00s  1,234,567 samples  12 lost"
        );
        for columns in [10, 40, 60, 80, 100] {
            let line = fitting(time, figures, Some(columns));
            assert!(line.chars().count() < columns, "{columns}: {line}");
        }
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(clock(Duration::from_millis(61_500)), "1m01s");
    }
}
