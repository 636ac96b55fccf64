//! `strata daemon`: profiles of the whole host, continuously, to the local store and to exporters.
//!
//! - [`session`]: the event loop: samples, flushes, signals, bridges, memory.
//! - [`flushing`]: the samples since the last flush become profiles; [`process_metadata`] resolves
//!   their identities.
//! - [`clock`]: the time of periods, also when the clock is set.
//! - [`runtimes`]: metadata of containers.
//! - `strata_export`: delivers profiles to the store and to exporters.
//! - [`shared_status`]: its status, served by [`web`]; [`health_port`]: health, whatever else happens.
//! - [`settings`], [`log`], [`notify`], [`memory`]: the configuration, the log, the service
//!   manager, and the memory limit. `paths`: whether a configuration's paths can be written.
//!
//! Threads: the loop; the pipeline; those that write to disks for it; one for exporters' sockets; the
//! status; health probes; those that read processes (their metadata, their mappings, the code of .NET
//! methods). The loop waits only for the last, within a time limit.

pub mod clock;
pub mod flushing;
mod health_port;
pub mod log;
pub mod memory;
pub mod notify;
mod paths;
pub mod process_metadata;
pub mod runtimes;
pub mod session;
pub mod settings;
pub mod shared_status;
pub mod web;

use anyhow::{Context, Result, bail};

use strata_export::exporter;

use crate::printing::{self, message};
use settings::Source;

/// Runs until it is asked to end.
pub fn run(source: Source) -> Result<i32> {
    memory::share_heap();
    let loaded = source.load()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the event loop cannot be started")?;
    let network = Network::start()?;
    runtime.block_on(session::run(source, loaded, network.handle.clone()))?;
    Ok(0)
}

/// The thread that sockets are served on.
struct Network {
    handle: tokio::runtime::Handle,
}

impl Network {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Each exporter has one that may wait for its disk, and looking up a name needs another.
            .max_blocking_threads(64)
            .build()
            .context("the network's event loop cannot be started")?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                crate::capabilities::give_up_administration();
                runtime.block_on(std::future::pending::<()>());
            })
            .context("a thread cannot be started")?;
        Ok(Self { handle })
    }
}

/// `strata config check`: the exit status is whether it can be used.
pub fn check(source: &Source) -> Result<i32> {
    let loaded = source.load()?;
    // What only shows when it is used: certificates, addresses, headers.
    let (_, plans) = exporter::of(&loaded.configuration.exporters, None, 1 << 20)?;
    exporter::try_out(&plans)?;
    let problems: Vec<_> =
        paths::problems(&loaded.configuration).iter().map(ToString::to_string).collect();
    if !problems.is_empty() {
        bail!("the configuration has {}", settings::listed(&problems));
    }
    for notice in &loaded.notices {
        message!("strata: {notice}");
    }
    let exporters: Vec<String> = loaded
        .configuration
        .exporters
        .iter()
        .map(|exporter| format!("{} ({})", exporter.name, exporter.kind.name()))
        .collect();
    let exporters = if exporters.is_empty() { "none".to_owned() } else { exporters.join(", ") };
    let rules = loaded.configuration.rules.len();
    printing::print(&format!("fine; exporters: {exporters}; rules: {rules}\n"))
}

/// `strata config show`: every value and where it comes from.
pub fn show(source: &Source) -> Result<i32> {
    let loaded = source.load()?;
    for notice in &loaded.notices {
        message!("strata: {notice}");
    }
    printing::print(&loaded.show())
}
