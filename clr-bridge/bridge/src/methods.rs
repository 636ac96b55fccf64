//! From a function of the runtime's to `Method` records.
//!
//! The callbacks that say a method was compiled end here, and so do the enumeration of what was
//! compiled before and the answers to requests.

use strata_bridge_layout::field::CodeRange;
use strata_bridge_layout::record::{Method, MethodKind, MethodUnload, Tier};

use crate::com::info::{CodeRange as NativeRange, FunctionInfo};
use crate::com::metadata::row;
use crate::il_maps;
use crate::image::Image;
use crate::known::{Known, Module, Owner};
use crate::metadata::Metadata;
use crate::modules;
use crate::session::Session;
use crate::text::Text;
use crate::types::{self, MOST_PARAMETERS, ParameterNames};

/// Pieces of one compilation that are told: the runtime splits code in two, hot and cold.
const MOST_RANGES: usize = 8;
/// Compilations of one function that are told at once.
const MOST_COMPILATIONS: usize = 32;

/// First bytes of code in a record: a prologue ends well within. The prologue of a method that is
/// entered in the middle of a loop copies its frame, and may be long.
const CODE_BYTES: usize = 96;
const OSR_CODE_BYTES: usize = 4096;

/// Why code is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was compiled, now or before.
    Compiled,
    /// Somebody asked for an address in it.
    Asked { ip: u64 },
}

impl Reason {
    fn asked_ip(self) -> u64 {
        match self {
            Reason::Asked { ip } => ip,
            Reason::Compiled => 0,
        }
    }
}

/// Tells every compilation of a function that was not told before.
pub fn tell_compiled(session: &Session, function: usize, rejit: usize) {
    let mut starts = [0; MOST_COMPILATIONS];
    let starts = code_starts(session, function, rejit, &mut starts);
    if starts.is_empty() || all_told(session, starts) {
        return;
    }
    let Some(named) = Named::of(session, function) else { return };
    for start in starts {
        if session.known().enter_code(*start, function, &named.module) {
            let mut ranges = [NativeRange::default(); MOST_RANGES];
            let ranges = code_ranges(session, function, rejit, *start, &mut ranges);
            named.tell(session, rejit, ranges, Reason::Compiled);
            if session.wants_il_maps() {
                il_maps::tell_one(session, function, rejit, *start);
            }
        }
    }
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The answer is in the log, or was lost on the way there.
    Told { written: bool },
    /// The runtime knows no method there.
    NotFound,
    /// The runtime may not be asked about this address.
    Refused,
}

/// Tells the code at an address.
pub fn tell_asked(session: &Session, ip: u64, running: bool) -> Asked {
    if !may_ask(&session.known(), ip as usize, running) {
        return Asked::Refused;
    }
    match tell_found(session, ip) {
        Some(written) => Asked::Told { written },
        None => Asked::NotFound,
    }
}

fn tell_found(session: &Session, ip: u64) -> Option<bool> {
    let (function, rejit) = session.info().function_at(ip)?;
    if session.info().is_dynamic(function) {
        return tell_dynamic(session, function, Reason::Asked { ip });
    }
    let named = Named::of(session, function)?;
    let mut starts = [0; MOST_COMPILATIONS];
    for start in code_starts(session, function, rejit, &mut starts) {
        let mut ranges = [NativeRange::default(); MOST_RANGES];
        let ranges = code_ranges(session, function, rejit, *start, &mut ranges);
        if ranges.iter().any(|range| contains(range, ip)) {
            session.known().enter_code(*start, function, &named.module);
            return Some(named.tell(session, rejit, ranges, Reason::Asked { ip }));
        }
    }
    None
}

/// Whether the runtime can be asked which function is at an address.
///
/// In code that was compiled ahead it goes from the address down to the next method that has been
/// prepared to run, and does not look where it ends (src/coreclr/vm/codeman.cpp,
/// `ReadyToRunJitManager::JitCodeToMethodInfo`): when there is none below, it leaves its table, and
/// 3.1 and 9 crash. So it is asked about such an address only when a method at or below it is known to
/// have been prepared; when a thread is `running` there; or when the bytes before it (or one byte
/// further, for askers that look up the call) are a call: then it is an address to return to,
/// and whatever left it on a stack has run. What the runtime finds counts only if it contains the address.
fn may_ask(known: &Known, ip: usize, running: bool) -> bool {
    if running {
        return true;
    }
    let Some(module) = known.module_at(ip) else { return !known.has_components() };
    let Some(code) = module.ready_to_run else { return true };
    let above = !code.splits_methods && module.prepared != 0 && ip >= module.prepared;
    let is_return = |address| {
        // SAFETY: the runtime has loaded the module's image there, and runs its code.
        let before = unsafe { Image::code_before(module.base, address) };
        before.is_some_and(|before| follows_call(before, address, module))
    };
    above || is_return(ip) || ip.checked_add(1).is_some_and(is_return)
}

