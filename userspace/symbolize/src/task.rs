//! A task: the addresses of one file, of one process's generated code, or of the kernel, with the
//! data needed to symbolize them, so that nothing of the agent is borrowed.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_agent::code_address::CodeAddress;
use strata_agent::frame::NamedFrame;
use strata_agent::image_id::ImageId;
use strata_agent::kernel::names::KernelNames;
use strata_agent::managed::names::{Described, Open};
use strata_agent::processes::credentials::{Ancestor, Credentials};
use strata_agent::processes::mapped::FileId;
use strata_profile::FrameKind;
use strata_sandbox::{OpenFile, ProcessRef, Related};
use strata_symbols::Resolver;

use crate::assemblies::{ProcessFiles, Program};
use crate::file_client::Ask;
use crate::jit::{Allowance, JitFiles, Names};
use crate::kernel::{self, KernelTable};
use crate::managed::{self, GeneratedCode, Precompiled};
use crate::related::About;
use crate::related::assembly::Assembly;
use crate::{LONGEST_NAME, ModuleInfo, Shortfalls, UNNAMED_CODE, native, pseudo_module};

/// The subject of a task: one task for each is under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKey {
    Kernel,
    File(FileId),
    Generated(ImageId),
    /// By its position among those of a flush.
    Related(u32),
}

/// Whose files a task reads: they share time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Host,
    Process(u32),
    File(FileId),
}

/// How long a symbol is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    ForGood,
    /// It may get better soon.
    ForSomeFlushes,
    /// Until the next flush: there was no time for it.
    UntilNext,
    /// Until its file's lines and inlined functions are worth reading.
    UntilLines,
}

/// A code address with its frames.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub place: CodeAddress,
    pub address: u64,
    pub module: Option<Arc<ModuleInfo>>,
    /// The innermost inlined function first; none when it has no name.
    pub frames: Vec<NamedFrame>,
    pub lasting: Lasting,
}

pub struct Task {
    pub key: TaskKey,
    pub owner: Owner,
    /// Samples through its addresses.
    pub weight: u64,
    pub work: Work,
}

pub enum Work {
    Kernel(KernelWork),
    File(FileWork),
    Generated(Box<GeneratedWork>),
    Related(RelatedWork),
}

/// What came of a task.
pub struct Outcome {
    pub key: TaskKey,
    pub symbols: Vec<Symbol>,
    /// Names by their caller, or better ones.
    pub related: Vec<(About, Option<NamedFrame>)>,
    /// The symbol files of a process's JIT compilers, as far as they were read.
    pub jit: Option<(ImageId, JitFiles)>,
    /// How long a file took whose lines were read.
    pub lines_took: Option<(FileId, Duration)>,
    pub shortfalls: Shortfalls,
    /// There was no time for all of it.
    pub is_late: bool,
    /// A file was not read, and may be later.
    pub lacks_answers: bool,
}

impl Outcome {
    pub fn nothing(key: TaskKey) -> Self {
        Self {
            key,
            symbols: Vec::new(),
            related: Vec::new(),
            jit: None,
            lines_took: None,
            shortfalls: Shortfalls::default(),
            is_late: true,
            lacks_answers: true,
        }
    }
}

/// A task's access to files, and the receiver of its reports.
pub trait Context: Ask {
    /// Symbols before the task's end.
    fn emit(&self, symbols: Vec<Symbol>);
}

impl Work {
    pub fn run(&mut self, key: TaskKey, context: &mut dyn Context) -> Outcome {
        let mut outcome = Outcome { is_late: false, lacks_answers: false, ..Outcome::nothing(key) };
        match self {
            Self::Kernel(work) => work.run(&mut outcome),
            Self::File(work) => work.run(context, &mut outcome),
            Self::Generated(work) => work.run(context, &mut outcome),
            Self::Related(work) => work.run(context, &mut outcome),
        }
        outcome
    }

    /// Before it is run again: the data that it gave away.
    pub fn take_back(&mut self, outcome: Outcome) {
        if let (Self::Generated(work), Some((_, jit))) = (self, outcome.jit) {
            work.jit = jit;
        }
    }
}

/// Addresses in the kernel, and in the page it maps into every process.
pub struct KernelWork {
    pub addresses: Vec<u64>,
    pub vdso: Vec<u64>,
    /// Asked first.
    pub names: Option<Arc<KernelNames>>,
    /// The whole table, where it is kept.
    pub table: Option<Arc<Mutex<Option<KernelTable>>>>,
}

