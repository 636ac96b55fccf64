//! Prints what can be read from an assembly's precompiled code, and the cost of reading it: `cargo
//! run --release --example measure -- FILE.dll …`, with `--list` for every method.

use std::fs::File;
use std::time::Instant;

use strata_bytes::FileAt;
use strata_dotnet::{CodePart, ManagedImage};

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = std::env::args().any(|argument| argument == "--list");
    for path in std::env::args().skip(1).filter(|argument| argument != "--list") {
        let file = FileAt::new(File::open(&path)?)?;
        let before = resident_kib();
        let start = Instant::now();
        let image = match ManagedImage::open(&file) {
            Ok(image) => image,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let opened = start.elapsed();
        let start = Instant::now();
        let code = match image.native_code() {
            Ok(Some(code)) => code,
            Ok(None) => {
                println!("{path}: no precompiled code, opened in {opened:?}");
                continue;
            }
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let read = start.elapsed();
        let memory = resident_kib().saturating_sub(before);
        let (methods, instances) = code.counts();
        let functions = image.runtime_functions();
        let start = Instant::now();
        let (mut named, mut foreign, mut funclets, mut cold) = (0, 0, 0, 0);
        for function in functions {
            let Some(method) = image.method_at_rva(function.begin) else {
                if list {
                    println!("{:x} ?", function.begin);
                }
                continue;
            };
            named += 1;
            foreign += usize::from(method.assembly.is_some());
            funclets += usize::from(method.part == CodePart::Funclet);
            cold += usize::from(method.part == CodePart::Cold);
            if list {
                println!(
                    "{:x} {:?} {:x} [{}] {}::{} <{}> <{}>{}",
                    function.begin,
                    method.part,
                    method.token,
                    method.assembly.as_deref().unwrap_or(""),
                    method.type_name,
                    method.method_name,
                    method.class_args.join(" | "),
                    method.method_args.join(" | "),
                    if method.shared { " SHARED" } else { "" },
                );
            }
        }
        let walked = start.elapsed();
        println!(
            "{path}: R2R {}.{} {:?}, {methods} methods ({instances} instances), {} functions: \
             {named} named, {foreign} of other assemblies, {funclets} funclets, {cold} cold; \
             open {opened:?}, tables {read:?}, {memory} KiB, all names {walked:?}; {:?}",
            code.major_version,
            code.minor_version,
            code.kind,
            functions.len(),
            code.problems(),
        );
    }
    Ok(())
}
