//! Hostile copies of ELF files: names, sections and sizes overwritten in place.
//!
//! Only what a running program does not need is changed, so that the copy still runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};

/// An ELF file's bytes, to be edited and written.
pub struct ElfCopy {
    bytes: Vec<u8>,
    /// The original bytes: an edited file may not parse any more.
    original: Vec<u8>,
}

impl ElfCopy {
    pub fn of(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { original: bytes.clone(), bytes })
    }

    /// Replaces a string, wherever it is followed by a NUL, by another one that is not longer.
    pub fn replace_name(&mut self, name: &str, by: &str) -> Result<()> {
        if by.len() > name.len() {
            bail!("{by} is longer than {name}");
        }
        let old: Vec<u8> = name.bytes().chain([0]).collect();
        let mut new: Vec<u8> = by.bytes().collect();
        new.resize(old.len(), 0);
        let mut found = false;
        let mut at = 0;
        while let Some(window) = self.bytes.get_mut(at..at + old.len()) {
            if window == old.as_slice() {
                window.copy_from_slice(&new);
                found = true;
            }
            at += 1;
        }
        if !found {
            bail!("{name} is not in the file");
        }
        Ok(())
    }

    /// Overwrites a section's content, from `skip` bytes on, with bytes from a generator.
    pub fn overwrite_section(
        &mut self,
        name: &str,
        skip: usize,
        mut byte: impl FnMut(usize) -> u8,
    ) -> Result<()> {
        let (offset, size) = self.section_range(name)?;
        let section =
            self.bytes.get_mut(offset + skip..offset + size).context("a section in the file")?;
        for (index, target) in section.iter_mut().enumerate() {
            *target = byte(index);
        }
        Ok(())
    }

    /// Makes the section header claim another size.
    pub fn claim_section_size(&mut self, name: &str, size: u64) -> Result<()> {
        let table = self.word(0x28)?; // e_shoff
        let index = {
            let elf = object::File::parse(self.original.as_slice())?;
            elf.section_by_name(name).with_context(|| format!("no section {name}"))?.index().0
        };
        let header = usize::try_from(table)? + index * 64; // sizeof(Elf64_Shdr)
        let field = self.bytes.get_mut(header + 0x20..header + 0x28).context("sh_size")?;
        field.copy_from_slice(&size.to_le_bytes());
        Ok(())
    }

    /// The hexadecimal build id.
    pub fn build_id(&self) -> Result<String> {
        let elf = object::File::parse(self.original.as_slice())?;
        let id = elf.build_id()?.context("no build id")?;
        Ok(id.iter().map(|b| format!("{b:02x}")).collect())
    }

    /// Writes an executable file.
    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        fs::write(path, &self.bytes)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        Ok(path.to_path_buf())
    }

    fn section_range(&self, name: &str) -> Result<(usize, usize)> {
        let elf = object::File::parse(self.original.as_slice())?;
        let section = elf.section_by_name(name).with_context(|| format!("no section {name}"))?;
        let (offset, size) = section.file_range().context("a section without content")?;
        Ok((usize::try_from(offset)?, usize::try_from(size)?))
    }

    fn word(&self, at: usize) -> Result<u64> {
        let bytes = self.bytes.get(at..at + 8).context("a short file")?;
        Ok(u64::from_le_bytes(bytes.try_into()?))
    }
}

/// The build id of the C library that programs on this machine use.
pub fn libc_build_id() -> Result<String> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let path =
        maps.lines().find_map(|l| l.split_whitespace().nth(5).filter(|p| p.contains("/libc.so")));
    ElfCopy::of(Path::new(path.context("this program has no libc.so mapped")?))?.build_id()
}

/// A small generator for reproducible garbage (xorshift).
pub fn garbage(seed: u64) -> impl FnMut(usize) -> u8 {
    let mut state = seed | 1;
    move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }
}
