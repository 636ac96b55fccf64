//! The facts from an ELF file's headers that are needed to find its debug file and to convert file
//! offsets into addresses, without reading the file in the daemon.

use strata_bytes::ReadAt;
use strata_symbols::ElfFile;
use strata_symbols::elf::{AlternateLink, DebugLink, Features, Segment};

use crate::protocol::MAX_PATH;
use crate::wire::{Decoder, Encoder, WireError};

/// No linker writes longer ones.
const MAX_BUILD_ID: usize = 64;
const MAX_LINK_NAME: usize = 255;
const MAX_SEGMENTS: usize = 4096;
/// `PT_LOAD`.
const LOAD: u32 = 1;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// A claim of the file, never an identity.
    pub build_id: Option<Vec<u8>>,
    pub debug_link: Option<DebugLink>,
    /// To the file of dwz that its debug information needs.
    pub alternate_link: Option<AlternateLink>,
    pub features: Features,
    /// `e_machine`, `e_type` and `e_entry`.
    pub machine: u16,
    pub kind: u16,
    pub entry: u64,
    /// The loadable ones.
    pub segments: Vec<Segment>,
}

impl FileFacts {
    pub(crate) fn of(file: &dyn ReadAt) -> Result<Self, strata_symbols::Error> {
        let elf = ElfFile::open(file)?;
        let segments = elf.segments.iter().filter(|segment| segment.kind == LOAD);
        Ok(Self {
            build_id: elf.build_id().filter(|id| id.len() <= MAX_BUILD_ID),
            debug_link: elf.debug_link(),
            alternate_link: elf.alternate_link(),
            features: elf.features(),
            machine: elf.machine,
            kind: elf.kind,
            entry: elf.entry,
            segments: segments.take(MAX_SEGMENTS).copied().collect(),
        })
    }

    /// The address at which the byte at `offset` of the file is linked, as in
    /// [`ElfFile::address_of`].
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let executable = |segment: &&Segment| segment.flags & 1 != 0;
        let address = |segment: &Segment| {
            let inside = offset.checked_sub(segment.offset)?;
            (inside < segment.file_size).then(|| segment.address.checked_add(inside))?
        };
        let code = || self.segments.iter().filter(executable);
        code().find_map(address).or_else(|| self.segments.iter().find_map(address)).or_else(|| {
            // Mappings begin at page boundaries, a little before their segment may.
            code().find_map(|segment| {
                let before = segment.offset.checked_sub(offset)?;
                (before < 0x1_0000).then(|| segment.address.checked_sub(before))?
            })
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.optional_bytes(self.build_id.as_deref());
        encoder.optional_bytes(self.debug_link.as_ref().map(|link| link.name.as_slice()));
        encoder.u32(self.debug_link.as_ref().map_or(0, |link| link.crc));
        let alternate = self.alternate_link.as_ref();
        encoder.optional_bytes(alternate.map(|link| link.path.as_slice()));
        encoder.optional_bytes(alternate.map(|link| link.build_id.as_slice()));
        let Features { symtab, dynsym, dwarf, mini_debug, debug_link, go } = self.features;
        for feature in [symtab, dynsym, dwarf, mini_debug, debug_link, go] {
            encoder.u8(feature.into());
        }
        encoder.u32(self.machine.into()).u32(self.kind.into()).u64(self.entry);
        encoder.u32(u32::try_from(self.segments.len()).unwrap_or(0));
        for segment in &self.segments {
            encoder.u32(segment.flags).u64(segment.offset).u64(segment.address);
            encoder.u64(segment.file_size).u64(segment.memory_size);
        }
        encoder.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let build_id = decoder.optional_bytes()?;
        if build_id.is_some_and(|id| id.len() > MAX_BUILD_ID) {
            return Err(WireError::Invalid("a build id"));
        }
        let name = decoder.optional_bytes()?;
        let crc = decoder.u32()?;
        // It becomes part of a path.
        let is_name = |name: &[u8]| {
            let plain = !name.is_empty() && name != b"." && name != b"..";
            plain
                && name.len() <= MAX_LINK_NAME
                && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        };
        if name.is_some_and(|name| !is_name(name)) {
            return Err(WireError::Invalid("a debug link"));
        }
        let path = decoder.optional_bytes()?;
        let alternate_id = decoder.optional_bytes()?;
        let is_path = |path: &[u8]| !path.is_empty() && path.len() < MAX_PATH && !path.contains(&0);
        let is_id = |id: &[u8]| !id.is_empty() && id.len() <= MAX_BUILD_ID;
        let alternate_link = match (path, alternate_id) {
            (None, None) => None,
            (Some(path), Some(id)) if is_path(path) && is_id(id) => {
                Some(AlternateLink { path: path.to_vec(), build_id: id.to_vec() })
            }
            _ => return Err(WireError::Invalid("a link to a file of dwz")),
        };
        let features = Features {
            symtab: decoder.bool()?,
            dynsym: decoder.bool()?,
            dwarf: decoder.bool()?,
            mini_debug: decoder.bool()?,
            debug_link: decoder.bool()?,
            go: decoder.bool()?,
        };
        let half = |value: u32| u16::try_from(value).map_err(|_| WireError::Invalid("a half word"));
        let machine = half(decoder.u32()?)?;
        let kind = half(decoder.u32()?)?;
        let entry = decoder.u64()?;
        let count = decoder.count(36)?;
        if count > MAX_SEGMENTS {
            return Err(WireError::Invalid("a number of segments"));
        }
        let mut segments = Vec::with_capacity(count);
        for _ in 0..count {
            segments.push(Segment {
                kind: LOAD,
                flags: decoder.u32()?,
                offset: decoder.u64()?,
                address: decoder.u64()?,
                file_size: decoder.u64()?,
                memory_size: decoder.u64()?,
            });
        }
        decoder.finish()?;
        Ok(Self {
            build_id: build_id.map(<[u8]>::to_vec),
            debug_link: name.map(|name| DebugLink { name: name.to_vec(), crc }),
            alternate_link,
            features,
            machine,
            kind,
            entry,
            segments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> FileFacts {
        FileFacts::of(&std::fs::read("/proc/self/exe").unwrap()).unwrap()
    }

    #[test]
    fn facts_survive_the_wire() {
        let facts = own();
        assert!(!facts.segments.is_empty());
        assert_eq!(FileFacts::decode(&facts.encode()), Ok(facts));
    }

    #[test]
    fn offsets_become_the_addresses_the_resolver_uses() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let elf = ElfFile::open(&bytes).unwrap();
        let facts = own();
        for offset in (0..bytes.len() as u64 + 10_000).step_by(911) {
            assert_eq!(facts.address_of(offset), elf.address_of(offset), "{offset:#x}");
        }
    }

    #[test]
    fn a_debug_link_that_is_a_path_is_refused() {
        for name in [&b"../../etc/passwd"[..], b"", b".", b"..", b"a\0b", &[b'x'; 300]] {
            let link = Some(DebugLink { name: name.to_vec(), crc: 1 });
            let facts = FileFacts { debug_link: link, ..own() };
            assert_eq!(FileFacts::decode(&facts.encode()), Err(WireError::Invalid("a debug link")));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let bytes = own().encode();
        for length in 0..bytes.len() {
            assert!(FileFacts::decode(&bytes[..length]).is_err());
        }
        for position in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[position] ^= 0xff;
            let _ = FileFacts::decode(&bytes);
        }
    }
}
