//! The end of a recording: every place is named once, and the aggregate becomes a profile.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strata_files::ProcessRef;
use strata_layout::record::End;
use strata_profile::{FrameKind, LocationId, MappingId, Profile, ProfileBuilder};
use strata_symbols::Resolver;

use super::place::{Marker, Place, describe_end};
use super::related::{self, Lacking};
use crate::engine::Engine;
use crate::engine::loading::clean_path;
use crate::managed::names::folds;
use crate::processes::mapped::FileId;
use crate::processes::table::ImageId;
use crate::symbols::assemblies::{ProcessFiles, Program};
use crate::symbols::jit::JitNames;
use crate::symbols::managed::{GeneratedCode, Precompiled};
use crate::symbols::{ModuleInfo, NamedFrame, Shortfalls, kernel, managed, native, vdso};

/// When and how the samples were taken.
pub struct Circumstances {
    pub started: SystemTime,
    pub length: Duration,
    pub frequency: u32,
    /// Names of .NET methods have the types of their parameters.
    pub signatures: bool,
}

/// A place with its names.
#[derive(Clone, Default)]
struct Resolution {
    address: u64,
    module: Option<usize>,
    frames: Vec<NamedFrame>,
}

struct Names {
    places: Vec<Resolution>,
    modules: Vec<ModuleInfo>,
    signatures: bool,
    lacking: Lacking,
    /// Frames that have their names by their caller, by both places.
    by_caller: HashMap<(u32, u32), NamedFrame>,
}

/// Names everything and builds the profile. `progress` is told how far it is: done, of all.
pub fn profile(
    engine: &mut Engine,
    circumstances: &Circumstances,
    mut progress: impl FnMut(usize, usize),
) -> (Profile, Shortfalls) {
    let mut shortfalls = Shortfalls::default();
    let names = resolve_all(engine, circumstances.signatures, &mut shortfalls, &mut progress);
    engine.managed.release();
    (build(engine, circumstances, &names), shortfalls)
}

fn resolve_all(
    engine: &mut Engine,
    signatures: bool,
    shortfalls: &mut Shortfalls,
    progress: &mut impl FnMut(usize, usize),
) -> Names {
    let places: Vec<Place> = engine.aggregate.places().collect();
    let mut names = Names {
        places: vec![Resolution::default(); places.len()],
        modules: Vec::new(),
        signatures,
        lacking: Lacking::default(),
        by_caller: HashMap::new(),
    };
    let mut by_file: HashMap<FileId, Vec<(u64, usize)>> = HashMap::new();
    let mut by_image: HashMap<ImageId, Vec<GeneratedCode>> = HashMap::new();
    let mut in_kernel = Vec::new();
    let mut in_vdso = Vec::new();
    for (index, place) in places.iter().enumerate() {
        match *place {
            Place::Kernel(address) => in_kernel.push((address, index)),
            Place::File { file, offset } => by_file.entry(file).or_default().push((offset, index)),
            Place::Vdso(offset) => in_vdso.push((offset, index)),
            Place::Generated { image, address, era, of_runtime } => {
                let code = GeneratedCode { address, era, of_runtime, index };
                by_image.entry(image).or_default().push(code);
            }
            Place::Unknown { address, .. } => names.set(index, address, None, unknown()),
            Place::Marker(marker) => names.set(index, 0, None, marker_frame(marker)),
        }
    }
    let all = by_file.len() + by_image.len() + 2;
    resolve_kernel(&in_kernel, &mut names, shortfalls);
    resolve_vdso(&in_vdso, &mut names);
    for (done, (file, offsets)) in by_file.into_iter().enumerate() {
        progress(done + 2, all);
        resolve_file(engine, file, offsets, &mut names, shortfalls);
    }
    for (image, addresses) in by_image {
        resolve_generated(engine, image, &addresses, &mut names, shortfalls);
    }
    for ((place, caller), better) in names.lacking.find_out(engine) {
        let of_place = names.places.get_mut(place as usize);
        let Some(frame) = of_place.and_then(|place| place.frames.first_mut()) else { continue };
        let better = related::rename(frame, &better);
        match caller {
            None => *frame = better,
            Some(caller) => {
                names.by_caller.insert((place, caller), better);
            }
        }
    }
    shortfalls.unnamed = names.places.iter().filter(|place| place.frames.is_empty()).count() as u64;
    names
}

