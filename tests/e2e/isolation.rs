//! Processes in namespaces of their own, and in a container: symbolised by their own files, and
//! labelled with where they run.

use anyhow::{Context, Result};
use rustix::process::Signal;
use strata_tests::daemon::PATIENCE;
use strata_tests::{machine, namespaces, strata, targets};

#[test]
fn a_program_only_its_own_namespace_can_see_is_symbolised() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let _hidden =
        namespaces::hidden(&targets::c("shares").build()?, "hidden_prog", "60", folder.path())?;
    let pid = namespaces::pid_of("hidden_prog").context("the hidden program")?;
    let recorded = strata::record()?.frequency(997).start()?.finish_when_used(&[pid], 1.5)?;
    let own = recorded.stacks()?.of_pid(pid);
    let named = own.share_that(|s| s.has("descend") && s.has("main"));
    println!("{} samples, {named:.4} named; complete {}", own.total(), own.completeness());
    assert!(own.total() > 200 && named > 0.99 && own.completeness().fraction() > 0.995);
    Ok(())
}

#[test]
fn a_hidden_program_that_starts_while_recording_is_symbolised() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let mut recording = strata::record()?.frequency(997).start()?;
    let hidden =
        namespaces::hidden(&targets::c("shares").build()?, "hidden_late", "4", folder.path())?;
    // It and its files are gone when the recording ends.
    assert!(hidden.wait(PATIENCE)?.status.success());
    recording.running().signal(Signal::INT)?;
    let own = recording.finish()?.stacks()?.of_comm("hidden_late");
    let named = own.share_that(|s| s.has("descend") && s.has("main"));
    println!("{} samples, {named:.4} named; complete {}", own.total(), own.completeness());
    assert!(own.total() > 200 && named > 0.97);
    Ok(())
}

#[test]
fn a_containers_samples_carry_its_id() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").named("shares_static").flag("-static").build()?;
    let container = namespaces::Container::start(&program, "contained", &["60"])?;
    let pid = container.pid()?;
    let recorded = strata::record()?.frequency(997).start()?.finish_when_used(&[pid], 1.5)?;
    let own = recorded.stacks()?.of_pid(pid);
    let named = own.share_that(|s| s.has("descend") && s.has("main"));
    let labelled = own.share_that(|s| {
        s.labels.values().any(|v| {
            v.contains(&container.id) || (v.len() >= 12 && container.id.starts_with(v.as_str()))
        })
    });
    println!(
        "{} samples, {named:.4} named, {labelled:.4} with the container's id; complete {}",
        own.total(),
        own.completeness()
    );
    println!("labels: {:?}", own.stacks.first().map(|s| &s.labels));
    assert!(own.total() > 200 && named > 0.99 && labelled > 0.99);
    let outside = recorded.stacks()?.that(|s| s.pid() != Some(pid));
    let wrong = outside.that(|s| s.labels.values().any(|v| v.contains(&container.id)));
    assert!(wrong.total() == 0, "samples from outside carry the container's id");
    Ok(())
}

#[test]
fn one_container_can_be_recorded_alone() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("shares").named("shares_static").flag("-static").build()?;
    let container = namespaces::Container::start(&program, "contained", &["60"])?;
    let pid = container.pid()?;
    let _other = strata_tests::running::Running::start(&targets::c("shares").build()?, &["30"])?;
    for option in ["--container", "--cgroup"] {
        let recorded =
            strata::record()?.frequency(997).seconds(2.0).option(option, &container.id).run()?;
        let stacks = recorded.stacks()?;
        let others = stacks.that(|s| s.pid() != Some(pid)).total();
        println!(
            "{option}: {} samples of the container, {others} of others",
            stacks.of_pid(pid).total()
        );
        assert!(stacks.of_pid(pid).total() > 200 && others == 0);
    }
    Ok(())
}
