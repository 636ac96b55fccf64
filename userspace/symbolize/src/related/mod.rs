//! Names that only an assembly's instructions contain: the method that a VB lambda is written in,
//! and the native function that a stub calls.
//!
//! A stub serves several methods of one signature, and only its caller determines which: so one
//! code address has as many names as callers, and a name belongs to the pair of the two code
//! addresses.

pub mod assembly;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use strata_dotnet::Statement;
use strata_sandbox::Related;

use crate::NamedFrame;
use crate::task::RelatedWork;
use assembly::Assembly;
use strata_agent::aggregate::{Aggregate, StackId};
use strata_agent::code_address::CodeAddress;
use strata_agent::engine::Engine;
use strata_agent::image_id::ImageId;
use strata_agent::managed::names::{Described, Open, Question};
use strata_agent::processes::mapped::FileId;

/// Whose name is asked for: a place, or a place as another one calls it.
pub type About = (CodeAddress, Option<CodeAddress>);

/// What is asked of one assembly.
#[derive(Default)]
struct Questions {
    questions: BTreeMap<About, Related>,
    /// Files that are on the same stacks: one of them is the program that the assembly is inside of.
    programs: BTreeSet<FileId>,
}

/// Questions that are asked at one time, and of them about one process.
const MOST_QUESTIONS: usize = 20_000;
const MOST_OF_ONE: usize = 5_000;
/// Bytes of signatures in them, likewise.
const MOST_SIGNATURES: usize = 8 << 20;
const MOST_SIGNATURES_OF_ONE: usize = 2 << 20;
/// Bytes of incomplete names that are kept of one process, in a daemon and in a recording.
const MOST_OPEN: usize = 1 << 20;
const MOST_OPEN_ONCE: usize = 64 << 20;
/// More files on the stacks of one program are not looked into.
const MOST_PROGRAMS: usize = 64;

/// Places whose names lack something, and places that may tell it.
pub struct Lacking {
    open: HashMap<CodeAddress, (Assembly, Open)>,
    /// The bytes of `open`, by image.
    open_bytes: HashMap<ImageId, usize>,
    /// The limit of those.
    most_open: usize,
    /// Names that stay incomplete because of it, since they were reported.
    refused: u64,
    statements: HashMap<CodeAddress, (Assembly, Statement)>,
}

/// What questions take in one flush.
#[derive(Clone, Copy, Default)]
struct Taken {
    questions: usize,
    signatures: usize,
}

impl Taken {
    fn has_room(self, signature: usize, questions: usize, signatures: usize) -> bool {
        self.questions < questions && self.signatures + signature <= signatures
    }

    fn add(&mut self, signature: usize) {
        self.questions += 1;
        self.signatures += signature;
    }
}

/// Whether a question may be asked.
enum Room {
    Enough,
    /// Its process has asked enough.
    NotForIt,
    None,
}

#[derive(Default)]
struct Limits {
    all: Taken,
    by_image: HashMap<ImageId, Taken>,
}

impl Limits {
    fn take(&mut self, place: CodeAddress, question: &Related) -> Room {
        let CodeAddress::Generated { image, .. } = place else { return Room::NotForIt };
        let signature = match question {
            Related::Import { signature, .. } => signature.len(),
            Related::Around(_) => 0,
        };
        let own = self.by_image.entry(image).or_default();
        if !own.has_room(signature, MOST_OF_ONE, MOST_SIGNATURES_OF_ONE) {
            return Room::NotForIt;
        }
        if !self.all.has_room(signature, MOST_QUESTIONS, MOST_SIGNATURES) {
            return Room::None;
        }
        own.add(signature);
        self.all.add(signature);
        Room::Enough
    }
}

impl Lacking {
    pub fn new(is_bounded: bool) -> Self {
        Self {
            open: HashMap::new(),
            open_bytes: HashMap::new(),
            most_open: if is_bounded { MOST_OPEN } else { MOST_OPEN_ONCE },
            refused: 0,
            statements: HashMap::new(),
        }
    }

    /// A code address in generated code, and its metadata. `pid` is its process, if alive.
    pub fn add(&mut self, place: CodeAddress, described: &Described, pid: Option<u32>) {
        let assembly = || Assembly { path: described.module.clone(), mvid: described.mvid, pid };
        if let Some(open) = &described.open {
            let CodeAddress::Generated { image, .. } = place else { return };
            let bytes = self.open_bytes.entry(image).or_default();
            if *bytes + open.bytes() > self.most_open {
                self.refused += 1;
                return;
            }
            *bytes += open.bytes();
            self.insert_open(place, (assembly(), open.clone()));
        } else if let Some(statement) = described.il {
            self.statements.insert(place, (assembly(), statement));
        }
    }

