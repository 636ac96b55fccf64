//! The metadata of a module, read where the runtime has mapped it (ECMA-335 II.24).
//!
//! The profiling interface has an importer for it. Asking for that one makes the runtime convert the
//! module's metadata to a writable form (`PEAssembly::OpenImporter`), which costs milliseconds for
//! each module and makes the runtime's own lookups slower for good. So it is read here.
//!
//! **Invariant:** nothing is allocated, and no index is followed without a check.

use std::ffi::CStr;

use super::schema::{
    Column, GENERIC_PARAM, METHOD_DEF, METHOD_PTR, MODULE, NESTED_CLASS, RESOLUTION_SCOPE, SCHEMA,
    TABLES, TYPE_DEF, TYPE_DEF_OR_REF, TYPE_OR_METHOD_DEF, TYPE_REF, TYPE_SPEC,
};
use super::{TypeDefinition, TypeName, TypeReference};
use crate::com::metadata::row;
use crate::text::valid_part;

/// A table that is read here, with at most six columns.
#[derive(Clone, Copy, Default)]
struct Table {
    /// From the start of the tables' stream.
    start: u32,
    rows: u32,
    row_size: u8,
    /// Where each column starts within a row, and its size.
    columns: [(u8, u8); 6],
}

/// The metadata of one module.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    stream: &'a [u8],
    strings: &'a [u8],
    blobs: &'a [u8],
    guids: &'a [u8],
    module: Table,
    type_ref: Table,
    type_def: Table,
    method_def: Table,
    type_spec: Table,
    nested_class: Table,
    generic_param: Table,
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A stream of the metadata root, by its name.
fn stream<'a>(root: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let version_length = word(root, 12)? as usize;
    let mut at = 16usize.checked_add(version_length)?;
    let count = half(root, at + 2)?;
    at += 4;
    for _ in 0..count.min(16) {
        let (offset, size) = (word(root, at)? as usize, word(root, at + 4)? as usize);
        let name = root.get(at + 8..)?;
        let length = name.iter().take(32).position(|byte| *byte == 0)?;
        if name.get(..length)? == wanted {
            return root.get(offset..offset.checked_add(size)?);
        }
        at += 8 + (length + 4) / 4 * 4;
    }
    None
}

impl<'a> Tables<'a> {
    /// Understands the metadata that starts with `root`. Uncompressed tables (`#-`) and tables of
    /// pointers, which only compilers in the middle of an edit write, are left to the importer.
    pub fn parse(root: &'a [u8]) -> Option<Tables<'a>> {
        if root.get(..4)? != b"BSJB" {
            return None;
        }
        let tables = stream(root, b"#~")?;
        let heap_sizes = *tables.get(6)?;
        let valid = u64::from(word(tables, 8)?) | u64::from(word(tables, 12)?) << 32;
        if valid >> TABLES != 0 || valid & 1 << METHOD_PTR != 0 {
            return None;
        }
        let mut rows = [0u32; TABLES];
        let mut at = 24;
        for (number, count) in rows.iter_mut().enumerate() {
            if valid & 1 << number != 0 {
                *count = word(tables, at)?;
                at += 4;
            }
        }
        // Written by some tools: four more bytes (md/inc/metamodel.h, `EXTRA_DATA`).
        if heap_sizes & 0x40 != 0 {
            at += 4;
        }
        let mut all = [Table::default(); TABLES];
        for (number, table) in all.iter_mut().enumerate() {
            *table = layout(number, &rows, heap_sizes, at)?;
            at = at.checked_add(table.rows as usize * usize::from(table.row_size))?;
        }
        // The last row ends within the stream, and so do all others.
        tables.get(..at)?;
        Some(Tables {
            stream: tables,
            strings: stream(root, b"#Strings").unwrap_or_default(),
            blobs: stream(root, b"#Blob").unwrap_or_default(),
            guids: stream(root, b"#GUID").unwrap_or_default(),
            module: all[MODULE],
            type_ref: all[TYPE_REF],
            type_def: all[TYPE_DEF],
            method_def: all[METHOD_DEF],
            type_spec: all[TYPE_SPEC],
            nested_class: all[NESTED_CLASS],
            generic_param: all[GENERIC_PARAM],
        })
    }

    /// A column of a row, which counts from 1.
    fn column(&self, table: &Table, column: usize, row: u32) -> Option<u32> {
        if row == 0 || row > table.rows {
            return None;
        }
        let (offset, size) = *table.columns.get(column)?;
        let start = table.start as usize + (row as usize - 1) * usize::from(table.row_size);
        let at = start + usize::from(offset);
        if size == 2 { half(self.stream, at) } else { word(self.stream, at) }
    }

    fn text(&self, table: &Table, column: usize, row: u32) -> Option<&'a str> {
        let bytes = self.strings.get(self.column(table, column, row)? as usize..)?;
        Some(valid_part(CStr::from_bytes_until_nul(bytes).ok()?.to_bytes()))
    }

