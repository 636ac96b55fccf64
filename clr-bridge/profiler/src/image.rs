//! What a module's headers in memory say: how large it is, where its metadata lies, and whether it
//! holds ReadyToRun code (ECMA-335 II.25, docs/design/coreclr/botr/readytorun-format.md).

/// What is known of a module's image. By default: nothing.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Image {
    /// `SizeOfImage`: how much memory it takes when it is mapped.
    pub size: u32,
    pub ready_to_run: Option<ReadyToRun>,
    /// The metadata, from its root on. It is there as long as the module.
    pub metadata: Option<&'static [u8]>,
}

/// What the header of code that was compiled ahead says.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ReadyToRun {
    /// The code lies in another image, together with that of other modules.
    pub is_component: bool,
    /// Rarely used parts of methods lie apart.
    pub splits_methods: bool,
}

/// The headers lie in the first page.
const PAGE: usize = 4096;
const CLI_HEADER_SIZE: usize = 72;

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
        let native = native.and_then(|(rva, size)| ReadyToRun::parse(bytes_at(rva, size)?));
        Image { size: headers.size, ready_to_run: native, metadata }
    }

    /// The bytes before an address in the code of the image at `base`; `None` outside of its code.
    ///
    /// # Safety
    /// As for [`Image::read`], and the image is mapped section by section: only such code runs.
    pub unsafe fn code_before<'a, const N: usize>(
        base: usize,
        address: usize,
    ) -> Option<&'a [u8; N]> {
        // SAFETY: an image is at least a page long in memory.
        let headers = unsafe { std::slice::from_raw_parts(base as *const u8, PAGE) };
        let headers = Headers::parse(headers)?;
        let start = address.checked_sub(N)?;
        let rva = u32::try_from(start.checked_sub(base)?).ok()?;
        if !headers.is_code(rva, N)? {
            return None;
        }
        // SAFETY: within a section of code, which is mapped.
        Some(unsafe { &*(start as *const [u8; N]) })
    }
}

impl ReadyToRun {
    /// From its header (src/coreclr/inc/readytorun.h).
    fn parse(header: &[u8]) -> Option<ReadyToRun> {
        const COMPONENT: u32 = 0x20;
        const HOT_COLD_MAP: u32 = 120;
        if header.get(..4)? != b"RTR\0" {
            return None;
        }
        let sections = header.get(16..)?.chunks_exact(12).take(number(header, 12)? as usize);
        Some(ReadyToRun {
            is_component: number(header, 8)? & COMPONENT != 0,
            splits_methods: { sections }.any(|section| number(section, 0) == Some(HOT_COLD_MAP)),
        })
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

    /// Whether bytes lie within one section of code.
    fn is_code(&self, rva: u32, count: usize) -> Option<bool> {
        const EXECUTABLE: u32 = 0x2000_0000;
        let section = self.sections.chunks_exact(40).find(|section| {
            let start = number(section, 12).unwrap_or(u32::MAX);
            let size = number(section, 16).unwrap_or(0) as usize;
            rva.checked_sub(start).is_some_and(|offset| offset as usize + count <= size)
        })?;
        Some(number(section, 36)? & EXECUTABLE != 0)
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
            put(data + 8 + 68, &28u32.to_le_bytes());
            put(data + 0x100, b"RTR\0");
            put(data + 0x100 + 8, &0x20u32.to_le_bytes());
            put(data + 0x100 + 12, &1u32.to_le_bytes());
            put(data + 0x100 + 16, &120u32.to_le_bytes());
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
            let ready_to_run = ReadyToRun { is_component: true, splits_methods: true };
            assert_eq!((found.size, found.ready_to_run), (0x4000, Some(ready_to_run)));
            assert_eq!(found.metadata, Some(&b"BSJB"[..]));
            assert_eq!(read(&library(false, flat), flat).ready_to_run, None);
        }
    }

    #[test]
    fn only_code_is_read_before_an_address() {
        let mut bytes = library(true, false);
        let base = bytes.as_ptr() as usize;
        // SAFETY: the bytes are an image of more than a page.
        let before = |address| unsafe { Image::code_before::<4>(base, base + address) };
        assert_eq!(before(0x2104), None);
        bytes[0x98 + 240 + 36..0x98 + 240 + 40].copy_from_slice(&0x6000_0020u32.to_le_bytes());
        let base = bytes.as_ptr() as usize;
        // SAFETY: as above.
        let before = |address| unsafe { Image::code_before::<4>(base, base + address) };
        assert_eq!(before(0x2104), Some(b"RTR\0"));
        assert_eq!((before(0x2003), before(0x2201), before(3)), (None, None, None));
    }

    #[test]
    fn what_is_no_image_says_nothing() {
        assert_eq!(read(&vec![0; PAGE], false), Image::default());
        let mut cut = library(true, false);
        cut[0x3c..0x40].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read(&cut, false), Image::default());
    }
}