    fn insert_open(&mut self, place: CodeAddress, open: (Assembly, Open)) {
        if let Some((_, before)) = self.open.insert(place, open) {
            self.uncount(place, &before);
        }
    }

    fn uncount(&mut self, place: CodeAddress, open: &Open) {
        if let CodeAddress::Generated { image, .. } = place
            && let Some(bytes) = self.open_bytes.get_mut(&image)
        {
            *bytes = bytes.saturating_sub(open.bytes());
        }
    }

    /// Nothing more can be found out about a place.
    pub fn settled(&mut self, place: CodeAddress) {
        if let Some((_, open)) = self.open.remove(&place) {
            self.uncount(place, &open);
        }
    }

    /// Why names stay incomplete, once.
    pub fn take_problem(&mut self) -> Option<String> {
        let refused = std::mem::take(&mut self.refused);
        (refused > 0).then(|| {
            format!("{refused} names of methods stay incomplete: their processes have too many")
        })
    }

    pub fn retain(&mut self, is_kept: impl Fn(&CodeAddress) -> bool) {
        let gone: Vec<CodeAddress> =
            self.open.keys().filter(|place| !is_kept(place)).copied().collect();
        gone.into_iter().for_each(|place| self.settled(place));
        self.open_bytes.retain(|_, bytes| *bytes > 0);
        self.statements.retain(|place, _| is_kept(place));
    }

    /// The requests about an aggregate; `is_known` excludes those answered.
    pub fn work(
        &self,
        engine: &Engine,
        aggregate: &Aggregate,
        is_known: &dyn Fn(&About) -> bool,
    ) -> Vec<RelatedWork> {
        let mut all = Vec::new();
        for (assembly, Questions { questions, programs }) in self.questions(aggregate, is_known) {
            let programs = programs.iter().filter_map(|file| engine.loading.open_file(*file));
            let programs = programs.take(MOST_PROGRAMS).collect();
            let open = |about: &About| self.open.get(&about.0).map(|(_, open)| open.clone());
            let questions = questions
                .into_iter()
                .map(|(about, question)| (about, question, open(&about)))
                .collect();
            all.push(RelatedWork { assembly, programs, questions });
        }
        all
    }

    fn questions(
        &self,
        aggregate: &Aggregate,
        is_known: &dyn Fn(&About) -> bool,
    ) -> BTreeMap<Assembly, Questions> {
        let mut all: BTreeMap<Assembly, Questions> = BTreeMap::new();
        let mut limits = Limits::default();
        if self.open.is_empty() {
            return all;
        }
        for stack in 0..aggregate.stacks() {
            let stack: Vec<CodeAddress> = aggregate
                .stack_of(StackId(stack as u32))
                .iter()
                .filter_map(|place| aggregate.code_address(*place as usize))
                .collect();
            for (at, place) in stack.iter().enumerate() {
                let Some((own, open)) = self.open.get(place) else { continue };
                let caller = stack.get(at + 1);
                let Some((assembly, about, question)) = self.question(*place, own, open, caller)
                else {
                    continue;
                };
                if is_known(&about) {
                    continue;
                }
                let asked = all.get(assembly);
                if !asked.is_some_and(|asked| asked.questions.contains_key(&about)) {
                    // Pairs of places are a process's to make up; the rest is asked another time.
                    match limits.take(*place, &question) {
                        Room::None => return all,
                        Room::NotForIt => continue,
                        Room::Enough => {}
                    }
                }
                let asked = all.entry(assembly.clone()).or_default();
                asked.questions.entry(about).or_insert(question);
                if assembly.is_inside_a_program() {
                    asked.programs.extend(stack.iter().filter_map(|place| match place {
                        CodeAddress::File { file, .. } => Some(*file),
                        _ => None,
                    }));
                }
            }
        }
        all
    }

    fn question<'a>(
        &'a self,
        place: CodeAddress,
        own: &'a Assembly,
        open: &Open,
        caller: Option<&CodeAddress>,
    ) -> Option<(&'a Assembly, About, Related)> {
        match &open.question {
            Question::Around(token) => Some((own, (place, None), Related::Around(*token))),
            Question::Import(signature) => {
                let (assembly, called_by) = self.statements.get(caller?)?;
                let (signature, called_by) = (signature.to_vec(), *called_by);
                let about = (place, caller.copied());
                Some((assembly, about, Related::Import { signature, called_by }))
            }
        }
    }
}

/// Gives a frame its better name; file and line stay.
pub fn rename(frame: &NamedFrame, better: &NamedFrame) -> NamedFrame {
    NamedFrame {
        name: better.name.clone(),
        system_name: better.system_name.clone(),
        ..frame.clone()
    }
}
