//! Idle threads: those of runtimes and pools are labelled and are one box of a picture; what a program
//! waits for itself is neither.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use strata_tests::running::{Running, run};
use strata_tests::runtimes::{self, dotnet};
use strata_tests::strata::{Recorded, record};
use strata_tests::{machine, places, targets, text_outputs};

use crate::dotnet_running;

/// Seconds of wall-clock time by the value of `idle`; empty: of other threads.
fn idle(recorded: &Recorded) -> Result<BTreeMap<String, f64>> {
    recorded.print_losses();
    let mut times = BTreeMap::new();
    for stack in recorded.profile()?.stacks_of("wall")?.stacks {
        let kind = stack.labels.get("idle").cloned().unwrap_or_default();
        *times.entry(kind).or_insert(0.0) += stack.count as f64 / 1e9;
    }
    println!("{times:?}");
    Ok(times)
}

fn recorded(program: &Running) -> Result<Recorded> {
    record()?.option("-e", "wall").pid(program.pid()).seconds(4.0).output("all.svg").run()
}

#[test]
fn threads_of_runtimes_that_wait_for_work_are_idle() -> Result<()> {
    let _machine = machine::beside_others()?;
    let go = Running::start(&targets::go("deadlock", "deadlock", &[])?, &[])?;
    let node = "require('fs').readFile('/etc/passwd', () => {}); setInterval(() => {}, 700)";
    let mut command = std::process::Command::new(places::required("node", "nodejs")?);
    command.args(["-e", node]);
    let node = Running::from_command(command)?;
    let java = Running::from_command(runtimes::java("300")?)?;
    std::thread::sleep(Duration::from_secs(2));
    for (program, kinds) in
        [(&go, &["Go scheduler"][..]), (&node, &["Node workers", "libuv"]), (&java, &["Java VM"])]
    {
        let recorded = recorded(program)?;
        let times = idle(&recorded)?;
        for kind in kinds {
            // A thread that does nothing at all, at least.
            assert!(times.get(*kind).is_some_and(|time| *time > 3.0), "{kind}: {times:?}");
        }
        let boxes = text_outputs::svg_boxes(&recorded.text("all.svg")?)?;
        let named = |name: &str| boxes.iter().any(|one| one.title.starts_with(name));
        assert!(named("idle") && kinds.iter().all(|kind| named(kind)), "{kinds:?}");
    }
    Ok(())
}

#[test]
fn what_a_program_waits_for_is_not_idle() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let program = dotnet_running::start(&dotnet, version, "OnOff", &["600"])?;
        let recorded = recorded(&program)?;
        let times = idle(&recorded)?;
        let of = |kind: &str| times.get(kind).copied().unwrap_or(0.0);
        assert!(of(".NET runtime") > 3.0, "{version}: {times:?}");
        let profile = recorded.profile()?.stacks_of("wall")?;
        let waits: Vec<_> =
            profile.stacks.iter().filter(|stack| stack.has("OnOff.Waits")).collect();
        let seconds = waits.iter().map(|stack| stack.count as f64 / 1e9).sum::<f64>();
        println!("{version}: {seconds:.1} s below OnOff.Waits");
        assert!(seconds > 10.0 && waits.iter().all(|stack| !stack.labels.contains_key("idle")));
        // The lists of the summary have the waits of the others only.
        let waits = recorded.summary()?.0["kinds"]["wall"]["waits"].clone();
        let percent = |list: &str| -> f64 {
            let list = waits[list].as_array().map_or(&[][..], Vec::as_slice);
            list.iter().filter_map(|share| share["percent"].as_f64()).sum()
        };
        let all = times.values().sum::<f64>();
        let (idle, others) = (100.0 * (1.0 - of("") / all), 100.0 * of("") / all);
        let listed = [percent("idle"), percent("functions")];
        println!("{version}: idle {idle:.1} %, others {others:.1} %, listed {listed:.1?} %");
        assert!((listed[0] - idle).abs() < 0.5, "{version}");
        assert!((others * 0.9..others + 0.5).contains(&listed[1]), "{version}");
        let svg = recorded.path("app.svg");
        let mut convert = std::process::Command::new(places::strata_binary()?);
        convert.args(["convert", "--frames", "app"]).arg(recorded.path("profile.pb.gz")).arg(&svg);
        let converted = run(&mut convert)?;
        assert!(converted.status.success(), "{}", converted.stderr);
        let shown = text_outputs::svg_boxes(&std::fs::read_to_string(&svg)?)?;
        assert!(shown.iter().all(|one| !one.title.starts_with("idle")));
        assert!(shown.iter().any(|one| one.title.contains("OnOff.Waits")));
    }
    Ok(())
}
