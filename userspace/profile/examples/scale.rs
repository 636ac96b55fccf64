//! How much time and memory a large recording takes: a million samples in a hundred thousand
//! different stacks of about fifty frames, with a timeline, and then every format.
//! `cargo run --release --example scale [FOLDER]`; with a folder, the files are kept there.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use strata_kinds::Kind;
use strata_profile::{Format, FrameKind, ProfileBuilder, Tick, WriteOptions, pprof, write};

const SAMPLES: u64 = 1_000_000;
const STACKS: u64 = 100_000;
const FUNCTIONS: u64 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let before = Instant::now();
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_duration(60_000_000_000);
    builder.keep_timeline();
    let mut locations = Vec::new();
    for number in 0..FUNCTIONS {
        let path = format!("/usr/lib/lib{}.so", number % 97);
        let start = 0x7f00_0000_0000 + ((number % 97) << 28);
        let mapping = builder.mapping(start, start + (1 << 28), 0, &path, "0123456789abcdef");
        let name = format!("namespace_{}::Class{}::method_{number}", number % 31, number % 311);
        let frame = builder.frame(FrameKind::Native, &name, "", "source.rs", 7);
        locations.push(builder.location(start + number, Some(mapping), &[frame]));
    }
    let threads: Vec<_> = (0..64)
        .map(|number| builder.thread(100 + number / 8, 100 + number, "worker", "service", ""))
        .collect();
    let mut stack = Vec::new();
    for sample in 0..SAMPLES {
        let which = mixed(sample) % STACKS;
        stack.clear();
        // Callers are shared more the nearer they are to the root.
        for depth in (0..30 + which % 40).rev() {
            let shared = which >> (48_u64.saturating_sub(depth) / 3).min(20);
            let at = mixed(shared * 64 + depth) % FUNCTIONS;
            stack.extend(locations.get(usize::try_from(at)?));
        }
        let thread = threads[usize::try_from(which % 64)?];
        let labels = builder.thread_labels(thread);
        let stack = builder.stack(&stack);
        builder.add(stack, labels, &[1, 10_000_000]);
        let (kind, time) = (Kind::Cpu, sample * 60_000);
        builder.tick(Tick { kind, labels, stack, time, weight: 1, value: 10_000_000 });
    }
    let profile = builder.finish();
    let each = before.elapsed().as_nanos() / u128::from(SAMPLES);
    println!("built: {each} ns a sample, {} distinct, peak {}", profile.sample_count(), peak());
    for format in Format::ALL {
        let before = Instant::now();
        let mut out = Counted(
            0,
            match &folder {
                Some(folder) => {
                    Box::new(File::create(folder.join(format!("scale.{}", format.extension())))?)
                }
                None => Box::new(io::sink()),
            },
        );
        write(&profile, format, &WriteOptions::default(), &mut out)?;
        println!("{format}: {:?}, {} kB, peak {}", before.elapsed(), out.0 >> 10, peak());
    }
    let mut bytes = Vec::new();
    pprof::encode(&profile, &mut bytes)?;
    let before = Instant::now();
    let again = pprof::decode(&bytes)?;
    println!("pprof read: {:?}, {} distinct", before.elapsed(), again.sample_count());
    Ok(())
}

struct Counted(u64, Box<dyn Write>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        self.1.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number ^ (number >> 27)
}

fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap_or("unknown").trim().to_owned()
}
