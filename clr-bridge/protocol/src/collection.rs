//! What the bridge passes about a garbage collection, in the event of a pause that it made.
//!
//! It travels in [`crate::clr_event::ClrEvent::size`]; the collection's number is in the event's
//! message. Invariant: any word is a collection; numbers that this strata does not know have no
//! name.

/// A collection, with the runtime's own numbers (src/coreclr/vm/ClrEtwAll.man: `GCStart_V2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collection {
    /// The oldest generation collected.
    pub generation: u8,
    pub reason: u8,
    /// Blocking, background, or blocking while a background one is under way.
    pub kind: u8,
}

/// Numbers of [`Collection::kind`].
pub const BLOCKING: u8 = 0;
pub const BACKGROUND: u8 = 1;
pub const FOREGROUND: u8 = 2;

/// A number of [`Collection::kind`] that is strata's own: a pause without a collection, in which the
/// server collector changes its number of heaps.
pub const HEAP_COUNT_CHANGE: u8 = 254;

/// A number that was not reported.
pub const UNKNOWN: u8 = u8::MAX;

/// As PerfView and dotnet-trace name them.
const REASONS: [&str; 18] = [
    "AllocSmall",
    "Induced",
    "LowMemory",
    "Empty",
    "AllocLarge",
    "OutOfSpaceSOH",
    "OutOfSpaceLOH",
    "InducedNotForced",
    "Internal",
    "InducedLowMemory",
    "InducedCompacting",
    "LowMemoryHost",
    "PMFullGC",
    "LowMemoryHostBlocking",
    "BgcTuningSOH",
    "BgcTuningLOH",
    "BgcStepping",
    "InducedAggressive",
];
const KINDS: [&str; 3] = ["NonConcurrentGC", "BackgroundGC", "ForegroundGC"];

impl Collection {
    #[must_use]
    pub const fn pack(self) -> u64 {
        self.generation as u64 | (self.reason as u64) << 8 | (self.kind as u64) << 16
    }

    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self { generation: word as u8, reason: (word >> 8) as u8, kind: (word >> 16) as u8 }
    }

    /// The reason's name; empty if unknown.
    #[must_use]
    pub fn reason_name(self) -> &'static str {
        REASONS.get(usize::from(self.reason)).copied().unwrap_or_default()
    }

    /// The kind's name; empty if unknown.
    #[must_use]
    pub fn kind_name(self) -> &'static str {
        if self.kind == HEAP_COUNT_CHANGE {
            return "HeapCountChange";
        }
        KINDS.get(usize::from(self.kind)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_fits_into_what_an_event_has_for_a_size() {
        let collection = Collection { generation: 2, reason: 17, kind: FOREGROUND };
        assert!(collection.pack() <= u64::from(u32::MAX));
        assert_eq!(Collection::unpack(collection.pack()), collection);
        assert_eq!(collection.reason_name(), "InducedAggressive");
        assert_eq!(collection.kind_name(), "ForegroundGC");
        let none = Collection { generation: UNKNOWN, reason: UNKNOWN, kind: HEAP_COUNT_CHANGE };
        assert_eq!(Collection::unpack(none.pack()), none);
        assert_eq!((none.reason_name(), none.kind_name()), ("", "HeapCountChange"));
    }

    #[test]
    fn any_word_is_a_collection() {
        let collection = Collection::unpack(u64::MAX);
        assert_eq!((collection.reason_name(), collection.kind_name()), ("", ""));
        assert_eq!(collection.reason, UNKNOWN);
    }
}
