//! What a batch costs on its way to the spool:
//! `cargo run --release -p strata-export --example queue_cost -- [DIRECTORY]`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strata_export::http::EndpointSettings;
use strata_export::spool::Spool;
use strata_export::{Address, Backend, Batch, Protocol, pyroscope};
use strata_export::{Clock, ExporterSettings, Queues};
use uuid::Uuid;

const BATCHES: u32 = 2000;

fn batch(length: usize) -> Batch {
    Batch {
        id: Uuid::new_v4(),
        protocol: Protocol::Plain,
        path: "/push".to_owned(),
        content_type: "application/proto".to_owned(),
        headers: Vec::new(),
        gzipped: false,
        profiles: 50,
        oldest: Clock::real().nanos(),
        body: Bytes::from(vec![7; length]),
    }
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(BATCHES)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let above = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = above.join(format!("strata-delivery-cost-{}", std::process::id()));
    println!(
        "bytes    put     open    read    remove  give    until kept   synced at the end   (µs a batch)"
    );
    for length in [2_000, 20_000, 200_000] {
        let batch = batch(length);
        let mut spool = Spool::open(&directory, 4 << 30)?;
        let mut dropped = Vec::new();
        let begun = Instant::now();
        let mut keys = Vec::new();
        for number in 0..u64::from(BATCHES) {
            keys.push(spool.put(number, &batch, &mut dropped)?);
        }
        let put = micros(begun);
        drop(spool);
        let begun = Instant::now();
        let mut spool = Spool::open(&directory, 4 << 30)?;
        let open = micros(begun);
        let begun = Instant::now();
        for key in &keys {
            spool.read(*key)?;
        }
        let read = micros(begun);
        let begun = Instant::now();
        for key in &keys {
            spool.remove(*key)?;
        }
        let remove = micros(begun);
        drop(spool);

        // No server listens there: everything stays in the spool.
        let nowhere = EndpointSettings::new(Address::parse("http://127.0.0.1:9")?);
        let backend = Backend::Pyroscope(pyroscope::Settings::default());
        let mut plan = ExporterSettings::new("cost", backend, nowhere);
        plan.spool_dir = Some(directory.clone());
        plan.spool_size = 4 << 30;
        plan.memory = 2 << 30;
        let delivery = Queues::start(vec![plan], Clock::real()).await?;
        let begun = Instant::now();
        for _ in 0..BATCHES {
            delivery.enqueue("cost", batch.clone())?;
        }
        let give = micros(begun);
        while delivery.health().iter().any(|health| health.queued > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let kept = micros(begun);
        let begun = Instant::now();
        delivery.shutdown(Duration::ZERO).await;
        let synced = micros(begun);
        std::fs::remove_dir_all(&directory)?;
        println!(
            "{length:<8} {put:<7.1} {open:<7.1} {read:<7.1} {remove:<7.1} {give:<7.2} {kept:<12.1} {synced:.1}"
        );
    }
    Ok(())
}
