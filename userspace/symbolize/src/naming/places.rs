//! Who is asked for the names of which places.

use std::sync::Arc;
use std::time::Duration;

use strata_profile::FrameKind;
use strata_sandbox::{FileError, ProcessRef, Reply, Request, RequestId};
use strata_symbols::Resolver;

use super::{FOR_GOOD, Naming, ROUNDS, UNNAMED_CODE};
use crate::assemblies::{ProcessFiles, Program};
use crate::jit::{self, JitNames};
use crate::kernel::KernelTable;
use crate::managed::{GeneratedCode, Precompiled};
use crate::{Ask, ModuleInfo, NamedFrame, Shortfalls, kernel, managed, native};
use strata_agent::engine::Engine;
use strata_agent::engine::loading::clean_path;
use strata_agent::place::Place;
use strata_agent::processes::mapped::FileId;
use strata_agent::processes::table::ImageId;

/// Large files take a while: the engine goes on while their names are waited for.
pub(super) struct Meanwhile<'a> {
    pub engine: &'a mut Engine,
    pub go_on: &'a mut dyn FnMut(&mut Engine),
}

/// How often the engine may go on.
const OFTEN: Duration = Duration::from_millis(50);

impl Ask for Meanwhile<'_> {
    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Result<Reply, FileError>> {
        let service = self.engine.loading.service();
        let ids: Vec<RequestId> =
            requests.into_iter().map(|request| service.submit_apart(request)).collect();
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(loop {
                let service = self.engine.loading.service();
                service.move_on();
                if let Some(answer) = service.take_apart(id) {
                    break answer;
                }
                service.wait_at_most(OFTEN);
                (self.go_on)(self.engine);
            });
        }
        answers
    }
}

/// What is shown as the module of places that are in no file.
fn pseudo_module(path: &str) -> Arc<ModuleInfo> {
    Arc::new(ModuleInfo { path: path.into(), limit: u64::MAX, ..ModuleInfo::default() })
}

impl Naming {
    pub(super) fn name_kernel(&mut self, wanted: &[u64], shortfalls: &mut Shortfalls) {
        if wanted.is_empty() {
            return;
        }
        let module = pseudo_module("[kernel.kallsyms]");
        let frames = match self.is_bounded() {
            true => self.names_of_kept_table(wanted),
            false => kernel::load(wanted.iter().copied()).map(|symbols| {
                wanted.iter().map(|address| kernel::name(&symbols, *address)).collect()
            }),
        };
        let frames: Vec<Option<NamedFrame>> = frames.unwrap_or_else(|why| {
            shortfalls.problem(why);
            vec![None; wanted.len()]
        });
        for (&address, frame) in wanted.iter().zip(frames) {
            let frames = frame.into_iter().collect();
            self.set(Place::Kernel(address), address, Some(&module), frames, FOR_GOOD);
        }
    }

    fn names_of_kept_table(&mut self, wanted: &[u64]) -> Result<Vec<Option<NamedFrame>>, String> {
        self.kernel_used = self.round;
        let is_old = |table: &KernelTable| wanted.iter().any(|at| table.is_outdated_for(*at));
        if self.kernel.as_ref().is_none_or(is_old) {
            self.kernel = Some(KernelTable::read()?);
        }
        let table = self.kernel.as_ref();
        Ok(wanted.iter().map(|address| table?.name(*address)).collect())
    }

    pub(super) fn name_vdso(&mut self, wanted: &[u64]) {
        if wanted.is_empty() {
            return;
        }
        let module = pseudo_module("[vdso]");
        let Some(image) = strata_agent::processes::vdso::image() else { return };
        let image = image.as_slice();
        let Ok(mut resolver) = Resolver::new(&image, None, strata_symbols::Options::default())
        else {
            return;
        };
        for (&offset, resolved) in wanted.iter().zip(resolver.resolve(wanted)) {
            let frames = resolved.frames.into_iter();
            let frames = frames.map(|frame| NamedFrame::plain(FrameKind::Native, &frame.name));
            self.set(Place::Vdso(offset), offset, Some(&module), frames.collect(), FOR_GOOD);
        }
    }

