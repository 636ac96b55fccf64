//! The standard scenes: the load on the machine while a profiler is measured.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::running::Running;
use crate::{places, runtimes, targets};

/// A scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scene {
    /// Nothing runs.
    Idle,
    /// C without frame pointers, in two threads.
    Recursion { depth: u32 },
    /// .NET, in two threads.
    DotNetRecursion { depth: u32 },
    /// One C# compiler after the other.
    CSharpCompiler,
    /// Many Python processes that start while it is recorded, and then idle.
    Pythons { count: u32 },
    /// Very many sleeping processes beside a recursion.
    ManyProcesses { count: u32 },
}

/// All of them; the idle host first, because it shows what an early exit costs.
pub const ALL: [Scene; 9] = [
    Scene::Idle,
    Scene::Recursion { depth: 5 },
    Scene::Recursion { depth: 50 },
    Scene::Recursion { depth: 200 },
    Scene::DotNetRecursion { depth: 5 },
    Scene::DotNetRecursion { depth: 50 },
    Scene::CSharpCompiler,
    Scene::Pythons { count: 200 },
    Scene::ManyProcesses { count: 10_000 },
];

/// The running programs of a scene; they end when this is dropped.
#[derive(Default)]
pub struct Stage {
    running: Vec<Running>,
}

impl Scene {
    /// Its name on the command line and in results.
    pub fn name(self) -> String {
        match self {
            Self::Idle => "idle".to_string(),
            Self::Recursion { depth } => format!("recursion-{depth}"),
            Self::DotNetRecursion { depth } => format!("dotnet-{depth}"),
            Self::CSharpCompiler => "csharp-compiler".to_string(),
            Self::Pythons { count } => format!("pythons-{count}"),
            Self::ManyProcesses { count } => format!("processes-{count}"),
        }
    }

    /// Starts what runs before the profiler does, and builds what it needs.
    pub fn start(self) -> Result<Stage> {
        let mut stage = Stage::default();
        match self {
            Self::Idle => {}
            Self::Recursion { depth } => stage.recursion(depth)?,
            Self::DotNetRecursion { depth } => {
                let dotnet = runtimes::dotnet()?;
                let mut command = dotnet.command(&dotnet.recursion()?);
                command.args([&depth.to_string(), "2", "600"]);
                stage.add(command)?;
            }
            Self::CSharpCompiler => {
                let dotnet = runtimes::dotnet()?;
                let source = places::target_sources().join("csharp/Recursion.cs");
                let output = places::cache("targets")?.join("bench-output.dll");
                let compile = dotnet.compile_command(&source, &output);
                let line = format!("while :; do {compile:?} >/dev/null; done");
                let mut command = Command::new("/bin/sh");
                command.args(["-c", &line]);
                stage.add(command)?;
            }
            Self::Pythons { .. } => {
                let _ = runtimes::python("idle.py", &[])?;
            }
            Self::ManyProcesses { count } => {
                let mut command = Command::new(targets::c("idle_many").build()?);
                command.args([&count.to_string(), "600"]);
                stage.add(command)?;
                std::thread::sleep(Duration::from_secs(3));
                stage.recursion(5)?;
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        Ok(stage)
    }

    /// Starts what runs once the profiler samples.
    pub fn continue_with_profiler(self, stage: &mut Stage) -> Result<()> {
        if let Self::Pythons { count } = self {
            for _ in 0..count {
                stage.add(runtimes::python("idle.py", &["600"])?)?;
            }
        }
        Ok(())
    }
}

impl Stage {
    /// What was started directly.
    pub fn pids(&self) -> Vec<i32> {
        self.running.iter().map(Running::pid).collect()
    }

    fn add(&mut self, command: Command) -> Result<()> {
        self.running.push(Running::from_command(command)?);
        Ok(())
    }

    fn recursion(&mut self, depth: u32) -> Result<()> {
        let mut command = Command::new(targets::c("recurse").build()?);
        command.args([&depth.to_string(), "2", "600"]);
        self.add(command)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // All at once: one by one takes a while with hundreds.
        for running in &self.running {
            let _ = running.signal_group(Signal::KILL);
        }
    }
}
