//! Any bytes as a stored unwind table.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_unwind::bytes::from_bytes(data);
});
