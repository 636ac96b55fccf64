//! Tools agree: perf sees the same shares at the same time, other readers accept the files, and all
//! formats of one recording agree.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use strata_tests::perf::{self, CallGraph};
use strata_tests::running::{Running, run};
use strata_tests::{machine, places, strata, targets, text_outputs};

#[test]
fn perf_with_dwarf_sees_the_same_shares() -> Result<()> {
    let _machine = machine::alone()?;
    let target = Running::start(&targets::cpp_shares().build()?, &["300"])?;
    // 15,000 samples and more: two independent samplings then differ by half a point. perf starts
    // earlier and stops later: in twenty seconds its half second more is not much.
    let frequency = 799;
    let recording = perf::record(frequency, CallGraph::Dwarf, Some(target.pid()))?;
    let ours = strata::record()?.frequency(frequency).pid(target.pid()).start()?;
    let recorded = ours.finish_when_used(&[target.pid()], 20.0)?;
    let data = recording.stop()?;
    let ours = recorded.stacks()?;
    let theirs = data.stacks()?.of_pid(target.pid());
    println!("strata {} samples, complete {}", ours.total(), ours.completeness());
    println!("perf   {} samples, complete {}", theirs.total(), theirs.completeness());
    assert!(ours.total() >= 10_000 && theirs.total() >= 10_000);

    let mut wrong = Vec::new();
    let reported: BTreeMap<String, f64> =
        data.report()?.into_iter().map(|(n, p)| (short(&n), p)).collect();
    let ours_self = percent(&ours.self_counts(), ours.total());
    for name in reported.keys().chain(ours_self.keys()) {
        compare("self", name, &ours_self, &reported, &mut wrong);
    }
    let inclusive = percent(&ours.inclusive_counts(), ours.total());
    let inclusive_perf = percent(&theirs.inclusive_counts(), theirs.total());
    // Frames outside the program differ in name only (libc has no symbols for them here).
    for name in inclusive_perf.keys().filter(|n| n.contains("work::") || *n == "main") {
        compare("with callees", name, &inclusive, &inclusive_perf, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

fn compare(
    kind: &str,
    name: &str,
    ours: &BTreeMap<String, f64>,
    theirs: &BTreeMap<String, f64>,
    wrong: &mut Vec<String>,
) {
    let (a, b) = (ours.get(name).copied().unwrap_or(0.0), theirs.get(name).copied().unwrap_or(0.0));
    if a.max(b) < 5.0 {
        return;
    }
    let line = format!("{kind} {name}: strata {a:.2} %, perf {b:.2} %");
    println!("  {line}");
    if (a - b).abs() > 1.5 && !wrong.contains(&line) {
        wrong.push(line);
    }
}

fn percent(counts: &[(String, u64)], total: u64) -> BTreeMap<String, f64> {
    let mut result = BTreeMap::new();
    for (name, count) in counts {
        *result.entry(short(name)).or_insert(0.0) += 100.0 * *count as f64 / total.max(1) as f64;
    }
    result
}

/// A C++ name without its parameters: demanglers differ in them.
fn short(name: &str) -> String {
    name.split('(').next().unwrap_or_default().trim().to_string()
}

#[test]
fn go_tool_pprof_accepts_the_file_and_agrees() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recorded =
        strata::record()?.frequency(997).command(targets::c("shares").build()?, &["4"]).run()?;
    let stacks = recorded.stacks()?;
    let path = recorded.path("profile.pb.gz");
    let top = go_pprof(&["-top", "-nodecount=40", "-sample_index=0"], &path)?;
    println!("{}", top.lines().take(9).collect::<Vec<_>>().join("\n"));
    for name in ["burn_fifty", "burn_thirty", "burn_twenty"] {
        let line = top
            .lines()
            .find(|l| l.split_whitespace().last() == Some(name))
            .context("a line of -top")?;
        let percent: f64 =
            line.split_whitespace().nth(1).context("flat%")?.trim_end_matches('%').parse()?;
        let ours = 100.0 * stacks.that(|s| s.leaf().is_some_and(|f| f.name == name)).total() as f64
            / stacks.total() as f64;
        assert!((percent - ours).abs() < 0.02, "{name}: pprof {percent}, read by us {ours}");
    }
    let raw = go_pprof(&["-raw"], &path)?;
    assert!(raw.contains("PeriodType: ") && raw.contains("Mappings"));
    let traces = go_pprof(&["-traces"], &path)?;
    assert!(
        traces.contains("descend") && traces.contains("comm:"),
        "labels are missing in -traces"
    );
    let profile = recorded.profile()?;
    assert!(
        profile.period > 0
            && profile.duration_nanos > 3_000_000_000
            && profile.time_nanos > 1_600_000_000_000_000_000
    );
    for label in ["pid", "tid", "comm"] {
        assert!(
            stacks.stacks.iter().all(|s| s.labels.contains_key(label)),
            "a sample without {label}"
        );
    }
    let program = stacks
        .stacks
        .iter()
        .flat_map(|s| &s.frames)
        .find(|f| f.name == "descend")
        .context("a frame")?;
    let build_id =
        strata_tests::elf_edit::ElfCopy::of(&targets::c("shares").build()?)?.build_id()?;
    assert_eq!(program.build_id, build_id, "the mapping's build id");
    Ok(())
}

fn go_pprof(options: &[&str], path: &Path) -> Result<String> {
    let mut command = Command::new(places::required("go", "golang")?);
    command.args(["tool", "pprof"]).args(options).arg(path).env("GOTOOLCHAIN", "local");
    let done = run(&mut command)?;
    if !done.status.success() {
        bail!("go tool pprof {options:?}: {}", done.stderr);
    }
    Ok(done.stdout)
}

#[test]
fn every_format_of_a_recording_has_the_same_totals() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recorded = strata::record()?
        .frequency(997)
        .output("profile.svg")
        .output("profile.folded")
        .output("profile.perf")
        .output("profile.json.gz")
        .command(targets::c("shares").build()?, &["4"])
        .run()?;
    let stacks = recorded.stacks()?;
    let total = stacks.total();

    let folded = text_outputs::folded(&recorded.text("profile.folded")?)?;
    let folded_total: u64 = folded.iter().map(|f| f.count).sum();
    let script = perf::read_script(&recorded.path("profile.perf"))?;
    println!("pprof {total}, folded {folded_total}, perf text {}", script.total());
    assert_eq!(folded_total, total);

    for name in ["burn_fifty", "burn_thirty", "burn_twenty", "compare_and_burn", "main"] {
        let wanted = stacks.share_with(name);
        let of_folded = folded.iter().filter(|f| f.frames.iter().any(|n| n == name));
        let of_folded = of_folded.map(|f| f.count).sum::<u64>();
        let of_script = script.stacks.iter().filter(|s| s.has(name)).count() as f64;
        let of_script = of_script / script.total().max(1) as f64;
        println!("  {name}: pprof {wanted:.4}, perf text {of_script:.4}");
        assert!((of_folded as f64 / total as f64 - wanted).abs() < 1e-9, "{name} in folded");
        assert!((of_script - wanted).abs() <= 0.001, "{name} in the perf text");
    }
    well_formed_xml(&recorded.path("profile.svg"))?;

    let mut json = String::new();
    let file = std::fs::File::open(recorded.path("profile.json.gz"))?;
    flate2::read::GzDecoder::new(file).read_to_string(&mut json)?;
    let firefox: serde_json::Value = serde_json::from_str(&json)?;
    let threads = firefox.get("threads").and_then(|t| t.as_array()).context("threads")?;
    let main =
        threads.iter().find(|t| json_names(t, &firefox).iter().any(|n| n.contains("burn_fifty")));
    let weights = threads.iter().filter_map(|thread| thread.pointer("/samples/weight")?.as_array());
    let weight: i64 = weights.flatten().filter_map(serde_json::Value::as_i64).sum();
    println!("Firefox: {} threads, {weight} samples", threads.len());
    assert_eq!(u64::try_from(weight)?, total, "the Firefox profile");
    assert!(main.is_some(), "no thread with burn_fifty in the Firefox profile");
    Ok(())
}

/// The strings of a thread: its own table, or the shared one of newer format versions.
fn json_names(thread: &serde_json::Value, profile: &serde_json::Value) -> Vec<String> {
    let own = thread.get("stringArray").or_else(|| profile.pointer("/shared/stringArray"));
    let names = own.and_then(|a| a.as_array()).cloned().unwrap_or_default();
    names.iter().filter_map(|n| n.as_str().map(String::from)).collect()
}

pub fn well_formed_xml(path: &Path) -> Result<()> {
    let mut command = Command::new(places::required("python3", "python3")?);
    command.args(["-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])"]).arg(path);
    let done = run(&mut command)?;
    if !done.status.success() {
        bail!("{} is not XML: {}", path.display(), done.stderr);
    }
    Ok(())
}

#[test]
fn widths_in_the_svg_are_the_profiles_totals() -> Result<()> {
    let _machine = machine::beside_others()?;
    // Few different stacks: boxes too narrow to be drawn would be missing in the sums.
    let program = targets::c("zero").build()?;
    let record = strata::record()?.frequency(997).output("profile.svg");
    let recorded = record.command(program, &["4"]).run()?;
    let stacks = recorded.stacks()?;
    let boxes = text_outputs::svg_boxes(&recorded.text("profile.svg")?)?;
    let widths = text_outputs::svg_shares(&boxes);
    for name in ["main", "zero_outer", "zero_inner", "read_zero"] {
        let wanted = stacks.share_with(name);
        let width = widths.get(name).copied().unwrap_or(0.0);
        println!("  {name}: pprof {wanted:.4}, SVG {width:.4}");
        assert!((width - wanted).abs() <= 0.001, "{name}: SVG width {width}, pprof {wanted}");
    }
    // Every box is as wide as the samples in its title.
    let widest = boxes.iter().map(|b| b.width).fold(0.0, f64::max);
    for flame_box in &boxes {
        let count = flame_box
            .title
            .rsplit('(')
            .next()
            .and_then(|t| t.split(' ').next())
            .unwrap_or_default();
        let count: f64 = count.replace(',', "").parse().context("a title without a count")?;
        let share = count / stacks.total() as f64;
        assert!((flame_box.width / widest - share).abs() <= 0.001, "{flame_box:?}");
    }
    println!("{} boxes", boxes.len());
    Ok(())
}

#[test]
fn convert_turns_our_and_other_tools_files_into_every_format() -> Result<()> {
    let _machine = machine::beside_others()?;
    let recorded = strata::record()?
        .frequency(997)
        .output("direct.folded")
        .command(targets::c("shares").build()?, &["2"])
        .run()?;
    let original = recorded.path("profile.pb.gz");
    // pprof writes the profile anew, with its own encoder.
    let rewritten = recorded.path("rewritten.pb.gz");
    let output = format!("-output={}", rewritten.display());
    go_pprof(&["-proto", &output], &original)?;
    for source in [&original, &rewritten] {
        for name in ["c.folded", "c.svg", "c.perf", "c.json.gz", "c.pb.gz"] {
            let target = recorded.path(name);
            let mut command = Command::new(places::strata_binary()?);
            let done = run(command.arg("convert").arg(source).arg(&target))?;
            assert!(done.status.success(), "convert to {name}: {}", done.stderr);
            assert!(std::fs::metadata(&target)?.len() > 100, "{name} is empty");
        }
        let converted = text_outputs::folded(&recorded.text("c.folded")?)?;
        let direct = text_outputs::folded(&recorded.text("direct.folded")?)?;
        let count = |all: &[text_outputs::Folded], name: &str| -> u64 {
            all.iter().filter(|f| f.frames.last().is_some_and(|n| n == name)).map(|f| f.count).sum()
        };
        for name in ["burn_fifty", "burn_thirty", "burn_twenty"] {
            assert_eq!(
                count(&converted, name),
                count(&direct, name),
                "{name} after {}",
                source.display()
            );
        }
    }
    Ok(())
}
