//! Names of types: once per token for the log, and once per class as a type argument.

use strata_bridge_protocol::record::Type;
use strata_ecma::signature::{tokens_of_method, tokens_of_type};

use crate::com::metadata::{TYPE_DEF, TYPE_REF, TYPE_SPEC, row, table};
use crate::known::Module;
use crate::metadata::Metadata;
use crate::modules;
use crate::scratch::{self, LongText, Scratch};
use crate::session::Session;
use crate::text::Text;

/// The most enclosing types followed.
const DEEPEST_NESTING: usize = 16;
/// Type specifications within type specifications.
const DEEPEST: u32 = 8;
/// Type arguments within type arguments; deeper ones count as shared. Each takes stack of the
/// app's.
const DEEPEST_ARGUMENT: u32 = 16;

/// The most generic parameters reported for one type or method.
pub const MOST_PARAMETERS: usize = 16;

/// Names of generic parameters, in their order: borrowed from the metadata, as all names are.
pub struct ParameterNames {
    names: [&'static str; MOST_PARAMETERS],
    count: usize,
}

impl ParameterNames {
    pub const fn none() -> Self {
        ParameterNames { names: [""; MOST_PARAMETERS], count: 0 }
    }

    pub fn read(&mut self, metadata: &Metadata, owner: u32) {
        // They mostly arrive in order; one that does not is left for the next pass.
        for _ in 0..MOST_PARAMETERS {
            let before = self.count;
            metadata.generic_parameters(owner, |position, name| self.add(position, name));
            if self.count == before {
                return;
            }
        }
    }

    fn add(&mut self, position: u32, name: &'static str) {
        if position as usize == self.count
            && let Some(place) = self.names.get_mut(self.count)
        {
            *place = name;
            self.count += 1;
        }
    }

