//! A method's name as a flame graph shows it.

use super::arguments::{MOST, SHARED, distribute, push_list, shown};
use super::hiding::plumbing;
use super::inert::{front, inert, push};
use super::member::{Member, Place, Shape, VISUAL_BASIC_LAMBDA, Within};
use super::path::{Part, Path};
use super::signature::Signature;
use super::type_text;

/// Where a method's code comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Ordinary,
    /// Without metadata (`DynamicMethod`).
    Dynamic,
    /// Glue made by the runtime: an IL stub, or a stub that calls the method.
    Stub,
}

/// The metadata of a method. Unknown fields are empty.
#[derive(Debug, Clone, Copy)]
pub struct RawMethod<'a, T = String> {
    /// "Ns.Outer+Inner`1", as in the metadata; empty for methods without metadata.
    pub type_name: &'a str,
    pub method: &'a str,
    /// Names of the type's generic parameters; nested types list their outer types' too.
    pub type_parameters: &'a [T],
    pub method_parameters: &'a [T],
    /// As the runtime writes them ("System.Int32", "Ns.Pair`2[System.Int32,System.__Canon]"). For
    /// an empty one, or "System.__Canon", the parameter's name is shown.
    pub type_arguments: &'a [T],
    pub method_arguments: &'a [T],
    pub kind: Kind,
    pub signature: Option<&'a Signature>,
    /// The method that a VB lambda is written in, which its own name does not contain. For a stub,
    /// the function that it calls.
    pub related: Option<&'a str>,
}

impl<T> Default for RawMethod<'_, T> {
    fn default() -> Self {
        Self {
            type_name: "",
            method: "",
            type_parameters: &[],
            method_parameters: &[],
            type_arguments: &[],
            method_arguments: &[],
            kind: Kind::Ordinary,
            signature: None,
            related: None,
        }
    }
}

/// The names of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameName {
    /// The display name, as in a flame graph.
    pub name: String,
    /// The raw name, with its signature when that is known.
    pub system_name: String,
    /// A view may hide it.
    pub plumbing: bool,
}

/// The names of a method.
#[must_use]
pub fn frame_name<T: AsRef<str>>(method: &RawMethod<'_, T>) -> FrameName {
    let name = inert(&cleaned(method));
    FrameName { plumbing: plumbing(&name), system_name: inert(&system_name(method)), name }
}

/// A cleaned name with the types of its parameters.
#[must_use]
pub fn with_signature(name: &str, signature: &Signature) -> String {
    let mut text = String::from(front(name));
    push(&mut text, "(");
    for (position, parameter) in signature.parameters.iter().enumerate() {
        if position > 0 {
            push(&mut text, ", ");
        }
        push(&mut text, &type_text::clean(parameter));
    }
    push(&mut text, ")");
    inert(&text)
}

/// What a method's display name needs beyond its own and its type's name ([`RawMethod::related`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    /// The method that a lambda is written in.
    Around,
    /// The native function that a stub calls.
    Target,
}

/// The information missing for a method's display name, if any.
#[must_use]
pub fn lacking(type_name: &str, method: &str) -> Option<Lacking> {
    if type_name.is_empty() {
        return (method == P_INVOKE).then_some(Lacking::Target);
    }
    let is_lambda = |name: &str| name.starts_with(VISUAL_BASIC_LAMBDA);
    let innermost = Path::parse(type_name).segments.last().map(|segment| segment.part);
    match innermost {
        Some(Part::StateMachine(of_method)) if is_lambda(of_method) => Some(Lacking::Around),
        _ => is_lambda(method).then_some(Lacking::Around),
    }
}

