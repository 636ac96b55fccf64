//! `strata daemon`, run as a service manager runs it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{self, Ended, Running, wait_until};
use crate::text_outputs::{Folded, folded};
use crate::{places, targets};

/// How long anything may take before a test gives up: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon and its folder: configuration, store, spool, log.
pub struct Daemon {
    running: Option<Running>,
    folder: TempDir,
    metrics: SocketAddr,
    variables: Vec<(String, String)>,
}

impl Daemon {
    /// A folder for a daemon that is not started yet.
    pub fn prepared() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("strata-daemon-").tempdir()?;
        Ok(Self { running: None, folder, metrics: own_address(), variables: Vec::new() })
    }

    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes the configuration. Store, metrics and log are set already.
    pub fn configure(&self, text: &str) -> Result<()> {
        let (head, tables) = match text.find('[') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let folder = self.folder.path().display();
        let own = format!(
            "{head}\n[metrics]\naddress = \"{}\"\nsocket = \"{folder}/status.sock\"\n[store]\npath = \"{folder}/store\"\n{tables}",
            self.metrics
        );
        Ok(std::fs::write(self.configuration(), own)?)
    }

    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("strata.toml")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The stacks of a kind that the store has of a service, at least one.
    pub fn kept(&self, service: &str, kind: &str) -> Result<Vec<Folded>> {
        self.query(service, kind)?.with_context(|| format!("no {kind} of {service}"))
    }

    /// The stacks of a kind that the store has of a service: `None` where it has other kinds of that service and
    /// not this one. A service of which it has nothing at all is an error, as is any other failure.
    pub fn query(&self, service: &str, kind: &str) -> Result<Option<Vec<Folded>>> {
        let file = format!("{service}.{kind}.folded");
        let mut command = Command::new(places::strata_binary()?);
        command.args(["query", "--service", service, "--type", kind, "-o", &file]);
        command.arg("--store").arg(self.store()).current_dir(self.folder());
        let ended = Running::from_command(command)?.wait(PATIENCE)?;
        println!("{}", ended.stderr);
        let nothing = format!("`{service}` has no profiles of type `{kind}`");
        if !ended.status.success() && ended.stderr.contains(&nothing) {
            return Ok(None);
        }
        ensure!(ended.status.success(), "the {kind} of {service}: {}", ended.stderr);
        let text = std::fs::read_to_string(self.folder().join(file))?;
        folded(&text).map(Some)
    }

    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Starts it, and waits until it samples.
    pub fn start(&mut self) -> Result<()> {
        self.start_with(Command::new(places::strata_binary()?))
    }

    /// As [`Self::start`], with `no_new_privs`, as the unit for systemd sets it.
    pub fn start_without_new_privileges(&mut self) -> Result<()> {
        let mut command = Command::new(places::required("setpriv", "util-linux")?);
        command.arg("--no-new-privs").arg(places::strata_binary()?);
        self.start_with(command)
    }

    fn start_with(&mut self, mut command: Command) -> Result<()> {
        command.arg("daemon").arg("--config").arg(self.configuration());
        // This process's own environment is not meant for the daemon.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["DD_", "OTEL_", "PYROSCOPE_", "STRATA_"].iter().any(|own| name.starts_with(own)) {
                command.env_remove(&*name);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut running = Running::as_service(command)?;
        let socket = self.status_socket();
        let mut ended = false;
        wait_until("the daemon answers", PATIENCE, || {
            ended = !running.is_alive();
            let health = || get_local(&socket, "/healthz");
            ended || health().is_ok_and(|body| body.starts_with("ok\n"))
        })?;
        if ended {
            let ended = running.wait(PATIENCE)?;
            bail!("strata daemon: {} {}", ended.status, ended.stderr);
        }
        self.running = Some(running);
        Ok(())
    }

    pub fn running(&mut self) -> Result<&mut Running> {
        self.running.as_mut().context("the daemon is not running")
    }

    pub fn pid(&mut self) -> Result<i32> {
        Ok(self.running()?.pid())
    }

    /// Its status.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&get_local(&self.status_socket(), "/status")?)?)
    }

    /// The answer to any user of the host.
    pub fn from_port(&self, path: &str) -> Result<String> {
        get(self.metrics, path)
    }

    /// The answer to a health probe.
    pub fn health(&self) -> Result<String> {
        health_at(self.metrics)
    }

    pub fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics")
    }

    pub fn status_socket(&self) -> PathBuf {
        self.folder.path().join("status.sock")
    }

    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// Makes it read its configuration again, and waits until it has, with or without success.
    pub fn reload(&mut self) -> Result<()> {
        let before = self.status()?["configuration"].clone();
        self.running()?.signal(Signal::HUP)?;
        wait_until("the daemon reloads", PATIENCE, || {
            self.status().is_ok_and(|status| status["configuration"] != before)
        })
    }

    /// Ends it as a service manager does.
    pub fn end(&mut self) -> Result<Ended> {
        let running = self.running.take().context("the daemon is not running")?;
        running.signal(Signal::TERM)?;
        running.wait(PATIENCE)
    }

    /// Ends it as the kernel does.
    pub fn kill(&mut self) -> Result<Ended> {
        let running = self.running.take().context("the daemon is not running")?;
        running.signal(Signal::KILL)?;
        running.wait(PATIENCE)
    }
}

/// The part of a configuration with which a daemon attaches at once to .NET programs of these services
/// (their `DD_SERVICE`), and to no other: such a daemon may run beside tests of other .NET programs.
pub fn attaching_to(services: &[&str]) -> String {
    let rule = |service: &&str| {
        format!(
            "[[rule]]\nmatch = {{ env = {{ DD_SERVICE = \"{service}\" }} }}\nbridge = \"attach\"\n"
        )
    };
    let rules: String = services.iter().map(rule).collect();
    format!("[dotnet]\nbridge = \"off\"\nage = \"0s\"\n{rules}")
}

/// Runs a native program of a service for a second of CPU time: a daemon's store has the service then, whatever else
/// it keeps of it.
pub fn burn_as(service: &str) -> Result<()> {
    let mut command = Command::new(targets::c("shares").build()?);
    command.arg("1").env("DD_SERVICE", service).env("STRATA_TARGET_CLOCK", "cpu");
    let ended = running::run(&mut command)?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    Ok(())
}

/// A loopback address of this process's own, and a port of each daemon below those that the kernel
/// gives out: no other program has it, also between two starts of one daemon.
pub fn own_address() -> SocketAddr {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(9464);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    // Process ids have 22 bits. 127.0.0.1 is not among the addresses.
    SocketAddr::from(([127, high | 64, middle, low], NEXT_PORT.fetch_add(1, Ordering::Relaxed)))
}

/// The answer of a daemon's metrics port to a health probe.
pub fn health_at(address: SocketAddr) -> Result<String> {
    get(address, "/healthz")
}

fn get(address: SocketAddr, path: &str) -> Result<String> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    over(stream, path)
}

fn get_local(socket: &Path, path: &str) -> Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    over(stream, path)
}

fn over(mut stream: impl Read + Write, path: &str) -> Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(body.to_owned())
}
