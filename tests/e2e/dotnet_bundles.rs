//! Single-file .NET programs: assemblies that the runtime copies into memory, and PDBs inside.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use strata_tests::runtimes::assemblies::Assembly;
use strata_tests::runtimes::repack::repack;
use strata_tests::runtimes::{Version, dotnet};
use strata_tests::{dotnet_parked, machine, strata};

use crate::dotnet_running::{FREQUENCY, Wrongs, recorded_command, start_command};
use crate::dotnet_stacks::compare_waiting;

/// The same command with another program.
fn with_program(command: &Command, program: &Path) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            other.env(name, value);
        }
    }
    other
}

/// The precompiled assemblies that waiting threads are in.
const COMPRESSED: [&str; 4] = [
    "System.Private.CoreLib.dll",
    "System.Threading.dll",
    "System.Collections.dll",
    "System.Console.dll",
];

#[test]
fn stacks_lead_through_copies_of_compressed_assemblies() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("parked");
    let parked = file.display().to_string();
    let command = dotnet.program(Version::V8, "Parked", &[&parked, "300"])?;
    let program = folder.path().join("compressed");
    repack(Path::new(command.get_program()), &program, &COMPRESSED, &[])?;
    let mut wrongs = Wrongs::default();
    for tiered in ["1", "0"] {
        let mut command = with_program(&command, &program);
        command.env("DOTNET_TieredCompilation", tiered);
        let app = start_command(command)?;
        let expected = dotnet_parked::read(&file)?;
        let how = format!("compressed, tiered {tiered}");
        compare_waiting(&how, &expected, app.pid(), &mut wrongs)?;
        wrongs.unless(expected.len() == 23, || format!("{how}: {} threads", expected.len()));
    }
    // Such code runs from its first moment on.
    let shares = dotnet.program(Version::V8, "Shares", &["1"])?;
    let mut command = with_program(&shares, &program);
    command.env("STRATA_TARGET_CLOCK", "cpu");
    let recorded = recorded_command(strata::record()?.frequency(FREQUENCY), &command)?.run()?;
    let cut = recorded.summary()?.losses_named(&["stack_no_mapping"]);
    let samples = recorded.stacks()?.total();
    println!("{cut} of {samples} stacks cut");
    wrongs.unless(samples > 800 && cut * 100 < samples, || format!("{cut} of {samples} cut"));
    wrongs.none();
    Ok(())
}

#[test]
fn a_pdb_inside_a_program_gives_lines() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let assembly = Assembly::program("Lines");
    let built = dotnet.built(Version::V10, &assembly)?;
    let right = built.with_extension("pdb");
    let other = Assembly::program("Lines").not_optimised();
    let wrong = dotnet.built(Version::V10, &other)?.with_extension("pdb");
    for (symbols, believed) in [(right, true), (wrong, false)] {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("Lines");
        repack(&built, &program, &[], &[&symbols])?;
        let command = dotnet.program(Version::V10, "Lines", &["0.5"])?;
        let mut command = with_program(&command, &program);
        command.env("STRATA_TARGET_CLOCK", "cpu");
        let recorded = recorded_command(strata::record()?.frequency(FREQUENCY), &command)?.run()?;
        let stacks = recorded.stacks()?;
        let plain = stacks.that(|stack| stack.has("Lines.Plain"));
        let lined = plain.that(|stack| {
            stack.frames.iter().any(|frame| frame.name == "Lines.Plain" && frame.line > 0)
        });
        println!("{}: {} of {} with lines", symbols.display(), lined.total(), plain.total());
        assert!(plain.total() > 200, "{} samples of Lines.Plain", plain.total());
        let share = lined.total() as f64 / plain.total() as f64;
        assert!(if believed { share > 0.95 } else { share == 0.0 }, "{believed}: {share}");
    }
    Ok(())
}
