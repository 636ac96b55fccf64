//! Records become samples; raw stacks wait for their tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_abi::record::{
    End, FLAG_CONTEXT, FLAG_KERNEL_CUT, FORM_RAW, FRAME_ADDRESS, FRAME_BY_POINTER, FRAME_EXACT,
    Header, MAX_KERNEL_FRAMES, RAW_CODE_WORD, RAW_PC_WORD, RAW_REGISTERS_WORD, RAW_STACK_WORD,
    SOURCE_CPU, SOURCE_WALL, raw_stack_start,
};
use strata_abi::tables::Extent;
use strata_kinds::{Kind, Kinds};
use strata_unwind::unwinder;

use super::Engine;
use super::loading::Missing;
use crate::aggregate::{self, LabelsId, ThreadKey, Words};
use crate::processes::table::{ImageId, Space};
use crate::tables::store;

// The kernel's numbers of kinds are those of the table.
const _: () = assert!(SOURCE_CPU == Kind::Cpu as u8 && SOURCE_WALL == Kind::Wall as u8);

/// A record's parts.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    pub header: Header,
    pub words: &'a [u64],
}

pub struct OwnedSample {
    header: Header,
    words: Vec<u64>,
}

impl Sample<'_> {
    pub fn to_owned(self) -> OwnedSample {
        OwnedSample { header: self.header, words: self.words.to_vec() }
    }
}

impl OwnedSample {
    pub fn as_sample(&self) -> Sample<'_> {
        Sample { header: self.header, words: &self.words }
    }
}

const HEADER_BYTES: usize = size_of::<Header>();

/// Splits a record; `None` when it is shorter than it says.
pub fn parse(bytes: &[u8]) -> Option<Sample<'_>> {
    let (header, words) = bytes.split_at_checked(HEADER_BYTES)?;
    // SAFETY: as many initialised bytes; any bytes are a `Header`; read without alignment.
    let header: Header = unsafe { std::ptr::read_unaligned(header.as_ptr().cast()) };
    // SAFETY: any eight bytes are a `u64`.
    let (before, words, _) = unsafe { words.align_to::<u64>() };
    if !before.is_empty() {
        return None;
    }
    let needed = if header.form == FORM_RAW {
        RAW_STACK_WORD + header.stack_bytes as usize / 8
    } else {
        usize::from(header.kernel_frames) + usize::from(header.user_frames)
    };
    let kernel = usize::from(header.kernel_frames);
    (kernel <= MAX_KERNEL_FRAMES && needed <= words.len()).then_some(Sample { header, words })
}

/// A raw stack that waits for its process's tables.
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
    stack: Box<[u8]>,
}

impl Raw {
    /// What it takes while it waits.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.kernel) + self.stack.len()
    }
}

/// The extents of a process with one set of mappings.
struct Known {
    image: ImageId,
    epoch: u32,
    extents: Vec<Extent>,
    /// Nothing of it is still to come.
    complete: bool,
}

/// Raw stacks in waiting of one process.
#[derive(Default)]
struct Waiting {
    stacks: Vec<Raw>,
    bytes: usize,
}

/// Raw stacks in waiting, by process.
pub struct Pending {
    waiting: HashMap<u32, Waiting>,
    bytes: usize,
    /// Bytes of raw stacks kept waiting at most.
    pub most_bytes: usize,
    /// Raw stacks given up because too many waited.
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

    /// Whether as many stacks of a process wait for its bridge as may: what other processes need
    /// to be known at all must find room.
    pub fn has_enough_of(&self, pid: u32) -> bool {
        let own = self.waiting.get(&pid).map_or(0, |waiting| waiting.bytes);
        own > self.most_bytes / 4 || self.is_full()
    }

