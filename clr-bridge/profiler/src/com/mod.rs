//! The few COM conventions that the CLR's profiling and metadata interfaces use: identities,
//! results, and calls through a table of functions.
//!
//! An interface pointer points to a pointer to a table; slot 0 to 2 are `IUnknown`'s, and a
//! derived interface appends its own. On x86-64 Linux the calls are plain C calls (`pal.h`:
//! `STDMETHODCALLTYPE` is empty).

pub mod enumerators;
pub mod info;
pub mod metadata;

use std::ffi::c_void;
use std::ptr::NonNull;

/// What COM functions return: negative is failure.
pub type HResult = i32;

pub const S_OK: HResult = 0;
pub const S_FALSE: HResult = 1;
pub const E_NOINTERFACE: HResult = 0x8000_4002_u32 as i32;
pub const E_POINTER: HResult = 0x8000_4003_u32 as i32;
pub const E_FAIL: HResult = 0x8000_4005_u32 as i32;
pub const E_OUTOFMEMORY: HResult = 0x8007_000e_u32 as i32;
pub const CLASS_E_NOAGGREGATION: HResult = 0x8004_0110_u32 as i32;
pub const CLASS_E_CLASSNOTAVAILABLE: HResult = 0x8004_0111_u32 as i32;
/// CORPROF_E_PROFILER_ALREADY_ACTIVE (corerror.xml).
pub const ALREADY_ACTIVE: HResult = 0x8013_136a_u32 as i32;

/// An interface or class identity, in memory order of a Windows `GUID`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guid {
    pub first: u32,
    pub second: u16,
    pub third: u16,
    pub rest: [u8; 8],
}

impl Guid {
    /// From the usual text form, read as one number of 128 bits.
    pub const fn new(text: u128) -> Guid {
        Guid {
            first: (text >> 96) as u32,
            second: (text >> 80) as u16,
            third: (text >> 64) as u16,
            rest: (text as u64).to_be_bytes(),
        }
    }
}

pub const IUNKNOWN: Guid = Guid::new(0x00000000_0000_0000_c000_000000000046);
pub const ICLASSFACTORY: Guid = Guid::new(0x00000001_0000_0000_c000_000000000046);

/// An interface pointer of the runtime's. It does not count references by itself.
#[derive(Clone, Copy)]
pub struct Interface {
    pointer: NonNull<c_void>,
}

// SAFETY: the interfaces used here are free threaded (corprof.idl, "uses the free threaded
// model"); metadata importers lock inside (md/compiler/regmeta.h).
unsafe impl Send for Interface {}
// SAFETY: as above.
unsafe impl Sync for Interface {}

impl Interface {
    /// # Safety
    /// `pointer` is null or a live interface pointer.
    pub unsafe fn from_raw(pointer: *mut c_void) -> Option<Interface> {
        NonNull::new(pointer).map(|pointer| Interface { pointer })
    }

    pub fn raw(self) -> *mut c_void {
        self.pointer.as_ptr()
    }

    /// The function in a slot of the table.
    ///
    /// # Safety
    /// The interface has this slot, and `F` is the type of the function in it.
    #[inline]
    pub unsafe fn slot<F: Copy>(self, slot: usize) -> F {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        // SAFETY: a live interface begins with a pointer to its table, and the caller promises
        // that the table has this slot with this type.
        unsafe {
            let table = *self.pointer.as_ptr().cast::<*const usize>();
            std::mem::transmute_copy(&*table.add(slot))
        }
    }

    /// Another interface of the same object, counted.
    pub fn query(self, identity: &Guid) -> Option<Interface> {
        type Query = unsafe extern "C" fn(*mut c_void, *const Guid, *mut *mut c_void) -> HResult;
        let mut found = std::ptr::null_mut();
        // SAFETY: slot 0 of every interface is QueryInterface.
        let result = unsafe { self.slot::<Query>(0)(self.raw(), identity, &mut found) };
        if result < 0 {
            return None;
        }
        // SAFETY: success gives a live, counted pointer.
        unsafe { Interface::from_raw(found) }
    }

    /// Releases one reference.
    pub fn release(self) {
        type Release = unsafe extern "C" fn(*mut c_void) -> u32;
        // SAFETY: slot 2 of every interface is Release.
        unsafe { self.slot::<Release>(2)(self.raw()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_has_the_memory_order_of_windows() {
        let guid = Guid::new(0x28b5557d_3f3f_48b4_90b2_5f9eea2f6c48);
        assert_eq!(guid.first, 0x28b5557d);
        assert_eq!((guid.second, guid.third), (0x3f3f, 0x48b4));
        assert_eq!(guid.rest, [0x90, 0xb2, 0x5f, 0x9e, 0xea, 0x2f, 0x6c, 0x48]);
    }
}
