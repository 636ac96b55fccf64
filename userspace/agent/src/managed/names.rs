//! From a method's metadata to its display name, as in the source.
//!
//! Invariant: a process chooses how long its names are and at how many addresses it is sampled. A
//! [`Describer`] makes each method's name once and stops at its limits; the addresses of a method
//! share one name.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use strata_bridge_protocol::record::MethodKind;
use strata_dotnet::names::{
    self, Kind, Lacking, RawMethod, Signature, TypeNames, frame_name, lacking, signature,
    with_signature,
};
use strata_dotnet::{Statement, statement_at};
use strata_sandbox::{ManagedMethod, ManagedNames};

use super::code::{Found, MethodIndex};
use super::methods::{Method, MethodTexts};
use super::modules::{Module, ModuleIndex, Type};
use super::name_cache::{Inputs, NameCache, Types};
use super::runtime::Runtime;
use crate::frame::NamedFrame;
use crate::hash::HashMap;
use crate::processor_time::TimeBudget;

/// Texts that an open name is made of; with longer ones it stays as it is.
const MOST_OPEN: usize = 16 << 10;
/// What a name takes besides its texts.
const OVERHEAD: usize = 400;

/// The symbol of an address in a method's code.
#[derive(Clone, Debug)]
pub struct Described {
    pub module: Arc<str>,
    pub frame: NamedFrame,
    /// Of the module.
    pub mvid: [u8; 16],
    /// The IL that the code came from.
    pub il: Option<Statement>,
    /// What its name lacks.
    pub open: Option<Open>,
}

/// A name that lacks a part which only the assembly has.
#[derive(Clone, Debug)]
pub struct Open {
    pub question: Question,
    named: Arc<Named>,
}

/// What is needed from an assembly for a name.
#[derive(Clone, Debug)]
pub enum Question {
    /// The method in which this lambda is written, from its own assembly.
    Around(u32),
    /// The native function that a stub of this signature calls, from the caller's assembly.
    Import(Arc<[u8]>),
}

impl Open {
    /// The completed name.
    pub fn answered(&self, related: &str) -> NamedFrame {
        self.named.frame(Some(related))
    }

    /// The memory of its texts.
    pub fn bytes(&self) -> usize {
        let question = match &self.question {
            Question::Around(_) => 0,
            Question::Import(signature) => signature.len(),
        };
        question + self.named.bytes()
    }
}

impl Described {
    /// The memory that it takes when it shares nothing.
    pub fn bytes(&self) -> usize {
        let texts = [&self.module, &self.frame.name, &self.frame.system_name, &self.frame.file];
        let texts: usize = texts.into_iter().map(|text| text.len()).sum();
        OVERHEAD + texts + self.open.as_ref().map_or(0, Open::bytes)
    }
}

/// What a [`Describer`] may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of names.
    pub bytes: usize,
    /// Of the thread.
    pub time: Duration,
    /// Of one name.
    pub longest: usize,
}

/// What a [`Describer`] finds at an address.
#[derive(Clone, Debug)]
pub enum Description {
    Method(Described),
    /// No method is known there.
    Nothing,
    /// A limit is reached.
    Refused,
}

/// Describes the methods of one process at addresses of its generated code.
pub struct Describer<'a> {
    runtime: &'a Runtime,
    cache: &'a NameCache,
    signatures: bool,
    longest: usize,
    bytes_left: usize,
    time: TimeBudget,
    methods: HashMap<MethodIndex, Described>,
    /// Paths of modules.
    modules: HashMap<ModuleIndex, Arc<str>>,
}

impl<'a> Describer<'a> {
    pub fn new(
        runtime: &'a Runtime,
        cache: &'a NameCache,
        signatures: bool,
        limits: Limits,
    ) -> Self {
        Self {
            runtime,
            cache,
            signatures,
            longest: limits.longest,
            bytes_left: limits.bytes,
            time: TimeBudget::new(limits.time),
            methods: HashMap::default(),
            modules: HashMap::default(),
        }
    }

