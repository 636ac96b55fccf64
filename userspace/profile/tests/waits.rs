//! What waits: the program's own function, the system call, the state.

use strata_profile::{FrameKind, Label, LabelValue, Profile, ProfileBuilder, waits};

/// A wait of so many nanoseconds; frames are innermost first, with their kinds and files.
fn wait(
    builder: &mut ProfileBuilder,
    frames: &[(FrameKind, &str, &str)],
    labels: &[(&str, &str)],
    nanoseconds: i64,
) {
    let mut locations = Vec::new();
    for (number, &(kind, name, file)) in (1..).zip(frames) {
        let start = number << 32;
        let mapping = (!file.is_empty()).then(|| builder.mapping(start, start + 4096, 0, file, ""));
        let frame = builder.frame(kind, name, "", "", 0);
        locations.push(builder.location(start, mapping, &[frame]));
    }
    let stack = builder.stack(&locations);
    let labels: Vec<Label> = labels
        .iter()
        .map(|(key, value)| Label {
            key: builder.string(key),
            value: LabelValue::Text(builder.string(value)),
        })
        .collect();
    let labels = builder.labels(&labels);
    builder.add(stack, labels, &[nanoseconds]);
}

fn profile() -> Profile {
    use FrameKind::{Kernel, Managed, Native};
    let mut builder = ProfileBuilder::new(&[("offcpu", "nanoseconds")]);
    let scheduler = (Kernel, "__schedule", "");
    let libc = |name| (Native, name, "/usr/lib/libc.so.6");
    let futex = [("state", "blocked"), ("syscall", "futex")];
    wait(
        &mut builder,
        &[
            scheduler,
            (Kernel, "futex_wait", ""),
            libc("syscall"),
            (Native, "std::thread::park", "/srv/app"),
            (Native, "app::worker", "/srv/app"),
            (Native, "std::rt::lang_start", "/srv/app"),
            libc("start_thread"),
        ],
        &futex,
        60,
    );
    wait(
        &mut builder,
        &[
            scheduler,
            libc("pthread_cond_wait"),
            (Native, "ThreadNative::Sleep", "/opt/dotnet/libcoreclr.so"),
            (Managed, "System.Threading.Thread.Sleep", ""),
            (Managed, "Shop.Order.Pay", ""),
            libc("start_thread"),
        ],
        &futex,
        30,
    );
    wait(
        &mut builder,
        &[scheduler, libc("poll"), libc("start_thread")],
        &[("state", "stopped")],
        6,
    );
    wait(&mut builder, &[scheduler, (Kernel, "kthread", "")], &[], 4);
    builder.finish()
}

#[test]
fn the_programs_own_function_waits_and_not_its_libraries() {
    let waits = waits::summarize(&profile(), 0, 10);
    let functions: Vec<_> = waits
        .functions
        .iter()
        .map(|share| (share.name.as_str(), share.module.as_str(), share.percent))
        .collect();
    assert_eq!(
        functions,
        [
            ("app::worker", "app", 60.0),
            ("Shop.Order.Pay", "", 30.0),
            ("poll", "libc.so.6", 6.0),
            ("kthread", "", 4.0)
        ]
    );
}

#[test]
fn functions_of_the_libraries_of_go_and_python_are_not_the_programs_own() {
    let mut builder = ProfileBuilder::new(&[("wall", "nanoseconds")]);
    for (library, own) in [
        ("time.Sleep", "main.serve"),
        ("net.(*netFD).Read", "main.answer"),
        ("py::Thread.join:/usr/lib/python3.12/threading.py", "py::serve:/srv/app.py"),
        ("py::_find_and_load:<frozen importlib._bootstrap>", "py::<module>:/srv/app.py"),
    ] {
        let frames = [library, own].map(|name| (FrameKind::Native, name, "/srv/app"));
        wait(&mut builder, &frames, &[("state", "blocked")], 10);
    }
    let waits = waits::summarize(&builder.finish(), 0, 10);
    let mut functions: Vec<_> = waits.functions.iter().map(|share| &*share.name).collect();
    functions.sort_unstable();
    assert_eq!(
        functions,
        ["main.answer", "main.serve", "py::<module>:/srv/app.py", "py::serve:/srv/app.py"]
    );
}

#[test]
fn a_thread_that_runs_waits_in_no_system_call() {
    let mut builder = ProfileBuilder::new(&[("wall", "nanoseconds")]);
    let frames = [(FrameKind::Native, "app::work", "/srv/app")];
    wait(&mut builder, &frames, &[("state", "running")], 70);
    wait(&mut builder, &frames, &[("state", "blocked"), ("syscall", "futex")], 30);
    let waits = waits::summarize(&builder.finish(), 0, 10);
    let calls: Vec<_> = waits.system_calls.iter().map(|call| (&*call.name, call.percent)).collect();
    assert_eq!(calls, [("futex", 30.0)]);
}

#[test]
fn system_calls_and_states_are_summed() {
    let waits = waits::summarize(&profile(), 0, 1);
    assert_eq!((waits.functions.len(), waits.states.len()), (1, 1));
    assert_eq!((waits.system_calls[0].name.as_str(), waits.system_calls[0].value), ("futex", 90));
    assert_eq!((waits.states[0].name.as_str(), waits.states[0].percent), ("blocked", 90.0));
}

#[test]
fn waits_are_summed_by_process_without_what_runs_or_is_idle() {
    let mut builder = ProfileBuilder::new(&[("wall", "nanoseconds")]);
    let frames = [(FrameKind::Native, "app::work", "/srv/app")];
    let shop = [("state", "blocked"), ("pid", "7"), ("comm", "shop")];
    wait(&mut builder, &frames, &shop, 30);
    wait(&mut builder, &frames, &[("state", "runnable"), ("pid", "7"), ("comm", "shop")], 10);
    wait(&mut builder, &frames, &[("state", "running"), ("pid", "7"), ("comm", "shop")], 20);
    wait(&mut builder, &frames, &[("state", "blocked"), ("pid", "8"), ("comm", "shop")], 15);
    let idle = [("state", "blocked"), ("pid", "8"), ("comm", "shop"), ("idle", "libuv")];
    wait(&mut builder, &frames, &idle, 25);
    let waits = waits::summarize(&builder.finish(), 0, 10);
    let processes: Vec<_> =
        waits.processes.iter().map(|one| (&*one.name, one.pid, one.value, one.percent)).collect();
    assert_eq!(processes, [("shop", Some(7), 40, 40.0), ("shop", Some(8), 15, 15.0)]);
    // A service's profile has none.
    assert!(waits::summarize(&profile(), 0, 10).processes.is_empty());
}
