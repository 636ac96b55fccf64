//! The runtime's interface for profilers: `ICorProfilerInfo` to `ICorProfilerInfo15`.
//!
//! Slot numbers follow the declarations in corprof.idl, one interface after the other; each
//! method here names the interface that brought its slot. **Invariant:** a slot is called only when
//! the interface that brought it was obtained: above it the table ends, and a call would crash.

use std::ffi::c_void;

use super::{Guid, HResult, Interface};

/// The interfaces, the newest first.
const IDENTITIES: [(u32, Guid); 13] = [
    (15, Guid::new(0xb446462d_bd22_41dd_872d_dc714c49eb56)),
    (14, Guid::new(0xf460e352_d76d_4fe9_835f_f6af9d6e862d)),
    (13, Guid::new(0x6e6c7ee2_0701_4ec2_9d29_2e8733b66934)),
    (12, Guid::new(0x27b24ccd_1cb1_47c5_96ee_98190dc30959)),
    (11, Guid::new(0x06398876_8987_4154_b621_40a00d6e4d04)),
    (10, Guid::new(0x2f1b5152_c869_40c9_aa5f_3abe026bd720)),
    (9, Guid::new(0x008170db_f8cc_4796_9a51_dc8aa0b47012)),
    (8, Guid::new(0xc5ac80a6_782e_4716_8044_39598c60cfbf)),
    (7, Guid::new(0x9aeecc0d_63e0_4187_8c00_e312f503f663)),
    (6, Guid::new(0xf30a070d_bffb_46a7_b1d8_8781ef7b698a)),
    (5, Guid::new(0x07602928_ce38_4b83_81e7_74adaf781214)),
    (4, Guid::new(0x0d8fdcaa_6257_47bf_b1bf_94dac88466ee)),
    (3, Guid::new(0xb555ed4f_452a_4e54_8b39_b5360bad32a0)),
];

/// The oldest interface the bridge works with: .NET Core 2.0 and 3.x have 8 and 9 or more.
const OLDEST: u32 = 5;

/// Marks the end of an address range of code.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CodeRange {
    pub start: usize,
    pub size: usize,
}

/// `COR_DEBUG_IL_TO_NATIVE_MAP` (corprof.idl).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct IlToNative {
    pub il: u32,
    pub native_start: u32,
    pub native_end: u32,
}

/// The result of `GetFunctionInfo2`. `class` is 0 when it needs an exact frame to be known.
#[derive(Clone, Copy, Default, Debug)]
pub struct FunctionInfo {
    pub class: usize,
    pub module: usize,
    pub token: u32,
    pub arguments: u32,
}

/// The result of `GetModuleInfo2`; the path goes to the caller's buffer.
#[derive(Clone, Copy, Default, Debug)]
pub struct ModuleInfo {
    pub base: usize,
    pub path_units: u32,
    pub assembly: usize,
    pub flags: u32,
}

/// The result of `GetClassIDInfo2`.
#[derive(Clone, Copy, Default, Debug)]
pub struct ClassInfo {
    pub module: usize,
    pub token: u32,
    pub arguments: u32,
}

/// `COR_FIELD_OFFSET` (cor.h).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct FieldPlace {
    pub token: u32,
    pub offset: u32,
}

/// `COR_PRF_EVENTPIPE_PROVIDER_CONFIG` (corprof.idl).
#[repr(C)]
#[derive(Debug)]
pub struct Provider {
    pub name: *const u16,
    pub keywords: u64,
    pub level: u32,
    pub filter: *const u16,
}

/// A dynamic method as the runtime knows it. The signature lives as long as the method.
#[derive(Clone, Copy)]
pub struct DynamicFunction {
    pub module: usize,
    pub signature: *const u8,
    pub signature_size: u32,
    pub name_units: u32,
}

/// `StackSnapshotCallback` (corprof.idl): function, address, frame, size of the context, context, data.
pub type TakeFrame =
    unsafe extern "C" fn(usize, usize, usize, u32, *const u8, *mut c_void) -> HResult;

/// The runtime's info interface and how new it is.
#[derive(Clone, Copy)]
pub struct Info {
    interface: Interface,
    version: u32,
}

