//! The memory that very many methods take: in the program, where the bridge records them, and in
//! strata, which keeps them to symbolize samples.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use strata_clr::session::{Budget, Count};
use strata_clr::{AttachOptions, Session};

use crate::bench::figure::Figure;
use crate::bench::meters::ProcessMeter;
use crate::running::Running;
use crate::runtimes::{self, Version};
use crate::strata;

const PART: &str = "method-map";
const COUNTS: [u32; 2] = [12_500, 100_000];
/// The memory that strata takes for a process without many methods is not the map's.
const FEW: u32 = 10;
/// To compile, or to read, all of them.
const PATIENCE: Duration = Duration::from_secs(300);
const STAYS: &str = "3600";
const RECORDING: f64 = 6.0;

/// Bytes.
struct InProgram {
    methods: u64,
    log: u64,
    shared: i64,
    private: i64,
}

/// Measures this part.
pub fn measure() -> Result<Vec<Figure>> {
    let few = strata_bytes(&program(FEW)?)?;
    let mut figures = Vec::new();
    for count in COUNTS {
        let program = program(count)?;
        let found = in_program(&program)?;
        let methods = found.methods as f64;
        let megabytes = |bytes: f64| bytes / 1e6;
        figures.push(
            Figure::new(PART, format!("{count}: log"), megabytes(found.log as f64), "MB").note(
                format!(
                    "{} methods published, {:.0} bytes each",
                    found.methods,
                    found.log as f64 / methods
                ),
            ),
        );
        figures.push(
            Figure::new(
                PART,
                format!("{count}: the program's memory"),
                megabytes((found.shared + found.private) as f64),
                "MB",
            )
            .note(format!(
                "{:.2} MB shared with strata, {:.2} MB private: with the library and its thread",
                megabytes(found.shared as f64),
                megabytes(found.private as f64)
            )),
        );
        let more = strata_bytes(&program)? as f64 - few as f64;
        figures.push(
            Figure::new(PART, format!("{count}: strata's memory"), megabytes(more), "MB").note(
                format!(
                    "{:.0} bytes each, beyond {:.1} MB without",
                    more / methods,
                    few as f64 / 1e6
                ),
            ),
        );
    }
    Ok(figures)
}

fn program(count: u32) -> Result<Running> {
    let arguments = ["generics", &count.to_string(), STAYS];
    let command = runtimes::dotnet()?.program(Version::V9, "ManyMethods", &arguments)?;
    let mut running = Running::from_command(command)?;
    running.wait_for_line("ready", PATIENCE)?;
    Ok(running)
}

fn in_program(program: &Running) -> Result<InProgram> {
    let pid = u32::try_from(program.pid())?;
    let before = resident(pid)?;
    let mut session = strata_clr::attach(pid, &AttachOptions::default())?.session;
    read_all(&mut session)?;
    let after = resident(pid)?;
    let status = session.status().clone();
    session.detach_and_wait(PATIENCE, Budget::default(), drop)?;
    let difference = |of: fn(&Resident) -> u64| of(&after) as i64 - of(&before) as i64;
    Ok(InProgram {
        methods: status.count(Count::Methods).max(1),
        log: (0..status.segments).map(|segment| status.committed(segment)).sum(),
        shared: difference(|r| r.shared),
        private: difference(|r| r.private),
    })
}

fn read_all(session: &mut Session) -> Result<()> {
    let start = Instant::now();
    while !session.is_enumerated() {
        if start.elapsed() > PATIENCE {
            bail!("the bridge did not tell everything in {PATIENCE:?}");
        }
        if !session.look_and_poll(Budget::default())?.more {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // The status is looked at every 20 ms at most.
    std::thread::sleep(Duration::from_millis(30));
    session.look_and_poll(Budget::default())?;
    Ok(())
}

struct Resident {
    private: u64,
    shared: u64,
}

fn resident(pid: u32) -> Result<Resident> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let bytes = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
        Ok(line.split_whitespace().next().context("a number")?.parse::<u64>()? << 10)
    };
    Ok(Resident { private: bytes("RssAnon:")? + bytes("RssFile:")?, shared: bytes("RssShmem:")? })
}

/// The most that strata has resident while it records the program.
fn strata_bytes(program: &Running) -> Result<u64> {
    let mut recording =
        strata::record()?.pid(program.pid()).frequency(97).seconds(3600.0).start()?;
    let mut meter = ProcessMeter::of(recording.running().pid());
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < RECORDING {
        meter.read_memory();
        std::thread::sleep(Duration::from_millis(250));
    }
    recording.running().signal(Signal::INT)?;
    recording.finish()?;
    Ok(meter.peak_rss)
}
