//! Code, read a chunk at a time: requests in ascending order read each byte once.
//!
//! Invariant: what a window reads in total stays below its budget.

use crate::elf::Elf;
use crate::table::Load;
use strata_bytes::{ReadAt, read_whole};

const CHUNK: u64 = 256 << 10;

pub(crate) struct Window<'a, R: ReadAt + ?Sized> {
    elf: &'a Elf,
    source: &'a R,
    start: u64,
    bytes: Vec<u8>,
    budget: u64,
}

impl<'a, R: ReadAt + ?Sized> Window<'a, R> {
    pub fn new(elf: &'a Elf, source: &'a R, budget: u64) -> Self {
        Self { elf, source, start: 0, bytes: Vec::new(), budget }
    }

    /// Up to `size` bytes of code at an address; fewer at the end of a segment or of the budget.
    pub fn code(&mut self, address: u64, size: usize) -> &[u8] {
        let held = address
            .checked_sub(self.start)
            .filter(|offset| offset.saturating_add(size as u64) <= self.bytes.len() as u64);
        let offset = match held {
            Some(offset) => offset as usize,
            None => {
                self.fill(address, size);
                0
            }
        };
        let end = offset.saturating_add(size).min(self.bytes.len());
        self.bytes.get(offset..end).unwrap_or_default()
    }

    fn fill(&mut self, address: u64, size: usize) {
        self.start = address;
        self.bytes.clear();
        let Some(Load { address: load, offset, file_size, .. }) = self.elf.code_at(address) else {
            return;
        };
        let within = address - load;
        let wanted = CHUNK.max(size as u64).min(file_size - within).min(self.budget);
        self.budget -= wanted;
        self.bytes.resize(wanted as usize, 0);
        let at = offset.saturating_add(within);
        if read_whole(self.source, at, &mut self.bytes).is_err() {
            self.bytes.clear();
        }
    }
}