    /// Describes the method that was at an address of generated code in an era.
    pub fn describe(&mut self, address: u64, era: u32) -> Description {
        if let Some(kept) = self.runtime.kept(address, era) {
            return Description::Method(kept.clone());
        }
        let Some(found) = self.runtime.find(address, era) else { return Description::Nothing };
        let Some(method) = self.runtime.method_of(found.method) else {
            return Description::Nothing;
        };
        if self.time.is_used_up() {
            return Description::Refused;
        }
        let Some(described) = self.method(found.method, method) else {
            return Description::Refused;
        };
        let il = il_of(self.runtime, found, address - found.start);
        let il = il.map(|(start, end)| Statement { method: method.token, start, end });
        Description::Method(Described { il, ..described })
    }

    /// What all addresses of a method share.
    fn method(&mut self, index: MethodIndex, method: &Method) -> Option<Described> {
        if let Some(known) = self.methods.get(&index) {
            return Some(known.clone());
        }
        if self.bytes_left == 0 {
            return None;
        }
        let module = self.runtime.module_of(method.module);
        let path = || module_path(module);
        let path = self.modules.entry(method.module).or_insert_with(path).clone();
        let described = self.of_generated(method, module, path);
        let Some(left) = self.bytes_left.checked_sub(described.bytes()) else {
            self.bytes_left = 0;
            return None;
        };
        self.bytes_left = left;
        self.methods.insert(index, described.clone());
        Some(described)
    }

    /// Of a method with a bridge record, without its statement.
    fn of_generated(&self, method: &Method, module: Option<&Module>, path: Arc<str>) -> Described {
        let of_type = module.and_then(|module| module.type_of(method.type_token));
        let inputs = Inputs { method, module, of_type, with_signature: self.signatures };
        let Name { mut frame, open } = self.cache.get_or_make(&inputs, || {
            name_of(method, module, of_type.map(|of_type| &**of_type), self.signatures)
        });
        for text in [&mut frame.name, &mut frame.system_name] {
            if text.len() > self.longest {
                *text = strata_profile::text::shortened(text, self.longest).into();
            }
        }
        let record = module.and_then(|module| module.record.as_ref());
        let mvid = record.map(|record| record.mvid).unwrap_or_default();
        Described { module: path, frame, mvid, il: None, open }
    }
}

/// A sampled address with its era, and the method that was there.
pub type SampledMethod = ((u64, u32), Option<Described>);

/// Those of a process's sampled addresses whose names may be kept after its end, each as if it had a
/// name of its own, and the memory that they take.
pub fn affordable(
    runtime: &Runtime,
    cache: &NameCache,
    sampled: &[(u64, u32)],
    signatures: bool,
    limits: Limits,
) -> (Vec<SampledMethod>, usize) {
    let mut describer = Describer::new(runtime, cache, signatures, limits);
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for &(address, era) in sampled {
        let (described, own) = match describer.describe(address, era) {
            Description::Method(described) => {
                let own = described.bytes();
                (Some(described), own)
            }
            // It may be a stub.
            Description::Nothing => (None, OVERHEAD),
            Description::Refused => break,
        };
        if bytes + own > limits.bytes {
            break;
        }
        bytes += own;
        kept.push(((address, era), described));
    }
    (kept, bytes)
}

fn module_path(module: Option<&Module>) -> Arc<str> {
    match module.and_then(|module| module.record.as_ref()) {
        Some(module) if !module.path.is_empty() => module.path.as_str().into(),
        Some(module) if !module.assembly.is_empty() => format!("{}.dll", module.assembly).into(),
        _ => "[managed]".into(),
    }
}

/// The IL that the native code at an offset came from.
fn il_of(runtime: &Runtime, found: Found, native: u64) -> Option<(u32, u32)> {
    let map = runtime.il_map_of(found)?;
    let map: Vec<_> = map.iter().map(|entry| (entry.native, entry.il)).collect();
    statement_at(&map, u32::try_from(native).ok()?)
}

/// Names of the types in a module, from the bridge's records.
struct OfRuntime<'a> {
    module: Option<&'a Module>,
    of_type: Option<&'a Type>,
    texts: &'a MethodTexts,
    /// The types that were asked for, by token.
    used: RefCell<Types>,
}

