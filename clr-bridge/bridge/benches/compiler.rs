//! What the bridge costs a program that compiles 11,400 methods in a second: the C# compiler.
//!
//! `cargo bench -p strata-clr-bridge [-- ROUNDS]`. Each round runs every variant once, in turn, and
//! differences are between runs of the same round. CPU time is the measure on a machine that does
//! other things too. The library is the one of `--profile bridge`, or `STRATA_CLR_BRIDGE`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use strata_bridge_layout::layout::MAX_SEGMENTS;
use strata_bridge_layout::reader::{self, Limits, Reader};
use strata_bridge_layout::status::{Count, StatusRecord};

const CLASS: &str = "{8A4D1E52-6F0B-4C39-9B7E-D5C1A7F23E60}";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Without,
    /// Loaded, and nobody reads.
    Quiet,
    /// Telling from the first method on.
    Eager,
    EagerNotification,
}

const VARIANTS: [(Variant, &str); 4] = [
    (Variant::Without, "without"),
    (Variant::Quiet, "quiet"),
    (Variant::Eager, "eager"),
    (Variant::EagerNotification, "eager, notification-only"),
];

/// Seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("STRATA_CLR_BRIDGE") {
        return PathBuf::from(path);
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "-p", "strata-clr-bridge", "--profile", "bridge"])
        .arg("--message-format=json")
        .current_dir(workspace())
        .stderr(Stdio::inherit())
        .output()
        .expect("starting cargo");
    let text = String::from_utf8_lossy(&built.stdout);
    let end = text.rfind("libstrata_clr.so\"").expect("cargo names the library");
    let start = text[..end].rfind('"').expect("a quoted path") + 1;
    PathBuf::from(&text[start..end + "libstrata_clr.so".len()])
}

fn compiler(variant: Variant, library: &Path) -> Command {
    let dotnet = workspace().join(".cache/dotnet");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clr/programs/Shop.cs");
    let output = std::env::temp_dir().join(format!("strata-bench-{}.dll", std::process::id()));
    let mut command = Command::new(dotnet.join("9/dotnet"));
    command
        .arg("exec")
        .arg(dotnet.join("csc/csc.dll"))
        .args(["-nologo", "-o+"])
        .arg(format!("-out:{}", output.display()))
        .arg(format!("@{}", dotnet.join("csc/refs.rsp").display()))
        .arg(source)
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .stdout(Stdio::null());
    if variant != Variant::Without && variant != Variant::Quiet {
        command.env("STRATA_CLR_EAGER", "1");
    }
    match variant {
        Variant::Without => {}
        Variant::Quiet | Variant::Eager => {
            command
                .env("CORECLR_ENABLE_PROFILING", "1")
                .env("CORECLR_PROFILER", CLASS)
                .env("CORECLR_PROFILER_PATH", library);
        }
        Variant::EagerNotification => {
            let entry = format!("{}={CLASS};", library.display());
            command
                .env("CORECLR_ENABLE_NOTIFICATION_PROFILERS", "1")
                .env("CORECLR_NOTIFICATION_PROFILERS", entry);
        }
    }
    command
}

/// CPU seconds of the children that ended so far.
fn cpu_of_children() -> f64 {
    // SAFETY: a plain C structure for which zero is a value, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn run(variant: Variant, library: &Path) -> Cost {
    let before = cpu_of_children();
    let start = Instant::now();
    let status = compiler(variant, library).status().expect("starting the compiler");
    assert!(status.success(), "{status}");
    Cost { wall: start.elapsed().as_secs_f64(), cpu: cpu_of_children() - before }
}

/// Runs once with somebody who keeps the memory, and says what the bridge counted.
fn counted(library: &Path) -> StatusRecord {
    let mut child = compiler(Variant::Eager, library).spawn().expect("starting the compiler");
    let main = loop {
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap_or_default();
        let line = maps.lines().find(|line| line.ends_with("/memfd:strata-clr (deleted)"));
        if let Some(range) = line.and_then(|line| line.split(' ').next()) {
            break format!("/proc/{}/map_files/{range}", child.id());
        }
        assert!(child.try_wait().expect("the compiler").is_none(), "it ended without the bridge");
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let file: File = reader::file::open(Path::new(&main)).expect("the bridge's memory");
    let reader = Reader::new(file, Limits::default()).expect("a main file");
    child.wait().expect("waiting for the compiler");
    reader.status().expect("the status")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Mean difference to the first variant in percent, and the half width of its 95 % interval.
fn difference(costs: &[Cost], first: &[Cost], of: impl Fn(&Cost) -> f64) -> (f64, f64) {
    let base = first.iter().map(&of).sum::<f64>() / first.len() as f64;
    let differences: Vec<f64> = costs
        .iter()
        .zip(first)
        .map(|(cost, first)| (of(cost) - of(first)) / base * 100.0)
        .collect();
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}

fn main() {
    let rounds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(15usize).max(2);
    let library = library();
    let mut costs = vec![Vec::new(); VARIANTS.len()];
    for round in 0..=rounds {
        for turn in 0..VARIANTS.len() {
            let number = (round + turn) % VARIANTS.len();
            let cost = run(VARIANTS[number].0, &library);
            // The first round warms the caches.
            if round > 0 {
                costs[number].push(cost);
            }
        }
    }
    println!(
        "{:<26} {:>9} {:>9} {:>18} {:>18}",
        "", "wall s", "cpu s", "wall diff %", "cpu diff %"
    );
    for ((_, name), of_variant) in VARIANTS.iter().zip(&costs) {
        let wall = median(&mut of_variant.iter().map(|cost| cost.wall).collect::<Vec<_>>());
        let cpu = median(&mut of_variant.iter().map(|cost| cost.cpu).collect::<Vec<_>>());
        let (wall_mean, wall_half) = difference(of_variant, &costs[0], |cost| cost.wall);
        let (cpu_mean, cpu_half) = difference(of_variant, &costs[0], |cost| cost.cpu);
        println!(
            "{name:<26} {wall:>9.3} {cpu:>9.3} {wall_mean:>+9.2} ± {wall_half:<6.2} \
             {cpu_mean:>+9.2} ± {cpu_half:<6.2}"
        );
    }
    let status = counted(&library);
    let methods = status.count(Count::Methods).max(1);
    let bytes: u64 = (0..MAX_SEGMENTS).map(|segment| status.committed(segment)).sum();
    println!(
        "{methods} methods, {} types; {} ns for each compilation reported; {} bytes of log for each method",
        status.count(Count::Types),
        status.count(Count::BusyNanoseconds) / status.count(Count::Callbacks).max(1),
        bytes / methods,
    );
}
