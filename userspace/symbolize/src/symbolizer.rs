//! Symbolization of flushes, one after the other, without waiting.
//!
//! [`Symbolizer::begin`] uses known symbols at once and passes the rest to the
//! [`pool`](crate::pool) as tasks that own their data; [`Symbolizer::collect`] takes the results. A
//! process's profile can be built when [`Symbolizer::awaits`] nothing of it any more, or at its
//! deadline: then a frame still has its module, build id and offset. Late symbols are used at the
//! next flush, and [`Symbolizer::take_late`] has them for the profiles that were built without.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_agent::aggregate::Aggregate;
use strata_agent::code_address::CodeAddress;
use strata_agent::engine::Engine;
use strata_agent::engine::loading::Helpers;
use strata_agent::image_id::ImageId;
use strata_agent::managed::names;

use crate::LONGEST_NAME;
use crate::Shortfalls;
use crate::file_client::FileClient;
use crate::jit::Room;
use crate::kernel::KernelTable;
use crate::known_symbols::KnownSymbols;
use crate::late::{Late, LateSymbol};
use crate::lines::Lines;
use crate::pool::{Limits, Pool, Report};
use crate::related::Lacking;
use crate::task::{Outcome, TaskKey};

/// How much is kept and waited for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Symbols that are kept.
    pub most: usize,
    /// Names of .NET methods have the types of their parameters.
    pub signatures: bool,
    /// How long a flush may take altogether.
    pub patience: Duration,
    pub limits: Limits,
    /// What describing the generated code of one process may take in a flush; of all, this time.
    /// The owner of the symbolizer waits for it.
    pub describing: names::Limits,
    pub describing_all: Duration,
}

impl Options {
    /// For a daemon, which flushes again soon.
    pub fn often(most: usize) -> Self {
        let limits = Limits {
            fast: Duration::from_secs(1),
            slow: Duration::from_secs(15),
            share: Duration::from_secs(1),
            slow_owner: Duration::from_secs(4),
            waiting: 64,
        };
        // Most of a period: only the profiles that still lack symbols wait for it.
        Self {
            most,
            signatures: false,
            patience: Duration::from_secs(12),
            limits,
            describing: names::Limits {
                bytes: 8 << 20,
                time: Duration::from_millis(50),
                longest: LONGEST_NAME,
            },
            describing_all: Duration::from_millis(300),
        }
    }

    /// For the end of a recording, after which there is no other flush.
    pub fn once(signatures: bool) -> Self {
        let limits = Limits {
            fast: Duration::from_secs(5),
            slow: Duration::from_secs(60),
            share: Duration::from_secs(10),
            slow_owner: Duration::from_secs(10),
            // There is no other flush.
            waiting: usize::MAX,
        };
        Self {
            most: usize::MAX,
            signatures,
            patience: Duration::from_secs(180),
            limits,
            describing: names::Limits {
                bytes: 512 << 20,
                time: Duration::from_secs(10),
                longest: usize::MAX,
            },
            describing_all: Duration::from_secs(60),
        }
    }
}

/// A kernel table that was not used for so many flushes is dropped.
const KERNEL_UNUSED: u32 = 40;

/// The flush that is under way.
pub(crate) struct Flush {
    pub(crate) ends: Instant,
    pub(crate) tasks: usize,
    /// Tasks that may still give symbols.
    pub(crate) awaited: HashSet<TaskKey>,
    /// Tasks of the flush before, with the places of this one that they are about.
    pub(crate) earlier: HashMap<TaskKey, HashSet<CodeAddress>>,
    /// Processes that tasks about related methods are about.
    pub(crate) related: HashMap<TaskKey, HashSet<ImageId>>,
}

pub struct Symbolizer {
    pub(crate) symbols: KnownSymbols,
    pub(crate) lines: Lines,
    pub(crate) lacking: Lacking,
    pub(crate) late: Late,
    pub(crate) options: Options,
    pub(crate) pool: Pool,
    files: FileClient,
    /// Kept only in a daemon; a recording reads what it needs once.
    pub(crate) kernel: Option<Arc<Mutex<Option<KernelTable>>>>,
    pub(crate) kernel_unused: u32,
    /// Tasks that have not ended, and the places they are about: perhaps of an earlier flush.
    pub(crate) under_way: HashMap<TaskKey, Vec<CodeAddress>>,
    /// Those that a flush after their own has waited for.
    pub(crate) awaited_twice: HashSet<TaskKey>,
    pub(crate) jit: Room,
    pub(crate) related_tasks: u32,
    pub(crate) flush: Option<Flush>,
    shortfalls: Shortfalls,
}

