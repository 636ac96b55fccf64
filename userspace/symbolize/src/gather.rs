//! From an aggregate to tasks: the addresses to symbolize, by file or process, with the data
//! needed; and the frames that are known at once.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_abi::record::End;
use strata_agent::aggregate::{Aggregate, StackId};
use strata_agent::code_address::{CodeAddress, Marker, describe_end};
use strata_agent::engine::Engine;
use strata_agent::engine::loading::clean_path;
use strata_agent::frame::NamedFrame;
use strata_agent::image_id::ImageId;
use strata_agent::managed::names::{Described, Describer, Description, Limits};
use strata_agent::processes::credentials::Ancestor;
use strata_agent::processes::mapped::FileId;
use strata_agent::processor_time::TimeBudget;
use strata_profile::FrameKind;
use strata_sandbox::ProcessRef;

use crate::assemblies::Program;
use crate::jit::{Allowance, JitFiles};
use crate::managed::GeneratedCode;
use crate::symbolizer::{Flush, Symbolizer};
use crate::task::{
    FileWork, GeneratedWork, KernelWork, Lasting, Modules, Owner, RelatedWork, Symbol, Task,
    TaskKey, Work, described_symbol, unnamed_symbol,
};
use crate::{ModuleInfo, pseudo_module};

/// The task that symbolizes a place.
pub fn key_of(place: CodeAddress) -> Option<TaskKey> {
    match place {
        CodeAddress::Kernel(_) | CodeAddress::Vdso(_) => Some(TaskKey::Kernel),
        CodeAddress::File { file, .. } => Some(TaskKey::File(file)),
        CodeAddress::Generated { image, .. } => Some(TaskKey::Generated(image)),
        CodeAddress::Unknown { .. } | CodeAddress::Marker(_) => None,
    }
}

/// Places of one task, and the samples through them.
#[derive(Default)]
struct Wanted {
    places: Vec<CodeAddress>,
    weight: u64,
    /// Of a file: its lines and inlined functions are worth reading.
    lines: bool,
}

pub fn begin(symbolizer: &mut Symbolizer, engine: &Engine, aggregate: &Aggregate) {
    let mut wanted = wanted(symbolizer, engine, aggregate);
    let earlier = earlier(symbolizer, aggregate);
    let not_awaited = ask_again(symbolizer, engine, &mut wanted);
    let uses_kernel =
        aggregate.code_addresses().any(|place| matches!(place, CodeAddress::Kernel(_)));
    let unused = symbolizer.kernel_unused;
    symbolizer.kernel_unused = if uses_kernel { 0 } else { unused.saturating_add(1) };
    let mut tasks = Vec::new();
    let mut describing = TimeBudget::new(symbolizer.options.describing_all);
    for (key, Wanted { mut places, weight, lines }) in wanted {
        let task = match key {
            TaskKey::Kernel => Some((Owner::Host, kernel_work(symbolizer, engine, &places))),
            TaskKey::File(file) => file_work(symbolizer, engine, file, &places, lines),
            TaskKey::Generated(image) => {
                let codes = describe(symbolizer, engine, image, &mut places, describing.left());
                // Names take no file. The lines of these, and other compilers' symbols, are asked for when
                // the task of an earlier flush has ended.
                let is_under_way = symbolizer.under_way.contains_key(&key);
                codes
                    .filter(|_| !is_under_way)
                    .map(|codes| generated_work(symbolizer, engine, image, codes))
            }
            TaskKey::Related(_) => None,
        };
        if let Some((owner, work)) = task {
            symbolizer.under_way.insert(key, places);
            tasks.push(Task { key, owner, weight, work });
        }
    }
    let mut related = HashMap::new();
    let known = &symbolizer.symbols;
    let works = symbolizer.lacking.work(engine, aggregate, &|about| known.knows_by_caller(about));
    for work in works {
        symbolizer.related_tasks = symbolizer.related_tasks.wrapping_add(1);
        let key = TaskKey::Related(symbolizer.related_tasks);
        let images = images_of(&work);
        let pid = images.iter().find_map(|image| engine.table.image(*image)).map(|image| image.pid);
        let owner = pid.map_or(Owner::Host, Owner::Process);
        related.insert(key, images);
        symbolizer.under_way.insert(key, Vec::new());
        tasks.push(Task { key, owner, weight: 0, work: Work::Related(work) });
    }
    let keys = tasks.iter().map(|task| task.key);
    let awaited = keys.filter(|key| !not_awaited.contains(key)).collect();
    symbolizer.flush = Some(Flush {
        ends: Instant::now() + symbolizer.options.patience,
        tasks: tasks.len(),
        awaited,
        earlier,
        related,
    });
    for key in symbolizer.pool.submit(tasks) {
        symbolizer.done(key);
    }
}

