//! Any bytes as the line table of a Go program.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_golang::exercise::line_table(data);
});
