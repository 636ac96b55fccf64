//! Lists the CLR processes of this host: what is seen of each, and what stands in the way of
//! attaching. `cargo run -p strata-clr --example list`, as root.

use std::time::Instant;

use strata_clr::session::presence;
use strata_clr::{discover, runtime_version};

fn main() {
    let (mut looked, start) = (0, Instant::now());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        looked += 1;
        let process = match discover(pid) {
            Ok(Some(process)) => process,
            Ok(None) => continue,
            Err(error) => {
                println!("{pid}: {error}");
                continue;
            }
        };
        let version = runtime_version(&process);
        let version = version.map_or_else(|| "unknown version".to_owned(), |v| v.to_string());
        println!(
            "{pid}: {:?}, {version}, inner pid {}",
            process.evidence, process.status.inner_pid
        );
        match &process.sockets {
            Ok(sockets) => sockets.iter().for_each(|socket| println!("  socket {}", socket.path)),
            Err(error) => println!("  {error}"),
        }
        for profiler in process.switches.profilers() {
            println!("  asks for {profiler}");
        }
        println!("  {:?}", presence(&process.target, &process.shared));
    }
    println!("{looked} processes in {:?}", start.elapsed());
}
