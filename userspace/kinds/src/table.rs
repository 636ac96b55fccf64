//! The table: one row per kind of sample. A new kind is a row at its end.
//!
//! The Pyroscope names are those that dashboards for .NET already query; the profile type id is
//! `profile:name:unit:period_name:period_unit`.

use crate::types::{
    Aggregation, BridgeEvents, Column, KindInfo, Measure, OtlpType, PyroscopeType, Quantity, Rate,
    Shape,
};

/// Declares the enum and the table together, so that a kind's number is its row's position.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident { $($row:tt)* })*) => {
        /// A kind of sample.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        /// How many kinds there are.
        pub const KIND_COUNT: usize = [$(Kind::$kind),*].len();

        impl Kind {
            pub const ALL: [Self; KIND_COUNT] = [$(Self::$kind),*];
        }

        static TABLE: [KindInfo; KIND_COUNT] = [$(KindInfo { kind: Kind::$kind, $($row)* }),*];
    };
}

const NANOSECONDS: &str = "nanoseconds";
const COUNT: &str = "count";
const BYTES: &str = "bytes";

const CPU: Quantity = quantity("cpu", NANOSECONDS);
const WALL: Quantity = quantity("wall", NANOSECONDS);
const OFF_CPU: Quantity = quantity("off_cpu", NANOSECONDS);
const EXCEPTIONS: Quantity = quantity("exceptions", COUNT);
const LOCK_TIME: Quantity = quantity("lock_time", NANOSECONDS);
const SPACE: Quantity = quantity("space", BYTES);
const GC_PAUSE: Quantity = quantity("gc_pause", NANOSECONDS);
const WAIT_HANDLE_TIME: Quantity = quantity("wait_handle_time", NANOSECONDS);

/// The loss of events of which a process may report some.
macro_rules! dropped {
    ($cause:literal, $what:literal) => {
        Some(BridgeEvents {
            dropped: $cause,
            dropped_text: concat!(
                $what,
                " of .NET processes dropped: more at once than one process may report, or is taken"
            ),
        })
    };
}

