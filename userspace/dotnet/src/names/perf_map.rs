//! Names as the runtime writes them into its own perf map, which it does where it is started with
//! `DOTNET_PerfMapEnabled`, or asked to: a method's return type, its assembly, its type, its name, the
//! types of its parameters and how it was compiled (`PerfMap::LogJITCompiledMethod`,
//! src/coreclr/vm/perfmap.cpp).

use super::frame::{FrameName, Kind, RawMethod, frame_name};
use super::inert::inert;

/// A method of a perf map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodOfMap<'a> {
    /// Empty for one without metadata.
    pub assembly: &'a str,
    pub frame: FrameName,
}

/// The type of methods without metadata.
const DYNAMIC: &str = "dynamicClass";
/// How the names of glue begin that the runtime makes.
const GLUE: &str = "IL_STUB";
/// Stubs of the runtime, by the function that has made them, and the kind that it states.
const STUBS: [(&str, &str); 6] = [
    ("GenerateLookupStub", "interface lookup"),
    ("GenerateDispatchStub", "interface dispatch"),
    ("GenerateResolveStub", "interface resolve"),
    ("GenerateVTableCallStub", "virtual call"),
    ("PRECODE_FIXUP", "precode"),
    ("PRECODE_STUB", "precode"),
];

/// The method of a line, if its name has the runtime's form: what else a perf map names may not be of a
/// .NET program at all.
#[must_use]
pub fn of_perf_map(line: &str) -> Option<MethodOfMap<'_>> {
    if let Some(stub) = stub(line) {
        return Some(stub);
    }
    let (declared, tier) = line.strip_suffix(']')?.rsplit_once('[')?;
    let is_tier = !tier.is_empty() && tier.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_tier || !declared.ends_with(')') {
        return None;
    }
    let (assembly, method) = after_return_type(declared)?;
    let (type_name, rest) = method.split_once("::")?;
    let (name, _) = rest.split_once('(')?;
    if type_name == DYNAMIC {
        let kind = if name.starts_with(GLUE) { Kind::Stub } else { Kind::Dynamic };
        let raw = RawMethod::<&str> { method: name, kind, ..RawMethod::default() };
        return Some(MethodOfMap { assembly: "", frame: frame_name(&raw) });
    }
    let (type_name, arguments) = match type_name.split_once('[') {
        Some((name, rest)) => (name, arguments(rest.strip_suffix(']')?)),
        None => (type_name, Vec::new()),
    };
    // The map has no names of parameters.
    let parameters: &[&str] = if arguments.len() == 1 { &["T"] } else { &[] };
    let raw = RawMethod {
        type_name,
        method: name,
        type_arguments: &arguments,
        type_parameters: parameters,
        ..RawMethod::default()
    };
    Some(MethodOfMap { assembly, frame: frame_name(&raw) })
}

/// `stub<28> GenerateLookupStub<GenerateLookupStub>`
fn stub(line: &str) -> Option<MethodOfMap<'_>> {
    let (number, rest) = line.strip_prefix("stub<")?.split_once("> ")?;
    let (maker, kind) = rest.strip_suffix('>')?.split_once('<')?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let known = STUBS.iter().find(|(name, _)| [maker, kind].contains(name));
    let name = inert(&format!("(stub) {}", known.map_or(maker, |(_, shown)| shown)));
    let frame = FrameName { system_name: name.clone(), name, plumbing: false };
    Some(MethodOfMap { assembly: "", frame })
}

/// Arguments of a type, which may have arguments of their own in brackets.
fn arguments(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let outside = |character: char| {
        match character {
            '[' => depth = depth.saturating_add(1),
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    };
    text.split(outside).collect()
}

/// The assembly in brackets of its own, and what follows it.
fn after_return_type(declared: &str) -> Option<(&str, &str)> {
    let start = match declared.strip_prefix('[') {
        Some(_) => 0,
        None => declared.find(" [")?.checked_add(1)?,
    };
    declared.get(start..)?.strip_prefix('[')?.split_once("] ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> Option<(String, String)> {
        of_perf_map(line).map(|method| (method.frame.name, method.assembly.to_owned()))
    }

    #[test]
    fn methods_have_the_names_that_the_bridge_gives_them() {
        let core = "System.Private.CoreLib";
        for (line, name, assembly) in [
            ("void [App] Soak.App::Cpu()[OptimizedTier1OSR]", "Soak.App.Cpu", "App"),
            (
                "instance void [App] Soak.OrderException::.ctor(string)[InstrumentedTier]",
                "Soak.OrderException.OrderException",
                "App",
            ),
            (
                "bool [System.Private.CoreLib] System.DateTime::op_LessThan(valuetype System.DateTime,\
              valuetype System.DateTime)[OptimizedTier1]",
                "System.DateTime.operator <",
                core,
            ),
            (
                "instance void [System.Private.CoreLib] System.Collections.Generic.List`1\
              [System.__Canon]::Add(!0)[InstrumentedTierOptimized]",
                "System.Collections.Generic.List<T>.Add",
                core,
            ),
            (
                "instance int32[] [System.Private.CoreLib] System.Collections.Generic.Dictionary`2\
              [System.Int32,System.Collections.Generic.List`1[System.__Canon]]::get_Item(!0)\
              [PreJIT]",
                "System.Collections.Generic.Dictionary<System.Int32, \
              System.Collections.Generic.List<__Canon>>.this[].get",
                core,
            ),
            (
                "class System.Runtime.CompilerServices.IAsyncStateMachineBox [System.Private.CoreLib] \
              System.Runtime.CompilerServices.AsyncTaskMethodBuilder`1[System.Threading.Tasks.\
              VoidTaskResult]::GetStateMachineBox(!!0&,class System.Threading.Tasks.Task`1<!0>&)\
              [OptimizedTier1]",
                "System.Runtime.CompilerServices.AsyncTaskMethodBuilder<System.Threading.Tasks.\
              VoidTaskResult>.GetStateMachineBox",
                core,
            ),
            (
                "instance void [App] Soak.App+<>c__DisplayClass8_0+<<Main>b__0>d::MoveNext()\
              [InstrumentedTier]",
                "Soak.App.Main_AnonymousMethod",
                "App",
            ),
            ("stub<28> GenerateLookupStub<GenerateLookupStub>", "(stub) interface lookup", ""),
            ("stub<1> AllocateTemporaryEntryPoints<PRECODE_FIXUP>", "(stub) precode", ""),
            ("stub<1> Other<Other>", "(stub) Other", ""),
            ("int32 [App] dynamicClass::Invoke_1(object)[Optimized]", "(dynamic) Invoke_1", ""),
        ] {
            assert_eq!(shown(line), Some((name.to_owned(), assembly.to_owned())), "{line}");
        }
    }

    #[test]
    fn what_other_programs_name_is_left_as_it_is() {
        for line in [
            "stub<x> GenerateLookupStub<GenerateLookupStub>",
            "LazyCompile:*run /srv/app.js:12",
            "Lcom/shop/Order;::pay",
            "py::fib:/srv/app.py",
            "int Shop::pay(int)[x]",
            "[x]",
            ")[x]",
            "[] a::b()[x",
            " [::()[x]",
            "",
        ] {
            assert_eq!(of_perf_map(line), None, "{line}");
        }
    }
}
