//! Types and methods as described by a module's metadata.
//!
//! There are two readers. [`Tables`] reads the image that the runtime has mapped, at no cost to the
//! app. The runtime's importer covers what is not in that image: modules made at run time, and what
//! another profiler or an edit has added to a module.
//!
//! Texts and blobs are borrowed from the module, which is alive while one of its methods is looked
//! at. Callers copy them at once.

mod tables;

use std::ffi::CStr;

use crate::com::metadata::Importer;
use crate::text::valid_part;

pub use tables::Tables;

/// A type's name in two parts.
#[derive(Clone, Copy)]
pub struct TypeName<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

#[derive(Clone, Copy)]
pub struct TypeDefinition<'a> {
    pub name: TypeName<'a>,
    /// Token of the base type.
    pub extends: u32,
    /// It is nested in another type.
    pub nested: bool,
}

#[derive(Clone, Copy)]
pub struct TypeReference<'a> {
    pub name: TypeName<'a>,
    /// Token of the enclosing type, the module or the assembly.
    pub scope: u32,
}

/// The metadata of one module.
#[derive(Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all modules are of the larger kind, and nothing is allocated for one"
)]
pub enum Metadata {
    /// In the module's image.
    Mapped(Tables<'static>),
    /// For a module with none, or only a part of it, in its image. The reference is released when
    /// the module is unloaded.
    Importer(Importer),
}

fn text(text: &'static CStr) -> &'static str {
    valid_part(text.to_bytes())
}

impl Metadata {
    pub fn release(&self) {
        if let Metadata::Importer(importer) = self {
            importer.release();
        }
    }

    /// Whether a type or method with this token can be looked up.
    pub fn has(&self, token: u32) -> bool {
        match self {
            Metadata::Mapped(tables) => tables.has(token),
            Metadata::Importer(_) => true,
        }
    }

    pub fn mvid(&self) -> Option<[u8; 16]> {
        match self {
            Metadata::Mapped(tables) => tables.mvid(),
            Metadata::Importer(importer) => importer.mvid(),
        }
    }

    pub fn type_def(&self, token: u32) -> Option<TypeDefinition<'static>> {
        match self {
            Metadata::Mapped(tables) => tables.type_def(token),
            Metadata::Importer(importer) => {
                let (name, nested) = importer.type_def(token)?;
                let name = TypeName { namespace: text(name.namespace), name: text(name.name) };
                Some(TypeDefinition { name, extends: importer.base_type(token)?, nested })
            }
        }
    }

    pub fn type_ref(&self, token: u32) -> Option<TypeReference<'static>> {
        match self {
            Metadata::Mapped(tables) => tables.type_ref(token),
            Metadata::Importer(importer) => {
                let (name, scope) = importer.type_ref(token)?;
                let name = TypeName { namespace: text(name.namespace), name: text(name.name) };
                Some(TypeReference { name, scope })
            }
        }
    }

    pub fn type_spec(&self, token: u32) -> Option<&'static [u8]> {
        match self {
            Metadata::Mapped(tables) => tables.type_spec(token),
            Metadata::Importer(importer) => importer.type_spec(token),
        }
    }

    pub fn method_name(&self, token: u32) -> Option<&'static str> {
        match self {
            Metadata::Mapped(tables) => tables.method_name(token),
            Metadata::Importer(importer) => importer.name_in_heap(token).map(text),
        }
    }

    pub fn field_name(&self, token: u32) -> Option<&'static str> {
        match self {
            Metadata::Mapped(tables) => tables.field_name(token),
            Metadata::Importer(importer) => importer.field_name(token).map(text),
        }
    }

    pub fn method_signature(&self, token: u32) -> Option<&'static [u8]> {
        match self {
            Metadata::Mapped(tables) => tables.method_signature(token),
            Metadata::Importer(importer) => importer.method_signature(token),
        }
    }

    pub fn method_parent(&self, token: u32) -> Option<u32> {
        match self {
            Metadata::Mapped(tables) => tables.method_parent(token),
            Metadata::Importer(importer) => importer.method_parent(token),
        }
    }

    pub fn enclosing_type(&self, token: u32) -> Option<u32> {
        match self {
            Metadata::Mapped(tables) => tables.enclosing_type(token),
            Metadata::Importer(importer) => importer.enclosing_type(token),
        }
    }

    /// Passes the position and name of each generic parameter of a type or method to `each`, mostly
    /// in their order.
    pub fn generic_parameters(&self, owner: u32, mut each: impl FnMut(u32, &'static str)) {
        match self {
            Metadata::Mapped(tables) => tables.generic_parameters(owner, each),
            Metadata::Importer(importer) => {
                let mut tokens = [0u32; 64];
                let count = importer.generic_parameters(owner, &mut tokens);
                for token in tokens.iter().take(count) {
                    if let Some((position, name)) = importer.generic_parameter(*token) {
                        each(position, text(name));
                    }
                }
            }
        }
    }
}