    /// Who the stacks in waiting are of, and what those had mapped.
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

/// A stack waits this long for its tables; then it is unwound with what is there.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Processes that are met in one turn, and told of.
const MOST_NEWCOMERS: usize = 10_000;
/// Unannounced stubs that one stack may lead through.
const MAX_ROUNDS: u32 = 8;

impl Engine {
    pub(super) fn take_sample(&mut self, sample: Sample<'_>) {
        let header = sample.header;
        let Some(kind) = kind_of(&header, self.kinds) else {
            self.unexpected_records += 1;
            return;
        };
        if self.is_own(header.pid) {
            self.own_samples += 1;
            self.store.skip(&mut self.programs, header.pid);
            return;
        }
        if self.table.get(header.pid).is_none()
            && !self.scanner.scan_process(&mut self.table, header.pid)
        {
            self.table.insert_unknown(header.pid, &comm_text(&header.comm));
        }
        let Some(process) = self.table.get(header.pid) else { return };
        let (image, space) = (process.image, process.space.clone());
        if !self.is_selected(&header, image) {
            self.deselected_samples += 1;
            self.store.skip(&mut self.programs, header.pid);
            return;
        }
        if header.form == FORM_RAW {
            self.take_raw(kind, sample, image, space);
            return;
        }
        self.store.touch(header.pid, self.now);
        if !self.rates.takes(kind, image) {
            return;
        }
        let kernel = usize::from(header.kernel_frames);
        let user = usize::from(header.user_frames);
        let user = sample.words.get(kernel..kernel + user).unwrap_or_default();
        let end = End::from_byte(header.end).unwrap_or(End::NoProcess);
        let is_outdated = self.store.is_outdated(header.pid, header.generation);
        let (user, end) = if is_outdated {
            // It was unwound by the code of the program before: its first address is its own.
            (user.get(..1).unwrap_or_default(), End::NoProcess)
        } else {
            self.check_followed(user, end, image)
        };
        if end == End::NoMapping && self.managed.units_of(image).is_none() {
            self.repairs.unknown_address(header.pid);
        }
        let words = Words {
            kernel: sample.words.get(..kernel).unwrap_or_default(),
            user,
            end,
            flags: header.flags & FLAG_KERNEL_CUT,
            era: self.managed.era_of(image),
        };
        let domain = self.managed.domain_of(image, header.tid, domain_read(&header));
        self.aggregate.add(&whole(kind, &header, (image, domain), words, &space));
    }

    /// Code of a runtime that was followed by frame pointer, or not at all, because the kernel did
    /// not know it yet and too many stacks were copied already. Where the code turns out to keep no
    /// frame pointer, the stack ends: no caller is better than a wrong one. Where it is still
    /// unknown, the runtime is asked whose it is.
    fn check_followed<'a>(
        &mut self,
        user: &'a [u64],
        end: End,
        image: ImageId,
    ) -> (&'a [u64], End) {
        if self.managed.units_of(image).is_none() {
            self.count_followed(user, image);
            return (user, end);
        }
        let mut is_current = false;
        for (position, pair) in user.windows(2).enumerate() {
            let &[callee, caller] = pair else { continue };
            if caller & FRAME_BY_POINTER == 0 {
                continue;
            }
            if !std::mem::replace(&mut is_current, true) {
                self.managed.take_in(image);
            }
            match self.managed.keeps_frame_pointer(image, address_of(callee)) {
                Some(true) => {}
                Some(false) => {
                    let known = user.get(..=position).unwrap_or_default();
                    return (known, End::NoMapping);
                }
                None => {
                    self.managed.unannounced(image, address_of(callee));
                }
            }
        }
        if let Some(&last) = user.last().filter(|_| end == End::NoMapping) {
            self.managed.unannounced(image, address_of(last));
        }
        (user, end)
    }

    /// A stack is taken as it is, although its process's bridge may still come.
    fn count_followed(&mut self, user: &[u64], image: ImageId) {
        let is_followed = user.iter().any(|word| word & FRAME_BY_POINTER != 0);
        self.pending.followed += u64::from(is_followed && self.managed.is_attaching(image));
    }

    /// strata itself and its helpers, but not the command it was asked to run.
    fn is_own(&self, pid: u32) -> bool {
        pid == self.own_pid
            || self.table.get(pid).is_some_and(|process| {
                process.parent == self.own_pid && !self.selection.is_root(pid)
            })
    }

    fn is_selected(&mut self, header: &Header, image: ImageId) -> bool {
        if self.selection.is_everything() {
            self.note_group(header, image);
            return true;
        }
        let group = self.note_group(header, image);
        let comm = self.table.image(image).map(|image| image.comm.clone()).unwrap_or_default();
        self.selection.keeps(header.pid, &comm, || group)
    }

    /// The control group of an image, read at its first sample.
    fn note_group(
        &mut self,
        header: &Header,
        image: ImageId,
    ) -> Option<Arc<crate::processes::container::Group>> {
        let is_known = self.groups.knows(image);
        if !is_known {
            self.credentials.note(image, header.pid);
        }
        if let Some(newcomers) = self.newcomers.as_mut().filter(|_| !is_known)
            && newcomers.len() < MOST_NEWCOMERS
        {
            newcomers.push((image, header.pid));
        }
        let parent = || self.table.get(self.table.get(header.pid)?.parent);
        let parent = if is_known { None } else { parent().map(|process| process.image) };
        self.groups.of_image(image, header.pid, header.cgroup, parent)
    }