impl Symbolizer {
    /// `wake` is called when there is something to collect.
    pub fn start(options: Options, wake: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let files = FileClient::start()?;
        let pool = Pool::start(files.clone(), options.limits, Box::new(wake));
        let symbols = KnownSymbols::new(options.most);
        let kernel = symbols.is_bounded().then(Arc::default);
        let lines = Lines::new(symbols.is_bounded());
        Ok(Self {
            symbols,
            lines,
            lacking: Lacking::new(options.most != usize::MAX),
            late: Late::default(),
            options,
            pool,
            files,
            kernel,
            kernel_unused: 0,
            under_way: HashMap::new(),
            awaited_twice: HashSet::new(),
            jit: Room::default(),
            related_tasks: 0,
            flush: None,
            shortfalls: Shortfalls::default(),
        })
    }

    pub fn symbols(&self) -> &KnownSymbols {
        &self.symbols
    }

    pub fn set_most(&mut self, most: usize) {
        self.symbols.set_most(most);
    }

    /// What the workers may use from now on, in bytes; without it, as much as the files need.
    pub fn set_worker_memory(&self, bytes: u64) {
        self.pool.set_worker_memory(bytes);
    }

    /// Begins to symbolize what was sampled.
    pub fn begin(&mut self, engine: &Engine, aggregate: &Aggregate) {
        // Addresses still pending from an earlier flush get their symbols at a later one.
        self.collect();
        self.symbols.begin_flush();
        self.lines.begin_flush();
        self.late.begin_flush();
        crate::gather::begin(self, engine, aggregate);
    }

    /// Takes in what has come.
    pub fn collect(&mut self) {
        while let Some(report) = self.pool.report() {
            self.take(report);
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Some(symbols) => {
                for symbol in symbols {
                    self.symbols.set(symbol);
                }
            }
            Report::Done(outcome) => self.take_outcome(*outcome),
        }
    }

    fn take_outcome(&mut self, outcome: Outcome) {
        let Outcome { key, symbols, related, jit, lines_took, shortfalls, .. } = outcome;
        let (is_late, lacks_answers) = (outcome.is_late, outcome.lacks_answers);
        for symbol in symbols {
            self.symbols.set(symbol);
        }
        for (about, better) in related {
            if self.symbols.set_related(about, better) {
                self.lacking.settled(about.0);
            }
        }
        if let Some((file, cost)) = lines_took {
            self.lines.took(file, cost);
        }
        if let Some((image, files)) = jit.filter(|_| self.symbols.is_bounded()) {
            self.jit.give_back(image, files);
        }
        self.shortfalls.without_lines += shortfalls.without_lines;
        for problem in shortfalls.problems {
            self.shortfalls.problem(problem);
        }
        let places = self.under_way.remove(&key).unwrap_or_default();
        if !is_late {
            self.symbols.settle(&places);
            if !lacks_answers {
                self.symbols.note_answer(&places);
            }
        }
        self.done(key);
    }

    pub(crate) fn done(&mut self, key: TaskKey) {
        self.under_way.remove(&key);
        self.awaited_twice.remove(&key);
        if let TaskKey::Generated(image) = key {
            self.jit.done(image);
        }
        if let Some(flush) = &mut self.flush {
            flush.awaited.remove(&key);
            flush.earlier.remove(&key);
            flush.related.remove(&key);
        }
    }

    /// Addresses whose names are made at a later flush.
    pub(crate) fn note_undescribed(&mut self, addresses: u64) {
        self.shortfalls.late += addresses;
    }

    pub(crate) fn note_problem(&mut self, problem: String) {
        self.shortfalls.problem(problem);
    }

    /// A process's profile that ended then was built without the symbols of these places.
    pub fn note_late(&mut self, image: ImageId, places: &[CodeAddress], end_nanos: i64) {
        self.late.note(image, places, end_nanos);
    }

    /// Symbols of such places that are known by now, each once. To be called before the flush ends.
    pub fn take_late(&mut self) -> Vec<LateSymbol> {
        self.late.take_named(&self.symbols)
    }