/// Calls a slot, or returns `None` when the interface does not have it.
macro_rules! call {
    ($self:ident, $version:literal, $slot:literal, ($($type:ty),*), $($argument:expr),*) => {{
        if $self.version < $version {
            None
        } else {
            // SAFETY: the interface that brought this slot was obtained, the types are those of
            // corprof.idl, and every out pointer is to a local or to a slice with its length.
            Some(unsafe {
                $self
                    .interface
                    .slot::<unsafe extern "C" fn(*mut c_void, $($type),*) -> HResult>($slot)(
                        $self.interface.raw(), $($argument),*
                    )
            })
        }
    }};
}

/// Whether a call was made and succeeded.
fn good(result: Option<HResult>) -> Option<()> {
    (result? >= 0).then_some(())
}

impl Info {
    /// The newest info interface of the object that the runtime hands over.
    ///
    /// # Safety
    /// `unknown` is null or a live interface pointer.
    pub unsafe fn obtain(unknown: *mut c_void) -> Option<Info> {
        // SAFETY: passed on from the caller.
        let unknown = unsafe { Interface::from_raw(unknown) }?;
        IDENTITIES.iter().filter(|(version, _)| *version >= OLDEST).find_map(|(version, guid)| {
            Some(Info { interface: unknown.query(guid)?, version: *version })
        })
    }

    pub fn version(self) -> u32 {
        self.version
    }

    /// Releases the reference. No copy of this value may be used afterwards.
    pub fn release(self) {
        self.interface.release();
    }

    // ICorProfilerInfo

    pub fn class_of_object(self, object: usize) -> Option<usize> {
        let mut class = 0;
        good(call!(self, 1, 3, (usize, *mut usize), object, &mut class))?;
        (class != 0).then_some(class)
    }

    /// Of an array the class of its elements, and its rank; `None` for every other class.
    pub fn array_element(self, class: usize) -> Option<(usize, u32)> {
        let (mut kind, mut element, mut rank) = (0u32, 0usize, 0u32);
        let result = call!(
            self,
            1,
            11,
            (usize, *mut u32, *mut usize, *mut u32),
            class,
            &mut kind,
            &mut element,
            &mut rank
        );
        // S_FALSE: it is none.
        (result == Some(super::S_OK) && element != 0).then_some((element, rank))
    }

    pub fn thread_os_id(self, thread: usize) -> Option<u32> {
        let mut id = 0;
        good(call!(self, 1, 12, (usize, *mut u32), thread, &mut id))?;
        Some(id)
    }

    pub fn current_thread(self) -> Option<usize> {
        let mut thread = 0;
        good(call!(self, 1, 13, (*mut usize), &mut thread))?;
        (thread != 0).then_some(thread)
    }

    pub fn module_metadata(self, module: usize, identity: &Guid) -> Option<Interface> {
        const OF_READ: u32 = 0;
        let mut found: *mut c_void = std::ptr::null_mut();
        good(call!(
            self,
            1,
            21,
            (usize, u32, *const Guid, *mut *mut c_void),
            module,
            OF_READ,
            identity,
            &mut found
        ))?;
        // SAFETY: success gives a counted interface, or null for a module without metadata.
        unsafe { Interface::from_raw(found) }
    }

    /// Name of an AppDomain into `name`; the count excludes the NUL.
    pub fn app_domain_name(self, app_domain: usize, name: &mut [u16]) -> Option<usize> {
        let mut units = 0;
        let mut process = 0;
        good(call!(
            self,
            1,
            25,
            (usize, u32, *mut u32, *mut u16, *mut usize),
            app_domain,
            length(name),
            &mut units,
            name.as_mut_ptr(),
            &mut process
        ))?;
        Some(without_nul(units, name))
    }

    /// Name of an assembly into `name`; the count excludes the NUL.
    pub fn assembly_name(self, assembly: usize, name: &mut [u16]) -> Option<usize> {
        let mut units = 0;
        let (mut app_domain, mut module) = (0, 0);
        good(call!(
            self,
            1,
            26,
            (usize, u32, *mut u32, *mut u16, *mut usize, *mut usize),
            assembly,
            length(name),
            &mut units,
            name.as_mut_ptr(),
            &mut app_domain,
            &mut module
        ))?;
        Some(without_nul(units, name))
    }

