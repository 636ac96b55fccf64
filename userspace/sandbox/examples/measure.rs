//! What opening and parsing cost here: run it as root with `cargo run --release --example measure`.
//!
//! The service's children are this program itself.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_sandbox::{
    ChildCommand, Config, FileService, Lane, Locator, OpenFile, ProcessRef, Reply, Request,
    StandardJobs, run_opener, run_worker,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().unwrap_or_default().to_str() {
        Some("internal-opener") => {
            let lane =
                arguments.next().and_then(|lane| Lane::from_argument(lane.as_encoded_bytes()));
            Ok(run_opener(lane.ok_or("no lane")?)?)
        }
        Some("internal-worker") => Ok(run_worker(&StandardJobs)?),
        _ => measure(),
    }
}

/// Every file mapped for execution on this host, by one process that maps it.
fn mappings() -> Vec<Locator> {
    let mut seen = BTreeSet::new();
    let mut locators = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse() else { continue };
        let maps = std::fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [range, permissions, _, device, inode, ..] = fields.as_slice() else { continue };
            if !permissions.contains('x')
                || *inode == "0"
                || !seen.insert((device.to_string(), inode.to_string()))
            {
                continue;
            }
            let Some((start, end)) = range.split_once('-') else { continue };
            let address = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let process = ProcessRef { pid, start_time: None };
            locators.push(Locator::Mapped { process, start: address(start), end: address(end) });
        }
    }
    locators
}

fn opened(outcomes: Vec<Result<Reply, strata_sandbox::FileError>>) -> Vec<Arc<OpenFile>> {
    let file = |outcome| if let Ok(Reply::Opened(file)) = outcome { Some(file) } else { None };
    outcomes.into_iter().filter_map(file).collect()
}

fn per_item(label: &str, count: usize, took: Duration) {
    println!("{label:<44} {count:>6} in {took:>10.2?}: {:>9.2?} each", took / count.max(1) as u32);
}

fn measure() -> Result<(), Box<dyn Error>> {
    let config = Config { cache: None, command: ChildCommand::default(), ..Config::default() };
    let mut service = FileService::new(config)?;
    let locators = mappings();
    let open = |service: &mut FileService, count: usize| {
        let requests: Vec<_> =
            locators.iter().cycle().take(count).cloned().map(Request::Open).collect();
        let start = Instant::now();
        let files = opened(service.call_all(requests));
        (files, start.elapsed())
    };
    let (_, took) = open(&mut service, 1);
    per_item("first file, starting the opener", 1, took);
    for count in [50, 1000] {
        let (files, took) = open(&mut service, count);
        per_item("files opened", files.len(), took);
    }
    let (files, _) = open(&mut service, locators.len());

    let start = Instant::now();
    let read = |file: &Arc<OpenFile>| Request::Read { file: file.clone(), offset: 0, length: 64 };
    files.first().map(|file| service.call(read(file)));
    per_item("first job, starting the worker", 1, start.elapsed());
    let start = Instant::now();
    for file in files.iter().cycle().take(1000) {
        service.call(read(file))?;
    }
    per_item("small jobs, one after the other", 1000, start.elapsed());

    let start = Instant::now();
    let tables = |file: &Arc<OpenFile>| Request::UnwindTable {
        file: file.clone(),
        part: None,
        limits: Default::default(),
    };
    let outcomes = service.call_all(files.iter().map(tables).collect());
    per_item("unwind tables of all mapped files", outcomes.len(), start.elapsed());
    let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    failed.for_each(|error| println!("  without a table: {error}"));

    let folder = std::env::temp_dir().join(format!("strata-measure-{}", std::process::id()));
    let cache = strata_sandbox::CacheConfig { directory: folder.clone(), max_bytes: 1 << 30 };
    for round in ["to an empty cache", "from the cache"] {
        let mut service =
            FileService::new(Config { cache: Some(cache.clone()), ..Config::default() })?;
        let (files, _) = {
            let requests = locators.iter().cloned().map(Request::Open).collect();
            (opened(service.call_all(requests)), ())
        };
        let start = Instant::now();
        let outcomes = service.call_all(files.iter().map(tables).collect());
        per_item(&format!("unwind tables {round}"), outcomes.len(), start.elapsed());
        println!("  {:?}", service.statistics().cache);
    }
    std::fs::remove_dir_all(folder)?;
    println!("{:#?}", service.statistics());
    for child in service.children() {
        println!("{child:?}");
    }
    Ok(())
}
