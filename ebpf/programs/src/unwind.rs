//! The one unwinder: finds the rule of an address, and walks a user stack with it.
//!
//! Rules are found in plain memory (see `strata_abi::tables`): one helper call per segment,
//! none per search step. In front of that stands a per-CPU cache from pc to rule, and in front
//! of the stack a window of 2 KiB, so that a frame usually costs no helper call at all.
//!
//! The same functions serve sleepable programs: with a task, memory is read through
//! `bpf_copy_from_user_task`; without one, through `bpf_probe_read_user`. The kernel removes
//! the branch that cannot be taken.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{
    bpf_copy_from_user_task, bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user,
};
use strata_abi::epilogue::{self, Code};
use strata_abi::record::{End, FRAME_ADDRESS, FRAME_BY_POINTER, FRAME_EXACT};
use strata_abi::rule::{Packed, Rule};
use strata_abi::step::{self, Machine};
use strata_abi::tables::{
    CACHE_LINES, CacheLine, EXTENT_WORDS, Extent, ExtentKind, PAGE_SHIFT, PROCESS_PATIENT, Process,
    SEGMENT_WORDS, row_rule,
};

use crate::arch::saved_register;
use crate::go_stacks;
use crate::maps::{Cache, Hot, RULES, Record, SEGMENTS, Segment, WINDOW_WORDS};
use crate::probed;

/// What one walk needs besides its hot memory.
#[repr(C)]
pub struct Walk {
    pub hot: *mut Hot,
    pub record: *mut Record,
    pub cache: *mut Cache,
    /// The thread whose stack it is; null for the current one.
    pub task: *mut task_struct,
    /// Its saved user registers (`struct pt_regs`).
    pub registers: *const c_void,
}

/// Words are indexed below 4096; kernel and user frames together are fewer than that.
const WORD_MASK: usize = 4095;

/// Walks the stack that starts at `hot.frame`, writing frames from `hot.first_word` on.
#[inline(always)]
pub fn walk(walk: &mut Walk) {
    // SAFETY: `frame_callback` has the signature that bpf_loop calls; `walk` outlives the call.
    unsafe {
        (*walk.hot).end = End::FrameLimit as u32;
        let frames = (*walk.hot).max_frames + 1 + probed::MOST;
        bpf_loop(frames, frame_callback as *mut c_void, core::ptr::from_mut(walk).cast(), 0);
    }
}

extern "C" fn frame_callback(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: the context is the `Walk` that `walk` passes to bpf_loop.
    let walk = unsafe { &mut *context.cast::<Walk>() };
    // SAFETY: a map value, valid for the whole program.
    let hot = unsafe { &mut *walk.hot };
    let count = hot.user_frames;
    if count >= hot.max_frames {
        return 1;
    }
    let mut word = hot.frame.pc & FRAME_ADDRESS;
    word |= (hot.frame.exact & 1) * FRAME_EXACT;
    word |= (hot.frame.by_pointer & 1) * FRAME_BY_POINTER;
    // SAFETY: a map value; the index is masked to it.
    unsafe { (*walk.record).words[(hot.first_word + count) as usize & WORD_MASK] = word };
    hot.user_frames = count + 1;

    let mut machine = Kernel { hot: walk.hot, task: walk.task, registers: walk.registers };
    let Some(rule) = find_rule(hot, walk.cache, &mut machine) else {
        let frame = &mut hot.frame;
        let original = probed::original(walk.task, frame);
        if original != 0 && original != frame.pc {
            // The same frame once more, with its own address.
            frame.pc = original;
            hot.user_frames = count;
            return 0;
        }
        hot.end = End::NoMapping as u32;
        return 1;
    };
    let mut frame = hot.frame;
    let end = step::step(&mut machine, &mut frame, rule);
    hot.frame = frame;
    match end {
        None => 0,
        Some(end) => {
            hot.end = end as u32;
            1
        }
    }
}

/// Where in the cache a pc's rule may be. Code of the same 64 KiB shares one of its eight pages,
/// so that a sample touches few of them.
#[inline(always)]
fn line_of(pc: u64) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const PAGE_LINES: u64 = 4096 / size_of::<CacheLine>() as u64;
    let page = (pc >> 16).wrapping_mul(SPREAD) >> 56;
    let line = pc.wrapping_mul(SPREAD) >> 56;
    (page * PAGE_LINES + line) as usize & (CACHE_LINES - 1)
}

