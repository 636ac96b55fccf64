//! Any bytes as the memory that a process shares with strata, for its reader and for its writer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    strata_bridge_protocol::exercise::memory(data);
});
