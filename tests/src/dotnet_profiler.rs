//! A second CLR profiler (`tests/targets/profiler`), loaded at start or attached, to test
//! coexistence with strata, and for the runtime's own view of waiting threads.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::compile::{OUTPUT, Recipe};
use crate::dotnet_parked::{self, ManagedStack};
use crate::places;
use crate::running::wait_until;

const CLASS: &str = "{7F0A3C52-6B1E-4D0B-9E0A-5D2E1C0B8A11}";

/// The same, as it goes over the wire.
const CLASS_BYTES: [u8; 16] = [
    0x52, 0x3c, 0x0a, 0x7f, 0x1e, 0x6b, 0x0b, 0x4d, 0x9e, 0x0a, 0x5d, 0x2e, 0x1c, 0x0b, 0x8a, 0x11,
];

/// The time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// The profiler of one process, by the file it keeps its counts in.
pub struct SecondProfiler {
    library: PathBuf,
    file: PathBuf,
}

/// What it has seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub state: String,
    pub jit_started: u64,
    pub jit_finished: u64,
    pub modules: u64,
}

impl SecondProfiler {
    /// Compiles it; its files will lie in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        let source = places::target_sources().join("profiler/profiler.c");
        let flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", "-o", OUTPUT];
        let mut arguments: Vec<String> = flags.map(String::from).to_vec();
        arguments.push(source.display().to_string());
        let library = Recipe {
            name: "libtestprofiler.so".to_string(),
            compiler: places::required("gcc", "build-essential")?,
            arguments,
            sources: vec![source],
            directory: places::target_sources(),
            environment: vec![],
            strip: false,
            output_is_a_folder: false,
        }
        .build()?;
        Ok(Self { library, file: folder.join("second-profiler") })
    }

    /// Lets the process of this command load it when it starts.
    pub fn load_into(&self, command: &mut Command) {
        command
            .env("CORECLR_ENABLE_PROFILING", "1")
            .env("CORECLR_PROFILER", CLASS)
            .env("CORECLR_PROFILER_PATH", &self.library)
            .env("STRATA_TEST_PROFILER", &self.file);
    }

    /// Attaches it to a running process of this host, as an ordinary tool would.
    /// Format: docs/design-docs/ipc-protocol.md of dotnet/diagnostics.
    pub fn attach(&self, pid: i32) -> Result<()> {
        let data = self.file.display().to_string().into_bytes();
        let path: Vec<u16> =
            self.library.display().to_string().encode_utf16().chain(std::iter::once(0)).collect();
        let mut payload = 10_u32.to_le_bytes().to_vec();
        payload.extend(CLASS_BYTES);
        payload.extend(u32::try_from(path.len())?.to_le_bytes());
        payload.extend(path.iter().flat_map(|unit| unit.to_le_bytes()));
        payload.extend(u32::try_from(data.len())?.to_le_bytes());
        payload.extend(data);
        let mut request = b"DOTNET_IPC_V1\0".to_vec();
        request.extend(u16::try_from(20 + payload.len())?.to_le_bytes());
        request.extend([3, 1, 0, 0]);
        request.extend(payload);

        let mut socket = UnixStream::connect(diagnostics_socket(pid)?)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(&request)?;
        let mut answer = vec![];
        socket.read_to_end(&mut answer)?;
        let result = answer.get(20..24).and_then(|bytes| bytes.try_into().ok());
        match (answer.get(17), result.map(i32::from_le_bytes)) {
            (Some(0), Some(0)) => Ok(()),
            (_, result) => bail!("attaching the test profiler to {pid}: {result:#x?}, {answer:x?}"),
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> Result<Counts> {
        let text = fs::read_to_string(&self.file)
            .with_context(|| format!("the test profiler wrote no {}", self.file.display()))?;
        let mut counts = Counts::default();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').with_context(|| line.to_string())?;
            match name {
                "state" => counts.state = value.to_string(),
                "jit-started" => counts.jit_started = value.parse()?,
                "jit-finished" => counts.jit_finished = value.parse()?,
                "modules" => counts.modules = value.parse()?,
                _ => bail!("the test profiler wrote {line:?}"),
            }
        }
        Ok(counts)
    }

    /// Waits until it reports this state.
    pub fn wait_for(&self, state: &str) -> Result<()> {
        wait_until(&format!("the test profiler is {state}"), PATIENCE, || {
            self.counts().is_ok_and(|counts| counts.state == state)
        })
    }

    /// The runtime's own view of every managed thread, all stopped meanwhile.
    pub fn snapshot(&self) -> Result<Vec<ManagedStack>> {
        let stacks = self.file.with_added_extension("stacks");
        if stacks.exists() {
            fs::remove_file(&stacks)?;
        }
        self.ask("snapshot")?;
        wait_until("the test profiler has written stacks", PATIENCE, || stacks.exists())?;
        dotnet_parked::read(&stacks)
    }

    /// Has it open a session of the runtime's events, of waits for locks and of allocations.
    pub fn open_events(&self) -> Result<()> {
        self.ask("events")?;
        self.wait_for("listening")
    }

    /// Detaches it.
    pub fn detach(&self) -> Result<()> {
        self.ask("detach")?;
        self.wait_for("detached")
    }

    fn ask(&self, word: &str) -> Result<()> {
        let request = self.file.with_added_extension("request");
        fs::write(&request, word).with_context(|| format!("writing {}", request.display()))
    }
}

/// The socket of a process of this host, in its temporary folder. A killed process leaves its own, and
/// another may have its number: the newest one counts.
pub fn diagnostics_socket(pid: i32) -> Result<PathBuf> {
    let prefix = format!("dotnet-diagnostic-{pid}-");
    let mut newest = None;
    for entry in fs::read_dir(std::env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with("-socket") {
            let made = entry.metadata()?.modified()?;
            if newest.as_ref().is_none_or(|(before, _)| made > *before) {
                newest = Some((made, entry.path()));
            }
        }
    }
    let (_, path) = newest.with_context(|| format!("process {pid} has no diagnostics socket"))?;
    Ok(path)
}
