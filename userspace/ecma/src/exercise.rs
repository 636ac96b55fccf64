//! The entry point for fuzzers: all that the bridge and userspace do with an image in memory.
//!
//! Invariant: it returns for every input.

use crate::metadata::{Layout, Reader};
use crate::pe::{CliHeader, Headers, directory};
use crate::ready_to_run::Header;
use crate::signature::{Budget, Tokens, Walk};
use crate::{table, token};

const BUDGET: Budget = Budget { steps: 8192, depth: 32 };

/// Any bytes as an image, as metadata and as a signature. Returns how many types it named.
#[must_use]
pub fn bytes(bytes: &[u8]) -> usize {
    let mut named = 0_usize;
    if let Ok(headers) = Headers::parse(bytes) {
        let at = |rva: u32, count: usize| {
            let offset = headers.section_of(rva, count)?.offset_of(rva)?;
            let offset = usize::try_from(offset).ok()?;
            bytes.get(offset..offset.checked_add(count)?)
        };
        for section in headers.sections() {
            let _ = section.offset_of(section.rva).and_then(|offset| section.rva_of(offset));
        }
        let cli = headers.directory(directory::CLI).and_then(|place| at(place.rva, 72));
        if let Some(cli) = cli.and_then(CliHeader::parse) {
            let part = |place: crate::pe::Directory| at(place.rva, strata_bytes::index(place.size));
            if let Some(native) = part(cli.managed_native_header)
                && let Some(header) = Header::parse(native)
            {
                let list = native.get(Header::BYTES..).unwrap_or_default();
                named = named.saturating_add(header.sections(list).count());
            }
            named = named.saturating_add(part(cli.metadata).map_or(0, metadata));
        }
    }
    named.saturating_add(metadata(bytes)).saturating_add(signature(bytes))
}

fn metadata(bytes: &[u8]) -> usize {
    let Ok(layout) = Layout::parse(bytes) else { return 0 };
    let reader = layout.on(bytes);
    let _ = (reader.mvid(), reader.pdb_stream());
    (0..64).chain([0x00ff_ffff]).map(|row| types(&reader, row)).sum()
}

fn types(reader: &Reader<'_, '_>, row: u32) -> usize {
    let (type_def, method) = (token(table::TYPE_DEF, row), token(table::METHOD_DEF, row));
    let _ = (reader.type_def(type_def), reader.type_ref(row), reader.enclosing_type(type_def));
    let _ = (reader.method_name(method), reader.declaring_type(method));
    let parameters = [type_def, method].map(|owner| reader.generic_parameters(owner).count());
    let blobs = [reader.method_signature(method), reader.type_spec(row)];
    let named: usize = blobs.into_iter().flatten().map(signature).sum();
    named.saturating_add(parameters.iter().sum())
}

fn signature(blob: &[u8]) -> usize {
    let mut named = 0_usize;
    let mut count = Tokens(|_| named = named.saturating_add(1));
    let _ = Walk::new(blob, BUDGET).method(&mut count);
    let _ = Walk::new(blob, BUDGET).type_(&mut count);
    let _ = Walk::precompiled(blob, BUDGET).type_(&mut count);
    let _ = Walk::precompiled(blob, BUDGET).enter_arguments();
    named
}
