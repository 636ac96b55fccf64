//! ECMA-335 metadata of a file: an assembly, a module or a portable PDB.
//!
//! The metadata is read whole, once; `strata-ecma` knows where its rows are.

mod names;

pub use names::Method;

use crate::Error;
use strata_bytes::bounded_text;
use strata_ecma::{Layout, Reader, metadata, table};

/// The largest known assemblies have some 25 MB of it.
pub(crate) const MAX_METADATA: u64 = 64 << 20;

/// The metadata of one module.
#[derive(Debug)]
pub struct Metadata {
    bytes: Vec<u8>,
    layout: Layout,
}

impl Metadata {
    /// # Errors
    /// When the bytes are no metadata, or their streams or tables lie outside of them.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let what = "metadata";
        let layout = Layout::parse(&bytes).map_err(|error| match error {
            metadata::Error::NotMetadata | metadata::Error::TooManyRows => Error::Damaged { what },
            metadata::Error::Cut => Error::Cut { what },
            metadata::Error::Uncompressed => Error::Foreign { what, form: "uncompressed".into() },
            metadata::Error::UnknownTable => {
                Error::Foreign { what, form: "an unknown table".into() }
            }
        })?;
        Ok(Self { bytes, layout })
    }

    #[inline]
    pub(crate) fn reader(&self) -> Reader<'_, '_> {
        self.layout.on(&self.bytes)
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
        self.reader().rows(table)
    }

    /// The value in a column of a row; rows count from 1.
    #[inline]
    pub(crate) fn cell(&self, table: u8, row: u32, column: usize) -> Option<u32> {
        self.reader().cell(table, row, column)
    }

    pub(crate) fn lower_bound(&self, table: u8, column: usize, wanted: u32) -> u32 {
        self.reader().lower_bound(table, column, wanted)
    }

    pub(crate) fn string(&self, offset: u32) -> Option<String> {
        self.reader().string(offset).map(|bytes| bounded_text(bytes).into_owned())
    }

    pub(crate) fn blob(&self, offset: u32) -> Option<&[u8]> {
        self.reader().blob(offset)
    }

    /// The identity of the module's build (MVID).
    #[must_use]
    pub fn mvid(&self) -> Option<[u8; 16]> {
        self.reader().mvid()
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
