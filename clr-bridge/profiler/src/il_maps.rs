//! Which IL each piece of a method's native code came from.

use strata_bridge_protocol::field::{IlMapEntry, MAX_MAP_ENTRIES};
use strata_bridge_protocol::record::IlMap;

use crate::asking;
use crate::com::info::IlToNative;
use crate::compilations::Compilations;
use crate::session::Session;

/// Entries that fit on the stack; for methods with more, the call is repeated with a heap buffer.
const FEW: usize = 64;

/// Writes the IL map of the code at `start`, if it is this function's. `None` when it is not, or
/// the runtime has none.
///
/// The runtime dereferences a function's id, so an id from outside, or of an unloaded method, would
/// crash the process. The function is therefore looked up by address.
pub fn report(session: &Session, start: u64, function: u64) -> Option<bool> {
    let is_dead = session.lifetimes().is_dead_code(start as usize);
    if is_dead || !asking::may_ask(&session.known(), start as usize, false) {
        return None;
    }
    let (found, rejit) = session.info().function_at(start)?;
    if found as u64 != function {
        return None;
    }
    // Both may be used again by code that is being compiled: it is in the runtime's code lists before it
    // has its GC info, which the runtime reads for a map (3.1 crashes). The method has it once it is whole.
    if !Compilations::of(session, found, rejit).starts().contains(&(start as usize)) {
        return None;
    }
    report_one(session, found, rejit, start as usize)
}

/// Writes the IL map of one compilation.
pub fn report_one(session: &Session, function: usize, rejit: usize, start: usize) -> Option<bool> {
    report_with(session, function, rejit, start, |entries| session.info().il_map_at(start, entries))
}

fn report_with(
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
