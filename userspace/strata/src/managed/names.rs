//! From what is known of a method to the name that a person recognises.

use strata_bridge_layout::record::MethodRecord;
use strata_files::{ManagedMethod, ManagedNames};

use super::runtime::Runtime;
use crate::symbols::NamedFrame;
use crate::symbols::managed::frame;

/// Of a method that the bridge has told of.
pub fn of_generated(runtime: &Runtime, method: &MethodRecord) -> NamedFrame {
    let name = match runtime.type_of(method.module, method.type_token) {
        Some(of_type) => format!("{}.{}", of_type.name, method.name),
        None => method.name.clone(),
    };
    frame(&name, &name)
}

/// Of a method that its assembly tells of.
pub fn of_precompiled(method: &ManagedMethod, _names: &ManagedNames) -> NamedFrame {
    let name = format!("{}.{}", method.type_name, method.method_name);
    frame(&name, &name)
}