impl OfRuntime<'_> {
    fn type_of(&self, token: u32) -> Option<&Type> {
        let found = self.module.and_then(|module| module.type_of(token));
        self.used.borrow_mut().push((token, found.cloned()));
        found.map(|found| &**found)
    }
}

impl TypeNames for OfRuntime<'_> {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.type_of(token)?.name))
    }

    fn type_spec(&self, token: u32) -> Option<&[u8]> {
        Some(&*self.type_of(token)?.signature).filter(|blob| !blob.is_empty())
    }

    fn type_parameter(&self, position: u32) -> Option<&str> {
        self.of_type?.generic_parameters.get(position as usize).map(|name| &**name)
    }

    fn method_parameter(&self, position: u32) -> Option<&str> {
        self.texts.generic_parameters.get(position as usize).map(String::as_str)
    }
}

/// The parts of a name.
#[derive(Clone, Debug)]
struct Named {
    type_name: String,
    method: String,
    type_parameters: Vec<String>,
    method_parameters: Vec<String>,
    type_arguments: Vec<String>,
    method_arguments: Vec<String>,
    kind: Kind,
    signature: Option<Signature>,
    with_signature: bool,
}

impl Named {
    fn of(raw: &RawMethod<'_, String>, with_signature: bool) -> Self {
        Self {
            type_name: raw.type_name.to_owned(),
            method: raw.method.to_owned(),
            type_parameters: raw.type_parameters.to_vec(),
            method_parameters: raw.method_parameters.to_vec(),
            type_arguments: raw.type_arguments.to_vec(),
            method_arguments: raw.method_arguments.to_vec(),
            kind: raw.kind,
            signature: raw.signature.cloned(),
            with_signature,
        }
    }

    fn raw<'a>(&'a self, related: Option<&'a str>) -> RawMethod<'a, String> {
        RawMethod {
            type_name: &self.type_name,
            method: &self.method,
            type_parameters: &self.type_parameters,
            method_parameters: &self.method_parameters,
            type_arguments: &self.type_arguments,
            method_arguments: &self.method_arguments,
            kind: self.kind,
            signature: self.signature.as_ref(),
            related,
        }
    }

    fn frame(&self, related: Option<&str>) -> NamedFrame {
        named(&self.raw(related), self.signature.as_ref(), self.with_signature)
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.raw(None))
    }
}

/// The memory of the texts that a name is made of.
fn bytes_of(raw: &RawMethod<'_, String>) -> usize {
    let list = |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum();
    let lists: [usize; 4] = [
        list(raw.type_parameters),
        list(raw.method_parameters),
        list(raw.type_arguments),
        list(raw.method_arguments),
    ];
    let signature = raw.signature.map_or(0, |signature| {
        signature.return_type.len()
            + list(&signature.parameters)
            + list(&signature.return_modifiers)
    });
    raw.type_name.len() + raw.method.len() + lists.into_iter().sum::<usize>() + signature
}

/// What methods of several processes share: the same code that runs in each.
#[derive(Clone, Debug)]
pub struct Name {
    pub frame: NamedFrame,
    pub open: Option<Open>,
}

impl Name {
    /// The memory of its texts.
    pub fn bytes(&self) -> usize {
        let texts = self.frame.name.len() + self.frame.system_name.len();
        OVERHEAD + texts + self.open.as_ref().map_or(0, Open::bytes)
    }
}