    // ICorProfilerInfo2

    /// Calls back for each managed frame of the calling thread, the innermost first, until that returns
    /// something other than `S_OK`.
    pub fn snapshot_of_own_stack(self, take: TakeFrame, data: *mut c_void) -> HResult {
        // Without the registers of each frame, and from the innermost on.
        let (thread, flags, context, size) = (0usize, 0u32, std::ptr::null_mut(), 0u32);
        call!(
            self,
            2,
            36,
            (usize, TakeFrame, u32, *mut c_void, *mut u8, u32),
            thread,
            take,
            flags,
            data,
            context,
            size
        )
        .unwrap_or(super::E_FAIL)
    }

    /// Class, module, token and the classes of the method's own type arguments.
    pub fn function_info(self, function: usize, arguments: &mut [usize]) -> Option<FunctionInfo> {
        let mut info = FunctionInfo::default();
        good(call!(
            self,
            2,
            38,
            (usize, usize, *mut usize, *mut usize, *mut u32, u32, *mut u32, *mut usize),
            function,
            0,
            &mut info.class,
            &mut info.module,
            &mut info.token,
            length(arguments),
            &mut info.arguments,
            arguments.as_mut_ptr()
        ))?;
        Some(info)
    }

    /// Module, token and the classes of the type arguments of a class.
    pub fn class_info(self, class: usize, arguments: &mut [usize]) -> Option<ClassInfo> {
        let mut info = ClassInfo::default();
        let mut parent = 0;
        good(call!(
            self,
            2,
            41,
            (usize, *mut usize, *mut u32, *mut usize, u32, *mut u32, *mut usize),
            class,
            &mut info.module,
            &mut info.token,
            &mut parent,
            length(arguments),
            &mut info.arguments,
            arguments.as_mut_ptr()
        ))?;
        Some(info)
    }

    /// The base class; `None` for `System.Object`, and for what is no class.
    pub fn base_class(self, class: usize) -> Option<usize> {
        let (mut module, mut token, mut parent, mut arguments) = (0, 0, 0, 0);
        good(call!(
            self,
            2,
            41,
            (usize, *mut usize, *mut u32, *mut usize, u32, *mut u32, *mut usize),
            class,
            &mut module,
            &mut token,
            &mut parent,
            0,
            &mut arguments,
            std::ptr::null_mut()
        ))?;
        (parent != 0).then_some(parent)
    }

    /// The fields of a class itself and their places in an object: how many, the first ones into
    /// `fields`.
    pub fn class_fields(self, class: usize, fields: &mut [FieldPlace]) -> Option<usize> {
        let (mut count, mut size) = (0, 0);
        good(call!(
            self,
            2,
            40,
            (usize, *mut FieldPlace, u32, *mut u32, *mut u32),
            class,
            fields.as_mut_ptr(),
            u32::try_from(fields.len()).unwrap_or(u32::MAX),
            &mut count,
            &mut size
        ))?;
        Some((count as usize).min(fields.len()))
    }

    pub fn thread_app_domain(self, thread: usize) -> Option<usize> {
        let mut app_domain = 0;
        good(call!(self, 2, 48, (usize, *mut usize), thread, &mut app_domain))?;
        Some(app_domain)
    }

    // ICorProfilerInfo3

    /// Asks the runtime to unload the profiler once no callback runs any more.
    pub fn request_detach(self, milliseconds: u32) -> HResult {
        call!(self, 3, 58, (u32), milliseconds).unwrap_or(super::E_FAIL)
    }

    /// Where the length and the units of a string object lie in it.
    pub fn string_places(self) -> Option<(u32, u32)> {
        let (mut length, mut units) = (0, 0);
        good(call!(self, 3, 60, (*mut u32, *mut u32), &mut length, &mut units))?;
        Some((length, units))
    }

    pub fn modules(self) -> Option<Interface> {
        let mut list: *mut c_void = std::ptr::null_mut();
        good(call!(self, 3, 66, (*mut *mut c_void), &mut list))?;
        // SAFETY: success gives a counted enumerator.
        unsafe { Interface::from_raw(list) }
    }

