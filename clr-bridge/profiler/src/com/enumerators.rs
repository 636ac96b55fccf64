//! `ICorProfilerFunctionEnum`, `ICorProfilerModuleEnum` and `ICorProfilerThreadEnum`: lists of
//! what exists, handed out in batches.

use std::ffi::c_void;

use super::{HResult, Interface};

/// `COR_PRF_FUNCTION` (corprof.idl).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct FunctionVersion {
    pub function: usize,
    pub rejit: usize,
}

const BATCH: usize = 128;

/// `Next` of every enumerator: slots 3 to 6 are Skip, Reset, Clone, GetCount (corprof.idl).
const NEXT: usize = 7;

/// Passes every element to `each` until it returns false, then releases the enumerator.
fn drain<T: Copy + Default>(list: Interface, mut each: impl FnMut(T) -> bool) {
    type Next<T> = unsafe extern "C" fn(*mut c_void, u32, *mut T, *mut u32) -> HResult;
    let mut batch = [T::default(); BATCH];
    'all: loop {
        let mut fetched = 0;
        // SAFETY: slot 7 is Next, and the buffer has room for a batch of the enumerator's elements.
        let result = unsafe {
            list.slot::<Next<T>>(NEXT)(list.raw(), BATCH as u32, batch.as_mut_ptr(), &mut fetched)
        };
        let fetched = (fetched as usize).min(BATCH);
        for element in batch.iter().take(fetched) {
            if !each(*element) {
                break 'all;
            }
        }
        if result < 0 || fetched < BATCH {
            break;
        }
    }
    list.release();
}

/// Every function of an `ICorProfilerFunctionEnum`.
///
/// # Safety
/// `list` is such an enumerator.
pub unsafe fn functions(list: Interface, each: impl FnMut(FunctionVersion) -> bool) {
    drain(list, each);
}

/// Every id of an `ICorProfilerModuleEnum` or `ICorProfilerThreadEnum`.
///
/// # Safety
/// `list` is such an enumerator.
pub unsafe fn ids(list: Interface, each: impl FnMut(usize) -> bool) {
    drain(list, each);
}
