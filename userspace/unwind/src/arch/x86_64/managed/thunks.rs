//! The stubs of a ReadyToRun image: they call into the runtime when a method is first needed.
//!
//! A section of the image's ReadyToRun header locates them
//! (docs/design/coreclr/botr/readytorun-format.md,
//! `READYTORUN_SECTION_DELAYLOAD_METHODCALL_THUNKS`). Each is a few moves and up to two pushes,
//! then a jump: no unwind information describes them.
//!
//! Invariant: an image whose headers make no sense has none.

use strata_abi::rule::Packed;

use strata_ecma::pe::CliHeader;
use strata_ecma::ready_to_run::{Header, section};

use super::stubs;
use crate::limits::Limits;
use crate::managed::pe::{Directory, Pe};
use strata_bytes::ReadAt;

/// The stubs, which lie together.
#[derive(Default)]
pub(super) struct Thunks {
    pub start: u32,
    pub end: u32,
    /// Rules by address, ascending.
    pub rules: Vec<(u32, Packed)>,
}

pub(super) fn read<R: ReadAt + ?Sized>(pe: &Pe, source: &R, limits: &Limits) -> Option<Thunks> {
    let place = find(pe, source)?;
    let size = u64::from(place.size).min(limits.max_decoded);
    let bytes = pe.read_address(source, place.rva, size)?;
    Some(Thunks {
        start: place.rva,
        end: place.rva.saturating_add(bytes.len() as u32),
        rules: stubs::frames(&bytes, place.rva),
    })
}

/// Where they lie according to the image.
fn find<R: ReadAt + ?Sized>(pe: &Pe, source: &R) -> Option<Directory> {
    let cli = pe.read_address(source, pe.managed?.rva, CliHeader::BYTES as u64)?;
    let native = CliHeader::parse(&cli)?.managed_native_header;
    let header = pe.read_address(source, native.rva, Header::BYTES as u64)?;
    let header = Header::parse(&header)?;
    let length = header.list_bytes() as u64;
    let list = pe.read_address(source, native.rva.checked_add(Header::BYTES as u32)?, length)?;
    let mut sections = header.sections(&list);
    let (_, found) = sections.find(|(kind, _)| *kind == section::DELAY_LOAD_THUNKS)?;
    (!found.is_empty()).then_some(found)
}
