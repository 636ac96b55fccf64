//! Any bytes as a pprof of another tool; what is accepted can be written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(profile) = strata_profile::pprof::decode(data) {
        strata_profile::pprof::encode_plain(&profile, std::io::sink()).expect("a sink takes all");
    }
});
