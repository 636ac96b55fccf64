//! The debug directory of a PE image: which PDB belongs to it, and the PDB itself when embedded.
//!
//! Reference: `docs/design/specs/PE-COFF.md` of the .NET runtime.

use std::fmt;

use crate::Error;
use crate::pe::PeImage;
use crate::source::read_bytes;
use strata_bytes::{array, bounded_text, u16_at, u32_at, until_nul};

const ENTRY_BYTES: usize = 28;
const MAX_ENTRIES: u64 = 64;
const MAX_ENTRY_DATA: u64 = 64 << 10;
/// Of an unpacked PDB; those of the largest programs have some tens of megabytes.
pub(crate) const MAX_PDB: u64 = 64 << 20;

const CODE_VIEW: u32 = 2;
const EMBEDDED_PORTABLE_PDB: u32 = 17;
const PDB_CHECKSUM: u32 = 19;

/// The identity of a build's PDB: a GUID and a stamp, in the order of the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PdbId(pub [u8; 20]);

impl PdbId {
    pub(crate) fn new(guid: [u8; 16], stamp: u32) -> Self {
        let mut id = [0; 20];
        let (head, tail) = id.split_at_mut(16);
        head.copy_from_slice(&guid);
        tail.copy_from_slice(&stamp.to_le_bytes());
        Self(id)
    }
}

impl fmt::Display for PdbId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for PdbId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PdbId({self})")
    }
}

/// The CodeView entry of a portable PDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PdbReference {
    pub id: PdbId,
    /// Always 1 for portable PDBs.
    pub age: u32,
    /// Where the compiler wrote it: a hint, on the machine that built it.
    pub path: String,
}

/// The `PdbChecksum` entry: the hash of the PDB with its id zeroed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PdbChecksum {
    pub algorithm: String,
    pub hash: Vec<u8>,
}

/// The contents of the debug directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugDirectory {
    /// Of a portable PDB; that of a Windows PDB is not read.
    pub pdb: Option<PdbReference>,
    pub checksums: Vec<PdbChecksum>,
    /// Offset in the file and size of an embedded PDB as it is stored.
    embedded: Option<(u64, u64)>,
}

impl DebugDirectory {
    pub(crate) fn read(image: &PeImage<'_>) -> Result<Self, Error> {
        let what = "debug directory";
        let mut found = Self::default();
        let Some(directory) = image.debug_directory() else { return Ok(found) };
        let length = u64::from(directory.size).min(MAX_ENTRIES * ENTRY_BYTES as u64);
        let entries = image.read(what, directory.rva, length, length)?;
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            found.add(image, entry)?;
        }
        Ok(found)
    }

    fn add(&mut self, image: &PeImage<'_>, entry: &[u8]) -> Result<(), Error> {
        let what = "debug directory";
        let (Some(stamp), Some(minor), Some(kind), Some(size), Some(offset)) = (
            u32_at(entry, 4),
            u16_at(entry, 10),
            u32_at(entry, 12),
            u32_at(entry, 16),
            u32_at(entry, 24),
        ) else {
            return Ok(());
        };
        let data = || {
            let length = u64::from(size).min(MAX_ENTRY_DATA);
            read_bytes(image.file(), what, offset.into(), length, length)
        };
        match kind {
            // 0x504d ("PM"): a portable PDB, whose id ends with the entry's stamp.
            CODE_VIEW if minor == 0x504d && self.pdb.is_none() => {
                self.pdb = code_view(&data()?, stamp);
            }
            EMBEDDED_PORTABLE_PDB if self.embedded.is_none() => {
                self.embedded = Some((offset.into(), size.into()));
            }
            PDB_CHECKSUM => {
                let data = data()?;
                let name = until_nul(&data);
                let hash = data.get(name.len().saturating_add(1)..).unwrap_or_default();
                if hash.len() <= 64 {
                    self.checksums.push(PdbChecksum {
                        algorithm: bounded_text(name).into_owned(),
                        hash: hash.to_vec(),
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    #[must_use]
    pub fn has_embedded_pdb(&self) -> bool {
        self.embedded.is_some()
    }

    /// The embedded PDB, unpacked.
    pub(crate) fn embedded_pdb(&self, image: &PeImage<'_>) -> Result<Option<Vec<u8>>, Error> {
        let what = "embedded PDB";
        let Some((offset, size)) = self.embedded else { return Ok(None) };
        let packed = read_bytes(image.file(), what, offset, size, MAX_PDB)?;
        let (Some(b"MPDB"), Some(unpacked_size)) = (packed.get(..4), u32_at(&packed, 4)) else {
            return Err(Error::Damaged { what });
        };
        let stream = packed.get(8..).unwrap_or_default();
        inflate(stream, what, unpacked_size.into()).map(Some)
    }
}

fn code_view(data: &[u8], stamp: u32) -> Option<PdbReference> {
    if data.get(..4)? != b"RSDS" {
        return None;
    }
    Some(PdbReference {
        id: PdbId::new(array(data, 4)?, stamp),
        age: u32_at(data, 20)?,
        path: bounded_text(until_nul(data.get(24..)?)).into_owned(),
    })
}

/// Unpacks a raw deflate stream that claims to have `bytes` bytes.
pub(crate) fn inflate(packed: &[u8], what: &'static str, bytes: u64) -> Result<Vec<u8>, Error> {
    use std::io::Read;
    if bytes > MAX_PDB {
        return Err(Error::TooLarge { what, bytes, limit: MAX_PDB });
    }
    let mut unpacked = Vec::new();
    flate2::read::DeflateDecoder::new(packed)
        .take(bytes.saturating_add(1))
        .read_to_end(&mut unpacked)
        .map_err(|error| Error::Unpack { what, reason: error.to_string() })?;
    if u64::try_from(unpacked.len()).ok() != Some(bytes) {
        return Err(Error::Unpack { what, reason: "it is not as long as it says".into() });
    }
    Ok(unpacked)
}