impl KernelWork {
    fn run(&self, outcome: &mut Outcome) {
        if !self.addresses.is_empty() {
            let module = pseudo_module("[kernel.kallsyms]");
            let frames = self.frames().unwrap_or_else(|why| {
                outcome.shortfalls.problem(why);
                vec![(None, Lasting::ForGood); self.addresses.len()]
            });
            for (&address, (frame, lasting)) in self.addresses.iter().zip(frames) {
                outcome.symbols.push(Symbol {
                    place: CodeAddress::Kernel(address),
                    address,
                    module: Some(module.clone()),
                    frames: frame.into_iter().collect(),
                    lasting,
                });
            }
        }
        if !self.vdso.is_empty() {
            self.symbolize_vdso(outcome);
        }
    }

    fn frames(&self) -> Result<Vec<(Option<NamedFrame>, Lasting)>, String> {
        if let Some(names) = &self.names {
            let frames: io::Result<_> =
                self.addresses.iter().map(|at| kernel::ask(names, *at)).collect();
            match frames {
                Ok(frames) => return Ok(frames),
                Err(error) => tracing::debug!(%error, "the kernel cannot be asked for names"),
            }
        }
        let Some(table) = &self.table else {
            let symbols = kernel::load(self.addresses.iter().copied())?;
            let name = |at: &u64| (kernel::name(&symbols, *at), Lasting::ForGood);
            return Ok(self.addresses.iter().map(name).collect());
        };
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old =
            |table: &KernelTable| self.addresses.iter().any(|at| table.is_outdated_for(*at));
        if table.as_ref().is_none_or(is_old) {
            *table = Some(KernelTable::read()?);
        }
        let table = table.as_ref();
        let name = |at: &u64| (table.and_then(|table| table.name(*at)), Lasting::ForGood);
        Ok(self.addresses.iter().map(name).collect())
    }

    fn symbolize_vdso(&self, outcome: &mut Outcome) {
        let module = pseudo_module("[vdso]");
        let Some(image) = strata_agent::processes::vdso::image() else { return };
        let image = image.as_slice();
        let Ok(mut resolver) = Resolver::new(&image, None, strata_symbols::Options::default())
        else {
            return;
        };
        for (&offset, resolved) in self.vdso.iter().zip(resolver.resolve(&self.vdso)) {
            let frames = resolved.frames.into_iter();
            let frames = frames.map(|frame| NamedFrame::plain(FrameKind::Native, &frame.name));
            outcome.symbols.push(Symbol {
                place: CodeAddress::Vdso(offset),
                address: offset,
                module: Some(module.clone()),
                frames: frames.collect(),
                lasting: Lasting::ForGood,
            });
        }
    }
}

/// Offsets of a mapped file.
pub struct FileWork {
    pub file: FileId,
    pub path: PathBuf,
    pub opened: Arc<OpenFile>,
    /// A process in whose root debug files are looked for first.
    pub process: Option<ProcessRef>,
    /// Sorted.
    pub offsets: Vec<u64>,
    /// Lines and inlined functions are worth reading.
    pub lines: bool,
    pub signatures: bool,
}

impl FileWork {
    fn symbol(
        &self,
        offset: u64,
        address: u64,
        module: &Arc<ModuleInfo>,
        frames: Vec<NamedFrame>,
        lasting: Lasting,
    ) -> Symbol {
        let place = CodeAddress::File { file: self.file, offset };
        Symbol { place, address, module: Some(module.clone()), frames, lasting }
    }

    fn run(&self, context: &mut dyn Context, outcome: &mut Outcome) {
        let shortfalls = &mut outcome.shortfalls;
        if managed::is_assembly(context, &self.path, &self.opened) {
            let name = self.path.display().to_string();
            let assembly = Precompiled { file: &self.opened, part: None, module: &name };
            let mut files = ProcessFiles::new(self.process, None);
            let frames = managed::resolve_assembly(
                context,
                &assembly,
                &mut files,
                &self.offsets,
                self.signatures,
                shortfalls,
            );
            let module = pseudo_module(&name);
            let lasting = lasting_now(context);
            let symbols = self
                .offsets
                .iter()
                .zip(frames)
                .map(|(&offset, frames)| self.symbol(offset, offset, &module, frames, lasting));
            outcome.symbols.extend(symbols);
            return;
        }
        let wanted = native::Wanted {
            file: self.opened.clone(),
            path: &self.path,
            process: self.process,
            offsets: &self.offsets,
            lines: self.lines,
        };
        let Some(facts) = native::facts(context, &wanted, shortfalls) else { return };
        let module = Arc::new(native::module_of(&self.path, &facts));
        // Addresses and build id at least, should the rest take too long.
        let without_names = self.offsets.iter().map(|&offset| {
            let address = facts.address_of(offset).unwrap_or(offset);
            self.symbol(offset, address, &module, Vec::new(), Lasting::UntilNext)
        });
        context.emit(without_names.collect());
        let started = Instant::now();
        let named = native::resolve(context, &wanted, &facts, shortfalls);
        outcome.lines_took = self.lines.then(|| (self.file, started.elapsed()));
        let Some(named) = named else { return };
        let lasting = match (named.without_lines, self.lines) {
            (true, true) => Lasting::ForSomeFlushes,
            (true, false) => Lasting::UntilLines,
            (false, _) => Lasting::ForGood,
        };
        let mut outside = Vec::new();
        for (&offset, (address, mut frames)) in self.offsets.iter().zip(named.frames) {
            let is_named = frames.iter().any(|frame| !strata_profile::is_unnamed(&frame.name));
            if !is_named && native::code_is_elsewhere(&facts, offset) {
                outside.push(offset);
                frames.clear();
            }
            let symbol = self.symbol(offset, address, &module, frames, lasting);
            outcome.symbols.push(symbol);
        }
        self.symbolize_bundled(context, &outside, outcome);
    }

