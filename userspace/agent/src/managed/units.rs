//! A process's generated code in kernel memory: one table for each unit that has any.
//!
//! Invariant: a table is released only when no published process uses it any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_bridge_protocol::record::{ModuleRecord, module_flag};
use strata_unwind::UnwindTable;

use super::code::{CodeMap, UNIT, UNITS_AT_ONCE};
use crate::kernel::loader::Programs;
use crate::tables::extents::{Code, Stretch, Table};
use crate::tables::rule_set::NEW_RULES_PER_OWNER;
use crate::tables::store::Store;

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
    /// The remaining quota of new rules.
    quota: usize,
    /// Of `tables`, and of those being removed.
    bytes: u64,
    /// Units with code for which there was no room, and how much they need: unwound by frame pointers.
    without_room: BTreeMap<u64, u64>,
    /// Since when they wait to be tried again, and the unit that is tried first.
    refused: Option<Instant>,
    tried_from: u64,
}

/// Time until units without room are tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Units that are tried again at once, where others may have taken the room.
const TRIED_AGAIN: usize = 8;

impl Default for Units {
    fn default() -> Self {
        Self {
            tables: BTreeMap::new(),
            replaced: Vec::new(),
            modules: Vec::new(),
            changed: false,
            era: 0,
            quota: NEW_RULES_PER_OWNER,
            bytes: 0,
            without_room: BTreeMap::new(),
            refused: None,
            tried_from: 0,
        }
    }
}

impl Units {
    /// Loads changed units, within so many bytes; true when the process must be republished.
    pub fn update(
        &mut self,
        code: &mut CodeMap,
        programs: &mut Programs,
        store: &mut Store,
        most_bytes: u64,
    ) -> bool {
        code.touch_units(self.tried_again(most_bytes, Instant::now()).into_iter());
        let dirty = code.take_dirty(UNITS_AT_ONCE);
        self.era = code.eras.version();
        let mut changed = std::mem::take(&mut self.changed);
        for unit in &dirty {
            let had_none = self.without_room.remove(unit).is_some();
            let loaded = code.table_of(*unit).and_then(|table| {
                let bytes = bytes_of(&table);
                if self.bytes + bytes > most_bytes {
                    store.refused += u64::from(!had_none);
                    self.without_room.insert(*unit, bytes);
                    return None;
                }
                let loaded = store.load_within(programs, &table, &mut self.quota);
                match &loaded {
                    Some(table) => self.bytes += table.bytes(),
                    None => {
                        self.without_room.insert(*unit, bytes);
                    }
                }
                loaded.map(Arc::new)
            });
            let has_none = self.without_room.contains_key(unit);
            if has_none {
                self.refused.get_or_insert_with(Instant::now);
            }
            changed |= !(had_none && has_none);
            let old = match loaded {
                Some(table) => self.tables.insert(*unit, table),
                None => self.tables.remove(unit),
            };
            self.replaced.extend(old);
        }
        changed
    }

    /// Units without room for which there may be some now.
    fn tried_again(&mut self, most_bytes: u64, now: Instant) -> Vec<u64> {
        let is_due = self.refused.is_some_and(|refused| now - refused >= AGAIN);
        if !is_due || self.without_room.is_empty() {
            return Vec::new();
        }
        self.refused = Some(now);
        let left = most_bytes.saturating_sub(self.bytes);
        let all = self.without_room.range(self.tried_from..);
        let all = all.chain(self.without_room.range(..self.tried_from));
        let fitting = all.filter(|(_, bytes)| **bytes <= left).map(|(unit, _)| *unit);
        let tried: Vec<u64> = fitting.take(TRIED_AGAIN).collect();
        self.tried_from = tried.last().map_or(0, |last| last + 1);
        tried
    }

    /// Releases what is not used any more.
    pub fn sweep(&mut self, store: &mut Store) {
        for table in std::mem::take(&mut self.replaced) {
            match Arc::try_unwrap(table) {
                Ok(table) => {
                    self.bytes = self.bytes.saturating_sub(table.bytes());
                    let freed = store.unload(table);
                    self.quota = NEW_RULES_PER_OWNER.min(self.quota + freed);
                }
                Err(used) => self.replaced.push(used),
            }
        }
    }

    /// All tables are being removed.
    pub fn clear(&mut self) {
        self.without_room.clear();
        self.replaced.extend(std::mem::take(&mut self.tables).into_values());
    }

