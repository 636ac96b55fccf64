//! Turns records into samples; deferred ones wait for their tables (`deferred`).

use std::sync::Arc;

use strata_abi::record::{
    ENDED_WORDS, EVENT_WORDS, End, FLAG_CONTEXT, FLAG_EVENT, FLAG_KERNEL_CUT, FLAG_THREAD,
    FLAG_WAIT, FORM_ENDED, FORM_RAW, FRAME_ADDRESS, FRAME_BY_POINTER, FRAME_EXACT, Header,
    MAX_KERNEL_FRAMES, MAX_WORDS, RAW_LEFT_FP_WORD, RAW_LEFT_SP_WORD, RAW_OTHER_BYTES_WORD,
    RAW_OTHER_WORD, RAW_REGISTERS_WORD, RAW_STACK_WORD, SOURCE_CPU, SOURCE_OFF_CPU, SOURCE_WALL,
    THREAD_WORDS, WAIT_WORDS, raw_stack_start,
};
use strata_abi::register;
use strata_abi::tables::UNWANTED_WALL;
use strata_bridge_protocol::clr_event::Block;
use strata_kinds::{Kind, Kinds};
use strata_unwind::unwinder::LeftGoroutine;

use super::Engine;
use super::clr_events::{self, Described, Labelling};
use super::waits::Stack;
use super::wall::Whole;
use crate::aggregate::{self, LabelsId, ThreadKey, Words};
use crate::image_id::ImageId;
use crate::processes::container::Groups;
use crate::processes::table::Space;
use crate::selection::Kept;

// The kernel's numbers of kinds are those of the table.
const _: () = assert!(SOURCE_CPU == Kind::Cpu as u8 && SOURCE_WALL == Kind::Wall as u8);
const _: () = assert!(SOURCE_OFF_CPU == Kind::OffCpu as u8);

/// A record's parts.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    pub header: Header,
    pub words: &'a [u64],
}

/// What a sample is of, beside its stack.
pub(super) struct Event<'a> {
    pub kind: Kind,
    pub header: &'a Header,
    /// Of an event of the CLR.
    pub block: Option<&'a Block>,
    pub is_kept: bool,
}

pub struct OwnedSample {
    header: Header,
    words: Vec<u64>,
}

impl Sample<'_> {
    /// The copied stacks: the address of the first byte and the bytes of each. The second is the
    /// other stack of a thread of a Go program, and mostly empty.
    pub(super) fn copied_stacks(&self) -> [(u64, &[u8]); 2] {
        let words = |from: usize, count: usize| {
            let words = self.words.get(from..from.saturating_add(count));
            aggregate::bytes_of(words.unwrap_or_default())
        };
        let word = |at: usize| self.words.get(at).copied().unwrap_or_default();
        let sp = word(RAW_REGISTERS_WORD + usize::from(register::SP));
        let count = self.header.stack_bytes as usize / 8;
        let other = words(RAW_STACK_WORD + count, other_words(self.words));
        [(raw_stack_start(sp), words(RAW_STACK_WORD, count)), (word(RAW_OTHER_WORD), other)]
    }

    /// Where the thread of a Go program left its goroutine last.
    pub(super) fn left_goroutine(&self) -> Option<LeftGoroutine> {
        let [sp, fp] = [RAW_LEFT_SP_WORD, RAW_LEFT_FP_WORD].map(|at| self.words.get(at).copied());
        Some(LeftGoroutine { sp: sp.filter(|sp| *sp != 0)?, fp: fp? })
    }

    /// The words after the frames or the copied stacks.
    pub(super) fn after_the_stack(&self) -> Option<&[u64]> {
        let Header { kernel_frames, user_frames, stack_bytes, form, .. } = self.header;
        let at = match form {
            FORM_RAW => RAW_STACK_WORD + stack_bytes as usize / 8 + other_words(self.words),
            _ => usize::from(kernel_frames) + usize::from(user_frames),
        };
        self.words.get(at..)
    }

    /// The state and the system call of a thread that begins to wait.
    pub(super) fn wait(&self) -> Option<[u64; WAIT_WORDS]> {
        self.after_the_stack()?.first_chunk().copied()
    }

    pub fn to_owned(self) -> OwnedSample {
        OwnedSample { header: self.header, words: self.words.to_vec() }
    }
}

