//! What a module's headers in memory say: how large it is, where its metadata lies, and whether it
//! holds ReadyToRun code (ECMA-335 II.25, docs/design/coreclr/botr/readytorun-format.md).

/// What is known of a module's image. By default: nothing.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Image {
    /// `SizeOfImage`: how much memory it takes when it is mapped.
    pub size: u32,
    pub ready_to_run: bool,
    /// The metadata, from its root on. It is there as long as the module.
    pub metadata: Option<&'static [u8]>,
}

/// The headers lie in the first page.
const PAGE: usize = 4096;
const CLI_HEADER_SIZE: usize = 72;
const RTR: [u8; 4] = *b"RTR\0";

impl Image {
    /// # Safety
    /// `base` is 0, or a PE image that the runtime loaded lies there: flat as in its file, or mapped
    /// section by section.
    pub unsafe fn read(base: usize, flat: bool) -> Image {
        if base == 0 {
            return Image::default();
        }
        // SAFETY: an image is at least a page long in memory.
        let headers = unsafe { std::slice::from_raw_parts(base as *const u8, PAGE) };
        let Some(headers) = Headers::parse(headers) else { return Image::default() };
        let bytes_at = |rva: u32, count: usize| {
            let place = headers.place(rva, count, flat)?;
            // SAFETY: `place` found it within a section, which the runtime has mapped.
            Some(unsafe { std::slice::from_raw_parts((base + place) as *const u8, count) })
        };
        let Some(cli) = bytes_at(headers.cli_header, CLI_HEADER_SIZE) else {
            return Image { size: headers.size, ..Image::default() };
        };
        let directory = |at: usize| Some((number(cli, at)?, number(cli, at + 4)? as usize));
        let metadata = directory(8).and_then(|(rva, size)| bytes_at(rva, size));
        let native = directory(64).filter(|(rva, _)| *rva != 0);
        let native = native.and_then(|(rva, _)| bytes_at(rva, RTR.len()));
        Image { size: headers.size, ready_to_run: native == Some(&RTR), metadata }
    }
}

struct Headers<'a> {
    size: u32,
    cli_header: u32,
    sections: &'a [u8],
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Headers<'a> {
    fn parse(page: &'a [u8]) -> Option<Headers<'a>> {
        const PE32_PLUS: u16 = 0x20b;
        const CLI_DIRECTORY: usize = 14;
        if page.get(..2)? != b"MZ" {
            return None;
        }
        let pe = page.get(number(page, 0x3c)? as usize..)?;
        if pe.get(..4)? != b"PE\0\0" {
            return None;
        }
        let section_count = usize::from(half(pe, 6)?);
        let optional_size = usize::from(half(pe, 20)?);
        let optional = pe.get(24..)?;
        let directories = if half(optional, 0)? == PE32_PLUS { 112 } else { 96 };
        let sections = optional.get(optional_size..)?;
        Some(Headers {
            size: number(optional, 56)?,
            cli_header: number(optional, directories + 8 * CLI_DIRECTORY)?,
            sections: sections.get(..(section_count * 40).min(sections.len()))?,
        })
    }

    /// Where bytes lie, counted from the base, if they lie within one section.
    fn place(&self, rva: u32, count: usize, flat: bool) -> Option<usize> {
        self.sections.chunks_exact(40).find_map(|section| {
            let (virtual_address, raw_size, raw) =
                (number(section, 12)?, number(section, 16)?, number(section, 20)?);
            let offset = rva.checked_sub(virtual_address)? as usize;
            if offset.checked_add(count)? > raw_size as usize {
                return None;
            }
            Some(if flat { raw as usize + offset } else { rva as usize })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with one section of 512 bytes: at 0x2000 in memory, at 0x1000 in the file.
    fn library(ready_to_run: bool, flat: bool) -> Vec<u8> {
        let mut bytes = vec![0; 0x4000];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, b"MZ");
        put(0x3c, &0x80u32.to_le_bytes());
        put(0x80, b"PE\0\0");
        put(0x86, &1u16.to_le_bytes());
        put(0x94, &240u16.to_le_bytes());
        let optional = 0x98;
        put(optional, &0x20bu16.to_le_bytes());
        put(optional + 56, &0x4000u32.to_le_bytes());
        put(optional + 112 + 8 * 14, &0x2008u32.to_le_bytes());
        let section = optional + 240;
        put(section + 12, &0x2000u32.to_le_bytes());
        put(section + 16, &0x200u32.to_le_bytes());
        put(section + 20, &0x1000u32.to_le_bytes());
        let data = if flat { 0x1000 } else { 0x2000 };
        put(data + 8 + 8, &0x2180u32.to_le_bytes());
        put(data + 8 + 12, &4u32.to_le_bytes());
        put(data + 0x180, b"BSJB");
        if ready_to_run {
            put(data + 8 + 64, &0x2100u32.to_le_bytes());
            put(data + 0x100, b"RTR\0");
        }
        bytes
    }

    fn read(bytes: &[u8], flat: bool) -> Image {
        // SAFETY: the bytes are an image of more than a page.
        unsafe { Image::read(bytes.as_ptr() as usize, flat) }
    }

    #[test]
    fn ready_to_run_code_is_seen_in_both_layouts() {
        for flat in [false, true] {
            let found = read(&library(true, flat), flat);
            assert_eq!((found.size, found.ready_to_run), (0x4000, true));
            assert_eq!(found.metadata, Some(&b"BSJB"[..]));
            assert!(!read(&library(false, flat), flat).ready_to_run);
        }
    }

    #[test]
    fn what_is_no_image_says_nothing() {
        assert_eq!(read(&vec![0; PAGE], false), Image::default());
        let mut cut = library(true, false);
        cut[0x3c..0x40].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&cut, false), Image::default());
    }
}
