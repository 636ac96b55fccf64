//! Single-file programs: which files are inside, and where.
//!
//! A marker in the host's data names the offset of a manifest at the end of the file.
//!
//! References: `Microsoft.NET.HostModel/Bundle` and `src/native/corehost/bundle` of the .NET runtime.

use memchr::memmem;

use crate::Error;
use crate::debug_directory::{MAX_PDB, inflate};
use crate::source::{read_bytes, read_some};
use strata_bytes::{Cursor, ReadAt, bounded_text, u64_at};

/// SHA-256 of ".net core bundle" (`HostWriter.cs`). The eight bytes before it are the offset.
pub const SIGNATURE: [u8; 32] = [
    0x8b, 0x12, 0x02, 0xb9, 0x6a, 0x61, 0x20, 0x38, 0x72, 0x7b, 0x93, 0x02, 0x14, 0xd7, 0xa0, 0x32,
    0x13, 0xf5, 0xb9, 0xe6, 0xef, 0xae, 0x33, 0x18, 0xee, 0x3b, 0x2d, 0xce, 0x24, 0xb3, 0x6a, 0xae,
];
/// The host comes first; with the whole runtime inside it has some 20 MB.
const MAX_HOST: u64 = 128 << 20;
const CHUNK: usize = 1 << 20;
/// Thousands of files with long paths.
const MAX_MANIFEST: u64 = 16 << 20;
const MAX_ENTRIES: u32 = 64 << 10;

/// The type of a bundled file (`FileType.cs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Unknown,
    Assembly,
    NativeBinary,
    DepsJson,
    RuntimeConfigJson,
    Symbols,
}

/// A bundled file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundledFile {
    /// Below the program's folder, with `/`.
    pub path: String,
    pub kind: FileKind,
    pub offset: u64,
    /// Unpacked.
    pub size: u64,
    /// As stored, of a file that is compressed (deflate); 0 of one that is not.
    pub compressed_size: u64,
}

impl BundledFile {
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.compressed_size != 0
    }

    /// The bytes it takes in the bundle.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        if self.is_compressed() { self.compressed_size } else { self.size }
    }

    /// The file, unpacked if need be.
    ///
    /// # Errors
    /// When it does not unpack or is too large to hold.
    pub fn unpack(&self, bundle: &dyn ReadAt) -> Result<Vec<u8>, Error> {
        if self.is_compressed() {
            return unpack(bundle, self.offset, self.compressed_size, self.size);
        }
        read_bytes(bundle, "bundled file", self.offset, self.size, MAX_PDB)
    }
}

/// Unpacks `size` bytes from where `length` bytes are stored.
///
/// # Errors
/// When they do not unpack to that, or are too many.
pub fn unpack(bundle: &dyn ReadAt, offset: u64, length: u64, size: u64) -> Result<Vec<u8>, Error> {
    let what = "bundled file";
    inflate(&read_bytes(bundle, what, offset, length, MAX_PDB)?, what, size)
}

/// The manifest of a single-file program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub major_version: u32,
    pub minor_version: u32,
    pub files: Vec<BundledFile>,
}

impl Bundle {
    /// # Errors
    /// When the file is no bundle, or its manifest is damaged or of a version this does not know.
    pub fn open(file: &dyn ReadAt) -> Result<Self, Error> {
        let what = "bundle manifest";
        let offset = header_offset(file)?.ok_or(Error::NotBundle)?;
        let length = file.len().checked_sub(offset).ok_or(Error::Cut { what })?.min(MAX_MANIFEST);
        let bytes = read_bytes(file, what, offset, length, length)?;
        let mut cursor = Cursor::new(&bytes);
        let cut = || Error::Cut { what };
        let major_version = cursor.u32().ok_or_else(cut)?;
        let minor_version = cursor.u32().ok_or_else(cut)?;
        // 1: .NET Core 3, 2: .NET 5, 6: .NET 6 and later (`Manifest.cs`).
        if !matches!(major_version, 1 | 2 | 6) {
            return Err(Error::Foreign { what, form: format!("version {major_version}") });
        }
        let count = cursor.u32().ok_or_else(cut)?.min(MAX_ENTRIES);
        text(&mut cursor).ok_or_else(cut)?;
        if major_version >= 2 {
            // Where deps.json and runtimeconfig.json are, and flags.
            cursor.take(40).ok_or_else(cut)?;
        }
        let mut files = Vec::new();
        for _ in 0..count {
            files.push(bundled_file(&mut cursor, major_version, file.len()).ok_or_else(cut)?);
        }
        Ok(Self { major_version, minor_version, files })
    }