impl Names {
    fn set(&mut self, index: usize, address: u64, module: Option<usize>, frames: Vec<NamedFrame>) {
        if let Some(place) = self.places.get_mut(index) {
            *place = Resolution { address, module, frames };
        }
    }

    fn module(&mut self, module: ModuleInfo) -> usize {
        if let Some(known) = self.modules.iter().position(|known| *known == module) {
            return known;
        }
        self.modules.push(module);
        self.modules.len() - 1
    }

    fn pseudo_module(&mut self, path: &str) -> usize {
        self.module(ModuleInfo { path: path.into(), limit: u64::MAX, ..ModuleInfo::default() })
    }
}

fn unknown() -> Vec<NamedFrame> {
    vec![NamedFrame::plain(FrameKind::Marker, "[unknown]")]
}

fn marker_frame(marker: Marker) -> Vec<NamedFrame> {
    match marker {
        Marker::Truncated => vec![NamedFrame::plain(FrameKind::Marker, "[truncated]")],
        Marker::Incomplete(end) => {
            let why = End::from_byte(end).map_or("", describe_end);
            let mut frame = NamedFrame::plain(FrameKind::Marker, "[incomplete]");
            frame.system_name = format!("[incomplete: {why}]").into();
            vec![frame]
        }
    }
}

fn resolve_kernel(wanted: &[(u64, usize)], names: &mut Names, shortfalls: &mut Shortfalls) {
    if wanted.is_empty() {
        return;
    }
    let module = names.pseudo_module("[kernel.kallsyms]");
    let symbols = kernel::load(wanted.iter().map(|(address, _)| *address));
    if let Err(why) = &symbols {
        shortfalls.problem(why.clone());
    }
    for &(address, index) in wanted {
        let frame = symbols.as_ref().ok().and_then(|symbols| kernel::name(symbols, address));
        names.set(index, address, Some(module), frame.into_iter().collect());
    }
}

fn resolve_vdso(wanted: &[(u64, usize)], names: &mut Names) {
    if wanted.is_empty() {
        return;
    }
    let module = names.pseudo_module("[vdso]");
    let Some(image) = vdso::image() else { return };
    let image = image.as_slice();
    let Ok(mut resolver) = Resolver::new(&image, None, strata_symbols::Options::default()) else {
        return;
    };
    let offsets: Vec<u64> = wanted.iter().map(|(offset, _)| *offset).collect();
    for (&(offset, index), resolved) in wanted.iter().zip(resolver.resolve(&offsets)) {
        let frames = resolved.frames.into_iter();
        let frames = frames.map(|frame| NamedFrame::plain(FrameKind::Native, &frame.name));
        names.set(index, offset, Some(module), frames.collect());
    }
}

fn resolve_file(
    engine: &mut Engine,
    file: FileId,
    mut wanted: Vec<(u64, usize)>,
    names: &mut Names,
    shortfalls: &mut Shortfalls,
) {
    wanted.sort_unstable();
    let Some(mapped) = engine.table.files.get(file) else { return };
    let path = clean_path(mapped);
    let Some(opened) = engine.loading.open_file(file) else {
        if let Some(why) = engine.loading.trouble_of(file) {
            shortfalls.problem(format!("{}: {why}", path.display()));
        }
        let path = path.display().to_string();
        let module = names.pseudo_module(&path);
        for (offset, index) in wanted {
            names.set(index, offset, Some(module), Vec::new());
        }
        return;
    };
    let process = engine
        .loading
        .process_of(file)
        .filter(|pid| engine.table.get(*pid).is_some())
        .map(|pid| ProcessRef { pid, start_time: None });
    let offsets: Vec<u64> = wanted.iter().map(|(offset, _)| *offset).collect();
    if managed::is_assembly(&path) {
        let name = path.display().to_string();
        let module = names.pseudo_module(&name);
        let service = engine.loading.service();
        let assembly = Precompiled { file: &opened, part: None, module: &name };
        let frames = managed::resolve_assembly(
            service,
            &assembly,
            &mut ProcessFiles::new(process, None),
            &offsets,
            names.signatures,
            shortfalls,
        );
        for ((offset, index), frames) in wanted.into_iter().zip(frames) {
            names.set(index, offset, Some(module), frames);
        }
        return;
    }
    let request = native::Wanted { file: opened.clone(), path: &path, process, offsets: &offsets };
    let mut named = native::resolve(engine.loading.service(), &request, shortfalls);
    let module = names.module(std::mem::take(&mut named.module));
    let frames = std::mem::take(&mut named.frames);
    let mut outside = Vec::new();
    for ((offset, index), (address, frames)) in wanted.into_iter().zip(frames) {
        if frames.is_empty() && named.code_is_elsewhere(offset) {
            outside.push((offset, index));
        }
        names.set(index, address, Some(module), frames);
    }
    let program = Program { file: opened, path };
    resolve_bundled(engine, program, process, &outside, names, shortfalls);
}

