//! Blocks of extents in kernel memory: one for each process's mappings, shared by processes that map the
//! same (forks).
//!
//! Invariant: a block is written once, and freed with its last user. Processes whose mappings change become
//! users of another one.

use std::sync::Arc;
use std::time::Instant;

use strata_abi::tables::{EXTENT_WORDS, Extent, Process};

use super::arena::Range;
use super::extents::{Code, Stretch, Table, extent_words, still_holds};
use super::segments::Segments;
use crate::hash::HashMap;
use crate::kernel::loader::Programs;

/// Extents in kernel memory.
pub(super) struct Block {
    extents: Arc<[Extent]>,
    /// The files' tables that it leads to: kept alive by it.
    _tables: Vec<Arc<Table>>,
    range: Range,
    generation: u32,
    users: u32,
}

impl Block {
    /// The entry of a process with these extents, without a budget of raw records.
    pub(super) fn entry(&self) -> Process {
        Process {
            segment: self.range.segment,
            offset: self.range.offset,
            count: self.extents.len() as u32,
            generation: self.generation,
            ..Process::default()
        }
    }

    /// Rules that are cached for it are of this generation.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether it is what an entry of the kernel's refers to.
    pub(super) fn is_of(&self, entry: &Process) -> bool {
        let Range { segment, offset, .. } = self.range;
        (entry.segment, entry.offset, entry.generation) == (segment, offset, self.generation)
    }

    /// Kernel memory attributed to it: its own, and its share of tables used by others too.
    pub(super) fn weight(&self) -> u64 {
        let of_table = |table: &Arc<Table>| table.bytes() / Arc::strong_count(table).max(1) as u64;
        u64::from(self.range.words) * 4 + self._tables.iter().map(of_table).sum::<u64>()
    }
}

/// All blocks, by their numbers.
#[derive(Default)]
pub(super) struct Blocks {
    by_number: HashMap<u64, Block>,
    by_content: HashMap<Arc<[Extent]>, u64>,
    next: u64,
    generation: u32,
}

impl Blocks {
    pub(super) fn get(&self, block: u64) -> Option<&Block> {
        self.by_number.get(&block)
    }

    /// The block of these extents.
    pub(super) fn find(&self, extents: &[Extent]) -> Option<u64> {
        self.by_content.get(extents).copied()
    }

    /// A block's generation, when new extents of its user only add to its own: every rule cached
    /// for it still holds. Not when others share it: they may grow another way.
    pub(super) fn kept_generation(&self, block: u64, new: &[Extent]) -> Option<u32> {
        let old = self.get(block).filter(|old| old.users == 1)?;
        old.extents.iter().all(|extent| still_holds(extent, new)).then_some(old.generation)
    }

    /// Writes extents, as yet without a user. `None` when there is no room for them. Without a
    /// generation that is kept, it has one of its own.
    pub(super) fn write(
        &mut self,
        programs: &mut Programs,
        segments: &mut Segments,
        extents: &Arc<[Extent]>,
        code: &[Stretch],
        generation: Option<u32>,
    ) -> Option<u64> {
        let words = u32::try_from(extents.len() * EXTENT_WORDS).ok()?;
        let range = segments.allocate(programs, words)?;
        let memory = segments.memory(range.segment)?;
        let mut offset = range.offset as usize;
        for extent in extents.iter() {
            memory.write(offset, extent_words(extent).into_iter());
            offset += EXTENT_WORDS;
        }
        let tables = code
            .iter()
            .filter_map(|stretch| match &stretch.code {
                Code::Table { table, .. } | Code::Generated { table, .. } => Some(table.clone()),
                Code::Unannounced | Code::FramePointer => None,
            })
            .collect();
        let generation = generation.unwrap_or_else(|| {
            // 0 means "no rule cached": it is never a generation.
            self.generation = self.generation.wrapping_add(1).max(1);
            self.generation
        });
        self.next += 1;
        let block =
            Block { extents: extents.clone(), _tables: tables, range, generation, users: 0 };
        self.by_number.insert(self.next, block);
        self.by_content.insert(extents.clone(), self.next);
        Some(self.next)
    }

    /// A process is published with a block.
    pub(super) fn add_user(&mut self, block: u64) -> Option<&Block> {
        let block = self.by_number.get_mut(&block)?;
        block.users += 1;
        Some(block)
    }

    /// A process is not published with a block any more.
    pub(super) fn release(&mut self, segments: &mut Segments, block: u64, now: Instant) {
        let Some(released) = self.by_number.get_mut(&block) else { return };
        released.users = released.users.saturating_sub(1);
        if released.users == 0
            && let Some(freed) = self.by_number.remove(&block)
        {
            self.by_content.remove(&freed.extents);
            segments.free(freed.range, now);
        }
    }

    /// One of so many words that has a user, and is not in kernel memory.
    #[cfg(test)]
    pub(super) fn add_plain(&mut self, words: u32) -> u64 {
        let range = Range { segment: 0, offset: 0, words };
        let extents = Vec::new().into();
        self.next += 1;
        let block = Block { extents, _tables: Vec::new(), range, generation: 1, users: 1 };
        self.by_number.insert(self.next, block);
        self.next
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        assert_eq!(self.by_number.len(), self.by_content.len());
        self.by_number.len()
    }
}
