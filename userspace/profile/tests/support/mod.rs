//! A profile with every kind of frame, label and mapping.
#![allow(dead_code, reason = "each test file uses what it needs of it")]

use strata_kinds::Kind;
use strata_profile::{
    FrameKind, LabelsId, LocationId, Profile, ProfileBuilder, StackId, ThreadId, Tick,
};

pub const PERIOD: i64 = 10_309_278;

/// A builder as a recording has it.
pub fn recording() -> ProfileBuilder {
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", PERIOD);
    builder.set_default_sample_type("cpu");
    builder.set_start(1_763_712_550_000_000_000);
    builder.set_duration(10_000_000_000);
    builder.set_host("web-1");
    builder.comment("recorded by a test");
    builder
}

/// Adds a stack of names, leaf first, so many times.
pub fn add(builder: &mut ProfileBuilder, thread: ThreadId, names: &[&str], count: i64) -> StackId {
    let locations: Vec<LocationId> = names.iter().map(|name| native(builder, name)).collect();
    let stack = builder.stack(&locations);
    let labels = builder.thread_labels(thread);
    builder.add(stack, labels, &[count, count * PERIOD]);
    stack
}

pub fn native(builder: &mut ProfileBuilder, name: &str) -> LocationId {
    let frame = builder.frame(FrameKind::Native, name, "", "", 0);
    builder.location(0, None, &[frame])
}

/// A slice of a CPU.
pub fn on_cpu(labels: LabelsId, stack: StackId, time: u64) -> Tick {
    Tick { kind: Kind::Cpu, labels, stack, time, weight: 1, value: PERIOD.unsigned_abs() }
}

/// Kernel on native on JIT and managed, inlined functions, a truncated stack, an unknown address.
pub fn everything() -> Profile {
    let mut builder = recording();
    builder.keep_timeline();
    let kernel = builder.mapping(0xffff_ffff_8000_0000, u64::MAX, 0, "[kernel.kallsyms]", "");
    let libc = builder.mapping(
        0x7f00_0000_0000,
        0x7f00_0020_0000,
        0x2_8000,
        "/usr/lib/libc.so.6",
        "c0ffee",
    );
    let app = builder.mapping(0x55_0000, 0x56_0000, 0, "/srv/app (deleted)", "");
    let anonymous = builder.mapping(0x7e00_0000_0000, 0x7e00_0010_0000, 0, "/srv/app", "");

    let read = builder.frame(FrameKind::Kernel, "vfs_read", "", "", 0);
    let read = builder.location(0xffff_ffff_8123_4567, Some(kernel), &[read]);
    let libc_read = builder.frame(FrameKind::Native, "read", "__GI___libc_read", "read.c", 26);
    let libc_read = builder.location(0x7f00_0010_0000, Some(libc), &[libc_read]);
    let inner = builder.frame(FrameKind::Native, "app::inner", "_ZN3app5innerE", "src/app.rs", 7);
    let outer = builder.frame(FrameKind::Native, "app::outer", "_ZN3app5outerE", "src/app.rs", 70);
    let app_code = builder.location(0x55_1234, Some(app), &[inner, outer]);
    let script = builder.frame(FrameKind::Jit, "*render view.js:3", "", "", 0);
    let script = builder.location(0x7e00_0000_1000, Some(anonymous), &[script]);
    let method = builder.frame(
        FrameKind::Managed,
        "Shop.Order.Pay",
        "System.Void Shop.Order.Pay()",
        "Order.cs",
        12,
    );
    let method = builder.location(0x7e00_0000_2000, None, &[method]);
    let stub = builder.location(0x7f00_0000_1234, Some(libc), &[]);
    let unknown = builder.location(0x1234, None, &[]);
    let cut = builder.frame(FrameKind::Marker, "[truncated]", "", "", 0);
    let cut = builder.location(0, None, &[cut]);

    let main = builder.thread(41, 41, "app", "app", "3f29c0ffee");
    let worker = builder.thread(41, 42, "worker 1", "app", "3f29c0ffee");
    let other = builder.thread(77, 77, "other", "other", "");
    let stacks: [(ThreadId, &[LocationId], i64); 6] = [
        (main, &[read, libc_read, app_code], 500),
        (main, &[app_code], 300),
        (worker, &[script, app_code], 120),
        (worker, &[method, script, app_code], 50),
        (other, &[stub, unknown, cut], 25),
        (other, &[], 5),
    ];
    let mut time = 0;
    for (thread, locations, count) in stacks {
        let stack = builder.stack(locations);
        let labels = builder.thread_labels(thread);
        for _ in 0..count {
            builder.add(stack, labels, &[1, PERIOD]);
            builder.tick(on_cpu(labels, stack, time));
            time += 10_000_000;
        }
    }
    builder.finish()
}

