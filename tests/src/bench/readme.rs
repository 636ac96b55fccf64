//! The README's tables of costs, written from a report: nothing in them is by hand.

use std::fs;

use anyhow::{Context, Result};

use super::clr::server;
use super::measure::{self, Measured};
use super::report::Report;
use super::resident::{self, Resident};
use crate::places;

/// What is before and after a table.
struct Place {
    begin: &'static str,
    end: &'static str,
}

const COSTS: Place = Place {
    begin: "<!-- cost: written by `cargo xtask bench --readme` -->\n",
    end: "<!-- /cost -->",
};
const SERVER: Place = Place {
    begin: "<!-- server: written by `cargo xtask bench clr --part server --readme` -->\n",
    end: "<!-- /server -->",
};

/// Replaces the tables in README.md for which the report has figures.
pub fn write(report: &Report) -> Result<()> {
    let path = places::workspace().join("README.md");
    let mut text = fs::read_to_string(&path)?;
    let costs = (!report.scenes.is_empty()).then(|| table(report));
    for (place, table) in [(COSTS, costs), (SERVER, server::table(&report.figures))] {
        if let Some(table) = table {
            text = place.replaced(&text, &table).context("README.md has no place for the costs")?;
        }
    }
    fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    println!("\n{}", path.display());
    Ok(())
}

impl Place {
    /// What is between the marks is replaced.
    fn replaced(&self, text: &str, table: &str) -> Option<String> {
        let Self { begin, end } = self;
        let (head, rest) = text.split_once(begin)?;
        let (_, tail) = rest.split_once(end)?;
        Some(format!("{head}{begin}{table}{end}{tail}"))
    }
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "A recording of the whole host at {} Hz, on {} CPUs ({}, a virtual machine) with Linux {}:\n\n",
        measure::FREQUENCY,
        report.cpus,
        report.processor,
        // Without what its builder has appended.
        report.kernel.split('-').next().unwrap_or_default(),
    );
    text += "| scene | frames | BPF time a sample | bare | CPU, % of a core | CPU in all | memory | BPF maps |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    report.scenes.iter().for_each(|scene| text += &of_recording(scene));
    text += &format!(
        "\nThe daemon at {} Hz, from its start on, with cold caches; in % of a core:\n\n",
        resident::FREQUENCY
    );
    text +=
        "| scene | first 15 s | first minute | after 45 s | memory (PSS) | the host was busy |\n";
    text += "|---|---|---|---|---|---|\n";
    report.daemon.iter().for_each(|scene| text += &of_daemon(scene));
    text
}

fn of_recording(scene: &Measured) -> String {
    format!(
        "| {} | {:.0} | {:.1} µs | {:.1} µs | {:.2} | {:.2} s | {:.0} MB | {:.0} MB |\n",
        title(&scene.scene),
        scene.frames_per_sample,
        scene.bpf_us_per_sample,
        scene.bare_us_per_sample,
        scene.agent_cpu_percent,
        scene.agent_cpu_seconds,
        scene.peak_rss_mb,
        scene.map_bytes_by_kernel_mb.max(scene.map_mb),
    )
}

fn of_daemon(scene: &Resident) -> String {
    format!(
        "| {} | {:.2} | {:.2} | {:.2} | {:.0} MB | {:.0} % |\n",
        title(&scene.scene),
        scene.first_quarter_percent,
        scene.first_minute_percent,
        scene.steady_percent,
        scene.proportional_mb,
        scene.host_busy_percent,
    )
}

/// A scene as a reader of the README understands it.
fn title(scene: &str) -> String {
    let of = |name: &str| scene.strip_prefix(name).and_then(|rest| rest.parse::<u32>().ok());
    if let Some(depth) = of("recursion-") {
        format!("C without frame pointers, recursion {depth}, two threads")
    } else if let Some(depth) = of("dotnet-") {
        format!(".NET, recursion {depth}, two threads")
    } else if let Some(count) = of("pythons-") {
        format!("{count} Pythons that start, then idle")
    } else if let Some(count) = of("processes-") {
        format!("{},{:03} idle processes beside recursion 5", count / 1000, count % 1000)
    } else {
        match scene {
            "idle" => "an idle host".to_owned(),
            "csharp-compiler" => "a C# compiler started in a loop".to_owned(),
            other => other.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let Place { begin, end } = COSTS;
        let text = format!("before\n{begin}old\nold\n{end}\nafter\n");
        let expected = format!("before\n{begin}new\n{end}\nafter\n");
        assert_eq!(COSTS.replaced(&text, "new\n"), Some(expected));
        assert_eq!(COSTS.replaced("no marks", "new\n"), None);
    }

    #[test]
    fn every_scene_has_a_title() {
        for scene in super::super::scenes::ALL {
            assert_ne!(title(&scene.name()), scene.name());
        }
    }

    #[test]
    fn the_readme_has_a_place_for_the_costs() {
        let text = fs::read_to_string(places::workspace().join("README.md")).expect("a README");
        assert!([COSTS, SERVER].iter().all(|place| place.replaced(&text, "").is_some()));
    }
}
