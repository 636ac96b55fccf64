//! Functions whose return another tool's probe waits for: the kernel has put the address of its trampoline
//! in the place of their return addresses, and stacks go on all the same.

use std::ffi::CString;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSegment, ObjectSymbol};
use strata_tests::running::Running;
use strata_tests::{machine, strata, targets};

const DEPTH: usize = 12;

/// A probe of a function's return, in every process: as tracing tools have it (`perf probe name%return`).
struct ReturnProbe(#[expect(dead_code, reason = "held open")] OwnedFd);

impl ReturnProbe {
    fn open(program: &Path, function: &str) -> Result<Self> {
        const PMU: &str = "/sys/bus/event_source/devices/uprobe";
        let kind: u32 = fs::read_to_string(format!("{PMU}/type"))?.trim().parse()?;
        let bit = fs::read_to_string(format!("{PMU}/format/retprobe"))?;
        let bit: u32 = bit.trim().strip_prefix("config:").context("its format")?.parse()?;
        let path = CString::new(program.as_os_str().as_bytes())?;
        let mut attributes = [0_u8; 128];
        let mut set = |at: usize, bytes: &[u8]| {
            attributes[at..at + bytes.len()].copy_from_slice(bytes);
        };
        set(0, &kind.to_le_bytes());
        set(4, &128_u32.to_le_bytes());
        set(8, &(1_u64 << bit).to_le_bytes());
        set(56, &(path.as_ptr() as u64).to_le_bytes());
        set(64, &file_offset(program, function)?.to_le_bytes());
        // SAFETY: attributes of the size that they state; the path outlives the call.
        let opened = unsafe {
            libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), -1, 0, -1, 8_u64)
        };
        ensure!(opened >= 0, "a probe: {}", std::io::Error::last_os_error());
        // SAFETY: just opened.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(i32::try_from(opened)?) }))
    }
}

fn file_offset(program: &Path, function: &str) -> Result<u64> {
    let bytes = fs::read(program)?;
    let file = object::File::parse(bytes.as_slice())?;
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function));
    let address = symbol.with_context(|| format!("no {function}"))?.address();
    let segment = file
        .segments()
        .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&address))
        .context("no segment")?;
    Ok(address - segment.address() + segment.file_range().0)
}

#[test]
fn stacks_go_on_above_functions_whose_return_a_probe_waits_for() -> Result<()> {
    let _machine = machine::alone()?;
    let program = targets::c("recurse").build()?;
    // Each level has one, and the leaf two.
    let probed = ["recurse", "recurse_leaf", "recurse_leaf"];
    let _probes: Vec<ReturnProbe> =
        probed.iter().map(|name| ReturnProbe::open(&program, name)).collect::<Result<_>>()?;
    let mut command = Command::new(&program);
    command.args([&DEPTH.to_string(), "1", "60"]);
    let running = Running::from_command(command)?;
    let record = || Ok::<_, anyhow::Error>(strata::record()?.pid(running.pid()).frequency(199));
    let recorded = record()?.seconds(4.0).run()?;
    recorded.print_losses();
    // The kernel maps this area when a process hits its first probe: all samples were taken with the probes.
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid()))?;
    assert!(maps.contains("[uprobes"), "no probe was hit: {maps}");
    let stacks = recorded.stacks()?.of_pid(running.pid());
    let completeness = stacks.completeness();
    println!("{completeness}");
    assert!(stacks.total() > 300, "{} samples", stacks.total());
    // Copied stacks, of the first moments, have no list of what was replaced.
    assert!(completeness.fraction() > 0.97, "{completeness}");
    // Others are on their way in or out.
    let deep = stacks.that(|stack| stack.leaf_function() == "recurse_leaf");
    let whole = deep.share_that(|stack| stack.times("recurse") == DEPTH);
    println!("{whole:.3} of {} have {DEPTH} levels", deep.total());
    assert!(deep.total() > 200 && whole > 0.97, "{whole} of {}", deep.total());
    // As many frames as may be, each of which is looked up twice.
    let most = (DEPTH + 2).to_string();
    let recorded = record()?.option("--max-frames", &most).seconds(2.0).run()?;
    let stacks = recorded.stacks()?.of_pid(running.pid());
    let deep = stacks.that(|stack| stack.leaf_function() == "recurse_leaf");
    let whole = deep.share_that(|stack| stack.times("recurse") == DEPTH);
    println!("{whole:.3} of {} with {most} frames have {DEPTH} levels", deep.total());
    assert!(deep.total() > 100 && whole > 0.97, "{whole} of {}", deep.total());
    Ok(())
}
