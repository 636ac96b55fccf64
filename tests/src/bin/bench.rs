//! `cargo xtask bench`: scenes under strata and under perf, what strata costs .NET programs, and
//! programs that start; a table and a JSON file.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_tests::bench::bpf_objects::RunTimes;
use strata_tests::bench::clr::{self, Effort, Part};
use strata_tests::bench::components;
use strata_tests::bench::measure::{self, Measured};
use strata_tests::bench::readme;
use strata_tests::bench::report::{self, Report};
use strata_tests::bench::resident;
use strata_tests::bench::scenes::{self, Scene};
use strata_tests::bench::starts;
use strata_tests::bench::switches;
use strata_tests::bench::throughput;
use strata_tests::bench::wall;
use strata_tests::perf::CallGraph;
use strata_tests::{machine, places};

/// The groups of measurements that are no scenes.
const CLR: &str = "clr";
const STARTS: &str = "starts";
const DAEMON: &str = "daemon";
const SWITCHES: &str = "switches";
const WALL: &str = "wall";

struct Options {
    scenes: Vec<Scene>,
    clr: Vec<Part>,
    starts: bool,
    daemon: bool,
    readme: bool,
    switches: bool,
    wall: bool,
    effort: Effort,
    seconds: f64,
    perf: bool,
    components: bool,
    output: PathBuf,
}

impl Options {
    /// Those that are recorded: with `daemon`, what is named is for the daemon.
    fn recorded_scenes(&self) -> &[Scene] {
        if self.daemon && !self.readme { &[] } else { &self.scenes }
    }

    /// Those beside a daemon.
    fn daemon_scenes(&self) -> Vec<Scene> {
        match self.daemon {
            false => vec![],
            true if self.readme || self.scenes.is_empty() => resident::SCENES.to_vec(),
            true => self.scenes.clone(),
        }
    }
}

fn usage() -> String {
    format!(
        "\
usage: bench [NAME]… [OPTIONS]

names: scenes, `{CLR}` for what strata costs .NET programs, `{STARTS}` for what it costs programs
to start, `{SWITCHES}` for what off-CPU time costs programs that switch, `{WALL}` for what wall-clock
time costs with many threads, and together with CPU time a program that uses all CPUs,
`{DAEMON}` for what a daemon costs that runs for good, in the scenes that are named or in five of
them; without any: all scenes
  {}

  --scene NAME     the same as NAME
  --seconds N      of a scene's recording (20); of a window of `{CLR}` and `{SWITCHES}` (4) and of `{DAEMON}`
  --no-perf        scenes without Linux perf
  --no-components  without unwind tables and symbols by themselves
  --readme         all scenes under a recording and five of them beside a daemon, and their table into
                   README.md; with `{CLR} --part server` that part's table
  --output FILE    the JSON file (.cache/bench/latest.json)

  --pairs N        pairs of a run with and one without, of `{CLR}`, `{STARTS}`, `{SWITCHES}` and
                   `{WALL}` ({})
  --part PART      only for `{CLR}`: one part (again for more): {}",
        names().join(" "),
        Effort::default().pairs,
        Part::ALL.map(Part::name).join(" "),
    )
}

/// `None`: only help was wanted.
fn options() -> Result<Option<Options>> {
    let mut options = Options {
        scenes: vec![],
        clr: vec![],
        starts: false,
        daemon: false,
        readme: false,
        switches: false,
        wall: false,
        effort: Effort::default(),
        seconds: 20.0,
        perf: true,
        components: true,
        output: places::cache("bench")?.join("latest.json"),
    };
    let (mut group, mut parts) = (false, vec![]);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--scene" => options.scenes.push(scene(&value()?)?),
            "--seconds" => {
                options.seconds = value()?.parse()?;
                options.effort.seconds = options.seconds;
            }
            "--part" => parts.push(Part::by_name(&value()?)?),
            "--pairs" => options.effort.pairs = value()?.parse::<usize>()?.max(2),
            "--readme" => options.readme = true,
            "--no-perf" => options.perf = false,
            "--no-components" => options.components = false,
            "--output" => options.output = value()?.into(),
            CLR => group = true,
            STARTS => options.starts = true,
            DAEMON => options.daemon = true,
            SWITCHES => options.switches = true,
            WALL => options.wall = true,
            other if other.starts_with('-') => bail!("no option {other}\n{}", usage()),
            name => options.scenes.push(scene(name)?),
        }
    }
    if !group && !parts.is_empty() {
        bail!("--part is for `{CLR}`\n{}", usage());
    }
    if group {
        options.clr = if parts.is_empty() { Part::ALL.to_vec() } else { parts };
    }
    if options.readme && !group {
        (options.scenes, options.daemon) = (scenes::ALL.to_vec(), true);
    }
    if group || options.starts || options.daemon || options.switches || options.wall {
        options.components = false;
    } else if options.scenes.is_empty() {
        options.scenes = scenes::ALL.to_vec();
    }
    Ok(Some(options))
}

