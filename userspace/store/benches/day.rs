//! Writes a day of 15-second profiles of many services and asks for it.
//!
//! `cargo bench -p strata-store [-- SERVICES HOURS [DIRECTORY]]`; 50 services and 24 hours by
//! default, two services at least. A DIRECTORY is kept, and only queried if it holds a store
//! already; its last hour stays open, as a daemon's does. Each service has 3,000 stacks of 20 to 60
//! frames over 900 functions; a profile has 40 to 200 of them, the frequent ones mostly, as busy
//! services have at 99 samples a second.

use std::path::Path;
use std::time::{Duration, Instant};

use strata_profile::{FrameKind, Label, LabelValue, Profile, ProfileBuilder, StackId};
use strata_store::{Head, Options, Reader, Selection, Store};

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;
const PERIOD: i64 = 15 * SECOND;
/// A whole hour.
const START: i64 = 500_000 * HOUR;
const FUNCTIONS: u64 = 900;
const STACKS: u64 = 3_000;

/// SplitMix64: the same day every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

fn frame_of(builder: &mut ProfileBuilder, service: u64, function: u64) -> strata_profile::Frame {
    if function < 150 {
        return builder.frame(FrameKind::Kernel, &format!("kernel_function_{function}"), "", "", 0);
    }
    let name = format!(
        "Company.Service{service}.Area{}.Class{}.Method{function}",
        function % 9,
        function % 83
    );
    let raw = format!("{name}(System.String, System.Threading.CancellationToken)");
    let file = format!("/src/Service{service}/Area{}/Class{}.cs", function % 9, function % 83);
    builder.frame(FrameKind::Managed, &name, &raw, &file, (function % 400) as u32 + 1)
}

/// The service's stacks: each goes on from an earlier one, as calls do.
fn stacks_of(service: u64) -> Vec<Vec<u64>> {
    let mut random = Random(service);
    let mut stacks: Vec<Vec<u64>> = Vec::new();
    for _ in 0..STACKS {
        let length = 20 + random.below(41) as usize;
        let mut stack = Vec::new();
        if !stacks.is_empty() {
            let earlier = &stacks[random.below(stacks.len() as u64) as usize];
            let shared = (earlier.len() * 3 / 4).min(length);
            stack.extend_from_slice(&earlier[..shared]);
        }
        while stack.len() < length {
            stack.push(random.below(FUNCTIONS));
        }
        stacks.push(stack);
    }
    stacks
}

fn profile_of(service: u64, stacks: &[Vec<u64>], random: &mut Random) -> Profile {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", 10_101_010);
    let mapping = builder.mapping(0x1000, 0x9000_0000, 0, "/app/Service.dll", "0123456789abcdef");
    let (comm, pid) = (builder.string("comm"), builder.string("pid"));
    let names = [".NET TP Worker", ".NET TP Gate", "kestrel"].map(|name| builder.string(name));
    let unit = builder.string("");
    for _ in 0..40 + random.below(161) {
        // Of two draws the smaller: few stacks are hot, most are rare.
        let most = random.below(STACKS).min(random.below(STACKS)).min(random.below(STACKS));
        let mut id = StackId::default();
        for &function in &stacks[most as usize] {
            let frame = frame_of(&mut builder, service, function);
            let location = builder.location(0x1000 + function * 64, Some(mapping), &[frame]);
            id = builder.called_from(id, location);
        }
        let thread = names[(most % 3) as usize];
        let labels = builder.labels(&[
            Label { key: pid, value: LabelValue::Number { value: 1000 + service as i64, unit } },
            Label { key: comm, value: LabelValue::Text(thread) },
        ]);
        let count = 1 + random.below(12) as i64;
        builder.add(id, labels, &[count, count * 10_101_010]);
    }
    builder.finish()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let number =
        |at: usize, usual| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(usual);
    let (services, hours): (i64, i64) = (number(0, 50), number(1, 24));
    let end = START + hours * HOUR;
    if let Some(directory) = words.get(2) {
        let directory = Path::new(directory);
        if !directory.exists() {
            write(directory, services as u64, hours);
        }
        return ask(&Reader::new(directory), end);
    }
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), services as u64, hours);
    ask(&Reader::new(directory.path()), end);
}

/// The most memory that this process has had, in megabytes.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kilobytes.unwrap_or(0.0_f64) / 1024.0
}

/// Time that the threads of this process, also those that have ended, had a processor: on a busy
/// machine the rest is waiting. Counted in hundredths of a second.
fn on_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let words = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Forgets the peak so far.
fn reset_peak() -> f64 {
    // Needs Linux 4.0; without it the peaks are those of the whole run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    peak()
}

