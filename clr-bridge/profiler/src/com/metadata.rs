//! The metadata of one module: `IMetaDataImport2` and `IMetaDataTables` (cor.h).
//!
//! For modules whose metadata is not in an image ([`crate::metadata`]). Slot numbers follow the
//! declarations in cor.h: `IMetaDataImport` has slots 3 to 64, `IMetaDataImport2` 65 to 72,
//! `IMetaDataTables` 3 to 21.

use std::ffi::{CStr, c_char, c_void};

use super::{Guid, HResult, Interface};

const TABLES: Guid = Guid::new(0xd8f579ab_402d_4b8e_82d9_5d63b1065c68);
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

/// Columns of the tables that are read here (ECMA-335 II.22.37, II.22.38, II.22.15, II.22.20).
const TYPE_REF_TABLE: u32 = 0x01;
const TYPE_DEF_TABLE: u32 = 0x02;
const FIELD_TABLE: u32 = 0x04;
const GENERIC_PARAM_TABLE: u32 = 0x2a;

/// A type's name in two parts, as it stands in the string heap: see [`Importer::name_in_heap`].
#[derive(Clone, Copy)]
pub struct TypeName {
    pub namespace: &'static CStr,
    pub name: &'static CStr,
}

/// The reader of one module's metadata.
#[derive(Clone, Copy)]
pub struct Importer {
    import: Interface,
    tables: Interface,
}

macro_rules! call {
    ($interface:expr, $slot:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: both interfaces have every slot that is used here, the types are those of
        // cor.h, and every out pointer is null where that is allowed, or to a local or a slice.
        unsafe {
            $interface.slot::<unsafe extern "C" fn(*mut c_void, $($type),*) -> HResult>($slot)(
                $interface.raw(), $($argument),*
            )
        }
    }};
}

impl Importer {
    /// Takes the reference over.
    ///
    /// # Safety
    /// `import` is an `IMetaDataImport2`.
    pub unsafe fn new(import: Interface) -> Option<Importer> {
        match import.query(&TABLES) {
            Some(tables) => Some(Importer { import, tables }),
            None => {
                import.release();
                None
            }
        }
    }

    pub fn release(self) {
        self.tables.release();
        self.import.release();
    }

    #[inline(never)]
    fn column(self, table: u32, column: u32, row: u32) -> Option<u32> {
        let mut value = 0;
        let result =
            call!(self.tables, 13, (u32, u32, u32, *mut u32), table, column, row, &mut value);
        (result >= 0).then_some(value)
    }

