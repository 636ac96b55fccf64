//! What it costs to make the requests of a profile: 10,000 and 100,000 different stacks of sixty
//! frames. `cargo bench -p strata-exporters` (or `cargo xtask bench encode`).
//!
//! A stack sample is one stack with its labels and values, as a request holds it. Peak memory is
//! what encoding added to the profile.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_export::origin::Origin;
use strata_export::{Backend, Outgoing, datadog, otlp, pyroscope};
use strata_profile::{FrameKind, Profile, ProfileBuilder, pprof};

const FRAMES: u64 = 60;
const FUNCTIONS: u64 = 20_000;
const ROUNDS: usize = 5;

fn mixed(value: u64) -> u64 {
    let mixed = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn profile(stacks: u64) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", 10_000_000);
    builder.set_default_sample_type("cpu");
    builder.set_duration(15_000_000_000);
    let locations: Vec<_> = (0..FUNCTIONS)
        .map(|number| {
            let path = format!("/usr/lib/lib{}.so", number % 97);
            let mapping = builder.mapping(0x1000, 1 << 28, 0, &path, "0123456789abcdef");
            let name = format!("Namespace{}.Class{}.Method{number}", number % 31, number % 311);
            let frame = builder.frame(FrameKind::Managed, &name, "", "Source.cs", 7);
            builder.location(0x1000 + number, Some(mapping), &[frame])
        })
        .collect();
    for which in 0..stacks {
        // Callers are shared more the nearer they are to the root.
        let stack: Vec<_> = (0..FRAMES)
            .rev()
            .map(|depth| {
                let shared = which >> (FRAMES.saturating_sub(depth) / 4).min(16);
                let at = mixed(shared * 64 + depth) % FUNCTIONS;
                locations[usize::try_from(at).expect("it is small")]
            })
            .collect();
        let stack = builder.stack(&stack);
        let tid = 100 + u32::try_from(which % 64).expect("it is small");
        let thread = builder.thread(100, tid, "worker", "service", "");
        let labels = builder.thread_labels(thread);
        builder.add(stack, labels, &[1, 10_000_000]);
    }
    builder.finish()
}

fn kibibytes(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    found.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Prints the cost of `encode`, which returns the number of requests and their bytes.
fn measure(name: &str, stacks: u64, encode: impl Fn() -> (usize, usize)) {
    let mut times: Vec<Duration> = Vec::new();
    let (mut bytes, mut requests) = (0, 0);
    // What was the highest before is not this one's.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = kibibytes("VmRSS:");
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (requests, bytes) = encode();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[ROUNDS / 2].as_secs_f64();
    let peak = kibibytes("VmHWM:").saturating_sub(before);
    println!(
        "{name:<10} {stacks:>7} {:>11.0} {:>13.1} {requests:>9} {:>8.1}",
        stacks as f64 / median,
        bytes as f64 / stacks as f64,
        peak as f64 / 1024.0
    );
}

fn main() {
    println!("backend     stacks   samples/s  bytes/sample  requests  peak MB");
    for stacks in [10_000, 100_000] {
        let origin = Origin { service: "bench".to_owned(), ..Origin::default() };
        let outgoing = [Outgoing { profile: Arc::new(profile(stacks)), origin: Arc::new(origin) }];
        let whole = &outgoing[0].profile;
        measure("pprof", stacks, || {
            let mut out = Vec::new();
            pprof::encode_plain(whole, &mut out).expect("memory takes it");
            (1, out.len())
        });
        measure("pprof.gz", stacks, || {
            let mut out = Vec::new();
            pprof::encode(whole, &mut out).expect("memory takes it");
            (1, out.len())
        });
        let backends = [
            ("Pyroscope", Backend::Pyroscope(pyroscope::Settings::default())),
            ("Datadog", Backend::Datadog(datadog::Settings::default())),
            ("OTLP", Backend::Otlp(otlp::Settings::default())),
        ];
        for (name, backend) in backends {
            measure(name, stacks, || {
                let encoded =
                    backend.encode(&outgoing, &mut strata_export::EncoderState::default());
                let bytes = encoded.batches.iter().map(|batch| batch.body.len()).sum();
                (encoded.batches.len(), bytes)
            });
        }
    }
}