impl OwnedSample {
    pub fn time(&self) -> u64 {
        self.header.time
    }

    pub fn as_sample(&self) -> Sample<'_> {
        Sample { header: self.header, words: &self.words }
    }
}

const HEADER_BYTES: usize = size_of::<Header>();

/// How many words of a raw record are the copy of the thread's other stack.
fn other_words(words: &[u64]) -> usize {
    let bytes = words.get(RAW_OTHER_BYTES_WORD).copied().unwrap_or_default();
    usize::try_from(bytes / 8).unwrap_or(usize::MAX).min(MAX_WORDS)
}

/// Splits a record; `None` when it is shorter than its header states.
pub fn parse(bytes: &[u8]) -> Option<Sample<'_>> {
    let (header, words) = bytes.split_at_checked(HEADER_BYTES)?;
    // SAFETY: as many initialised bytes; any bytes are a `Header`; read without alignment.
    let header: Header = unsafe { std::ptr::read_unaligned(header.as_ptr().cast()) };
    // SAFETY: any eight bytes are a `u64`.
    let (before, words, _) = unsafe { words.align_to::<u64>() };
    if !before.is_empty() {
        return None;
    }
    let needed = match header.form {
        FORM_RAW => RAW_STACK_WORD + header.stack_bytes as usize / 8 + other_words(words),
        FORM_ENDED => ENDED_WORDS,
        _ => usize::from(header.kernel_frames) + usize::from(header.user_frames),
    };
    let is_wait = header.flags & FLAG_WAIT != 0 && header.form != FORM_ENDED;
    let needed = needed + if is_wait { WAIT_WORDS } else { 0 };
    let is_thread = header.flags & FLAG_THREAD != 0;
    let needed = needed + if is_thread { THREAD_WORDS } else { 0 };
    let is_event = header.flags & FLAG_EVENT != 0;
    let needed = needed + if is_event { EVENT_WORDS } else { 0 };
    let kernel = usize::from(header.kernel_frames);
    (kernel <= MAX_KERNEL_FRAMES && needed <= words.len()).then_some(Sample { header, words })
}

/// Processes that are met in one turn, and reported.
const MOST_NEWCOMERS: usize = 10_000;
/// How far below strata its helpers are: the broker's keeper, the broker, the processes that attach.
const HELPERS_DEPTH: usize = 3;

