//! ECMA-335 metadata: streams, heaps and tables of an assembly, a module or a portable PDB.
//!
//! The metadata is read whole, once; rows are looked at where they are.
//!
//! References: ECMA-335 II.22 to II.24; `docs/design/specs/PortablePdb-Metadata.md`.

mod names;
pub mod schema;
mod tables;

pub use names::Method;
pub(crate) use names::{row_of, table_of};

use std::ops::Range;

use crate::Error;
use crate::bytes::{Cursor, array, bounded_text, index, name_bytes, u64_at};
use schema::{TABLES, table};
use tables::Tables;

/// The largest known assemblies have some 25 MB of it.
pub(crate) const MAX_METADATA: u64 = 64 << 20;
const MAX_STREAMS: u16 = 32;
const WHAT: &str = "metadata";

/// The metadata of one module.
#[derive(Debug)]
pub struct Metadata {
    bytes: Vec<u8>,
    strings: Range<usize>,
    blobs: Range<usize>,
    guids: Range<usize>,
    pdb: Option<Range<usize>>,
    tables: Tables,
}

impl Metadata {
    /// # Errors
    /// When the bytes are no metadata, or their streams or tables lie outside of them.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let cut = || Error::Cut { what: WHAT };
        let mut cursor = Cursor::new(&bytes);
        if cursor.u32() != Some(0x424a_5342) {
            return Err(Error::Damaged { what: WHAT });
        }
        cursor.take(8).ok_or_else(cut)?;
        let version = cursor.u32().ok_or_else(cut)?;
        cursor.take(index(version)).ok_or_else(cut)?;
        cursor.u16().ok_or_else(cut)?;
        let streams = cursor.u16().ok_or_else(cut)?;
        let (mut strings, mut blobs, mut guids) = (0..0, 0..0, 0..0);
        let (mut tables, mut pdb) = (None, None);
        for _ in 0..streams.min(MAX_STREAMS) {
            let start = index(cursor.u32().ok_or_else(cut)?);
            let size = index(cursor.u32().ok_or_else(cut)?);
            let name = name_bytes(cursor.rest().get(..32).unwrap_or(cursor.rest()));
            // With its NUL, to the next multiple of four.
            cursor.take((name.len() / 4).saturating_add(1).saturating_mul(4)).ok_or_else(cut)?;
            let end = start.checked_add(size).filter(|end| *end <= bytes.len()).ok_or_else(cut)?;
            match name {
                b"#Strings" => strings = start..end,
                b"#Blob" => blobs = start..end,
                b"#GUID" => guids = start..end,
                b"#Pdb" => pdb = Some(start..end),
                b"#~" => tables = Some(start..end),
                // Written by compilers only while a program is edited and continued.
                b"#-" => {
                    return Err(Error::Foreign { what: WHAT, form: "uncompressed".into() });
                }
                _ => {}
            }
        }
        let outer_rows = match &pdb {
            Some(stream) => outer_rows(bytes.get(stream.clone()).ok_or_else(cut)?),
            None => Some([0; TABLES]),
        };
        let tables = Tables::parse(
            &bytes,
            tables.ok_or(Error::Damaged { what: WHAT })?,
            &outer_rows.ok_or_else(cut)?,
        )?;
        Ok(Self { strings, blobs, guids, pdb, tables, bytes })
    }

    /// Its size in memory, nearly.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many rows a table has.
    #[must_use]
    pub fn rows(&self, table: u8) -> u32 {
        self.tables.rows(table)
    }

    /// The value in a column of a row; rows count from 1.
    pub(crate) fn cell(&self, table: u8, row: u32, column: usize) -> Option<u32> {
        self.tables.cell(&self.bytes, table, row, column)
    }

    pub(crate) fn lower_bound(&self, table: u8, column: usize, wanted: u32) -> u32 {
        self.tables.lower_bound(&self.bytes, table, column, wanted)
    }

    fn heap(&self, heap: &Range<usize>, offset: u32) -> Option<&[u8]> {
        self.bytes.get(heap.clone())?.get(index(offset)..)
    }

    pub(crate) fn string(&self, offset: u32) -> Option<String> {
        self.heap(&self.strings, offset).map(|bytes| bounded_text(name_bytes(bytes)))
    }

    pub(crate) fn blob(&self, offset: u32) -> Option<&[u8]> {
        let mut cursor = Cursor::new(self.heap(&self.blobs, offset)?);
        let length = cursor.compressed()?;
        cursor.take(index(length))
    }

    fn guid(&self, number: u32) -> Option<[u8; 16]> {
        let at = index(number.checked_sub(1)?).checked_mul(16)?;
        array(self.bytes.get(self.guids.clone())?, at)
    }

    /// The stream that only a portable PDB has.
    pub(crate) fn pdb_stream(&self) -> Option<&[u8]> {
        self.bytes.get(self.pdb.clone()?)
    }

    /// What tells one build of the module from another.
    #[must_use]
    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.guid(self.cell(table::MODULE, 1, 2)?)
    }

    /// The name of the module, with its extension.
    #[must_use]
    pub fn module_name(&self) -> Option<String> {
        self.string(self.cell(table::MODULE, 1, 1)?)
    }

    /// The simple name of the assembly.
    #[must_use]
    pub fn assembly_name(&self) -> Option<String> {
        self.string(self.cell(table::ASSEMBLY, 1, 7)?)
    }

    /// The simple name of an assembly that is referred to.
    #[must_use]
    pub fn assembly_ref(&self, row: u32) -> Option<String> {
        self.string(self.cell(table::ASSEMBLY_REF, row, 6)?)
    }
}

/// The row counts of the module that a `#Pdb` stream belongs to.
fn outer_rows(stream: &[u8]) -> Option<[u32; TABLES]> {
    let mut rows = [0; TABLES];
    let referenced = u64_at(stream, 24)?;
    let mut cursor = Cursor::new(stream.get(32..)?);
    for (number, rows) in rows.iter_mut().enumerate() {
        if referenced >> number & 1 != 0 {
            *rows = cursor.u32()?;
        }
    }
    Some(rows)
}
