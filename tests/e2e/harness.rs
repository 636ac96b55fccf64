//! The harness itself: its checks pass when strata is right.

use std::time::Duration;

use anyhow::Result;
use strata_tests::bench::bare_program::BareProgram;
use strata_tests::bench::bpf_objects::{self, Loaded};
use strata_tests::bench::meters::ProcessMeter;
use strata_tests::daemon::PATIENCE;
use strata_tests::perf::{self, CallGraph};
use strata_tests::running::{PerfMaps, Running, wait_until};
use strata_tests::{
    elf_edit, fuse, machine, namespaces, runtimes, strata, summary, targets, text_outputs,
};

#[test]
fn every_native_target_builds_and_ends_well() -> Result<()> {
    let _machine = machine::beside_others()?;
    let plugin = targets::plugin()?;
    let plugin = plugin.to_string_lossy();
    let mut programs = vec![
        (targets::c("dlopen").build()?, vec![&*plugin, "0.2"]),
        (targets::c("recurse").build()?, vec!["3000", "2", "0.2"]),
        (targets::c("names").build()?, vec!["a name", "0.2"]),
        (targets::c("short_life").build()?, vec!["10"]),
        (targets::c("exec_churn").build()?, vec!["/bin/true", "100", "0.2"]),
    ];
    let plain = [
        "shares",
        "zero",
        "sleeper",
        "alloca",
        "longjmp",
        "signals",
        "threads",
        "vdso",
        "forks",
        "vfork",
        "stack_realign",
    ];
    for name in plain {
        programs.push((targets::c(name).build()?, vec!["0.2"]));
    }
    for program in [
        targets::c("shares").named("shares_pie").flag("-static-pie").build()?,
        targets::c("shares").named("shares_musl").musl().build()?,
        targets::c("shares").named("shares_strip").stripped().build()?,
        targets::cpp_shares().build()?,
        targets::rust_shares()?,
        targets::plt("plt_lazy", &[])?,
        targets::plt("plt_ibt", &["-fcf-protection=full", "-Wl,-z,ibtplt"])?,
        targets::go("shares", "shares_go", &[])?,
        targets::go("cgo", "cgo", &[])?,
    ] {
        programs.push((program, vec!["0.2"]));
    }
    for (program, arguments) in programs {
        let ended = Running::start(&program, &arguments)?.wait(PATIENCE)?;
        assert!(ended.status.success(), "{}: {} {}", program.display(), ended.status, ended.stderr);
    }
    Ok(())
}

#[test]
fn perf_sees_the_shares_the_targets_promise() -> Result<()> {
    let _machine = machine::alone()?;
    let target = Running::start(&targets::c("shares").build()?, &["30"])?;
    let recording = perf::record(997, CallGraph::Dwarf, Some(target.pid()))?;
    std::thread::sleep(Duration::from_secs(3));
    let data = recording.stop()?;
    let stacks = data.stacks()?.of_pid(target.pid());
    println!(
        "perf: {} samples, {} bytes, {:?}",
        stacks.total(),
        data.bytes(),
        data.report()?.get(..4)
    );
    println!("perf: complete {}", stacks.completeness());
    for (name, share) in [("burn_fifty", 0.5), ("burn_thirty", 0.3), ("burn_twenty", 0.2)] {
        let seen = stacks.share_of_leaf(name);
        assert!((seen - share).abs() < 0.06, "{name}: {seen}");
        let reported =
            data.report()?.iter().find(|(n, _)| n == name).map_or(0.0, |(_, p)| p / 100.0);
        assert!((seen - reported).abs() < 0.01, "{name}: script {seen}, report {reported}");
    }
    assert!(stacks.share_with("descend") > 0.99);
    Ok(())
}

#[test]
fn a_silent_file_system_answers_until_it_is_silenced() -> Result<()> {
    let _machine = machine::beside_others()?;
    let files = fuse::SilentFileSystem::with_program(&targets::c("shares").build()?)?;
    let mut target = Running::start(&files.program(), &["20"])?;
    target.wait_until_used(0.05)?;
    assert!(target.is_alive(), "the program on FUSE ended");
    files.fall_silent();
    let path = files.program();
    let reader = std::thread::spawn(move || std::fs::read(path).is_ok());
    std::thread::sleep(Duration::from_millis(500));
    assert!(!reader.is_finished(), "a read from the silent file system came back");
    drop(target);
    drop(files);
    assert!(!reader.join().unwrap_or(true), "a read after the end succeeded");
    Ok(())
}

#[test]
fn hidden_and_contained_programs_run_out_of_sight() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").named("shares_static").flag("-static").build()?;
    let folder = tempfile::tempdir()?;
    let hidden = namespaces::hidden(&program, "hidden_one", "20", folder.path())?;
    assert!(std::fs::read_dir(folder.path())?.next().is_none(), "the host sees the hidden program");
    drop(hidden);
    let container = namespaces::Container::start(&program, "contained", &["20"])?;
    let pid = container.pid()?;
    let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    println!("container {} pid {pid}:\n{group}", container.id);
    assert!(group.contains(&container.id));
    drop(container);
    wait_until("the container is gone", PATIENCE, || namespaces::pid_of("contained").is_none())?;
    Ok(())
}