    /// Places whose symbols are still awaited after their flush, and how many stay without.
    pub fn late_places(&self) -> (usize, u64) {
        (self.late.count(), self.late.unnamed)
    }

    /// Whether a flush is under way.
    pub fn is_flushing(&self) -> bool {
        self.flush.is_some()
    }

    /// The flush waits no longer than until then.
    pub fn end_by(&mut self, latest: Instant) {
        if let Some(flush) = &mut self.flush {
            flush.ends = flush.ends.min(latest);
        }
    }

    /// Nothing is awaited any more, or its deadline has passed.
    pub fn is_settled(&self) -> bool {
        self.flush.as_ref().is_none_or(|flush| {
            flush.awaited.is_empty() && flush.earlier.is_empty() || Instant::now() >= flush.ends
        })
    }

    /// When the flush is settled in any case.
    pub fn ends(&self) -> Option<Instant> {
        self.flush.as_ref().map(|flush| flush.ends)
    }

    /// Tasks of the flush that are done, and all.
    pub fn progress(&self) -> (usize, usize) {
        self.flush
            .as_ref()
            .map_or((0, 0), |flush| (flush.tasks.saturating_sub(flush.awaited.len()), flush.tasks))
    }

    /// Whether a place may still get a better symbol in this flush.
    pub fn awaits(&self, place: CodeAddress) -> bool {
        let Some(flush) = &self.flush else { return false };
        crate::gather::key_of(place).is_some_and(|key| {
            let of_earlier = flush.earlier.get(&key);
            flush.awaited.contains(&key) || of_earlier.is_some_and(|places| places.contains(&place))
        })
    }

    /// Whether a process's generated code may still get better names in this flush.
    pub fn awaits_related(&self, image: ImageId) -> bool {
        let flush = self.flush.as_ref();
        flush.is_some_and(|flush| flush.related.values().any(|images| images.contains(&image)))
    }

    /// Waits until the flush is settled; `progress` gets how many tasks are done, of all.
    pub fn wait(&mut self, mut progress: impl FnMut(usize, usize)) {
        const OFTEN: Duration = Duration::from_millis(100);
        while !self.is_settled() {
            if let Some(report) = self.pool.wait(OFTEN) {
                self.take(report);
                self.collect();
            }
            let (done, of) = self.progress();
            progress(done, of);
        }
    }

    /// The flush's profiles are built: drops what is not needed any more.
    pub fn end(&mut self, aggregate: &Aggregate) -> Shortfalls {
        let is_late = |place: &CodeAddress| self.awaits(*place) && self.symbols.is_unnamed(*place);
        let late = aggregate.code_addresses().filter(is_late).count() as u64;
        self.flush = None;
        let unnamed =
            aggregate.code_addresses().filter(|place| self.symbols.is_unnamed(*place)).count();
        self.symbols.forget_unwanted();
        self.make_room();
        if self.kernel_unused > KERNEL_UNUSED
            && let Some(table) = &self.kernel
        {
            *table.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let mut shortfalls = std::mem::take(&mut self.shortfalls);
        shortfalls.unnamed = unnamed as u64;
        shortfalls.late += late;
        if let Some(problem) = self.lacking.take_problem() {
            shortfalls.problem(problem);
        }
        shortfalls
    }

    fn make_room(&mut self) {
        self.symbols.make_room();
        let symbols = &self.symbols;
        self.lacking.retain(|place| symbols.contains(place));
    }

    /// Images of ended processes are never requested again.
    pub fn forget(&mut self, is_gone: impl Fn(ImageId) -> bool) {
        self.jit.forget(&is_gone);
        self.symbols.forget(is_gone);
    }

    /// Everything but the symbols of the last flush.
    pub fn shed(&mut self) {
        self.jit.clear();
        self.symbols.shed();
        let symbols = &self.symbols;
        self.lacking.retain(|place| symbols.contains(place));
    }

    /// The helper processes that read files.
    pub fn helper_pids(&self) -> Vec<u32> {
        self.files.child_pids()
    }

    /// What they have used.
    pub fn helpers(&self) -> Helpers {
        self.files.helpers()
    }

    /// Ends helper processes that are idle.
    pub fn release(&self) {
        self.files.release();
    }
}
