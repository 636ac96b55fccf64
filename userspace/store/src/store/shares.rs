//! What each service has written lately, so that one with ever new stacks does not cost the others their
//! history: when the store is full, its oldest segments go with what all services have in them.

use std::collections::HashMap;

/// Within so many hours no service, nor all together, fill the whole store.
const HOURS: u64 = 24;
const HOUR_NANOS: u128 = 3600 * 1_000_000_000;
/// Of a small store it is shared history, not a flood, that makes old segments go.
const LEAST_OF_AN_HOUR: u64 = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Shares {
    /// When the span began that the rest is about.
    window: i64,
    all: u64,
    by_service: HashMap<String, u64>,
}

impl Shares {
    /// Whether a service has had its share of what may be written in this span: of half of that, once the
    /// other half is taken, each has the same part.
    pub(super) fn is_over(&mut self, service: &str, window: i64, span: i64, budget: u64) -> bool {
        // Profiles of the span before are usual; more of them are of a clock that was set back.
        if window > self.window || window < self.window.saturating_sub(span) {
            *self = Self { window, ..Self::default() };
        }
        let half = budget / 2;
        let own = self.by_service.get(service).copied().unwrap_or(0);
        let services = self.by_service.len().max(1) as u64;
        self.all > half && own > half / services
    }

    pub(super) fn add(&mut self, service: &str, bytes: u64) {
        self.all = self.all.saturating_add(bytes);
        match self.by_service.get_mut(service) {
            Some(own) => *own = own.saturating_add(bytes),
            None => {
                self.by_service.insert(service.to_owned(), bytes);
            }
        }
    }
}

/// Bytes that may be written in a span of `nanos`.
pub(super) fn budget(max_bytes: u64, nanos: i64) -> u64 {
    let nanos = u128::try_from(nanos).unwrap_or(0);
    let bytes = u128::from((max_bytes / HOURS).max(LEAST_OF_AN_HOUR)) * nanos / HOUR_NANOS;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: i64 = 1;

    #[test]
    fn a_service_that_floods_is_over_its_share_and_the_others_are_not() {
        let mut shares = Shares::default();
        let budget = 1000;
        for _ in 0..10 {
            for service in ["shop", "mail"] {
                assert!(!shares.is_over(service, 7, SPAN, budget));
                shares.add(service, 10);
            }
            if !shares.is_over("flood", 7, SPAN, budget) {
                shares.add("flood", 200);
            }
        }
        assert!(shares.is_over("flood", 7, SPAN, budget));
        assert!(shares.all < budget);
        // Alone it may take half, as long as there is room for others.
        assert!(!shares.is_over("flood", 8, SPAN, budget));
        assert_eq!(shares.all, 0);
        shares.add("flood", 200);
        shares.is_over("flood", 7, SPAN, budget);
        assert_eq!(shares.all, 200, "a late profile");
        shares.is_over("flood", 6, SPAN, budget);
        assert_eq!(shares.all, 0, "a clock that was set back");
    }

    #[test]
    fn a_day_of_floods_fits_a_large_store_and_a_small_one_has_no_shares_worth_the_name() {
        const HOUR: i64 = 3600 * 1_000_000_000;
        assert_eq!(budget(24_000_000_000, HOUR), 1_000_000_000);
        assert_eq!(budget(24_000_000_000, HOUR / 10), 100_000_000);
        assert_eq!(budget(1_000_000, HOUR), LEAST_OF_AN_HOUR);
    }

    #[test]
    fn many_names_do_not_make_a_share_larger() {
        let mut shares = Shares::default();
        let mut taken = 0;
        for turn in 0..100_000 {
            let service = format!("flood-{}", turn % 100);
            if !shares.is_over(&service, 7, SPAN, 100_000) {
                shares.add(&service, 100);
                taken += 100;
            }
        }
        assert!((50_000..70_000).contains(&taken), "{taken}");
        assert!(!shares.is_over("shop", 7, SPAN, 100_000));
    }
}
