//! Changes a single-file .NET program: some of its files compressed, others added.
//!
//! Only the manifest and the changed files are appended to the unmodified program. Format: see
//! [`super::bundle`]; compressed files are plain deflate streams (`FileEntry.cs`).

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::bundle::{MARK, find, push_string};

/// `FileType.cs`.
const SYMBOLS: u8 = 5;
const ALIGNMENT: usize = 64;

struct Entry {
    offset: u64,
    size: u64,
    compressed: u64,
    kind: u8,
    name: String,
}

/// Writes a copy of `bundle` in which the files of some names are compressed, and which has these
/// symbol files inside.
pub fn repack(bundle: &Path, copy: &Path, compress: &[&str], symbols: &[&Path]) -> Result<()> {
    let mut bytes = fs::read(bundle)?;
    let mark = find(&bytes, &MARK).context("no bundle mark")?;
    let place = mark.checked_sub(8).context("a mark at the start")?;
    let start = u64::from_le_bytes(bytes[place..mark].try_into()?);
    let mut reader = Reader { bytes: &bytes, at: usize::try_from(start)? };
    let versions = reader.take(8)?.to_vec();
    let count = u32::from_le_bytes(reader.take(4)?.try_into()?);
    let identity = reader.text()?;
    let fixed = reader.take(40)?.to_vec();
    let mut entries = (0..count).map(|_| reader.entry()).collect::<Result<Vec<_>>>()?;
    for name in compress {
        let entry = entries.iter_mut().find(|entry| entry.name == *name).context("no such file")?;
        let from = usize::try_from(entry.offset)?;
        let content = bytes.get(from..from + usize::try_from(entry.size)?).context("cut")?;
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content)?;
        let packed = encoder.finish()?;
        entry.offset = append(&mut bytes, &packed);
        entry.compressed = packed.len() as u64;
    }
    for path in symbols {
        let content = fs::read(path)?;
        let name = path.file_name().and_then(|name| name.to_str()).context("no name")?;
        let (offset, size) = (append(&mut bytes, &content), content.len() as u64);
        entries.push(Entry { offset, size, compressed: 0, kind: SYMBOLS, name: name.to_string() });
    }
    let mut manifest = versions;
    manifest.extend(u32::try_from(entries.len())?.to_le_bytes());
    push_string(&mut manifest, &identity)?;
    manifest.extend(fixed);
    for entry in &entries {
        for word in [entry.offset, entry.size, entry.compressed] {
            manifest.extend(word.to_le_bytes());
        }
        manifest.push(entry.kind);
        push_string(&mut manifest, &entry.name)?;
    }
    let header = append(&mut bytes, &manifest);
    bytes[place..mark].copy_from_slice(&header.to_le_bytes());
    fs::write(copy, &bytes)?;
    fs::set_permissions(copy, Permissions::from_mode(0o755))?;
    Ok(())
}

fn append(bytes: &mut Vec<u8>, content: &[u8]) -> u64 {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    let offset = bytes.len() as u64;
    bytes.extend_from_slice(content);
    offset
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + count).context("a cut manifest")?;
        self.at += count;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    /// No name in our bundles takes more than one byte of length.
    fn text(&mut self) -> Result<String> {
        let length = self.take(1)?[0];
        Ok(String::from_utf8(self.take(usize::from(length))?.to_vec())?)
    }

    fn entry(&mut self) -> Result<Entry> {
        let (offset, size, compressed) = (self.word()?, self.word()?, self.word()?);
        Ok(Entry { offset, size, compressed, kind: self.take(1)?[0], name: self.text()? })
    }
}