    fn blob(&self, table: &Table, column: usize, row: u32) -> Option<&'a [u8]> {
        let bytes = self.blobs.get(self.column(table, column, row)? as usize..)?;
        let first = u32::from(*bytes.first()?);
        let (length, start) = match first {
            0x00..=0x7f => (first, 1),
            0x80..=0xbf => ((first & 0x3f) << 8 | u32::from(*bytes.get(1)?), 2),
            _ => (u32::from_be_bytes(*bytes.first_chunk()?) & 0x1fff_ffff, 4),
        };
        bytes.get(start..start + length as usize)
    }

    /// The token that a coded index means.
    fn token(&self, table: &Table, column: usize, row: u32, coded: &super::Coded) -> Option<u32> {
        let value = self.column(table, column, row)?;
        let table = coded.tables.get(value as usize & ((1 << coded.bits) - 1))?;
        Some((*table as u32) << 24 | value >> coded.bits)
    }

    /// Whether a type or method has this token.
    pub fn has(&self, token: u32) -> bool {
        let table = match (token >> 24) as usize {
            TYPE_REF => &self.type_ref,
            TYPE_DEF => &self.type_def,
            METHOD_DEF => &self.method_def,
            TYPE_SPEC => &self.type_spec,
            _ => return false,
        };
        (1..=table.rows).contains(&row(token))
    }

    pub fn mvid(&self) -> Option<[u8; 16]> {
        let index = self.column(&self.module, 2, 1)?.checked_sub(1)? as usize;
        self.guids.get(index * 16..)?.first_chunk().copied()
    }

    pub fn type_def(&self, token: u32) -> Option<TypeDefinition<'a>> {
        const VISIBILITY: u32 = 7;
        const NESTED_PUBLIC: u32 = 2;
        let row = row(token);
        let table = &self.type_def;
        Some(TypeDefinition {
            name: TypeName {
                name: self.text(table, 1, row)?,
                namespace: self.text(table, 2, row)?,
            },
            extends: self.token(table, 3, row, &TYPE_DEF_OR_REF)?,
            nested: self.column(table, 0, row)? & VISIBILITY >= NESTED_PUBLIC,
        })
    }

    pub fn type_ref(&self, token: u32) -> Option<TypeReference<'a>> {
        let row = row(token);
        let table = &self.type_ref;
        Some(TypeReference {
            scope: self.token(table, 0, row, &RESOLUTION_SCOPE)?,
            name: TypeName {
                name: self.text(table, 1, row)?,
                namespace: self.text(table, 2, row)?,
            },
        })
    }

    pub fn type_spec(&self, token: u32) -> Option<&'a [u8]> {
        self.blob(&self.type_spec, 0, row(token))
    }

    pub fn method_name(&self, token: u32) -> Option<&'a str> {
        self.text(&self.method_def, 3, row(token))
    }

    pub fn method_signature(&self, token: u32) -> Option<&'a [u8]> {
        self.blob(&self.method_def, 4, row(token))
    }

    /// The type that a method belongs to: the last whose list of methods starts at or before it.
    pub fn method_parent(&self, token: u32) -> Option<u32> {
        let method = row(token);
        let starts_after = |row: u32| Some(self.column(&self.type_def, 5, row)? > method);
        let after = self.first(&self.type_def, starts_after)?;
        let row = after.checked_sub(1).filter(|row| *row != 0)?;
        Some((TYPE_DEF as u32) << 24 | row)
    }

    pub fn enclosing_type(&self, token: u32) -> Option<u32> {
        let nested = row(token);
        let table = &self.nested_class;
        let found = self.first(table, |row| Some(self.column(table, 0, row)? >= nested))?;
        if self.column(table, 0, found)? != nested {
            return None;
        }
        Some((TYPE_DEF as u32) << 24 | self.column(table, 1, found)?)
    }

    /// Gives the position and name of each generic parameter of a type or method to `each`.
    pub fn generic_parameters(&self, owner: u32, mut each: impl FnMut(u32, &'a str)) {
        let tag = u32::from(owner >> 24 == METHOD_DEF as u32);
        let coded = row(owner) << TYPE_OR_METHOD_DEF.bits | tag;
        let table = &self.generic_param;
        let at_or_after = |row: u32| Some(self.column(table, 2, row)? >= coded);
        let Some(first) = self.first(table, at_or_after) else { return };
        for row in first..=table.rows {
            if self.column(table, 2, row) != Some(coded) {
                return;
            }
            if let (Some(at), Some(name)) = (self.column(table, 0, row), self.text(table, 3, row)) {
                each(at, name);
            }
        }
    }

    /// The first row of a sorted table for which something holds; one behind the last if for none.
    fn first(&self, table: &Table, holds: impl Fn(u32) -> Option<bool>) -> Option<u32> {
        let (mut low, mut high) = (1, table.rows.checked_add(1)?);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle)? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }
}