/// Places of an aggregate without a name that tasks of the flush before are about: a task is awaited by
/// two flushes, and one that waits behind others for longer by none of those after.
fn earlier(
    symbolizer: &mut Symbolizer,
    aggregate: &Aggregate,
) -> HashMap<TaskKey, HashSet<CodeAddress>> {
    let mut earlier: HashMap<TaskKey, HashSet<CodeAddress>> = HashMap::new();
    let Symbolizer { under_way, awaited_twice, symbols, .. } = symbolizer;
    if under_way.len() == awaited_twice.len() {
        return earlier;
    }
    let places: HashSet<CodeAddress> =
        aggregate.code_addresses().filter(|place| symbols.is_unnamed(*place)).collect();
    for (key, of_task) in under_way {
        if !awaited_twice.insert(*key) {
            continue;
        }
        let here: HashSet<CodeAddress> =
            of_task.iter().copied().filter(|place| places.contains(place)).collect();
        if !here.is_empty() {
            earlier.insert(*key, here);
        }
    }
    earlier
}

fn images_of(work: &RelatedWork) -> HashSet<ImageId> {
    let images = work.questions.iter().filter_map(|(about, ..)| match about.0 {
        CodeAddress::Generated { image, .. } => Some(image),
        _ => None,
    });
    images.collect()
}

/// The stacks of an aggregate, with the samples of each.
fn stacks(aggregate: &Aggregate) -> impl Iterator<Item = (&[u32], u64)> {
    let mut of_stacks = vec![0u64; aggregate.stacks()];
    for row in aggregate.rows() {
        if let Some(sum) = of_stacks.get_mut(row.stack.0 as usize) {
            *sum = sum.saturating_add(row.weight);
        }
    }
    of_stacks.into_iter().enumerate().map(|(stack, weight)| {
        let stack = StackId(u32::try_from(stack).unwrap_or(u32::MAX));
        (aggregate.stack_of(stack), weight)
    })
}

/// Samples through each place of an aggregate, by its number.
fn weights(aggregate: &Aggregate) -> Vec<u64> {
    let mut of_places = vec![0u64; aggregate.code_addresses().len()];
    for (places, weight) in stacks(aggregate) {
        for place in places {
            if let Some(sum) = of_places.get_mut(*place as usize) {
                *sum = sum.saturating_add(weight);
            }
        }
    }
    of_places
}

/// Adds places whose lines are worth reading now, and decides which files' are.
fn want_lines(
    symbolizer: &mut Symbolizer,
    aggregate: &Aggregate,
    wanted: &mut HashMap<TaskKey, Wanted>,
    lacking: HashMap<FileId, Vec<CodeAddress>>,
) {
    let mut samples: HashMap<FileId, u64> = HashMap::new();
    if symbolizer.lines.is_limited() {
        let without = places_without_lines(aggregate, wanted, &lacking);
        let mut files = Vec::new();
        for (places, weight) in stacks(aggregate) {
            files.clear();
            files.extend(places.iter().filter_map(|place| *without.get(*place as usize)?));
            files.sort_unstable();
            files.dedup();
            for file in &files {
                let sum = samples.entry(*file).or_default();
                *sum = sum.saturating_add(weight);
            }
        }
    }
    for (key, wanted) in &mut *wanted {
        let TaskKey::File(file) = *key else { continue };
        let samples = samples.remove(&file).unwrap_or_default();
        wanted.lines = symbolizer.lines.are_worth_it(file, samples);
    }
    // Files with nothing new.
    for (file, samples) in samples {
        if symbolizer.lines.are_worth_it(file, samples) {
            let wanted = wanted.entry(TaskKey::File(file)).or_default();
            *wanted = Wanted { weight: samples, lines: true, ..Wanted::default() };
        }
    }
    for (file, places) in lacking {
        if let Some(wanted) = wanted.get_mut(&TaskKey::File(file)).filter(|wanted| wanted.lines) {
            wanted.places.extend(places);
        }
    }
}