fn names() -> Vec<String> {
    scenes::ALL
        .iter()
        .map(|s| s.name())
        .chain([CLR, STARTS, DAEMON, SWITCHES, WALL].map(String::from))
        .collect()
}

fn scene(name: &str) -> Result<Scene> {
    let found = scenes::ALL.into_iter().find(|s| s.name() == name);
    found.with_context(|| format!("no scene {name}; there are: {}", names().join(" ")))
}

fn main() -> Result<()> {
    let Some(options) = options()? else {
        println!("{}", usage());
        return Ok(());
    };
    let _machine = machine::alone()?;
    let _counted = RunTimes::counted()?;
    let mut report = Report {
        kernel: report::kernel(),
        processor: report::processor(),
        cpus: machine::cpus(),
        early_exit_ns: 0.0,
        scenes: vec![],
        daemon: vec![],
        components: vec![],
        figures: vec![],
        failed: vec![],
    };
    for scene in options.recorded_scenes() {
        eprintln!("{} …", scene.name());
        match measure_scene(*scene, &options, report.early_exit_ns) {
            Ok(measured) => {
                if *scene == Scene::Idle {
                    report.early_exit_ns = measure::early_exit_ns(&measured);
                }
                report.scenes.push(measured);
            }
            Err(error) => report.failed.push((scene.name(), format!("{error:#}"))),
        }
    }
    let (figures, failed) = clr::measure(&options.clr, options.effort);
    report.figures = figures;
    report.failed.extend(failed);
    if options.starts {
        match starts::measure(options.effort.pairs) {
            Ok(figures) => report.figures.extend(figures),
            Err(error) => report.failed.push((STARTS.to_owned(), format!("{error:#}"))),
        }
    }
    if options.switches {
        match switches::measure(options.effort.pairs, options.effort.seconds) {
            Ok(figures) => report.figures.extend(figures),
            Err(error) => report.failed.push((SWITCHES.to_owned(), format!("{error:#}"))),
        }
    }
    if options.wall {
        for measured in
            [wall::measure(options.effort.seconds), throughput::measure(options.effort.pairs)]
        {
            match measured {
                Ok(figures) => report.figures.extend(figures),
                Err(error) => report.failed.push((WALL.to_owned(), format!("{error:#}"))),
            }
        }
    }
    for scene in options.daemon_scenes() {
        eprintln!("a daemon, {} …", scene.name());
        match resident::measure(scene, options.seconds) {
            Ok(measured) => {
                report.figures.extend(measured.figures());
                report.daemon.push(measured);
            }
            Err(error) => {
                report.failed.push((format!("{DAEMON}, {}", scene.name()), format!("{error:#}")));
            }
        }
    }
    if options.components {
        match components::measure() {
            Ok(components) => report.components = components,
            Err(error) => report.failed.push(("components".to_string(), format!("{error:#}"))),
        }
    }
    report::print(&report);
    if options.readme {
        if !report.failed.is_empty() {
            bail!("not everything could be measured: README.md is as it was");
        }
        readme::write(&report)?;
    }
    report::write(&report, &options.output)
}

fn measure_scene(scene: Scene, options: &Options, early_exit_ns: f64) -> Result<Measured> {
    let mut measured = measure::under_strata(scene, options.seconds, early_exit_ns)?;
    if options.perf {
        for call_graph in [CallGraph::FramePointer, CallGraph::Dwarf] {
            measured.perf.push(measure::under_perf(scene, call_graph, options.seconds / 2.0)?);
        }
    }
    Ok(measured)
}
