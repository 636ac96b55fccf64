//! `cargo xtask bench`: every scene under strata and under perf, a table and a JSON file.
//!
//! usage: bench [--scene NAME]… [--seconds N] [--no-perf] [--no-components] [--output FILE]

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_tests::bench::bpf_objects::RunTimes;
use strata_tests::bench::components;
use strata_tests::bench::measure::{self, Measured};
use strata_tests::bench::report::{self, Report};
use strata_tests::bench::scenes::{self, Scene};
use strata_tests::perf::CallGraph;
use strata_tests::{machine, places};

struct Options {
    scenes: Vec<Scene>,
    seconds: f64,
    perf: bool,
    components: bool,
    output: PathBuf,
}

fn options() -> Result<Options> {
    let mut options = Options {
        scenes: vec![],
        seconds: 20.0,
        perf: true,
        components: true,
        output: places::cache("bench")?.join("latest.json"),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--scene" => options.scenes.push(scene(&value()?)?),
            "--seconds" => options.seconds = value()?.parse()?,
            "--no-perf" => options.perf = false,
            "--no-components" => options.components = false,
            "--output" => options.output = value()?.into(),
            _ => bail!(
                "usage: bench [--scene NAME]… [--seconds N] [--no-perf] [--no-components] [--output FILE]\n\
                 scenes: {}",
                names().join(" ")
            ),
        }
    }
    if options.scenes.is_empty() {
        options.scenes = scenes::ALL.to_vec();
    }
    Ok(options)
}

fn names() -> Vec<String> {
    scenes::ALL.iter().map(|s| s.name()).collect()
}

fn scene(name: &str) -> Result<Scene> {
    let found = scenes::ALL.into_iter().find(|s| s.name() == name);
    found.with_context(|| format!("no scene {name}; there are: {}", names().join(" ")))
}

fn main() -> Result<()> {
    let options = options()?;
    let _machine = machine::alone()?;
    let _counted = RunTimes::counted()?;
    let mut report = Report {
        kernel: report::kernel(),
        processor: report::processor(),
        cpus: machine::cpus(),
        early_exit_ns: 0.0,
        scenes: vec![],
        components: vec![],
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
