//! Nothing that a spool or a server hands back makes strata panic.

use proptest::prelude::*;
use strata_export::{Address, Batch};

proptest! {
    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Batch::from_bytes(bytes.into());
    }

    #[test]
    fn any_text_is_an_address_or_an_error_that_does_not_repeat_it(
        text in "(https?://|unix:)?[a-z0-9:@/?#\\[\\]]{0,40}",
    ) {
        match Address::parse(&text) {
            Ok(address) => prop_assert!(Address::parse(&address.to_string()).is_ok()),
            Err(error) => {
                let long = text.len() > 24;
                prop_assert!(!long || !error.to_string().contains(&text));
            }
        }
    }
}