    /// The file that an offset of the bundle lies in.
    #[must_use]
    pub fn file_at(&self, offset: u64) -> Option<&BundledFile> {
        self.files.iter().find(|file| {
            offset.checked_sub(file.offset).is_some_and(|within| within < file.stored_size())
        })
    }
}

fn bundled_file(cursor: &mut Cursor<'_>, version: u32, length: u64) -> Option<BundledFile> {
    let offset = cursor.u64()?;
    let size = cursor.u64()?;
    let compressed_size = if version >= 6 { cursor.u64()? } else { 0 };
    let kind = match cursor.u8()? {
        1 => FileKind::Assembly,
        2 => FileKind::NativeBinary,
        3 => FileKind::DepsJson,
        4 => FileKind::RuntimeConfigJson,
        5 => FileKind::Symbols,
        _ => FileKind::Unknown,
    };
    let path = text(cursor)?;
    let file = BundledFile { path, kind, offset, size, compressed_size };
    let end = offset.checked_add(file.stored_size())?;
    (end <= length).then_some(file)
}

/// Text behind its length of one to five times seven bits (`BinaryWriter.Write(string)`).
fn text(cursor: &mut Cursor<'_>) -> Option<String> {
    let mut length = 0_usize;
    for shift in [0, 7, 14, 21, 28] {
        let byte = cursor.u8()?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return cursor.take(length).map(|text| bounded_text(text).into_owned());
        }
    }
    None
}

/// The offset before the signature; an unbundled host has the signature too, and 0 before it.
fn header_offset(file: &dyn ReadAt) -> Result<Option<u64>, Error> {
    let finder = memmem::Finder::new(&SIGNATURE);
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < file.len().min(MAX_HOST) {
        let length = read_some(file, "host of the bundle", at, &mut buffer)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if let Some(found) = finder.find(bytes)
            && let Some(before) = found.checked_sub(8)
        {
            return Ok(u64_at(bytes, before).filter(|offset| *offset != 0));
        }
        // The next piece begins early enough for a signature across the edge.
        let step = length.saturating_sub(SIGNATURE.len() + 8);
        if step == 0 {
            break;
        }
        at = at.saturating_add(u64::try_from(step).unwrap_or(u64::MAX));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(version: u32) -> Vec<u8> {
        let mut bytes = vec![0xcc; 100];
        bytes.extend_from_slice(b"content");
        let header = bytes.len() as u64 + 8 + 32;
        bytes.extend_from_slice(&header.to_le_bytes());
        bytes.extend_from_slice(&SIGNATURE);
        for word in [version, 0, 2] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(b"\x02id");
        if version >= 2 {
            bytes.extend_from_slice(&[0; 40]);
        }
        for (path, offset, size) in [("app.dll", 100_u64, 7_u64), ("x/y.json", 103, 2)] {
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&size.to_le_bytes());
            if version >= 6 {
                bytes.extend_from_slice(&0_u64.to_le_bytes());
            }
            bytes.push(1);
            bytes.push(path.len() as u8);
            bytes.extend_from_slice(path.as_bytes());
        }
        bytes
    }

    #[test]
    fn manifests_of_every_version_list_their_files() {
        for version in [1, 2, 6] {
            let bytes = manifest(version);
            let bundle = Bundle::open(&bytes).unwrap();
            assert_eq!(bundle.major_version, version);
            assert_eq!(bundle.files.len(), 2);
            assert_eq!(bundle.files[0].path, "app.dll");
            assert_eq!(bundle.files[0].unpack(&bytes).unwrap(), b"content");
            assert_eq!(bundle.file_at(106).map(|file| file.path.as_str()), Some("app.dll"));
            assert_eq!(bundle.file_at(107), None);
        }
        assert!(matches!(Bundle::open(&manifest(3)), Err(Error::Foreign { .. })));
        assert!(matches!(Bundle::open(&vec![0; 100]), Err(Error::NotBundle)));
    }

    #[test]
    fn a_signature_across_two_pieces_is_found() {
        let mut bytes = vec![0; CHUNK - 12];
        bytes.extend_from_slice(&7_u64.to_le_bytes());
        bytes.extend_from_slice(&SIGNATURE);
        assert_eq!(header_offset(&bytes).unwrap(), Some(7));
    }

    #[test]
    fn a_cut_manifest_is_an_error() {
        let bytes = manifest(6);
        for length in 150..bytes.len() {
            assert!(Bundle::open(&bytes[..length].to_vec()).is_err());
        }
    }
}
