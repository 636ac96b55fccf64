//! Any bytes as an ELF or PE file to build unwind rows from; what is built survives its stored form.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    strata_unwind::fuzz_build(data);
});