/// Whether the code before an address is a call. One that says where it goes, or where it finds that,
/// stays within the image: compiled code calls everything else through the image's own cells.
fn follows_call(code: &[u8; 8], address: usize, module: &Module) -> bool {
    let target = |bytes: [u8; 4]| {
        let offset = i32::from_le_bytes(bytes) as isize;
        module.contains(address.wrapping_add_signed(offset))
    };
    match *code {
        [.., 0xe8, a, b, c, d] => target([a, b, c, d]),
        [.., 0xff, 0x15, a, b, c, d] => target([a, b, c, d]),
        _ => ends_with_call(code),
    }
}

/// Whether code ends with a call through a register or through memory (Intel SDM, volume 2, CALL).
fn ends_with_call(code: &[u8; 8]) -> bool {
    // Operation /2 in the second byte: which operand, and how many bytes follow.
    let through = |modrm: u8, length: usize| {
        let (mode, operation, register) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let index = usize::from(mode != 3 && register == 4);
        let offset = match (mode, register) {
            (0, 5) => 4,
            (0 | 3, _) => 0,
            (1, _) => 1,
            _ => 4,
        };
        operation == 2 && length == 2 + index + offset
    };
    (2..=7).any(|length| match code.get(8 - length..) {
        Some([0xff, modrm, ..]) => through(*modrm, length),
        _ => false,
    })
}

/// Tells a method that has no metadata: a `DynamicMethod`, or glue that the runtime made.
pub fn tell_dynamic(session: &Session, function: usize, reason: Reason) -> Option<bool> {
    let mut units = [0u16; 1024];
    let dynamic = session.info().dynamic_function(function, &mut units)?;
    let mut name = Text::<4096>::new();
    name.push_units(units.get(..dynamic.name_units as usize).unwrap_or_default());
    let kind = match reason {
        Reason::Asked { .. } => MethodKind::Resolved,
        Reason::Compiled if name.as_str().starts_with("IL_STUB") => MethodKind::Stub,
        Reason::Compiled => MethodKind::Dynamic,
    };
    let module = session.module(dynamic.module);
    let mut ranges = [NativeRange::default(); MOST_RANGES];
    let count = session.info().code_of_version(function, 0, &mut ranges).unwrap_or(0);
    let ranges = ranges.get(..count).unwrap_or_default();
    let first = ranges.first()?;
    // Without memory the end of it is told without its start.
    let _ = session.known().enter_dynamic(function, first.start);
    let mut pieces = [NO_CODE; MOST_RANGES];
    Some(session.write(&Method {
        function: function as u64,
        rejit: 0,
        module: dynamic.module as u64,
        type_token: 0,
        token: 0,
        kind: kind as u8,
        tier: Tier::Unknown as u8,
        app_domain: module.map_or(0, |module| module.app_domain as u64),
        name: name.as_str(),
        generic_parameters: Default::default(),
        // SAFETY: the runtime keeps a dynamic method's signature as long as the method, and its
        // code is being published or was found to be running.
        signature: unsafe { blob(dynamic.signature, dynamic.signature_size) },
        class_arguments: Default::default(),
        method_arguments: Default::default(),
        asked_ip: reason.asked_ip(),
        ranges: pieces_of(ranges, &mut pieces).into(),
    }))
}

/// A dynamic method was collected.
pub fn tell_dynamic_end(session: &Session, function: usize) {
    let start = session.known().forget_dynamic(function);
    if let Some(start) = start {
        session.write(&MethodUnload { function: function as u64, start: start as u64 });
    }
}

/// A function with everything that all its compilations share.
struct Named {
    function: usize,
    info: FunctionInfo,
    arguments: [usize; MOST_PARAMETERS],
    class_arguments: [usize; MOST_PARAMETERS],
    class_argument_count: usize,
    module: Module,
    parent: u32,
    signature: &'static [u8],
    name: &'static str,
    parameters: ParameterNames,
}