    pub fn list(&self) -> &[&'static str] {
        self.names.get(..self.count).unwrap_or_default()
    }
}

/// Types of one signature that are looked up together.
const TOGETHER: usize = 32;

/// Reports the types that a signature names, and the type that the method belongs to.
pub fn report_all(session: &Session, module: &Module, blob: &[u8], parent: u32) {
    let mut tokens = [0u32; TOGETHER];
    tokens[0] = parent;
    let mut count = 1;
    tokens_of_method(blob, |token| {
        if let Some(place) = tokens.get_mut(count) {
            *place = token;
            count += 1;
        } else {
            report(session, module, token);
        }
    });
    // Nearly always everything was reported before: checked under one lock.
    let known = session.known();
    for token in tokens.iter_mut().take(count) {
        if known.has_type(module.serial, *token) {
            *token = 0;
        }
    }
    drop(known);
    for token in tokens.into_iter().take(count).filter(|token| *token != 0) {
        report(session, module, token);
    }
}

/// Writes the records of a type and of everything its name needs, unless they are there already.
fn report(session: &Session, module: &Module, token: u32) {
    report_to(session, module, token, DEEPEST);
}

/// Calls itself, so its frame is small: what needs room is in functions of their own.
fn report_to(session: &Session, module: &Module, token: u32, depth: u32) {
    if row(token) == 0 || session.known().has_type(module.serial, token) {
        return;
    }
    let (Some(metadata), Some(depth)) = (&module.metadata, depth.checked_sub(1)) else {
        return;
    };
    if !metadata.has(token) {
        return report_added(session, module, token, depth);
    }
    if table(token) == TYPE_SPEC {
        let Some(blob) = metadata.type_spec(token) else { return };
        tokens_of_type(blob, |inner| report_to(session, module, inner, depth));
        report_specification(session, module, token, blob);
    } else {
        report_named(session, module, token);
    }
}

/// A token that was added to the module while it runs.
#[inline(never)]
fn report_added(session: &Session, module: &Module, token: u32, depth: u32) {
    if let Some(module) = modules::with_token(session, *module, token) {
        report_to(session, &module, token, depth);
    }
}

#[inline(never)]
fn report_specification(session: &Session, module: &Module, token: u32, signature: &[u8]) {
    write(session, module, token, "", signature, &ParameterNames::none());
}

#[inline(never)]
fn report_named(session: &Session, module: &Module, token: u32) {
    let (Some(metadata), Some(mut scratch)) = (&module.metadata, scratch::take(session)) else {
        return;
    };
    if !matches!(table(token), TYPE_DEF | TYPE_REF) {
        return;
    }
    let name = &mut scratch.get().text;
    full_name(metadata, token, name);
    let mut parameters = ParameterNames::none();
    // Compilers mark generic types in their names (ECMA-335 I.10.7.2), so skipping the query is
    // worthwhile.
    if table(token) == TYPE_DEF && name.as_str().contains('`') {
        parameters.read(metadata, token);
    }
    write(session, module, token, name.as_str(), &[], &parameters);
}

fn write(
    session: &Session,
    module: &Module,
    token: u32,
    name: &str,
    signature: &[u8],
    parameters: &ParameterNames,
) {
    let written = session.write(&Type {
        module: module.id as u64,
        token,
        name,
        signature,
        generic_parameters: parameters.list().into(),
    });
    if written {
        // Without memory the type is reported again next time.
        let _ = session.known().enter_type(module.serial, token);
    }
}

/// `Namespace.Outer+Inner` of a type definition or reference.
pub fn full_name<const N: usize>(metadata: &Metadata, token: u32, name: &mut Text<N>) {
    let mut token = token;
    for depth in 0..DEEPEST_NESTING {
        if depth > 0 {
            name.prepend("+");
        }
        let (part, outer) = match table(token) {
            TYPE_DEF => {
                let Some(found) = metadata.type_def(token) else { return };
                (found.name, if found.nested { metadata.enclosing_type(token) } else { None })
            }
            _ => {
                let Some(found) = metadata.type_ref(token) else { return };
                let nested = table(found.scope) == TYPE_REF && row(found.scope) != 0;
                (found.name, nested.then_some(found.scope))
            }
        };
        name.prepend(part.name);
        if !part.namespace.is_empty() {
            name.prepend(".");
            name.prepend(part.namespace);
        }
        match outer {
            Some(outer) => token = outer,
            None => return,
        }
    }
}

/// Makes sure that the text of a class is known: for a value type its full name with its
/// arguments, for a reference type nothing, since code is shared by all of those.
pub fn learn_class(session: &Session, class: usize) {
    if class == 0 || session.known().class(class).is_some() {
        return;
    }
    let Some(mut scratch) = scratch::take(session) else { return };
    let Scratch { text, second, .. } = scratch.get();
    // Without an answer, or without memory, it is queried again next time.
    if value_type(session, class, DEEPEST_ARGUMENT, text, second).is_ok() {
        let _ = session.known().enter_class(class, text.as_str());
    }
}

/// Arguments of an argument: those that are shared have the name of their stand-in.
const SHARED: &str = "System.__Canon";

/// The runtime did not describe a class, or its module could not be read.
struct Undescribed;

/// Appends the text of a value type. `false`, and nothing, for any other class. Calls itself, so its
/// frame is small.
fn value_type(
    session: &Session,
    class: usize,
    depth: u32,
    text: &mut LongText,
    name: &mut LongText,
) -> Result<bool, Undescribed> {
    if let Some(known) = session.known().class(class) {
        text.push(known);
        return Ok(!known.is_empty());
    }
    let Some(depth) = depth.checked_sub(1) else { return Ok(false) };
    let mut arguments = [0usize; MOST_PARAMETERS];
    let Some(count) = value_type_name(session, class, &mut arguments, name)? else {
        return Ok(false);
    };
    text.push(name.as_str());
    let arguments = arguments.get(..count).unwrap_or_default();
    for (position, argument) in arguments.iter().enumerate() {
        text.push(if position == 0 { "[" } else { "," });
        if !value_type(session, *argument, depth, text, name)? {
            text.push(SHARED);
        }
    }
    if !arguments.is_empty() {
        text.push("]");
    }
    Ok(true)
}

/// The name of a class and how many type arguments it has, if it is a value type.
#[inline(never)]
fn value_type_name(
    session: &Session,
    class: usize,
    arguments: &mut [usize],
    name: &mut LongText,
) -> Result<Option<usize>, Undescribed> {
    let Some(info) = session.info().class_info(class, arguments) else {
        // Arrays have no description of this kind, and are reference types.
        let is_array = session.info().array_element(class).is_some();
        return if is_array { Ok(None) } else { Err(Undescribed) };
    };
    let module = session.module(info.module).ok_or(Undescribed)?;
    let module = modules::with_token(session, module, info.token).ok_or(Undescribed)?;
    let metadata = module.metadata.as_ref().ok_or(Undescribed)?;
    let definition = metadata.type_def(info.token).ok_or(Undescribed)?;
    let mut base = Text::<32>::new();
    full_name(metadata, definition.extends, &mut base);
    name.clear();
    full_name(metadata, info.token, name);
    let is_value = match base.as_str() {
        "System.Enum" => true,
        "System.ValueType" => name.as_str() != "System.Enum",
        _ => false,
    };
    Ok(is_value.then_some(info.arguments as usize))
}
