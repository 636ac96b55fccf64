//! From a method's metadata to its display name, as in the source.

use std::borrow::Cow;
use std::sync::Arc;

use strata_bridge_protocol::record::MethodKind;
use strata_dotnet::names::{
    self, Kind, Lacking, RawMethod, Signature, TypeNames, frame_name, lacking, signature,
    with_signature,
};
use strata_dotnet::{Statement, statement_at};
use strata_sandbox::{ManagedMethod, ManagedNames};

use super::code::Found;
use super::methods::{Method, MethodTexts};
use super::modules::{Module, Type};
use super::runtime::Runtime;
use crate::frame::NamedFrame;

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
    Import(Vec<u8>),
}

impl Open {
    /// The completed name.
    pub fn answered(&self, related: &str) -> NamedFrame {
        self.named.frame(Some(related))
    }
}

/// Describes the method that was at an address of generated code in an era.
pub fn describe(runtime: &Runtime, address: u64, era: u32, signatures: bool) -> Option<Described> {
    if let Some(kept) = runtime.kept(address, era) {
        return Some(kept.clone());
    }
    let found = runtime.find(address, era)?;
    let method = runtime.method_of(found.method)?;
    let (texts, module) = (method.texts(), runtime.module_of(method.module));
    let named = of_generated(method, &texts, module, signatures);
    let frame = named.frame(None);
    let question = match lacking(&named.type_name, &named.method) {
        Some(Lacking::Around) => Some(Question::Around(method.token)),
        Some(Lacking::Target) => Some(Question::Import(texts.signature)),
        None => None,
    };
    let open = question.map(|question| Open { question, named: named.into() });
    let record = module.and_then(|module| module.record.as_ref());
    let il = il_of(runtime, found, address - found.start);
    Some(Described {
        module: module_path(module),
        frame,
        mvid: record.map(|record| record.mvid).unwrap_or_default(),
        il: il.map(|(start, end)| Statement { method: method.token, start, end }),
        open,
    })
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
}

impl TypeNames for OfRuntime<'_> {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        let of_type = self.module?.type_of(token)?;
        Some(Cow::Borrowed(&of_type.name))
    }

    fn type_spec(&self, token: u32) -> Option<&[u8]> {
        let of_type = self.module?.type_of(token)?;
        Some(&*of_type.signature).filter(|blob| !blob.is_empty())
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
    fn frame(&self, related: Option<&str>) -> NamedFrame {
        let raw = RawMethod::<String> {
            type_name: &self.type_name,
            method: &self.method,
            type_parameters: &self.type_parameters,
            method_parameters: &self.method_parameters,
            type_arguments: &self.type_arguments,
            method_arguments: &self.method_arguments,
            kind: self.kind,
            signature: self.signature.as_ref(),
            related,
        };
        named(&raw, self.signature.as_ref(), self.with_signature)
    }
}

/// Of a method with a bridge record.
fn of_generated(
    method: &Method,
    texts: &MethodTexts,
    module: Option<&Module>,
    with_signature: bool,
) -> Named {
    let of_type = module.and_then(|module| module.type_of(method.type_token));
    let decoded = signature::decode(&texts.signature, &OfRuntime { module, of_type, texts });
    let kind = match method.kind() {
        Some(MethodKind::Dynamic) => Kind::Dynamic,
        Some(MethodKind::Stub) => Kind::Stub,
        // Unknown for a lookup by address; what has no token has no metadata.
        Some(MethodKind::Resolved) if method.token == 0 => Kind::Dynamic,
        _ => Kind::Ordinary,
    };
    let parameters = of_type.map(|of_type| &*of_type.generic_parameters).unwrap_or_default();
    Named {
        type_name: of_type.map(|of_type| of_type.name.to_string()).unwrap_or_default(),
        method: texts.name.clone(),
        type_parameters: parameters.iter().map(|name| name.to_string()).collect(),
        method_parameters: texts.generic_parameters.clone(),
        type_arguments: texts.class_arguments.clone(),
        method_arguments: texts.method_arguments.clone(),
        kind,
        signature: decoded,
        with_signature,
    }
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