impl Named {
    /// Looks up a function, and tells the types that its records will refer to.
    fn of(session: &Session, function: usize) -> Option<Named> {
        let mut arguments = [0; MOST_PARAMETERS];
        let mut info = session.info().function_info(function, &mut arguments)?;
        let known = session.known();
        let (module, owner) = (known.module(info.module), known.owner(info.class));
        drop(known);
        if info.class != 0 {
            session.canonical().prove(function, info.class, owner.is_none());
        }
        let module = match module {
            Some(module) => module,
            None => session.module(info.module)?,
        };
        let module = modules::with_token(session, module, info.token)?;
        let metadata = module.metadata.as_ref()?;
        let signature = metadata.method_signature(info.token)?;
        let Owner { token: parent, generic } = match owner {
            Some(owner) => owner,
            None => find_owner(session, metadata, function, &mut info)?,
        };
        let mut named = Named {
            function,
            info,
            arguments,
            class_arguments: [0; MOST_PARAMETERS],
            class_argument_count: 0,
            module,
            parent,
            signature,
            name: metadata.method_name(info.token).unwrap_or_default(),
            parameters: ParameterNames::none(),
        };
        types::tell_all(session, &module, signature, parent);
        if generic && info.class != 0 {
            named.learn_class_arguments(session);
        }
        const GENERIC: u8 = 0x10;
        if signature.first().is_some_and(|first| first & GENERIC != 0) {
            named.parameters.read(metadata, info.token);
            for argument in named.method_arguments() {
                types::learn_class(session, *argument);
            }
        }
        Some(named)
    }

    fn learn_class_arguments(&mut self, session: &Session) {
        let Some(class) = session.info().class_info(self.info.class, &mut self.class_arguments)
        else {
            return;
        };
        self.class_argument_count = class.arguments as usize;
        for argument in self.class_arguments.iter().take(self.class_argument_count) {
            types::learn_class(session, *argument);
        }
    }

    fn method_arguments(&self) -> &[usize] {
        self.arguments.get(..self.info.arguments as usize).unwrap_or_default()
    }

    /// Writes one compilation.
    fn tell(
        &self,
        session: &Session,
        rejit: usize,
        ranges: &[NativeRange],
        reason: Reason,
    ) -> bool {
        let mut pieces = [NO_CODE; MOST_RANGES];
        let mut parameters = [""; MOST_PARAMETERS];
        let mut of_class = [""; MOST_PARAMETERS];
        let mut of_method = [""; MOST_PARAMETERS];
        let known = session.known();
        let class_arguments =
            self.class_arguments.get(..self.class_argument_count).unwrap_or_default();
        for (class, text) in class_arguments.iter().zip(&mut of_class) {
            *text = known.class(*class).unwrap_or_default();
        }
        for (class, text) in self.method_arguments().iter().zip(&mut of_method) {
            *text = known.class(*class).unwrap_or_default();
        }
        session.write(&Method {
            function: self.function as u64,
            rejit: rejit as u64,
            module: self.module.id as u64,
            type_token: self.parent,
            token: self.info.token,
            kind: match reason {
                Reason::Compiled => MethodKind::Jitted,
                Reason::Asked { .. } => MethodKind::Resolved,
            } as u8,
            tier: self.tier(ranges) as u8,
            app_domain: self.module.app_domain as u64,
            name: self.name,
            generic_parameters: self.parameters.list(&mut parameters).into(),
            signature: self.signature,
            class_arguments: of_class.get(..class_arguments.len()).unwrap_or_default().into(),
            method_arguments: of_method
                .get(..self.method_arguments().len())
                .unwrap_or_default()
                .into(),
            asked_ip: reason.asked_ip(),
            ranges: pieces_of(ranges, &mut pieces).into(),
        })
    }

    /// The profiling interface does not say the tier. Code within a module's image was compiled
    /// ahead, and the entry of a loop's replacement looks like nothing else.
    fn tier(&self, ranges: &[NativeRange]) -> Tier {
        let Some(first) = ranges.first() else { return Tier::Unknown };
        if self.module.contains(first.start) {
            Tier::ReadyToRun
        } else if is_osr(code_bytes(first, CODE_BYTES)) {
            Tier::Osr
        } else {
            Tier::Unknown
        }
    }
}

/// The type definition that a function belongs to. Code that several classes share has no class as
/// far as the runtime says; then it gets the one that stands for all of them.
fn find_owner(
    session: &Session,
    metadata: &Metadata,
    function: usize,
    info: &mut FunctionInfo,
) -> Option<Owner> {
    if info.class == 0 {
        let token = metadata.method_parent(info.token)?;
        info.class = session.canonical().class_of(session, function, info.module, token);
        if info.class == 0 {
            return Some(Owner { token, generic: false });
        }
    }
    let class = session.info().class_info(info.class, &mut [0; MOST_PARAMETERS]);
    let class = class.filter(|class| class.module == info.module && row(class.token) != 0);
    let Some(class) = class else {
        return Some(Owner { token: metadata.method_parent(info.token)?, generic: false });
    };
    let owner = Owner { token: class.token, generic: class.arguments > 0 };
    // Without memory it is asked again next time.
    let _ = session.known().enter_owner(info.class, owner);
    Some(owner)
}

const NO_CODE: CodeRange<'static> = CodeRange { start: 0, size: 0, code: &[] };

