//! Hostile names: a process's name and those of its functions and files stay inert text.

use anyhow::Result;
use strata_tests::elf_edit::ElfCopy;
use strata_tests::running::{PerfMaps, Running};
use strata_tests::{machine, strata, targets, text_outputs};

use crate::tools_agree::well_formed_xml;

#[test]
fn script_quotes_separators_and_escapes_are_inert_everywhere() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let mut copy = ElfCopy::of(&targets::c("names").build()?)?;
    let function = "</title><script>x(1)\x1b[31m\"'&;\n";
    copy.replace_name("placeholder_name_of_40_characters_length", function)?;
    let program = copy.write(&folder.path().join("file<script>\"';\x1b]0;x\x07"))?;
    // Process names have 15 bytes.
    let names = [
        "<script>a()//",
        "\"'><b>",
        "\x1b[31mred\x1b[0m",
        "a;b c\n9",
        "\u{202e}\u{fffd}x",
        "{\"json\":",
    ];
    let running: Vec<Running> =
        names.iter().map(|n| Running::start(&program, &[n, "300"])).collect::<Result<_>>()?;
    running.iter().try_for_each(|process| process.wait_until_used(0.02))?;
    let _maps = PerfMaps::of([running[0].pid()]);
    let map = format!("/tmp/perf-{}.map", running[0].pid());
    std::fs::write(map, "0 ffffffffffffffff <script>map\x1b[1m\n\n\nnonsense\n10 zz\n")?;
    let record = strata::record()?.frequency(997).output("p.svg").output("p.folded");
    let recording = record.output("p.perf").output("p.json.gz").start()?;
    let pids: Vec<i32> = running.iter().map(Running::pid).collect();
    let recorded = recording.finish_when_used(&pids, 0.8)?;

    let svg = recorded.text("p.svg")?;
    for forbidden in ["<script>a()", "<script>x(1)", "<script>map", "<b>", "\x1b"] {
        assert!(!svg.contains(forbidden), "the SVG contains {forbidden:?} as it is");
    }
    well_formed_xml(&recorded.path("p.svg"))?;
    for name in ["p.folded", "p.perf"] {
        let text = recorded.text(name)?;
        assert!(!text.contains('\x1b'), "{name} contains a terminal escape");
    }
    let folded = text_outputs::folded(&recorded.text("p.folded")?)?;
    let total: u64 = folded.iter().map(|f| f.count).sum();
    let stacks = recorded.stacks()?;
    assert_eq!(total, stacks.total(), "a name broke the folded lines");
    for text in [&recorded.ended.stdout, &recorded.ended.stderr] {
        assert!(!text.contains('\x1b'), "a terminal escape was printed: {text:?}");
    }
    let seen: Vec<u64> = running.iter().map(|r| stacks.of_pid(r.pid()).total()).collect();
    println!("samples of the six processes: {seen:?}");
    assert!(seen.iter().all(|&n| n > 100));
    Ok(())
}

#[test]
fn the_summary_is_plain_text_without_a_terminal() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let mut copy = ElfCopy::of(&targets::c("names").build()?)?;
    copy.replace_name(
        "placeholder_name_of_40_characters_length",
        "bell\x07\x1b]0;owned\x07\x1b[2J",
    )?;
    let program = copy.write(&folder.path().join("names"))?;
    let _target = Running::start(&program, &["\x1b[2J\x1b[31m", "300"])?;
    let recorded = strata::record()?.as_text().frequency(997).seconds(2.0).run()?;
    let message = [recorded.ended.stdout.as_str(), recorded.ended.stderr.as_str()].concat();
    println!("{message}");
    assert!(
        !message.chars().any(|c| c.is_control() && c != '\n' && c != '\t'),
        "control characters: {message:?}"
    );
    assert!(message.contains("profile.pb.gz"), "the output is not named");
    Ok(())
}
