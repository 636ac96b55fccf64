//! Names of types: once per token for the log, and once per class as a type argument.

use strata_bridge_layout::record::Type;

use crate::com::metadata::{Importer, TYPE_DEF, TYPE_REF, TYPE_SPEC, row, table};
use crate::known::{Module, Told};
use crate::session::Session;
use crate::signature;
use crate::text::{Text, Units};

/// Type names in metadata have at most 1,023 characters (corhdr.h, MAX_CLASS_NAME); nested ones
/// are several of them.
const NAME_UNITS: usize = 1024;
pub type NameUnits = Units<NAME_UNITS>;
type TypeText = Text<4096>;

/// Enclosing types that are followed.
const DEEPEST_NESTING: usize = 16;
/// Type specifications within type specifications, and type arguments within type arguments.
const DEEPEST: u32 = 8;

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

    pub fn read(&mut self, importer: Importer, owner: u32, units: &mut NameUnits) {
        let mut tokens = [0u32; MOST_PARAMETERS];
        let found = importer.generic_parameters(owner, &mut tokens);
        for position in 0..found {
            // They mostly come in order, and are asked for in any.
            for token in tokens.iter().cycle().skip(position).take(found) {
                let Some((at, length)) = importer.generic_parameter(*token, units) else {
                    continue;
                };
                if at as usize == position {
                    self.text.push_units(units.get(..length).unwrap_or_default());
                    break;
                }
            }
            if let Some(end) = self.ends.get_mut(position) {
                *end = self.text.as_str().len() as u16;
                self.count = position + 1;
            }
        }
    }

    pub fn count(&self) -> usize {
        self.count
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

/// Writes the records of a type and of everything its name needs, unless they are there already.
/// Answers how many generic parameters the type has.
pub fn tell(session: &Session, module: &Module, token: u32) -> Told {
    tell_to(session, module, token, DEEPEST)
}

fn tell_to(session: &Session, module: &Module, token: u32, depth: u32) -> Told {
    let nothing = Told { generic_parameters: 0 };
    if row(token) == 0 {
        return nothing;
    }
    if let Some(told) = session.known().told(module.serial, token) {
        return told;
    }
    let (Some(importer), Some(depth)) = (module.importer, depth.checked_sub(1)) else {
        return nothing;
    };
    let mut name = TypeText::new();
    let mut units = [0; NAME_UNITS];
    let mut parameters = ParameterNames::none();
    let mut blob: &[u8] = &[];
    match table(token) {
        TYPE_SPEC => {
            let Some((start, size)) = importer.type_spec(token) else { return nothing };
            // SAFETY: the blob lies in the module's metadata, and the module is alive while one
            // of its methods is looked at.
            blob = unsafe { std::slice::from_raw_parts(start, size as usize) };
            signature::tokens_of_type(blob, &mut |inner| {
                tell_to(session, module, inner, depth);
            });
        }
        TYPE_DEF => {
            full_name(importer, token, &mut name, &mut units);
            parameters.read(importer, token, &mut units);
        }
        TYPE_REF => full_name(importer, token, &mut name, &mut units),
        _ => return nothing,
    }
    let mut list = [""; MOST_PARAMETERS];
    session.write(&Type {
        module: module.id as u64,
        token,
        name: name.as_str(),
        signature: blob,
        generic_parameters: parameters.list(&mut list).into(),
    });
    let told = Told { generic_parameters: parameters.count() as u8 };
    // Without memory the type is told again next time.
    let _ = session.known().enter_type(module.serial, token, told);
    told
}

/// `Namespace.Outer+Inner` of a type definition or reference.
fn full_name(importer: Importer, token: u32, name: &mut TypeText, units: &mut NameUnits) {
    let mut token = token;
    let mut part = TypeText::new();
    for depth in 0..DEEPEST_NESTING {
        let outer = match table(token) {
            TYPE_DEF => {
                let Some((length, _)) = importer.type_def(token, units) else { return };
                put_part(units.get(..length), depth, &mut part, name);
                importer.enclosing_type(token)
            }
            _ => {
                let Some((length, scope)) = importer.type_ref(token, units) else { return };
                put_part(units.get(..length), depth, &mut part, name);
                (table(scope) == TYPE_REF && row(scope) != 0).then_some(scope)
            }
        };
        match outer {
            Some(outer) => token = outer,
            None => return,
        }
    }
}

fn put_part(units: Option<&[u16]>, depth: usize, part: &mut TypeText, name: &mut TypeText) {
    part.clear();
    part.push_units(units.unwrap_or_default());
    if depth > 0 {
        part.push("+");
    }
    name.prepend(part.as_str());
}

/// Makes sure that the text of a class is known: for a value type its full name with its
/// arguments, for a reference type nothing, since code is shared by all of those.
pub fn learn_class(session: &Session, class: usize) {
    learn_class_to(session, class, DEEPEST);
}

fn learn_class_to(session: &Session, class: usize, depth: u32) {
    if class == 0 || session.known().class(class).is_some() {
        return;
    }
    let mut text = TypeText::new();
    if let Some(depth) = depth.checked_sub(1) {
        value_type(session, class, depth, &mut text);
    }
    // Without memory it is asked again next time.
    let _ = session.known().enter_class(class, text.as_str());
}

/// Arguments of an argument: those that are shared have the name of their stand-in.
const SHARED: &str = "System.__Canon";

fn value_type(session: &Session, class: usize, depth: u32, text: &mut TypeText) -> Option<()> {
    let mut arguments = [0usize; MOST_PARAMETERS];
    let info = session.info().class_info(class, &mut arguments)?;
    let module = session.module(info.module)?;
    let importer = module.importer?;
    let mut units = [0; NAME_UNITS];
    let (_, extends) = importer.type_def(info.token, &mut units)?;
    let mut base = TypeText::new();
    full_name(importer, extends, &mut base, &mut units);
    full_name(importer, info.token, text, &mut units);
    let is_value = match base.as_str() {
        "System.Enum" => true,
        "System.ValueType" => text.as_str() != "System.Enum",
        _ => false,
    };
    if !is_value {
        text.clear();
        return None;
    }
    let arguments = arguments.get(..info.arguments as usize).unwrap_or_default();
    for argument in arguments {
        learn_class_to(session, *argument, depth);
    }
    if !arguments.is_empty() {
        let known = session.known();
        for (position, argument) in arguments.iter().enumerate() {
            text.push(if position == 0 { "[" } else { "," });
            match known.class(*argument) {
                Some("") | None => text.push(SHARED),
                Some(name) => text.push(name),
            }
        }
        text.push("]");
    }
    Some(())
}