/// Of a method with a bridge record, and the types that its signature names.
fn name_of(
    method: &Method,
    module: Option<&Module>,
    of_type: Option<&Type>,
    with_signature: bool,
) -> (Name, Types) {
    let texts = method.texts();
    let types = OfRuntime { module, of_type, texts: &texts, used: RefCell::default() };
    let decoded = signature::decode(&texts.signature, &types);
    let kind = match method.kind() {
        Some(MethodKind::Dynamic) => Kind::Dynamic,
        Some(MethodKind::Stub) => Kind::Stub,
        // Unknown for a lookup by address; what has no token has no metadata.
        Some(MethodKind::Resolved) if method.token == 0 => Kind::Dynamic,
        _ => Kind::Ordinary,
    };
    let parameters = of_type.map(|of_type| &*of_type.generic_parameters).unwrap_or_default();
    let parameters: Vec<String> = parameters.iter().map(|name| name.to_string()).collect();
    let raw = RawMethod::<String> {
        type_name: of_type.map_or("", |of_type| &of_type.name),
        method: &texts.name,
        type_parameters: &parameters,
        method_parameters: &texts.generic_parameters,
        type_arguments: &texts.class_arguments,
        method_arguments: &texts.method_arguments,
        kind,
        signature: decoded.as_ref(),
        related: None,
    };
    let question = match lacking(raw.type_name, raw.method) {
        Some(Lacking::Around) => Some(Question::Around(method.token)),
        Some(Lacking::Target) => Some(Question::Import(texts.signature.as_slice().into())),
        None => None,
    };
    let question = question.filter(|_| bytes_of(&raw) <= MOST_OPEN);
    let open =
        question.map(|question| Open { question, named: Named::of(&raw, with_signature).into() });
    let frame = named(&raw, decoded.as_ref(), with_signature);
    (Name { frame, open }, types.used.into_inner())
}

/// Names of the types in an assembly, from its own metadata.
struct OfAssembly<'a> {
    names: &'a ManagedNames,
    method: &'a ManagedMethod,
}

impl TypeNames for OfAssembly<'_> {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        self.names.type_name(token).map(|name| Cow::Borrowed(&**name))
    }

    fn type_parameter(&self, position: u32) -> Option<&str> {
        self.method.class_params.get(position as usize).map(|name| &**name)
    }

    fn method_parameter(&self, position: u32) -> Option<&str> {
        self.method.method_params.get(position as usize).map(|name| &**name)
    }
}

/// Of a method in its assembly's metadata.
pub fn of_precompiled(
    method: &ManagedMethod,
    names: &ManagedNames,
    signatures: bool,
) -> NamedFrame {
    let decoded = signature::decode(&method.signature, &OfAssembly { names, method });
    let raw = RawMethod::<Arc<str>> {
        type_name: &method.type_name,
        method: &method.method_name,
        type_parameters: &method.class_params,
        method_parameters: &method.method_params,
        type_arguments: &method.class_args,
        method_arguments: &method.method_args,
        kind: if method.stub { Kind::Stub } else { Kind::Ordinary },
        signature: decoded.as_ref(),
        related: method.around.as_deref(),
    };
    named(&raw, decoded.as_ref(), signatures)
}

fn named<T: AsRef<str>>(
    raw: &RawMethod<'_, T>,
    signature: Option<&Signature>,
    signatures: bool,
) -> NamedFrame {
    let found = frame_name(raw);
    let name = match signature.filter(|_| signatures) {
        Some(signature) => with_signature(&found.name, signature),
        None => found.name,
    };
    NamedFrame::managed(&name, &found.system_name)
}

/// Whether a frame and its caller are shown as one: an async method and its own first part.
pub fn folds(callee: &NamedFrame, caller: &NamedFrame) -> bool {
    let shown = |frame: &'_ NamedFrame| (frame.name.clone(), frame.system_name.clone());
    let (callee, caller) = (shown(callee), shown(caller));
    names::folds(
        names::Shown { name: &callee.0, system_name: &callee.1 },
        names::Shown { name: &caller.0, system_name: &caller.1 },
    )
}

#[cfg(test)]
pub mod tests {
    use std::collections::HashSet;

    use strata_bridge_protocol::field::CodeRangeRecord;
    use strata_bridge_protocol::record::{MethodRecord, Record};

    use super::*;

    impl Limits {
        const NONE: Self =
            Self { bytes: usize::MAX, time: Duration::from_secs(3600), longest: usize::MAX };
    }

    /// Describes the method that was at an address of generated code in an era.
    pub fn describe(
        runtime: &Runtime,
        address: u64,
        era: u32,
        signatures: bool,
    ) -> Option<Described> {
        let cache = NameCache::default();
        found(Describer::new(runtime, &cache, signatures, Limits::NONE).describe(address, era))
    }