fn write(directory: &Path, services: u64, hours: i64) {
    let options = Options { max_bytes: 8 << 30, ..Options::default() };
    let mut store = Store::open(directory, options).expect("the store opens");
    // A service has forty different profiles that come in turn: making new ones all day would
    // take longer than what is measured.
    let mut profiles = Vec::new();
    for service in 0..services {
        let stacks = stacks_of(service);
        let mut random = Random(service ^ 0x5eed);
        let of_service: Vec<_> =
            (0..40).map(|_| profile_of(service, &stacks, &mut random)).collect();
        profiles.push(of_service);
    }
    let before = reset_peak();
    let mut tending_peak = 0.0_f64;
    let mut random = Random(7);
    let (mut written, mut samples) = (0_u64, 0_u64);
    let (mut appending, mut tending, mut longest) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut slowest = Duration::ZERO;
    for period in 0..hours * HOUR / PERIOD {
        let start = START + period * PERIOD;
        let began = Instant::now();
        for (service, of_service) in profiles.iter().enumerate() {
            let head = Head {
                service: format!("service-{service}"),
                kind: "cpu".to_owned(),
                labels: vec![("env".to_owned(), "prod".to_owned())],
                runtime_id: format!("5f2c0000-0000-0000-0000-{service:012}"),
                start_nanos: start,
                end_nanos: start + PERIOD,
            };
            let profile = &of_service[random.below(40) as usize];
            let one = Instant::now();
            store.append(&head, profile, start).expect("it is written");
            slowest = slowest.max(one.elapsed());
            written += 1;
            samples += profile.sample_count() as u64;
        }
        appending += began.elapsed();
        if period % 20 == 0 {
            let writing = peak();
            let began = Instant::now();
            store.tend(start).expect("it is tended");
            let took = began.elapsed();
            longest = longest.max(took);
            tending += took;
            if peak() > writing {
                tending_peak = tending_peak.max(peak());
            }
        }
    }
    println!(
        "memory: {:.0} MB above the {before:.0} MB of the profiles themselves; of that while \
         merging {:.0} MB; dictionaries of the open hour {:.0} MB",
        peak() - before,
        (tending_peak - before).max(0.0),
        store.dictionaries() as f64 / 1e6,
    );
    let bytes = store.bytes();
    println!("{written} profiles, {samples} samples, {:.1} MB on disk", bytes as f64 / 1e6);
    println!(
        "{:.0} bytes/profile, {:.2} bytes/sample",
        bytes as f64 / written as f64,
        bytes as f64 / samples as f64
    );
    println!(
        "appended {:.0} profiles/s ({:.2} M samples/s), slowest {slowest:?}; merges, roll-ups and \
         sealing {tending:.2?}, longest {longest:.2?}; {:?}",
        written as f64 / appending.as_secs_f64(),
        samples as f64 / appending.as_secs_f64() / 1e6,
        store.counters(),
    );
    for ending in ["seg", "open", "merged", "rollup"] {
        let files = std::fs::read_dir(directory).expect("it is read").flatten();
        let files = files.filter(|file| file.path().extension().is_some_and(|end| end == ending));
        let sizes: Vec<u64> = files.flat_map(|file| file.metadata()).map(|it| it.len()).collect();
        let sum: u64 = sizes.iter().sum();
        println!("  {} files .{ending}: {:.1} MB", sizes.len(), sum as f64 / 1e6);
    }
    // As a daemon that goes on: what is open is not sealed.
    std::mem::forget(store);
}

fn ask(reader: &Reader, end: i64) {
    let one = Selection::of_service("service-0", "cpu");
    // Not whole hours, so that profiles at the ends are read one by one.
    let ragged = 437 * SECOND;
    let questions = [
        ("1 h of a service", one.clone().between(end - 2 * HOUR + ragged, end - HOUR + ragged)),
        ("the day of a service", one.clone().between(START + ragged, end - ragged)),
        ("the day of all services", Selection::default().between(START + ragged, end - ragged)),
        (
            "the last 3 h of all services",
            Selection::default().between(end - 3 * HOUR + ragged, end),
        ),
    ];
    for (name, selection) in questions {
        let before = reset_peak();
        let (began, processor) = (Instant::now(), on_cpu());
        let answer = reader.query(&selection).expect("it is answered");
        println!(
            "query {name}: {:.0?} ({:.0?} on a CPU), {:.0} MB; {} profiles, {} records, {:.0} kB read, {} stacks",
            began.elapsed(),
            on_cpu() - processor,
            peak() - before,
            answer.profiles,
            answer.records_read,
            answer.bytes_read as f64 / 1e3,
            answer.profile.sample_count(),
        );
        let (began, shown) = (Instant::now(), answer.profile.shown_sample_type());
        let summary = strata_profile::summary::summarize(&answer.profile, shown, 30);
        println!("  its {} functions: {:.0?}", summary.functions, began.elapsed());
    }
    let began = Instant::now();
    let held = reader.holdings(&Selection::default()).expect("it is listed");
    println!("list of {} series: {:.0?}", held.len(), began.elapsed());
    let other = Selection::of_service("service-1", "cpu");
    let comparisons = [
        (
            "1 h with the hour before",
            one.clone().between(end - 2 * HOUR, end - HOUR),
            one.clone().between(end - HOUR, end),
        ),
        ("a day with another service's", other.between(START, end), one.between(START, end)),
        (
            "1 h of all services",
            Selection::default().between(end - 2 * HOUR, end - HOUR),
            Selection::default().between(end - HOUR, end),
        ),
    ];
    for (name, before, after) in comparisons {
        let memory = reset_peak();
        let (began, processor) = (Instant::now(), on_cpu());
        let compared = reader.diff(&before, &after, "cpu").expect("it is compared");
        println!(
            "diff {name}: {:.0?} ({:.0?} on a CPU), {:.0} MB; {} stacks, {} functions",
            began.elapsed(),
            on_cpu() - processor,
            peak() - memory,
            compared.difference.stacks.len(),
            compared.difference.functions.len(),
        );
    }
}