fn system_name<T: AsRef<str>>(method: &RawMethod<'_, T>) -> String {
    let mut text = String::new();
    if let Some(signature) = method.signature {
        push(&mut text, &signature.return_type);
        push(&mut text, " ");
    }
    if !method.type_name.is_empty() {
        push(&mut text, method.type_name);
        push_raw(&mut text, method.type_arguments);
        push(&mut text, ".");
    }
    push(&mut text, method.method);
    push_raw(&mut text, method.method_arguments);
    if let Some(signature) = method.signature {
        push(&mut text, "(");
        for (position, parameter) in signature.parameters.iter().enumerate() {
            if position > 0 {
                push(&mut text, ", ");
            }
            push(&mut text, parameter);
        }
        push(&mut text, ")");
    }
    text
}

fn push_raw<T: AsRef<str>>(text: &mut String, arguments: &[T]) {
    for (position, argument) in arguments.iter().take(MOST).enumerate() {
        push(text, if position == 0 { "[" } else { "," });
        let argument = argument.as_ref();
        push(text, if argument.is_empty() { SHARED } else { argument });
    }
    if !arguments.is_empty() {
        push(text, "]");
    }
}

fn cleaned<T: AsRef<str>>(method: &RawMethod<'_, T>) -> String {
    if method.type_name.is_empty() {
        if let Some(stub) = stub(method) {
            return stub;
        }
        if method.kind == Kind::Dynamic {
            return format!("(dynamic) {}", front(method.method));
        }
    }
    let of_method = shown(method.method_arguments, method.method_parameters);
    let of_type = shown(method.type_arguments, method.type_parameters);
    let name =
        Frame::of(front(method.type_name), &of_type, method.related).finish(method, of_method);
    match method.kind {
        Kind::Stub => format!("(stub) {name}"),
        Kind::Ordinary | Kind::Dynamic => name,
    }
}

/// A stub that calls a native function.
const P_INVOKE: &str = "IL_STUB_PInvoke";

/// The runtime names its stubs by their purpose (`src/coreclr/vm/ilstubcache.cpp`).
fn stub<T>(method: &RawMethod<'_, T>) -> Option<String> {
    let purpose = match method.method.strip_prefix("IL_STUB") {
        Some(purpose) => purpose.trim_start_matches('_'),
        None if method.kind == Kind::Stub => method.method,
        None => return None,
    };
    let purpose = match front(purpose) {
        "" => "IL".to_string(),
        "PInvoke" => "P/Invoke".to_string(),
        "ReversePInvoke" => "reverse P/Invoke".to_string(),
        "CLRtoCOM" => "CLR to COM".to_string(),
        "COMtoCLR" => "COM to CLR".to_string(),
        other => other.replace('_', " "),
    };
    Some(match method.related {
        Some(target) => format!("(stub) {purpose} {}", front(target)),
        None => format!("(stub) {purpose}"),
    })
}

/// The type that functions without a type are in (ECMA-335 II.10.8).
const GLOBAL: &str = "Module";

/// A type's name as far as it is shown, and what it reveals about the method.
#[derive(Default)]
struct Frame {
    text: String,
    /// The innermost type's name.
    owner: String,
    in_compiler_type: bool,
    in_holder: bool,
    in_closure: bool,
    in_function: bool,
    captures: bool,
    /// Arguments of types that stand for a method.
    of_method: Vec<String>,
    machine: Option<(Member, Vec<String>)>,
}

impl Frame {
    fn of(type_name: &str, arguments: &[String], enclosing: Option<&str>) -> Self {
        let mut frame = Frame::default();
        let path = Path::parse(type_name);
        let ranges = distribute(&path.segments, arguments.len());
        for (segment, range) in path.segments.iter().zip(ranges) {
            let own = arguments.get(range).unwrap_or_default();
            match segment.part {
                Part::Named(name) => frame.push_type(name, "", own),
                Part::Function(name) => {
                    frame.in_function = true;
                    frame.push_type(name, "", own);
                }
                Part::Anonymous(name, number) => frame.push_type(name, number, &[]),
                Part::Compiler(name) => {
                    frame.in_compiler_type = true;
                    frame.push_type(name, "", own);
                }
                Part::Holder(name) => {
                    frame.in_compiler_type = name != GLOBAL;
                    frame.in_holder = true;
                    frame.owner = name.to_string();
                }
                Part::Closure { captures } => {
                    frame.in_closure = true;
                    frame.captures = captures;
                    frame.of_method.extend_from_slice(own);
                }
                Part::StateMachine(method) => {
                    let place = Place {
                        owner: &frame.owner,
                        enclosing,
                        captures: frame.captures,
                        in_type_name: true,
                        shape: Shape::default(),
                    };
                    frame.machine = Some((Member::parse(method, place), own.to_vec()));
                }
            }
        }
        if !path.namespace.is_empty() && !frame.in_compiler_type {
            frame.text = format!("{}.{}", path.namespace, frame.text);
        }
        frame
    }