/// The files of places whose lines are unknown, by the places' numbers.
fn places_without_lines(
    aggregate: &Aggregate,
    wanted: &HashMap<TaskKey, Wanted>,
    lacking: &HashMap<FileId, Vec<CodeAddress>>,
) -> Vec<Option<FileId>> {
    let of_files = |(key, wanted): (&TaskKey, &'_ Wanted)| match key {
        TaskKey::File(_) => wanted.places.clone(),
        _ => Vec::new(),
    };
    let new = wanted.iter().flat_map(of_files);
    let without: HashSet<CodeAddress> = new.chain(lacking.values().flatten().copied()).collect();
    let file_of = |place| match place {
        CodeAddress::File { file, .. } if without.contains(&place) => Some(file),
        _ => None,
    };
    aggregate.code_addresses().map(file_of).collect()
}

fn wanted(
    symbolizer: &mut Symbolizer,
    engine: &Engine,
    aggregate: &Aggregate,
) -> HashMap<TaskKey, Wanted> {
    let mut wanted: HashMap<TaskKey, Wanted> = HashMap::new();
    let weights = weights(aggregate);
    let mut lacking: HashMap<FileId, Vec<CodeAddress>> = HashMap::new();
    let is_bounded = symbolizer.symbols.is_bounded();
    for (place, weight) in aggregate.code_addresses().zip(weights) {
        if !symbolizer.symbols.wants(place) {
            if let CodeAddress::File { file, .. } = place
                && symbolizer.symbols.lacks_lines(place)
                && !symbolizer.under_way.contains_key(&TaskKey::File(file))
            {
                lacking.entry(file).or_default().push(place);
            }
            continue;
        }
        match (key_of(place), place) {
            (
                Some(key),
                CodeAddress::Kernel(_) | CodeAddress::Vdso(_) | CodeAddress::File { .. },
            ) if symbolizer.under_way.contains_key(&key) => {
                let mut symbol = provisional(place, is_bounded);
                if let CodeAddress::File { file, .. } = place
                    && !symbolizer.symbols.contains(&place)
                {
                    // The file is known, though it has not answered yet.
                    symbol.module = engine
                        .table
                        .files
                        .get(file)
                        .map(|mapped| Arc::new(unread_module(&clean_path(mapped))));
                }
                symbolizer.symbols.set_provisional(symbol);
            }
            (Some(key), _) => {
                let wanted = wanted.entry(key).or_default();
                wanted.places.push(place);
                wanted.weight = wanted.weight.saturating_add(weight);
                symbolizer.symbols.set_provisional(provisional(place, is_bounded));
            }
            (None, CodeAddress::Unknown { address, .. }) => {
                // Addresses of one process mean nothing in another, and there is no end of them.
                let address = if is_bounded { 0 } else { address };
                symbolizer.symbols.set(plain(place, address, unknown()));
            }
            (None, CodeAddress::Marker(marker)) => {
                symbolizer.symbols.set(plain(place, 0, marker_frame(marker)));
            }
            (None, _) => {}
        }
    }
    want_lines(symbolizer, aggregate, &mut wanted, lacking);
    wanted
}

/// Adds places that earlier flushes left without a symbol. Returns the tasks that are about nothing
/// else: no profile waits for them.
fn ask_again(
    symbolizer: &mut Symbolizer,
    engine: &Engine,
    wanted: &mut HashMap<TaskKey, Wanted>,
) -> HashSet<TaskKey> {
    let mut others = HashSet::new();
    let Symbolizer { late, symbols, under_way, .. } = symbolizer;
    let files = &engine.table.files;
    let is_there = |file| files.get(file).is_some() || under_way.contains_key(&TaskKey::File(file));
    late.retain_files(symbols, is_there);
    for (file, mut places) in late.by_file() {
        let key = TaskKey::File(file);
        // Also those that are not asked for now are kept.
        places.retain(|place| symbols.wants(*place));
        if places.is_empty() || under_way.contains_key(&key) {
            continue;
        }
        let wanted = wanted.entry(key).or_insert_with(|| {
            others.insert(key);
            Wanted::default()
        });
        let known: HashSet<CodeAddress> = wanted.places.iter().copied().collect();
        places.retain(|place| !known.contains(place));
        for place in &places {
            symbols.set_provisional(provisional(*place, true));
        }
        wanted.places.append(&mut places);
    }
    others
}