/// How a table lies in the stream.
fn layout(number: usize, rows: &[u32; TABLES], heap_sizes: u8, start: usize) -> Option<Table> {
    let mut table =
        Table { start: u32::try_from(start).ok()?, rows: *rows.get(number)?, ..Table::default() };
    let heap = |bit: u8| if heap_sizes & bit != 0 { 4 } else { 2 };
    let mut offset = 0u8;
    for (position, column) in SCHEMA.get(number)?.iter().enumerate() {
        let size = match column {
            Column::Fixed(size) => *size as u8,
            Column::String => heap(1),
            Column::Guid => heap(2),
            Column::Blob => heap(4),
            Column::Row(of) => {
                if *rows.get(*of)? < 1 << 16 {
                    2
                } else {
                    4
                }
            }
            Column::Coded(coded) => {
                let most = coded.tables.iter().filter_map(|of| rows.get(*of)).max()?;
                if *most < 1 << (16 - coded.bits) { 2 } else { 4 }
            }
        };
        if let Some(place) = table.columns.get_mut(position) {
            *place = (offset, size);
        }
        offset += size;
    }
    table.row_size = offset;
    Some(table)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::image::Image;
    use crate::signature;

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
        (TYPE_DEF as u32) << 24 | row
    }

    #[test]
    fn every_type_and_method_of_a_framework_is_read() {
        let (mut types, mut methods, mut nested, mut parameters) = (0, 0, 0, 0);
        for file in assemblies() {
            let Some(tables) = metadata(&file).and_then(Tables::parse) else { continue };
            assert!(tables.mvid().is_some_and(|mvid| mvid != [0; 16]));
            for row in 1..=tables.type_def.rows {
                let token = row_of_type(row);
                let found = tables.type_def(token).expect("a type");
                assert!(!found.name.name.is_empty());
                assert_eq!(found.nested, tables.enclosing_type(token).is_some());
                nested += u32::from(found.nested);
                types += 1;
                // Compilers count the parameters in the name, those of enclosing types apart.
                let mut count = 0;
                tables.generic_parameters(token, |position, name| {
                    assert_eq!(position, count);
                    assert!(!name.is_empty());
                    count += 1;
                });
                if let Some((_, arity)) = found.name.name.rsplit_once('`') {
                    assert!(arity.parse().is_ok_and(|arity: u32| arity <= count));
                }
                parameters += count;
                // Every method between this type's first and the next type's belongs to it.
                let first = tables.column(&tables.type_def, 5, row).expect("a list");
                let next = tables.column(&tables.type_def, 5, row + 1);
                for method in first..next.unwrap_or(tables.method_def.rows + 1) {
                    let method_token = (METHOD_DEF as u32) << 24 | method;
                    assert_eq!(tables.method_parent(method_token), Some(token));
                    assert!(tables.method_name(method_token).is_some_and(|name| !name.is_empty()));
                    let blob = tables.method_signature(method_token).expect("a signature");
                    signature::tokens_of_method(blob, &mut |named| assert!(tables.has(named)));
                    methods += 1;
                }
            }
            for row in 1..=tables.type_ref.rows {
                let found = tables.type_ref((TYPE_REF as u32) << 24 | row).expect("a reference");
                assert!(!found.name.name.is_empty());
            }
            for row in 1..=tables.type_spec.rows {
                let blob = tables.type_spec((TYPE_SPEC as u32) << 24 | row).expect("a blob");
                signature::tokens_of_type(blob, &mut |named| assert!(tables.has(named)));
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
                let _ = tables.method_parent((METHOD_DEF as u32) << 24 | row);
                let _ = tables.method_signature((METHOD_DEF as u32) << 24 | row);
                tables.generic_parameters(row_of_type(row), |_, _| ());
            }
        }
    }
}
