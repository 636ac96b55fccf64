//! Names of types: once per token for the log, and once per class as a type argument.

use strata_bridge_protocol::record::Type;
use strata_ecma::signature::{tokens_of_method, tokens_of_type};

use crate::com::metadata::{TYPE_DEF, TYPE_REF, TYPE_SPEC, row, table};
use crate::known::Module;
use crate::metadata::Metadata;
use crate::modules;
use crate::session::Session;
use crate::text::Text;

/// Type names in metadata have at most 1,023 characters (corhdr.h, MAX_CLASS_NAME); nested ones
/// are several of them.
type TypeText = Text<4096>;

/// Enclosing types that are followed.
const DEEPEST_NESTING: usize = 16;
/// Type specifications within type specifications.
const DEEPEST: u32 = 8;
/// Type arguments within type arguments; deeper ones count as shared.
const DEEPEST_ARGUMENT: u32 = 32;

/// Generic parameters of one type or method that are told.
pub const MOST_PARAMETERS: usize = 16;

/// Names of generic parameters, in their order.
pub struct ParameterNames {
    text: Text<1024>,
    ends: [u16; MOST_PARAMETERS],
    count: usize,
}

impl ParameterNames {
    pub const fn none() -> Self {
        ParameterNames { text: Text::new(), ends: [0; MOST_PARAMETERS], count: 0 }
    }

    pub fn read(&mut self, metadata: &Metadata, owner: u32) {
        // They mostly come in order; one that does not is left for the next turn.
        for _ in 0..MOST_PARAMETERS {
            let before = self.count;
            metadata.generic_parameters(owner, |position, name| self.add(position, name));
            if self.count == before {
                return;
            }
        }
    }

    fn add(&mut self, position: u32, name: &str) {
        if position as usize == self.count
            && let Some(end) = self.ends.get_mut(self.count)
        {
            self.text.push(name);
            *end = self.text.len() as u16;
            self.count += 1;
        }
    }

    /// Puts the names into `names`; the rest of it stays as it is.
    pub fn list<'a, 'n>(&'a self, names: &'n mut [&'a str; MOST_PARAMETERS]) -> &'n [&'a str] {
        let text = self.text.as_str();
        let mut start = 0;
        for (name, end) in names.iter_mut().zip(self.ends).take(self.count) {
            *name = text.get(start..end as usize).unwrap_or_default();
            start = end as usize;
        }
        names.get(..self.count).unwrap_or_default()
    }
}

/// Types of one signature that are looked up together.
const TOGETHER: usize = 32;

/// Tells the types that a signature names, and the type that the method belongs to.
pub fn tell_all(session: &Session, module: &Module, blob: &[u8], parent: u32) {
    let mut tokens = [0u32; TOGETHER];
    tokens[0] = parent;
    let mut count = 1;
    tokens_of_method(blob, |token| {
        if let Some(place) = tokens.get_mut(count) {
            *place = token;
            count += 1;
        } else {
            tell(session, module, token);
        }
    });
    // Nearly always everything was told before: that is found out under one lock.
    let known = session.known();
    for token in tokens.iter_mut().take(count) {
        if known.has_type(module.serial, *token) {
            *token = 0;
        }
    }
    drop(known);
    for token in tokens.into_iter().take(count).filter(|token| *token != 0) {
        tell(session, module, token);
    }
}

/// Writes the records of a type and of everything its name needs, unless they are there already.
fn tell(session: &Session, module: &Module, token: u32) {
    tell_to(session, module, token, DEEPEST);
}

fn tell_to(session: &Session, module: &Module, token: u32, depth: u32) {
    if row(token) == 0 || session.known().has_type(module.serial, token) {
        return;
    }
    let Some(module) = modules::with_token(session, *module, token) else { return };
    let (Some(metadata), Some(depth)) = (&module.metadata, depth.checked_sub(1)) else {
        return;
    };
    let mut name = TypeText::new();
    let mut parameters = ParameterNames::none();
    let mut blob: &[u8] = &[];
    match table(token) {
        TYPE_SPEC => {
            let Some(found) = metadata.type_spec(token) else { return };
            blob = found;
            tokens_of_type(blob, |inner| {
                tell_to(session, &module, inner, depth);
            });
        }
        TYPE_DEF => {
            full_name(metadata, token, &mut name);
            // Compilers mark generic types in their names (ECMA-335 I.10.7.2), and so not asking
            // is well worth it.
            if name.as_str().contains('`') {
                parameters.read(metadata, token);
            }
        }
        TYPE_REF => full_name(metadata, token, &mut name),
        _ => return,
    }
    let mut list = [""; MOST_PARAMETERS];
    session.write(&Type {
        module: module.id as u64,
        token,
        name: name.as_str(),
        signature: blob,
        generic_parameters: parameters.list(&mut list).into(),
    });
    // Without memory the type is told again next time.
    let _ = session.known().enter_type(module.serial, token);
}

/// `Namespace.Outer+Inner` of a type definition or reference.
fn full_name<const N: usize>(metadata: &Metadata, token: u32, name: &mut Text<N>) {
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
    let mut text = TypeText::new();
    value_type(session, class, DEEPEST_ARGUMENT, &mut text);
    // Without memory it is asked again next time.
    let _ = session.known().enter_class(class, text.as_str());
}

/// Arguments of an argument: those that are shared have the name of their stand-in.
const SHARED: &str = "System.__Canon";

/// Appends the text of a value type. `None`, and nothing, for any other class.
fn value_type(session: &Session, class: usize, depth: u32, text: &mut TypeText) -> Option<()> {
    if let Some(known) = session.known().class(class) {
        text.push(known);
        return (!known.is_empty()).then_some(());
    }
    let depth = depth.checked_sub(1)?;
    let mut arguments = [0usize; MOST_PARAMETERS];
    let info = session.info().class_info(class, &mut arguments)?;
    let module = session.module(info.module)?;
    let module = modules::with_token(session, module, info.token)?;
    let metadata = module.metadata.as_ref()?;
    let mut base = Text::<32>::new();
    full_name(metadata, metadata.type_def(info.token)?.extends, &mut base);
    let mut name = Text::<1024>::new();
    full_name(metadata, info.token, &mut name);
    let is_value = match base.as_str() {
        "System.Enum" => true,
        "System.ValueType" => name.as_str() != "System.Enum",
        _ => false,
    };
    if !is_value {
        return None;
    }
    text.push(name.as_str());
    let arguments = arguments.get(..info.arguments as usize).unwrap_or_default();
    for (position, argument) in arguments.iter().enumerate() {
        text.push(if position == 0 { "[" } else { "," });
        if value_type(session, *argument, depth, text).is_none() {
            text.push(SHARED);
        }
    }
    if !arguments.is_empty() {
        text.push("]");
    }
    Some(())
}
