//! Loads the BPF programs and owns their maps: the only module that knows aya.
//!
//! This module has the settings, the errors, and the loading of all programs and of what every one of
//! them uses: records, rules, segments. The other modules have what [`Programs`] does with programs and
//! maps of their own:
//!
//! - [`clocks`]: the sampler's perf events, and CPUs that come and go.
//! - [`entries`]: what the programs know of a process.
//! - [`off_cpu`], the off-CPU sampler; [`threads`], the iterator over threads; [`clr_events`], events of
//!   the CLR: not every run needs them.

mod clocks;
mod clr_events;
mod entries;
mod off_cpu;
mod offsets;
mod quarantine;
mod threads;

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, IterableMap, Map, MapData, MapError, RingBuf};
use aya::programs::{PerfEvent, Program, ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfLoader, Pod};
use aya_log::EbpfLogger;
use strata_abi::memory::Hot;
use strata_abi::record::Counter;
use strata_abi::rule::{MAX_RULES, Rule};
use strata_abi::tables::{SEGMENT_BYTES, SEGMENT_WORDS, UNWANTED_PROCESSES};

use super::broker::client::{Broker, BrokerState};
use super::introspect::{self, ProgramUse};
use super::memory::{MapMemory, RestingMemory};
use super::names::KernelNames;
use super::perf_event::{self, CpuEvent};
use super::probes::Probes;
use super::type_info::{KernelTypes, TypeError};
use clocks::Clocks;
use clr_events::ClrEvents;
use entries::Entries;
use off_cpu::OffCpu;
use offsets::Offsets;
pub use threads::PassReport;
use threads::Threads;

/// The programs, built from `ebpf/programs` and kept beside their source.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ebpf/strata.bpf.o"));

/// Names another object to load, for development of the programs: one built with their diagnostics.
const OBJECT_VARIABLE: &str = "STRATA_BPF_OBJECT";

fn object() -> Result<Cow<'static, [u8]>, LoadError> {
    let Some(path) = std::env::var_os(OBJECT_VARIABLE) else { return Ok(Cow::Borrowed(OBJECT)) };
    std::fs::read(&path)
        .map(Cow::Owned)
        .map_err(|source| LoadError::Object { path: path.to_string_lossy().into_owned(), source })
}

