//! .NET programs in namespaces of their own: attached to and symbolized; and the few cases where
//! attaching may be refused.

use std::process::Command;

use anyhow::{Context, Result};
use strata_tests::running::{PerfMaps, Running, wait_until};
use strata_tests::runtimes::{DotNet, Version, dotnet};
use strata_tests::stacks::Frame;
use strata_tests::{machine, places, strata};

use crate::dotnet_running::{
    Clr, FREQUENCY, PATIENCE, Wrongs, listed, print_examples, start_command,
};

/// A user id without an account on this host.
const USER: &str = "4321";

/// A program in user, PID and mount namespaces of its own, after a script has arranged its mounts.
struct Contained {
    _running: Running,
    pid: i32,
}

impl Contained {
    fn start(dotnet: &DotNet, version: Version, arrange: &str) -> Result<Self> {
        let program = dotnet.program(version, "Shares", &["600"])?;
        // Visible at a place that the script does not cover, and where every user reaches it.
        let cache = places::cache("")?;
        let cache = cache.to_string_lossy();
        let cache = cache.trim_end_matches('/');
        let visible =
            |word: &std::ffi::OsStr| word.to_string_lossy().replace(cache, places::CACHE_INSIDE);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", visible(word));
        let mut words = vec![quoted(program.get_program())];
        words.extend(program.get_args().map(quoted));
        let script = format!("{arrange} && cd / && exec {}", words.join(" "));
        let mut command = Command::new(places::required("unshare", "util-linux")?);
        let inside = places::CACHE_INSIDE;
        let bind = format!("mount --rbind '{cache}' {inside} && exec \"$@\"");
        command.args(["--mount", "/bin/sh", "-c", &bind, "sh", "setpriv"]);
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "unshare"]);
        command.args(["--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child"]);
        command.args(["/bin/sh", "-c", &script]).env("HOME", "/").env_remove("TMPDIR");
        for (name, value) in program.get_envs() {
            command.env(name, visible(value.unwrap_or_default()));
        }
        let running = start_command(command)?;
        let outer = running.pid();
        let mut pid = None;
        wait_until("the program is a child", PATIENCE, || {
            let children = format!("/proc/{outer}/task/{outer}/children");
            let text = std::fs::read_to_string(children).unwrap_or_default();
            pid = text.split_whitespace().next().and_then(|word| word.parse().ok());
            pid.is_some()
        })?;
        Ok(Self { _running: running, pid: pid.context("no child")? })
    }
}

#[test]
fn a_program_in_namespaces_with_a_read_only_root_is_attached_to_and_named() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let arrange =
            "mount -t tmpfs none /tmp && mount -t proc none /proc && mount -o remount,bind,ro /";
        let app = Contained::start(&dotnet, version, arrange)?;
        let record = strata::record()?.frequency(FREQUENCY).pid(app.pid).start()?;
        let recorded = record.finish_when_used(&[app.pid], 2.0)?;
        let (clr, own) = (Clr::of(&recorded)?, recorded.stacks()?.of_pid(app.pid));
        let named = own.share_that(|stack| stack.has("Shares.Main") && stack.has("Shares.Turn"));
        println!(
            "{version}: {} samples, {named:.3} named, complete {}, {clr:?}",
            own.total(),
            own.completeness()
        );
        print_examples(&own.that(|stack| !stack.has("Shares.Main")), 1);
        wrongs.unless(clr.came_and_left_once() && named > 0.9 && own.total() > 1000, || {
            format!("{version}: {named} of {} named, {clr:?}", own.total())
        });
        // Nothing of strata's is left in its temporary folder.
        let inside = format!("/proc/{}/root/tmp", app.pid);
        let left: Vec<_> = std::fs::read_dir(inside)?.flatten().map(|e| e.file_name()).collect();
        println!("  left in /tmp: {left:?}");
        wrongs.unless(left.iter().all(|name| !name.to_string_lossy().contains("strata")), || {
            format!("{version}: left {left:?}")
        });
    }
    wrongs.none();
    Ok(())
}

/// The summary's and the list's entries for a process that the bridge cannot be loaded into; its
/// samples and native frames are present all the same.
fn refusal_of(pid: i32) -> Result<(String, String)> {
    let row = listed(pid)?.context("strata ps does not list it")?;
    let recording = strata::record()?.frequency(FREQUENCY).pid(pid).start()?;
    let recorded = recording.finish_when_used(&[pid], 1.5)?;
    let (clr, own) = (Clr::of(&recorded)?, recorded.stacks()?.of_pid(pid));
    println!("  {} samples, {clr:?}\n  {row}", own.total());
    assert!(own.total() > 500 && clr.attached == 0, "{} samples, {clr:?}", own.total());
    let why = clr.why_not(pid).context("no reason")?.to_string();
    Ok((why, row["refused"].as_str().unwrap_or_default().to_string()))
}

#[test]
fn no_place_to_execute_from_is_a_reason() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let arrange = "for at in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o noexec none $at || exit 1; done \
            && mount -o remount,bind,ro /";
        let app = Contained::start(&dotnet, version, arrange)?;
        println!("{version}:");
        let (why, _) = refusal_of(app.pid)?;
        wrongs.unless(why.contains("noexec"), || format!("{version}: {why}"));
    }
    wrongs.none();
    Ok(())
}

