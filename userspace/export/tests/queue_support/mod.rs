//! Batches, and a real HTTP server whose answers the tests decide.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod server;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use strata_export::http::EndpointSettings;
use strata_export::{Address, Backend, Batch, Protocol, pyroscope};
use strata_export::{Clock, ExporterHealth, ExporterSettings, Queues};
use uuid::Uuid;

/// A batch of `length` bytes that began at `oldest`.
pub fn batch(oldest: i64, length: usize) -> Batch {
    let id = Uuid::new_v4();
    let body = repeated(id, length);
    Batch {
        id,
        protocol: Protocol::Plain,
        path: "/push.v1.PusherService/Push".to_owned(),
        content_type: "application/proto".to_owned(),
        headers: Vec::new(),
        gzipped: false,
        profiles: 2,
        oldest,
        body: Bytes::from(body),
    }
}

/// The body of a batch: its id, over and over.
pub fn repeated(id: Uuid, length: usize) -> Vec<u8> {
    let mut body = id.as_bytes().repeat(length.div_ceil(16));
    body.truncate(length);
    body
}

pub fn backend() -> Backend {
    Backend::Pyroscope(pyroscope::Settings::default())
}

pub fn destination(address: &str) -> EndpointSettings {
    let mut destination = EndpointSettings::new(Address::parse(address).unwrap());
    destination.environment_proxy = false;
    destination.timeout = Duration::from_secs(10);
    destination
}

/// An exporter named "exporter".
pub fn plan(address: &str, spool: &Path) -> ExporterSettings {
    ExporterSettings {
        spool_dir: Some(spool.to_owned()),
        ..ExporterSettings::new("exporter", backend(), destination(address))
    }
}

pub async fn start(plan: ExporterSettings, clock: Clock) -> Queues {
    Queues::start(vec![plan], clock).await.unwrap()
}

/// Of the only exporter.
pub fn health(delivery: &Queues) -> ExporterHealth {
    delivery.health().remove(0)
}

/// Waits until the only exporter is so. What never happens is a failure, with the last health seen.
pub async fn until(delivery: &Queues, is_so: impl Fn(&ExporterHealth) -> bool) -> ExporterHealth {
    let waiting = async {
        loop {
            let health = health(delivery);
            if is_so(&health) {
                return health;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(60), waiting).await {
        Ok(health) => health,
        Err(_) => panic!("it never came to pass: {:#?}", health(delivery)),
    }
}

/// Until nothing is left to send.
pub async fn drained(delivery: &Queues) -> ExporterHealth {
    until(delivery, |health| health.oldest.is_none() && health.spooled == 0 && health.queued == 0)
        .await
}
