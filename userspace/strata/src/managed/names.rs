//! From what is known of a method to the name that a person recognises.

use std::borrow::Cow;
use std::sync::Arc;

use strata_bridge_layout::record::{MethodKind, MethodRecord};
use strata_files::{ManagedMethod, ManagedNames};
use strata_names::{Kind, RawMethod, Signature, TypeNames, frame_name, signature, with_signature};

use super::runtime::{Runtime, Type};
use crate::symbols::NamedFrame;
use crate::symbols::managed::frame;

/// Names of the types in a module, by what the bridge has said.
struct OfRuntime<'a> {
    runtime: &'a Runtime,
    module: u64,
    of_type: Option<&'a Type>,
    method: &'a MethodRecord,
}

impl TypeNames for OfRuntime<'_> {
    fn type_name(&self, token: u32) -> Option<Cow<'_, str>> {
        let of_type = self.runtime.type_of(self.module, token)?;
        Some(Cow::Borrowed(&of_type.name))
    }

    fn type_spec(&self, token: u32) -> Option<&[u8]> {
        let of_type = self.runtime.type_of(self.module, token)?;
        Some(&of_type.signature).filter(|blob| !blob.is_empty()).map(Vec::as_slice)
    }

    fn type_parameter(&self, position: u32) -> Option<&str> {
        self.of_type?.generic_parameters.get(position as usize).map(String::as_str)
    }

    fn method_parameter(&self, position: u32) -> Option<&str> {
        self.method.generic_parameters.get(position as usize).map(String::as_str)
    }
}

/// Of a method that the bridge has told of.
pub fn of_generated(runtime: &Runtime, method: &MethodRecord, signatures: bool) -> NamedFrame {
    let of_type = runtime.type_of(method.module, method.type_token).map(|of_type| &**of_type);
    let names = OfRuntime { runtime, module: method.module, of_type, method };
    let decoded = signature::decode(&method.signature, &names);
    let kind = match method.kind() {
        Some(MethodKind::Dynamic) => Kind::Dynamic,
        Some(MethodKind::Stub) => Kind::Stub,
        _ => Kind::Ordinary,
    };
    let raw = RawMethod::<String> {
        type_name: of_type.map_or("", |of_type| &of_type.name),
        method: &method.name,
        type_parameters: of_type.map_or(&[], |of_type| &of_type.generic_parameters),
        method_parameters: &method.generic_parameters,
        type_arguments: &method.class_arguments,
        method_arguments: &method.method_arguments,
        kind,
        signature: decoded.as_ref(),
        related: None,
    };
    named(&raw, decoded.as_ref(), signatures)
}

/// Names of the types in an assembly, by what it says itself.
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

/// Of a method that its assembly tells of.
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
        kind: Kind::Ordinary,
        signature: decoded.as_ref(),
        related: None,
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
    frame(&name, &found.system_name)
}

/// Whether a frame and its caller are one for a reader: an async method and its own first part.
pub fn folds(callee: &NamedFrame, caller: &NamedFrame) -> bool {
    let shown = |frame: &'_ NamedFrame| (frame.name.clone(), frame.system_name.clone());
    let (callee, caller) = (shown(callee), shown(caller));
    strata_names::folds(
        strata_names::Shown { name: &callee.0, system_name: &callee.1 },
        strata_names::Shown { name: &caller.0, system_name: &caller.1 },
    )
}