    pub(super) fn name_file(
        &mut self,
        asking: &mut Meanwhile<'_>,
        file: FileId,
        mut offsets: Vec<u64>,
        shortfalls: &mut Shortfalls,
    ) {
        let engine = &mut *asking.engine;
        offsets.sort_unstable();
        let place = |offset| Place::File { file, offset };
        let Some(mapped) = engine.table.files.get(file) else { return };
        let path = clean_path(mapped);
        let Some(opened) = engine.loading.open_file(file) else {
            if let Some(why) = engine.loading.trouble_of(file) {
                shortfalls.problem(format!("{}: {why}", path.display()));
            }
            let module = Arc::new(ModuleInfo { limit: u64::MAX, ..ModuleInfo::of(&path) });
            for offset in offsets {
                self.set(place(offset), offset, Some(&module), Vec::new(), ROUNDS);
            }
            return;
        };
        let process = engine
            .loading
            .process_of(file)
            .filter(|pid| engine.table.get(*pid).is_some())
            .map(|pid| ProcessRef { pid, start_time: None });
        if managed::is_assembly(&path) {
            let name = path.display().to_string();
            let assembly = Precompiled { file: &opened, part: None, module: &name };
            let mut files = ProcessFiles::new(process, None);
            let signatures = self.signatures;
            let frames = managed::resolve_assembly(
                asking, &assembly, &mut files, &offsets, signatures, shortfalls,
            );
            let module = pseudo_module(&name);
            for (offset, frames) in offsets.into_iter().zip(frames) {
                self.set(place(offset), offset, Some(&module), frames, FOR_GOOD);
            }
            return;
        }
        let request =
            native::Wanted { file: opened.clone(), path: &path, process, offsets: &offsets };
        let mut named = native::resolve(asking, &request, shortfalls);
        let module = Arc::new(std::mem::take(&mut named.module));
        let frames = std::mem::take(&mut named.frames);
        let mut outside = Vec::new();
        for (offset, (address, frames)) in offsets.into_iter().zip(frames) {
            if frames.is_empty() && named.code_is_elsewhere(offset) {
                outside.push(offset);
            }
            self.set(place(offset), address, Some(&module), frames, FOR_GOOD);
        }
        let program = Program { file: opened, path };
        self.name_bundled(asking, file, program, process, &outside, shortfalls);
    }

    /// Assemblies inside a single-file program: their code is in its file, and in no segment of
    /// it.
    fn name_bundled(
        &mut self,
        asking: &mut Meanwhile<'_>,
        id: FileId,
        program: Program,
        process: Option<ProcessRef>,
        wanted: &[u64],
        shortfalls: &mut Shortfalls,
    ) {
        if wanted.is_empty() {
            return;
        }
        let file = program.file.clone();
        let mut files = ProcessFiles::new(process, Some(program));
        for (part, path) in managed::parts_of_bundle(asking, &file, wanted) {
            let inside = |offset: &u64| offset.wrapping_sub(part.offset) < part.length;
            let offsets: Vec<u64> = wanted.iter().copied().filter(inside).collect();
            let assembly = Precompiled { file: &file, part: Some(part), module: &path };
            let signatures = self.signatures;
            let frames = managed::resolve_assembly(
                asking, &assembly, &mut files, &offsets, signatures, shortfalls,
            );
            let module = pseudo_module(&path);
            for (offset, frames) in offsets.into_iter().zip(frames) {
                let place = Place::File { file: id, offset };
                self.set(place, offset, Some(&module), frames, FOR_GOOD);
            }
        }
    }

    pub(super) fn name_generated(
        &mut self,
        engine: &mut Engine,
        image: ImageId,
        wanted: &[GeneratedCode],
        shortfalls: &mut Shortfalls,
    ) {
        let place = |code: &GeneratedCode| Place::Generated {
            image,
            address: code.address,
            era: code.era,
            of_runtime: code.of_runtime,
        };
        let mut files = ProcessFiles::new(process_of(engine, image), program_of(engine, image));
        let unknown = match engine.managed.runtime_of(image) {
            Some(runtime) => {
                let service = engine.loading.service();
                let signatures = self.signatures;
                let (named, unknown) = managed::resolve_generated(
                    service, runtime, &mut files, wanted, signatures, shortfalls,
                );
                for found in named {
                    let module = pseudo_module(&found.described.module);
                    let pid = files.process.map(|process| process.pid);
                    let place = place(&found.code);
                    self.lacking.add(place, &found.described, pid);
                    // The IL map that its line comes from may still be on its way.
                    let rounds = if found.described.il.is_some() { FOR_GOOD } else { ROUNDS };
                    let frames = vec![found.described.frame];
                    self.set(place, found.code.address, Some(&module), frames, rounds);
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
        let most = if self.is_bounded() { jit::MOST_OFTEN } else { jit::MOST };
        let jit = JitNames::load(engine.loading.service(), pid, dump, most);
        let module = pseudo_module(UNNAMED_CODE);
        let all_known = engine.managed.knows_all(image);
        for code in unknown {
            let stub = || (code.of_runtime && all_known).then(managed::runtime_stub);
            match jit.name(code.address).or_else(stub) {
                Some(frame) => {
                    self.set(place(&code), code.address, Some(&module), vec![frame], ROUNDS);
                }
                // Addresses of one process mean nothing in another, and there is no end of them.
                None if self.is_bounded() => {
                    let frame = NamedFrame::plain(FrameKind::Jit, UNNAMED_CODE);
                    self.set(place(&code), 0, Some(&module), vec![frame], ROUNDS);
                }
                None => self.set(place(&code), code.address, Some(&module), Vec::new(), ROUNDS),
            }
        }
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
