//! Composite images and their components are distinguished from images with code of their own. No
//! compiler for them is at hand, so real images are rewritten. Needs the .NET runtimes.

mod support;

use strata_dotnet::readytorun::Kind;
use strata_dotnet::{ManagedImage, PeImage};
use support::*;

/// `ReadyToRunSectionType`.
const METHOD_DEF_ENTRY_POINTS: u32 = 103;
const COMPONENT_ASSEMBLIES: u32 = 115;
const OWNER_COMPOSITE_EXECUTABLE: u32 = 116;

/// A precompiled image, and where the number of one of its R2R sections is in the file.
fn image_with_section(kind: u32) -> (Vec<u8>, usize) {
    let bytes = std::fs::read(framework("9", "System.Linq.dll")).unwrap();
    let at = {
        let image = PeImage::open(&bytes).unwrap();
        let header = image.cli().unwrap().managed_native_header;
        let header = image.offset_of(header.rva).unwrap() as usize;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(header), 0x0052_5452);
        let sections = (0..word(header + 12) as usize).map(|number| header + 16 + number * 12);
        sections.clone().find(|at| word(*at) == kind).unwrap()
    };
    (bytes, at)
}

#[test]
fn an_image_of_several_assemblies_is_a_composite_without_names() {
    let (mut bytes, section) = image_with_section(METHOD_DEF_ENTRY_POINTS);
    bytes[section..section + 4].copy_from_slice(&COMPONENT_ASSEMBLIES.to_le_bytes());
    let image = ManagedImage::open(&bytes).unwrap();
    assert_eq!(image.native_code().unwrap().unwrap().kind, Kind::Composite);
    let functions = image.runtime_functions();
    assert!(functions.len() > 1000);
    assert!(image.method_at_rva(functions[0].begin).is_none());
}

#[test]
fn a_component_names_the_composite_that_has_its_code() {
    let (mut bytes, section) = image_with_section(METHOD_DEF_ENTRY_POINTS);
    bytes[section..section + 4].copy_from_slice(&OWNER_COMPOSITE_EXECUTABLE.to_le_bytes());
    let rva = u32::from_le_bytes(bytes[section + 4..section + 8].try_into().unwrap());
    let name = PeImage::open(&bytes).unwrap().offset_of(rva).unwrap() as usize;
    bytes[name..name + 18].copy_from_slice(b"framework.r2r.dll\0");
    let image = ManagedImage::open(&bytes).unwrap();
    let owner = "framework.r2r.dll".to_owned();
    assert_eq!(image.native_code().unwrap().unwrap().kind, Kind::Component { owner });
    assert!(image.method(0x0600_0001).is_some(), "its metadata is still there");
}

/// A PE image of one section, without metadata, that exports its R2R header.
fn exporting_image(symbol: &[u8]) -> Vec<u8> {
    const SECTION: usize = 0x400;
    const RVA: u32 = 0x1000;
    let mut bytes = vec![0; 0x1000];
    let mut put = |at: usize, piece: &[u8]| bytes[at..at + piece.len()].copy_from_slice(piece);
    let word = |value: u32| value.to_le_bytes();
    put(0, b"MZ");
    put(0x3c, &word(0x80));
    put(0x80, b"PE\0\0");
    // x86-64 for Linux, one section, an optional header of 240 bytes.
    put(0x84, &(0x8664_u16 ^ 0x7b79).to_le_bytes());
    put(0x86, &[1, 0]);
    put(0x94, &[240, 0]);
    put(0x98, &0x20b_u16.to_le_bytes());
    put(0x98 + 60, &word(0x400));
    put(0x98 + 108, &word(16));
    put(0x98 + 112, &[word(RVA), word(40)].concat());
    let header = 0x98 + 240;
    put(header, b".text\0\0\0");
    put(header + 8, &[word(0xc00), word(RVA), word(0xc00), word(SECTION as u32)].concat());
    // The export table: one name, one ordinal, one function.
    put(SECTION + 20, &[word(1), word(1)].concat());
    put(SECTION + 28, &[word(RVA + 0x40), word(RVA + 0x44), word(RVA + 0x48)].concat());
    put(SECTION + 0x40, &word(RVA + 0x100));
    put(SECTION + 0x44, &word(RVA + 0x50));
    put(SECTION + 0x50, symbol);
    // READYTORUN_HEADER with two sections: functions and components.
    put(SECTION + 0x100, &word(0x0052_5452));
    put(SECTION + 0x104, &[9, 0, 0, 0]);
    put(SECTION + 0x10c, &word(2));
    put(SECTION + 0x110, &[word(102), word(RVA + 0x200), word(28)].concat());
    put(SECTION + 0x11c, &[word(115), word(RVA + 0x300), word(16)].concat());
    put(SECTION + 0x200, &[word(0x2000), word(0x2010), word(0)].concat());
    put(SECTION + 0x20c, &[word(0x2010), word(0x2020), word(0), word(u32::MAX)].concat());
    bytes
}

#[test]
fn a_composite_is_found_by_the_header_that_it_exports() {
    let bytes = exporting_image(b"RTR_HEADER\0");
    let image = ManagedImage::open(&bytes).unwrap();
    assert_eq!(image.native_code().unwrap().unwrap().kind, Kind::Composite);
    assert_eq!(image.runtime_functions().len(), 2);
    assert!(image.metadata().is_none() && image.mvid().is_none());
    let other = exporting_image(b"OTHER\0");
    assert!(matches!(ManagedImage::open(&other), Err(strata_dotnet::Error::NotManaged)));
}