    /// Assemblies inside a single-file program: their code is in its file, and in no segment of
    /// it.
    fn symbolize_bundled(&self, context: &mut dyn Context, wanted: &[u64], outcome: &mut Outcome) {
        if wanted.is_empty() {
            return;
        }
        let program = Program { file: self.opened.clone(), path: self.path.clone() };
        let mut files = ProcessFiles::new(self.process, Some(program));
        let mut left = wanted.to_vec();
        for (part, path) in managed::parts_of_bundle(context, &self.opened, wanted) {
            // A bundle may list parts over each other, as many as it likes.
            let inside = |offset: &u64| offset.wrapping_sub(part.offset) < part.length;
            let offsets: Vec<u64> = left.extract_if(.., |offset| inside(offset)).collect();
            if offsets.is_empty() {
                continue;
            }
            if context.is_late() {
                return;
            }
            let assembly = Precompiled { file: &self.opened, part: Some(part), module: &path };
            let shortfalls = &mut outcome.shortfalls;
            let frames = managed::resolve_assembly(
                context,
                &assembly,
                &mut files,
                &offsets,
                self.signatures,
                shortfalls,
            );
            let module = pseudo_module(&path);
            let lasting = lasting_now(context);
            for (offset, frames) in offsets.into_iter().zip(frames) {
                let symbol = self.symbol(offset, offset, &module, frames, lasting);
                outcome.symbols.push(symbol);
            }
        }
    }
}

/// How long names hold whose lines were asked for: where there was no time, they may come later.
fn lasting_now(context: &dyn Context) -> Lasting {
    if context.is_late() { Lasting::UntilNext } else { Lasting::ForGood }
}

/// Generated code of one process.
pub struct GeneratedWork {
    pub image: ImageId,
    pub pid: u32,
    pub process: Option<ProcessRef>,
    pub program: Option<Program>,
    /// The names from the bridge's records.
    pub described: Vec<(GeneratedCode, Described)>,
    /// Addresses that JIT compilers may have symbols for.
    pub others: Vec<GeneratedCode>,
    pub dump: Option<Arc<OpenFile>>,
    pub credentials: Option<Credentials>,
    /// The processes that this one was forked from, the nearest first.
    pub ancestors: Vec<Ancestor>,
    pub jit: JitFiles,
    /// What reading those files may take.
    pub allowance: Allowance,
    /// All methods are known: code without a name is a stub of the runtime.
    pub all_known: bool,
    /// Addresses without a name are merged: they mean nothing in another process, and there is no
    /// end of them.
    pub merges_unnamed: bool,
}

/// The place of generated code.
pub fn place_of(image: ImageId, code: &GeneratedCode) -> CodeAddress {
    let GeneratedCode { address, era, of_runtime, .. } = *code;
    CodeAddress::Generated { image, address, era, of_runtime }
}

/// The modules of described methods, one for all of its addresses.
#[derive(Default)]
pub struct Modules(HashMap<Arc<str>, Arc<ModuleInfo>>);

impl Modules {
    fn of(&mut self, path: &Arc<str>) -> Arc<ModuleInfo> {
        if let Some(known) = self.0.get(path) {
            return known.clone();
        }
        let module = pseudo_module(path);
        self.0.insert(path.clone(), module.clone());
        module
    }
}

/// A described method without its line.
pub fn described_symbol(
    image: ImageId,
    code: &GeneratedCode,
    described: &Described,
    modules: &mut Modules,
) -> Symbol {
    // The IL map for its line may still be pending.
    let lasting = match described.il {
        Some(_) => Lasting::ForGood,
        None => Lasting::ForSomeFlushes,
    };
    Symbol {
        place: place_of(image, code),
        address: code.address,
        module: Some(modules.of(&described.module)),
        frames: vec![described.frame.clone()],
        lasting,
    }
}

