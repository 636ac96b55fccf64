//! A module's headers in memory: how large it is, where its metadata lies, and whether it holds
//! ReadyToRun code (ECMA-335 II.25, docs/design/coreclr/botr/readytorun-format.md).

use strata_ecma::pe::{CliHeader, Directory, Headers, directory};
use strata_ecma::ready_to_run::{Header, section};

/// The facts about a module's image. By default: none.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Image {
    /// `SizeOfImage`: how much memory it takes when it is mapped.
    pub size: u32,
    pub ready_to_run: Option<ReadyToRun>,
    /// The metadata, from its root on. It is there as long as the module.
    pub metadata: Option<&'static [u8]>,
}

/// The header of code that was compiled ahead of time.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ReadyToRun {
    /// The code lies in a composite image, with that of other modules.
    pub is_component: bool,
    /// Cold parts of methods are stored separately.
    pub splits_methods: bool,
}

/// The headers lie in the first page.
const PAGE: usize = 4096;

/// The headers of the image at `base`.
///
/// # Safety
/// A PE image that the runtime loaded lies there.
unsafe fn headers<'a>(base: usize) -> Option<Headers<'a>> {
    // SAFETY: an image is at least a page long in memory.
    let page = unsafe { std::slice::from_raw_parts(base as *const u8, PAGE) };
    Headers::parse(page).ok()
}

impl Image {
    /// # Safety `base` is 0, or a PE image that the runtime loaded lies there: flat as in its file,
    /// or mapped section by section.
    pub unsafe fn read(base: usize, flat: bool) -> Image {
        if base == 0 {
            return Image::default();
        }
        // SAFETY: as this function's.
        let Some(headers) = (unsafe { headers(base) }) else { return Image::default() };
        let bytes_at = |rva: u32, count: usize| {
            let section = headers.section_of(rva, count)?;
            let place = if flat { section.offset_of(rva)? } else { rva.into() };
            // SAFETY: within a section, which the runtime has mapped.
            Some(unsafe { std::slice::from_raw_parts((base + place as usize) as *const u8, count) })
        };
        let part = |place: Directory| bytes_at(place.rva, place.size as usize);
        let cli = headers.directory(directory::CLI);
        let cli = cli.and_then(|cli| CliHeader::parse(bytes_at(cli.rva, CliHeader::BYTES)?));
        Image {
            size: headers.size_of_image,
            ready_to_run: cli.and_then(|cli| ReadyToRun::parse(part(cli.managed_native_header)?)),
            metadata: cli.and_then(|cli| part(cli.metadata)),
        }
    }

    /// The bytes before an address in the code of the image at `base`; `None` outside of its code.
    ///
    /// # Safety
    /// As for [`Image::read`], and the image is mapped section by section: only such code runs.
    pub unsafe fn code_before<'a, const N: usize>(
        base: usize,
        address: usize,
    ) -> Option<&'a [u8; N]> {
        // SAFETY: as this function's.
        let headers = unsafe { headers(base) }?;
        let start = address.checked_sub(N)?;
        let rva = u32::try_from(start.checked_sub(base)?).ok()?;
        if !headers.section_of(rva, N)?.is_executable() {
            return None;
        }
        // SAFETY: within a section of code, which is mapped.
        Some(unsafe { &*(start as *const [u8; N]) })
    }
}

impl ReadyToRun {
    fn parse(bytes: &[u8]) -> Option<ReadyToRun> {
        let header = Header::parse(bytes)?;
        let mut sections = header.sections(bytes.get(Header::BYTES..)?);
        Some(ReadyToRun {
            is_component: header.is_component(),
            splits_methods: sections.any(|(kind, _)| kind == section::HOT_COLD_MAP),
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
        put(optional + 108, &16u32.to_le_bytes());
        put(optional + 112 + 8 * 14, &0x2008u32.to_le_bytes());
        put(optional + 112 + 8 * 14 + 4, &72u32.to_le_bytes());
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
