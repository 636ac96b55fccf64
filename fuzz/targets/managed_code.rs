//! Any bytes as the code of a .NET method, or as code around one of the runtime's stubs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    strata_unwind::managed::fuzz_code(data);
});
