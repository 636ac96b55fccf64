//! Reads the files of a bundle, appended to a single-file .NET program.
//!
//! The executable has a 32-byte mark; the eight bytes before it say where the manifest lies
//! (src/native/corehost/apphost/bundle_marker.cpp, bundle/header.h, bundle/file_entry.h).
//! Invariant: the input is pinned by its digest, and yet nothing is read beyond it.

use anyhow::{Context, Result, bail};

/// SHA-256 of ".net core bundle".
const MARK: [u8; 32] = [
    0x8b, 0x12, 0x02, 0xb9, 0x6a, 0x61, 0x20, 0x38, 0x72, 0x7b, 0x93, 0x02, 0x14, 0xd7, 0xa0, 0x32,
    0x13, 0xf5, 0xb9, 0xe6, 0xef, 0xae, 0x33, 0x18, 0xee, 0x3b, 0x2d, 0xce, 0x24, 0xb3, 0x6a, 0xae,
];

/// The manifest's format from .NET 6 on: entries that may be compressed.
const MAJOR: u32 = 6;

pub struct Bundle<'a> {
    pub files: Vec<Entry<'a>>,
}

pub struct Entry<'a> {
    pub path: &'a str,
    pub kind: Kind,
    start: usize,
    size: usize,
    compressed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Assembly,
    RuntimeConfiguration,
    Other,
}

impl<'a> Bundle<'a> {
    pub fn parse(program: &'a [u8]) -> Result<Self> {
        let mark = find(program, &MARK).context("no bundle mark")?;
        let mut place = Cursor { bytes: program, at: mark.checked_sub(8).context("a mark at 0")? };
        let manifest = place.size()?;
        let mut cursor = Cursor { bytes: program, at: manifest };
        let major = u32::from_le_bytes(cursor.array()?);
        let _minor: [u8; 4] = cursor.array()?;
        if major != MAJOR {
            bail!("the bundle has format {major}, not {MAJOR}");
        }
        let count = i32::from_le_bytes(cursor.array()?);
        let _identity = cursor.string()?;
        // Offset and size of two of the files, and flags.
        let _places: [u8; 40] = cursor.array()?;
        let mut files = Vec::new();
        for _ in 0..count {
            let start = cursor.size()?;
            let size = cursor.size()?;
            let compressed = cursor.size()? != 0;
            let [kind] = cursor.array()?;
            let kind = match kind {
                1 => Kind::Assembly,
                4 => Kind::RuntimeConfiguration,
                _ => Kind::Other,
            };
            files.push(Entry { path: cursor.string()?, kind, start, size, compressed });
        }
        Ok(Self { files })
    }

    /// The executable's own bytes: all before the first appended file.
    pub fn host(&self, program: &'a [u8]) -> Option<&'a [u8]> {
        program.get(..self.files.iter().map(|file| file.start).min()?)
    }
}

impl Entry<'_> {
    pub fn content<'p>(&self, program: &'p [u8]) -> Result<&'p [u8]> {
        if self.compressed {
            bail!("{} is compressed", self.path);
        }
        let end = self.start.checked_add(self.size).context("a size beyond the address space")?;
        program.get(self.start..end).with_context(|| format!("{} ends outside", self.path))
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(length).context("a length beyond the address space")?;
        let taken = self.bytes.get(self.at..end).context("the manifest ends early")?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into()?)
    }

    fn size(&mut self) -> Result<usize> {
        Ok(i64::from_le_bytes(self.array()?).try_into()?)
    }

    /// Its length comes first, seven bits a byte.
    fn string(&mut self) -> Result<&'a str> {
        let mut length = 0_usize;
        for shift in [0, 7] {
            let [byte] = self.array()?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(str::from_utf8(self.take(length)?)?);
            }
        }
        bail!("a path longer than 16 KiB")
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Vec<u8> {
        let mut program = b"host....".to_vec();
        let place = program.len();
        program.extend([0; 8]);
        program.extend(MARK);
        let file = program.len();
        program.extend(b"content");
        let manifest = program.len();
        program.extend(MAJOR.to_le_bytes());
        program.extend([0; 4]);
        program.extend(1_i32.to_le_bytes());
        program.extend(b"\x02id");
        program.extend([0; 40]);
        program.extend((file as u64).to_le_bytes());
        program.extend(7_u64.to_le_bytes());
        program.extend(0_u64.to_le_bytes());
        program.push(1);
        program.extend(b"\x05A.dll");
        program[place..place + 8].copy_from_slice(&(manifest as u64).to_le_bytes());
        program
    }

    #[test]
    fn an_appended_file_is_found_and_the_host_ends_before_it() {
        let program = program();
        let bundle = Bundle::parse(&program).unwrap();
        let file = &bundle.files[0];
        assert_eq!((file.path, file.content(&program).unwrap()), ("A.dll", &b"content"[..]));
        assert_eq!(bundle.host(&program).unwrap().len(), 8 + 8 + MARK.len());
    }

    #[test]
    fn a_program_cut_short_is_an_error() {
        let program = program();
        for length in 0..program.len() {
            assert!(Bundle::parse(&program[..length]).is_err(), "{length} bytes");
        }
    }
}
