//! The metadata of a module, read where the runtime has mapped it.
//!
//! The profiling interface has an importer for it. Asking for that one makes the runtime convert
//! the module's metadata to a writable form (`PEAssembly::OpenImporter`), which costs milliseconds
//! for each module and makes the runtime's own lookups permanently slower. So it is read here, by
//! `strata-ecma`, which neither allocates nor follows an index without a check.

use strata_ecma::{Layout, Reader};

use super::{TypeDefinition, TypeName, TypeReference};
use crate::text::valid_part;

/// The metadata of one module.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

fn name<'a>(namespace: &'a [u8], name: &'a [u8]) -> TypeName<'a> {
    TypeName { namespace: valid_part(namespace), name: valid_part(name) }
}

impl<'a> Tables<'a> {
    /// Parses the metadata that starts at `root`. Forms that only compilers in the middle of an
    /// edit write are left to the importer.
    pub fn parse(root: &'a [u8]) -> Option<Tables<'a>> {
        Some(Tables { bytes: root, layout: Layout::parse(root).ok()? })
    }

    fn reader(&self) -> Reader<'_, 'a> {
        self.layout.on(self.bytes)
    }

    /// Whether a type or method has this token.
    pub fn has(&self, token: u32) -> bool {
        self.reader().has(token)
    }

    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.reader().mvid()
    }

