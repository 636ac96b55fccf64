//! A known profile, and servers that take it.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod pprof;
pub mod server;
pub mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use strata_export::http::EndpointSettings;
use strata_export::origin::{Language, Origin};
use strata_export::{Address, Outgoing};
use strata_profile::{FrameKind, Profile, ProfileBuilder};

/// 2024-02-29T12:00:00Z.
pub const START: i64 = 1_709_208_000_000_000_000;

/// `Main` called `Work` (30 ms, 3 samples on thread 11) and `Idle` (10 ms, 1 sample on thread
/// 12); `Work` threw twice.
pub fn known_profile() -> Profile {
    let mut builder = ProfileBuilder::new(&[
        ("samples", "count"),
        ("cpu", "nanoseconds"),
        ("exceptions", "count"),
        ("bananas", "count"),
    ]);
    builder.set_period("cpu", "nanoseconds", 10_000_000);
    builder.set_start(START);
    builder.set_duration(15_000_000_000);
    let mapping = builder.mapping(0x1000, 0x9000, 0, "/app/Shop.dll", "c0ffee");
    let mut place = |name: &str, address| {
        let frame = builder.frame(FrameKind::Managed, name, "", "/src/Shop.cs", 7);
        builder.location(address, Some(mapping), &[frame])
    };
    let [main, work, idle] = [place("Main", 0x1001), place("Work", 0x1002), place("Idle", 0x1003)];
    let working = builder.stack(&[work, main]);
    let idling = builder.stack(&[idle, main]);
    let threads = [11, 12].map(|tid| {
        let thread = builder.thread(7, tid, "worker", "shop", "");
        builder.thread_labels(thread)
    });
    builder.add(working, threads[0], &[3, 30_000_000, 2, 1]);
    builder.add(idling, threads[1], &[1, 10_000_000, 0, 0]);
    builder.finish()
}

pub fn known_origin() -> Origin {
    Origin {
        service: "shop".to_owned(),
        env: "prod".to_owned(),
        version: "1.2".to_owned(),
        host: "node-1".to_owned(),
        pid: Some(7),
        runtime_id: "0b5bbf6b-4a3a-4a0a-8a51-2d5ad1b7f0aa".to_owned(),
        language: Language::DotNet,
        git_commit: "abc123".to_owned(),
        cores: Some(8),
        architecture: "x86_64".to_owned(),
        executable: "/app/shop".to_owned(),
        sequence: 4,
        labels: vec![("team".to_owned(), "checkout".to_owned())],
        ..Origin::default()
    }
}

pub fn known() -> Outgoing {
    Outgoing { profile: Arc::new(known_profile()), origin: Arc::new(known_origin()) }
}

pub fn destination(address: &str) -> EndpointSettings {
    let mut destination = EndpointSettings::new(Address::parse(address).unwrap());
    destination.environment_proxy = false;
    destination.timeout = Duration::from_secs(10);
    destination
}

pub fn at(address: SocketAddr) -> EndpointSettings {
    destination(&format!("http://{address}"))
}
