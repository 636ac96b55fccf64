//! Owning a bridge: the lock, the wishes, the requests, the doorbell, the ring's tail. The daemon's
//! side.
//!
//! How it writes without a wait: `control_pages.rs`.
//!
//! Invariant: nothing here waits for the process or faults. What is read back from it is checked.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::beside;
use crate::control::{Outcome, Request, Wishes, capability, slot_of};
use crate::control_pages::ControlPages;
use crate::doorbell;
use crate::layout::{
    ANSWER_SLOTS, ANSWERED, BEAT, DOORBELL, REQUEST_SLOTS, REQUESTS, RING_TAIL, RequestSlot,
    STATUS, WISHES, WishBlock,
};
use crate::owner::{LockError, lock, unlock};
use crate::reader::ReadAt;
use crate::ring::tail_check;
use crate::status::StatusRecord;

/// The size of an answer's slot.
const WORD: usize = size_of::<u64>();

/// Why a bridge cannot be owned.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The owner as recorded in the memory: a claim of the process that holds the memory.
    #[error("another strata owns this process's bridge: {name:?}, pid {pid}")]
    Owned { name: String, pid: u32 },
    #[error("the bridge's memory cannot be used: {0}")]
    Call(#[from] io::Error),
}

/// The outcomes of the last requests.
#[derive(Debug)]
pub struct Outcomes {
    words: [u8; WORD * REQUEST_SLOTS],
}

impl Outcomes {
    /// Of one of them; `None` if it has not been answered.
    #[must_use]
    pub fn of(&self, sequence: u64) -> Option<Outcome> {
        let (words, _) = self.words.as_chunks();
        let word = words.get(slot_of(sequence)).copied().map(u64::from_le_bytes)?;
        Outcome::unpack(word, sequence)
    }
}

/// The owner of a bridge, until it is dropped.
#[derive(Debug)]
pub struct Owner {
    file: File,
    pages: ControlPages,
    wishes: Wishes,
    /// Number of the next request.
    next: u32,
    beat: u64,
    rung: u32,
}

