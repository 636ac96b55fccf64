//! Looks like a .NET process of two AppDomains, as old runtimes had them: its shared memory is
//! written by the bridge's own writer, its two threads burn CPU time, each in its own domain.
//! usage: two_domains SECONDS FOLDER

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_bridge_protocol::contexts::Context;
use strata_bridge_protocol::record::{AppDomain, Enumerated};
use strata_bridge_protocol::shared_file::monotonic_time;
use strata_bridge_protocol::status::State;
use strata_bridge_protocol::writer::Writer;

const DOMAINS: [(u64, &str, &str); 2] =
    [(0x1000, "Shop.dll", "shop-web"), (0x2000, "Jobs.dll", "")];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, seconds, folder] = arguments.as_slice() else {
        eprintln!("usage: two_domains SECONDS FOLDER");
        std::process::exit(2);
    };
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
    map_runtime(Path::new(folder));
    let writer = Arc::new(Writer::create().expect("shared memory"));
    let status = writer.status();
    status.set_runtime([9, 0, 7, 0], 15, "9.0.7");
    status.set_bridge("strata 0.1.0");
    status.set_state(State::Ready);
    for (id, name, service) in DOMAINS {
        let domain = AppDomain {
            id,
            runtime_id: [id as u8 ^ (id >> 8) as u8 | 1; 16],
            name,
            service,
            environment: "prod",
            version: "",
        };
        writer.append(monotonic_time(), &domain).expect("room");
    }
    for (id, ..) in DOMAINS {
        let writer = writer.clone();
        std::thread::spawn(move || burn_in(&writer, id));
    }
    println!("ready");
    let mut epoch = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        let Some(wishes) = writer.control().wishes() else { continue };
        if wishes.epoch != epoch {
            epoch = wishes.epoch;
            writer.append(monotonic_time(), &Enumerated { epoch }).expect("room");
        }
        writer.status().set_obeyed(wishes.epoch, wishes.generation);
    }
}

fn burn_in(writer: &Writer, app_domain: u64) {
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() } as u32;
    let slot = writer.register_thread(tid).expect("a slot");
    writer.set_context(slot, &Context { app_domain, ..Context::default() }).expect("a context");
    let mut sum = 0u64;
    loop {
        sum = std::hint::black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Maps code of a file that only .NET processes have.
fn map_runtime(folder: &Path) {
    let path = folder.join("libcoreclr.so");
    std::fs::write(&path, vec![0u8; 8192]).expect("a file");
    let file = std::fs::File::open(&path).expect("the same file");
    // SAFETY: a new mapping where there is room, of a file that is not changed.
    let mapped = unsafe {
        let access = libc::PROT_READ | libc::PROT_EXEC;
        libc::mmap(std::ptr::null_mut(), 8192, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
}
