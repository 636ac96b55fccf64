//! A process's generated code in kernel memory: one table for each unit that has any.
//!
//! Invariant: a table is given back only when no published process uses it any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_bridge_protocol::record::{ModuleRecord, module_flag};

use super::code::{CodeMap, UNIT};
use crate::kernel::loader::Programs;
use crate::tables::rule_set::NEW_RULES_PER_OWNER;
use crate::tables::store::{Code, Store, Stretch, Table};

/// A module as the runtime has loaded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    pub start: u64,
    pub end: u64,
    /// It has precompiled code.
    pub precompiled: bool,
    pub path: Box<str>,
}

pub struct Units {
    tables: BTreeMap<u64, Arc<Table>>,
    replaced: Vec<Arc<Table>>,
    /// Where modules are loaded, by address.
    modules: Vec<LoadedModule>,
    /// There are more of them than were published.
    changed: bool,
    era: u32,
    /// New rules that its tables may still take.
    quota: usize,
}

impl Default for Units {
    fn default() -> Self {
        Self {
            tables: BTreeMap::new(),
            replaced: Vec::new(),
            modules: Vec::new(),
            changed: false,
            era: 0,
            quota: NEW_RULES_PER_OWNER,
        }
    }
}

impl Units {
    /// Loads what has changed; true when the process must be published anew.
    pub fn update(
        &mut self,
        code: &mut CodeMap,
        programs: &mut Programs,
        store: &mut Store,
    ) -> bool {
        self.era = code.era();
        let dirty = code.take_dirty();
        for unit in &dirty {
            let table = code.table_of(*unit);
            let loaded = table.and_then(|table| {
                store.load_within(programs, &table, &mut self.quota).map(Arc::new)
            });
            let old = match loaded {
                Some(table) => self.tables.insert(*unit, table),
                None => self.tables.remove(unit),
            };
            self.replaced.extend(old);
        }
        let changed = std::mem::take(&mut self.changed);
        changed || !dirty.is_empty()
    }

    /// Gives back what nobody uses any more.
    pub fn sweep(&mut self, store: &mut Store) {
        for table in std::mem::take(&mut self.replaced) {
            match Arc::try_unwrap(table) {
                Ok(table) => store.unload(table),
                Err(used) => self.replaced.push(used),
            }
        }
    }

    /// All tables are on their way out.
    pub fn clear(&mut self) {
        self.replaced.extend(std::mem::take(&mut self.tables).into_values());
    }

    /// Where modules are loaded.
    pub fn set_modules<'a>(&mut self, modules: impl Iterator<Item = &'a ModuleRecord>) {
        const MOST: usize = 10_000;
        let before = self.modules.iter().filter(|module| module.precompiled).count();
        self.modules = modules
            .filter(|module| module.base != 0 && module.flags & module_flag::DYNAMIC == 0)
            .map(|module| LoadedModule {
                start: module.base,
                end: module.base.saturating_add(u64::from(module.size)),
                precompiled: module.flags & module_flag::READY_TO_RUN != 0,
                // What lies in a bundle has no path.
                path: match module.path.as_str() {
                    "" => format!("{}.dll", module.assembly).into(),
                    path => path.into(),
                },
            })
            .take(MOST)
            .collect();
        self.modules.sort_unstable_by_key(|module| module.start);
        self.changed |= self.modules.iter().filter(|module| module.precompiled).count() != before;
    }

    /// Whether a module of the runtime is loaded here.
    /// Whether nothing of it is in kernel memory any more.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.replaced.is_empty()
    }

    pub fn has_module(&self, address: u64) -> bool {
        self.modules.iter().any(|module| (module.start..module.end).contains(&address))
    }

    /// The modules with precompiled code that have a place between two addresses, by address.
    pub fn precompiled_within(&self, start: u64, end: u64) -> impl Iterator<Item = &LoadedModule> {
        let here = move |module: &&LoadedModule| {
            module.precompiled && module.start < end && module.end > start
        };
        self.modules.iter().filter(here)
    }

    /// How the code between two addresses is unwound.
    pub fn stretches(&self, start: u64, end: u64, to: &mut Vec<Stretch>) {
        let mut at = start;
        for (&unit, table) in self.tables.range(start & !(UNIT - 1)..end) {
            let (from, until) = (unit.max(start), (unit + UNIT).min(end));
            if from > at {
                to.push(Stretch { start: at, end: from, code: Code::Unannounced });
            }
            let code = Code::Generated { table: table.clone(), era: self.era };
            to.push(Stretch { start: from, end: until, code });
            at = until;
        }
        if at < end {
            to.push(Stretch { start: at, end, code: Code::Unannounced });
        }
    }
}