    /// Everything so far ends in a dot.
    fn push_type(&mut self, name: &str, number: &str, arguments: &[String]) {
        self.owner = format!("{name}{number}");
        push(&mut self.text, &self.owner);
        push_list(&mut self.text, arguments);
        push(&mut self.text, ".");
    }

    fn finish<T>(mut self, method: &RawMethod<'_, T>, arguments: Vec<String>) -> String {
        let raw = front(method.method);
        if let Some((member, of_machine)) = self.machine.take() {
            self.finish_machine(member, of_machine, raw, arguments);
        } else if self.in_function && is_body_of_function(raw) {
            self.text.truncate(self.text.trim_end_matches('.').len());
        } else if self.in_closure && matches!(raw, ".ctor" | ".cctor") {
            self.in_compiler_type = true;
            push(&mut self.text, "Closure");
        } else {
            // Module initialisers.
            self.in_compiler_type |= self.in_holder && raw == ".cctor";
            let place = Place {
                owner: &self.owner,
                enclosing: method.related,
                captures: self.captures,
                in_type_name: false,
                shape: method.signature.map(shape).unwrap_or_default(),
            };
            let member = Member::parse(raw, place);
            let (mut of_method, mut of_local) = (std::mem::take(&mut self.of_method), vec![]);
            match member.within {
                Within::Local(_) => of_local = arguments,
                Within::Itself | Within::Lambda { .. } => of_method.extend(arguments),
            }
            member.push_to(&mut self.text, &of_method, &of_local);
        }
        if self.in_compiler_type { format!("(compiler) {}", self.text) } else { self.text }
    }

    /// The body of an async method or iterator has the method's name. Its other parts are under it.
    fn finish_machine(
        &mut self,
        member: Member,
        of_machine: Vec<String>,
        raw: &str,
        arguments: Vec<String>,
    ) {
        let (mut of_method, mut of_local) = (std::mem::take(&mut self.of_method), vec![]);
        match member.within {
            Within::Local(_) => of_local = of_machine,
            Within::Itself | Within::Lambda { .. } => of_method.extend(of_machine),
        }
        member.push_to(&mut self.text, &of_method, &of_local);
        if !matches!(raw, "MoveNext" | ".ctor") && !raw.starts_with("<>m__Finally") {
            push(&mut self.text, ".");
            Member::parse(raw, Place { owner: &member.method, ..Place::default() }).push_to(
                &mut self.text,
                &arguments,
                &[],
            );
        }
    }
}

/// F#'s names for the method of a closure, a sequence or a task.
fn is_body_of_function(method: &str) -> bool {
    let last = method.rsplit_once('.').map_or(method, |(_, last)| last);
    matches!(last, "Invoke" | "DirectInvoke" | "MoveNext" | "GenerateNext" | "Specialize")
}

/// Init accessors are marked in their return type (C# 9 specification, "init only setters").
const INIT: &str = "System.Runtime.CompilerServices.IsExternalInit";

fn shape(signature: &Signature) -> Shape {
    Shape {
        gives: Some(signature.return_type != "System.Void"),
        parameters: Some(signature.parameters.len()),
        init: signature.return_modifiers.iter().any(|modifier| modifier == INIT),
    }
}