    fn take_raw(&mut self, kind: Kind, sample: Sample<'_>, image: ImageId, space: Space) {
        let header = sample.header;
        // A process is published when it is first needed; processes that never run cost nothing.
        self.dirty.insert(header.pid);
        let pc = sample.words.get(RAW_PC_WORD).copied().unwrap_or_default();
        if self.paces.opening.take(header.pid, space.mappings().len(), self.now) {
            self.loading.need(&self.table, header.pid, pc);
        } else {
            self.loading.need_at(&self.table, header.pid, pc);
        }
        if !self.rates.takes(kind, image) {
            return;
        }
        let kernel: Box<[u64]> =
            sample.words.get(..usize::from(header.kernel_frames)).unwrap_or_default().into();
        let mut registers = [0u64; 17];
        let saved = sample.words.get(RAW_REGISTERS_WORD..=RAW_PC_WORD).unwrap_or_default();
        registers.iter_mut().zip(saved).for_each(|(to, from)| *to = *from);
        let mut code = [0u64; 4];
        let saved = sample.words.get(RAW_CODE_WORD..RAW_STACK_WORD).unwrap_or_default();
        code.iter_mut().zip(saved).for_each(|(to, from)| *to = *from);
        let words = sample.words.get(RAW_STACK_WORD..);
        let words = words.and_then(|words| words.get(..header.stack_bytes as usize / 8));
        let stack: Box<[u8]> = aggregate::bytes_of(words.unwrap_or_default()).into();
        let domain = self.managed.domain_of(image, header.tid, domain_read(&header));
        let raw = Raw {
            since: self.now,
            kind,
            image,
            space,
            header,
            domain,
            kernel,
            registers,
            code,
            stack,
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

    /// Unwinds the raw stacks of which everything is known by now; all of them when `all` is set.
    pub(super) fn settle_pending(&mut self, all: bool) {
        if self.pending.is_empty() {
            return;
        }
        let now = self.now;
        for (pid, waiting) in std::mem::take(&mut self.pending.waiting) {
            let mappings = waiting.stacks.first().map_or(0, |raw| raw.space.mappings().len());
            if !self.paces.settling.take(pid, mappings, now) && !all {
                self.pending.waiting.insert(pid, waiting);
                continue;
            }
            self.pending.bytes -= waiting.bytes;
            let mut extents = None;
            for mut raw in waiting.stacks {
                if !all && self.managed.expects(raw.image) {
                    // What it will wait for then is asked for when the bridge is there.
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

    /// Unwinds a raw stack; false when something about it may still become known. `known` keeps
    /// a process's extents from one of its stacks to the next.
    fn settle(&mut self, raw: &Raw, patient: bool, known: &mut Option<Known>) -> bool {
        let current = self.table.get(raw.header.pid).filter(|process| process.image == raw.image);
        let current = current.map(|process| process.space.clone());
        let mut space = &raw.space;
        // Each round that ends at code nobody announced makes that code known.
        for _ in 0..MAX_ROUNDS {
            let of_this = |known: &Known| known.image == raw.image && known.epoch == space.epoch;
            if !known.as_ref().is_some_and(of_this) {
                let generated = self.managed.units_of(raw.image);
                let program = self.table.program_of(raw.image);
                let program = program.as_ref();
                let missing = Missing::FollowPointer;
                let (code, complete) = self.loading.code_of(space, program, generated, missing);
                let extents = store::extents_of(&code);
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
                let address = address_of(last);
                if patient && self.managed.unannounced(raw.image, address) {
                    return false;
                }
                if self.managed.take_for_stub(raw.image, address) {
                    self.managed.publish(&mut self.programs, &mut self.store, raw.image);
                    *known = None;
                    continue;
                }
            }
            if end == End::NoMapping
                && let Some(&last) = user.last()
                && space.mapping_of(address_of(last)).is_none()
            {
                // It was mapped, and nothing told of that: it is known by now, or is looked for.
                let found = current.as_ref().filter(|current| current.epoch != space.epoch);
                if let Some(current) = found
                    && current.mapping_of(address_of(last)).is_some()
                {
                    space = current;
                    continue;
                }
                let now = self.now;
                if self.repairs.is_missing_some(raw.header.pid, now) && patient {
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
        let mut lookup = |address| self.store.lookup(extents, address);
        let start = raw_stack_start(raw.registers.get(7).copied().unwrap_or_default());
        let at = unwinder::Interrupted { registers: &raw.registers, code: raw.code };
        let mut user = Vec::new();
        let end = unwinder::unwind_snapshot(
            &mut lookup,
            at,
            start,
            &raw.stack,
            self.max_frames,
            &mut user,
        );
        (user, end)
    }

    fn add_raw(&mut self, raw: &Raw, space: &Space, user: &[u64], end: End) {
        let era = self.managed.era_of(raw.image);
        let words = Words {
            kernel: &raw.kernel,
            user,
            end,
            flags: raw.header.flags & FLAG_KERNEL_CUT,
            era,
        };
        let whose = (raw.image, raw.domain);
        self.aggregate.add(&whole(raw.kind, &raw.header, whose, words, space));
    }
}

/// The kind that a record says it is of, if that is one of those that are sampled.
fn kind_of(header: &Header, sampled: Kinds) -> Option<Kind> {
    Kind::from_number(header.source).filter(|kind| sampled.contains(*kind))
}

/// A record's sample with its stack.
fn whole<'a>(
    kind: Kind,
    header: &Header,
    (image, domain): (ImageId, u64),
    stack: Words<'a>,
    space: &'a Space,
) -> aggregate::Sample<'a> {
    let Header { time, tid, comm, weight, value, .. } = *header;
    let thread = ThreadKey { image, tid, comm, domain };
    aggregate::Sample { kind, time, thread, labels: LabelsId::NONE, weight, value, stack, space }
}

/// The AppDomain that the kernel read with the sample.
fn domain_read(header: &Header) -> Option<u64> {
    (header.flags & FLAG_CONTEXT != 0).then_some(header.app_domain)
}

/// Where a frame's code is: the call, not the instruction after it.
fn address_of(word: u64) -> u64 {
    (word & FRAME_ADDRESS).wrapping_sub(u64::from(word & FRAME_EXACT == 0))
}

fn raw_pc(raw: &Raw) -> u64 {
    raw.registers.get(16).copied().unwrap_or_default() | FRAME_EXACT
}

pub fn comm_text(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|&byte| byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(comm.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(header: &Header, words: usize) -> Vec<u8> {
        // SAFETY: a `Header` is initialised bytes without padding.
        let header: [u8; HEADER_BYTES] = unsafe { std::mem::transmute_copy(header) };
        let mut bytes = header.to_vec();
        bytes.resize(HEADER_BYTES + words * 8, 0);
        bytes
    }

    fn header(form: u8) -> Header {
        Header {
            time: 1,
            cgroup: 0,
            pid: 2,
            tid: 2,
            cpu: 0,
            generation: 1,
            kernel_frames: 3,
            user_frames: 4,
            end: 0,
            form,
            flags: 0,
            source: SOURCE_CPU,
            stack_bytes: 16,
            weight: 1,
            value: 0,
            app_domain: 0,
            label_set: 0,
            comm: [0; 16],
        }
    }

    #[test]
    fn a_record_shorter_than_it_says_is_refused() {
        assert!(parse(&bytes(&header(0), 7)).is_some());
        assert!(parse(&bytes(&header(0), 6)).is_none());
        assert!(parse(&bytes(&header(FORM_RAW), RAW_STACK_WORD + 2)).is_some());
        assert!(parse(&bytes(&header(FORM_RAW), RAW_STACK_WORD + 1)).is_none());
        assert!(parse(&[0; 10]).is_none());
    }

    #[test]
    fn a_record_of_a_kind_that_is_not_sampled_is_of_no_kind() {
        let of = |source: u8, sampled: Kinds| kind_of(&Header { source, ..header(0) }, sampled);
        let cpu = Kinds::NONE.with(Kind::Cpu, true);
        assert_eq!(of(SOURCE_CPU, cpu), Some(Kind::Cpu));
        assert_eq!(of(SOURCE_WALL, cpu), None);
        assert_eq!(of(SOURCE_WALL, Kinds::all()), Some(Kind::Wall));
        assert_eq!(
            [of(strata_kinds::KIND_COUNT as u8, Kinds::all()), of(255, Kinds::all())],
            [None; 2]
        );
    }

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
            stack: vec![0; bytes].into(),
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

    #[test]
    fn a_name_ends_at_its_first_nul() {
        assert_eq!(comm_text(b"cat\0garbage\0\0\0\0\0"), "cat");
        assert_eq!(comm_text(b"sixteen-bytes-xx"), "sixteen-bytes-xx");
    }
}