/// Assemblies inside a single-file program: their code is in its file, and in no segment of it.
fn resolve_bundled(
    engine: &mut Engine,
    program: Program,
    process: Option<ProcessRef>,
    wanted: &[(u64, usize)],
    names: &mut Names,
    shortfalls: &mut Shortfalls,
) {
    if wanted.is_empty() {
        return;
    }
    let offsets: Vec<u64> = wanted.iter().map(|(offset, _)| *offset).collect();
    let service = engine.loading.service();
    let file = program.file.clone();
    let mut files = ProcessFiles::new(process, Some(program));
    for (part, path) in managed::parts_of_bundle(service, &file, &offsets) {
        let inside = |offset: u64| offset.wrapping_sub(part.offset) < part.length;
        let here: Vec<_> = wanted.iter().filter(|(offset, _)| inside(*offset)).collect();
        let offsets: Vec<u64> = here.iter().map(|(offset, _)| *offset).collect();
        let assembly = Precompiled { file: &file, part: Some(part), module: &path };
        let frames = managed::resolve_assembly(
            service,
            &assembly,
            &mut files,
            &offsets,
            names.signatures,
            shortfalls,
        );
        let module = names.pseudo_module(&path);
        for ((offset, index), frames) in here.into_iter().zip(frames) {
            names.set(*index, *offset, Some(module), frames);
        }
    }
}

fn resolve_generated(
    engine: &mut Engine,
    image: ImageId,
    wanted: &[GeneratedCode],
    names: &mut Names,
    shortfalls: &mut Shortfalls,
) {
    let mut files = ProcessFiles::new(process_of(engine, image), program_of(engine, image));
    let unknown = match engine.managed.runtime_of(image) {
        Some(runtime) => {
            let service = engine.loading.service();
            let (named, unknown) = managed::resolve_generated(
                service,
                runtime,
                &mut files,
                wanted,
                names.signatures,
                shortfalls,
            );
            for place in named {
                let module = names.pseudo_module(&place.described.module);
                let pid = files.process.map(|process| process.pid);
                if let Ok(index) = u32::try_from(place.index) {
                    names.lacking.add(index, &place.described, pid);
                }
                let frames = vec![place.described.frame];
                names.set(place.index, place.address, Some(module), frames);
            }
            unknown
        }
        None => wanted.to_vec(),
    };
    if unknown.is_empty() {
        return;
    }
    let Some(pid) = engine.table.image(image).map(|image| image.pid) else { return };
    let dump = engine.table.jitdump_of(image).and_then(|file| engine.loading.open_file(file));
    let jit = JitNames::load(engine.loading.service(), pid, dump);
    let module = names.pseudo_module("[jit]");
    let all_known = engine.managed.knows_all(image);
    for GeneratedCode { address, index, of_runtime, .. } in unknown {
        let stub = || (of_runtime && all_known).then(managed::runtime_stub);
        let frames = jit.name(address).or_else(stub).into_iter().collect();
        names.set(index, address, Some(module), frames);
    }
}

/// The process of an image, if it is still there and still runs it.
fn process_of(engine: &Engine, image: ImageId) -> Option<ProcessRef> {
    let pid = engine.table.image(image)?.pid;
    let current = engine.table.get(pid).is_some_and(|process| process.image == image);
    current.then_some(ProcessRef { pid, start_time: None })
}