impl Engine {
    pub(super) fn take_sample(&mut self, sample: Sample<'_>) {
        let header = sample.header;
        // CPU samples are stacks of wall-clock time too.
        let taken = self.sampling.kinds;
        let taken = taken.with(Kind::Cpu, taken.contains(Kind::Cpu) || self.wall.is_some());
        let Some(kind) = kind_of(&header, taken) else {
            // Another strata may have a bridge report events that this one has not asked for.
            let is_of_others = header.flags & FLAG_EVENT != 0
                && kind_of(&header, crate::managed::events::KINDS).is_some();
            self.figures.unexpected_records += u64::from(!is_of_others);
            return;
        };
        if header.form == FORM_ENDED {
            self.end_wait(sample);
            return;
        }
        if self.is_own(header.pid) {
            self.figures.own_samples += 1;
            self.store.skip(&mut self.programs, header.pid);
            return;
        }
        let is_known = self.table.get(header.pid).is_some();
        if !is_known {
            // Its start was missed: it is read off the loop, and its stacks wait for that.
            self.table.insert_unknown(header.pid, &comm_text(&header.comm));
        }
        if header.form == FORM_RAW
            && header.generation == 0
            && self.store.was_published_before(header.pid, header.time)
        {
            // The kernel has dropped its tables: it has executed a program of which no event says so.
            self.processes.repairs.is_surely_outdated(header.pid, self.turn.now);
        }
        // The kernel has no tables of it: it may have executed another program.
        let is_doubtful = self.events.has_no_names && header.form == FORM_RAW;
        if !is_known || is_doubtful || self.processes.repairs.is_unread(header.pid) {
            self.processes.repairs.is_missing_some(header.pid, self.turn.now);
        }
        let Some(process) = self.table.get(header.pid) else { return };
        let (image, space) = (process.image, process.space.clone());
        if !self.is_selected(&header, image) {
            self.figures.deselected_samples += 1;
            self.store.skip(&mut self.programs, header.pid);
            return;
        }
        if header.flags & FLAG_EVENT != 0 && !self.managed.wants_event(image, kind) {
            return;
        }
        if header.form == FORM_RAW {
            self.take_raw(kind, sample, image, space);
            return;
        }
        self.store.touch(header.pid, self.turn.now);
        // Elapsed time is never thinned out: it would not add up.
        let is_kept = header.flags & FLAG_THREAD != 0 || self.rates.takes(kind, image);
        if !is_kept && self.wall.is_none() {
            return;
        }
        let kernel = usize::from(header.kernel_frames);
        let user = usize::from(header.user_frames);
        let user = sample.words.get(kernel..kernel + user).unwrap_or_default();
        let end = End::from_byte(header.end).unwrap_or(End::NoProcess);
        let is_outdated = self.store.is_outdated(header.pid, header.generation);
        let (user, end) = if is_outdated {
            // It was unwound with the tables of the previous program: only its first address is
            // valid.
            (user.get(..1).unwrap_or_default(), End::NoProcess)
        } else {
            self.check_followed(user, end, image)
        };
        if end == End::NoMapping && self.managed.units_of(image).is_none() {
            self.processes.repairs.unknown_address(header.pid, self.turn.now);
        }
        let domain = self.managed.domain_of(image, header.tid, domain_read(&header));
        if header.flags & FLAG_WAIT != 0 {
            let thread = ThreadKey { image, tid: header.tid, comm: header.comm, domain };
            let (user, era) = (user.into(), self.managed.era_of(image, header.time));
            self.begin_wait(sample, thread, Some(Stack { user, end, era, space }));
            return;
        }
        if header.flags & FLAG_THREAD != 0 && self.wall.is_some() {
            let thread = ThreadKey { image, tid: header.tid, comm: header.comm, domain };
            let (user, era) = (user.into(), self.managed.era_of(image, header.time));
            self.take_thread(sample, thread, Stack { user, end, era, space });
            return;
        }
        let block = clr_events::block_of(&sample);
        let words = Words {
            kernel: sample.words.get(..kernel).unwrap_or_default(),
            user,
            end,
            flags: header.flags & FLAG_KERNEL_CUT,
            era: self.managed.era_of(image, header.time),
        };
        let event = Event { kind, header: &header, block: block.as_ref(), is_kept };
        self.take_described(event, (image, domain), words, &space);
    }

    /// A sample with its stack: an event's with labels, an object's kept until it is gone.
    pub(super) fn take_described(
        &mut self,
        event: Event<'_>,
        (image, domain): (ImageId, u64),
        words: Words<'_>,
        space: &Space,
    ) {
        let Event { kind, header, block, is_kept } = event;
        if let Some(block) = block.filter(|_| kind == Kind::Heap) {
            let thread = ThreadKey { image, tid: header.tid, comm: header.comm, domain };
            let words = Words { kernel: &[], flags: 0, ..words };
            self.keep_object(block, header, thread, &words, space);
            return;
        }
        let managed = &self.managed;
        let threads = |tid| managed.thread_name(image, tid);
        let labelling = Labelling::new(&threads, managed.wants_messages());
        let described = clr_events::describe(
            block,
            kind,
            header,
            words.user,
            (image, space),
            labelling,
            &mut self.aggregate,
        );
        let Described { user, labels, weight, value } = described;
        let words = Words { user, ..words };
        let sample = whole(kind, header, (image, domain), words, space);
        let sample = aggregate::Sample { labels, weight, value, ..sample };
        self.add_whole(&sample, header, is_kept, false);
    }