fn plain(place: CodeAddress, address: u64, frame: NamedFrame) -> Symbol {
    Symbol { place, address, module: None, frames: vec![frame], lasting: Lasting::ForGood }
}

/// The frames of a code address that need no task.
fn provisional(place: CodeAddress, is_bounded: bool) -> Symbol {
    let (address, module) = match place {
        CodeAddress::Kernel(address) => (address, Some(pseudo_module("[kernel.kallsyms]"))),
        CodeAddress::Vdso(offset) => (offset, Some(pseudo_module("[vdso]"))),
        CodeAddress::Generated { image, address, era, of_runtime } => {
            let code = GeneratedCode { address, era, of_runtime, stub: None };
            return unnamed_symbol(image, &code, is_bounded);
        }
        CodeAddress::File { offset, .. } => (offset, None),
        CodeAddress::Unknown { .. } | CodeAddress::Marker(_) => (0, None),
    };
    Symbol { place, address, module, frames: Vec::new(), lasting: Lasting::UntilNext }
}

fn kernel_work(symbolizer: &Symbolizer, engine: &Engine, places: &[CodeAddress]) -> Work {
    let (mut addresses, mut vdso) = (Vec::new(), Vec::new());
    for place in places {
        match place {
            CodeAddress::Kernel(address) => addresses.push(*address),
            CodeAddress::Vdso(offset) => vdso.push(*offset),
            _ => {}
        }
    }
    let names = engine.kernel_names();
    Work::Kernel(KernelWork { addresses, vdso, names, table: symbolizer.kernel.clone() })
}

/// The mapping of a file whose headers are not read.
fn unread_module(path: &Path) -> ModuleInfo {
    ModuleInfo { limit: u64::MAX, ..ModuleInfo::of(path) }
}

fn file_work(
    symbolizer: &mut Symbolizer,
    engine: &Engine,
    file: FileId,
    places: &[CodeAddress],
    lines: bool,
) -> Option<(Owner, Work)> {
    let mapped = engine.table.files.get(file)?;
    let path = clean_path(mapped);
    let trouble = engine.loading.trouble_of(file);
    let opened = engine.loading.open_file(file);
    let module = Arc::new(unread_module(&path));
    let mut offsets = Vec::with_capacity(places.len());
    for place in places {
        let CodeAddress::File { offset, .. } = *place else { continue };
        offsets.push(offset);
        // The module and the offset in its file, whatever becomes of it.
        if symbolizer.symbols.get(*place).is_none_or(|known| known.module.is_none()) {
            symbolizer.symbols.set(Symbol {
                place: *place,
                address: offset,
                module: Some(module.clone()),
                frames: Vec::new(),
                // A file that is on its way is there at the next flush.
                lasting: match (&opened, trouble) {
                    (None, Some(_)) => Lasting::ForSomeFlushes,
                    _ => Lasting::UntilNext,
                },
            });
        }
    }
    for place in places {
        symbolizer.symbols.set_readable(*place, opened.is_some() || trouble.is_none());
    }
    let Some(opened) = opened else {
        if let Some(why) = trouble {
            symbolizer.note_problem(format!("{}: {why}", path.display()));
        }
        return None;
    };
    offsets.sort_unstable();
    let pid = engine.loading.process_of(file);
    let process = pid
        .filter(|pid| engine.table.get(*pid).is_some())
        .map(|pid| ProcessRef { pid, start_time: None });
    let signatures = symbolizer.options.signatures;
    let work = FileWork { file, path, opened, process, offsets, lines, signatures };
    let owner = pid.map_or(Owner::File(file), Owner::Process);
    Some((owner, Work::File(work)))
}

/// Code of one process, and what its runtime's bridge says of it.
struct Codes {
    pid: u32,
    described: Vec<(GeneratedCode, Described)>,
    others: Vec<GeneratedCode>,
}

