//! Writes a day of 15-second profiles of many services and asks for it.
//!
//! `cargo bench -p strata-store [-- SERVICES HOURS]`; 50 services and 24 hours if not told, two services at least. Each
//! service has 3,000 stacks of 20 to 60 frames over 900 functions; a profile has 40 to 200 of
//! them, the frequent ones mostly, as busy services have at 99 samples a second.

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
    let numbers: Vec<i64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let services = numbers.first().copied().unwrap_or(50) as u64;
    let hours = numbers.get(1).copied().unwrap_or(24);
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { max_bytes: 8 << 30, ..Options::default() };
    let mut store = Store::open(directory.path(), options).expect("the store opens");
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
    let mut random = Random(7);
    let (mut written, mut samples) = (0_u64, 0_u64);
    let (mut appending, mut tending) = (Duration::ZERO, Duration::ZERO);
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
            let began = Instant::now();
            store.tend(start).expect("it is tended");
            tending += began.elapsed();
        }
    }
    let end = START + hours * HOUR;
    let began = Instant::now();
    store.tend(end + HOUR / 2).expect("it is tended");
    tending += began.elapsed();
    let bytes = store.bytes();
    println!("{written} profiles, {samples} samples, {:.1} MB on disk", bytes as f64 / 1e6);
    println!(
        "{:.0} bytes/profile, {:.2} bytes/sample",
        bytes as f64 / written as f64,
        bytes as f64 / samples as f64
    );
    println!(
        "appended {:.0} profiles/s ({:.2} M samples/s), slowest {slowest:?}; merges and sealing {tending:.2?}",
        written as f64 / appending.as_secs_f64(),
        samples as f64 / appending.as_secs_f64() / 1e6,
    );
    ask(&store.reader(), end);
}

fn ask(reader: &Reader, end: i64) {
    let one = Selection::of_service("service-0", "cpu");
    // Not whole hours, so that profiles at the ends are read one by one.
    let ragged = 437 * SECOND;
    let questions = [
        ("1 h of a service", one.clone().between(end - 2 * HOUR + ragged, end - HOUR + ragged)),
        ("the day of a service", one.clone().between(START + ragged, end - ragged)),
        ("the day of all services", Selection::default().between(START, end)),
    ];
    for (name, selection) in questions {
        let began = Instant::now();
        let answer = reader.query(&selection).expect("it is answered");
        println!(
            "query {name}: {:.0?}; {} profiles, {} records, {:.0} kB read, {} stacks",
            began.elapsed(),
            answer.profiles,
            answer.records_read,
            answer.bytes_read as f64 / 1e3,
            answer.profile.sample_count(),
        );
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
    ];
    for (name, before, after) in comparisons {
        let began = Instant::now();
        let compared = reader.diff(&before, &after, "cpu").expect("it is compared");
        println!(
            "diff {name}: {:.0?}; {} stacks, {} functions",
            began.elapsed(),
            compared.difference.stacks.len(),
            compared.difference.functions.len(),
        );
    }
}
