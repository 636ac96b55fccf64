//! The stubs of a ReadyToRun image: they call into the runtime when a method is first needed.
//!
//! A section of the image's ReadyToRun header says where they are
//! (docs/design/coreclr/botr/readytorun-format.md, `READYTORUN_SECTION_DELAYLOAD_METHODCALL_THUNKS`).
//! Each is a few moves and up to two pushes, then a jump: no unwind information describes them.
//!
//! Invariant: an image whose headers make no sense has none.

use strata_abi::rule::Packed;

use super::stubs;
use crate::limits::Limits;
use crate::managed::pe::{Pe, Table};
use crate::read::ReadAt;

/// "RTR\0"
const SIGNATURE: [u8; 4] = *b"RTR\0";
/// Where the CLR's header names the ReadyToRun header (ECMA-335 II.25.3.3, `ManagedNativeHeader`).
const MANAGED_NATIVE_HEADER: usize = 64;
const THUNKS: u32 = 106;
const MAX_SECTIONS: u32 = 256;
const HEADER: usize = 16;
const SECTION: usize = 12;

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
    let bytes = pe.read_address(source, place.address, size)?;
    Some(Thunks {
        start: place.address,
        end: place.address.saturating_add(bytes.len() as u32),
        rules: stubs::frames(&bytes, place.address),
    })
}

/// Where the image says that they are.
fn find<R: ReadAt + ?Sized>(pe: &Pe, source: &R) -> Option<Table> {
    let managed = pe.managed?;
    let header = pe.read_address(source, managed.address, 72)?;
    let native = table(header.get(MANAGED_NATIVE_HEADER..)?)?;
    let most = HEADER as u64 + u64::from(MAX_SECTIONS) * SECTION as u64;
    let bytes = pe.read_address(source, native.address, most.min(u64::from(native.size)))?;
    let (head, sections) = bytes.split_first_chunk::<HEADER>()?;
    // Signature, major and minor version, flags, number of sections.
    let [signature @ .., _, _, _, _, _, _, _, _, a, b, c, d] = *head;
    if signature != SIGNATURE {
        return None;
    }
    let count = u32::from_le_bytes([a, b, c, d]).min(MAX_SECTIONS) as usize;
    let (sections, _) = sections.as_chunks::<SECTION>();
    let found = sections.iter().take(count).find(|section| {
        section.first_chunk().is_some_and(|kind| u32::from_le_bytes(*kind) == THUNKS)
    })?;
    table(found.get(4..)?)
}

/// Two words: address and size.
fn table(bytes: &[u8]) -> Option<Table> {
    let &[a, b, c, d, e, f, g, h] = bytes.first_chunk::<8>()?;
    let table =
        Table { address: u32::from_le_bytes([a, b, c, d]), size: u32::from_le_bytes([e, f, g, h]) };
    (table.size != 0).then_some(table)
}
