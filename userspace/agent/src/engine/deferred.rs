//! Deferred samples: stacks that wait for their process's tables, and are unwound with them here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use strata_abi::record::{
    End, FLAG_KERNEL_CUT, FLAG_THREAD, FLAG_WAIT, FRAME_EXACT, Header, RAW_CODE_WORD,
    RAW_OTHER_WORD, RAW_PC_WORD, RAW_REGISTERS_WORD,
};
use strata_abi::rule::Packed;
use strata_abi::tables::Extent;
use strata_bridge_protocol::clr_event::Block;
use strata_kinds::Kind;
use strata_unwind::unwinder::{self, LeftGoroutine, Lookup, StackCopy};

use super::Engine;
use super::clr_events::{self, Described, Labelling};
use super::loading::Missing;
use super::samples::{Sample, address_of, domain_read, is_caller, whole};
use super::waits::Stack;
use crate::aggregate::{self, ThreadKey, Words};
use crate::image_id::ImageId;
use crate::processes::table::Space;
use crate::tables::extents;

/// A deferred sample that waits for its process's tables.
struct Raw {
    since: Instant,
    kind: Kind,
    image: ImageId,
    space: Space,
    header: Header,
    domain: u64,
    kernel: Box<[u64]>,
    registers: unwinder::Registers,
    code: strata_abi::epilogue::Code,
    /// Copies of stacks, each with the address of its first byte.
    stacks: [(u64, Box<[u8]>); 2],
    /// Not thinned out by its process's rate.
    is_kept: bool,
    goroutine: Option<LeftGoroutine>,
    /// Of an event of the CLR.
    event: Option<Box<Block>>,
}

impl Raw {
    /// What it takes while it waits.
    fn bytes(&self) -> usize {
        let event = self.event.as_ref().map_or(0, |event| size_of_val(&**event));
        let stacks: usize = self.stacks.iter().map(|(_, bytes)| bytes.len()).sum();
        size_of::<Self>() + size_of_val(&*self.kernel) + stacks + event
    }
}

/// The extents of a process with one set of mappings.
struct Known {
    image: ImageId,
    epoch: u32,
    extents: Vec<Extent>,
    /// No part of it is pending.
    complete: bool,
}

/// The pending samples of one process.
#[derive(Default)]
struct Waiting {
    stacks: Vec<Raw>,
    bytes: usize,
}

/// The pending samples, by process.
pub struct Pending {
    waiting: HashMap<u32, Waiting>,
    bytes: usize,
    /// The most bytes of pending samples.
    pub most_bytes: usize,
    /// Deferred samples dropped because too many waited.
    pub dropped: u64,
    /// Stacks that did not wait for a bridge to the end.
    pub followed: u64,
}

impl Pending {
    pub fn new(most_bytes: usize) -> Self {
        Self { waiting: HashMap::new(), bytes: 0, most_bytes, dropped: 0, followed: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// No more than needed should come.
    pub fn is_full(&self) -> bool {
        self.bytes > self.most_bytes / 2
    }

    /// Drops all of them.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }

    /// Whether the limit of stacks that wait for a process's bridge is reached, so that room is
    /// left for other processes' samples.
    pub fn has_enough_of(&self, pid: u32) -> bool {
        let own = self.waiting.get(&pid).map_or(0, |waiting| waiting.bytes);
        own > self.most_bytes / 4 || self.is_full()
    }

    /// The processes of pending samples, with their mappings.
    pub fn owners(&self) -> impl Iterator<Item = (ImageId, &Space)> + '_ {
        let stacks = self.waiting.values().flat_map(|waiting| &waiting.stacks);
        stacks.map(|raw| (raw.image, &raw.space))
    }

    pub fn waits_for(&self, pid: u32) -> bool {
        self.waiting.contains_key(&pid)
    }

    fn push(&mut self, raw: Raw) {
        let waiting = self.waiting.entry(raw.header.pid).or_default();
        waiting.bytes += raw.bytes();
        self.bytes += raw.bytes();
        waiting.stacks.push(raw);
    }
}

/// A stack waits this long for its tables; then it is unwound with those present.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// The most stacks of one process that are looked at in one turn.
const SETTLED_AT_ONCE: usize = 256;
/// The most unpublished stubs that one stack may lead through.
const MAX_ROUNDS: u32 = 8;

impl Engine {
    pub(super) fn take_raw(
        &mut self,
        kind: Kind,
        sample: Sample<'_>,
        image: ImageId,
        space: Space,
    ) {
        let header = sample.header;
        // A process is published when it is first needed; processes that never run cost nothing.
        self.processes.dirty.insert(header.pid);
        let pc = sample.words.get(RAW_PC_WORD).copied().unwrap_or_default();
        if self.processes.paces.opening.take(header.pid, space.mappings().len(), self.turn.now) {
            self.loading.need(&self.table, header.pid, pc);
        } else {
            self.loading.need_at(&self.table, header.pid, pc);
        }
        // Elapsed time is never thinned out, and CPU samples are stacks of it too.
        let is_kept = header.flags & FLAG_THREAD != 0 || self.rates.takes(kind, image);
        if !is_kept && (self.wall.is_none() || kind != Kind::Cpu) {
            return;
        }
        let kernel: Box<[u64]> =
            sample.words.get(..usize::from(header.kernel_frames)).unwrap_or_default().into();
        let mut registers = [0u64; 17];
        let saved = sample.words.get(RAW_REGISTERS_WORD..=RAW_PC_WORD).unwrap_or_default();
        registers.iter_mut().zip(saved).for_each(|(to, from)| *to = *from);
        let mut code = [0u64; 4];
        let saved = sample.words.get(RAW_CODE_WORD..RAW_OTHER_WORD).unwrap_or_default();
        code.iter_mut().zip(saved).for_each(|(to, from)| *to = *from);
        let stacks = sample.copied_stacks().map(|(start, bytes)| (start, Box::from(bytes)));
        let domain = self.managed.domain_of(image, header.tid, domain_read(&header));
        if header.flags & FLAG_WAIT != 0 {
            let thread = ThreadKey { image, tid: header.tid, comm: header.comm, domain };
            self.begin_wait(sample, thread, None);
        }
        let raw = Raw {
            since: self.turn.now,
            kind,
            image,
            space,
            header,
            domain,
            kernel,
            registers,
            code,
            stacks,
            is_kept,
            goroutine: sample.left_goroutine(),
            event: clr_events::block_of(&sample).map(Box::new),
        };
        if self.managed.expects(image)
            && self.pending.has_enough_of(header.pid)
            && self.store.is_published(header.pid)
        {
            self.settle(&raw, false, &mut None);
            return;
        }
        if self.pending.bytes + raw.bytes() > self.pending.most_bytes {
            self.pending.dropped += 1;
            self.add_raw(&raw, &raw.space, &[raw_pc(&raw)], End::NoProcess);
            return;
        }
        self.pending.push(raw);
    }

