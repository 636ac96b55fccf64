//! Requests facts about methods that only an assembly's instructions contain, after everything else
//! about their names is known: where a VB lambda is written, which native function a stub calls.
//!
//! Invariant: only the assembly that the runtime has loaded is read, identified by its id; without
//! an answer a method keeps its incomplete name.

use std::path::Path;
use std::sync::Arc;

use strata_sandbox::{FilePart, OpenFile, ProcessRef, Related, Reply, Request};

use crate::assemblies::open;
use crate::file_client::Ask;

/// An assembly that a runtime has loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Assembly {
    /// Of its file, or only its name when it is inside a single-file program.
    pub path: Arc<str>,
    pub mvid: [u8; 16],
    /// The process, while it is there.
    pub pid: Option<u32>,
}

impl Assembly {
    pub fn is_inside_a_program(&self) -> bool {
        !self.path.is_empty() && !self.path.contains('/')
    }

    /// An answer for each question, where there is one. `programs` are the files that it may be
    /// inside of.
    pub fn ask(
        &self,
        service: &mut dyn Ask,
        programs: &[Arc<OpenFile>],
        questions: Vec<Related>,
    ) -> Vec<Option<Arc<str>>> {
        let Some((file, part)) = self.file(service, programs) else { return Vec::new() };
        match service.ask(Request::Related { file, part, questions }) {
            Ok(Reply::Related(answers)) => answers,
            _ => Vec::new(),
        }
    }

    fn file(
        &self,
        service: &mut dyn Ask,
        programs: &[Arc<OpenFile>],
    ) -> Option<(Arc<OpenFile>, Option<FilePart>)> {
        if self.is_inside_a_program() {
            return programs.iter().find_map(|program| {
                let part = part_of(service, program, &self.path)?;
                self.is(service, program, Some(part)).then(|| (program.clone(), Some(part)))
            });
        }
        let process = self.pid.map(|pid| ProcessRef { pid, start_time: None });
        let path = Path::new(&*self.path);
        let file = path.is_absolute().then(|| open(service, process, path))??;
        self.is(service, &file, None).then_some((file, None))
    }

    /// Whether it has the id that the runtime reported.
    fn is(&self, service: &mut dyn Ask, file: &Arc<OpenFile>, part: Option<FilePart>) -> bool {
        let facts = service.ask(Request::ManagedFacts { file: file.clone(), part });
        matches!(facts, Ok(Reply::ManagedFacts(facts)) if facts.mvid == Some(self.mvid))
    }
}

/// Where in a single-file program an assembly of this name is.
fn part_of(service: &mut dyn Ask, program: &Arc<OpenFile>, name: &str) -> Option<FilePart> {
    let bundle = service.ask(Request::Bundle { file: program.clone() });
    let Ok(Reply::Bundle(bundle)) = bundle else { return None };
    let found = bundle.files.iter().find(|file| file.path == name)?;
    Some(FilePart::of(found))
}
