//! Whether a frame is where a thread's stack starts.
//!
//! Names are enough where there are symbols. Debian's libc and stripped programs have none for
//! these places, so the code itself is examined: the program's entry point, and the instructions
//! after the call in `clone`'s child, which end the thread with the function's result.

use std::collections::BTreeMap;
use std::sync::Mutex;

use object::{Object, ObjectSegment};

use crate::places;
use crate::stacks::Frame;

/// `runtime.mcall` and `runtime.morestack` switch to the scheduler's stack: it starts with them.
const NAMES: [&str; 14] = [
    "_start",
    "__clone",
    "__clone3",
    "clone",
    "clone3",
    "start_thread",
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.mcall",
    "runtime.morestack",
    "runtime.mstart",
    "runtime.mstart.abi0",
    "runtime.rt0_go",
    "_rt0_amd64_linux",
];

/// `mov %rax,%rdi; mov $60,%eax; syscall` (glibc 2.36, sysdeps/unix/sysv/linux/x86_64/clone3.S)
const GLIBC_THREAD_END: [u8; 10] = [0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05];
/// `mov %eax,%edi; xor %eax,%eax; mov $60,%al; syscall` (musl 1.2, src/thread/x86_64/clone.s)
const MUSL_THREAD_END: [u8; 8] = [0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05];

/// `_start` is 34 to 38 bytes in every C library seen.
const LONGEST_START: u64 = 48;

/// Whether a thread's stack starts here.
pub fn is_thread_start(frame: &Frame) -> bool {
    let name = frame.name.split('@').next().unwrap_or_default();
    if NAMES.contains(&name) {
        return true;
    }
    frame.file_offset.is_some_and(|offset| code_is_a_thread_start(&frame.file, offset))
}

static SEEN: Mutex<BTreeMap<(String, u64), bool>> = Mutex::new(BTreeMap::new());

fn code_is_a_thread_start(file: &str, offset: u64) -> bool {
    let Ok(mut seen) = SEEN.lock() else { return false };
    *seen
        .entry((file.to_string(), offset))
        .or_insert_with(|| look_at_code(file, offset).unwrap_or(false))
}

fn look_at_code(file: &str, offset: u64) -> Option<bool> {
    let bytes = std::fs::read(places::outside(file)).ok()?;
    let elf = object::File::parse(bytes.as_slice()).ok()?;
    let entry_offset = elf.segments().find_map(|segment| {
        let within = elf.entry().checked_sub(segment.address())?;
        let (start, size) = segment.file_range();
        (within < size).then_some(start + within)
    });
    if entry_offset.is_some_and(|entry| (entry..entry + LONGEST_START).contains(&offset)) {
        return Some(true);
    }
    // The frame is the return address, one less, or (a leaf) an instruction just around the call.
    let at = usize::try_from(offset).ok()?;
    let code = bytes.get(at.saturating_sub(24)..at + 32)?;
    let ends = |pattern: &[u8]| code.windows(pattern.len()).any(|w| w == pattern);
    Some(ends(&GLIBC_THREAD_END) || ends(&MUSL_THREAD_END))
}
