//! Hostile files: a target's files may block, lie, shrink or be endless; only its own data suffer.
//!
//! Beside each hostile process runs a benign one whose stacks must be complete and symbolized, and
//! the recording must end.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode};
use strata_tests::elf_edit::{self, ElfCopy};
use strata_tests::fuse::SilentFileSystem;
use strata_tests::running::Running;
use strata_tests::strata::Recorded;
use strata_tests::{machine, strata, targets};

/// Checks the good process, and that the hostile one was sampled too.
fn check(recorded: &Recorded, good: &Running, hostile: &Running) -> Result<()> {
    let stacks = recorded.stacks()?;
    let own = stacks.of_pid(good.pid());
    let theirs = stacks.of_pid(hostile.pid());
    println!("good: {} samples, complete {}", own.total(), own.completeness());
    // Whether its stacks are complete is not checked: that would read its file, which may block the
    // test.
    println!("hostile: {} samples", theirs.total());
    recorded.print_losses();
    assert!(own.total() > 200 && own.completeness().fraction() > 0.995);
    assert!(own.share_with("descend") > 0.99, "the good process lost its names");
    assert!(theirs.total() > 200, "the hostile process is not there at all");
    Ok(())
}

fn good() -> Result<Running> {
    Running::start(&targets::c("shares").named("good").build()?, &["300"])
}

#[test]
fn a_fuse_mount_that_never_answers_stalls_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let files = SilentFileSystem::with_program(&targets::c("shares").build()?)?;
    let hostile = Running::start(&files.program(), &["300"])?;
    hostile.wait_until_used(0.1)?;
    files.fall_silent();
    let recording = strata::record()?.frequency(997).start()?;
    // Starts after the silence: it needs tables while the hostile file is being waited for.
    let good = good()?;
    let recorded = recording.finish_when_used(&[good.pid(), hostile.pid()], 1.5)?;
    check(&recorded, &good, &hostile)
}

#[test]
fn a_fifo_in_place_of_the_program_stalls_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("program");
    std::fs::copy(targets::c("shares").build()?, &path)?;
    let hostile = Running::start(&path, &["300"])?;
    hostile.wait_until_used(0.05)?;
    std::fs::remove_file(&path)?;
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
    let good = good()?;
    let recorded = strata::record()?
        .frequency(997)
        .start()?
        .finish_when_used(&[good.pid(), hostile.pid()], 1.5)?;
    check(&recorded, &good, &hostile)
}

#[test]
fn a_ten_gigabyte_elf_costs_neither_memory_nor_time() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let mut copy = ElfCopy::of(&targets::c("shares").build()?)?;
    for section in [".symtab", ".strtab", ".eh_frame", ".dynsym", ".dynstr"] {
        copy.claim_section_size(section, 9 << 30)?;
    }
    let path = copy.write(&folder.path().join("sparse"))?;
    File::options().write(true).open(&path)?.set_len(10 << 30)?;
    let hostile = Running::start(&path, &["300"])?;
    let good = good()?;
    let mut recording = strata::record()?.frequency(997).seconds(5.0).start()?;
    let pid = recording.running().pid();
    let mut peak = 0;
    while recording.running().is_alive() {
        peak = peak.max(memory_with_children(pid));
        std::thread::sleep(Duration::from_millis(50));
    }
    let recorded = recording.finish()?;
    println!("at most {} MB resident", peak >> 20);
    assert!(peak < 512 << 20, "{peak} bytes");
    check(&recorded, &good, &hostile)
}

fn memory_with_children(pid: i32) -> u64 {
    let resident = |pid: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
    };
    let children =
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    resident(&pid.to_string()) + children.split_whitespace().map(resident).sum::<u64>()
}

#[test]
fn a_file_that_shrinks_while_it_is_read_kills_no_process() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libshrinks.so");
    // Big enough to be read for a while.
    std::fs::copy(places_of_a_big_library()?, &library)?;
    let hostile =
        Running::start(&targets::c("shrinking").build()?, &[&library.to_string_lossy(), "300"])?;
    let good = good()?;
    let recorded = strata::record()?
        .frequency(997)
        .start()?
        .finish_when_used(&[good.pid(), hostile.pid()], 1.5)?;
    check(&recorded, &good, &hostile)
}

fn places_of_a_big_library() -> Result<std::path::PathBuf> {
    let candidates = ["/lib/x86_64-linux-gnu/libcrypto.so.3", "/lib/x86_64-linux-gnu/libc.so.6"];
    let found = candidates.iter().map(Path::new).find(|p| p.exists());
    Ok(found.context("a library to copy")?.to_path_buf())
}

#[test]
fn an_elf_that_claims_libcs_build_id_poisons_nothing() -> Result<()> {
    let _machine = machine::beside_others()?;
    let id = elf_edit::libc_build_id()?;
    let impostor =
        targets::c("alloca").named("impostor").flag(format!("-Wl,--build-id=0x{id}")).build()?;
    assert_eq!(ElfCopy::of(&impostor)?.build_id()?, id);
    // The impostor is there first: its tables and names are made before libc's are needed.
    let hostile = Running::start(&impostor, &["300"])?;
    hostile.wait_until_used(0.05)?;
    let recording = strata::record()?.frequency(997).start()?;
    let good = good()?;
    let recorded = recording.finish_when_used(&[good.pid(), hostile.pid()], 1.5)?;
    check(&recorded, &good, &hostile)?;
    let stacks = recorded.stacks()?;
    let own = stacks.of_pid(good.pid());
    assert!(own.share_with("alloca_descend") == 0.0, "the impostor's names in another process");
    let theirs = stacks.of_pid(hostile.pid());
    println!("impostor: {:.4} with its own names", theirs.share_with("alloca_descend"));
    assert!(theirs.share_with("alloca_descend") > 0.98 && theirs.completeness().fraction() > 0.98);
    // And the other way round: libc known first, the impostor after.
    let recording = strata::record()?.frequency(997).start()?;
    let late = Running::start(&impostor, &["300"])?;
    let theirs = recording.finish_when_used(&[late.pid()], 1.5)?.stacks()?.of_pid(late.pid());
    println!("late impostor: {:.4} with its own names", theirs.share_with("alloca_descend"));
    assert!(theirs.share_with("alloca_descend") > 0.97);
    Ok(())
}

#[test]
fn links_in_a_targets_root_lead_nowhere_else() -> Result<()> {
    let _machine = machine::beside_others()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("linked");
    std::fs::copy(targets::c("shares").build()?, &path)?;
    let hostile = Running::start(&path, &["300"])?;
    hostile.wait_until_used(0.05)?;
    std::fs::remove_file(&path)?;
    // Opening this device would start reading a terminal or block.
    std::os::unix::fs::symlink("/dev/tty", &path)?;
    let good = good()?;
    let recorded = strata::record()?
        .frequency(997)
        .start()?
        .finish_when_used(&[good.pid(), hostile.pid()], 1.5)?;
    check(&recorded, &good, &hostile)
}
