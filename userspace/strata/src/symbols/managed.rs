//! Names of .NET methods, by what the bridge has said of them.

use strata_bridge_layout::record::MethodRecord;
use strata_profile::FrameKind;

use super::NamedFrame;
use crate::managed::runtime::Runtime;

/// The module and the name of the method at an address, as it was in an era.
pub fn name(runtime: &Runtime, address: u64, era: u32) -> Option<(String, NamedFrame)> {
    let found = runtime.find(address, era)?;
    let method = runtime.method_of(found.method)?;
    let module = module_name(runtime, method);
    Some((module, NamedFrame::plain(FrameKind::Managed, &raw_name(runtime, method))))
}

fn module_name(runtime: &Runtime, method: &MethodRecord) -> String {
    let Some(module) = runtime.module_of(method.module) else { return "[managed]".into() };
    if !module.path.is_empty() {
        return module.path.clone();
    }
    format!("{}.dll", module.assembly)
}

fn raw_name(runtime: &Runtime, method: &MethodRecord) -> String {
    match runtime.type_of(method.module, method.type_token) {
        Some(of_type) => format!("{}.{}", of_type.name, method.name),
        None => method.name.clone(),
    }
}
