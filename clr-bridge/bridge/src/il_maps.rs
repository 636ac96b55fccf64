//! Which IL each piece of a method's native code came from.

use strata_bridge_layout::field::{IlMapEntry, MAX_MAP_ENTRIES};
use strata_bridge_layout::record::IlMap;

use crate::com::info::IlToNative;
use crate::session::Session;

/// Entries that fit on the stack; methods with more are asked for again with room from the heap.
const FEW: usize = 64;

/// Tells the map of every compilation of a function. `None` when the runtime has none.
pub fn tell(session: &Session, function: u64, rejit: u64) -> Option<bool> {
    let mut starts = [0; 32];
    let (function, rejit) = (function as usize, rejit as usize);
    let count = session.info().code_starts(function, rejit, &mut starts).unwrap_or(0);
    if count == 0 {
        return tell_with(session, function, rejit, 0, |entries| {
            session.info().il_map_of_version(function, rejit, entries)
        });
    }
    let mut written = None;
    for start in starts.iter().take(count) {
        let told = tell_one(session, function, rejit, *start);
        written = match (written, told) {
            (Some(before), Some(now)) => Some(before && now),
            (before, now) => before.or(now),
        };
    }
    written
}

/// Tells the map of one compilation.
pub fn tell_one(session: &Session, function: usize, rejit: usize, start: usize) -> Option<bool> {
    tell_with(session, function, rejit, start, |entries| session.info().il_map_at(start, entries))
}

fn tell_with(
    session: &Session,
    function: usize,
    rejit: usize,
    start: usize,
    ask: impl Fn(&mut [IlToNative]) -> Option<usize>,
) -> Option<bool> {
    let mut few = [IlToNative::default(); FEW];
    let count = ask(&mut few)?;
    let mut many = Vec::new();
    let found = if count <= FEW {
        few.get(..count)?
    } else {
        let wanted = count.min(MAX_MAP_ENTRIES);
        many.try_reserve_exact(wanted).ok()?;
        many.resize(wanted, IlToNative::default());
        let count = ask(&mut many)?.min(wanted);
        many.get(..count)?
    };
    let mut entries = Vec::new();
    entries.try_reserve_exact(found.len()).ok()?;
    entries.extend(
        found.iter().map(|entry| IlMapEntry { native: entry.native_start, il: entry.il as i32 }),
    );
    Some(session.write(&IlMap {
        function: function as u64,
        rejit: rejit as u64,
        start: start as u64,
        entries: &entries,
    }))
}