impl Owner {
    /// Becomes the owner. `file` is a main file that was checked, opened by this process itself
    /// (see [`crate::owner`]). No wishes are set yet.
    pub fn take(file: File, name: &str) -> Result<Self, TakeError> {
        match lock(&file) {
            Ok(()) => {}
            Err(LockError::Owned) => {
                let wishes = read_wishes(&file)?.unwrap_or_default();
                return Err(TakeError::Owned { name: wishes.owner_name, pid: wishes.owner_pid });
            }
            Err(LockError::Call(error)) => return Err(error.into()),
        }
        let pages = ControlPages::map(&file)?;
        let wishes = Wishes {
            epoch: next_epoch(&file)?,
            owner_pid: std::process::id(),
            owner_name: name.to_owned(),
            capabilities: capability::ALL,
            ..Wishes::default()
        };
        pages.write(REQUESTS, &[0; REQUEST_SLOTS * size_of::<RequestSlot>()])?;
        let beat = u64::from_le_bytes(read_word(&file, BEAT)?);
        let rung = u64::from_le_bytes(read_word(&file, DOORBELL)?) as u32;
        let mut owner = Self { file, pages, wishes, next: 1, beat, rung };
        owner.beat()?;
        owner.write_wishes()?;
        Ok(owner)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    #[must_use]
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    /// Changes the wishes: bits of [`crate::control::wish`], and rates of event types.
    pub fn wish(&mut self, flags: u64, rates: [u32; 32]) -> io::Result<()> {
        self.wishes.flags = flags;
        self.wishes.rates = rates;
        self.wishes.generation = self.wishes.generation.wrapping_add(1);
        self.write_wishes()
    }

    /// Changes what this owner states to be capable of ([`capability`]), from the next wishes on.
    pub fn set_capabilities(&mut self, capabilities: u64) {
        self.wishes.capabilities = capabilities;
    }

    fn write_wishes(&mut self) -> io::Result<()> {
        self.pages.write(WISHES, &self.wishes.to_bytes())?;
        self.ring()
    }

    /// Wakes the bridge's thread: after requests. Wishes ring by themselves.
    pub fn ring(&mut self) -> io::Result<()> {
        self.rung = doorbell::rung(self.rung);
        self.pages.write(DOORBELL, &u64::from(self.rung).to_le_bytes())?;
        self.pages.wake(DOORBELL);
        Ok(())
    }

    /// Whether the bridge reports that the wishes are in force.
    #[must_use]
    pub fn is_obeyed(&self, status: &StatusRecord) -> bool {
        status.obeyed == (self.wishes.epoch, self.wishes.generation)
    }

    /// What readers beside this owner wish for: bits of [`crate::control::wish::EVENTS`].
    pub fn readers_wishes(&self) -> io::Result<u64> {
        beside::wishes(&self.file)
    }

    /// Renews the owner's sign of life, on every poll.
    pub fn beat(&mut self) -> io::Result<()> {
        self.beat = self.beat.wrapping_add(1).max(1);
        self.pages.write(BEAT, &self.beat.to_le_bytes())
    }

    /// Writes the first of these requests (kind, and two words), as many as there is room for; returns
    /// their sequence numbers. The bridge reads requests when it is woken by [`Owner::ring`].
    pub fn request(&mut self, wanted: &[(u32, u64, u64)]) -> io::Result<Vec<u64>> {
        let waiting = self.next.wrapping_sub(1).wrapping_sub(self.answered()?) as usize;
        let count = wanted.len().min(REQUEST_SLOTS.saturating_sub(waiting));
        let mut sequences = Vec::with_capacity(count);
        while let Some(left) = wanted.get(sequences.len()..count).filter(|left| !left.is_empty()) {
            sequences.extend(self.write_requests(left)?);
        }
        Ok(sequences)
    }

    /// Writes the first of these requests, as many as lie one behind the other.
    fn write_requests(&mut self, wanted: &[(u32, u64, u64)]) -> io::Result<Range<u64>> {
        let first = u64::from(self.wishes.epoch) << 32 | u64::from(self.next);
        let slot = slot_of(first);
        let numbers_left = (u32::MAX - self.next) as usize + 1;
        let count = wanted.len().min(REQUEST_SLOTS - slot).min(numbers_left);
        let sequences = first..first + count as u64;
        let requests = sequences.clone().zip(wanted).flat_map(|(sequence, wanted)| {
            let &(kind, first, second) = wanted;
            Request { sequence, kind, first, second }.to_bytes()
        });
        let bytes: Vec<u8> = requests.collect();
        self.pages.write(REQUESTS + slot * size_of::<RequestSlot>(), &bytes)?;
        if count < numbers_left {
            self.next += count as u32;
        } else {
            // All numbers are used: go on as the next owner would.
            self.wishes.epoch = self.wishes.epoch.wrapping_add(1).max(1);
            self.next = 1;
            self.write_wishes()?;
        }
        Ok(sequences)
    }

    /// Number of the last request that was answered.
    fn answered(&self) -> io::Result<u32> {
        let answered = u64::from_le_bytes(read_word(&self.file, ANSWERED)?);
        Ok(if (answered >> 32) as u32 == self.wishes.epoch { answered as u32 } else { 0 })
    }

    /// The outcomes of the last [`REQUEST_SLOTS`] requests.
    pub fn outcomes(&self) -> io::Result<Outcomes> {
        let mut words = [0; WORD * REQUEST_SLOTS];
        self.file.read_at(ANSWER_SLOTS as u64, &mut words)?;
        Ok(Outcomes { words })
    }

    /// Frees the ring's cells before this position for the bridge.
    pub fn set_ring_tail(&self, tail: u64) -> io::Result<()> {
        let mut words = [0; 16];
        let (low, high) = words.split_at_mut(8);
        low.copy_from_slice(&tail.to_le_bytes());
        high.copy_from_slice(&tail_check(tail).to_le_bytes());
        self.pages.write(RING_TAIL, &words)
    }

    /// Clears all wishes and releases the bridge.
    pub fn release(mut self) -> io::Result<()> {
        self.wish(0, [0; 32])?;
        self.wishes.owner_pid = 0;
        self.wishes.owner_name.clear();
        self.write_wishes()
    }
}

/// Releases the lock explicitly: a child of this process may have a descriptor of the file until it
/// executes.
impl Drop for Owner {
    fn drop(&mut self) {
        _ = unlock(&self.file);
        // After a failure here, the bridge notices it a little later.
        _ = self.ring();
    }
}

fn read_word(file: &File, offset: usize) -> io::Result<[u8; 8]> {
    let mut word = [0; 8];
    file.read_at(offset as u64, &mut word)?;
    Ok(word)
}

/// The wishes in a main file; `None` while an owner writes them.
pub fn read_wishes(file: &File) -> io::Result<Option<Wishes>> {
    let mut bytes = [0; size_of::<WishBlock>()];
    file.read_at(WISHES as u64, &mut bytes)?;
    Ok(Wishes::from_bytes(&bytes))
}

/// An epoch that no owner before had, as far as the memory is correct.
fn next_epoch(file: &File) -> io::Result<u32> {
    let written = read_wishes(file)?.map_or(0, |wishes| wishes.epoch);
    let mut page = [0; size_of::<crate::layout::StatusPage>()];
    file.read_at(STATUS as u64, &mut page)?;
    let (obeyed, _) = StatusRecord::from_bytes(&page).obeyed;
    let answered = (u64::from_le_bytes(read_word(file, ANSWERED)?) >> 32) as u32;
    Ok(written.max(obeyed).max(answered).wrapping_add(1).max(1))
}