/// Where the compilations of one IL version of a function start.
fn code_starts<'a>(
    session: &Session,
    function: usize,
    rejit: usize,
    starts: &'a mut [usize; MOST_COMPILATIONS],
) -> &'a [usize] {
    if session.info().version() >= 9 {
        let count = session.info().code_starts(function, rejit, starts).unwrap_or(0);
        return starts.get(..count).unwrap_or_default();
    }
    let mut ranges = [NativeRange::default(); MOST_RANGES];
    match session.info().code_of_version(function, rejit, &mut ranges) {
        Some(1..) => {
            starts[0] = ranges[0].start;
            &starts[..1]
        }
        _ => &[],
    }
}

/// The pieces of the code that starts at `start`.
fn code_ranges<'a>(
    session: &Session,
    function: usize,
    rejit: usize,
    start: usize,
    ranges: &'a mut [NativeRange; MOST_RANGES],
) -> &'a [NativeRange] {
    let count = if session.info().version() >= 9 {
        session.info().code_at(start, ranges)
    } else {
        session.info().code_of_version(function, rejit, ranges)
    };
    ranges.get(..count.unwrap_or(0)).unwrap_or_default()
}

fn all_told(session: &Session, starts: &[usize]) -> bool {
    let known = session.known();
    starts.iter().all(|start| known.has_code(*start))
}

fn contains(range: &NativeRange, ip: u64) -> bool {
    (ip as usize).checked_sub(range.start).is_some_and(|offset| offset < range.size)
}

/// The same pieces with their first bytes.
fn pieces_of<'a, 'c>(
    ranges: &[NativeRange],
    pieces: &'a mut [CodeRange<'c>; MOST_RANGES],
) -> &'a [CodeRange<'c>] {
    for (piece, range) in pieces.iter_mut().zip(ranges) {
        let code = code_bytes(range, CODE_BYTES);
        let code = if is_osr(code) { code_bytes(range, OSR_CODE_BYTES) } else { code };
        *piece = CodeRange {
            start: range.start as u64,
            size: u32::try_from(range.size).unwrap_or(u32::MAX),
            code,
        };
    }
    pieces.get(..ranges.len()).unwrap_or_default()
}

/// The first bytes of a piece of code.
fn code_bytes(range: &NativeRange, most: usize) -> &'static [u8] {
    if range.start == 0 {
        return &[];
    }
    // SAFETY: the runtime says that this is code of a living method, so it is mapped; it is
    // readable in every mode of the runtime (utilcode/executableallocator.cpp maps code
    // read+execute), and nobody writes it after it was published.
    unsafe { std::slice::from_raw_parts(range.start as *const u8, range.size.min(most)) }
}

/// Code that replaces a running loop's begins with reading the frame it takes over:
/// `mov rax, [rbp+n]` (src/coreclr/jit/codegenxarch.cpp, `genOSRHandleTier0CalleeSavedRegistersAndFrame`).
fn is_osr(code: &[u8]) -> bool {
    matches!(code, [0x48, 0x8b, 0x45 | 0x85, ..])
}

/// # Safety
/// `start` is null, or `size` bytes from there on live as long as the result is used.
unsafe fn blob<'a>(start: *const u8, size: u32) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: passed on from the caller.
    unsafe { std::slice::from_raw_parts(start, size as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_bytes() {
        let calls: [&[u8]; 7] = [
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd3],
            &[0xff, 0x10],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x90, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
        ];
        for call in calls {
            let mut code = [0x90; 8];
            code[8 - call.len()..].copy_from_slice(call);
            assert!(ends_with_call(&code), "{call:02x?}");
        }
    }

    #[test]
    fn a_call_to_a_place_stays_within_the_image() {
        let module = Module {
            id: 1,
            serial: 1,
            app_domain: 1,
            base: 0x10_0000,
            size: 0x1_0000,
            ready_to_run: None,
            prepared: 0,
            metadata: None,
        };
        let call = |first: &[u8], offset: i32| {
            let mut code = [0x90; 8];
            code[4 - first.len()..4].copy_from_slice(first);
            code[4..].copy_from_slice(&offset.to_le_bytes());
            follows_call(&code, 0x10_8000, &module)
        };
        for first in [&[0xe8][..], &[0xff, 0x15]] {
            assert!(call(first, 0x7fff) && call(first, -0x8000));
            assert!(!call(first, 0x8000) && !call(first, -0x8001));
        }
    }

    #[test]
    fn other_code_is_no_call() {
        let others: [&[u8]; 4] = [&[0x90], &[0xff, 0x25, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0xc0]];
        for other in others {
            let mut code = [0x90; 8];
            code[8 - other.len()..].copy_from_slice(other);
            assert!(!ends_with_call(&code), "{other:02x?}");
        }
    }
}
