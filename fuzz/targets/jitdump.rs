//! Any bytes as the file a just-in-time compiler writes beside its perf map.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_symbols::exercise::jitdump(data);
});