    /// The method at an address, with its signature.
    pub fn described_with(cache: &NameCache, runtime: &Runtime, address: u64) -> Option<Described> {
        found(Describer::new(runtime, cache, true, Limits::NONE).describe(address, 0))
    }

    fn found(description: Description) -> Option<Described> {
        match description {
            Description::Method(described) => Some(described),
            Description::Nothing | Description::Refused => None,
        }
    }

    /// A method with code at an address.
    pub fn sized_method(start: u64) -> MethodRecord {
        let code = CodeRangeRecord { start, size: SIZE, code: CODE.to_vec() };
        MethodRecord { function: start, ranges: vec![code], ..MethodRecord::default() }
    }

    const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90];
    const SIZE: u32 = 0x1000;

    /// A stub that calls a native function, with as many and as long arguments as a record holds.
    fn long_stub(number: u64) -> Record {
        Record::Method(MethodRecord {
            function: number + 1,
            name: "IL_STUB_PInvoke".into(),
            method_arguments: vec!["x".repeat(2000); 64],
            ranges: vec![CodeRangeRecord {
                start: number * u64::from(SIZE),
                size: SIZE,
                code: CODE.to_vec(),
            }],
            ..MethodRecord::default()
        })
    }

    fn runtime(methods: u64) -> Runtime {
        let mut runtime = Runtime::default();
        (0..methods).for_each(|number| runtime.take_record(long_stub(number), usize::MAX));
        runtime
    }

    fn method(description: Description) -> Described {
        match description {
            Description::Method(described) => described,
            other => panic!("no method: {other:?}"),
        }
    }

    #[test]
    fn all_addresses_of_a_method_share_its_name_however_long_it_is() {
        let (runtime, cache) = (runtime(1), NameCache::default());
        let mut describer = Describer::new(&runtime, &cache, false, Limits::NONE);
        let mut names = HashSet::new();
        for address in 0..1024 {
            let described = method(describer.describe(address, 0));
            assert!(described.open.is_none(), "128 KB of arguments are not kept for a better name");
            names.insert(Arc::as_ptr(&described.frame.system_name));
        }
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn a_stub_of_usual_length_is_asked_about() {
        let Record::Method(long) = long_stub(0) else { return };
        let mut runtime = Runtime::default();
        let short = MethodRecord { method_arguments: Vec::new(), ..long };
        runtime.take_record(Record::Method(short), usize::MAX);
        let described = describe(&runtime, 4, 0, false).expect("it is known");
        assert!(matches!(described.open, Some(Open { question: Question::Import(_), .. })));
    }

    #[test]
    fn names_end_where_their_memory_or_time_does() {
        let (runtime, cache) = (runtime(100), NameCache::default());
        let at = |number: u64| number * u64::from(SIZE) + 4;
        let limits = Limits { bytes: 20_000, longest: 1000, ..Limits::NONE };
        let mut describer = Describer::new(&runtime, &cache, false, limits);
        let first = method(describer.describe(at(0), 0));
        assert!(first.frame.system_name.len() < 1100, "{}", first.frame.system_name.len());
        let described = (0..100)
            .filter(|number| matches!(describer.describe(at(*number), 0), Description::Method(_)));
        assert!((2..20).contains(&described.count()));
        assert!(matches!(describer.describe(at(0) + 1, 0), Description::Method(_)), "it is shared");

        let limits = Limits { time: Duration::ZERO, ..Limits::NONE };
        let mut describer = Describer::new(&runtime, &cache, false, limits);
        assert!(matches!(describer.describe(at(0), 0), Description::Refused));
        assert!(matches!(describer.describe(at(1000), 0), Description::Nothing));
    }

    #[test]
    fn what_is_kept_of_a_process_that_has_ended_has_a_limit() {
        let runtime = runtime(1);
        let sampled: Vec<_> = (0..1024).map(|address| (address, 0)).collect();
        let limits = Limits { bytes: 1 << 20, longest: 4096, ..Limits::NONE };
        let (kept, bytes) = affordable(&runtime, &NameCache::default(), &sampled, false, limits);
        assert!(bytes <= limits.bytes);
        assert!((50..500).contains(&kept.len()), "{}", kept.len());
    }
}
