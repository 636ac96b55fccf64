//! IL maps: which IL the generated code of a sampled method comes from, for line numbers. Each is requested
//! from the bridge.
//!
//! Invariant: a request without an answer is made [`MOST_REQUESTS`] times at most until records are missed.
//! Everything is forgotten with its method.

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_bridge_protocol::field::IlMapEntry;
use strata_bridge_protocol::record::IlMapRecord;

use super::Runtime;
use crate::managed::code::{Found, MethodIndex};

/// What an IL map costs besides its entries.
const IL_MAP: usize = 100;

/// An IL map.
pub type IlMap = Arc<[IlMapEntry]>;

/// A requested IL map. During a long collection, or where its log is full, a bridge gives no answer.
enum Requested {
    Pending { earlier: u8 },
    Unanswered { times: u8 },
    Map(IlMap),
}

/// A request without an answer is repeated so often.
const MOST_REQUESTS: u8 = 4;

impl Requested {
    fn bytes(&self) -> usize {
        let entries = match self {
            Self::Map(map) => map.len(),
            Self::Pending { .. } | Self::Unanswered { .. } => 0,
        };
        IL_MAP + entries * size_of::<IlMapEntry>()
    }
}

/// The IL maps of one process that were requested.
#[derive(Default)]
pub(super) struct IlMaps {
    /// By method and start of the code.
    requested: BTreeMap<(u32, u64), Requested>,
    bytes: usize,
}

impl IlMaps {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, place: (u32, u64), requested: Requested) {
        self.bytes += requested.bytes();
        let before = self.requested.insert(place, requested);
        self.uncount(before.map_or(0, |before| before.bytes()));
    }

    pub(super) fn forget_method(&mut self, index: MethodIndex) {
        let of_method = (index.0, 0)..=(index.0, u64::MAX);
        while let Some((&place, _)) = self.requested.range(of_method.clone()).next() {
            let requested = self.requested.remove(&place);
            self.uncount(requested.map_or(0, |requested| requested.bytes()));
        }
    }

    /// Answers may have been missed: what has none is requested anew.
    pub(super) fn forget_unanswered(&mut self) {
        let before = self.requested.len();
        self.requested.retain(|_, requested| matches!(requested, Requested::Map(_)));
        self.uncount((before - self.requested.len()) * IL_MAP);
    }

    fn uncount(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.requested.len()
    }
}

impl Runtime {
    pub(super) fn take_il_map(&mut self, record: IlMapRecord) {
        let Some(index) = self.code.method_from(record.start) else { return };
        if self.methods.get(index).is_none_or(|method| method.function != record.function) {
            return;
        }
        self.il_maps.insert((index.0, record.start), Requested::Map(record.entries.into()));
    }

    /// There is no answer to a request: a later sample repeats it.
    pub fn il_map_is_unanswered(&mut self, function: u64, start: u64) {
        let Some(index) = self.code.method_from(start) else { return };
        if self.methods.get(index).is_none_or(|method| method.function != function) {
            return;
        }
        if let Some(requested) = self.il_maps.requested.get_mut(&(index.0, start))
            && let Requested::Pending { earlier } = *requested
        {
            *requested = Requested::Unanswered { times: earlier + 1 };
        }
    }

    /// Notes that an IL map is requested; false when it was requested before.
    pub fn ask_il_map(&mut self, found: Found) -> bool {
        let place = (found.method.0, found.start);
        let earlier = match self.il_maps.requested.get(&place) {
            None => 0,
            Some(Requested::Unanswered { times }) if *times < MOST_REQUESTS => *times,
            Some(_) => return false,
        };
        self.il_maps.insert(place, Requested::Pending { earlier });
        true
    }

    pub fn il_map_of(&self, found: Found) -> Option<&IlMap> {
        match self.il_maps.requested.get(&(found.method.0, found.start))? {
            Requested::Map(map) => Some(map),
            Requested::Pending { .. } | Requested::Unanswered { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{found, method};
    use super::*;

    #[test]
    fn a_request_without_an_answer_is_repeated_a_few_times() {
        let mut runtime = Runtime::default();
        runtime.take_record(method(7, 0x1000), 1 << 20);
        let at = found(&runtime, 0x1008);
        for _ in 0..MOST_REQUESTS {
            assert!(runtime.ask_il_map(at));
            assert!(!runtime.ask_il_map(at), "it is pending");
            runtime.il_map_is_unanswered(8, 0x1000);
            assert!(!runtime.ask_il_map(at), "that was another function's");
            runtime.il_map_is_unanswered(7, 0x1000);
        }
        assert!(!runtime.ask_il_map(at), "not for ever");
        let map = IlMapRecord { function: 7, start: 0x1000, ..IlMapRecord::default() };
        runtime.take_record(map, 1 << 20);
        assert!(runtime.il_map_of(at).is_some(), "an answer that comes late holds");
    }
}
