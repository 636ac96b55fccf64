//! Turns the runtime's functions into `Method` records.
//!
//! Used by the compilation callbacks, by the enumeration of methods compiled before, and by answers
//! to requests.

use std::sync::MutexGuard;

use strata_bridge_protocol::record::{Method, MethodKind, MethodUnload, Tier};
use strata_bridge_protocol::status::Loss;

use crate::com::info::FunctionInfo;
use crate::com::metadata::row;
use crate::compilations::{Code, Compilations, NO_PIECES};
use crate::known::{Known, Module, Owner};
use crate::metadata::Metadata;
use crate::scratch::{self, Scratch};
use crate::session::Session;
use crate::types::{self, MOST_PARAMETERS, ParameterNames};
use crate::{il_maps, modules};

/// Why code is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was compiled, now or before.
    Compiled,
    /// An address in it was requested.
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

/// Reports every compilation of a function that was not reported before.
pub fn report_compiled(session: &Session, function: usize, rejit: usize) {
    let compilations = Compilations::of(session, function, rejit);
    let starts = compilations.starts();
    if starts.is_empty() || all_reported(session, function, starts) {
        return;
    }
    let Some(named) = Named::of(session, function) else { return };
    for start in starts {
        if session.known().enter_code(*start, function, &named.module) {
            let code = compilations.code(session, *start);
            code_lives(session, &code);
            named.report(session, rejit, &code, Reason::Compiled);
            if session.wants_il_maps() {
                il_maps::report_one(session, function, rejit, *start);
            }
        }
    }
}

/// Code of another function at the same address has ended without a callback: methods of generic
/// types are known by the module that declares them, and may go with another.
fn all_reported(session: &Session, function: usize, starts: &[usize]) -> bool {
    let known = session.known();
    starts.iter().all(|start| known.has_code(*start, function))
}

/// Code is there now, whatever was there before.
fn code_lives(session: &Session, code: &Code) {
    code.places().for_each(|(start, size)| session.lifetimes().code_lives(start, size));
}

/// Reports a method that has no metadata: a `DynamicMethod`, or glue that the runtime made.
pub fn report_dynamic(session: &Session, function: usize, reason: Reason) -> Option<bool> {
    let mut scratch = scratch::take(session)?;
    let Scratch { units, text: name, .. } = scratch.get();
    let dynamic = session.info().dynamic_function(function, units)?;
    name.push_units(units.get(..dynamic.name_units as usize).unwrap_or_default());
    let kind = match reason {
        Reason::Asked { .. } => MethodKind::Resolved,
        Reason::Compiled if name.as_str().starts_with("IL_STUB") => MethodKind::Stub,
        Reason::Compiled => MethodKind::Dynamic,
    };
    let module = session.module(dynamic.module);
    let code = Code::of_dynamic(session, function);
    if reason == Reason::Compiled {
        code_lives(session, &code);
    }
    // Without memory its end is reported without its start.
    let _ = session.known().enter_dynamic(function, code.start()?);
    let mut pieces = NO_PIECES;
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
        ranges: code.to_record(&mut pieces).into(),
    }))
}

/// A dynamic method was collected.
pub fn report_dynamic_end(session: &Session, function: usize) {
    let start = session.known().forget_dynamic(function);
    if let Some(start) = start {
        session.write(&MethodUnload { function: function as u64, start: start as u64 });
    }
}

/// Proves the reading of classes (see `canonical`) on these functions, as far as it is not proven.
pub fn prove_classes(session: &Session, functions: impl Iterator<Item = usize>) {
    let mut arguments = [0; MOST_PARAMETERS];
    for function in functions.take_while(|_| session.canonical().needs_proofs()) {
        let info = session.info().function_info(function, &mut arguments);
        if let Some(info) = info.filter(|info| info.class != 0) {
            session.canonical().prove(function, info.class, true);
        }
    }
}

/// A function with everything that all its compilations share.
pub struct Named {
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
    /// Looks up a function, and reports the types that its records will refer to.
    pub fn of(session: &Session, function: usize) -> Option<Named> {
        let mut arguments = [0; MOST_PARAMETERS];
        let mut info = session.info().function_info(function, &mut arguments)?;
        let known = session.known();
        let module = known.module(info.module).filter(|module| module.reported);
        let owner = known.owner(info.class);
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
        types::report_all(session, &module, signature, parent);
        if generic && info.class != 0 {
            named.ask_class_arguments(session);
        }
        const GENERIC: u8 = 0x10;
        if signature.first().is_some_and(|first| first & GENERIC != 0) {
            named.parameters.read(metadata, info.token);
        }
        Some(named)
    }

