//! Readable names, and lines: methods of every form, five hot loops, a real compiler.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use strata_tests::dotnet_names::{expected, hot_lines, missing};
use strata_tests::runtimes::assemblies::Assembly;
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::{Frame, Stack, Stacks};
use strata_tests::strata::Recorded;
use strata_tests::{machine, places, strata};

use crate::dotnet_running::{
    Clr, FREQUENCY, Wrongs, is_managed, print_examples, recorded_command,
    recorded_without_variables,
};

/// Those of a program's expected names that a recording of all its life does not have.
fn check_names(
    dotnet: &DotNet,
    version: Version,
    (what, program): (&str, &Assembly),
    wrongs: &mut Wrongs,
) -> Result<()> {
    let mut command = dotnet.run(version, program, &["0.1"])?;
    // Each form has its samples, however busy the machine is.
    command.env("STRATA_TARGET_CLOCK", "cpu");
    let recorded = recorded_command(strata::record()?.frequency(FREQUENCY), &command)?.run()?;
    let names = expected(&recorded.ended.stdout);
    let stacks = recorded.stacks()?;
    let missing = missing(&names, &stacks);
    println!(
        "{version}, {what}: {} of {} names seen in {} samples; missing: {missing:#?}",
        names.len() - missing.len(),
        names.len(),
        stacks.total()
    );
    let frames = stacks.stacks.iter().flat_map(|stack| &stack.frames);
    let marks = ["<>", "`", "VB$", "Lambda$", "Closure$"];
    // A function of the JIT compiler's may be a template of C++.
    let raw =
        |frame: &&Frame| is_managed(frame) && marks.iter().any(|mark| frame.name.contains(mark));
    let raw: Vec<&str> = frames.filter(raw).map(|frame| frame.name.as_str()).take(5).collect();
    wrongs.unless(raw.is_empty(), || format!("{version}, {what}: not cleaned: {raw:?}"));
    wrongs.unless(names.len() > 5 && missing.is_empty(), || {
        format!("{version}, {what}: not seen: {missing:?}")
    });
    // None of them calls another one of its name: where one seems to, the compiler has made one of
    // the other. (A handler and its method are two frames of one method.)
    let twice = stacks.stacks.iter().flat_map(|stack| stack.frames.windows(2)).find_map(|pair| {
        let [callee, caller] = pair else { return None };
        let are_two = callee.name == caller.name && callee.system_name != caller.system_name;
        (are_two && names.contains(&callee.name)).then_some((callee, caller))
    });
    wrongs.unless(twice.is_none(), || format!("{version}, {what}: twice in a row: {twice:?}"));
    Ok(())
}

#[test]
fn every_form_of_method_has_the_name_a_person_expects() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        for name in ["Names", "Basic", "Functional"] {
            if let Err(reason) = dotnet.supports(version, name) {
                println!("{version}: not {name}: {reason}");
                continue;
            }
            let program = Assembly::program(name);
            check_names(&dotnet, version, (name, &program), &mut wrongs)?;
            // Its compiler makes other code for lambdas then.
            if name == "Basic" {
                let program = program.not_optimised();
                check_names(&dotnet, version, ("Basic, debug", &program), &mut wrongs)?;
            }
        }
    }
    wrongs.none();
    Ok(())
}

#[test]
fn system_names_keep_the_signature() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["1"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        let recorded = recorded_command(strata::record()?.frequency(FREQUENCY), &command)?.run()?;
        let stacks = recorded.stacks()?;
        let frames = stacks.stacks.iter().flat_map(|stack| &stack.frames);
        let mut named = frames.filter(|frame| frame.name == "Shares.Descend");
        let system_name = &named.next().context("Shares.Descend was not seen")?.system_name;
        println!("{version}: {system_name}");
        assert_eq!(system_name, "System.UInt64 Shares.Descend(System.Int32, System.UInt64)");
    }
    Ok(())
}

/// The hot loops and the methods they are in.
const HOT: [(&str, &str); 5] = [
    ("plain", "Lines.Plain"),
    ("async", "Lines.Async"),
    ("lambda", "Lines.Lambda_AnonymousMethod"),
    ("tiered", "Lines.Tiered"),
    ("embedded", "LinesEmbedded.Burn"),
];

#[test]
fn hot_loops_are_on_their_lines() -> Result<()> {
    let _machine = machine::long_beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut sources = Assembly::program("Lines").sources()?;
    sources.extend(Assembly::csharp("LinesEmbedded").library().sources()?);
    let hot = hot_lines(&sources)?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Lines", &["1"])?;
        command.env("STRATA_TARGET_CLOCK", "cpu");
        for how in ["from its start", "attached"] {
            let record = strata::record()?.frequency(FREQUENCY);
            let record = match how {
                "attached" => recorded_without_variables(record, &command)?,
                _ => recorded_command(record, &command)?,
            };
            let recorded = record.run()?;
            let stacks = recorded.stacks()?;
            for line in &hot {
                let (_, function) = HOT.iter().find(|(name, _)| *name == line.name).context("?")?;
                // It has no async methods.
                if version == Version::V10 && line.name == "async" {
                    continue;
                }
                let (samples, share) = line.share(&stacks, function);
                println!(
                    "{version}, {how}: {function}: {:.2} % of {samples} on line {}",
                    100.0 * share,
                    line.line
                );
                if share < 0.95 {
                    print_lines(&stacks, function);
                }
                wrongs.unless(samples > 500 && share >= 0.95, || {
                    format!("{version}, {how}, {function}: {share} of {samples}")
                });
            }
        }
    }
    wrongs.none();
    Ok(())
}