    pub fn type_def(&self, token: u32) -> Option<TypeDefinition<'a>> {
        let found = self.reader().type_def(token)?;
        Some(TypeDefinition {
            name: name(found.namespace, found.name),
            extends: found.extends,
            nested: found.nested,
        })
    }

    pub fn type_ref(&self, token: u32) -> Option<TypeReference<'a>> {
        let found = self.reader().type_ref(token)?;
        Some(TypeReference { name: name(found.namespace, found.name), scope: found.scope })
    }

    pub fn type_spec(&self, token: u32) -> Option<&'a [u8]> {
        self.reader().type_spec(token)
    }

    pub fn method_name(&self, token: u32) -> Option<&'a str> {
        self.reader().method_name(token).map(valid_part)
    }

    pub fn field_name(&self, token: u32) -> Option<&'a str> {
        self.reader().field_name(token).map(valid_part)
    }

    pub fn method_signature(&self, token: u32) -> Option<&'a [u8]> {
        self.reader().method_signature(token)
    }

    /// The type that a method belongs to.
    pub fn method_parent(&self, token: u32) -> Option<u32> {
        self.reader().declaring_type(token)
    }

    pub fn enclosing_type(&self, token: u32) -> Option<u32> {
        self.reader().enclosing_type(token)
    }

    /// Passes the position and name of each generic parameter of a type or method to `each`.
    pub fn generic_parameters(&self, owner: u32, mut each: impl FnMut(u32, &'a str)) {
        for (position, name) in self.reader().generic_parameters(owner) {
            each(position, valid_part(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strata_ecma::signature::{tokens_of_method, tokens_of_type};
    use strata_ecma::{table, token};

    use super::*;
    use crate::image::Image;

    /// The assemblies of a runtime that the set-up of the tests has fetched.
    fn assemblies() -> Vec<Vec<u8>> {
        let shared = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.cache/dotnet/9/shared/Microsoft.NETCore.App");
        let version = std::fs::read_dir(&shared)
            .expect("a runtime: run `cargo xtask setup test`")
            .flatten()
            .next()
            .expect("a version");
        std::fs::read_dir(version.path())
            .expect("its files")
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|ending| ending == "dll"))
            .map(|file| std::fs::read(file.path()).expect("an assembly"))
            .collect()
    }

    fn metadata(file: &[u8]) -> Option<&'static [u8]> {
        // SAFETY: a file of an assembly is its flat image, and outlives the test.
        unsafe { Image::read(file.as_ptr() as usize, true) }.metadata
    }

    fn row_of_type(row: u32) -> u32 {
        token(table::TYPE_DEF, row)
    }

    #[test]
    fn every_type_and_method_of_a_framework_is_read() {
        let (mut types, mut methods, mut nested, mut parameters) = (0, 0, 0, 0);
        for file in assemblies() {
            let Some(tables) = metadata(&file).and_then(Tables::parse) else { continue };
            assert!(tables.mvid().is_some_and(|mvid| mvid != [0; 16]));
            for row in 1..=tables.reader().rows(table::TYPE_DEF) {
                let of_type = row_of_type(row);
                let found = tables.type_def(of_type).expect("a type");
                assert!(!found.name.name.is_empty());
                assert_eq!(found.nested, tables.enclosing_type(of_type).is_some());
                nested += u32::from(found.nested);
                types += 1;
                // Compilers count the parameters in the name, those of enclosing types apart.
                let mut count = 0;
                tables.generic_parameters(of_type, |position, name| {
                    assert_eq!(position, count);
                    assert!(!name.is_empty());
                    count += 1;
                });
                if let Some((_, arity)) = found.name.name.rsplit_once('`') {
                    assert!(arity.parse().is_ok_and(|arity: u32| arity <= count));
                }
                parameters += count;
                // Every method between this type's first and the next type's belongs to it.
                let first = tables.reader().cell(table::TYPE_DEF, row, 5).expect("a list");
                let next = tables.reader().cell(table::TYPE_DEF, row + 1, 5);
                for method in first..next.unwrap_or(tables.reader().rows(table::METHOD_DEF) + 1) {
                    let method_token = token(table::METHOD_DEF, method);
                    assert_eq!(tables.method_parent(method_token), Some(of_type));
                    assert!(tables.method_name(method_token).is_some_and(|name| !name.is_empty()));
                    let blob = tables.method_signature(method_token).expect("a signature");
                    tokens_of_method(blob, |named| assert!(tables.has(named)));
                    methods += 1;
                }
            }
            for row in 1..=tables.reader().rows(table::TYPE_REF) {
                let found = tables.type_ref(token(table::TYPE_REF, row)).expect("a reference");
                assert!(!found.name.name.is_empty());
            }
            for row in 1..=tables.reader().rows(table::TYPE_SPEC) {
                let blob = tables.type_spec(token(table::TYPE_SPEC, row)).expect("a blob");
                tokens_of_type(blob, |named| assert!(tables.has(named)));
            }
        }
        assert!(types > 10_000 && methods > 50_000, "{types} types, {methods} methods");
        assert!(nested > 1_000 && parameters > 1_000, "{nested} nested, {parameters} parameters");
    }

    #[test]
    fn tokens_that_are_not_there_are_nothing() {
        let file = assemblies().into_iter().max_by_key(Vec::len).expect("an assembly");
        let tables = metadata(&file).and_then(Tables::parse).expect("tables");
        for token in [0, 0x0200_0000, 0x02ff_ffff, 0x06ff_ffff, 0x7fff_ffff, u32::MAX] {
            assert!(!tables.has(token));
            assert!(tables.type_def(token).is_none() && tables.type_ref(token).is_none());
            assert!(tables.method_name(token).is_none() && tables.type_spec(token).is_none());
            assert!(tables.method_signature(token).is_none());
            tables.generic_parameters(token, |_, _| panic!("{token:#x}"));
        }
    }

    #[test]
    fn damaged_metadata_is_refused_or_read_within_its_bounds() {
        let file = assemblies().into_iter().min_by_key(Vec::len).expect("an assembly");
        let whole = metadata(&file).expect("metadata");
        let mut seed = 7u64;
        for _ in 0..20_000 {
            let mut damaged = whole.to_vec();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % damaged.len().min(2_000);
            damaged[at] = (seed >> 20) as u8;
            damaged.truncate((seed >> 40) as usize % (whole.len() * 2));
            let Some(tables) = Tables::parse(&damaged) else { continue };
            for row in 0..50 {
                let _ = tables.type_def(row_of_type(row));
                let _ = tables.enclosing_type(row_of_type(row));
                let _ = tables.method_parent(token(table::METHOD_DEF, row));
                let _ = tables.method_signature(token(table::METHOD_DEF, row));
                tables.generic_parameters(row_of_type(row), |_, _| ());
            }
        }
    }
}