    /// Major, minor and build number; the text, which goes into `text`, and its length. 3.1 reports
    /// 4.0.30319.
    pub fn runtime_version(self, text: &mut [u16]) -> Option<([u16; 3], usize)> {
        let mut numbers = [0u16; 3];
        let [major, minor, build] = &mut numbers;
        let mut instance = 0u16;
        let mut kind = 0u32;
        let mut fix = 0u16;
        let mut units = 0u32;
        good(call!(
            self,
            3,
            67,
            (*mut u16, *mut u32, *mut u16, *mut u16, *mut u16, *mut u16, u32, *mut u32, *mut u16),
            &mut instance,
            &mut kind,
            major,
            minor,
            build,
            &mut fix,
            length(text),
            &mut units,
            text.as_mut_ptr()
        ))?;
        Some((numbers, without_nul(units, text)))
    }

    /// The AppDomains a module is loaded in: how many, the first ones into `app_domains`.
    pub fn app_domains_of_module(self, module: usize, app_domains: &mut [usize]) -> Option<usize> {
        let mut count = 0;
        good(call!(
            self,
            3,
            69,
            (usize, u32, *mut u32, *mut usize),
            module,
            length(app_domains),
            &mut count,
            app_domains.as_mut_ptr()
        ))?;
        Some((count as usize).min(app_domains.len()))
    }

    pub fn module_info(self, module: usize, path: &mut [u16]) -> Option<ModuleInfo> {
        let mut info = ModuleInfo::default();
        good(call!(
            self,
            3,
            70,
            (usize, *mut usize, u32, *mut u32, *mut u16, *mut usize, *mut u32),
            module,
            &mut info.base,
            length(path),
            &mut info.path_units,
            path.as_mut_ptr(),
            &mut info.assembly,
            &mut info.flags
        ))?;
        info.path_units = without_nul(info.path_units, path) as u32;
        Some(info)
    }

    // ICorProfilerInfo4

    pub fn threads(self) -> Option<Interface> {
        let mut list: *mut c_void = std::ptr::null_mut();
        good(call!(self, 4, 71, (*mut *mut c_void), &mut list))?;
        // SAFETY: success gives a counted enumerator.
        unsafe { Interface::from_raw(list) }
    }

    /// Code ranges of one IL version of a function: how many there are, the first into `ranges`.
    pub fn code_of_version(
        self,
        function: usize,
        rejit: usize,
        ranges: &mut [CodeRange],
    ) -> Option<usize> {
        let mut count = 0;
        good(call!(
            self,
            4,
            75,
            (usize, usize, u32, *mut u32, *mut CodeRange),
            function,
            rejit,
            length(ranges),
            &mut count,
            ranges.as_mut_ptr()
        ))?;
        Some((count as usize).min(ranges.len()))
    }

    pub fn jitted_functions(self) -> Option<Interface> {
        let mut list: *mut c_void = std::ptr::null_mut();
        good(call!(self, 4, 79, (*mut *mut c_void), &mut list))?;
        // SAFETY: success gives a counted enumerator.
        unsafe { Interface::from_raw(list) }
    }

    // ICorProfilerInfo5

    /// Sets which events are delivered. One refused flag refuses all of them.
    pub fn set_event_mask(self, low: u32, high: u32) -> HResult {
        call!(self, 5, 82, (u32, u32), low, high).unwrap_or(super::E_FAIL)
    }

    // ICorProfilerInfo8, with older ways where it is missing

    /// The function whose code is at an address, and its rejit id.
    pub fn function_at(self, address: u64) -> Option<(usize, usize)> {
        let (mut function, mut rejit) = (0, 0);
        let address = address as usize;
        if self.version >= 8 {
            good(call!(
                self,
                8,
                88,
                (usize, *mut usize, *mut usize),
                address,
                &mut function,
                &mut rejit
            ))?;
        } else {
            good(call!(
                self,
                4,
                76,
                (usize, *mut usize, *mut usize),
                address,
                &mut function,
                &mut rejit
            ))?;
        }
        (function != 0).then_some((function, rejit))
    }

    pub fn is_dynamic(self, function: usize) -> bool {
        let mut dynamic = 0i32;
        good(call!(self, 8, 87, (usize, *mut i32), function, &mut dynamic)).is_some()
            && dynamic != 0
    }

