//! Keys of frames whose symbols may be known after their profile was built.
//!
//! A profile is built without the symbols of files that answer too late. The local store keeps the
//! key of such a frame, and later its symbol under that key.

use std::fmt;

/// Identifies a code address to the daemon that sampled it. Random to everything else: no process
/// can foresee it, and no two daemons have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LateKey(pub u64);

const PREFIX: &str = "late:";

impl LateKey {
    /// The key that its text stands for.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let key = u64::from_str_radix(digits, 16).ok().map(Self)?;
        // One text for each key.
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for LateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::LateKey;
    use crate::{ProfileBuilder, Times, merge, of_kind};

    #[test]
    fn a_key_has_one_text() {
        for key in [0, 7, u64::MAX].map(LateKey) {
            assert_eq!(LateKey::parse(&key.to_string()), Some(key));
        }
        for other in ["", "late:", "late:7", "late:+000000000000007", "late:000000000000000G", "x"]
        {
            assert_eq!(LateKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_late_frame_is_its_own_location_and_keeps_its_key_through_merges() {
        let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
        let mapping = Some(builder.mapping(0, 100, 0, "/bin/app", ""));
        let locations = [
            builder.location(7, mapping, &[]),
            builder.late_location(7, mapping, LateKey(1)),
            builder.late_location(7, mapping, LateKey(2)),
        ];
        assert_eq!(builder.late_location(7, mapping, LateKey(2)), locations[2]);
        let labels = builder.labels(&[]);
        for location in locations {
            let stack = builder.stack(&[location]);
            builder.add(stack, labels, &[1, 10]);
        }
        let profile = builder.finish();
        let merged = merge([&profile, &profile], Times::Dropped).expect("profiles");
        let one_kind = of_kind(&merged, strata_kinds::Kind::Cpu, Times::Dropped);
        for profile in [&profile, &merged, &one_kind] {
            let locations = profile.locations().iter();
            let keys: Vec<_> = locations
                .map(|location| {
                    let frame = profile.frames(*location)[0];
                    assert_eq!(profile.string(frame.name), "app!0x7");
                    assert!(profile.string(frame.system_name).is_empty());
                    profile.late_key(*location)
                })
                .collect();
            assert_eq!(keys, [None, Some(LateKey(1)), Some(LateKey(2))]);
        }
    }
}