/// Names code from the records of its runtime's bridge, within this time; places for which that is too
/// little are left out.
fn describe(
    symbolizer: &mut Symbolizer,
    engine: &Engine,
    image: ImageId,
    places: &mut Vec<CodeAddress>,
    left: Duration,
) -> Option<Codes> {
    let process = process_of(engine, image);
    let runtime = engine.managed.runtime_of(image);
    let signatures = symbolizer.options.signatures;
    let limits = symbolizer.options.describing;
    let limits = Limits { time: limits.time.min(left), ..limits };
    let mut describer = runtime
        .map(|runtime| Describer::new(runtime, &engine.managed.name_cache, signatures, limits));
    let mut modules = Modules::default();
    let (mut described, mut others) = (Vec::new(), Vec::new());
    let all = places.len();
    places.retain(|place| {
        let CodeAddress::Generated { address, era, of_runtime, .. } = *place else { return false };
        let stub = runtime.and_then(|runtime| runtime.stub_at(address));
        let code = GeneratedCode { address, era, of_runtime, stub };
        let found = describer.as_mut().map(|describer| describer.describe(address, era));
        let known = match found {
            Some(Description::Method(known)) => known,
            None | Some(Description::Nothing) => {
                others.push(code);
                return true;
            }
            // Described at the next flush.
            Some(Description::Refused) => return false,
        };
        symbolizer.lacking.add(*place, &known, process.map(|process| process.pid));
        // Its line takes a file, its name does not.
        let lasting = Lasting::UntilNext;
        let symbol = described_symbol(image, &code, &known, &mut modules);
        symbolizer.symbols.set(Symbol { lasting, ..symbol });
        described.push((code, known));
        true
    });
    let pid = engine.table.image(image)?.pid;
    let refused = all - places.len();
    if refused > 0 {
        symbolizer.note_undescribed(refused as u64);
        symbolizer.note_problem(format!(
            "process {pid}: its names take too much time or memory; those of {refused} addresses \
             wait for the next flush"
        ));
    }
    Some(Codes { pid, described, others })
}

fn generated_work(
    symbolizer: &mut Symbolizer,
    engine: &Engine,
    image: ImageId,
    codes: Codes,
) -> (Owner, Work) {
    let Codes { pid, described, others } = codes;
    let process = process_of(engine, image);
    let dump = engine.table.jitdump_of(image).and_then(|file| engine.loading.open_file(file));
    let program = program_of(engine, image);
    let is_bounded = symbolizer.symbols.is_bounded();
    let (jit, allowance) = match is_bounded {
        true => symbolizer.jit.take(image, Instant::now()),
        false => (JitFiles::default(), Allowance::ONCE),
    };
    let work = GeneratedWork {
        image,
        pid,
        process,
        program,
        described,
        others,
        dump,
        credentials: engine.credentials.of(image),
        ancestors: ancestors_of(engine, image),
        jit,
        allowance,
        all_known: engine.managed.knows_all(image),
        merges_unnamed: is_bounded,
    };
    (Owner::Process(pid), Work::Generated(Box::new(work)))
}

/// The process of an image, if it is still there and still runs it.
fn process_of(engine: &Engine, image: ImageId) -> Option<ProcessRef> {
    let pid = engine.table.image(image)?.pid;
    let current = engine.table.get(pid).is_some_and(|process| process.image == image);
    current.then_some(ProcessRef { pid, start_time: None })
}

/// The processes that an image's was forked from, the nearest first, without those that have executed
/// another program since, or whose numbers are other processes'.
fn ancestors_of(engine: &Engine, image: ImageId) -> Vec<Ancestor> {
    let noted = engine.credentials.ancestors(image).iter().copied();
    // A sample of a process's last moments may have come after its end: its number is in use again
    // then, without a program.
    let is_another = |ancestor: &Ancestor| {
        let current = engine.table.get(ancestor.pid).map(|process| process.image);
        current.is_some_and(|current| {
            let program = engine.table.image(current).and_then(|image| image.program);
            current != ancestor.image && program.is_some()
        })
    };
    noted.filter(|ancestor| !is_another(ancestor)).collect()
}

/// The program of an image.
fn program_of(engine: &Engine, image: ImageId) -> Option<Program> {
    let program = engine.table.image(image)?.program?;
    let path = clean_path(engine.table.files.get(program)?);
    Some(Program { file: engine.loading.open_file(program)?, path })
}

fn unknown() -> NamedFrame {
    NamedFrame::plain(FrameKind::Marker, "[unknown]")
}

fn marker_frame(marker: Marker) -> NamedFrame {
    match marker {
        Marker::Truncated => NamedFrame::plain(FrameKind::Marker, "[truncated]"),
        Marker::Incomplete(end) => {
            let why = End::from_byte(end).map_or("", describe_end);
            let mut frame = NamedFrame::plain(FrameKind::Marker, "[incomplete]");
            frame.system_name = format!("[incomplete: {why}]").into();
            frame
        }
    }
}