/// The programs' diagnostics, in a build with the feature `log`.
struct Diagnostics(EbpfLogger<&'static dyn log::Log>);

impl Diagnostics {
    fn of(ebpf: &mut Ebpf) -> Option<Self> {
        // The released object has no such map.
        ebpf.map("AYA_LOGS")?;
        EbpfLogger::init(ebpf)
            .map(Self)
            .inspect_err(|error| tracing::warn!(%error, "BPF diagnostics cannot be read"))
            .ok()
    }
}

const MMAPABLE: u32 = 0x400;
/// The program that takes samples.
const SAMPLER: &str = "sample_cpu";

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the BPF programs could not be loaded")]
    Load(#[from] aya::EbpfError),
    #[error("the BPF program `{name}` was refused")]
    Program { name: &'static str, source: ProgramError },
    #[error("the BPF map `{name}` is not usable")]
    Map { name: &'static str, source: MapError },
    #[error("the BPF map `{name}` cannot be mapped into memory")]
    Memory { name: &'static str, source: io::Error },
    #[error("the BPF object has no `{0}`: it does not belong to this build")]
    Missing(&'static str),
    #[error("the BPF object `{path}` (from {OBJECT_VARIABLE}) cannot be read")]
    Object { path: String, source: io::Error },
    #[error("the kernel's types cannot be read")]
    Types(#[source] aya::BtfError),
    #[error(transparent)]
    Fields(#[from] TypeError),
    #[error(
        "threads cannot be walked, as wall-clock time and `strata stacks` need: Linux 5.18 is the first \
         that can"
    )]
    Walker(#[source] ProgramError),
    #[error("threads cannot be walked")]
    Walk(#[source] io::Error),
    #[error("walking threads failed: {0}")]
    Pass(#[source] io::Error),
    #[error("the timer of a CPU cannot be opened (perf_event_open): {0}")]
    Clock(#[source] io::Error),
    #[error("the BPF program cannot be attached to the timer of a CPU: {0}")]
    Attach(#[source] io::Error),
    #[error("the online CPUs cannot be read from {0}")]
    Cpus(String),
}

/// Settings that are fixed before the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub max_frames: u32,
    /// Bytes of the record ring; a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Samples per second and CPU.
    pub frequency: u64,
    /// Whose threads are walked on request ([`Programs::order_passes`]).
    pub threads_of: ThreadsOf,
    /// The threads of all processes are walked again and again.
    pub wall: bool,
    /// Waits are sampled, and may cost so many thousandths of a CPU.
    pub off_cpu: Option<u32>,
    /// Events of the CLR are taken.
    pub clr_events: bool,
}

#[cfg(test)]
impl Settings {
    /// Of tests that load the programs, as root.
    pub fn of_tests() -> Self {
        Self {
            max_frames: 64,
            ring_bytes: 1 << 16,
            frequency: 19,
            threads_of: ThreadsOf::None,
            wall: false,
            off_cpu: None,
            clr_events: false,
        }
    }
}

/// See [`Settings::threads_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadsOf {
    None,
    Process(u32),
    /// Of all that are not skipped ([`strata_abi::tables::PROCESS_SKIP`]).
    All,
}

/// A program's working memory of one CPU. The counters are read a few times a second; the rest is
/// private to the program.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct HotValue(Hot);
// SAFETY: `Hot` is `repr(C)` without padding and any bytes are a value of it.
unsafe impl Pod for HotValue {}

impl HotValue {
    fn counter(&self, counter: usize) -> Option<u64> {
        self.0.counters.get(counter).copied()
    }
}

type Segment = Array<MapData, [u32; SEGMENT_WORDS]>;

/// The loaded programs and their maps.
pub struct Programs {
    ebpf: Ebpf,
    diagnostics: Option<Diagnostics>,
    entries: Entries,
    segments: ArrayOfMaps<MapData, Segment>,
    /// Keeps the segments' maps; a segment's number is its position.
    inner: Vec<Segment>,
    records: RingBuf<MapData>,
    rules: RestingMemory,
    hot: Array<MapData, HotValue>,
    /// CPUs that there are working memories for; a CPU that is added later may have a higher number.
    room: u32,
    settings: Settings,
    clocks: Clocks,
    off_cpu: Option<OffCpu>,
    threads: Option<Threads>,
    clr_events: Option<ClrEvents>,
    /// The program of the CLR's events, until the broker has it.
    event_program: Option<OwnedFd>,
    probes: Probes,
    names: Option<Arc<KernelNames>>,
    broker: Option<Broker>,
}

impl Programs {
    pub fn load(settings: Settings) -> Result<Self, LoadError> {
        let clocks = Clocks::of_this_machine()?;
        let room = clocks::room_for_cpus()?;
        let wakeup = u64::from(settings.ring_bytes / 4);
        let types = KernelTypes::read();
        let of_every_program = every_programs_offsets(&types);
        let walks = settings.wall || settings.threads_of != ThreadsOf::None;
        let needs_tasks = settings.off_cpu.is_some() || walks;
        let of_tasks = if needs_tasks { tasks_offsets(&types?)? } else { Vec::new() };
        let wanted_process = match settings.threads_of {
            ThreadsOf::Process(pid) => pid,
            ThreadsOf::None | ThreadsOf::All => 0,
        };
        let window = off_cpu::Window::of_this_kernel();
        // Of those that are there: a virtual machine may have room for many more.
        let wait_cpus = u32::try_from(clocks.cpus().len()).unwrap_or(u32::MAX);
        let wait_budget = window.budget(settings.off_cpu.unwrap_or(0), wait_cpus);
        let wait_seed = off_cpu::seed();
        let sets = clr_events::sets(room);
        let mut loader = EbpfLoader::new();
        of_every_program.iter().for_each(|offsets| offsets.set(&mut loader));
        of_tasks.iter().for_each(|offsets| offsets.set(&mut loader));
        if needs_tasks {
            loader
                .override_global("WANTED_PROCESS", &wanted_process, true)
                .override_global("WAIT_BUDGET", &wait_budget, true)
                .override_global("WAIT_CPUS", &wait_cpus, true)
                .override_global("WAIT_SEED", &wait_seed, true)
                .override_global("WINDOW_SHIFT", &window.shift, true);
        }
        if walks {
            threads::size(&mut loader, settings.ring_bytes);
        }
        if settings.off_cpu.is_some() {
            off_cpu::size(&mut loader, room, settings.ring_bytes);
        }
        if settings.clr_events {
            clr_events::size(&mut loader, room, &sets, settings.ring_bytes);
        }
        let has_elapsed = settings.wall || settings.off_cpu.is_some();
        if has_elapsed {
            loader.map_max_entries("UNWANTED", UNWANTED_PROCESSES);
        }
        let mut ebpf = loader
            .map_max_entries("SAMPLER_HOT", room)
            .map_max_entries("SAMPLER_RECORD", room)
            .map_max_entries("SAMPLER_CACHE", room)
            .map_max_entries("RECORDS", settings.ring_bytes)
            .override_global("MAX_FRAMES", &settings.max_frames, true)
            .override_global("WAKEUP_BYTES", &wakeup, true)
            .load(&object()?)?;
        let diagnostics = Diagnostics::of(&mut ebpf);

        let sampler: &mut PerfEvent = program(&mut ebpf, SAMPLER)?;
        sampler.load().map_err(|source| LoadError::Program { name: SAMPLER, source })?;
        let lifecycle: &mut RawTracePoint = program(&mut ebpf, "forget_on_exec")?;
        lifecycle
            .load()
            .and_then(|()| lifecycle.attach("sched_process_exec").map(drop))
            .map_err(|source| LoadError::Program { name: "forget_on_exec", source })?;
        let entries = Entries::of(&mut ebpf, needs_tasks, has_elapsed)?;
        let off_cpu = settings.off_cpu.map(|_| OffCpu::of(&mut ebpf)).transpose()?;
        let threads = walks.then(|| Threads::of(&mut ebpf, settings.wall)).transpose()?;
        let clr_events = settings.clr_events.then(|| ClrEvents::of(&mut ebpf, room)).transpose()?;
        let (clr_events, event_program) = clr_events.unzip();
        let names = kernel_names(&mut ebpf)
            .inspect_err(
                |error| tracing::debug!(%error, "names of the kernel are read, not asked for"),
            )
            .ok();

        Ok(Self {
            entries,
            segments: map(&mut ebpf, "SEGMENTS")?,
            records: map(&mut ebpf, "RECORDS")?,
            rules: memory(&mut ebpf, "RULES", MAX_RULES as usize * size_of::<Rule>())?,
            hot: map(&mut ebpf, "SAMPLER_HOT")?,
            room,
            inner: Vec::new(),
            diagnostics,
            ebpf,
            settings,
            clocks,
            off_cpu,
            threads,
            clr_events,
            event_program,
            probes: Probes::default(),
            names,
            broker: None,
        })
    }

    /// Starts the helper process that does what needs CAP_SYS_ADMIN while sampling, with that of
    /// this thread, where something does.
    pub fn start_broker(&mut self) {
        if self.settings.clr_events || perf_event::needs_administration() {
            self.broker = Some(Broker::start(self.event_program.take()));
        }
    }

    /// `None`: nothing needs it.
    pub fn broker(&self) -> Option<BrokerState> {
        self.broker.as_ref().map(Broker::state)
    }

    /// Opens an event of a CPU, through the broker where this process may not.
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): it is there at a later call.
    pub fn open_event(&mut self, cpu: u32, event: CpuEvent) -> io::Result<OwnedFd> {
        match (event.open(cpu), &mut self.broker) {
            (Err(error), Some(broker))
                if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) =>
            {
                broker.cpu_event(cpu, event)
            }
            (opened, _) => opened,
        }
    }

    /// Names of the kernel's functions. `None`: this kernel has to be read for them.
    pub fn kernel_names(&self) -> Option<Arc<KernelNames>> {
        self.names.clone()
    }

    /// What the sampler has used so far, if run times are counted.
    pub fn sampler_use(&self) -> Option<ProgramUse> {
        let program = self.ebpf.program(SAMPLER)?;
        introspect::of_program(program.fd().ok()?.as_fd()).ok()
    }

    /// The time that all loaded programs have taken so far, if run times are counted.
    pub fn run_time(&self) -> Duration {
        let loaded = self.ebpf.programs().filter_map(|(_, program)| program.fd().ok());
        loaded
            .filter_map(|program| introspect::of_program(program.as_fd()).ok())
            .map(|used| used.run_time)
            .sum()
    }

    /// How often the sampler has run on each CPU that it is to sample.
    pub fn ticks(&self) -> Vec<(u32, u64)> {
        const EACH: [Counter; 4] =
            [Counter::Samples, Counter::Idle, Counter::RingFull, Counter::Skipped];
        let ticks =
            |hot: HotValue| EACH.iter().filter_map(|counter| hot.counter(*counter as usize)).sum();
        // Those without an event too: they stand still, and are started when they work.
        let all = self.clocks.cpus().iter();
        all.filter_map(|cpu| Some((*cpu, ticks(self.hot.get(cpu, 0).ok()?)))).collect()
    }

    /// Samples a second and CPU.
    pub fn frequency(&self) -> u64 {
        self.settings.frequency
    }

    /// Samples a second and CPU from the next start on.
    pub fn set_frequency(&mut self, frequency: u64) {
        self.settings.frequency = frequency;
        self.clocks.forget_opened();
    }

    /// Stops sampling; records that are in the rings stay there. The first error is returned after all that
    /// can be stopped.
    pub fn stop(&mut self) -> Result<(), LoadError> {
        let mut stopped = Ok(());
        if let Some(off_cpu) = &mut self.off_cpu {
            stopped = stopped.and(off_cpu.stop(&mut self.ebpf));
        }
        if let Some(threads) = &mut self.threads {
            stopped = stopped.and(threads.stop(&mut self.ebpf));
        }
        self.clocks.stop();
        if let Some(broker) = &mut self.broker {
            broker.forget_clocks();
        }
        stopped
    }

    /// Passes on the programs' log lines since the last call.
    pub fn flush_diagnostics(&mut self) {
        if let Some(Diagnostics(logger)) = &mut self.diagnostics {
            logger.flush();
        }
    }

    /// Readable when the programs ask to be drained before the usual time.
    pub fn records_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }

    /// The next record's bytes, valid until the item is dropped.
    pub fn next_record(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        self.records.next()
    }

    /// Adds a segment, which has the next number for extents; its memory.
    pub fn add_segment(&mut self) -> Result<RestingMemory, LoadError> {
        let named = |source| LoadError::Map { name: "SEGMENTS", source };
        let segment = Segment::create(1, MMAPABLE).map_err(named)?;
        let number = u32::try_from(self.inner.len()).unwrap_or(u32::MAX);
        let memory = RestingMemory::of(segment.map().fd().as_fd(), SEGMENT_BYTES)
            .map_err(|source| LoadError::Memory { name: "SEGMENTS", source })?;
        self.segments.set(number, &segment, 0).map_err(named)?;
        self.inner.push(segment);
        Ok(memory)
    }

    /// The rule array, [`size_of::<Rule>()`](Rule) bytes a rule. `None`: it cannot be mapped.
    pub fn rules(&self) -> Option<&MapMemory> {
        self.rules.get()
    }

    /// Unmaps what has not been used for a while.
    pub fn rest(&mut self) {
        self.rules.rest();
    }

    /// A counter's sum over all CPUs; `counter` as in `strata_abi::record::Counter`.
    pub fn count(&self, counter: usize) -> u64 {
        (0..self.room)
            .filter_map(|cpu| self.hot.get(&cpu, 0).ok())
            .filter_map(|hot| hot.counter(counter))
            .sum()
    }
}

/// The offsets that every program may use; none where they are not known.
fn every_programs_offsets(types: &Result<KernelTypes, TypeError>) -> [Offsets<u64>; 2] {
    let of = |fields: Vec<offsets::Field>| match types {
        Ok(types) => Offsets::read(types, fields).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let memory = offsets::MEMORY.into_iter().chain(offsets::thread_pointer()).collect();
    let memory = of(memory).unwrap_or_else(|error| {
        tracing::warn!(%error, "stacks of ending and of starting programs will look broken");
        Offsets::none()
    });
    let probes = of(offsets::PROBES.into()).unwrap_or_else(|error| {
        tracing::debug!(%error, "this kernel has no uprobes");
        Offsets::none()
    });
    [memory, probes]
}

/// Those of programs that look at tasks.
fn tasks_offsets(types: &KernelTypes) -> Result<Vec<Offsets<u32>>, TypeError> {
    Ok(vec![Offsets::read(types, offsets::TASKS)?, Offsets::read(types, offsets::ACTIVITY)?])
}

fn kernel_names(ebpf: &mut Ebpf) -> Result<Arc<KernelNames>, LoadError> {
    const NAME: &str = "name_kernel_address";
    let refused = |source| LoadError::Program { name: NAME, source };
    let name: &mut RawTracePoint = program(ebpf, NAME)?;
    name.load().map_err(refused)?;
    let name = name.fd().map_err(refused)?.as_fd().try_clone_to_owned();
    let Some(Map::Array(answer)) = ebpf.map("KERNEL_NAME") else {
        return Err(LoadError::Missing("KERNEL_NAME"));
    };
    let answer = answer.fd().as_fd().try_clone_to_owned();
    let kept = |source| LoadError::Memory { name: "KERNEL_NAME", source };
    Ok(Arc::new(KernelNames::new(name.map_err(kept)?, answer.map_err(kept)?)))
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, LoadError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(LoadError::Missing(name))?;
    program.try_into().map_err(|source| LoadError::Program { name, source })
}

fn map<M: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, LoadError> {
    let map = ebpf.take_map(name).ok_or(LoadError::Missing(name))?;
    map.try_into().map_err(|source| LoadError::Map { name, source })
}

fn memory(ebpf: &mut Ebpf, name: &'static str, bytes: usize) -> Result<RestingMemory, LoadError> {
    match ebpf.map(name) {
        Some(Map::Array(data)) => RestingMemory::of(data.fd().as_fd(), bytes)
            .map_err(|source| LoadError::Memory { name, source }),
        _ => Err(LoadError::Missing(name)),
    }
}