    /// A sample with its stack: as one of its kind, and as a stack of wall-clock time.
    pub(super) fn add_whole(
        &mut self,
        sample: &aggregate::Sample<'_>,
        header: &Header,
        is_kept: bool,
        is_late: bool,
    ) {
        if sample.kind == Kind::Cpu
            && self.store.unwanted_of(header.pid) & UNWANTED_WALL == 0
            && let Some(wall) = &mut self.wall
        {
            let Words { kernel, user, end, flags, era } = sample.stack;
            let stack = Stack { user: user.into(), end, era, space: sample.space.clone() };
            let whole = Whole { kernel: kernel.into(), flags, stack };
            wall.note_running(header, sample.thread, whole, is_late);
            if !is_late {
                self.note_on_cpu(header);
            }
        }
        if is_kept && self.sampling.kinds.contains(sample.kind) {
            self.aggregate.add(sample);
        }
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
                    self.managed.unannounced(image, address_of(callee), is_caller(callee));
                }
            }
        }
        if let Some(&last) = user.last().filter(|_| end == End::NoMapping) {
            self.managed.unannounced(image, address_of(last), is_caller(last));
        }
        (user, end)
    }

    /// A stack is unwound with what is known, although its process's bridge is still expected.
    pub(super) fn count_followed(&mut self, user: &[u64], image: ImageId) {
        let is_followed = user.iter().any(|word| word & FRAME_BY_POINTER != 0);
        self.pending.followed += u64::from(is_followed && self.managed.is_attaching(image));
    }

    /// strata itself and its helpers with their children, but not the command it was asked to run.
    fn is_own(&self, pid: u32) -> bool {
        let mut of = pid;
        for _ in 0..=HELPERS_DEPTH {
            if of == self.sampling.own_pid {
                return true;
            }
            match self.table.get(of) {
                Some(process) if !self.selection.is_root(of) => of = process.parent,
                _ => return false,
            }
        }
        false
    }

    pub(super) fn is_selected(&mut self, header: &Header, image: ImageId) -> bool {
        if self.selection.is_everything() {
            self.note_group(header, image);
            return true;
        }
        let group = self.note_group(header, image);
        let comm = self.table.image(image).map(|image| image.comm.clone()).unwrap_or_default();
        let kept = self.selection.keeps((header.pid, image), &comm, || group);
        if kept == Kept::Newly {
            self.look_for_runtime(header.pid);
        }
        kept != Kept::No
    }

    /// Whether a process that is there before recording begins is recorded.
    pub(super) fn is_selected_at_start(&mut self, pid: u32) -> bool {
        if self.selection.surely_keeps(pid) {
            return true;
        }
        let Some(image) = self.table.get(pid).map(|process| process.image) else { return false };
        if !self.selection.has_selectors() || self.is_own(pid) {
            return false;
        }
        let comm = self.table.image(image).map(|image| image.comm.clone()).unwrap_or_default();
        let group = || Groups::look(pid).map(Arc::new);
        self.selection.keeps((pid, image), &comm, group) != Kept::No
    }

    /// The control group of an image, read at its first sample.
    fn note_group(
        &mut self,
        header: &Header,
        image: ImageId,
    ) -> Option<Arc<crate::processes::container::Group>> {
        let is_known = self.groups.knows(image);
        if !is_known {
            self.note_newcomer(image, header.pid);
        }
        let parent = || self.table.get(self.table.get(header.pid)?.parent);
        let parent = if is_known { None } else { parent().map(|process| process.image) };
        self.groups.of_image(image, header.pid, header.cgroup, parent)
    }

    /// An image has samples from now on.
    fn note_newcomer(&mut self, image: ImageId, pid: u32) {
        self.credentials.note(image, pid, &self.table);
        if let Some(credentials) = self.credentials.of(image) {
            self.waits.memory.note_user(pid, credentials.real_user);
            if let Some(wall) = &mut self.wall {
                wall.memory.note_user(pid, credentials.real_user);
            }
        }
        if let Some(newcomers) =
            self.newcomers.as_mut().filter(|newcomers| newcomers.len() < MOST_NEWCOMERS)
        {
            newcomers.push((image, pid));
        }
    }

    /// Asks who processes are that have time before their first record: the account of a thread that
    /// executes a program goes on, and the record may come after a flush, or never. A process that
    /// executes without end costs one look.
    pub(super) fn meet_executed(&mut self) {
        for pid in std::mem::take(&mut self.processes.executed) {
            let Some(image) = self.table.get(pid).map(|process| process.image) else { continue };
            self.meet(image, pid);
        }
    }

    /// Reads who a process is that has no sample yet.
    pub fn meet(&mut self, image: ImageId, pid: u32) {
        if self.groups.note(image, pid) {
            self.note_newcomer(image, pid);
        }
    }
}

