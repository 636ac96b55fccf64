//! The cost of adding samples to an aggregate: `cargo xtask bench encode`. The stacks are those of
//! the encoder's benchmark, each of one thread of 64.

use strata_abi::record::End;
use strata_agent::aggregate::{Aggregate, LabelsId, Sample, ThreadKey, Words};
use strata_agent::image_id::ImageId;
use strata_agent::processes::table::Space;
use strata_kinds::{Kind, Kinds};

fn main() {
    const DIFFERENT: u64 = 400_000;
    const ROUNDS: u64 = 10;
    const FUNCTIONS: u64 = 20_000;
    for stacks in [10_000u64, 100_000] {
        // Callers are shared more the nearer they are to the root.
        let frame = |which: u64, depth: usize| {
            let shared = which >> (depth / 4).min(16);
            let mixed = (shared * 64 + depth as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            0x40_0000 + (mixed >> 32) % FUNCTIONS * 64
        };
        // One after the other, as they lie in the ring.
        let samples: Vec<(u64, [u64; 60])> = (0..DIFFERENT)
            .map(|sample: u64| {
                // Frequent stacks come more often.
                let which = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let which = (which % stacks).min((which >> 7) % stacks);
                (which, std::array::from_fn(|depth| frame(which, depth)))
            })
            .collect();
        let mut aggregate = Aggregate::new(Kinds::NONE);
        let comm = *b"measure\0\0\0\0\0\0\0\0\0";
        let space = Space::default();
        let begun = std::time::Instant::now();
        for _ in 0..ROUNDS {
            for (which, user) in &samples {
                let words = Words { kernel: &[], user, end: End::Complete, flags: 0, era: 0 };
                let tid = (which % 64) as u32;
                aggregate.add(&Sample {
                    kind: Kind::Cpu,
                    time: 0,
                    thread: ThreadKey { image: ImageId(0), tid, comm, domain: 0 },
                    labels: LabelsId::NONE,
                    weight: 1,
                    value: 0,
                    stack: words,
                    space: &space,
                });
            }
        }
        let each = begun.elapsed().as_secs_f64() / (ROUNDS * DIFFERENT) as f64;
        println!(
            "aggregated  {stacks:>7} stacks of 60 frames: {:.2} M samples/s, {:.1} MB, {} found",
            1e-6 / each,
            aggregate.bytes() as f64 / 1e6,
            aggregate.stacks(),
        );
    }
}