    /// Where modules are loaded.
    pub fn set_modules<'a>(&mut self, modules: impl Iterator<Item = &'a ModuleRecord>) {
        const MOST: usize = 10_000;
        let before = std::mem::take(&mut self.modules);
        self.modules = modules
            .filter(|module| module.base != 0 && module.flags & module_flag::DYNAMIC == 0)
            .map(|module| LoadedModule {
                start: module.base,
                end: module.base.saturating_add(u64::from(module.size)),
                precompiled: module.flags & module_flag::READY_TO_RUN != 0,
                // A file in a bundle has no path.
                path: match module.path.as_str() {
                    "" => format!("{}.dll", module.assembly).into(),
                    path => path.into(),
                },
            })
            .take(MOST)
            .collect();
        self.modules.sort_unstable_by_key(|module| module.start);
        // A process may claim overlapping modules: then the later one ends the one before it.
        let starts: Vec<u64> = self.modules.iter().skip(1).map(|module| module.start).collect();
        for (module, next) in self.modules.iter_mut().zip(starts) {
            module.end = module.end.min(next);
        }
        let precompiled = self.modules.iter().filter(|module| module.precompiled);
        self.changed |= precompiled.ne(before.iter().filter(|module| module.precompiled));
    }

    /// The kernel memory of its tables.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing of it is in kernel memory any more.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.replaced.is_empty()
    }

    /// Whether a module of the runtime is loaded here.
    pub fn has_module(&self, address: u64) -> bool {
        let after = self.modules.partition_point(|module| module.start <= address);
        let before = after.checked_sub(1).and_then(|at| self.modules.get(at));
        before.is_some_and(|module| address < module.end)
    }

    /// The modules with precompiled code that have a place between two addresses, by address.
    pub fn precompiled_within(&self, start: u64, end: u64) -> impl Iterator<Item = &LoadedModule> {
        let first = self.modules.partition_point(|module| module.end <= start);
        let from = self.modules.get(first..).unwrap_or_default();
        let here = from.iter().take_while(move |module| module.start < end);
        here.filter(move |module| module.precompiled && module.end > start)
    }

    /// How the code between two addresses is unwound.
    pub fn stretches(&self, start: u64, end: u64, to: &mut Vec<Stretch>) {
        let mut at = start;
        for (&unit, table) in self.tables.range(start & !(UNIT - 1)..end) {
            let (from, until) = (unit.max(start), (unit + UNIT).min(end));
            if from > at {
                self.between(at, from, to);
            }
            let code = Code::Generated { table: table.clone(), era: self.era };
            to.push(Stretch { start: from, end: until, code });
            at = until;
        }
        if at < end {
            self.between(at, end, to);
        }
    }

    /// Code that has no table: of units without room, and code that has not been published.
    fn between(&self, start: u64, end: u64, to: &mut Vec<Stretch>) {
        let mut at = start;
        for (&unit, _) in self.without_room.range(start & !(UNIT - 1)..end) {
            let (from, until) = (unit.max(at), (unit + UNIT).min(end));
            if from > at {
                to.push(Stretch { start: at, end: from, code: Code::Unannounced });
            }
            if until > from {
                to.push(Stretch { start: from, end: until, code: Code::FramePointer });
                at = until;
            }
        }
        if at < end {
            to.push(Stretch { start: at, end, code: Code::Unannounced });
        }
    }
}

/// The kernel memory of a table.
fn bytes_of(table: &UnwindTable) -> u64 {
    let words = table.pieces.iter().map(|piece| piece.index.len() + piece.rows.len());
    words.sum::<usize>() as u64 * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_address_whatever_a_process_says_of_them() {
        let module = |base: u64, size: u32| ModuleRecord {
            base,
            size,
            flags: module_flag::READY_TO_RUN,
            path: format!("/app/{base:x}.dll"),
            ..ModuleRecord::default()
        };
        // The first claims all of the others' memory.
        let modules = [module(0x1000, u32::MAX), module(0x5000, 0x1000), module(0x9000, 0x1000)];
        let mut units = Units::default();
        units.set_modules(modules.iter());
        for (address, there) in [(0xfff, false), (0x1000, true), (0x5fff, true), (0x6000, false)] {
            assert_eq!(units.has_module(address), there, "{address:x}");
        }
        let within = |start, end| units.precompiled_within(start, end).count();
        assert_eq!([within(0, 0x1000), within(0x4000, 0x5001), within(0x6000, 0x9001)], [0, 2, 1]);
    }

    #[test]
    fn units_without_room_are_tried_again_when_they_may_have_some() {
        let now = Instant::now();
        let mut units = Units { bytes: 100, refused: Some(now), ..Units::default() };
        units.without_room.extend([(UNIT, 50), (2 * UNIT, 500)]);
        let later = |times: u32| now + times * AGAIN;
        assert!(units.tried_again(1_000, now).is_empty(), "it was just refused");
        assert!(units.tried_again(140, later(1)).is_empty());
        assert_eq!(units.tried_again(150, later(2)), [UNIT]);
        assert!(units.tried_again(1_000, later(2)).is_empty());
        assert_eq!(units.tried_again(1_000, later(3)), [2 * UNIT, UNIT], "the others first");
    }

    #[test]
    fn units_without_room_are_followed_by_frame_pointers() {
        let mut units = Units::default();
        units.without_room.extend([(UNIT, 1), (3 * UNIT, 1)]);
        let mut stretches = Vec::new();
        units.stretches(0x1000, 4 * UNIT, &mut stretches);
        let kinds: Vec<_> = stretches
            .iter()
            .map(|one| (one.start, one.end, matches!(one.code, Code::FramePointer)))
            .collect();
        let expected = [
            (0x1000, UNIT, false),
            (UNIT, 2 * UNIT, true),
            (2 * UNIT, 3 * UNIT, false),
            (3 * UNIT, 4 * UNIT, true),
        ];
        assert_eq!(kinds, expected);
    }
}