/// The kind in a record's header, if it is one of those sampled.
fn kind_of(header: &Header, sampled: Kinds) -> Option<Kind> {
    Kind::from_number(header.source).filter(|kind| sampled.contains(*kind))
}

/// A record's sample with its stack.
pub(super) fn whole<'a>(
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
pub(super) fn domain_read(header: &Header) -> Option<u64> {
    (header.flags & FLAG_CONTEXT != 0).then_some(header.app_domain)
}

/// Where a frame's code is: the call, not the instruction after it. The address may be any that the thread has
/// written on its stack.
pub(super) fn address_of(word: u64) -> u64 {
    (word & FRAME_ADDRESS).saturating_sub(u64::from(word & FRAME_EXACT == 0))
}

/// Whether a frame has called something, and was not interrupted.
pub(super) fn is_caller(word: u64) -> bool {
    word & FRAME_EXACT == 0
}

pub fn comm_text(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|&byte| byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(comm.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn bytes(header: &Header, words: usize) -> Vec<u8> {
        // SAFETY: a `Header` is initialised bytes without padding.
        let header: [u8; HEADER_BYTES] = unsafe { std::mem::transmute_copy(header) };
        let mut bytes = header.to_vec();
        bytes.resize(HEADER_BYTES + words * 8, 0);
        bytes
    }

    pub fn header(form: u8) -> Header {
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
    fn the_copy_of_another_stack_counts_into_the_length_and_is_found() {
        let raw = Header { flags: FLAG_WAIT, ..header(FORM_RAW) };
        let mut record = bytes(&raw, RAW_STACK_WORD + 2 + 3 + WAIT_WORDS);
        let mut set = |word: usize, value: u64| {
            record[HEADER_BYTES + word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        };
        set(RAW_REGISTERS_WORD + usize::from(register::SP), 0x7000);
        set(RAW_OTHER_WORD, 0xc000_1000);
        set(RAW_OTHER_BYTES_WORD, 24);
        set(RAW_LEFT_SP_WORD, 0xc000_1000);
        set(RAW_LEFT_FP_WORD, 0xc000_1040);
        set(RAW_STACK_WORD + 1, 1);
        set(RAW_STACK_WORD + 2, 2);
        set(RAW_STACK_WORD + 5, 7);
        let sample = parse(&record).unwrap();
        let [(stack, own), (other, others)] = sample.copied_stacks();
        assert_eq!((stack, other), (raw_stack_start(0x7000), 0xc000_1000));
        assert_eq!((own.len(), own[8], others.len(), others[0]), (16, 1, 24, 2));
        assert_eq!(sample.wait(), Some([7, 0]));
        let left = LeftGoroutine { sp: 0xc000_1000, fp: 0xc000_1040 };
        assert_eq!(sample.left_goroutine(), Some(left));
        record.truncate(record.len() - 8);
        assert!(parse(&record).is_none());
        // More than there is room for.
        record[HEADER_BYTES + RAW_OTHER_BYTES_WORD * 8..][..8].fill(0xff);
        assert!(parse(&record).is_none());
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

    #[test]
    fn a_name_ends_at_its_first_nul() {
        assert_eq!(comm_text(b"cat\0garbage\0\0\0\0\0"), "cat");
        assert_eq!(comm_text(b"sixteen-bytes-xx"), "sixteen-bytes-xx");
    }
}