    /// Unwinds the pending samples whose tables are loaded; all of them when `all` is set.
    pub(super) fn settle_pending(&mut self, all: bool) {
        if self.pending.is_empty() {
            return;
        }
        let now = self.turn.now;
        for (pid, mut waiting) in std::mem::take(&mut self.pending.waiting) {
            let mappings = waiting.stacks.first().map_or(0, |raw| raw.space.mappings().len());
            if !self.processes.paces.settling.take(pid, mappings, now) && !all {
                self.pending.waiting.insert(pid, waiting);
                continue;
            }
            self.pending.bytes -= waiting.bytes;
            if !all && waiting.stacks.len() > SETTLED_AT_ONCE {
                // Those that go on waiting come behind these.
                waiting.stacks.drain(SETTLED_AT_ONCE..).for_each(|raw| self.pending.push(raw));
            }
            let mut extents = None;
            for mut raw in waiting.stacks {
                if !all && self.managed.expects(raw.image) {
                    // What it will wait for then is requested when the bridge is attached.
                    raw.since = now;
                    self.pending.push(raw);
                    continue;
                }
                let patient = !all && now.saturating_duration_since(raw.since) < MAX_WAIT;
                if !self.settle(&raw, patient, &mut extents) {
                    self.pending.push(raw);
                }
            }
        }
    }

    /// Unwinds a pending sample; false when more of it may still become known. `known` keeps a
    /// process's extents from one of its stacks to the next.
    fn settle(&mut self, raw: &Raw, patient: bool, known: &mut Option<Known>) -> bool {
        let current = self.table.get(raw.header.pid).filter(|process| process.image == raw.image);
        let current = current.map(|process| process.space.clone());
        let mut space = &raw.space;
        // Each round that ends at unpublished code makes that code known.
        for _ in 0..MAX_ROUNDS {
            let of_this = |known: &Known| known.image == raw.image && known.epoch == space.epoch;
            if !known.as_ref().is_some_and(of_this) {
                let generated = self.managed.units_of(raw.image);
                let program = self.table.program_of(raw.image);
                let program = program.as_ref();
                let missing = Missing::FollowPointer;
                let (code, complete) = self.loading.code_of(space, program, generated, missing);
                let extents = extents::extents_of(&code);
                let (image, epoch) = (raw.image, space.epoch);
                *known = Some(Known { image, epoch, extents, complete });
            }
            if patient && known.as_ref().is_some_and(|known| !known.complete) {
                return false;
            }
            let extents = known.as_ref().map(|known| known.extents.as_slice()).unwrap_or_default();
            let (user, end) = self.unwind(raw, extents);
            if end == End::NoMapping
                && self.managed.units_of(raw.image).is_some()
                && let Some(&last) = user.last()
            {
                let (address, is_caller) = (address_of(last), is_caller(last));
                let may_wait = patient && !self.pending.has_enough_of(raw.header.pid);
                if patient && self.managed.unannounced(raw.image, address, is_caller) {
                    return false;
                }
                let is_mapped = |space: &Space| space.mapping_of(address).is_some();
                if may_wait
                    && (is_mapped(space) || current.as_ref().is_some_and(is_mapped))
                    && self.managed.has_yet_to_read(raw.image, raw.header.time)
                {
                    return false;
                }
                if self.managed.take_for_stub(raw.image, address, is_caller) {
                    self.managed.publish(&mut self.programs, &mut self.store, raw.image);
                    *known = None;
                    continue;
                }
            }
            if end == End::NoMapping
                && let Some(&last) = user.last()
                && space.mapping_of(address_of(last)).is_none()
            {
                // It was mapped without an event: it is known by now, or is looked for.
                let found = current.as_ref().filter(|current| current.epoch != space.epoch);
                if let Some(current) = found
                    && current.mapping_of(address_of(last)).is_some()
                {
                    space = current;
                    continue;
                }
                let now = self.turn.now;
                if self.processes.repairs.is_missing_some(raw.header.pid, now) && patient {
                    return false;
                }
            }
            self.count_followed(&user, raw.image);
            self.add_raw(raw, space, &user, end);
            return true;
        }
        self.add_raw(raw, space, &[raw_pc(raw)], End::NoMapping);
        true
    }

