//! What lives, as far as the log says: where the last record about each thing lies.
//!
//! Invariant: without memory an entry is refused, and nothing aborts.

use crate::layout::{SEGMENT_DATA, SEGMENT_SIZE};
use crate::life::Life;
use crate::table::{NoMemory, Table};

/// Diagnostics that are kept: the last ones.
const DIAGNOSTICS: usize = 16;

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub position: u64,
    pub offset: usize,
}

impl Place {
    pub(super) fn start_of(position: u64) -> Self {
        Self { position, offset: SEGMENT_DATA }
    }
}

/// A method's record, by the start of its code.
#[derive(Debug, Clone, Copy, Default)]
struct MethodLife {
    record: u32,
    /// Its lower half: it tells apart what has the same start.
    function: u32,
    size: u32,
}

/// Where the last record about each thing lies: a place as one number.
#[derive(Debug)]
pub(super) struct Index {
    /// Position that the numbers count from.
    base: u64,
    domains: Table<u32>,
    /// With a number that no other module has had: ids are used again.
    modules: Table<(u32, u32)>,
    next_module: u32,
    /// By the number of the module and the token.
    types: Table<u32>,
    methods: Table<MethodLife>,
    il_maps: Table<u32>,
    threads: Table<u32>,
    diagnostics: [u32; DIAGNOSTICS],
    next_diagnostic: usize,
    enumerated: u32,
    /// Start and size of the code that lived when the log had been read, by start.
    code: Vec<(u64, u32)>,
}

impl Index {
    pub(super) const fn new(base: u64) -> Self {
        Self {
            base,
            domains: Table::new(),
            modules: Table::new(),
            next_module: 1,
            types: Table::new(),
            methods: Table::new(),
            il_maps: Table::new(),
            threads: Table::new(),
            diagnostics: [0; DIAGNOSTICS],
            next_diagnostic: 0,
            enumerated: 0,
            code: Vec::new(),
        }
    }

    /// Never 0: no record lies at the start of a segment.
    fn number(&self, at: Place) -> u32 {
        let words = (SEGMENT_SIZE / 8) as u64;
        (at.position.saturating_sub(self.base) * words) as u32 + (at.offset / 8) as u32
    }

    fn module(&mut self, id: u64) -> Result<(u32, u32), NoMemory> {
        if let Some(known) = self.modules.get(id) {
            return Ok(known);
        }
        let entry = (0, self.next_module);
        self.modules.insert(id, entry)?;
        self.next_module += 1;
        Ok(entry)
    }

    fn of_type(module: u32, token: u32) -> u64 {
        u64::from(module) << 32 | u64::from(token)
    }

    /// Notes a record, which is the last one so far.
    pub(super) fn note(&mut self, life: Life, at: Place) -> Result<(), NoMemory> {
        let record = self.number(at);
        match life {
            Life::Domain(id) => self.domains.insert(id, record).map(drop),
            Life::DomainEnd(id) => {
                self.domains.remove(id);
                Ok(())
            }
            Life::Module(id) => {
                let (_, number) = self.module(id)?;
                self.modules.insert(id, (record, number)).map(drop)
            }
            Life::ModuleEnd(id) => {
                self.modules.remove(id);
                Ok(())
            }
            Life::Type { module, token } => {
                let (_, number) = self.module(module)?;
                self.types.insert(Self::of_type(number, token), record).map(drop)
            }
            Life::Method { function, start, size, is_answer } => {
                let function = function as u32;
                let before = self.methods.get(start);
                if is_answer && before.is_some_and(|before| before.function == function) {
                    return Ok(());
                }
                self.ends_below(start, size);
                if before.is_none_or(|before| before.function != function) {
                    self.il_maps.remove(start);
                }
                self.methods.insert(start, MethodLife { record, function, size }).map(drop)
            }
            Life::MethodEnd(start) => {
                self.methods.remove(start);
                self.il_maps.remove(start);
                Ok(())
            }
            Life::IlMap(start) => self.il_maps.insert(start, record).map(drop),
            Life::Thread(id) => self.threads.insert(id, record).map(drop),
            Life::ThreadEnd(id) => {
                self.threads.remove(id);
                Ok(())
            }
            Life::Diagnostic => {
                if let Some(place) = self.diagnostics.get_mut(self.next_diagnostic) {
                    *place = record;
                }
                self.next_diagnostic = (self.next_diagnostic + 1) % DIAGNOSTICS;
                Ok(())
            }
            Life::Enumerated => {
                self.enumerated = record;
                Ok(())
            }
            Life::Passing => Ok(()),
        }
    }

    /// The whole log has been noted. Code that overlaps newer code has ended without a record
    /// (generic methods go with a module that is not theirs).
    pub(super) fn is_whole(&mut self) -> Result<(), NoMemory> {
        self.code.clear();
        self.code.try_reserve_exact(self.methods.len()).map_err(|_| NoMemory)?;
        self.code.extend(self.methods.iter().map(|(start, method)| (start, method.size)));
        self.code.sort_unstable();
        let mut last: Option<(u64, MethodLife)> = None;
        for (start, size) in &self.code {
            let Some(method) = self.methods.get(*start) else { continue };
            if let Some((last_start, last_method)) = last
                && last_start.saturating_add(u64::from(last_method.size)) > *start
            {
                if last_method.record > method.record {
                    self.methods.remove(*start);
                    continue;
                }
                self.methods.remove(last_start);
            }
            last = Some((*start, MethodLife { size: *size, ..method }));
        }
        Ok(())
    }

    /// New code is there: older code that it overlaps has ended.
    fn ends_below(&mut self, start: u64, size: u32) {
        let end = start.saturating_add(u64::from(size));
        let behind = self.code.partition_point(|(other, _)| *other < end);
        for (other, other_size) in self.code.iter().take(behind).rev() {
            if other.saturating_add(u64::from(*other_size)) <= start {
                break;
            }
            if *other != start {
                self.methods.remove(*other);
                self.il_maps.remove(*other);
            }
        }
    }

    /// Whether this is the last record about something that lives.
    pub(super) fn has(&self, life: Life, at: Place) -> bool {
        let record = self.number(at);
        match life {
            Life::Domain(id) => self.domains.get(id) == Some(record),
            Life::Module(id) => self.modules.get(id).is_some_and(|(last, _)| last == record),
            Life::Type { module, token } => self
                .modules
                .get(module)
                .and_then(|(_, number)| self.types.get(Self::of_type(number, token)))
                .is_some_and(|last| last == record),
            Life::Method { start, .. } => {
                self.methods.get(start).is_some_and(|method| method.record == record)
            }
            Life::IlMap(start) => {
                self.il_maps.get(start) == Some(record) && self.methods.get(start).is_some()
            }
            Life::Thread(id) => self.threads.get(id) == Some(record),
            Life::Diagnostic => self.diagnostics.contains(&record),
            Life::Enumerated => self.enumerated == record,
            Life::DomainEnd(_)
            | Life::ModuleEnd(_)
            | Life::MethodEnd(_)
            | Life::ThreadEnd(_)
            | Life::Passing => false,
        }
    }
}