/// The rule for the current frame, through the cache. `None` when no extent covers its code.
#[inline(always)]
fn find_rule(hot: &mut Hot, cache: *mut Cache, machine: &mut Kernel) -> Option<Packed> {
    let pc = step::lookup_pc(&hot.frame);
    let line = line_of(pc);
    // SAFETY: a map value; `line` is masked to it.
    let line = unsafe { &mut (*cache)[line] };
    if line.pc == pc && line.generation == hot.process.generation {
        hot.hits += 1;
        return Some(Packed(line.rule));
    }
    hot.misses += 1;
    let mut rule = search(&hot.process, pc)?;
    // Code that nothing describes: it may be one that only calls.
    if rule.0 == Packed::FRAME_POINTER.0 {
        let pc = hot.frame.pc;
        // It may be there the next time.
        let Some(code) = machine.code(pc).or_else(|| machine.code_after_call(pc)) else {
            return Some(rule);
        };
        if let Some(trampoline) = epilogue::trampoline(&code) {
            rule = trampoline;
        }
    }
    if rule.0 == Packed::UNANNOUNCED.0 {
        let waits = hot.process.captures != 0 && hot.process.flags & PROCESS_PATIENT != 0;
        return if waits { None } else { Some(Packed::FRAME_POINTER) };
    }
    line.pc = pc;
    line.generation = hot.process.generation;
    line.rule = rule.0;
    Some(rule)
}

#[inline(always)]
fn segment(number: u32) -> Option<*const Segment> {
    let first = 0u32;
    SEGMENTS.get_value_ptr_mut(number, &first).map(|segment| segment.cast_const())
}

#[inline(always)]
fn word_of(segment: *const Segment, index: u32) -> u32 {
    // SAFETY: the index is masked to the segment.
    unsafe { *segment.cast::<u32>().add(index as usize & (SEGMENT_WORDS - 1)) }
}

#[inline(always)]
fn extent_of(segment: *const Segment, offset: u32) -> *const Extent {
    let offset = offset as usize & (SEGMENT_WORDS - EXTENT_WORDS);
    // SAFETY: the offset is masked so that a whole extent fits behind it.
    unsafe { segment.cast::<u32>().add(offset).cast() }
}

/// All ones when `a < b`, else 0; both below 2^63. Arithmetic, because a comparison would make
/// the verifier follow both outcomes of every search step.
#[inline(always)]
fn below(a: u64, b: u64) -> u32 {
    ((a.wrapping_sub(b) as i64) >> 63) as u32
}

#[inline(never)]
fn search(process: &Process, pc: u64) -> Option<Packed> {
    // No program's code lies there, and `below` does not order such addresses.
    if pc >> 63 != 0 {
        return None;
    }
    let extents = segment(process.segment)?;
    // The first extent that ends beyond pc.
    let mut first = 0u32;
    let mut left = process.count;
    for _ in 0..13 {
        if left == 0 {
            break;
        }
        let half = (left + 1) >> 1;
        let probe = extent_of(extents, process.offset + (first + half - 1) * EXTENT_WORDS as u32);
        // SAFETY: `probe` is within the segment.
        let beyond = below(pc, unsafe { (*probe).end });
        first += half & !beyond;
        left = (half - 1) & beyond | (left - half) & !beyond;
    }
    if first >= process.count {
        return None;
    }
    let extent = extent_of(extents, process.offset + first * EXTENT_WORDS as u32);
    // SAFETY: `extent` is within the segment.
    let extent = unsafe { &*extent };
    if pc < extent.start {
        return None;
    }
    if extent.kind == ExtentKind::Unannounced as u32 {
        return Some(Packed::UNANNOUNCED);
    }
    if extent.kind != ExtentKind::Rows as u32 {
        return Some(Packed::FRAME_POINTER);
    }
    let address = pc.wrapping_sub(extent.bias);
    let page = (address >> PAGE_SHIFT).wrapping_sub(extent.first_page);
    if page >= extent.pages as u64 {
        return Some(Packed::NONE);
    }
    let rows = extent.rows;
    let entry = extent.index + page as u32;
    let table = segment(extent.segment)?;
    let mut first = word_of(table, entry);
    let mut left = word_of(table, entry + 1).wrapping_sub(first);
    let target = address & 0xff;
    for _ in 0..9 {
        if left == 0 {
            break;
        }
        let half = (left + 1) >> 1;
        let row = word_of(table, rows + first + half - 1);
        let beyond = below(target, (row & 0xff) as u64);
        first += half & !beyond;
        left = (half - 1) & beyond | (left - half) & !beyond;
    }
    let row = word_of(table, (rows + first).wrapping_sub(1));
    let rule = RULES.get_ptr(row_rule(row) as u32)?;
    // SAFETY: a map value.
    Some(unsafe { (*rule).packed })
}

