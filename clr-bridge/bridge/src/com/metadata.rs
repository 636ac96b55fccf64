//! The metadata of one module: `IMetaDataImport2` (cor.h).
//!
//! Names come as UTF-16 or, where the importer hands out its own heap, as UTF-8 in place. Slot numbers follow the
//! declarations in cor.h: `IMetaDataImport` has slots 3 to 64, `IMetaDataImport2` 65 to 72.

use std::ffi::{CStr, c_char, c_void};

use super::{Guid, HResult, Interface};

pub const IMPORT2: Guid = Guid::new(0xfce5efa0_8bba_4f8e_a036_8f2022b08466);

/// The parts of a token (corhdr.h, `CorTokenType`).
pub const TYPE_REF: u32 = 0x0100_0000;
pub const TYPE_DEF: u32 = 0x0200_0000;
pub const TYPE_SPEC: u32 = 0x1b00_0000;

pub const fn table(token: u32) -> u32 {
    token & 0xff00_0000
}

pub const fn row(token: u32) -> u32 {
    token & 0x00ff_ffff
}

/// A method definition's parent and signature. The signature lives as long as its module.
#[derive(Clone, Copy)]
pub struct MethodProperties {
    pub parent: u32,
    pub signature: *const u8,
    pub signature_size: u32,
}

/// The importer of one module.
#[derive(Clone, Copy)]
pub struct Importer {
    interface: Interface,
}

macro_rules! call {
    ($self:ident, $slot:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: an importer has every slot of IMetaDataImport2, the types are those of cor.h,
        // and every out pointer is null where that is allowed, or to a local or a slice.
        unsafe {
            $self.interface.slot::<unsafe extern "C" fn(*mut c_void, $($type),*) -> HResult>($slot)(
                $self.interface.raw(), $($argument),*
            )
        }
    }};
}

impl Importer {
    /// # Safety
    /// `interface` is an `IMetaDataImport2`.
    pub unsafe fn new(interface: Interface) -> Importer {
        Importer { interface }
    }

    pub fn release(self) {
        self.interface.release();
    }

    /// The module's version id.
    pub fn mvid(self) -> Option<[u8; 16]> {
        let mut units = 0;
        let mut mvid = [0u8; 16];
        let result = call!(
            self,
            10,
            (*mut u16, u32, *mut u32, *mut [u8; 16]),
            std::ptr::null_mut(),
            0,
            &mut units,
            &mut mvid
        );
        (result >= 0).then_some(mvid)
    }

    /// Full name (namespace and name) of a type definition into `name`: units without the NUL, and
    /// the token of what it extends.
    pub fn type_def(self, token: u32, name: &mut [u16]) -> Option<(usize, u32)> {
        let (mut units, mut flags, mut extends) = (0, 0, 0);
        let result = call!(
            self,
            12,
            (u32, *mut u16, u32, *mut u32, *mut u32, *mut u32),
            token,
            name.as_mut_ptr(),
            length(name),
            &mut units,
            &mut flags,
            &mut extends
        );
        (result >= 0).then(|| (without_nul(units, name), extends))
    }

    /// Full name of a type reference into `name`, and the token of its scope.
    pub fn type_ref(self, token: u32, name: &mut [u16]) -> Option<(usize, u32)> {
        let (mut scope, mut units) = (0, 0);
        let result = call!(
            self,
            14,
            (u32, *mut u32, *mut u16, u32, *mut u32),
            token,
            &mut scope,
            name.as_mut_ptr(),
            length(name),
            &mut units
        );
        (result >= 0).then(|| (without_nul(units, name), scope))
    }

    /// Parent type and signature of a method definition.
    pub fn method(self, token: u32) -> Option<MethodProperties> {
        let mut properties =
            MethodProperties { parent: 0, signature: std::ptr::null(), signature_size: 0 };
        let null = std::ptr::null_mut();
        let result = call!(
            self,
            30,
            (
                u32,
                *mut u32,
                *mut u16,
                u32,
                *mut u32,
                *mut u32,
                *mut *const u8,
                *mut u32,
                *mut u32,
                *mut u32
            ),
            token,
            &mut properties.parent,
            std::ptr::null_mut(),
            0,
            null,
            null,
            &mut properties.signature,
            &mut properties.signature_size,
            null,
            null
        );
        (result >= 0).then_some(properties)
    }

    /// The blob of a type specification. It lives as long as its module.
    pub fn type_spec(self, token: u32) -> Option<(*const u8, u32)> {
        let (mut blob, mut size) = (std::ptr::null(), 0);
        let result = call!(self, 44, (u32, *mut *const u8, *mut u32), token, &mut blob, &mut size);
        (result >= 0 && !blob.is_null()).then_some((blob, size))
    }

    /// The name of a definition as it stands in the string heap: UTF-8, for a type without its
    /// namespace. It lives as long as its module, or, where metadata is being emitted, until the next
    /// change.
    pub fn name_in_heap(self, token: u32) -> Option<&'static CStr> {
        let mut name: *const c_char = std::ptr::null();
        let result = call!(self, 45, (u32, *mut *const c_char), token, &mut name);
        if result < 0 || name.is_null() {
            return None;
        }
        // SAFETY: the importer's string heap is NUL-terminated (md/inc/stgpool.h) and the module
        // that owns it is alive while one of its methods is looked at. The caller copies at once.
        Some(unsafe { CStr::from_ptr(name) })
    }

    /// The type that encloses a nested one.
    pub fn enclosing_type(self, token: u32) -> Option<u32> {
        let mut enclosing = 0;
        let result = call!(self, 62, (u32, *mut u32), token, &mut enclosing);
        (result >= 0 && row(enclosing) != 0).then_some(enclosing)
    }

    /// Tokens of the generic parameters of a type or method, in no promised order.
    pub fn generic_parameters(self, owner: u32, tokens: &mut [u32]) -> usize {
        let mut list: *mut c_void = std::ptr::null_mut();
        let mut count = 0;
        let result = call!(
            self,
            65,
            (*mut *mut c_void, u32, *mut u32, u32, *mut u32),
            &mut list,
            owner,
            tokens.as_mut_ptr(),
            length(tokens),
            &mut count
        );
        if !list.is_null() {
            // SAFETY: slot 3 is CloseEnum, and the list came from this importer.
            unsafe {
                self.interface.slot::<unsafe extern "C" fn(*mut c_void, *mut c_void)>(3)(
                    self.interface.raw(),
                    list,
                );
            }
        }
        if result < 0 { 0 } else { (count as usize).min(tokens.len()) }
    }

    /// Position and name of a generic parameter; the name goes into `name`.
    pub fn generic_parameter(self, token: u32, name: &mut [u16]) -> Option<(u32, usize)> {
        let (mut position, mut flags, mut owner, mut reserved, mut units) = (0, 0, 0, 0, 0);
        let result = call!(
            self,
            66,
            (u32, *mut u32, *mut u32, *mut u32, *mut u32, *mut u16, u32, *mut u32),
            token,
            &mut position,
            &mut flags,
            &mut owner,
            &mut reserved,
            name.as_mut_ptr(),
            length(name),
            &mut units
        );
        (result >= 0).then(|| (position, without_nul(units, name)))
    }
}

fn length<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
}

/// The importer counts the NUL that ends a name.
fn without_nul(units: u32, buffer: &[u16]) -> usize {
    let units = (units as usize).min(buffer.len());
    match buffer.get(..units) {
        Some([.., 0]) => units - 1,
        _ => units,
    }
}
