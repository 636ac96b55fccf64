//! Entry points for fuzzers: each runs everything that strata does with such a file.
//!
//! Invariant: each returns for every input.

use crate::{Bundle, ManagedImage, Part, PdbId, PortablePdb};

/// An image or a bundle: headers, names, code, lines. Returns how many methods were named.
#[must_use]
pub fn image(bytes: &[u8]) -> usize {
    let mut named = 0_usize;
    if let Ok(bundle) = Bundle::open(&bytes) {
        for file in bundle.files.iter().take(8) {
            let _ = file.unpack(&bytes);
            let part = Part::new(&bytes, file.offset, file.stored_size());
            named = named.saturating_add(ManagedImage::open(&part).map_or(0, |image| walk(&image)));
        }
    }
    named.saturating_add(ManagedImage::open(&bytes).map_or(0, |image| walk(&image)))
}

fn walk(image: &ManagedImage<'_>) -> usize {
    let mut named = 0_usize;
    for row in (0..64).chain([0x00ff_ffff]) {
        for table in [0x0600_0000, 0x0a00_0000] {
            let method = image.method(table | row);
            if let Some(method) = &method {
                let statement = crate::Statement { method: table | row, start: 0, end: u32::MAX };
                let _ = image.import_of(&method.signature, statement);
                let _ = image.method_around(table | row);
            }
            named = named.saturating_add(method.into_iter().count());
        }
    }
    let functions = image.runtime_functions();
    let step = functions.len().checked_div(256).unwrap_or(0).max(1);
    for function in functions.iter().step_by(step) {
        for rva in [function.begin, function.end.saturating_sub(1)] {
            let map = image.il_map_at_rva(rva);
            let _ = map.and_then(|(begin, map)| crate::statement_at(&map, rva.checked_sub(begin)?));
            if let Some(method) = image.method_at_rva(rva) {
                let _ = crate::signature::type_tokens(&method.signature);
                named = named.saturating_add(1);
            }
            let _ = image.offset_of(rva).and_then(|offset| image.rva_of(offset));
        }
    }
    if let Ok(Some(pdb)) = image.embedded_pdb() {
        named = named.saturating_add(walk_pdb(&pdb));
    }
    named
}

/// A portable PDB. Returns the number of its lines.
#[must_use]
pub fn pdb(bytes: &[u8]) -> usize {
    let _ = PortablePdb::open(&bytes, PdbId([0; 20]));
    PortablePdb::parse(bytes.to_vec()).map_or(0, |pdb| walk_pdb(&pdb))
}

fn walk_pdb(pdb: &PortablePdb) -> usize {
    let mut lines = 0_usize;
    for row in 1..=pdb.methods().min(256) {
        let token = 0x0600_0000 | row;
        lines = lines.saturating_add(pdb.lines_of(token).len());
        let _ = (pdb.line_at(token, 5), pdb.kickoff_of(token));
    }
    lines
}