/// The step's view of a thread: its memory through the window, its saved registers.
struct Kernel {
    hot: *mut Hot,
    task: *mut task_struct,
    registers: *const c_void,
}

/// Reads a thread's memory: the current one's where `task` is null.
#[inline(always)]
pub fn copy(task: *mut task_struct, to: *mut c_void, bytes: u32, from: u64) -> bool {
    // SAFETY: callers have room for `bytes` at `to`; the helpers check the source.
    unsafe {
        if task.is_null() {
            bpf_probe_read_user(to, bytes, from as *const c_void) == 0
        } else {
            bpf_copy_from_user_task(to, bytes, from as *const c_void, task, 0) == 0
        }
    }
}

impl Kernel {
    /// As `code`, of a caller, where memory before or behind it is not there: at the start of a
    /// mapping, or before pages that nothing was written to yet.
    #[inline(always)]
    fn code_after_call(&mut self, pc: u64) -> Option<Code> {
        let mut bytes = 0u64;
        let from = pc.wrapping_sub(epilogue::TRAMPOLINE_BEFORE);
        let is_read = self.copy((&raw mut bytes).cast(), size_of::<u64>() as u32, from);
        is_read.then(|| epilogue::code_after_call(bytes))
    }

    #[inline(always)]
    fn copy(&self, to: *mut c_void, bytes: u32, from: u64) -> bool {
        copy(self.task, to, bytes, from)
    }

    /// Fills the window from `address` on. Memory right above a frame is other, older frames
    /// and nearly always there; where it is not, the window ends with the page.
    #[inline(never)]
    fn refill(&mut self, address: u64) -> bool {
        // SAFETY: a map value.
        let hot = unsafe { &mut *self.hot };
        let window: *mut c_void = (&raw mut hot.window).cast();
        hot.window_at = address;
        hot.window_bytes = WINDOW_WORDS as u64 * 8;
        if self.copy(window, WINDOW_WORDS as u32 * 8, address) {
            return true;
        }
        let to_page_end = (4096 - (address & 4095)) as u32 & 0x7f8;
        hot.window_bytes = to_page_end as u64;
        if to_page_end != 0 && self.copy(window, to_page_end, address) {
            return true;
        }
        hot.window_bytes = 0;
        false
    }
}

impl Machine for Kernel {
    #[inline(always)]
    fn read(&mut self, address: u64) -> Option<u64> {
        // SAFETY: a map value.
        let hot = unsafe { &mut *self.hot };
        if address & 7 != 0 {
            // Misaligned stacks exist (hand-written code); they are not worth a window.
            let mut value = 0u64;
            return self.copy((&raw mut value).cast(), 8, address).then_some(value);
        }
        let mut offset = address.wrapping_sub(hot.window_at);
        if offset >= hot.window_bytes {
            if !self.refill(address) {
                return None;
            }
            offset = 0;
        }
        Some(hot.window[(offset >> 3) as usize & (WINDOW_WORDS - 1)])
    }

    #[inline(always)]
    fn extended(&mut self, number: u16) -> Option<Rule> {
        // SAFETY: a map value.
        RULES.get_ptr(number as u32).map(|rule| unsafe { *rule })
    }

    #[inline(always)]
    fn register(&mut self, number: u8) -> Option<u64> {
        let mut value = 0u64;
        let at = (self.registers as u64).wrapping_add(saved_register(number));
        // SAFETY: 8 bytes of our own stack; the helper checks the source.
        let read =
            unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, at as *const c_void) };
        (read == 0).then_some(value)
    }

    #[inline(always)]
    fn code(&mut self, pc: u64) -> Option<Code> {
        let mut code: Code = [0; 4];
        let from = pc.wrapping_sub(epilogue::BYTES_BEFORE);
        self.copy((&raw mut code).cast(), size_of::<Code>() as u32, from).then_some(code)
    }

    #[inline(always)]
    fn left_goroutine(&mut self, fp: u64) -> Option<u64> {
        // SAFETY: a map value.
        let hot = unsafe { &mut *self.hot };
        if hot.left_goroutine != 0 {
            return None;
        }
        hot.left_goroutine = 1;
        let sp = go_stacks::left_goroutine(hot, self.task, fp);
        (sp != 0).then_some(sp)
    }
}
