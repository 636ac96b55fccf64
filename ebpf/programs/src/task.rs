//! Fields of `struct task_struct`, at offsets from the kernel's own type information.

use aya_ebpf::bindings::task_struct;

/// # Safety
/// `offset` must be that of a field in `struct task_struct`.
#[inline(always)]
pub unsafe fn byte(task: *const task_struct, offset: u32) -> u8 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize)) }
}

/// # Safety
/// `offset` must be that of a `u32` in `struct task_struct`.
#[inline(always)]
pub unsafe fn field(task: *const task_struct, offset: u32) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast()) }
}

/// # Safety
/// `offset` must be that of a `u64` or pointer in `struct task_struct`.
#[inline(always)]
pub unsafe fn word(task: *const task_struct, offset: u64) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { core::ptr::read_volatile(task.cast::<u8>().add(offset as usize).cast()) }
}