    /// A text in the string heap; see [`Importer::name_in_heap`].
    #[inline(never)]
    fn string(self, index: u32) -> Option<&'static CStr> {
        let mut text: *const c_char = std::ptr::null();
        let result = call!(self.tables, 14, (u32, *mut *const c_char), index, &mut text);
        if result < 0 || text.is_null() {
            return None;
        }
        // SAFETY: as in `name_in_heap`.
        Some(unsafe { CStr::from_ptr(text) })
    }

    /// The module's version id.
    pub fn mvid(self) -> Option<[u8; 16]> {
        let mut units = 0;
        let mut mvid = [0u8; 16];
        let result = call!(
            self.import,
            10,
            (*mut u16, u32, *mut u32, *mut [u8; 16]),
            std::ptr::null_mut(),
            0,
            &mut units,
            &mut mvid
        );
        (result >= 0).then_some(mvid)
    }

    /// A type definition's name, and whether it is nested in another.
    pub fn type_def(self, token: u32) -> Option<(TypeName, bool)> {
        const VISIBILITY: u32 = 7;
        const NESTED_PUBLIC: u32 = 2;
        let row = row(token);
        let flags = self.column(TYPE_DEF_TABLE, 0, row)?;
        let name = self.string(self.column(TYPE_DEF_TABLE, 1, row)?)?;
        let namespace = self.string(self.column(TYPE_DEF_TABLE, 2, row)?)?;
        Some((TypeName { namespace, name }, flags & VISIBILITY >= NESTED_PUBLIC))
    }

    /// The token of what a type definition extends.
    pub fn base_type(self, token: u32) -> Option<u32> {
        self.column(TYPE_DEF_TABLE, 3, row(token))
    }

    /// A type reference's name, and the token of its scope.
    pub fn type_ref(self, token: u32) -> Option<(TypeName, u32)> {
        let row = row(token);
        let scope = self.column(TYPE_REF_TABLE, 0, row)?;
        let name = self.string(self.column(TYPE_REF_TABLE, 1, row)?)?;
        let namespace = self.string(self.column(TYPE_REF_TABLE, 2, row)?)?;
        Some((TypeName { namespace, name }, scope))
    }

    /// A field definition's name. Takes no lock, unlike [`Importer::name_in_heap`].
    pub fn field_name(self, token: u32) -> Option<&'static CStr> {
        self.string(self.column(FIELD_TABLE, 1, row(token))?)
    }

    /// The signature of a method definition.
    pub fn method_signature(self, token: u32) -> Option<&'static [u8]> {
        let (mut signature, mut size) = (std::ptr::null(), 0);
        self.method(token, std::ptr::null_mut(), &mut signature, &mut size)?;
        // SAFETY: as in `blob`.
        unsafe { blob(signature, size) }
    }

    /// The type that a method definition belongs to: a search through the table of types.
    pub fn method_parent(self, token: u32) -> Option<u32> {
        let mut parent = 0;
        self.method(token, &mut parent, std::ptr::null_mut(), std::ptr::null_mut())?;
        Some(parent)
    }

    /// Only what is asked for is looked up (md/compiler/regmeta_import.cpp, `GetMethodProps`).
    fn method(
        self,
        token: u32,
        parent: *mut u32,
        signature: *mut *const u8,
        size: *mut u32,
    ) -> Option<()> {
        let null = std::ptr::null_mut();
        let result = call!(
            self.import,
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
            parent,
            std::ptr::null_mut(),
            0,
            null,
            null,
            signature,
            size,
            null,
            null
        );
        (result >= 0).then_some(())
    }

    /// The blob of a type specification.
    pub fn type_spec(self, token: u32) -> Option<&'static [u8]> {
        let (mut start, mut size) = (std::ptr::null(), 0);
        let result =
            call!(self.import, 44, (u32, *mut *const u8, *mut u32), token, &mut start, &mut size);
        if result < 0 {
            return None;
        }
        // SAFETY: as in `blob`.
        unsafe { blob(start, size) }
    }

    /// The name of a definition as it stands in the string heap: UTF-8, for a type without its
    /// namespace. It lives as long as its module, or, where metadata is being emitted, until the
    /// next change.
    pub fn name_in_heap(self, token: u32) -> Option<&'static CStr> {
        let mut name: *const c_char = std::ptr::null();
        let result = call!(self.import, 45, (u32, *mut *const c_char), token, &mut name);
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
        let result = call!(self.import, 62, (u32, *mut u32), token, &mut enclosing);
        (result >= 0 && row(enclosing) != 0).then_some(enclosing)
    }

    /// Tokens of the generic parameters of a type or method, in no promised order.
    pub fn generic_parameters(self, owner: u32, tokens: &mut [u32]) -> usize {
        let mut list: *mut c_void = std::ptr::null_mut();
        let mut count = 0;
        let result = call!(
            self.import,
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
                self.import.slot::<unsafe extern "C" fn(*mut c_void, *mut c_void)>(3)(
                    self.import.raw(),
                    list,
                );
            }
        }
        if result < 0 { 0 } else { (count as usize).min(tokens.len()) }
    }

    /// Position and name of a generic parameter.
    pub fn generic_parameter(self, token: u32) -> Option<(u32, &'static CStr)> {
        let position = self.column(GENERIC_PARAM_TABLE, 0, row(token))?;
        let name = self.string(self.column(GENERIC_PARAM_TABLE, 3, row(token))?)?;
        Some((position, name))
    }
}

/// A blob in the module's heap.
///
/// # Safety
/// `start` is null, or `size` bytes from there are the module's, which is alive while one of its
/// methods is looked at. The caller copies at once.
unsafe fn blob(start: *const u8, size: u32) -> Option<&'static [u8]> {
    if start.is_null() {
        return None;
    }
    // SAFETY: passed on from the caller.
    Some(unsafe { std::slice::from_raw_parts(start, size as usize) })
}

fn length<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
}
