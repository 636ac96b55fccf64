//! Parses the command line into a [`Command`].
//!
//! Uses `lexopt` and not `clap`, because this crate is compiled before anything else can start.
//! Invariant: `record`, `bench` and `test` pass unknown arguments on unchanged.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::setup::Profile;
use crate::test;

pub enum Command {
    Help(&'static str),
    Setup(Profile),
    Build(BuildOptions),
    Record(Vec<OsString>),
    Test(Vec<OsString>),
    /// Internal: how `test` has cargo start a test program.
    RunTestProgram(Vec<OsString>),
    /// Internal: how that one runs one beside others.
    RelayTestProgram(Vec<OsString>),
    VmTest(VmOptions),
    Bench(Vec<OsString>),
    Fuzz(FuzzOptions),
    Dist,
    /// Of the BPF programs, not of the pure crates.
    CheckArch {
        bpf: bool,
    },
}

/// What `build` makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BuildOptions {
    /// The `strata` binary, and the BPF object first when its sources changed.
    All,
    /// The BPF object alone, even when it is up to date.
    BpfOnly,
    /// The BPF object with its diagnostics (aya-log) compiled in, into the cache directory.
    BpfDebug,
    /// Everything, after proving that the committed object is what its sources give.
    CheckBpf,
}

pub struct VmOptions {
    /// Names or beginnings of releases (`6.1`, `7.2`, `newest`); none for all.
    pub kernels: Vec<String>,
    /// Boot and run the target program only: proves the emulator, not strata.
    pub boot_only: bool,
}

pub struct FuzzOptions {
    /// One target; none for all, one after the other.
    pub target: Option<String>,
    pub time: Duration,
    /// How many targets run at a time.
    pub jobs: usize,
}

const HELP: &str = "\
cargo xtask COMMAND

  record [OPTIONS…]            record with strata (its own options; `record --help`)
  test [--only units|end-to-end] [FILTER…]
                               every test, or those (needs root)
  setup [record|test|bpf|all]  install what is missing for those commands, and say what and why
  build [--bpf-only | --bpf-debug | --check-bpf]
                               the release binary; the BPF object too when its sources changed
  vm-test [--kernel 6.1|6.12|7.2|newest|all]… [--boot-only]
                               strata on other kernels, under emulation
  bench [SCENE… | clr] [OPTIONS…]
                               measure: scenes, beside perf; what .NET programs pay (`bench --help`)
  fuzz [TARGET] [--seconds N] [--jobs N]
                               fuzz one parser, or each (60 seconds each)
  check-arch [--bpf]           the pure crates compile for arm64; --bpf: the BPF programs do
  dist                         a stripped release binary in a tar archive, with licences

Downloads and tools go to .cache/ (or $STRATA_CACHE), which git ignores.
";

pub fn parse() -> Result<Command> {
    let mut words = lexopt::Parser::from_env();
    let Some(word) = words.next()? else { return Ok(Command::Help(HELP)) };
    let name = match word {
        Short('h') | Long("help") => return Ok(Command::Help(HELP)),
        Value(name) => name.string()?,
        other => return Err(other.unexpected().into()),
    };
    match name.as_str() {
        "help" => Ok(Command::Help(HELP)),
        "record" => Ok(Command::Record(words.raw_args()?.collect())),
        "test" => Ok(Command::Test(words.raw_args()?.collect())),
        test::RUN_PROGRAM => Ok(Command::RunTestProgram(words.raw_args()?.collect())),
        test::aside::RELAY => Ok(Command::RelayTestProgram(words.raw_args()?.collect())),
        "bench" => Ok(Command::Bench(words.raw_args()?.collect())),
        "setup" => parse_setup(&mut words),
        "build" => parse_build(&mut words),
        "vm-test" => parse_vm_test(&mut words),
        "fuzz" => parse_fuzz(&mut words),
        "check-arch" => match words.next()? {
            None => Ok(Command::CheckArch { bpf: false }),
            Some(Long("bpf")) => Ok(Command::CheckArch { bpf: true }),
            Some(other) => Err(other.unexpected().into()),
        },
        "dist" => match words.next()? {
            None => Ok(Command::Dist),
            Some(other) => Err(other.unexpected().into()),
        },
        other => bail!("no command '{other}'\n\n{HELP}"),
    }
}

fn parse_setup(words: &mut lexopt::Parser) -> Result<Command> {
    let mut profile = Profile::All;
    while let Some(word) = words.next()? {
        match word {
            Short('h') | Long("help") => return Ok(Command::Help(HELP)),
            Value(name) => {
                profile = match name.string()?.as_str() {
                    "record" => Profile::Record,
                    "test" => Profile::Test,
                    "bpf" => Profile::Bpf,
                    "all" => Profile::All,
                    other => bail!("no set-up '{other}': it is record, test, bpf or all"),
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Setup(profile))
}

fn parse_build(words: &mut lexopt::Parser) -> Result<Command> {
    let mut options = BuildOptions::All;
    while let Some(word) = words.next()? {
        let chosen = match word {
            Short('h') | Long("help") => return Ok(Command::Help(HELP)),
            Long("bpf-only") => BuildOptions::BpfOnly,
            Long("bpf-debug") => BuildOptions::BpfDebug,
            Long("check-bpf") => BuildOptions::CheckBpf,
            other => return Err(other.unexpected().into()),
        };
        if options != BuildOptions::All && options != chosen {
            bail!("--bpf-only, --bpf-debug and --check-bpf exclude each other");
        }
        options = chosen;
    }
    Ok(Command::Build(options))
}

fn parse_vm_test(words: &mut lexopt::Parser) -> Result<Command> {
    let mut options = VmOptions { kernels: Vec::new(), boot_only: false };
    while let Some(word) = words.next()? {
        match word {
            Short('h') | Long("help") => return Ok(Command::Help(HELP)),
            Long("kernel") => {
                let name = words.value()?.string()?;
                match name.as_str() {
                    "all" => options.kernels.clear(),
                    _ => options.kernels.push(name),
                }
            }
            Long("boot-only") => options.boot_only = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::VmTest(options))
}

fn parse_fuzz(words: &mut lexopt::Parser) -> Result<Command> {
    let mut options = FuzzOptions { target: None, time: Duration::from_secs(60), jobs: 1 };
    while let Some(word) = words.next()? {
        match word {
            Short('h') | Long("help") => return Ok(Command::Help(HELP)),
            Long("seconds") => options.time = Duration::from_secs(words.value()?.parse()?),
            Long("jobs") => options.jobs = words.value()?.parse::<usize>()?.max(1),
            Value(name) if options.target.is_none() => options.target = Some(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Fuzz(options))
}