/// A profile with one stack of hostile names.
pub fn hostile() -> Profile {
    let mut builder = recording();
    let thread = builder.thread(1, 1, "<script>alert(1)</script>", "\x1b]0;owned\x07\"'&", "]]>");
    let names = HOSTILE_NAMES;
    for (count, name) in (1..).zip(names) {
        add(&mut builder, thread, &[name, "main"], count);
    }
    builder.finish()
}

pub const HOSTILE_NAMES: [&str; 14] = [
    "<script>alert(1)</script>",
    "\"onload=\"alert(1)",
    "'&amp;&lt;",
    "]]><script>alert(1)</script>",
    "\x1b[31mred\x1b[0m",
    "a;b;c 12",
    "line\nbreak 7",
    "\r\u{85}\u{2028}\u{2029}",
    "\u{202e}gnp.exe\u{2066}",
    "\0\u{1}\u{b}\u{ffff}\u{fffe}",
    "\u{feff}\u{200b}\u{e0041}",
    "--> <!-- <![CDATA[",
    "#comment",
    " lead and trail ",
];

/// Everything in a profile, in an order that does not depend on ids.
pub fn described(profile: &Profile) -> Vec<String> {
    let mut lines: Vec<String> = profile
        .samples()
        .map(|sample| {
            let frames: Vec<String> = profile
                .stack(sample.stack)
                .flat_map(|id| {
                    let location = profile.location(id);
                    let build_id = location
                        .mapping
                        .map(|mapping| profile.string(profile.mapping(mapping).build_id));
                    profile.frames(location).iter().map(move |frame| {
                        format!(
                            "{:?} {:?} {:?} {:?}:{} at {:x} build id {:?}",
                            frame.kind,
                            profile.string(frame.name),
                            profile.string(frame.system_name),
                            profile.string(frame.file),
                            frame.line,
                            location.address,
                            build_id.unwrap_or_default(),
                        )
                    })
                })
                .collect();
            format!(
                "{:?} {} {}",
                sample.values,
                labels(profile, sample.labels),
                frames.join(" <- ")
            )
        })
        .collect();
    lines.sort();
    let name = |kind: strata_profile::ValueType| {
        format!("{}/{}", profile.string(kind.name), profile.string(kind.unit))
    };
    let types: Vec<String> = profile.sample_types.iter().map(|&kind| name(kind)).collect();
    let comments: Vec<&str> = profile.comments.iter().map(|&id| profile.string(id)).collect();
    lines.push(format!(
        "types {types:?} default {:?} period {} {} start {} duration {} host {:?} comments {comments:?}",
        profile.string(profile.default_sample_type),
        name(profile.period_type),
        profile.period,
        profile.start_nanos,
        profile.duration_nanos,
        profile.string(profile.host),
    ));
    lines
}

fn labels(profile: &Profile, labels: LabelsId) -> String {
    let list: Vec<String> = profile
        .labels(labels)
        .iter()
        .map(|label| match label.value {
            strata_profile::LabelValue::Text(text) => {
                format!("{}={:?}", profile.string(label.key), profile.string(text))
            }
            strata_profile::LabelValue::Number { value, unit } => {
                format!("{}={value}{}", profile.string(label.key), profile.string(unit))
            }
        })
        .collect();
    format!("{{{}}}", list.join(","))
}
