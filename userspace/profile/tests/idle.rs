//! Which stacks are of idle threads.

use strata_profile::{FrameKind, ProfileBuilder, idle};

type Frames<'a> = &'a [(FrameKind, &'a str, &'a str)];

fn of(thread: &str, frames: Frames<'_>) -> Option<&'static str> {
    let mut builder = ProfileBuilder::new(&[("wall", "nanoseconds")]);
    let mut locations = Vec::new();
    for (number, &(kind, name, file)) in (1..).zip(frames) {
        let start = number << 32;
        let mapping = (!file.is_empty()).then(|| builder.mapping(start, start + 4096, 0, file, ""));
        let frame = builder.frame(kind, name, "", "", 0);
        locations.push(builder.location(start, mapping, &[frame]));
    }
    let stack = builder.stack(&locations);
    idle::of_stack(&builder.finish(), stack, thread)
}

const LIBC: &str = "/usr/lib/libc.so.6";

#[test]
fn a_pools_worker_is_idle_until_it_calls_the_program() {
    use FrameKind::{Kernel, Managed, Marker, Native};
    let waits = (Managed, "System.Threading.LowLevelLifoSemaphore.Wait", "");
    let pool = (Managed, "System.Threading.PortableThreadPool.WorkerThread.WorkerThreadStart", "");
    let native = (Native, "app!0x123", "/srv/app");
    let start = (Native, "start_thread", LIBC);
    let kernel = (Kernel, "futex_wait", "");
    assert_eq!(of("worker", &[kernel, native, waits, pool, start]), Some(".NET thread pool"));
    let own = (Managed, "Shop.Order.Pay", "");
    assert_eq!(of("worker", &[kernel, native, waits, own, pool, start]), None);
    let cut = (Marker, "[incomplete]", "");
    assert_eq!(of("worker", &[kernel, native, waits, pool, cut]), None);
}

#[test]
fn a_runtimes_own_thread_is_idle_and_one_that_is_named_like_it_only_with_native_code() {
    use FrameKind::{Jit, Native};
    let (poll, runtime) = ((Native, "poll", LIBC), (Native, "app!0x1", "/srv/app"));
    assert_eq!(of(".NET SynchManag", &[poll, runtime]), Some(".NET runtime"));
    assert_eq!(of("main", &[poll, runtime]), None);
    assert_eq!(of(".NET SynchManag", &[poll, (Jit, "[jit]!0x1", ""), runtime]), None);
    assert_eq!(of("main", &[poll]), None);
    assert_eq!(of("main", &[]), None);
}

#[test]
fn the_thread_of_stratas_own_library_is_idle_and_not_what_is_named_like_it() {
    use FrameKind::{Kernel, Managed, Native};
    let waits = [(Kernel, "futex_wait", ""), (Native, "syscall", LIBC)];
    let own = (Native, "[strata-clr]!0x21050", "[strata-clr]");
    let start = (Native, "start_thread", LIBC);
    let stack = |frames: &[_]| [&waits, frames, &[start]].concat();
    assert_eq!(of("strata-clr", &stack(&[own])), Some("strata"));
    assert_eq!(of("strata-clr-duty", &stack(&[own])), Some("strata"));
    assert_eq!(of("strata-clr", &stack(&[])), None);
    assert_eq!(of("worker", &stack(&[own])), None);
    assert_eq!(of("strata-clr", &stack(&[own, (Managed, "Shop.Pay", "/srv/Shop.dll")])), None);
    assert_eq!(of("strata-clr", &stack(&[own, (Native, "work", "/srv/app")])), None);
}

#[test]
fn code_that_was_compiled_ahead_of_time_is_the_programs_and_not_the_runtimes() {
    use FrameKind::Native;
    let (poll, start) = ((Native, "poll", LIBC), (Native, "start_thread", LIBC));
    let own = (Native, "Shop_Order__Pay", "/srv/shop");
    for thread in [".NET TP Worker", ".NET Finalizer", ".NET Sockets", ".NET Timer"] {
        assert_eq!(of(thread, &[poll, own, start]), None, "{thread}");
    }
    let runtime = (Native, "FinalizerThread", "/usr/lib/dotnet/libcoreclr.so");
    assert_eq!(of(".NET Finalizer", &[poll, runtime, start]), Some(".NET runtime"));
}

#[test]
fn symbols_of_rust_may_have_angle_brackets() {
    use FrameKind::Native;
    let wait = (Native, "parking_lot::condvar::Condvar::wait_until_internal", "/srv/app");
    let run = (Native, "<tokio::runtime::blocking::pool::Inner>::run", "/srv/app");
    assert_eq!(of("tokio-rt-worker", &[wait, run]), Some("tokio"));
    let job = (Native, "app::job", "/srv/app");
    assert_eq!(of("tokio-rt-worker", &[wait, job, run]), None);
}
