//! Fake container runtimes and kubelets. They implement the published protocols over real sockets
//! and real TLS, and return the answers that a test sets.

pub mod fake_cri;
pub mod server;

use std::time::Duration;

use strata_containers::{Containers, Pace, Settings, SourceHealth};

pub const ID: &str = "4f1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4c3d";
pub const SANDBOX: &str = "aa1d6ad20b5cf1b4a1d9a2f5f6e3f1b0aa3d7c7c8f6f8f1b0c9d8e7f6a5b4caa";

/// Ends a test that hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// Sixty-four digits.
pub fn id(number: usize) -> String {
    format!("{number:064x}")
}

/// Without the pauses that are for real hosts.
pub fn quick() -> Pace {
    // Patient otherwise: a busy machine is no reason to fail.
    Pace { pause: Duration::from_millis(1), request: LONG / 2, round: LONG, ..Pace::default() }
}

/// A directory whose task runs.
pub fn running(settings: &Settings) -> Containers {
    let (containers, refresher) = strata_containers::containers(settings);
    tokio::spawn(refresher.run());
    containers
}

/// The only source that was asked.
pub fn only_source(containers: &Containers) -> SourceHealth {
    let mut sources = containers.health().sources;
    assert_eq!(sources.len(), 1);
    sources.remove(0)
}