    pub fn module(&self) -> &Module {
        &self.module
    }

    fn ask_class_arguments(&mut self, session: &Session) {
        let class = session.info().class_info(self.info.class, &mut self.class_arguments);
        let count = class.map_or(0, |class| class.arguments as usize);
        self.class_argument_count = count.min(MOST_PARAMETERS);
    }

    fn method_arguments(&self) -> &[usize] {
        self.arguments.get(..self.info.arguments as usize).unwrap_or_default()
    }

    /// The known tables, with the classes of the type arguments. These may have been dropped since
    /// they were entered, though hardly twice.
    fn with_classes<'s>(&self, session: &'s Session) -> MutexGuard<'s, Known> {
        let of_class = self.class_arguments.iter().take(self.class_argument_count);
        let classes = || of_class.clone().chain(self.method_arguments());
        for _ in 0..3 {
            let known = session.known();
            if classes().all(|class| *class == 0 || known.class(*class).is_some()) {
                return known;
            }
            drop(known);
            classes().for_each(|class| types::learn_class(session, *class));
        }
        session.known()
    }

    /// Copies of the texts of the type arguments, so that the write needs no lock.
    fn argument_texts(&self, session: &Session) -> Option<ArgumentTexts> {
        let mut texts = ArgumentTexts::none();
        if self.class_argument_count == 0 && self.method_arguments().is_empty() {
            return Some(texts);
        }
        let known = self.with_classes(session);
        let of_class = self.class_arguments.iter().take(self.class_argument_count);
        let all = || of_class.clone().chain(self.method_arguments());
        let text_of = |class: &usize| known.class(*class).unwrap_or_default();
        let length = all().map(|class| text_of(class).len()).sum();
        texts.all.try_reserve_exact(length).ok()?;
        for (class, end) in all().zip(&mut texts.ends) {
            texts.all.push_str(text_of(class));
            *end = texts.all.len();
        }
        Some(texts)
    }

    /// Writes one compilation.
    pub fn report(&self, session: &Session, rejit: usize, code: &Code, reason: Reason) -> bool {
        let mut pieces = NO_PIECES;
        let mut arguments = [""; 2 * MOST_PARAMETERS];
        let Some(texts) = self.argument_texts(session) else {
            session.shared().lost(Loss::LogMemory);
            return false;
        };
        let of_method = self.method_arguments().len();
        let count = self.class_argument_count + of_method;
        for (number, text) in arguments.iter_mut().enumerate().take(count) {
            *text = texts.get(number);
        }
        let arguments = arguments.get(..count).unwrap_or_default();
        let (class_arguments, method_arguments) =
            arguments.split_at_checked(self.class_argument_count).unwrap_or_default();
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
            tier: self.tier(code) as u8,
            app_domain: self.module.app_domain as u64,
            name: self.name,
            generic_parameters: self.parameters.list().into(),
            signature: self.signature,
            class_arguments: class_arguments.into(),
            method_arguments: method_arguments.into(),
            asked_ip: reason.asked_ip(),
            ranges: code.to_record(&mut pieces).into(),
        })
    }

    /// The profiling interface does not report the tier. Code within a module's image was compiled
    /// ahead, and the entry of a loop's replacement looks like nothing else.
    fn tier(&self, code: &Code) -> Tier {
        if code.start().is_some_and(|start| self.module.contains(start)) {
            Tier::ReadyToRun
        } else if code.replaces_a_loop() {
            Tier::Osr
        } else {
            Tier::Unknown
        }
    }
}

/// Texts of type arguments, one behind the other.
struct ArgumentTexts {
    all: String,
    ends: [usize; 2 * MOST_PARAMETERS],
}

impl ArgumentTexts {
    fn none() -> Self {
        Self { all: String::new(), ends: [0; 2 * MOST_PARAMETERS] }
    }

    fn get(&self, number: usize) -> &str {
        let before = number.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(number).copied().unwrap_or_default();
        self.all.get(before.copied().unwrap_or_default()..end).unwrap_or_default()
    }
}

/// The type definition that a function belongs to. Code that several classes share has no class
/// according to the runtime; it gets the canonical one.
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

/// # Safety
/// `start` is null, or `size` bytes from there on live as long as the result is used.
unsafe fn blob<'a>(start: *const u8, size: u32) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: passed on from the caller.
    unsafe { std::slice::from_raw_parts(start, size as usize) }
}
