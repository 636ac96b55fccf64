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

/// Questions that are asked at one time.
const MOST_QUESTIONS: usize = 20_000;
/// More files on the stacks of one program are not looked into.
const MOST_PROGRAMS: usize = 64;

/// Places whose names lack something, and places that may tell it.
#[derive(Default)]
pub struct Lacking {
    open: HashMap<CodeAddress, (Assembly, Open)>,
    statements: HashMap<CodeAddress, (Assembly, Statement)>,
}

impl Lacking {
    /// A code address in generated code, and its metadata. `pid` is its process, if alive.
    pub fn add(&mut self, place: CodeAddress, described: &Described, pid: Option<u32>) {
        let assembly = || Assembly { path: described.module.clone(), mvid: described.mvid, pid };
        if let Some(open) = &described.open {
            self.open.insert(place, (assembly(), open.clone()));
        } else if let Some(statement) = described.il {
            self.statements.insert(place, (assembly(), statement));
        }
    }

    /// Nothing more can be found out about a place.
    pub fn settled(&mut self, place: CodeAddress) {
        self.open.remove(&place);
    }

    pub fn retain(&mut self, is_kept: impl Fn(&CodeAddress) -> bool) {
        self.open.retain(|place, _| is_kept(place));
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
        let mut asked_all = 0usize;
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
                // Pairs of places are a process's to make up; the rest is asked another time.
                asked_all += 1;
                if asked_all > MOST_QUESTIONS {
                    return all;
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
                let (signature, called_by) = (signature.clone(), *called_by);
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
