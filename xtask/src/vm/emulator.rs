//! One guest under QEMU's own emulation (never KVM), from boot to power-off.
//!
//! Invariant: the emulator is killed at its time limit, and its console output is kept.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::transcript::Transcript;
use crate::run::Progress;

/// A boot takes 3 s and the whole guest two minutes on an idle machine of two cores; with as much to
/// do beside it, five: the kernel's verifier computes, and is emulated.
pub const TIME_LIMIT: Duration = Duration::from_secs(540);
const POLL: Duration = Duration::from_millis(100);
const CONSOLE_LINES: usize = 30;

/// Boots `kernel` with `initrd`; what the guest wrote to its second port.
pub fn boot(release: &str, kernel: &Path, initrd: &Path, directory: &Path) -> Result<Transcript> {
    fs::create_dir_all(directory)?;
    let console = directory.join("console.txt");
    let words = directory.join("transcript.txt");
    for stale in [&console, &words] {
        fs::write(stale, "")?;
    }
    let mut qemu = Command::new("qemu-system-x86_64");
    // One thread for all virtual CPUs: with one each, QEMU 7.2 now and then runs an `int3` that
    // the kernel had put into its own text only until the other CPUs agreed on a patch.
    qemu.args([
        "-accel",
        "tcg,thread=single",
        "-m",
        "1024",
        "-smp",
        "2",
        "-nodefaults",
        "-display",
        "none",
    ])
    .arg("-no-reboot")
    .arg("-kernel")
    .arg(kernel)
    .arg("-initrd")
    .arg(initrd)
    .args(["-append", "console=ttyS0 quiet panic=-1"])
    .arg("-serial")
    .arg(port(&console))
    .arg("-serial")
    .arg(port(&words))
    .stdin(Stdio::null())
    .stdout(Stdio::null())
    .stderr(fs::File::create(directory.join("qemu.txt"))?);

    let label = format!("Linux {release}");
    let progress = Progress::start(&label);
    let start = Instant::now();
    let mut child = qemu.spawn().context("cannot start qemu-system-x86_64")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > TIME_LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        progress.tick();
        thread::sleep(POLL);
    };
    progress.done(if status.is_some() { "booted, ran, powered off" } else { "stopped" });

    let transcript = Transcript::parse(&fs::read(&words)?);
    if !transcript.is_complete() {
        let how = match status {
            None => format!("the guest did not finish within {} s", TIME_LIMIT.as_secs()),
            Some(status) => format!("the guest ended before its script did (qemu: {status})"),
        };
        let qemu = fs::read_to_string(directory.join("qemu.txt")).unwrap_or_default();
        let place = transcript.place();
        bail!("{how}: {place}\n{qemu}{}\n{}", end_of(&console), end_of(&words));
    }
    Ok(transcript)
}

fn port(file: &Path) -> String {
    // A comma ends a value in QEMU's option syntax; doubled, it is itself.
    format!("file:{}", file.display().to_string().replace(',', ",,"))
}

fn end_of(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(CONSOLE_LINES);
    lines.iter().skip(skipped).map(|line| format!("  | {line}\n")).collect()
}