kinds! {
    /// A thread on a CPU when the sampling clock ticked.
    Cpu {
        name: "cpu",
        aliases: &[],
        help: "time on a CPU, by stack",
        title: "CPU time",
        columns: &[
            Column {
                pyroscope: pyroscope("process_cpu", quantity("cpu_samples", COUNT), CPU),
                datadog: Some(quantity("cpu-samples", COUNT)),
                otlp: otlp(quantity("samples", COUNT), CPU),
                ..delta(quantity("samples", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("process_cpu", CPU, CPU),
                datadog: Some(CPU),
                otlp: otlp(CPU, CPU),
                ..delta(CPU, Measure::Period)
            },
        ],
        default_column: 1,
        period: CPU,
        rate: Some(Rate { setting: "frequency", daemon: 19, recording: 97 }),
        keeps_times: true,
        on_by_default: true,
        shape: Shape::CpuSlice,
        bridge: None,
        telling_label: None,
        pyroscope_switches: &["PYROSCOPE_PROFILING_CPU_ENABLED"],
        datadog_switches: &["DD_PROFILING_CPU_ENABLED"],
    }

    /// Elapsed time of a thread, running or not.
    Wall {
        name: "wall",
        aliases: &["wall_clock", "walltime"],
        help: "elapsed time of every thread, running or waiting, by stack",
        title: "Wall-clock time",
        columns: &[Column {
            pyroscope: pyroscope("wall", WALL, CPU),
            datadog: Some(WALL),
            otlp: otlp(WALL, WALL),
            ..delta(WALL, Measure::Value)
        }],
        default_column: 0,
        period: WALL,
        rate: Some(Rate { setting: "wall_frequency", daemon: 10, recording: 20 }),
        keeps_times: false,
        on_by_default: false,
        shape: Shape::Blocked,
        bridge: None,
        telling_label: None,
        pyroscope_switches: &["PYROSCOPE_PROFILING_WALLTIME_ENABLED"],
        datadog_switches: &["DD_PROFILING_WALLTIME_ENABLED"],
    }

    /// A thread that was switched out, and for how long.
    OffCpu {
        name: "off_cpu",
        aliases: &["offcpu", "off"],
        help: "time that threads were switched out, by the stack that waited",
        title: "Off-CPU time",
        columns: &[Column {
            pyroscope: pyroscope("offcpu", quantity("offcpu", NANOSECONDS), CPU),
            otlp: otlp(OFF_CPU, OFF_CPU),
            ..delta(OFF_CPU, Measure::Value)
        }],
        default_column: 0,
        period: OFF_CPU,
        rate: None,
        keeps_times: false,
        on_by_default: false,
        shape: Shape::Blocked,
        bridge: None,
        telling_label: None,
        pyroscope_switches: &[],
        datadog_switches: &[],
    }

    /// A .NET exception was thrown.
    Exceptions {
        name: "exceptions",
        aliases: &["exception", "ex"],
        help: ".NET exceptions thrown, by type and stack",
        title: "Exceptions",
        columns: &[Column {
            pyroscope: pyroscope("exception", quantity("exception", COUNT), CPU),
            datadog: Some(quantity("exception", COUNT)),
            otlp: otlp(EXCEPTIONS, EXCEPTIONS),
            ..delta(EXCEPTIONS, Measure::Count)
        }],
        default_column: 0,
        period: EXCEPTIONS,
        rate: None,
        keeps_times: true,
        on_by_default: false,
        shape: Shape::Event,
        bridge: dropped!("exceptions_dropped", "exceptions"),
        telling_label: Some("exception type"),
        pyroscope_switches: &["PYROSCOPE_PROFILING_EXCEPTION_ENABLED"],
        datadog_switches: &["DD_PROFILING_EXCEPTION_ENABLED"],
    }

    /// A thread waited for a .NET lock.
    Locks {
        name: "locks",
        aliases: &["lock", "contention"],
        help: "waits for contended .NET locks: how many and how long, by stack",
        title: "Lock contention",
        columns: &[
            Column {
                pyroscope: pyroscope("lock", quantity("lock_count", COUNT), CPU),
                datadog: Some(quantity("lock-count", COUNT)),
                otlp: otlp(quantity("lock_count", COUNT), LOCK_TIME),
                ..delta(quantity("lock_count", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("lock", LOCK_TIME, CPU),
                datadog: Some(quantity("lock-time", NANOSECONDS)),
                otlp: otlp(LOCK_TIME, LOCK_TIME),
                ..delta(LOCK_TIME, Measure::Value)
            },
        ],
        default_column: 1,
        period: LOCK_TIME,
        rate: None,
        keeps_times: true,
        on_by_default: false,
        shape: Shape::Blocked,
        bridge: dropped!("locks_dropped", "lock waits"),
        telling_label: Some("blocking thread name"),
        pyroscope_switches: &[
            "PYROSCOPE_PROFILING_LOCK_ENABLED",
            "PYROSCOPE_PROFILING_CONTENTION_ENABLED",
        ],
        datadog_switches: &["DD_PROFILING_LOCK_ENABLED", "DD_PROFILING_CONTENTION_ENABLED"],
    }

    /// A .NET object was allocated.
    Allocations {
        name: "allocations",
        aliases: &["allocation", "alloc", "allocs"],
        help: ".NET objects allocated: how many and how large, by type and stack",
        title: "Allocations",
        columns: &[
            Column {
                pyroscope: pyroscope("memory", quantity("alloc_samples", COUNT), SPACE),
                datadog: Some(quantity("alloc-samples", COUNT)),
                otlp: otlp(quantity("alloc_samples", COUNT), SPACE),
                ..delta(quantity("alloc_samples", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("memory", quantity("alloc_size", BYTES), SPACE),
                datadog: Some(quantity("alloc-size", BYTES)),
                otlp: otlp(quantity("alloc_size", BYTES), SPACE),
                ..delta(quantity("alloc_size", BYTES), Measure::Value)
            },
        ],
        default_column: 1,
        period: SPACE,
        rate: None,
        keeps_times: false,
        on_by_default: false,
        shape: Shape::Event,
        bridge: dropped!("allocations_dropped", "allocations"),
        telling_label: Some("allocation class"),
        pyroscope_switches: &["PYROSCOPE_PROFILING_ALLOCATION_ENABLED"],
        datadog_switches: &["DD_PROFILING_ALLOCATION_ENABLED"],
    }

    /// A .NET object that was alive at the end of the period.
    Heap {
        name: "heap",
        aliases: &["live_heap", "inuse"],
        help: ".NET objects in use at the end of a period: how many and how large, by type and the \
               stack that allocated them",
        title: "Live heap",
        columns: &[
            Column {
                pyroscope: pyroscope("memory", quantity("inuse_objects", COUNT), SPACE),
                datadog: Some(quantity("inuse-objects", COUNT)),
                otlp: otlp(quantity("inuse_objects", COUNT), SPACE),
                ..snapshot(quantity("inuse_objects", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("memory", quantity("inuse_space", BYTES), SPACE),
                datadog: Some(quantity("inuse-space", BYTES)),
                otlp: otlp(quantity("inuse_space", BYTES), SPACE),
                ..snapshot(quantity("inuse_space", BYTES), Measure::Value)
            },
        ],
        default_column: 1,
        period: SPACE,
        rate: None,
        keeps_times: false,
        on_by_default: false,
        shape: Shape::Event,
        bridge: dropped!("heap_dropped", "objects"),
        telling_label: Some("allocation class"),
        pyroscope_switches: &["PYROSCOPE_PROFILING_HEAP_ENABLED"],
        datadog_switches: &["DD_PROFILING_HEAP_ENABLED"],
    }

    /// A .NET process was paused for a garbage collection.
    Gc {
        name: "gc",
        aliases: &["collections"],
        help: "pauses of .NET processes for garbage collections: how many and how long, by the \
               stack that collected",
        title: "GC pauses",
        columns: &[
            Column {
                pyroscope: pyroscope("gc", quantity("gc_count", COUNT), CPU),
                otlp: otlp(quantity("gc_count", COUNT), GC_PAUSE),
                ..delta(quantity("gc_count", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("gc", GC_PAUSE, CPU),
                // Datadog shows collections on a line of time.
                datadog: Some(quantity("timeline", NANOSECONDS)),
                otlp: otlp(GC_PAUSE, GC_PAUSE),
                ..delta(GC_PAUSE, Measure::Value)
            },
        ],
        default_column: 1,
        period: GC_PAUSE,
        rate: None,
        keeps_times: true,
        on_by_default: false,
        shape: Shape::Collection,
        bridge: dropped!("gc_dropped", "pauses"),
        telling_label: None,
        pyroscope_switches: &["PYROSCOPE_PROFILING_GC_ENABLED"],
        datadog_switches: &["DD_PROFILING_GC_ENABLED"],
    }

    /// A thread waited for a .NET wait handle, or in `Monitor.Wait`.
    WaitHandles {
        name: "wait_handles",
        aliases: &["wait_handle", "handles"],
        help: "waits of .NET threads for events, semaphores, tasks and other threads: how many and \
               how long, by stack (.NET 9 and later)",
        title: "Waits for handles",
        columns: &[
            Column {
                pyroscope: pyroscope("wait_handle", quantity("wait_handle_count", COUNT), CPU),
                otlp: otlp(quantity("wait_handle_count", COUNT), WAIT_HANDLE_TIME),
                ..delta(quantity("wait_handle_count", COUNT), Measure::Count)
            },
            Column {
                pyroscope: pyroscope("wait_handle", WAIT_HANDLE_TIME, CPU),
                otlp: otlp(WAIT_HANDLE_TIME, WAIT_HANDLE_TIME),
                ..delta(WAIT_HANDLE_TIME, Measure::Value)
            },
        ],
        default_column: 1,
        period: WAIT_HANDLE_TIME,
        rate: None,
        keeps_times: true,
        on_by_default: false,
        shape: Shape::Blocked,
        bridge: dropped!("wait_handles_dropped", "waits for handles"),
        telling_label: Some("wait source"),
        pyroscope_switches: &[],
        datadog_switches: &[],
    }
}

impl Kind {
    /// Its row.
    #[must_use]
    pub const fn info(self) -> &'static KindInfo {
        &TABLE[self as usize]
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().name
    }

    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        self.info().columns
    }

    /// The kind of a number in a record or file.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The kind of this name or alias; case does not matter, and `-` is the same as `_`.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let same = |name: &str| {
            let equal = |(name, given): (u8, u8)| {
                let given = if given == b'-' { b'_' } else { given };
                name == given.to_ascii_lowercase()
            };
            name.len() == text.len() && name.bytes().zip(text.bytes()).all(equal)
        };
        let named = |info: &KindInfo| same(info.name) || info.aliases.iter().any(|name| same(name));
        TABLE.iter().find(|info| named(info)).map(|info| info.kind)
    }
}

/// The column of strata's own name and unit, and its kind.
#[must_use]
pub fn find_column(name: &str, unit: &str) -> Option<(Kind, &'static Column)> {
    TABLE.iter().find_map(|info| {
        let column = info.columns.iter();
        let column =
            { column }.find(|column| column.own.name == name && column.own.unit == unit)?;
        Some((info.kind, column))
    })
}

const fn quantity(name: &'static str, unit: &'static str) -> Quantity {
    Quantity { name, unit }
}

const fn pyroscope(
    profile: &'static str,
    value: Quantity,
    period: Quantity,
) -> Option<PyroscopeType> {
    Some(PyroscopeType { profile, value, period })
}

const fn otlp(value: Quantity, period: Quantity) -> Option<OtlpType> {
    Some(OtlpType { value, period })
}

const fn delta(own: Quantity, measure: Measure) -> Column {
    let aggregation = Aggregation::Delta;
    Column { own, measure, aggregation, pyroscope: None, datadog: None, otlp: None }
}

const fn snapshot(own: Quantity, measure: Measure) -> Column {
    Column { aggregation: Aggregation::Snapshot, ..delta(own, measure) }
}
