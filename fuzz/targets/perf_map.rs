//! Any bytes as a perf map.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_symbols::exercise::perf_map(data);
});