/// The names that methods have by the bridge, from the map that the runtime writes itself.
#[test]
fn a_perf_map_names_methods_where_diagnostics_are_switched_off() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["600"])?;
        for (name, value) in [("EnableDiagnostics", "0"), ("PerfMapEnabled", "1")] {
            command.env(format!("COMPlus_{name}"), value).env(format!("DOTNET_{name}"), value);
        }
        let app = start_command(command)?;
        let _maps = PerfMaps::of([app.pid()]);
        app.wait_until_used(2.0)?;
        let recording = strata::record()?.frequency(FREQUENCY).pid(app.pid()).start()?;
        let recorded = recording.finish_when_used(&[app.pid()], 1.5)?;
        let (clr, own) = (Clr::of(&recorded)?, recorded.stacks()?.of_pid(app.pid()));
        let is_named =
            |frame: &Frame| frame.name.starts_with("Shares.") && frame.file == "Shares.dll";
        let named = own.share_that(|stack| stack.frames.iter().any(is_named));
        println!(
            "{version}: {} samples, {:.2} % below methods, {clr:?}",
            own.total(),
            100.0 * named
        );
        for stack in own.stacks.iter().take(2) {
            println!("  {} x {}", stack.count, stack.line());
        }
        wrongs.unless(own.total() > 500 && named > 0.95, || format!("{version}: {named}"));
        let why = clr.why_not(app.pid()).unwrap_or_default();
        wrongs.unless(why.contains("its perf map is read"), || format!("{version}: {why}"));
    }
    wrongs.none();
    Ok(())
}

#[test]
fn diagnostics_switched_off_are_a_reason() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let mut wrongs = Wrongs::default();
    for version in dotnet.versions() {
        let mut command = dotnet.program(version, "Shares", &["600"])?;
        // What 3.1 reads has the older prefix; newer ones read both.
        command.env("COMPlus_EnableDiagnostics", "0").env("DOTNET_EnableDiagnostics", "0");
        let app = start_command(command)?;
        println!("{version}:");
        let (why, listed) = refusal_of(app.pid())?;
        for output in [&why, &listed] {
            wrongs
                .unless(output.contains("EnableDiagnostics"), || format!("{version}: {output:?}"));
        }
    }
    wrongs.none();
    Ok(())
}

/// A program in a memory control group of the first version. Dropped in this order: the group can be removed once it
/// is empty.
struct Limited {
    program: Running,
    group: MemoryGroup,
}

impl Limited {
    fn of(program: Running) -> Result<Self> {
        let pid = program.pid();
        let path = std::path::Path::new("/sys/fs/cgroup/memory").join(format!("strata-room-{pid}"));
        std::fs::create_dir(&path)?;
        let limited = Self { program, group: MemoryGroup(path) };
        limited.group.write("cgroup.procs", &pid.to_string())?;
        Ok(limited)
    }
}

struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    fn write(&self, file: &str, text: &str) -> Result<()> {
        std::fs::write(self.0.join(file), text).with_context(|| format!("{file}: {text}"))
    }

    /// Leaves so much room beside what is in use and cannot be taken back.
    fn leave(&self, room: u64) -> Result<()> {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file));
        let used: u64 = read("memory.usage_in_bytes")?.trim().parse()?;
        let text = read("memory.stat")?;
        let cached = text.lines().filter_map(|line| {
            let bytes = line.strip_prefix("total_active_file ");
            bytes.or_else(|| line.strip_prefix("total_inactive_file "))?.parse::<u64>().ok()
        });
        let limit = (used + room).saturating_sub(cached.sum());
        self.write("memory.limit_in_bytes", &limit.to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Of a process that has been killed before.
        let gone = || std::fs::remove_dir(&self.0).is_ok();
        _ = wait_until("the group is empty", PATIENCE, gone);
    }
}

/// A program whose memory control group is nearly full: attaching might have the kernel end it. Once the group has
/// room, it is attached to.
#[test]
fn a_program_without_room_in_its_memory_group_is_left_alone() -> Result<()> {
    let _machine = machine::beside_dotnet()?;
    let dotnet = dotnet()?;
    let [.., version, _] = dotnet.versions();
    if !std::path::Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        strata_skip::skipped!("no memory control groups of the first version here");
        return Ok(());
    }
    let mut limited = Limited::of(start_command(dotnet.program(version, "Shares", &["600"])?)?)?;
    let pid = limited.program.pid();
    limited.program.wait_until_used(2.0)?;
    let record = || -> Result<_> {
        strata::record()?
            .frequency(FREQUENCY)
            .pid(pid)
            .option("-e", "cpu,exceptions")
            .seconds(4.0)
            .run()
    };
    for (room, is_attached) in [(5 << 20, false), (256 << 20, true)] {
        limited.group.leave(room)?;
        let recorded = record()?;
        assert!(limited.program.is_alive(), "the program was ended");
        let clr = Clr::of(&recorded)?;
        println!("{room} bytes: {clr:?}");
        let why = clr.why_not(pid).unwrap_or_default();
        assert_eq!(
            (clr.attached == 1, why.contains("memory control group")),
            (is_attached, !is_attached)
        );
    }
    Ok(())
}
