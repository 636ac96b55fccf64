//! `cargo xtask bench`: scenes under strata and under perf, and what strata costs .NET programs; a
//! table and a JSON file.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_tests::bench::bpf_objects::RunTimes;
use strata_tests::bench::clr::{self, Effort, Part};
use strata_tests::bench::components;
use strata_tests::bench::measure::{self, Measured};
use strata_tests::bench::report::{self, Report};
use strata_tests::bench::scenes::{self, Scene};
use strata_tests::perf::CallGraph;
use strata_tests::{machine, places};

/// The group of measurements that is no scene.
const CLR: &str = "clr";

struct Options {
    scenes: Vec<Scene>,
    clr: Vec<Part>,
    effort: Effort,
    seconds: f64,
    perf: bool,
    components: bool,
    output: PathBuf,
}

fn usage() -> String {
    format!(
        "\
usage: bench [NAME]… [OPTIONS]

names: scenes, and `{CLR}` for what strata costs .NET programs; without any: all scenes
  {}

  --scene NAME     the same as NAME
  --seconds N      of a scene's recording (20); of a window of `{CLR}` (4)
  --no-perf        scenes without Linux perf
  --no-components  without unwind tables and symbols by themselves
  --output FILE    the JSON file (.cache/bench/latest.json)

only for `{CLR}`:
  --part PART      one part (again for more): {}
  --pairs N        pairs of a run with and one without ({})",
        names().join(" "),
        Part::ALL.map(Part::name).join(" "),
        Effort::default().pairs,
    )
}

/// `None`: only help was wanted.
fn options() -> Result<Option<Options>> {
    let mut options = Options {
        scenes: vec![],
        clr: vec![],
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
            "--no-perf" => options.perf = false,
            "--no-components" => options.components = false,
            "--output" => options.output = value()?.into(),
            CLR => group = true,
            other if other.starts_with('-') => bail!("no option {other}\n{}", usage()),
            name => options.scenes.push(scene(name)?),
        }
    }
    if !group && !parts.is_empty() {
        bail!("--part is for `{CLR}`\n{}", usage());
    }
    if group {
        options.clr = if parts.is_empty() { Part::ALL.to_vec() } else { parts };
        options.components = false;
    } else if options.scenes.is_empty() {
        options.scenes = scenes::ALL.to_vec();
    }
    Ok(Some(options))
}

fn names() -> Vec<String> {
    scenes::ALL.iter().map(|s| s.name()).chain([CLR.to_owned()]).collect()
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
        components: vec![],
        clr: vec![],
        failed: vec![],
    };
    for scene in &options.scenes {
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
    report.clr = figures;
    report.failed.extend(failed);
    if options.components {
        match components::measure() {
            Ok(components) => report.components = components,
            Err(error) => report.failed.push(("components".to_string(), format!("{error:#}"))),
        }
    }
    report::print(&report);
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