fn print_lines(stacks: &Stacks, function: &str) {
    let mut counts = std::collections::BTreeMap::<(String, i64), u64>::new();
    for stack in &stacks.stacks {
        if let Some(frame) = stack.frames.iter().find(|frame| frame.name == function) {
            *counts.entry((frame.source_file.clone(), frame.line)).or_default() += stack.count;
        }
    }
    println!("    {counts:?}");
}

/// A copy of the program whose PDB is of another build of it.
fn with_a_strange_pdb(dotnet: &DotNet, folder: &Path) -> Result<std::path::PathBuf> {
    let program = dotnet.built(Version::V9, &Assembly::program("Lines"))?;
    let from = program.parent().context("a program in no folder")?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let other = Assembly::program("Lines").not_optimised();
    let strange = dotnet.built(Version::V9, &other)?.with_extension("pdb");
    fs::copy(strange, folder.join("Lines.pdb"))?;
    Ok(folder.join("Lines.dll"))
}

#[test]
fn a_pdb_of_another_build_is_not_believed() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    let program = with_a_strange_pdb(&dotnet, folder.path())?;
    let mut command = dotnet.command(&program);
    command.arg("1").env("STRATA_TARGET_CLOCK", "cpu");
    let recorded = recorded_command(strata::record()?.frequency(FREQUENCY), &command)?.run()?;
    let stacks = recorded.stacks()?;
    print_lines(&stacks, "Lines.Plain");
    let plain = stacks.that(|stack| stack.has("Lines.Plain"));
    let frames = plain.stacks.iter().flat_map(|stack| &stack.frames);
    let mut of_it = frames.filter(|frame| frame.name.starts_with("Lines."));
    assert!(plain.total() > 500, "{} samples of Lines.Plain", plain.total());
    assert!(of_it.all(|frame| frame.line == 0), "lines of a PDB of another build");
    // The other assembly's are its own.
    let embedded = stacks.that(|stack| {
        stack.frames.iter().any(|frame| frame.name == "LinesEmbedded.Burn" && frame.line > 0)
    });
    assert!(embedded.total() > 500, "{} samples with lines", embedded.total());
    Ok(())
}

/// Whether a frame of managed code has no name of a method.
fn is_nameless(frame: &Frame) -> bool {
    let place = ["[jit]", "[managed]", "[unknown]"];
    place.iter().any(|mark| frame.name.starts_with(mark)) || frame.name.contains(".dll!0x")
}

fn check_compiler(how: &str, recorded: &Recorded, wrongs: &mut Wrongs) -> Result<()> {
    let stacks = recorded.stacks()?;
    let is_of_managed_code = |frame: &&Frame| is_managed(frame) || is_nameless(frame);
    let managed = stacks.that(|stack| stack.frames.iter().any(|frame| is_of_managed_code(&frame)));
    let innermost = |stack: &Stack| {
        stack.frames.iter().find(is_of_managed_code).is_some_and(|frame| !is_nameless(frame))
    };
    let (named, clr) = (managed.share_that(innermost), Clr::of(recorded)?);
    let (mut frames, mut nameless) = (0, 0);
    for stack in &managed.stacks {
        let own = stack.frames.iter().filter(is_of_managed_code);
        frames += stack.count * own.count() as u64;
        nameless += stack.count * stack.frames.iter().filter(|f| is_nameless(f)).count() as u64;
    }
    println!(
        "{how}: {} samples, {} with managed code, the innermost of it named in {:.2} %; {nameless} of {frames} managed frames nameless; {clr:?}",
        stacks.total(),
        managed.total(),
        100.0 * named
    );
    print_examples(&managed.that(|stack| stack.frames.iter().any(is_nameless)), 3);
    recorded.print_losses();
    wrongs.unless(managed.total() > 800 && named >= 0.99, || {
        format!("{how}: {named} of {} named", managed.total())
    });
    wrongs.unless(nameless * 100 <= frames, || format!("{how}: {nameless} of {frames} nameless"));
    wrongs.unless(clr.attached == 1 && clr.methods > 5000, || format!("{how}: {clr:?}"));
    Ok(())
}

#[test]
fn a_compiler_at_work_is_named() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    let source = places::target_sources().join("csharp/Recursion.cs");
    let command = dotnet.compile_command(&source, &folder.path().join("Recursion.dll"));
    let mut wrongs = Wrongs::default();
    let record = strata::record()?.frequency(FREQUENCY);
    check_compiler("from its start", &recorded_command(record, &command)?.run()?, &mut wrongs)?;
    let record = strata::record()?.frequency(FREQUENCY);
    let recorded = recorded_without_variables(record, &command)?.run()?;
    check_compiler("attached as it starts", &recorded, &mut wrongs)?;
    wrongs.none();
    Ok(())
}