#[test]
fn node_java_and_python_targets_run() -> Result<()> {
    let _machine = machine::beside_others()?;
    let node = Running::from_command(runtimes::node(&["0.5"])?)?;
    let _of_node = PerfMaps::of([node.pid()]);
    let node_map = format!("/tmp/perf-{}.map", node.pid());
    let ended = node.wait(PATIENCE)?;
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(std::fs::read_to_string(&node_map)?.contains("burnFifty"));
    let java = Running::from_command(runtimes::java("300")?)?;
    let _of_java = PerfMaps::of([java.pid()]);
    java.wait_until_used(3.0)?; // its methods are compiled
    runtimes::write_java_perf_map(java.pid())?;
    let java_map = format!("/tmp/perf-{}.map", java.pid());
    assert!(std::fs::read_to_string(&java_map)?.contains("Shares.burnFifty"));
    let python = Running::from_command(runtimes::python("shares.py", &["0.3"])?)?;
    let ended = python.wait(PATIENCE)?;
    assert!(ended.status.success() && ended.cpu_seconds("python") > 0.0, "{}", ended.stderr);
    Ok(())
}

#[test]
fn an_edited_elf_still_runs() -> Result<()> {
    let _machine = machine::beside_others()?;
    let program = targets::c("names").build()?;
    let mut copy = elf_edit::ElfCopy::of(&program)?;
    copy.replace_name("placeholder_name_of_40_characters_length", "<script>alert(1)</script>")?;
    copy.overwrite_section(".eh_frame", 0, elf_edit::garbage(7))?;
    copy.claim_section_size(".symtab", 1 << 40)?;
    let folder = tempfile::tempdir()?;
    let path = copy.write(&folder.path().join("hostile"))?;
    let ended = Running::start(&path, &["x", "0.2"])?.wait(PATIENCE)?;
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert_eq!(elf_edit::libc_build_id()?.len(), 40);
    Ok(())
}

#[test]
fn the_readers_read_what_they_should() -> Result<()> {
    let folded = text_outputs::folded("a;b c;d 12\n\nx 1\n")?;
    assert_eq!(folded.first().map(|f| (f.frames.len(), f.count)), Some((3, 12)));
    let svg = "<g><title>a &lt;b&gt; (5 samples, 50%)</title><rect x=\"1\" y=\"3\" width=\"50.0%\" fill=\"x\"/></g>\
               <g><title>all (10 samples, 100%)</title><rect y=\"9\" x=\"1\" width=\"100%\"/></g>";
    let boxes = text_outputs::svg_boxes(svg)?;
    assert_eq!(text_outputs::svg_shares(&boxes).get("a <b>"), Some(&0.5));
    let script = "my prog  12/13 5.0: 1 cpu-clock:\n\t   55d0 f+0x2 (/bin/x)\n\tffffffff81000000 k ([kernel.kallsyms])\n\n";
    let stacks = perf::parse_script(script)?;
    let first = stacks.stacks.first().map(|s| (s.comm().to_string(), s.pid(), s.tid(), s.line()));
    assert_eq!(first, Some(("my prog".to_string(), Some(12), Some(13), "f < k".to_string())));
    let printed = "noise {\n{\"losses\":{\"cut\":3,\"none\":0},\"bpf\":{\"run_count\":7}}\n";
    let found = summary::Summary::find(printed)?;
    assert_eq!(found.losses(), [("cut".to_string(), 3)]);
    assert_eq!(found.number("bpf.run_count")?, 7.0);
    let command = strata::record().and_then(|r| r.seconds(2.5).shell("exit 3").to_command());
    if let Ok(command) = command {
        assert!(format!("{command:?}").contains("\"--duration\" \"2.5\""));
    }
    Ok(())
}

#[test]
fn the_meters_count_what_was_spent() -> Result<()> {
    let _machine = machine::alone()?;
    let _counted = bpf_objects::RunTimes::counted()?;
    let before = bpf_objects::loaded();
    let target = Running::start(&targets::c("recurse").build()?, &["50", "2", "30"])?;
    let bare = BareProgram::start(99)?;
    let mut meter = ProcessMeter::of(target.pid());
    meter.read_cpu();
    let start = meter.cpu_seconds();
    std::thread::sleep(Duration::from_secs(2));
    meter.read_cpu();
    meter.read_memory();
    let (runs, used) = (bare.runs(), meter.cpu_seconds() - start);
    let loaded = Loaded::since(&before);
    println!(
        "bare program: {} runs of {} ns; target: {used:.3} CPU s, {} bytes; new maps: {} bytes",
        runs.count,
        runs.nanoseconds / runs.count.max(1),
        meter.peak_rss,
        loaded.map_bytes()
    );
    assert!(runs.count >= 150 && runs.nanoseconds / runs.count < 100_000);
    assert!(loaded.sampler_runs().count >= runs.count && loaded.map_bytes() >= 1016);
    assert!(used > 0.5 && meter.peak_rss > 100_000);
    Ok(())
}