    pub fn dynamic_function(self, function: usize, name: &mut [u16]) -> Option<DynamicFunction> {
        let mut found = DynamicFunction {
            module: 0,
            signature: std::ptr::null(),
            signature_size: 0,
            name_units: 0,
        };
        good(call!(
            self,
            8,
            89,
            (usize, *mut usize, *mut *const u8, *mut u32, u32, *mut u32, *mut u16),
            function,
            &mut found.module,
            &mut found.signature,
            &mut found.signature_size,
            length(name),
            &mut found.name_units,
            name.as_mut_ptr()
        ))?;
        found.name_units = without_nul(found.name_units, name) as u32;
        Some(found)
    }

    // ICorProfilerInfo9

    /// Where the code of one IL version of a function starts, one entry for each time it was
    /// compiled. With room for fewer than there are: how many there are.
    pub fn code_starts(
        self,
        function: usize,
        rejit: usize,
        starts: &mut [usize],
    ) -> Result<usize, usize> {
        let mut count = 0;
        let result = call!(
            self,
            9,
            90,
            (usize, usize, u32, *mut u32, *mut usize),
            function,
            rejit,
            length(starts),
            &mut count,
            starts.as_mut_ptr()
        );
        let count = count as usize;
        if good(result).is_some() && count <= starts.len() { Ok(count) } else { Err(count) }
    }

    pub fn il_map_at(self, start: usize, entries: &mut [IlToNative]) -> Option<usize> {
        let mut count = 0;
        good(call!(
            self,
            9,
            91,
            (usize, u32, *mut u32, *mut IlToNative),
            start,
            length(entries),
            &mut count,
            entries.as_mut_ptr()
        ))?;
        Some(count as usize)
    }

    // ICorProfilerInfo12

    /// Opens a session of the runtime's events.
    pub fn start_event_session(self, provider: &Provider) -> Option<u64> {
        let mut session = 0;
        good(call!(
            self,
            12,
            101,
            (u32, *const Provider, i32, *mut u64),
            1,
            provider,
            0,
            &mut session
        ))?;
        (session != 0).then_some(session)
    }

    pub fn stop_event_session(self, session: u64) -> Option<()> {
        good(call!(self, 12, 103, (u64), session))
    }

    /// The name of a provider of events into `name`; the count excludes the NUL.
    pub fn event_provider_name(self, provider: usize, name: &mut [u16]) -> Option<usize> {
        let mut units = 0;
        good(call!(
            self,
            12,
            105,
            (usize, u32, *mut u32, *mut u16),
            provider,
            length(name),
            &mut units,
            name.as_mut_ptr()
        ))?;
        Some(without_nul(units, name))
    }

    // ICorProfilerInfo13

    /// A handle to an object that does not keep it alive.
    pub fn weak_handle(self, object: usize) -> Option<usize> {
        const WEAK: u32 = 1;
        let mut handle = 0;
        good(call!(self, 13, 108, (usize, u32, *mut usize), object, WEAK, &mut handle))?;
        (handle > 1).then_some(handle)
    }

    pub fn destroy_handle(self, handle: usize) -> Option<()> {
        good(call!(self, 13, 109, (usize), handle))
    }

    /// The object of a handle; 0 when it is gone.
    pub fn object_of_handle(self, handle: usize) -> Option<usize> {
        let mut object = 0;
        good(call!(self, 13, 110, (usize, *mut usize), handle, &mut object))?;
        Some(object)
    }

    // ICorProfilerInfo9

    /// Code ranges of the code that starts at an address.
    pub fn code_at(self, start: usize, ranges: &mut [CodeRange]) -> Option<usize> {
        let mut count = 0;
        good(call!(
            self,
            9,
            92,
            (usize, u32, *mut u32, *mut CodeRange),
            start,
            length(ranges),
            &mut count,
            ranges.as_mut_ptr()
        ))?;
        Some((count as usize).min(ranges.len()))
    }
}

fn length<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
}

/// The runtime counts the NUL that ends a name.
fn without_nul(units: u32, buffer: &[u16]) -> usize {
    let units = (units as usize).min(buffer.len());
    match buffer.get(..units) {
        Some([.., 0]) => units - 1,
        _ => units,
    }
}
