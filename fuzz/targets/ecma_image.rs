//! Any bytes as the headers, the metadata and the signatures of a .NET image in memory, as the bridge
//! reads them in its process.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_ecma::exercise::bytes(data);
});