/// The program of an image.
fn program_of(engine: &Engine, image: ImageId) -> Option<Program> {
    let program = engine.table.image(image)?.program?;
    let path = clean_path(engine.table.files.get(program)?);
    Some(Program { file: engine.loading.open_file(program)?, path })
}

fn build(engine: &Engine, circumstances: &Circumstances, names: &Names) -> Profile {
    let period = 1_000_000_000 / i64::from(circumstances.frequency.max(1));
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    builder.set_period("cpu", "nanoseconds", period);
    builder.set_default_sample_type("cpu");
    let start = circumstances.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = i64::try_from(start.as_nanos()).unwrap_or(i64::MAX);
    builder.set_start(start);
    builder.set_duration(i64::try_from(circumstances.length.as_nanos()).unwrap_or(i64::MAX));
    builder.set_host(&host_name());

    let modules: Vec<MappingId> = names
        .modules
        .iter()
        .map(|m| builder.mapping(m.start, m.limit, m.offset, &m.path, &m.build_id))
        .collect();
    let mut location = |place: &Resolution, frames: &[NamedFrame]| {
        let frames: Vec<_> = frames
            .iter()
            .map(|f| builder.frame(f.kind, &f.name, &f.system_name, &f.file, f.line))
            .collect();
        let module = place.module.and_then(|module| modules.get(module)).copied();
        builder.location(place.address, module, &frames)
    };
    let locations: Vec<LocationId> =
        names.places.iter().map(|place| location(place, &place.frames)).collect();
    let by_caller: HashMap<(u32, u32), LocationId> = names
        .by_caller
        .iter()
        .filter_map(|(pair, frame)| {
            let place = names.places.get(pair.0 as usize)?;
            Some((*pair, location(place, std::slice::from_ref(frame))))
        })
        .collect();
    let aggregate = &engine.aggregate;
    let threads: Vec<_> = aggregate
        .threads()
        .map(|key| {
            let image = engine.table.image(key.image);
            let pid = image.map_or(0, |image| image.pid);
            let process = image.map(|image| image.comm.clone()).unwrap_or_default();
            let group = engine.groups.known(key.image);
            let container = group.and_then(|group| group.container.as_deref()).unwrap_or("");
            let comm = crate::engine::samples::comm_text(&key.comm);
            builder.thread(pid, key.tid, &comm, &process, container)
        })
        .collect();
    let stacks: Vec<_> = (0..aggregate.stacks())
        .map(|stack| {
            let places = aggregate.stack_of(super::aggregate::StackId(stack as u32));
            let mut stack: Vec<LocationId> = Vec::with_capacity(places.len());
            let mut callee: Option<&NamedFrame> = None;
            for (at, number) in places.iter().enumerate() {
                let place = *number as usize;
                let frames = names.places.get(place).map(|place| place.frames.as_slice());
                let frame = frames.and_then(<[NamedFrame]>::first);
                let folded = matches!((callee, frame), (Some(callee), Some(caller)) if folds(callee, caller));
                callee = frame.filter(|frame| frame.kind == FrameKind::Managed);
                let pair = places.get(at + 1).map(|caller| (*number, *caller));
                let own = pair.and_then(|pair| by_caller.get(&pair));
                if !folded {
                    stack.extend(own.or(locations.get(place)).copied());
                }
            }
            builder.stack(&stack)
        })
        .collect();
    for (thread, stack, count) in aggregate.counts() {
        let (Some(&thread), Some(&stack)) =
            (threads.get(thread.0 as usize), stacks.get(stack.0 as usize))
        else {
            continue;
        };
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let labels = builder.thread_labels(thread);
        builder.add(stack, labels, &[count, count.saturating_mul(period)]);
    }
    if let Some(timeline) = aggregate.timeline() {
        builder.keep_timeline();
        for tick in timeline {
            if let (Some(&thread), Some(&stack)) =
                (threads.get(tick.thread.0 as usize), stacks.get(tick.stack.0 as usize))
            {
                let time = tick.time.saturating_sub(engine.started);
                builder.tick(thread, time, stack, u32::try_from(period).unwrap_or(u32::MAX));
            }
        }
    }
    builder.finish()
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}