/// Generated code without a name.
pub fn unnamed_symbol(image: ImageId, code: &GeneratedCode, merges: bool) -> Symbol {
    let frame = || NamedFrame::plain(FrameKind::Jit, UNNAMED_CODE);
    Symbol {
        place: place_of(image, code),
        address: if merges { 0 } else { code.address },
        module: Some(pseudo_module(UNNAMED_CODE)),
        frames: if merges { vec![frame()] } else { Vec::new() },
        lasting: Lasting::ForSomeFlushes,
    }
}

impl GeneratedWork {
    fn run(&mut self, context: &mut dyn Context, outcome: &mut Outcome) {
        if !self.others.is_empty() {
            self.symbolize_others(context, outcome);
        }
        // Also where none of its code was asked about: it would be read again from its beginning.
        outcome.jit = Some((self.image, std::mem::take(&mut self.jit)));
        let mut files = ProcessFiles::new(self.process, self.program.take());
        let found = managed::lines(context, &mut files, &self.described, &mut outcome.shortfalls);
        self.program = files.into_program();
        let mut modules = Modules::default();
        for ((code, described), line) in self.described.iter().zip(found) {
            let mut symbol = described_symbol(self.image, code, described, &mut modules);
            match (line, symbol.frames.first_mut()) {
                (managed::LineOf::Found(file, line), Some(frame)) => {
                    frame.file = file;
                    frame.line = line;
                }
                (managed::LineOf::Late, _) => symbol.lasting = Lasting::UntilNext,
                _ => {}
            }
            outcome.symbols.push(symbol);
        }
    }

    fn symbolize_others(&mut self, context: &mut dyn Context, outcome: &mut Outcome) {
        let dump = self.dump.as_ref();
        let is_whole = self.jit.read_on(context, self.pid, self.credentials, dump, self.allowance);
        if !is_whole {
            let pid = self.pid;
            outcome.shortfalls.problem(format!(
                "process {pid}: the symbols of its JIT compiler take too much memory: code that was \
                 made later has no names"
            ));
        }
        let (module, mut modules) = (pseudo_module(UNNAMED_CODE), Modules::default());
        let longest = if self.merges_unnamed { LONGEST_NAME } else { usize::MAX };
        let mut names = Names::new(&self.jit, longest);
        let own: Vec<_> = self.others.iter().map(|code| names.at(code.address)).collect();
        let nameless = self.others.iter().zip(&own).filter(|(_, name)| name.is_none());
        let nameless: Vec<u64> = nameless.map(|(code, _)| code.address).collect();
        let inherited = match nameless.as_slice() {
            [] => HashMap::new(),
            _ => self.jit.inherited(
                context,
                self.credentials,
                &self.ancestors,
                &nameless,
                self.allowance,
                longest,
            ),
        };
        for (code, own) in self.others.iter().zip(own) {
            // Elsewhere than in the runtime's own memory another compiler's code may lie.
            let is_stub = match code.stub {
                Some(Some(_)) => true,
                Some(None) => code.of_runtime,
                None => code.of_runtime && self.all_known,
            };
            let stub = || is_stub.then(|| managed::runtime_stub(code.stub.flatten()));
            let of_ancestor = || inherited.get(&code.address).cloned();
            let assembly = own.as_ref().and_then(|own| own.assembly.clone());
            let own = own.map(|own| own.frame);
            let symbol = match own.or_else(of_ancestor).or_else(stub) {
                Some(frame) => Symbol {
                    place: place_of(self.image, code),
                    address: code.address,
                    module: Some(assembly.map_or(module.clone(), |path| modules.of(&path))),
                    frames: vec![frame],
                    lasting: Lasting::ForSomeFlushes,
                },
                None => unnamed_symbol(self.image, code, self.merges_unnamed),
            };
            outcome.symbols.push(symbol);
        }
    }
}

/// The requests to one assembly about incomplete names.
pub struct RelatedWork {
    pub assembly: Assembly,
    pub programs: Vec<Arc<OpenFile>>,
    pub questions: Vec<(About, Related, Option<Open>)>,
}

impl RelatedWork {
    fn run(&self, context: &mut dyn Context, outcome: &mut Outcome) {
        let questions = self.questions.iter().map(|(_, question, _)| question.clone()).collect();
        let answers = self.assembly.ask(context, &self.programs, questions);
        if answers.is_empty() && context.is_late() {
            return;
        }
        let answers = answers.into_iter().chain(std::iter::repeat(None));
        for ((about, _, open), answer) in self.questions.iter().zip(answers) {
            let better = open.as_ref().zip(answer);
            let better = better.map(|(open, answer)| open.answered(&answer));
            outcome.related.push((*about, better));
        }
    }
}