    fn unwind(&self, raw: &Raw, extents: &[Extent]) -> (Vec<u64>, End) {
        let mut lookup = |address| match self.store.lookup(extents, address) {
            Lookup::Rule(rule) if rule.packed == Packed::UNANNOUNCED => {
                let gone = self.managed.rule_of_gone(raw.image, address);
                Lookup::Rule(gone.unwrap_or(rule))
            }
            found => found,
        };
        let at = unwinder::Interrupted {
            registers: &raw.registers,
            code: raw.code,
            goroutine: raw.goroutine,
        };
        let stacks = raw.stacks.each_ref();
        let stacks = stacks.map(|(start, bytes)| StackCopy { start: *start, bytes });
        let mut user = Vec::new();
        let end = unwinder::unwind_snapshot(
            &mut lookup,
            at,
            &stacks,
            self.sampling.max_frames,
            &mut user,
        );
        (user, end)
    }

    fn add_raw(&mut self, raw: &Raw, space: &Space, user: &[u64], end: End) {
        let era = self.managed.era_of(raw.image, raw.header.time);
        if raw.header.flags & FLAG_WAIT != 0 {
            let stack = Stack { user: user.into(), end, era, space: space.clone() };
            self.settle_wait(raw.header.tid, raw.header.time, stack);
            return;
        }
        let event = raw.event.as_deref();
        if let Some(block) = event.filter(|_| raw.kind == Kind::Heap) {
            let Header { tid, comm, .. } = raw.header;
            let thread = ThreadKey { image: raw.image, tid, comm, domain: raw.domain };
            let words = Words { kernel: &[], user, end, flags: 0, era };
            self.keep_object(block, &raw.header, thread, &words, space);
            return;
        }
        let managed = &self.managed;
        let threads = |tid| managed.thread_name(raw.image, tid);
        let labelling = Labelling::new(&threads, managed.wants_messages());
        let described = clr_events::describe(
            event,
            raw.kind,
            &raw.header,
            user,
            (raw.image, space),
            labelling,
            &mut self.aggregate,
        );
        let Described { user, labels, weight, value } = described;
        let words = Words {
            kernel: &raw.kernel,
            user,
            end,
            flags: raw.header.flags & FLAG_KERNEL_CUT,
            era,
        };
        let whose = (raw.image, raw.domain);
        let sample = whole(raw.kind, &raw.header, whose, words, space);
        let sample = aggregate::Sample { labels, weight, value, ..sample };
        self.add_whole(&sample, &raw.header, raw.is_kept, true);
    }
}

fn raw_pc(raw: &Raw) -> u64 {
    raw.registers.get(16).copied().unwrap_or_default() | FRAME_EXACT
}

#[cfg(test)]
mod tests {
    use strata_abi::record::FORM_RAW;

    use super::*;
    use crate::engine::samples::tests::header;

    fn raw(pid: u32, bytes: usize) -> Raw {
        Raw {
            since: Instant::now(),
            kind: Kind::Cpu,
            image: ImageId(pid),
            space: Space::default(),
            header: Header { pid, ..header(FORM_RAW) },
            domain: 0,
            kernel: Box::default(),
            registers: [0; 17],
            code: [0; 4],
            stacks: [(0, vec![0; bytes].into()), (0, Box::default())],
            is_kept: true,
            goroutine: None,
            event: None,
        }
    }

    #[test]
    fn one_process_that_waits_for_its_bridge_leaves_room_for_others() {
        let mut pending = Pending::new(40_000);
        pending.push(raw(1, 10_000 - size_of::<Raw>()));
        assert!(!pending.has_enough_of(1));
        // One without a stack takes room too.
        pending.push(raw(1, 0));
        assert!(pending.has_enough_of(1) && !pending.has_enough_of(2) && !pending.is_full());
        pending.push(raw(2, 10_000));
        assert!(pending.is_full() && pending.has_enough_of(2) && pending.has_enough_of(3));
        assert!(pending.waits_for(2) && !pending.waits_for(3));
        assert_eq!(pending.owners().count(), 3);
    }
}
