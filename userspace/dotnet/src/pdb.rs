//! Portable PDBs: from a method and an IL offset to a document and a line.
//!
//! A portable PDB is metadata with tables of its own, so it is read by the same reader; a crate of
//! its own would be a second one. (`symbolic-ppdb` does not return state machines' methods.)
//!
//! References: `docs/design/specs/PortablePdb-Metadata.md` of the .NET runtime.

use crate::debug_directory::{MAX_PDB, PdbId};
use crate::metadata::Metadata;
use crate::sequence_points::decode;
use crate::source::read_bytes;
use crate::{Error, MAX_NAME_BYTES};
use strata_bytes::{Cursor, ReadAt, array, bounded_text, index};
use strata_ecma::{compressed, table, token};

pub use crate::sequence_points::{SequencePoint, point_at};

/// An open PDB.
#[derive(Debug)]
pub struct PortablePdb {
    metadata: Metadata,
    id: PdbId,
}

impl PortablePdb {
    /// Opens a PDB that is a file of its own, if it has the id that its module asks for.
    ///
    /// # Errors
    /// When the file is no portable PDB, is damaged, or belongs to another build.
    pub fn open(file: &dyn ReadAt, wanted: PdbId) -> Result<Self, Error> {
        let what = "PDB";
        if read_bytes(file, what, 0, 4, 4).ok().as_deref() != Some(b"BSJB") {
            return Err(Error::NotPortablePdb);
        }
        let pdb = Self::parse(read_bytes(file, what, 0, file.len(), MAX_PDB)?)?;
        pdb.check(wanted)?;
        Ok(pdb)
    }

    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let metadata = Metadata::parse(bytes)?;
        let id = array(metadata.reader().pdb_stream(), 0);
        Ok(Self { id: PdbId(id.ok_or(Error::NotPortablePdb)?), metadata })
    }

    /// # Errors
    /// When its id differs from the module's.
    pub fn check(&self, wanted: PdbId) -> Result<(), Error> {
        if self.id == wanted { Ok(()) } else { Err(Error::OtherBuild { found: self.id, wanted }) }
    }

    #[must_use]
    pub fn id(&self) -> PdbId {
        self.id
    }

    /// The row of a MethodDef, which is that of its debug information too.
    fn row(token: u32) -> Option<u32> {
        (token >> 24 == u32::from(table::METHOD_DEF)).then_some(token & 0x00ff_ffff)
    }

    /// The sequence points of a MethodDef, by IL offset.
    #[must_use]
    pub fn lines_of(&self, token: u32) -> Vec<SequencePoint> {
        let points = || {
            let row = Self::row(token)?;
            let document = self.metadata.cell(table::METHOD_DEBUG_INFORMATION, row, 0)?;
            let blob = self.metadata.cell(table::METHOD_DEBUG_INFORMATION, row, 1)?;
            // 0 is the nil blob.
            let blob = self.metadata.blob(blob).filter(|blob| !blob.is_empty())?;
            Some(decode(blob, document))
        };
        points().unwrap_or_default()
    }

    /// The document and the line that the IL at an offset came from.
    #[must_use]
    pub fn line_at(&self, token: u32, il_offset: u32) -> Option<(String, u32)> {
        let point = point_at(&self.lines_of(token), il_offset)?;
        Some((self.document(point.document)?, point.line))
    }

    /// The name of a document, as the compiler was given it.
    #[must_use]
    pub fn document(&self, row: u32) -> Option<String> {
        let name = self.metadata.blob(self.metadata.cell(table::DOCUMENT, row, 0)?)?;
        // The separator, then the parts, each a blob of its own; 0 is an empty part.
        let separator = *name.first()?;
        let mut parts = Cursor::new(name.get(1..)?);
        let mut text = Vec::new();
        let mut first = true;
        while !parts.is_empty() && text.len() <= MAX_NAME_BYTES {
            if !first && separator != 0 {
                text.push(separator);
            }
            first = false;
            let part = self.metadata.blob(compressed::unsigned(&mut parts)?)?;
            text.extend_from_slice(part.get(..MAX_NAME_BYTES).unwrap_or(part));
        }
        Some(bounded_text(&text).into_owned())
    }

    /// The source method of a state machine's `MoveNext`.
    #[must_use]
    pub fn kickoff_of(&self, move_next: u32) -> Option<u32> {
        let row = Self::row(move_next)?;
        let at = self.metadata.lower_bound(table::STATE_MACHINE_METHOD, 0, row);
        let found = self.metadata.cell(table::STATE_MACHINE_METHOD, at, 0)? == row;
        let kickoff = self.metadata.cell(table::STATE_MACHINE_METHOD, at, 1)?;
        (found && index(kickoff) <= 0x00ff_ffff).then_some(token(table::METHOD_DEF, kickoff))
    }

    /// How many methods have debug information.
    #[must_use]
    pub fn methods(&self) -> u32 {
        self.metadata.rows(table::METHOD_DEBUG_INFORMATION)
    }
}
